// JSON and the programs of blobs, as a stranger may have written them. Run under the address sanitizer.
#include <clocale>
#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "blob/element_types.hpp"
#include "blob/json.hpp"
#include "blob/stored_program.hpp"
#include "executor/context.hpp"
#include "kernels/prepare/codes.hpp"
#include "tests/expectations.hpp"

namespace engine {
namespace {

void check_values() {
  const JsonDocument document(R"( {"a" : [1, -2.5e1, true, null, "x\"\\\/\b\f\n\r\t\u00e9\ud83d\ude00é"], "b":{}} )");
  const auto items = document.root().at("a").items(5);
  expect(items[0].integer() == 1 && items[0].real() == 1.0, "an integer");
  expect(items[1].is(JsonKind::real) && items[1].real() == -25.0, "a number with an exponent");
  expect(items[2].boolean() && items[3].is(JsonKind::null), "true and null");
  expect(items[4].text() == "x\"\\/\b\f\n\r\t\u00e9\U0001F600\u00e9", "escapes");
  expect(document.root().at("b").size() == 0 && document.root().has("b") && !document.root().has("c"), "keys");
  expect_error<JsonError>("\"c\" is missing", [&] { document.root().at("c"); });
  expect_error<JsonError>("expected an object", [&] { items[0].entries(); });
  expect_error<JsonError>("expected a text", [&] { items[0].text(); });
  expect_error<JsonError>("has 5 items; expected 2", [&] { document.root().at("a").items(2); });
}

void check_numbers() {
  const auto read = [](const char* text) { return JsonDocument(text, {64, 100, true}); };
  expect(read("-9223372036854775808").root().integer() == INT64_MIN, "the least integer");
  expect(read("9223372036854775807").root().integer() == INT64_MAX, "the greatest integer");
  expect(read("9223372036854775808").root().is(JsonKind::large_integer), "an integer beyond 64 bits");
  expect(read("18446744073709551617").root().is(JsonKind::large_integer), "an integer that wraps to 1");
  expect(std::signbit(read("-0.0").root().real()), "the sign of zero");
  expect(read("0.1").root().real() == 0.1 && read("5e-324").root().real() == 5e-324, "correct rounding");
  expect(std::isnan(read("NaN").root().real()) && read("-Infinity").root().real() == -INFINITY, "what Python writes");
  for (const char* text : {"NaN", "Infinity", "-Infinity"}) {
    expect_error<JsonError>("expected a value", [&] { JsonDocument{text}; });
  }
  expect_error<JsonError>("larger than any", [&] { read("1e999"); });
  // A program that sets a locale does not change what a blob means.
  if (std::setlocale(LC_ALL, "de_DE.UTF-8") != nullptr) expect(read("0.5").root().real() == 0.5, "a decimal comma");
  std::setlocale(LC_ALL, "C");
}

void check_malformed() {
  for (const char* text :
       {"",        " ",         "{",           "[",   "[1",   "[1,]", "{\"a\"}",   "{\"a\":}", "{\"a\":1,}", "{1:2}",
        "01",      "1.",        ".5",          "1e",  "+1",   "-",    "tru",       "nul",      "\"",         "\"\\\"",
        "\"\\x\"", "\"\\u12\"", "\"\\u12g4\"", "1 2", "[1]]", "[1}",  "{\"a\":1]", "'a'"}) {
    expect_error<JsonError>("not valid JSON at byte", [&] { JsonDocument{text}; });
  }
  expect_error<JsonError>("\"a\" appears twice", [] { JsonDocument{R"({"a":1,"b":2,"\u0061":3})"}; });
  expect_error<JsonError>("control character", [] { JsonDocument{"\"\n\""}; });
  expect_error<JsonError>("surrogate", [] { JsonDocument{R"("\ud800")"}; });
  expect_error<JsonError>("surrogate", [] { JsonDocument{R"("\udc00\ud800")"}; });
  // An overlong form, a surrogate, a code beyond Unicode, a lone continuation, a sequence that is cut.
  for (const char* text :
       {"\"\xC0\x80\"", "\"\xED\xA0\x80\"", "\"\xF4\x90\x80\x80\"", "\"\x80\"", "\"\xE2\x82\"", "\"\xFF\""}) {
    expect_error<JsonError>("not UTF-8", [&] { JsonDocument{text}; });
  }
  expect_error<JsonError>("not UTF-8", [] { JsonDocument{std::string_view("\"\xE2\x82", 3)}; });
}

