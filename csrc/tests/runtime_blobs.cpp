// The C interface, on blobs that a stranger may have written, with callers that are wrong, and from several threads.
// Run under every sanitizer.
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "blob/stored_program.hpp"
#include "executor/cpu_features.hpp"
#include "runtime/engine_runtime.h"
#include "runtime/sha256.hpp"
#include "tests/expectations.hpp"

namespace engine {
namespace {

#if defined(__aarch64__)
const std::string kArchitecture = "aarch64";
#else
const std::string kArchitecture = "x86_64";
#endif

std::string little_endian(std::uint64_t value) {
  std::string bytes;
  for (int i = 0; i < 8; ++i) bytes += static_cast<char>(value >> 8 * i);
  return bytes;
}

std::string digest(const std::string& data) {
  const auto bytes = Sha256::of(data.data(), data.size());
  return {bytes.begin(), bytes.end()};
}

std::string padded(std::string data) {
  data.resize((data.size() + 63) / 64 * 64, '\0');
  return data;
}

// What a blob is made of; a forger can make all hashes right.
struct Parts {
  std::string device = "CPU", plugin = "CPU", version = engine_runtime_version();
  std::string requirements = R"({"architecture":")" + kArchitecture + R"(","isa":["generic"],"packed weights":")" +
                             kPackedWeightFormats + R"("})";
  std::string inputs = R"([{"name":"x","type":{"shape":[4],"tensor":"f32"}}])";
  std::string outputs = R"([{"name":"y","type":{"shape":[4],"tensor":"f32"}},)"
                        R"({"name":"c","type":{"shape":[4],"tensor":"f32"}},)"
                        R"({"name":"same","type":{"shape":[4],"tensor":"f32"}}])";
  std::string metadata = R"({"network_name":"n"})";
  std::string more;           // entries of the manifest
  std::string more_sections;  // of its list; "@" is the offset behind the others
  std::string behind;         // bytes behind the sections, which the header counts
  std::uint64_t format = 5;
  // Two plans, an output that is a constant, and one that is the input.
  std::vector<std::pair<std::string, std::string>> sections{
      {"graph", "not read"},
      {"data", std::string(64, '\0') + std::string(16, '\x40')},
      {"compilation", R"({"choices":{},"is_accurate":false,"isa":"generic","precision":"f32","threads":1})"},
      {"program",
       R"({"format":")" + program_format() +
           R"(","inputs":1,"outputs":[3,1,0],"constants":[[1,"f32",[4],"data",64]],"segments":[)"
           R"({"reads":[0],"writes":[2],"inputs":[["f32",[4]]],"outputs":[["f32",[4]]],"nodes":[["a","Copy"]],)"
           R"("largest":["a",16],"calls":[["input",16,64],["output",16,64],["step","copy",[0],[1],{},"a"]]},)"
           R"({"reads":[2],"writes":[3],"inputs":[["f32",[4]]],"outputs":[["f32",[4]]],"nodes":[["b","Copy"]],)"
           R"("largest":["b",16],"calls":[["input",16,4],["output",16,4],["step","copy",[0],[1],{},"b"]]}],)"
           R"("rows":[["copy","generic"]],"nodes":[2,0,0,0]})"},
  };

  std::string& section(const std::string& name) {
    for (auto& [found, data] : sections) {
      if (found == name) return data;
    }
    std::abort();
  }
};

std::string blob_of(const Parts& parts) {
  std::string data, listed;
  for (const auto& [name, content] : parts.sections) {
    data = padded(data);
    const auto hash = Sha256::of(content.data(), content.size());
    listed += (listed.empty() ? "" : ",") + (R"({"name":")" + name) + R"(","offset":)" + std::to_string(data.size()) +
              R"(,"sha256":")" + hex(hash) + R"(","size":)" + std::to_string(content.size()) + "}";
    data += content;
  }
  std::string more = parts.more_sections;
  if (const std::size_t at = more.find('@'); at != std::string::npos) {
    more.replace(at, 1, std::to_string(padded(data).size()));
  }
  data += parts.behind;
  const std::string manifest =
      R"({"api_version":"1","config":{},"device":")" + parts.device + R"(","engine_version":")" + parts.version +
      R"(","inputs":)" + parts.inputs + R"(,"metadata":)" + parts.metadata + R"(,"outputs":)" + parts.outputs +
      R"(,"plugin_name":")" + parts.plugin + R"(","plugin_version":"1","preferences":{},"requirements":)" +
      parts.requirements + R"(,"sections":[)" + listed + more + "]" + parts.more + "}";
  const std::size_t start = padded(std::string(96, ' ') + manifest).size();
  const std::string fields = std::string(
                                 "\x93"
                                 "EBLOB\r\n") +
                             little_endian(parts.format) + little_endian(manifest.size()) +
                             little_endian(start + data.size()) + digest(manifest);
  return padded(fields + digest(fields) + manifest) + data;
}

