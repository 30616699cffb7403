/* engine_kernel.h: the interface of native kernels for extension operators.
 *
 * A shared library exports the function engine_kernels(), which returns a description of the library. Plain C99: no
 * type of C++ crosses the boundary, so any compiler and any language with a C interface will do.
 *
 *     cc -shared -fPIC -O2 -I "$(python -m engine.include)" -o libswirl.so swirl.c
 *
 * Rules for every function that a library provides:
 *
 * - It returns ENGINE_OK, or another status after it has written a message, a text that ends in a zero byte, to
 *   `call->message`, which has room for `call->message_size` bytes.
 * - No exception of C++ and no longjmp may leave it. It must not use Python.
 * - It may be called by any thread, and by several at once, except for the same state in `create` and `destroy`.
 * - Its arguments are valid until it returns. Memory that it returns pointers to (names, descriptions) must stay valid,
 *   and must not change, until the process ends: libraries are never unloaded.
 *
 * Versions. A library is accepted if its `abi_version` is ENGINE_KERNEL_ABI_VERSION of the engine. Within one version,
 * structures with a `struct_size` only grow at the end: set it to sizeof the structure, and read a later field of a
 * structure that you are passed only if its `struct_size` covers it. The other structures do not change.
 */
#ifndef ENGINE_KERNEL_H
#define ENGINE_KERNEL_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define ENGINE_KERNEL_ABI_VERSION 1
#define ENGINE_MAX_RANK 16

#if defined(_WIN32)
#define ENGINE_EXPORT __declspec(dllexport)
#elif defined(__GNUC__)
#define ENGINE_EXPORT __attribute__((visibility("default")))
#else
#define ENGINE_EXPORT
#endif

/* Statuses: anything but ENGINE_OK is an error. */
enum { ENGINE_OK = 0, ENGINE_ERROR = 1 };

/* Element types, with the numbers of ONNX's TensorProto.DataType. A boolean is one byte, 0 or 1. */
enum {
  ENGINE_OMITTED = 0, /* an optional input that a node omits, or an element type that is not known */
  ENGINE_F32 = 1,
  ENGINE_U8 = 2,
  ENGINE_I8 = 3,
  ENGINE_U16 = 4,
  ENGINE_I16 = 5,
  ENGINE_I32 = 6,
  ENGINE_I64 = 7,
  ENGINE_BOOL = 9,
  ENGINE_F16 = 10,
  ENGINE_F64 = 11,
  ENGINE_U32 = 12,
  ENGINE_U64 = 13,
  ENGINE_BF16 = 16
};

/* A tensor: contiguous, the last dimension fastest. The data of inputs must not be written. */
typedef struct engine_tensor {
  int32_t element_type;
  int32_t rank;        /* at most ENGINE_MAX_RANK; -1: unknown, only in `infer` and `supports` */
  const int64_t *dims; /* `rank` lengths; -1: unknown, only in `infer` and `supports` */
  void *data;          /* NULL in `infer` and `supports`, and in `create` except for constants */
} engine_tensor;

/* The type that `infer` gives an output. */
typedef struct engine_type {
  int32_t element_type;
  int32_t rank;                  /* -1: unknown */
  int64_t dims[ENGINE_MAX_RANK]; /* -1: unknown */
} engine_type;

enum {
  ENGINE_INT = 1,
  ENGINE_FLOAT = 2,
  ENGINE_STRING = 3,
  ENGINE_INTS = 4,
  ENGINE_FLOATS = 5,
  ENGINE_STRINGS = 6
};

/* An attribute of a node, with its default filled in; or the declaration of one, whose values are the default. */
typedef struct engine_attribute {
  const char *name;
  int32_t kind;        /* ENGINE_INT and so on; of the three arrays, the one of this kind is set */
  int32_t is_required; /* of a declaration: nodes must give it, and there is no default */
  size_t count;        /* of the values: 1 for ENGINE_INT, ENGINE_FLOAT and ENGINE_STRING */
  const int64_t *ints;
  const double *floats;
  const char *const *strings;
} engine_attribute;

/* The arguments of a kernel's functions. */
typedef struct engine_call {
  size_t struct_size;
  const engine_tensor *inputs; /* as many as the node has */
  size_t num_inputs;
  const engine_tensor *outputs; /* in `infer` and `supports`, num_outputs is set, and outputs is NULL */
  size_t num_outputs;           /* as many as the operator has */
  const engine_attribute *attributes; /* all that the operator declares, except optional ones without a value */
  size_t num_attributes;
  char *message;
  size_t message_size;
  /* The rest is for `compute` only. */
  void *workspace; /* engine_plan's workspace_bytes for each worker, aligned to 64 bytes, content undefined */
  int32_t worker;  /* 0 <= worker < workers */
  int32_t workers;
} engine_call;

/* The resources that `create` may request. The engine has filled in the defaults: no workspace, one worker. */
typedef struct engine_plan {
  size_t struct_size;
  size_t workspace_bytes; /* for each worker */
  int32_t max_workers;    /* above 1, `compute` is called by up to this many threads at once, and each computes its
                             part of the outputs, by its `worker` of `workers`; the result must not depend on them */
} engine_plan;

typedef struct engine_kernel {
  size_t struct_size;
  const char *domain;  /* not empty, and none of ONNX's */
  const char *op_type; /* together with the domain, the operator's name in models */

  /* Whether the kernel can compute a node of these types. Optional: without it, all types. A node that it refuses is
     evaluated by the operator's reference evaluation, if it has one, and the message is shown as the reason. */
  int (*supports)(const engine_call *call);

  /* Prepares for nodes of these types, once for a node and its shapes, before any inference; sets *state, which is NULL
     before. Optional. After an error, destroy is not called. */
  int (*create)(const engine_call *call, engine_plan *plan, void **state);

  /* Computes all elements of all outputs. Required. Several inferences may use one state at once, so
     an inference must write to its workspace only. */
  int (*compute)(const engine_call *call, void *state);

  /* Frees the state that create returned. Optional. */
  void (*destroy)(void *state);

  /* The rest defines the operator, for libraries that are added without Python code; see docs/extensions.md. */
  int32_t version;                    /* the lowest version of the domain in which models may use it */
  const char *const *inputs;          /* names, up to a NULL: "x", "w?" may be omitted, "xs..." may repeat */
  const char *const *outputs;         /* names, up to a NULL */
  const engine_attribute *attributes; /* declarations */
  size_t num_attributes;
  int (*infer)(const engine_call *call, engine_type *outputs); /* sets the types of all outputs */
  int32_t is_random; /* 1 if equal inputs may give different outputs: nodes are neither folded nor merged */
} engine_kernel;

typedef struct engine_library {
  uint32_t abi_version; /* ENGINE_KERNEL_ABI_VERSION; always the first field */
  uint32_t reserved;    /* 0 */
  size_t struct_size;
  const char *name; /* letters, digits, '.', '_', '-'; compiled networks require this name and version */
  const char *version;
  const engine_kernel *const *kernels;
  size_t num_kernels;

  /* Whether the library can be used on this machine, for example whether the CPU has the instructions. Optional.
     Called once, when the library is added. */
  int (*check)(char *message, size_t message_size);
} engine_library;

/* The function that a library exports. */
ENGINE_EXPORT const engine_library *engine_kernels(void);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* ENGINE_KERNEL_H */