void check_limits() {
  const std::string deep = std::string(64, '[') + std::string(64, ']');
  expect(JsonDocument(deep).root().size() == 1, "64 levels");
  expect_error<JsonError>("nested deeper than 64", [&] { JsonDocument{"[" + deep + "]"}; });
  expect_error<JsonError>("nested deeper than 64", [&] { JsonDocument{std::string(1 << 20, '[')}; });
  expect_error<JsonError>("more than 4 values", [&] { JsonDocument("[1,2,3,4]", {64, 4, false}); });
  expect_error<JsonError>("more than 1024 characters", [&] { JsonDocument{std::string(2000, '1')}; });
}

// A program that copies its input, with a part of it replaced.
std::string program(const std::string& part = "", const std::string& by = "") {
  std::string text = R"({"format":")" + program_format() +
                     R"(","inputs":1,"outputs":[2],"constants":[[1,"f32",[4],"data",64]],"segments":[{"reads":[0,1],)"
                     R"("writes":[2],"inputs":[["f32",[4]],["f32",[4]]],"outputs":[["f32",[8]]],)"
                     R"("nodes":[["first","Copy"],["second","Copy"]],"largest":["Concat `c`",32],)"
                     R"("calls":[["input",16,4],["input",16,4],["output",32,4],["view",2,0,16],["view",2,16,16],)"
                     R"(["buffer",16,64],["constant","data",128,16],)"
                     R"(["step","copy",[0],[3],{},"a"],["step","copy",[1],[4],{},"b"]]}],)"
                     R"("rows":[["copy","generic"]],"nodes":[2,0,0,0]})";
  if (part.empty()) return text;
  const std::size_t at = text.find(part);
  if (at == std::string::npos) expect(false, part + " is not in the program");
  return text.replace(at, part.size(), by);
}

const std::vector<ValueForm>& inputs() {
  static const std::vector<ValueForm> forms{{find_element_type("f32"), {4}}};
  return forms;
}

const std::vector<ValueForm>& outputs() {
  static const std::vector<ValueForm> forms{{find_element_type("f32"), {8}}};
  return forms;
}

StoredBytes find(const std::string& name) {
  alignas(64) static std::byte content[192] = {};
  for (std::size_t i = 0; i < sizeof(content); ++i) content[i] = static_cast<std::byte>(i);
  if (name == "data") return {content, sizeof(content), nullptr};
  if (name == "unaligned") return {content + 1, sizeof(content) - 1, nullptr};
  throw StoredProgramError("no section " + name);
}

BuiltProgram built(const std::string& text) {
  return StoredProgram(text).build(inputs(), outputs(), Isa::generic, find);
}

void check_built() {
  const BuiltProgram made = built(program());
  expect(made.inputs == 1 && made.slots == 3 && made.outputs == std::vector<std::size_t>{2}, "the slots");
  const BuiltSegment& segment = made.segments[0];
  expect(segment.plan->steps().size() == 2 && segment.nodes[1].first == "second", "the steps");
  expect(segment.live_bytes == std::vector<std::size_t>{0, 0}, "no step uses the arena");
  const auto& constant = made.constants[0];
  expect(constant.slot == 1 && constant.bytes.size == 16 && constant.bytes.data[0] == std::byte{64}, "the constant");

  const float x[4] = {1, 2, 3, 4};
  float y[8] = {};
  Context context(segment.plan);
  const bool finished = context.run({{x, sizeof(x)}, {constant.bytes.data, 16}}, {{y, sizeof(y)}});
  expect(finished && std::memcmp(x, y, sizeof(x)) == 0 && std::memcmp(constant.bytes.data, y + 4, 16) == 0, "the run");

  const BuiltProgram copied = built(program(R"("data",64)", R"("unaligned",63)"));
  const StoredBytes& aligned = copied.constants[0].bytes;
  expect(reinterpret_cast<std::uintptr_t>(aligned.data) % 64 == 0, "a constant that is not aligned is copied");
  expect(std::memcmp(aligned.data, constant.bytes.data, 16) == 0, "the copy");
  const BuiltProgram through = built(
      program(R"(["step","copy",[1],[4],{},"b"])", R"(["step","copy",[1],[5],{},"b"],["step","copy",[5],[4],{},"c"])")
          .replace(program().find(R"(["second","Copy"])"), 0, R"(["middle","Copy"],)"));
  expect(through.segments[0].live_bytes == std::vector<std::size_t>{0, 16, 16}, "a buffer between two steps");
}

