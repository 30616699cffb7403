"""Products of matrices of 32-bit and 64-bit integers, which are exact modulo 2^bits."""

from __future__ import annotations

import math
from typing import Final

from engine.ir import Node
from engine.ir.element_type import i32, i64, u32, u64
from engine_opencl.plan_builder import LaunchPlanBuilder
from engine_opencl.source import index_code, kernel_source

MULTIPLIED_AS: Final = {i32: "uint", u32: "uint", i64: "ulong", u64: "ulong"}
"""The types of MatMul, and the types that they are multiplied as."""
_ROWS: Final = 4


def multiply_integers(
    b: LaunchPlanBuilder,
    node: Node,
    lengths: tuple[int, int, int],
    batch: tuple[int, ...],
    strides: tuple[tuple[int, ...], tuple[int, ...]],
) -> None:
    """Launch a MatMul of [m, k] by [k, n]; `strides`: the strides of both operands along the axes of `batch`."""
    m, n, k = lengths
    first = index_code(batch, strides, ["a0", "b0"], item="matrix").replace("\n", " ")
    source = kernel_source(
        "whole_gemm", W=MULTIPLIED_AS[node.output(0).element_type], M=f"{m}ul", N=f"{n}ul", K=f"{k}ul", ROWS=_ROWS,
        FIRST_ELEMENTS=f"{{ {first} a += a0; b += b0; }}",
    )  # fmt: skip
    arguments = [b.input(node.input_value(0)), b.input(node.input_value(1)), b.output(node.output(0))]
    b.launch(source, "whole_gemm", arguments, (n, -(-m // _ROWS), math.prod(batch)))