// A network in memory, with one request.
struct Opened {
  explicit Opened(const std::string& blob) : size(blob.size()), memory(blob.begin(), blob.end()) {
    status = engine_runtime_open_memory(memory.data(), size, nullptr, &network);
    if (status == ENGINE_RUNTIME_OK) status = engine_runtime_create_request(network, &request);
    message = status == ENGINE_RUNTIME_OK ? "" : engine_runtime_message();
  }
  ~Opened() {
    engine_runtime_close(network);  // before the request, which may live longer
    engine_runtime_destroy_request(request);
  }
  Opened(const Opened&) = delete;
  Opened& operator=(const Opened&) = delete;

  std::size_t size;
  std::vector<char> memory;
  engine_runtime_network* network = nullptr;
  engine_runtime_request* request = nullptr;
  engine_runtime_status status;
  std::string message;
};

void expect_status(engine_runtime_status got, engine_runtime_status wanted, const std::string& part) {
  const std::string message = got == ENGINE_RUNTIME_OK ? "" : engine_runtime_message();
  expect(got == wanted && message.find(part) != std::string::npos,
         "expected " + std::to_string(wanted) + ", " + part + "; got " + std::to_string(got) + ", " + message);
}

void check_sha256() {
  const auto text = [](const std::string& data) { return hex(Sha256::of(data.data(), data.size())); };
  expect(text("") == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855", "of nothing");
  expect(text("abc") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad", "of abc");
  expect(text(std::string(1000000, 'a')) == "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0", "long");
  std::string data;
  for (int size = 0; size < 300; ++size, data += static_cast<char>(size * 7)) {
    Sha256 portable(false), parts(true);
    portable.update(data.data(), data.size());
    for (std::size_t at = 0; at < data.size(); at += 17) {
      parts.update(data.data() + at, std::min<std::size_t>(17, data.size() - at));
    }
    expect(portable.digest() == parts.digest(), "with and without instructions, of " + std::to_string(size));
  }
}

void check_run() {
  const Opened opened(blob_of({}));
  expect_status(opened.status, ENGINE_RUNTIME_OK, "");
  if (opened.request == nullptr) return;
  expect(engine_runtime_num_inputs(opened.network) == 1 && engine_runtime_num_outputs(opened.network) == 3, "counts");
  engine_runtime_tensor tensor{};
  tensor.struct_size = sizeof(tensor);
  expect_status(engine_runtime_output(opened.network, 1, &tensor), ENGINE_RUNTIME_OK, "");
  expect(std::string(tensor.name) == "c" && std::string(tensor.type) == "f32" && tensor.rank == 1 &&
             tensor.shape[0] == 4 && tensor.bytes == 16 && tensor.element_type == ENGINE_RUNTIME_F32,
         "the description of an output");
  std::size_t index = 9;
  expect_status(engine_runtime_find_output(opened.network, "same", &index), ENGINE_RUNTIME_OK, "");
  expect(index == 2, "the index of an output");
  for (int round = 0; round < 3; ++round) {
    const float x[4] = {1.0F + static_cast<float>(round), 2, 3, 4};
    float got[4] = {}, constant[4];
    std::memset(constant, 0x40, sizeof(constant));
    expect_status(engine_runtime_set_input(opened.request, 0, x, sizeof(x)), ENGINE_RUNTIME_OK, "");
    expect_status(engine_runtime_run(opened.request), ENGINE_RUNTIME_OK, "");
    for (const std::size_t output : {std::size_t{0}, std::size_t{2}}) {
      expect_status(engine_runtime_get_output(opened.request, output, got, sizeof(got)), ENGINE_RUNTIME_OK, "");
      expect(std::memcmp(got, x, sizeof(x)) == 0, "output " + std::to_string(output));
    }
    const void* data = nullptr;
    expect_status(engine_runtime_output_data(opened.request, 1, &data), ENGINE_RUNTIME_OK, "");
    expect(std::memcmp(data, constant, sizeof(constant)) == 0, "a constant");
  }
}

void check_variables() {
  Parts parts;
  const std::string port = R"("type":{"shape":[4],"tensor":"f32"}})";
  const auto variable = [&](const std::string& initial) {
    return R"({"model_identity":"0","network_name":"n","variables":[{"after":{"name":"next",)" + port +
           R"(,"before":{"name":"past",)" + port + R"(,"variable":{"initial":)" + initial +
           R"(,"input":"past","name":"v","output":"next"}}]})";
  };
  parts.outputs = R"([{"name":"y",)" + port + "]";
  parts.section("program") =
      R"({"format":")" + program_format() +
      R"(","inputs":2,"outputs":[2,3],"constants":[],"segments":[{"reads":[0,1],"writes":[2,3],)"
      R"("inputs":[["f32",[4]],["f32",[4]]],"outputs":[["f32",[4]],["f32",[4]]],"nodes":[["a","Copy"],["b","Copy"]],)"
      R"("largest":["a",16],"calls":[["input",16,4],["input",16,128],["output",16,4],["output",16,65536],)"
      R"(["step","copy",[1],[2],{},"a"],["step","copy",[0],[3],{},"b"]]}],"rows":[],"nodes":[2,0,0,0]})";
  // AAAAAAAAgD8AAABAAABAQA==: 0, 1, 2, 3
  parts.metadata = variable(R"({"data":"AAAAAAAAgD8AAABAAABAQA==","shape":[4],"type":"f32"})");
  const Opened opened(blob_of(parts));
  expect_status(opened.status, ENGINE_RUNTIME_OK, "");
  if (opened.request == nullptr) return;
  expect(engine_runtime_num_inputs(opened.network) == 1, "a variable is not an input");
  const float initial[4] = {0, 1, 2, 3};
  float before[4] = {0, 1, 2, 3};
  for (int round = 0; round < 5; ++round) {
    if (round == 3) {
      expect_status(engine_runtime_reset(opened.request), ENGINE_RUNTIME_OK, "");
      std::memcpy(before, initial, sizeof(before));
    }
    const float x[4] = {5, 6, 7, 8.0F + static_cast<float>(round)};
    float y[4];
    expect_status(engine_runtime_set_input(opened.request, 0, x, sizeof(x)), ENGINE_RUNTIME_OK, "");
    expect_status(engine_runtime_run(opened.request), ENGINE_RUNTIME_OK, "");
    expect_status(engine_runtime_get_output(opened.request, 0, y, sizeof(y)), ENGINE_RUNTIME_OK, "");
    expect(std::memcmp(y, before, sizeof(y)) == 0, "the value of the last run, in run " + std::to_string(round));
    std::memcpy(before, x, sizeof(x));
  }
  parts.metadata = variable(R"({"shape":[4],"type":"f32"})");
  expect_status(Opened(blob_of(parts)).status, ENGINE_RUNTIME_OK, "");
  const std::vector<std::pair<std::string, std::string>> wrong{
      {R"({"shape":[5],"type":"f32"})", "variable `v` begins with f32[5]; expected f32[4]"},
      {R"({"shape":[4],"type":"string"})", "no values of the type"},
      {R"({"data":"AAAA","shape":[4],"type":"f32"})", "begins with 3 bytes; expected 16"},
      {R"({"data":"AAA","shape":[4],"type":"f32"})", "base64"},
      {R"({"data":"=AAA","shape":[4],"type":"f32"})", "base64"},
      {R"({"data":"A=AA","shape":[4],"type":"f32"})", "base64"},
      {R"({"data":"AA=A","shape":[4],"type":"f32"})", "base64"},
      {R"({"data":"AA==AAAA","shape":[4],"type":"f32"})", "base64"},
      {R"({"data":1,"shape":[4],"type":"f32"})", "expected a text"},
  };
  for (const auto& [described, part] : wrong) {
    parts.metadata = variable(described);
    expect_status(Opened(blob_of(parts)).status, ENGINE_RUNTIME_FORMAT, part);
  }
}

void check_damaged() {
  const std::string blob = blob_of({});
  for (std::size_t size = 0; size < blob.size(); ++size) {
    const Opened opened(blob.substr(0, size));
    expect(opened.status == ENGINE_RUNTIME_FORMAT || (size == 0 && opened.status == ENGINE_RUNTIME_ARGUMENT),
           "cut to " + std::to_string(size) + ": " + opened.message);
  }
  // Hashes cover all bytes but the padding, which must be zero.
  for (std::size_t at = 0; at < blob.size(); ++at) {
    std::string changed = blob;
    changed[at] = static_cast<char>(changed[at] ^ 1 << at % 8);
    const Opened opened(changed);
    expect(opened.status == ENGINE_RUNTIME_FORMAT || opened.status == ENGINE_RUNTIME_CORRUPT,
           "a bit of byte " + std::to_string(at) + " changed: " + std::to_string(opened.status) + opened.message);
  }
  expect_status(Opened(blob + "x").status, ENGINE_RUNTIME_FORMAT, "data follows the blob");
  expect_status(Opened("\x08\x07model").status, ENGINE_RUNTIME_FORMAT, "not a blob");
  std::string huge = blob;
  huge.replace(16, 8, little_endian(~std::uint64_t{0}));
  huge.replace(64, 32, digest(huge.substr(0, 64)));
  expect_status(Opened(huge).status, ENGINE_RUNTIME_FORMAT, "declares a manifest of 18446744073709551615 bytes");
}

void check_forged() {
  struct Forgery {
    engine_runtime_status status;
    std::string part;
    std::function<void(Parts&)> change;
  };
  const auto replaced = [](const std::string& section, const std::string& from, const std::string& to) {
    return [=](Parts& parts) {
      std::string& text = parts.section(section);
      text.replace(text.find(from), from.size(), to);
    };
  };
  const auto program = [&](const char* from, const char* to) { return replaced("program", from, to); };
  const auto compilation = [&](const char* from, const char* to) { return replaced("compilation", from, to); };
  const std::string x = R"([{"name":"x","type":)";
  const std::vector<Forgery> forgeries{
      {ENGINE_RUNTIME_UNSUPPORTED, "it is signed", [](Parts& p) { p.format = 6; }},
      {ENGINE_RUNTIME_UNSUPPORTED, "it is encrypted", [](Parts& p) { p.format = 7; }},
      {ENGINE_RUNTIME_UNSUPPORTED, "it is encrypted", [](Parts& p) { p.format = 8; }},
      {ENGINE_RUNTIME_INCOMPATIBLE, "format version 0; this runtime reads 5", [](Parts& p) { p.format = 0; }},
      {ENGINE_RUNTIME_INCOMPATIBLE, "format version 1; this runtime reads 5", [](Parts& p) { p.format = 1; }},
      {ENGINE_RUNTIME_INCOMPATIBLE, "format version 99", [](Parts& p) { p.format = 99; }},
      {ENGINE_RUNTIME_INCOMPATIBLE, "for the device OPENCL", [](Parts& p) { p.device = "OPENCL"; }},
      {ENGINE_RUNTIME_INCOMPATIBLE, "by the plugin ACME", [](Parts& p) { p.plugin = "ACME"; }},
      {ENGINE_RUNTIME_INCOMPATIBLE, "compiled by engine 0.0.1", [](Parts& p) { p.version = "0.0.1"; }},
      {ENGINE_RUNTIME_INCOMPATIBLE, "it is not for", [](Parts& p) { p.requirements = R"({"architecture":"vax"})"; }},
      {ENGINE_RUNTIME_INCOMPATIBLE, "a package of variants", [](Parts& p) { p.requirements = R"({"variants":"1"})"; }},
      {ENGINE_RUNTIME_INCOMPATIBLE, "requires `extensions`",
       [](Parts& p) { p.requirements = R"({"extensions":"e"})"; }},
      {ENGINE_RUNTIME_INCOMPATIBLE, "not packed in", [](Parts& p) { p.requirements = R"({"packed weights":["0"]})"; }},
      {ENGINE_RUNTIME_FORMAT, "another instruction set", [](Parts& p) { p.requirements = "{}"; }},
      {ENGINE_RUNTIME_FORMAT, "expected a list", [](Parts& p) { p.requirements = R"({"isa":1})"; }},
      {ENGINE_RUNTIME_FORMAT, "instruction set `mmx`", compilation("generic", "mmx")},
      {ENGINE_RUNTIME_FORMAT, "0 is not an integer from 1 to 4096", compilation(":1", ":0")},
      {ENGINE_RUNTIME_FORMAT, "expected true or false", compilation("false", "0")},
      {ENGINE_RUNTIME_FORMAT, "expected an object", compilation("{}", "1")},
      {ENGINE_RUNTIME_FORMAT, "not valid JSON", [](Parts& p) { p.section("compilation") = "{"; }},
      {ENGINE_RUNTIME_FORMAT, "unknown key \"z\"", [](Parts& p) { p.more = R"(,"z":1)"; }},
      {ENGINE_RUNTIME_FORMAT, "appears twice", [](Parts& p) { p.more = R"(,"config":1)"; }},
      {ENGINE_RUNTIME_FORMAT, "two sections", [](Parts& p) { p.sections.emplace_back("graph", ""); }},
      {ENGINE_RUNTIME_FORMAT, "expected an object", [](Parts& p) { p.more_sections = ",1"; }},
      {ENGINE_RUNTIME_FORMAT, "section \"s\" is at 64",
       [](Parts& p) { p.more_sections = R"(,{"name":"s","offset":64,"sha256":"","size":0})"; }},
      {ENGINE_RUNTIME_FORMAT, "beyond 64 bits",
       [](Parts& p) { p.more_sections = R"(,{"name":"s","offset":18446744073709551615,"sha256":"","size":0})"; }},
      {ENGINE_RUNTIME_FORMAT, "\"s\" of 9223372036854775807 bytes extends beyond the blob",
       [](Parts& p) {
         p.more_sections = R"(,{"name":"s","offset":@,"sha256":"","size":9223372036854775807})";
         p.behind = std::string(128, '\0');
       }},
      {ENGINE_RUNTIME_FORMAT, "but header, manifest and sections take",
       [](Parts& p) { p.behind = std::string(9, ' '); }},
      {ENGINE_RUNTIME_UNSUPPORTED, "encrypted or transformed",
       [](Parts& p) { p.metadata = R"({"transform":{"name":"aes"}})"; }},
      {ENGINE_RUNTIME_UNSUPPORTED, "weights are in another file", [](Parts& p) { p.metadata = R"({"bound":{}})"; }},
      {ENGINE_RUNTIME_UNSUPPORTED, "`x` has an open shape",
       [&](Parts& p) { p.inputs = x + R"({"shape":[{"symbol":"N"}],"tensor":"f32"}}])"; }},
      {ENGINE_RUNTIME_UNSUPPORTED, "any number of dimensions",
       [&](Parts& p) { p.inputs = x + R"({"shape":null,"tensor":"f32"}}])"; }},
      {ENGINE_RUNTIME_UNSUPPORTED, "`x` is not a tensor",
       [&](Parts& p) { p.inputs = x + R"({"sequence":{"shape":[4],"tensor":"f32"}}}])"; }},
      {ENGINE_RUNTIME_UNSUPPORTED, "a tensor of texts",
       [&](Parts& p) { p.inputs = x + R"({"shape":[4],"tensor":"string"}}])"; }},
      {ENGINE_RUNTIME_UNSUPPORTED, "fewer than 8 bits",
       [&](Parts& p) { p.inputs = x + R"({"shape":[4],"tensor":"i4"}}])"; }},
      {ENGINE_RUNTIME_UNSUPPORTED, "null character",
       [&](Parts& p) { p.inputs = R"([{"name":"x\u0000","type":{"shape":[4],"tensor":"f32"}}])"; }},
      {ENGINE_RUNTIME_FORMAT, "-4 is not an integer from 0",
       [&](Parts& p) { p.inputs = x + R"({"shape":[-4],"tensor":"f32"}}])"; }},
      {ENGINE_RUNTIME_FORMAT, "overflow",
       [&](Parts& p) { p.inputs = x + R"({"shape":[4294967296,4294967296,4],"tensor":"f32"}}])"; }},
      {ENGINE_RUNTIME_FORMAT, "is f32[5]; expected f32[4]",
       [&](Parts& p) { p.inputs = x + R"({"shape":[5],"tensor":"f32"}}])"; }},
      {ENGINE_RUNTIME_FORMAT, "it has 1 inputs, the network 0", [&](Parts& p) { p.inputs = "[]"; }},
      {ENGINE_RUNTIME_UNSUPPORTED, "only the graph: it was exported without", [](Parts& p) { p.sections.pop_back(); }},
      {ENGINE_RUNTIME_UNSUPPORTED, "Det `d` runs on the reference evaluator",
       [](Parts& p) { p.sections.back() = {"program/none", "Det `d` runs on the reference evaluator"}; }},
      {ENGINE_RUNTIME_FORMAT, "there is no kernel", program(R"("step","copy")", R"("step","none")")},
      {ENGINE_RUNTIME_FORMAT, "no section \"none\"", program(R"("data",64)", R"("none",64)")},
      {ENGINE_RUNTIME_INCOMPATIBLE, "leaves out: copy for none",
       program(R"(["copy","generic"])", R"(["copy","none"])")},
  };
  for (const Forgery& forgery : forgeries) {
    Parts parts;
    forgery.change(parts);
    expect_status(Opened(blob_of(parts)).status, forgery.status, forgery.part);
  }
}

// A blob for kernels that this machine lacks, or must not use.
void check_instruction_sets() {
  const auto& isas = all_isas();
  const auto other = std::find_if(isas.rbegin(), isas.rend(), is_of_architecture);
  if (*other == Isa::generic) return;
  Parts parts;
  for (std::string* text : {&parts.requirements, &parts.section("compilation")}) {
    text->replace(text->find("generic"), std::strlen("generic"), isa_name(*other));
  }
  setenv("ENGINE_MAX_ISA", "generic", 1);
  expect_status(Opened(blob_of(parts)).status, ENGINE_RUNTIME_INCOMPATIBLE,
                std::string("it needs the instruction set ") + isa_name(*other) + ", and this machine has generic");
  setenv("ENGINE_MAX_ISA", "mmx", 1);
  expect_status(Opened(blob_of(parts)).status, ENGINE_RUNTIME_INCOMPATIBLE, "mmx");
  unsetenv("ENGINE_MAX_ISA");
}

void check_callers() {
  const Opened opened(blob_of({}));
  if (opened.request == nullptr) return expect(false, opened.message);
  constexpr engine_runtime_status kWrong = ENGINE_RUNTIME_ARGUMENT;
  engine_runtime_request* request = opened.request;
  float x[4] = {1, 2, 3, 4};
  void* writable = nullptr;
  const void* readable = nullptr;
  std::size_t index = 0;
  expect_status(engine_runtime_run(request), kWrong, "input `x` (f32[4]) has no value");
  expect_status(engine_runtime_get_output(request, 0, x, 16), kWrong, "no run has finished");
  expect_status(engine_runtime_output_data(request, 0, &readable), kWrong, "no run has finished");
  expect_status(engine_runtime_set_input(request, 0, x, 12), kWrong, "input `x` is f32[4] and has 16 bytes; got 12");
  expect_status(engine_runtime_set_input(request, 0, nullptr, 16), kWrong, "null pointer");
  expect_status(engine_runtime_set_input(request, 1, x, 16), kWrong, "there is no input 1; the network has 1");
  expect_status(engine_runtime_set_input(nullptr, 0, x, 16), kWrong, "request is a null pointer");
  expect_status(engine_runtime_input_data(request, 0, nullptr), kWrong, "data is a null pointer");
  expect_status(engine_runtime_input_data(request, 7, &writable), kWrong, "there is no input 7");
  expect_status(engine_runtime_input_data(request, 0, &writable), ENGINE_RUNTIME_OK, "");
  expect(reinterpret_cast<std::uintptr_t>(writable) % 64 == 0, "memory of inputs is aligned");
  std::memcpy(writable, x, sizeof(x));
  expect_status(engine_runtime_cancel(request), ENGINE_RUNTIME_OK, "");  // nothing runs, so the next run does
  expect_status(engine_runtime_run(request), ENGINE_RUNTIME_OK, "");
  expect_status(engine_runtime_get_output(request, 0, x, 17), kWrong, "output `y` is f32[4] and has 16 bytes; got 17");
  expect_status(engine_runtime_get_output(request, 3, x, 16), kWrong, "there is no output 3");
  expect_status(engine_runtime_get_output(request, 0, nullptr, 16), kWrong, "null pointer");
  expect_status(engine_runtime_find_input(opened.network, "z", &index), kWrong, "no input `z`; there are x");
  expect_status(engine_runtime_find_input(opened.network, nullptr, &index), kWrong, "name is a null pointer");
  engine_runtime_tensor tensor{};
  expect_status(engine_runtime_input(opened.network, 0, &tensor), kWrong, "struct_size of the tensor is 0");
  tensor.struct_size = sizeof(tensor);
  expect_status(engine_runtime_input(opened.network, 1, &tensor), kWrong, "there is no input 1");
  expect_status(engine_runtime_input(nullptr, 0, &tensor), kWrong, "network is a null pointer");
  engine_runtime_network* network = nullptr;
  engine_runtime_options options{sizeof(options), -1};
  expect_status(engine_runtime_open_memory(opened.memory.data(), opened.size, &options, &network), kWrong, "is -1");
  options = {1, 0};
  expect_status(engine_runtime_open_memory(opened.memory.data(), opened.size, &options, &network), kWrong,
                "options is");
  expect_status(engine_runtime_open_memory(nullptr, 5, nullptr, &network), kWrong, "data is a null pointer");
  expect_status(engine_runtime_open(nullptr, nullptr, &network), kWrong, "path is a null pointer");
  expect_status(engine_runtime_open("x", nullptr, nullptr), kWrong, "network is a null pointer");
  expect_status(engine_runtime_create_request(nullptr, &request), kWrong, "network is a null pointer");
  expect(request == nullptr && engine_runtime_num_inputs(nullptr) == 0, "null pointers");
  engine_runtime_close(nullptr);
  engine_runtime_destroy_request(nullptr);
  expect(engine_runtime_abi() == ENGINE_RUNTIME_ABI, "the interface");
}

void check_booleans() {
  Parts parts;
  const auto replaced = [](std::string text) {
    for (std::size_t at; (at = text.find("f32")) != std::string::npos;) text.replace(at, 3, "bool");
    return text;
  };
  parts.inputs = replaced(parts.inputs);
  parts.outputs = replaced(parts.outputs);
  std::string& program = parts.section("program") = replaced(parts.section("program"));
  for (std::size_t at; (at = program.find("put\",16,")) != std::string::npos;) program.replace(at + 5, 2, "4");
  const Opened opened(blob_of(parts));
  if (opened.request == nullptr) return expect(false, opened.message);
  for (const char value : {1, 2, -1}) {
    const char x[4] = {0, 1, 0, value};
    expect_status(engine_runtime_set_input(opened.request, 0, x, sizeof(x)), ENGINE_RUNTIME_OK, "");
    expect_status(engine_runtime_run(opened.request), value == 1 ? ENGINE_RUNTIME_OK : ENGINE_RUNTIME_DATA,
                  value == 1 ? "" : "input `x` has a boolean that is neither 0 nor 1");
  }
}

void check_files() {
  char folder[] = "/tmp/engine-runtime-XXXXXX";
  if (mkdtemp(folder) == nullptr) return expect(false, "no folder for files");
  const std::string path = std::string(folder) + "/n.blob", pipe = std::string(folder) + "/pipe";
  engine_runtime_network* network = nullptr;
  expect_status(engine_runtime_open(path.c_str(), nullptr, &network), ENGINE_RUNTIME_IO, path + ": cannot be opened");
  expect_status(engine_runtime_open(folder, nullptr, &network), ENGINE_RUNTIME_IO, "not a regular file");
  expect_status(engine_runtime_open("/dev/zero", nullptr, &network), ENGINE_RUNTIME_IO, "not a regular file");
  expect(mkfifo(pipe.c_str(), 0600) == 0, "a pipe");
  expect_status(engine_runtime_open(pipe.c_str(), nullptr, &network), ENGINE_RUNTIME_IO, "not a regular file");
  Parts parts;
  parts.section("graph") = std::string(200000, 'g');  // verified in several parts
  std::string blob = blob_of(parts);
  std::ofstream(path, std::ios::binary) << blob;
  expect_status(engine_runtime_open(path.c_str(), nullptr, &network), ENGINE_RUNTIME_OK, "");
  engine_runtime_close(network);
  blob[blob.find(std::string(100, 'g')) + 150000] = 'h';
  std::ofstream(path, std::ios::binary) << blob;
  expect_status(engine_runtime_open(path.c_str(), nullptr, &network), ENGINE_RUNTIME_CORRUPT, "section \"graph\"");
  expect(network == nullptr, "no network after an error");
  std::ofstream(path, std::ios::binary) << blob.substr(0, blob.size() - 1);
  expect_status(engine_runtime_open(path.c_str(), nullptr, &network), ENGINE_RUNTIME_FORMAT, "truncated");
  std::remove(path.c_str());
  std::remove(pipe.c_str());
  rmdir(folder);
}

// Requests of one network run at the same time; one request that several threads use is busy, and nothing worse.
void check_threads() {
  const Opened opened(blob_of({}));
  if (opened.request == nullptr) return expect(false, opened.message);
  std::atomic<int> wrong{0}, done{0};
  std::vector<std::thread> threads;
  for (int number = 0; number < 4; ++number) {
    threads.emplace_back([&, number] {
      engine_runtime_request* own = nullptr;
      if (engine_runtime_create_request(opened.network, &own) != ENGINE_RUNTIME_OK) ++wrong;
      for (int round = 0; round < 200; ++round) {
        const float x[4] = {static_cast<float>(number), static_cast<float>(round), 1, 2};
        float y[4] = {};
        if (engine_runtime_set_input(own, 0, x, sizeof(x)) != ENGINE_RUNTIME_OK) ++wrong;
        if (engine_runtime_run(own) != ENGINE_RUNTIME_OK) ++wrong;
        if (engine_runtime_get_output(own, 0, y, sizeof(y)) != ENGINE_RUNTIME_OK) ++wrong;
        if (std::memcmp(x, y, sizeof(x)) != 0) ++wrong;
        const engine_runtime_status set = engine_runtime_set_input(opened.request, 0, x, sizeof(x));
        const engine_runtime_status run = engine_runtime_run(opened.request);
        if (set != ENGINE_RUNTIME_OK && set != ENGINE_RUNTIME_BUSY) ++wrong;
        const bool is_expected = run == ENGINE_RUNTIME_OK || run == ENGINE_RUNTIME_BUSY ||
                                 run == ENGINE_RUNTIME_CANCELLED ||
                                 (set == ENGINE_RUNTIME_BUSY && run == ENGINE_RUNTIME_ARGUMENT);
        if (!is_expected) ++wrong;
        if (run == ENGINE_RUNTIME_OK) ++done;
        engine_runtime_cancel(opened.request);
      }
      engine_runtime_destroy_request(own);
    });
  }
  for (std::thread& thread : threads) thread.join();
  expect(wrong == 0, std::to_string(wrong) + " calls returned something else");
  expect(done > 0, "some of the runs of the shared request are done");
}

}  // namespace
}  // namespace engine

int main() {
  using namespace engine;
  return run_cases({{"SHA-256", check_sha256},
                    {"a run", check_run},
                    {"variables", check_variables},
                    {"damaged blobs", check_damaged},
                    {"forged blobs", check_forged},
                    {"instruction sets", check_instruction_sets},
                    {"wrong calls", check_callers},
                    {"booleans", check_booleans},
                    {"files", check_files},
                    {"threads", check_threads}});
}