void check_forged() {
  const std::vector<std::vector<std::string>> forgeries{
      {R"("inputs":1)", R"("inputs":2)", "it has 2 inputs, the network 1"},
      {R"("inputs":1)", R"("inputs":-1)", "-1 is not an integer from 0"},
      {R"("inputs":1,)", "", "\"inputs\" is missing"},
      {R"("outputs":[2])", R"("outputs":[0])", "an output is f32[4]; expected f32[8]"},
      {R"("outputs":[2])", R"("outputs":[3])", "there is no value 3"},
      {R"("outputs":[2])", R"("outputs":[])", "has 0 items; expected 1"},
      {R"([1,"f32",[4],"data",64])", R"([0,"f32",[4],"data",64])", "value 0 where 1 was expected"},
      {R"([1,"f32",[4],"data",64])", R"([1,"f32",[4],"none",64])", "no section none"},
      {R"([1,"f32",[4],"data",64])", R"([1,"f32",[4],"data",192])", "extends beyond section \"data\" of 192 bytes"},
      {R"([1,"f32",[4],"data",64])", R"([1,"f32",[4],"data",9223372036854775807])", "extends beyond section"},
      {R"([1,"f32",[4],"data",64])", R"([1,"f32",[4],"data",-64])", "-64 is not an integer from 0"},
      {R"([1,"f32",[4],"data",64])", R"([1,"f32",[4294967296,4294967296],"data",64])", "overflow"},
      {R"([1,"f32",[4],"data",64])", R"([1,"string",[4],"data",64])", "no values of the type \"string\""},
      {R"([1,"f32",[4],"data",64])", R"([1,"f32",[-4],"data",64])", "-4 is not an integer from 0"},
      {R"("reads":[0,1])", R"("reads":[0,2])", "there is no value 2"},
      {R"("reads":[0,1])", R"("reads":[0])", "has 1 items; expected 2"},
      {R"("writes":[2])", R"("writes":[1])", "value 1 where 2 was expected"},
      {R"([["f32",[8]]])", R"([["f32",[9]]])", "the sizes of a plan's outputs"},
      {R"([["f32",[4]],["f32",[4]]])", R"([["f32",[4]]])", "the sizes of a plan's inputs"},
      {R"([["first","Copy"],)", "[", "a plan has 2 steps, and names for 1"},
      {R"("Concat `c`",32)", R"("Concat `c`",-32)", "-32 is not an integer from 0"},
      {R"(["input",16,4])", R"(["state",16,4])", "a plan has no \"state\""},
      {R"(["input",16,4])", R"(["input",16,3])", "is not a power of two"},
      {R"(["input",16,4])", R"(["input",16])", "has 2 items; expected 3"},
      {R"(["input",16,4])", "[]", "has 0 items"},
      {R"(["input",16,4])", R"(["input",9223372036854775808,4])", "beyond 64 bits"},
      {R"(["view",2,0,16])", R"(["view",5,0,16])", "there is no buffer 5"},
      {R"(["view",2,0,16])", R"(["view",2,17,16])", "does not lie in"},
      {R"(["view",2,0,16])", R"(["view",2,9223372036854775807,9223372036854775807])", "does not lie in"},
      {R"("data",128,16)", R"("data",128,65)", "extends beyond section"},
      {R"("copy",[0],[3])", R"("none",[0],[3])", "there is no kernel \"none\""},
      {R"("copy",[0],[3])", R"("extension",[0],[3])", "a kernel of an extension"},
      {R"("copy",[0],[3])", R"("copy",[0],[-3])", "-3 is not an integer from 0"},
      {R"("copy",[0],[3])", R"("copy",[5],[3])", "no step before has written"},
      {R"("copy",[0],[3])", R"("copy",[0],[0])", "lies in an input"},
      {R"([3],{},"a")", R"([3],{"dims":[1,"x"]},"a")", "attribute \"dims\" of a step of copy"},
      {R"([3],{},"a")", R"([3],{"dims":{}},"a")", "attribute \"dims\" of a step of copy"},
      {R"([3],{},"a")", R"([3],{"unknown":1},"a")", "unknown"},
      {R"("nodes":[2,0,0,0])", R"("nodes":[2,0,0])", "has 3 items; expected 4"},
      {R"("rows":[["copy","generic"]])", R"("rows":[["copy"]])", "has 1 items; expected 2"},
      {R"("format":")", R"("format":"0)", "its format is"},
  };
  for (const auto& forgery : forgeries) {
    try {
      built(program(forgery[0], forgery[1]));
      expect(false, "no error for " + forgery[1]);
    } catch (const std::runtime_error& error) {
      expect(std::string(error.what()).find(forgery[2]) != std::string::npos,
             forgery[2] + " is not in: " + error.what());
    }
  }
}

