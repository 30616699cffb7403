// Kernels of extensions: their arguments, the parts of workers, failures, the lifetime of states, refused steps.
#include <cstring>
#include <string>

#include "kernels/prepare/extension_call.hpp"
#include "kernels_common.hpp"
#include "kernels_operation_common.hpp"

namespace engine {
extern const OperationEntry extension_operations[];
}  // namespace engine

using namespace engine;
using namespace engine::test;

namespace {

int alive = 0;

bool has_attributes(const engine_call* call) {
  const engine_attribute* a = call->attributes;
  return call->num_attributes == 6 && a[0].kind == ENGINE_INT && a[0].ints[0] == -3 && a[1].kind == ENGINE_FLOAT &&
         a[1].floats[0] == 0.5 && a[2].kind == ENGINE_STRING && std::strcmp(a[2].strings[0], "mode") == 0 &&
         a[3].kind == ENGINE_INTS && a[3].count == 2 && a[3].ints[1] == 5 && a[4].kind == ENGINE_FLOATS &&
         a[4].count == 1 && a[4].floats[0] == 2.5 && a[5].kind == ENGINE_STRINGS && a[5].count == 2 &&
         std::strcmp(a[5].strings[1], "b") == 0;
}

int create(const engine_call* call, engine_plan* plan, void** state) {
  if (!has_attributes(call)) {
    std::strcpy(call->message, "the attributes are others");
    return ENGINE_ERROR;
  }
  if (call->inputs[1].element_type != ENGINE_OMITTED || call->inputs[0].dims[1] != 101) return ENGINE_ERROR;
  plan->max_workers = 3;
  plan->workspace_bytes = 100;
  *state = new float(0.5f);
  ++alive;
  return ENGINE_OK;
}

// y = (x + z) * state; refuses a first element of 1000.
int compute(const engine_call* call, void* state) {
  const auto* x = static_cast<const float*>(call->inputs[0].data);
  const auto* z = static_cast<const float*>(call->inputs[2].data);
  auto* y = static_cast<float*>(call->outputs[0].data);
  if (call->inputs[1].data != nullptr || !has_attributes(call)) return 4;
  if (reinterpret_cast<std::uintptr_t>(call->workspace) % 64 != 0) return 5;
  std::memset(call->workspace, 0xff, 100);
  if (x[0] == 1000.0f) {
    std::memset(call->message, 'x', call->message_size);  // without an end
    return 7;
  }
  const std::int64_t count = call->inputs[0].dims[0] * call->inputs[0].dims[1];
  const WorkRange part = split_work(count, call->worker, call->workers);
  for (std::int64_t i = part.begin; i < part.end; ++i) y[i] = (x[i] + z[i]) * *static_cast<float*>(state);
  return ENGINE_OK;
}

void destroy(void* state) {
  delete static_cast<float*>(state);
  --alive;
}

engine_kernel kernel_of() {
  engine_kernel kernel = {};
  kernel.struct_size = sizeof(kernel);
  kernel.create = create;
  kernel.compute = compute;
  kernel.destroy = destroy;
  return kernel;
}

constexpr std::size_t kCount = 2 * 101;

std::shared_ptr<const ExtensionCall> make_call(std::int64_t first = -3) {
  const ExtensionType tensor{ENGINE_F32, 2, {2, 101}, nullptr};
  std::vector<ExtensionAttribute> attributes = {{"i", first},
                                                {"f", 0.5},
                                                {"s", std::string("mode")},
                                                {"is", std::vector<std::int64_t>{4, 5}},
                                                {"fs", std::vector<double>{2.5}},
                                                {"ss", std::vector<std::string>{"a", "b"}}};
  return ExtensionCall::make(kernel_of(), "Node `n`", {tensor, {}, tensor}, {tensor}, std::move(attributes));
}

void parts(const Target& target) {
  const auto call = make_call();
  for (const int workers : {1, 2, 3}) {
    Guarded x(random_floats(kCount, 1)), z(random_floats(kCount, 2)), y(kCount);
    run_operation(target, extension_operations, "extension", {{"call", call->token()}}, {&x, &z}, {&y}, workers);
    const auto a = x.values(), b = z.values();
    std::vector<float> expected(kCount);
    for (std::size_t i = 0; i < kCount; ++i) expected[i] = (a[i] + b[i]) * 0.5f;
    expect(y.values() == expected && y.intact(), "all elements, by " + std::to_string(workers));
  }
}

void failures(const Target& target) {
  const auto call = make_call();
  std::vector<float> x(kCount, 1000.0f), z(kCount), y(kCount);
  const auto fails = [&](const std::string& part) {
    try {
      call->compute({x.data(), z.data()}, {y.data()}, target.find("extension"));
      expect(false, "no failure: " + part);
    } catch (const ExtensionFailure& error) {
      expect(std::string(error.what()).find(part) == 0, part + " is not the begin of " + error.what());
    }
  };
  for (int i = 0; i < 600; ++i) fails("Node `n` failed with status 7: xxx");
  expect(kept_extension_failure(0).find("its message is lost") != std::string::npos, "the oldest message is lost");
  x[0] = 0;
  call->compute({x.data(), z.data()}, {y.data()}, target.find("extension"));
  expect(y[1] == 500.0f, "computed after failures");
  try {
    make_call(4);
    expect(false, "create refuses");
  } catch (const ExtensionFailure& error) {
    expect(std::string(error.what()) ==
               "Node `n` cannot be prepared; its create function failed with status 1: the attributes are others",
           error.what());
  }
}

void states(const Target& target) {
  const int before = alive;
  auto call = make_call();
  const std::string token = call->token();
  expect(alive == before + 1 && ExtensionCall::find(token) == call, "alive");
  constexpr std::size_t kBytes = kCount * sizeof(float);
  {
    PreparedStep step =
        prepare(target, extension_operations, "extension", {{"call", token}}, {kBytes, kBytes}, {kBytes});
    call.reset();
    expect(alive == before + 1 && step.owner != nullptr, "the step keeps it");
    expect(step.phases[0].max_workers == 3, "as many workers as it asks for");
  }
  expect(alive == before && ExtensionCall::find(token) == nullptr, "destroyed once");
  expect_refused(target, extension_operations, "extension", {{"call", token}}, {kBytes, kBytes}, {kBytes}, "no call");
}

void refused(const Target& target) {
  const auto call = make_call();
  constexpr std::size_t kBytes = kCount * sizeof(float);
  const AttributeMap good = {{"call", call->token()}};
  const auto refuse = [&](const AttributeMap& attributes, const std::vector<std::size_t>& inputs, std::size_t output,
                          const char* part) {
    expect_refused(target, extension_operations, "extension", attributes, inputs, {output}, part);
  };
  refuse(good, {kBytes}, kBytes, "has 1 inputs; expected 2");
  refuse(good, {kBytes, kBytes - 1}, kBytes, "input 1 has 807 bytes; expected 808");
  refuse(good, {kBytes, kBytes}, kBytes - 4, "output 0 has 804 bytes; expected 808");
  refuse({{"call", "call x"}}, {kBytes, kBytes}, kBytes, "there is no call");
  refuse({{"call", std::int64_t{1}}}, {kBytes, kBytes}, kBytes, "is not a name");
}

}  // namespace

int main() {
  return run_cases({{"parts", parts}, {"failures", failures}, {"states", states}, {"refused", refused}}, {"extension"});
}
