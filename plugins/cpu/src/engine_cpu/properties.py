"""The properties that CPU adds to the common ones, or refines."""

from __future__ import annotations

from engine.plugin_api import CONFIG, METRIC, Property

ALLOW_REFERENCE = Property(
    "ALLOW_REFERENCE",
    bool,
    True,
    CONFIG,
    "Whether operations without a native kernel run on the reference evaluator, which is correct but slow; if off, "
    "compiling a model with such an operation fails.",
)
COMPILE_EFFORT = Property(
    "COMPILE_EFFORT",
    str,
    "none",
    CONFIG,
    "How long compilation may measure kernels to find the fastest: none, so that the result depends only on the model "
    "and the CPU; quick, what is expected to pay for itself within 1000 inferences, for 0.15 seconds at most; full, "
    "every candidate.",
    choices=("none", "quick", "full"),
)
DYNAMIC_QUANTIZATION_GROUP_SIZE = Property(
    "DYNAMIC_QUANTIZATION_GROUP_SIZE",
    int,
    0,
    CONFIG,
    "How many activations may share a scale when products with weights of few bits round activations to 8 bits, which "
    "is faster for many rows; 0, never. They share one within a block of the weights, up to 256; products with larger "
    "blocks than the group size do not round. A model may permit rounding itself (accuracy_level 4 of MatMulNBits).",
    minimum=0,
)
EXECUTION_MODE_HINT = Property(
    "EXECUTION_MODE_HINT",
    str,
    "PERFORMANCE",
    CONFIG,
    "PERFORMANCE; or ACCURACY: convolutions sum products directly, never by Winograd's algorithm, products with "
    "weights of few bits do not round activations, even if the model permits it, and properties that ask for less than "
    "f32 (INFERENCE_PRECISION_HINT, KV_CACHE_PRECISION, DYNAMIC_QUANTIZATION_GROUP_SIZE) are an error. Quantization "
    "that is part of the model is computed as it says in both modes.",
    choices=("PERFORMANCE", "ACCURACY"),
)
EXPORT_PACKED_WEIGHTS = Property(
    "EXPORT_PACKED_WEIGHTS",
    bool,
    True,
    CONFIG,
    "Whether a blob has weights in the form that kernels read, which makes imports fast. If off, it has them as the "
    "model has them, so that `export_model(..., weights=MODEL)` leaves them out, and each import packs them.",
)
INFERENCE_PRECISION_HINT = Property(
    "INFERENCE_PRECISION_HINT",
    str,
    "f32",
    CONFIG,
    "The precision of f32 models: f32 throughout, or bf16 for convolutions and matrix products, with accumulation "
    "and everything else in f32, on CPUs that multiply bf16 faster than f32. AMX also multiplies attention in bf16. "
    "Other CPUs compute in f32, and keep large weights of products of few or unknown rows in bf16.",
    choices=("f32", "bf16"),
)
KV_CACHE_PRECISION = Property(
    "KV_CACHE_PRECISION",
    str,
    "f32",
    CONFIG,
    "How requests keep the keys and values of past tokens: in f32; in bf16, half as large; or, int8, as integers of 8 "
    "bits with a scale for each head of each token, about a quarter. It applies to the variables to which CPU appends "
    "in place, whose values are got and set in their own type as before; int8 to those with a dimension of heads. "
    "Variables of f16 and bf16 stay as they are unless int8 is asked for.",
    choices=("f32", "bf16", "int8"),
)
PLAN_CACHE_SIZE = Property(
    "PLAN_CACHE_SIZE",
    int,
    16,
    CONFIG,
    "How many plans a network with dynamic shapes caches: for single combinations of input shapes, and twice "
    "as many families, each of which serves all lengths of some inputs.",
    minimum=1,
    maximum=4096,
)
REFERENCE_STEPS = Property(
    "REFERENCE_STEPS",
    tuple,
    (),
    METRIC,
    "The names of the operations that run on the reference evaluator, or may: those whose shapes only an inference "
    "knows are decided then.",
)
PLANS_PER_SHAPE = Property(
    "PLANS_PER_SHAPE",
    tuple,
    (),
    METRIC,
    "Why lengths that varied so far have a plan for each combination of input shapes, and not one for all of them: the "
    "operation that differs, and how.",
)
LOWERED_PLANS = Property(
    "LOWERED_PLANS",
    int,
    0,
    METRIC,
    "How many plans were lowered so far, those that a family was made from included. A number that grows with every "
    "inference shows that lengths vary in more ways than plans are kept for.",
)
ARENA_BYTES = Property(
    "ARENA_BYTES",
    int,
    0,
    METRIC,
    "Bytes of intermediate results for each stream, with buffers sharing memory; 0 before the first inference of "
    "a network with dynamic shapes.",
)
NAIVE_ARENA_BYTES = Property(
    "NAIVE_ARENA_BYTES", int, 0, METRIC, "What ARENA_BYTES would be if no two buffers shared memory."
)
