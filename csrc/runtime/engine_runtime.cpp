#include "runtime/engine_runtime.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <memory>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "executor/context.hpp"
#include "runtime/blob.hpp"
#include "runtime/failure.hpp"
#include "runtime/network.hpp"
#include "runtime/request.hpp"

struct engine_runtime_network {
  std::shared_ptr<const engine::Network> network;
};

struct engine_runtime_request {
  explicit engine_runtime_request(std::shared_ptr<const engine::Network> network) : request(std::move(network)) {}

  engine::Request request;
};

namespace engine {
namespace {

// Of a fixed size, so that it can be set when there is no memory.
thread_local char last_message[2048] = "";

engine_runtime_status failed(engine_runtime_status status, const char* message) noexcept {
  std::snprintf(last_message, sizeof(last_message), "%s", message);
  return status;
}

// Calls a function, and returns the status of its exception: none may reach the caller, who need not know C++.
template <class Function>
engine_runtime_status guarded(const Function& function) noexcept {
  try {
    function();
    return ENGINE_RUNTIME_OK;
  } catch (const Failure& error) {
    return failed(error.status(), error.what());
  } catch (const std::bad_alloc&) {
    return failed(ENGINE_RUNTIME_MEMORY, "more memory is needed than is available");
  } catch (const std::invalid_argument& error) {  // DataFault
    return failed(ENGINE_RUNTIME_DATA, error.what());
  } catch (const PlanError& error) {  // sizes that overflow
    return failed(ENGINE_RUNTIME_FORMAT, error.what());
  } catch (const std::exception& error) {
    return failed(ENGINE_RUNTIME_INTERNAL, error.what());
  } catch (...) {
    return failed(ENGINE_RUNTIME_INTERNAL, "an unknown error");
  }
}

void check_pointer(const void* pointer, const char* name) {
  if (pointer == nullptr) throw Failure(ENGINE_RUNTIME_ARGUMENT, std::string(name) + " is a null pointer");
}

int max_threads_of(const engine_runtime_options* options) {
  if (options == nullptr) return 0;
  if (options->struct_size < sizeof(engine_runtime_options)) {
    throw Failure(ENGINE_RUNTIME_ARGUMENT, "struct_size of the options is " + std::to_string(options->struct_size) +
                                               "; expected sizeof(engine_runtime_options)");
  }
  if (options->max_threads < 0) {
    throw Failure(ENGINE_RUNTIME_ARGUMENT,
                  "max_threads is " + std::to_string(options->max_threads) + "; expected 0 or more");
  }
  return options->max_threads;
}

void describe(const std::vector<Port>& ports, std::size_t index, const char* kind, engine_runtime_tensor* tensor) {
  check_pointer(tensor, "tensor");
  if (tensor->struct_size < sizeof(engine_runtime_tensor)) {
    throw Failure(ENGINE_RUNTIME_ARGUMENT, "struct_size of the tensor is " + std::to_string(tensor->struct_size) +
                                               "; expected sizeof(engine_runtime_tensor)");
  }
  if (index >= ports.size()) {
    throw Failure(ENGINE_RUNTIME_ARGUMENT, "there is no " + std::string(kind) + " " + std::to_string(index) +
                                               "; the network has " + std::to_string(ports.size()));
  }
  const Port& port = ports[index];
  tensor->name = port.name.c_str();
  tensor->type = port.form.type->name;
  tensor->element_type = port.form.type->onnx;
  tensor->rank = static_cast<int32_t>(port.form.shape.size());
  tensor->shape = port.form.shape.data();
  tensor->bytes = port.bytes;
}

void find(const std::vector<Port>& ports, const char* name, const char* kind, std::size_t* index) {
  check_pointer(name, "name");
  check_pointer(index, "index");
  std::string known;
  for (std::size_t i = 0; i < ports.size(); ++i) {
    if (ports[i].name == name) {
      *index = i;
      return;
    }
    known += (known.empty() ? "" : ", ") + ports[i].name;
  }
  throw Failure(ENGINE_RUNTIME_ARGUMENT,
                "there is no " + std::string(kind) + " `" + std::string(name).substr(0, 80) + "`; there are " + known);
}

void make_network(Blob blob, const engine_runtime_options* options, engine_runtime_network** network) {
  auto made = std::make_shared<const Network>(std::move(blob), max_threads_of(options));
  *network = new engine_runtime_network{std::move(made)};
}

}  // namespace
}  // namespace engine

