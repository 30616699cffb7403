"""The operators that the scaffold knows, and the file of a plugin that each belongs to."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import Final

import onnx

from engine.errors import UnsupportedError
from engine.ir import f32
from engine.ops.registry import OpDef, find_op
from engine.ops.traits import traits_of_operator
from engine.startup import dataclass

ELEMENTWISE: Final[Mapping[str, str]] = {
    "Abs": "np.abs",
    "Add": "np.add",
    "Div": "np.divide",
    "Exp": "np.exp",
    "Log": "np.log",
    "Max": "lambda *values: functools.reduce(np.maximum, values)",
    "Min": "lambda *values: functools.reduce(np.minimum, values)",
    "Mul": "np.multiply",
    "Neg": "np.negative",
    "Reciprocal": "np.reciprocal",
    "Relu": "lambda x: np.maximum(x, 0)",
    "Sigmoid": "lambda x: 1 / (1 + np.exp(-x))",
    "Sqrt": "np.sqrt",
    "Sub": "np.subtract",
    "Sum": "lambda *values: functools.reduce(np.add, values)",
    "Tanh": "np.tanh",
}
"""For each operator, its numpy expression: a function of its inputs."""

FAMILIES: Final[Mapping[str, tuple[str, ...]]] = {
    "conv": ("Conv",),
    "elementwise": tuple(ELEMENTWISE),
    "matmul": ("Gemm", "MatMul"),
    "pool": ("AveragePool", "GlobalAveragePool", "GlobalMaxPool", "MaxPool"),
    "reshape": ("Concat", "Flatten", "Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze"),
    "softmax": ("Softmax",),
}
"""The operators with kernels in numpy, by file. All others are computed by the engine's evaluator."""


@dataclass(frozen=True, slots=True)
class Example:
    """An operator on an input `x`, for the tests of a new plugin; with weights of megabytes, if it takes any."""

    operator: str
    arguments: str
    shape: tuple[int, ...]
    weights: tuple[int, ...] = ()
    foreign: str = ""
    """An operator that the device does not claim."""


_EXAMPLES: Final = (
    Example("MatMul", "x, weights", (4, 512), (512, 1024)),
    Example("Gemm", "x, weights", (4, 512), (512, 1024)),
    Example("Conv", "x, weights", (1, 64, 8, 8), (512, 64, 5, 5)),
    *(
        Example(name, "x, weights", (512, 1025), (512, 1025))
        for name in ELEMENTWISE
        if traits_of_operator(name).broadcasts
    ),
    *(Example(name, "x", (4, 8)) for name in ("Abs", "Exp", "Neg", "Relu", "Sigmoid", "Softmax", "Tanh")),
    *(Example(name, "x", (1, 2, 8, 8)) for name in ("GlobalAveragePool", "GlobalMaxPool")),
    Example("Concat", "x, x, axis=0", (4, 8)),
    Example("Transpose", "x", (4, 8)),
    Example("MaxPool", "x, kernel_shape=[2, 2]", (1, 2, 8, 8)),
    Example("AveragePool", "x, kernel_shape=[2, 2]", (1, 2, 8, 8)),
)


def example_of(operators: Collection[str]) -> Example | None:
    """An example of one of the operators; None if none has one."""
    found = next((each for each in _EXAMPLES if each.operator in operators), None)
    foreign = next((name for name in ("Softsign", "Erf", "Ceil") if name not in operators), None)
    return None if found is None or foreign is None else replace(found, foreign=foreign)


REFERENCE: Final = "reference"
"""The file of all other operators."""
DEFAULT_OPERATORS: Final = ("Add", "Conv", "Gemm", "MatMul", "Mul", "Relu")

_BY_VALUES: Final = ("Compress", "Unique", "NonZero")
"""Operators whose results have shapes that do not follow from the inputs' types and constants."""


def divided(operators: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """The operators by the name of their file, both in alphabetical order.

    Raises `UnsupportedError` naming an operator that a plugin cannot begin with, and why.
    """
    chosen: dict[str, list[str]] = {}
    for operator in sorted(set(operators)):
        family = next((name for name, members in FAMILIES.items() if operator in members), REFERENCE)
        if family == REFERENCE:
            _check(operator)
        chosen.setdefault(family, []).append(operator)
    return {family: tuple(chosen[family]) for family in sorted(chosen)}


def _check(operator: str) -> None:
    found = find_op(operator, "")
    if found is None:
        known = ", ".join(sorted(name for members in FAMILIES.values() for name in members))
        raise UnsupportedError(
            f"{operator!r} is not an operator of ONNX; those with kernels in numpy are {known}, and any other operator "
            "of ONNX that computes float32 is also possible"
        )
    if reason := _why_not(found):
        raise UnsupportedError(f"a new plugin cannot begin with {operator}: {reason}; add it by hand afterwards")


def _why_not(found: OpDef) -> str:
    if any(attribute.kind == onnx.AttributeProto.GRAPH for attribute in found.attributes.values()):
        return "it has a subgraph"
    if not found.inputs:
        return "it has no inputs"
    if not found.is_deterministic or found.name in _BY_VALUES:
        return "its result does not follow from the types of its inputs"
    if f32 not in found.inputs[0].elements or f32 not in found.outputs[0].elements:
        return "it does not compute float32 from float32"
    return ""
