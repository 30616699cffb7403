/* Runs networks that engine-sdk has compiled for CPU, without Python: libengine_runtime.
 *
 *     engine_runtime_network *network;
 *     engine_runtime_request *request;
 *     if (engine_runtime_open("model.blob", NULL, &network) != ENGINE_RUNTIME_OK) return fail(engine_runtime_message());
 *     engine_runtime_create_request(network, &request);
 *     engine_runtime_set_input(request, 0, x, sizeof x);
 *     engine_runtime_run(request);
 *     engine_runtime_get_output(request, 0, y, sizeof y);
 *     engine_runtime_destroy_request(request);
 *     engine_runtime_close(network);
 *
 * docs/runtime.md says which blobs run. Results have the same bits as those of Python's import of the blob.
 *
 * Errors: functions return a status, and set the message of the calling thread. A call that fails changes nothing,
 * except that outputs have no values after a run that fails; variables keep theirs.
 *
 * Threads: a network may be used by any number of threads, each with requests of its own, which run at the same time
 * and share weights. One request is used by one thread at a time: while it runs, every function on it but
 * `engine_runtime_cancel` returns ENGINE_RUNTIME_BUSY.
 *
 * A blob may come from a stranger: a damaged or forged one is an error, and makes no run read or write memory of
 * others. What it computes is its author's matter.
 */
#ifndef ENGINE_RUNTIME_H
#define ENGINE_RUNTIME_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Grows with each incompatible change of this interface; the library's file name and symbols have it, too. */
#define ENGINE_RUNTIME_ABI 1

#if defined(ENGINE_RUNTIME_BUILD)
#define ENGINE_RUNTIME_API __attribute__((visibility("default")))
#else
#define ENGINE_RUNTIME_API
#endif

typedef int32_t engine_runtime_status;
enum {
  ENGINE_RUNTIME_OK = 0,
  ENGINE_RUNTIME_ARGUMENT = 1,     /* the caller's: a null pointer, an index, a name, a number of bytes */
  ENGINE_RUNTIME_IO = 2,           /* a file cannot be opened or read */
  ENGINE_RUNTIME_FORMAT = 3,       /* not a blob, or one that contradicts itself */
  ENGINE_RUNTIME_CORRUPT = 4,      /* a section does not match its SHA-256 */
  ENGINE_RUNTIME_INCOMPATIBLE = 5, /* for another version, device, instruction set or build of the library */
  ENGINE_RUNTIME_UNSUPPORTED = 6,  /* a blob that this runtime does not run; the message has the node's name */
  ENGINE_RUNTIME_MEMORY = 7,       /* more memory is needed than is available */
  ENGINE_RUNTIME_BUSY = 8,         /* another thread uses the request */
  ENGINE_RUNTIME_CANCELLED = 9,
  ENGINE_RUNTIME_DATA = 10,        /* invalid values of an input, such as an index out of range */
  ENGINE_RUNTIME_INTERNAL = 11     /* a fault of the library: please report it with its message */
};

/* Element types, with the numbers of ONNX's TensorProto.DataType, as others have them, too. A boolean is one byte, 0 or
 * 1; numbers are in the machine's byte order. Types of fewer than 8 bits are not supported as inputs and outputs. */
enum {
  ENGINE_RUNTIME_F32 = 1,
  ENGINE_RUNTIME_U8 = 2,
  ENGINE_RUNTIME_I8 = 3,
  ENGINE_RUNTIME_U16 = 4,
  ENGINE_RUNTIME_I16 = 5,
  ENGINE_RUNTIME_I32 = 6,
  ENGINE_RUNTIME_I64 = 7,
  ENGINE_RUNTIME_BOOL = 9,
  ENGINE_RUNTIME_F16 = 10,
  ENGINE_RUNTIME_F64 = 11,
  ENGINE_RUNTIME_U32 = 12,
  ENGINE_RUNTIME_U64 = 13,
  ENGINE_RUNTIME_BF16 = 16
};

typedef struct engine_runtime_network engine_runtime_network;
typedef struct engine_runtime_request engine_runtime_request;

typedef struct engine_runtime_options {
  size_t struct_size;  /* sizeof(engine_runtime_options); later versions append fields */
  int32_t max_threads; /* of one run; 0: as many as the process has cores */
} engine_runtime_options;

