/* Runs a blob: reads each input from a file of raw elements, and writes each output to one.
 *
 *     cc run_blob.c $(pkg-config --cflags --libs engine_runtime) -o run_blob
 *     ./run_blob model.blob x.bin ...
 *
 * The outputs of a network with the inputs x.bin, ... are written to model.blob.0, model.blob.1, ...
 */
#include <engine_runtime.h>
#include <stdio.h>
#include <stdlib.h>

static int failed(const char* where) {
  fprintf(stderr, "%s: %s\n", where, engine_runtime_message());
  return 1;
}

static void print_tensor(const char* kind, const engine_runtime_tensor* tensor) {
  printf("%s %s: %s[", kind, tensor->name, tensor->type);
  for (int32_t i = 0; i < tensor->rank; ++i) printf("%s%lld", i == 0 ? "" : ",", (long long)tensor->shape[i]);
  printf("], %zu bytes\n", tensor->bytes);
}

/* Reads a file into the request's memory of an input. */
static int read_input(const engine_runtime_network* network, engine_runtime_request* request, size_t index,
                      const char* path) {
  engine_runtime_tensor tensor = {.struct_size = sizeof tensor};
  void* data = NULL;
  if (engine_runtime_input(network, index, &tensor) != ENGINE_RUNTIME_OK) return failed(path);
  print_tensor("input", &tensor);
  if (engine_runtime_input_data(request, index, &data) != ENGINE_RUNTIME_OK) return failed(path);
  FILE* file = fopen(path, "rb");
  if (file == NULL) {
    perror(path);
    return 1;
  }
  const size_t count = fread(data, 1, tensor.bytes, file);
  const int is_whole = count == tensor.bytes && fgetc(file) == EOF;
  fclose(file);
  if (!is_whole) fprintf(stderr, "%s: expected %zu bytes\n", path, tensor.bytes);
  return is_whole ? 0 : 1;
}

static int write_output(const engine_runtime_network* network, engine_runtime_request* request, size_t index,
                        const char* blob) {
  engine_runtime_tensor tensor = {.struct_size = sizeof tensor};
  const void* data = NULL;
  char path[4096];
  if (engine_runtime_output(network, index, &tensor) != ENGINE_RUNTIME_OK) return failed(blob);
  print_tensor("output", &tensor);
  if (engine_runtime_output_data(request, index, &data) != ENGINE_RUNTIME_OK) return failed(blob);
  snprintf(path, sizeof path, "%s.%zu", blob, index);
  FILE* file = fopen(path, "wb");
  if (file == NULL) {
    perror(path);
    return 1;
  }
  const int is_written = fwrite(data, 1, tensor.bytes, file) == tensor.bytes;
  return fclose(file) == 0 && is_written ? 0 : 1;
}

static int run(const engine_runtime_network* network, char** arguments, size_t count) {
  engine_runtime_request* request = NULL;
  if (engine_runtime_create_request(network, &request) != ENGINE_RUNTIME_OK) return failed(arguments[1]);
  int status = 0;
  for (size_t i = 0; i < count && status == 0; ++i) status = read_input(network, request, i, arguments[2 + i]);
  if (status == 0 && engine_runtime_run(request) != ENGINE_RUNTIME_OK) status = failed(arguments[1]);
  for (size_t i = 0; i < engine_runtime_num_outputs(network) && status == 0; ++i) {
    status = write_output(network, request, i, arguments[1]);
  }
  engine_runtime_destroy_request(request);
  return status;
}

int main(int argc, char** argv) {
  engine_runtime_network* network = NULL;
  if (engine_runtime_abi() != ENGINE_RUNTIME_ABI) {
    fprintf(stderr, "the library has another interface than the header\n");
    return 1;
  }
  if (argc < 2) {
    fprintf(stderr, "usage: run_blob model.blob input.bin ... (engine %s)\n", engine_runtime_version());
    return 2;
  }
  if (engine_runtime_open(argv[1], NULL, &network) != ENGINE_RUNTIME_OK) return failed("open");
  const int status = run(network, argv, (size_t)(argc - 2));
  engine_runtime_close(network);
  return status;
}