// Any change of bytes is refused, or gives plans.
void check_damaged() {
  std::mt19937 random(1);
  const std::string text = program();
  int refused = 0;
  for (int i = 0; i < 4000; ++i) {
    std::string damaged = text;
    for (unsigned n = random() % 3 + 1; n != 0; --n) {
      const std::size_t at = random() % damaged.size();
      if (random() % 3 == 0) {
        damaged.erase(at, random() % 9);
      } else {
        damaged[at] = "0123456789-.,:[]{}\"\\eu\xC3"[random() % 23];
      }
    }
    try {
      built(damaged);
    } catch (const std::runtime_error&) {
      ++refused;
    } catch (const std::bad_alloc&) {
      ++refused;
    }
  }
  for (std::size_t size = 0; size < text.size(); ++size) {
    expect_error<StoredProgramError>("", [&] { StoredProgram{std::string_view(text).substr(0, size)}; });
  }
  expect(refused > 2000, "most changes are refused");
}

void check_rows() {
  expect(StoredProgram(program()).missing_rows().empty(), "all rows are built");
  const auto missing = StoredProgram(program(R"(["copy","generic"])", R"(["copy","none"],["none","generic"])"));
  expect(missing.missing_rows() == std::vector<std::string>{"copy for none", "none for generic"}, "rows that are not");
}

// Programs of `elementwise` have numbers of opcodes and of element types. If their order changes, or one is removed,
// the number in `program_format` must grow, since a stored program would compute something else. Where rows were only
// added behind the others, take the new hash.
void check_order() {
  const auto names = [](std::string_view enumeration) {
    std::string joined;
    for (const CodeNames& codes : code_names()) {
      if (enumeration == codes.enumeration) {
        for (const char* name : codes.names) joined += std::string(joined.empty() ? "" : " ") + name;
      }
    }
    return joined;
  };
  const auto hash = [](const std::string& text) {  // FNV-1a
    std::uint32_t value = 2166136261U;
    for (const char c : text) value = (value ^ static_cast<unsigned char>(c)) * 16777619U;
    return value;
  };
  expect(program_format().substr(0, 2) == "3-", "this is the order of format 3");
  const std::uint32_t opcodes = hash(names("Opcode")), types = hash(names("ElementCode"));
  expect(opcodes == 1648034502U, "the order of opcodes is that of format 3; got " + std::to_string(opcodes));
  expect(types == 367479306U, "the order of types is that of format 3; got " + std::to_string(types));
}

}  // namespace
}  // namespace engine

int main() {
  using namespace engine;
  return run_cases({{"values", check_values},
                    {"numbers", check_numbers},
                    {"malformed texts", check_malformed},
                    {"limits", check_limits},
                    {"a program", check_built},
                    {"forged programs", check_forged},
                    {"damaged programs", check_damaged},
                    {"rows of kernels", check_rows},
                    {"the order of codes", check_order}});
}