/* An input or an output: a tensor, contiguous, the last dimension fastest. Pointers live as long as the network. */
typedef struct engine_runtime_tensor {
  size_t struct_size;   /* sizeof(engine_runtime_tensor), set by the caller; later versions append fields */
  const char *name;     /* UTF-8 */
  const char *type;     /* the element type as a text, such as "f32" */
  int32_t element_type; /* the same as a number, such as ENGINE_RUNTIME_F32 */
  int32_t rank;
  const int64_t *shape; /* `rank` lengths */
  size_t bytes;         /* of all elements */
} engine_runtime_tensor;

/* The version of the engine that the library belongs to, such as "1.2.0". It runs blobs of this version. */
ENGINE_RUNTIME_API const char *engine_runtime_version(void);

/* ENGINE_RUNTIME_ABI of the library, to compare with that of the header. */
ENGINE_RUNTIME_API int32_t engine_runtime_abi(void);

/* Says why the last failed call of this thread failed; "" if none has. Valid until the thread's next call. */
ENGINE_RUNTIME_API const char *engine_runtime_message(void);

/* Opens a blob. `options` may be NULL. The content of all sections is verified; the file is not used afterwards. */
ENGINE_RUNTIME_API engine_runtime_status engine_runtime_open(const char *path, const engine_runtime_options *options,
                                                             engine_runtime_network **network);

/* Opens a blob in memory, which must stay as it is until the network and its requests are closed: weights are read in
 * place where they are aligned to 64 bytes, as in a blob whose address is a multiple of 64. */
ENGINE_RUNTIME_API engine_runtime_status engine_runtime_open_memory(const void *data, size_t size,
                                                                    const engine_runtime_options *options,
                                                                    engine_runtime_network **network);

/* Requests may live longer than the network. NULL is ignored. */
ENGINE_RUNTIME_API void engine_runtime_close(engine_runtime_network *network);

ENGINE_RUNTIME_API size_t engine_runtime_num_inputs(const engine_runtime_network *network);
ENGINE_RUNTIME_API size_t engine_runtime_num_outputs(const engine_runtime_network *network);
ENGINE_RUNTIME_API engine_runtime_status engine_runtime_input(const engine_runtime_network *network, size_t index,
                                                              engine_runtime_tensor *tensor);
ENGINE_RUNTIME_API engine_runtime_status engine_runtime_output(const engine_runtime_network *network, size_t index,
                                                               engine_runtime_tensor *tensor);
ENGINE_RUNTIME_API engine_runtime_status engine_runtime_find_input(const engine_runtime_network *network,
                                                                   const char *name, size_t *index);
ENGINE_RUNTIME_API engine_runtime_status engine_runtime_find_output(const engine_runtime_network *network,
                                                                    const char *name, size_t *index);

/* Makes a request: its own memory for inputs, outputs, intermediate results, and the values of the model's variables,
 * which it keeps from one run to the next. */
ENGINE_RUNTIME_API engine_runtime_status engine_runtime_create_request(const engine_runtime_network *network,
                                                                       engine_runtime_request **request);

/* NULL is ignored. Not while it runs. */
ENGINE_RUNTIME_API void engine_runtime_destroy_request(engine_runtime_request *request);

/* Copies the value of an input, of exactly its number of bytes. It is kept for all following runs. */
ENGINE_RUNTIME_API engine_runtime_status engine_runtime_set_input(engine_runtime_request *request, size_t index,
                                                                  const void *data, size_t bytes);

/* The request's own memory of an input, aligned to 64 bytes, to be written in place between runs. */
ENGINE_RUNTIME_API engine_runtime_status engine_runtime_input_data(engine_runtime_request *request, size_t index,
                                                                   void **data);

/* Runs the network. Every input must have been set, or its memory asked for. */
ENGINE_RUNTIME_API engine_runtime_status engine_runtime_run(engine_runtime_request *request);

/* Lets the run in progress, if there is one, return ENGINE_RUNTIME_CANCELLED after its current step. Any thread. */
ENGINE_RUNTIME_API engine_runtime_status engine_runtime_cancel(engine_runtime_request *request);

/* Copies an output of the last run, of exactly its number of bytes. */
ENGINE_RUNTIME_API engine_runtime_status engine_runtime_get_output(engine_runtime_request *request, size_t index,
                                                                   void *data, size_t bytes);

/* The request's own memory of an output, valid until the next run. */
ENGINE_RUNTIME_API engine_runtime_status engine_runtime_output_data(engine_runtime_request *request, size_t index,
                                                                    const void **data);

/* Gives all variables of the model their initial values again. */
ENGINE_RUNTIME_API engine_runtime_status engine_runtime_reset(engine_runtime_request *request);

#ifdef __cplusplus
}
#endif

#endif
