"""The properties that CPU adds to those of every device, or refines."""

from __future__ import annotations

from engine.plugin_api import CONFIG, METRIC, Property

ALLOW_REFERENCE = Property(
    "ALLOW_REFERENCE",
    bool,
    True,
    CONFIG,
    "Run operations without a native kernel on the reference evaluator, which is right and slow; off, compiling a "
    "model with such an operation is refused.",
)
COMPILE_EFFORT = Property(
    "COMPILE_EFFORT",
    str,
    "none",
    CONFIG,
    "How long compiling may measure which kernels are fastest here: not at all, so that the outcome depends on nothing "
    "but the model and the CPU; quick, some tenths of a second; full, all that there is.",
    choices=("none", "quick", "full"),
)
INFERENCE_PRECISION_HINT = Property(
    "INFERENCE_PRECISION_HINT",
    str,
    "f32",
    CONFIG,
    "The precision in which f32 models compute: f32 exactly as asked, or bf16 for convolutions and products, "
    "with sums and all else in f32, on CPUs that have it.",
    choices=("f32", "bf16"),
)
PLAN_CACHE_SIZE = Property(
    "PLAN_CACHE_SIZE",
    int,
    16,
    CONFIG,
    "How many plans a network with unknown lengths keeps, one for each combination of input shapes met.",
    minimum=1,
    maximum=4096,
)
REFERENCE_STEPS = Property(
    "REFERENCE_STEPS",
    tuple,
    (),
    METRIC,
    "The operations that run on the reference evaluator.",
)
ARENA_BYTES = Property(
    "ARENA_BYTES",
    int,
    0,
    METRIC,
    "Bytes of intermediate results that one stream holds, buffers sharing memory; 0 before the first inference of "
    "a network with unknown lengths.",
)
NAIVE_ARENA_BYTES = Property(
    "NAIVE_ARENA_BYTES", int, 0, METRIC, "What ARENA_BYTES would be if no two buffers shared memory."
)