using namespace engine;

const char* engine_runtime_version(void) {
  return ENGINE_VERSION;
}

int32_t engine_runtime_abi(void) {
  return ENGINE_RUNTIME_ABI;
}

const char* engine_runtime_message(void) {
  return last_message;
}

engine_runtime_status engine_runtime_open(const char* path, const engine_runtime_options* options,
                                          engine_runtime_network** network) {
  return guarded([&] {
    check_pointer(network, "network");
    *network = nullptr;
    check_pointer(path, "path");
    const std::string where = "blob " + std::string(path);
    make_network(Blob(open_file(path, where), where), options, network);
  });
}

engine_runtime_status engine_runtime_open_memory(const void* data, size_t size, const engine_runtime_options* options,
                                                 engine_runtime_network** network) {
  return guarded([&] {
    check_pointer(network, "network");
    *network = nullptr;
    check_pointer(data, "data");
    make_network(Blob(open_memory(data, size), "blob in memory"), options, network);
  });
}

void engine_runtime_close(engine_runtime_network* network) {
  delete network;
}

size_t engine_runtime_num_inputs(const engine_runtime_network* network) {
  return network == nullptr ? 0 : network->network->inputs().size();
}

size_t engine_runtime_num_outputs(const engine_runtime_network* network) {
  return network == nullptr ? 0 : network->network->outputs().size();
}

engine_runtime_status engine_runtime_input(const engine_runtime_network* network, size_t index,
                                           engine_runtime_tensor* tensor) {
  return guarded([&] {
    check_pointer(network, "network");
    describe(network->network->inputs(), index, "input", tensor);
  });
}

engine_runtime_status engine_runtime_output(const engine_runtime_network* network, size_t index,
                                            engine_runtime_tensor* tensor) {
  return guarded([&] {
    check_pointer(network, "network");
    describe(network->network->outputs(), index, "output", tensor);
  });
}

engine_runtime_status engine_runtime_find_input(const engine_runtime_network* network, const char* name,
                                                size_t* index) {
  return guarded([&] {
    check_pointer(network, "network");
    find(network->network->inputs(), name, "input", index);
  });
}

engine_runtime_status engine_runtime_find_output(const engine_runtime_network* network, const char* name,
                                                 size_t* index) {
  return guarded([&] {
    check_pointer(network, "network");
    find(network->network->outputs(), name, "output", index);
  });
}

engine_runtime_status engine_runtime_create_request(const engine_runtime_network* network,
                                                    engine_runtime_request** request) {
  return guarded([&] {
    check_pointer(request, "request");
    *request = nullptr;
    check_pointer(network, "network");
    *request = new engine_runtime_request(network->network);
  });
}

void engine_runtime_destroy_request(engine_runtime_request* request) {
  delete request;
}

engine_runtime_status engine_runtime_set_input(engine_runtime_request* request, size_t index, const void* data,
                                               size_t bytes) {
  return guarded([&] {
    check_pointer(request, "request");
    request->request.set_input(index, data, bytes);
  });
}

engine_runtime_status engine_runtime_input_data(engine_runtime_request* request, size_t index, void** data) {
  return guarded([&] {
    check_pointer(data, "data");
    *data = nullptr;
    check_pointer(request, "request");
    *data = request->request.input(index);
  });
}

engine_runtime_status engine_runtime_run(engine_runtime_request* request) {
  return guarded([&] {
    check_pointer(request, "request");
    request->request.run();
  });
}

engine_runtime_status engine_runtime_cancel(engine_runtime_request* request) {
  return guarded([&] {
    check_pointer(request, "request");
    request->request.cancel();
  });
}

engine_runtime_status engine_runtime_get_output(engine_runtime_request* request, size_t index, void* data,
                                                size_t bytes) {
  return guarded([&] {
    check_pointer(request, "request");
    request->request.get_output(index, data, bytes);
  });
}

engine_runtime_status engine_runtime_output_data(engine_runtime_request* request, size_t index, const void** data) {
  return guarded([&] {
    check_pointer(data, "data");
    *data = nullptr;
    check_pointer(request, "request");
    *data = request->request.output(index);
  });
}

engine_runtime_status engine_runtime_reset(engine_runtime_request* request) {
  return guarded([&] {
    check_pointer(request, "request");
    request->request.reset();
  });
}
