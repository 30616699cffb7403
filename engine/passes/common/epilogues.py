"""Shared by fusions into internal operators: a copy of a node with one more epilogue operation."""

from __future__ import annotations

from engine.ir import Node, Output, OutputLike, f64
from engine.ops.conv import ConvSpec
from engine.ops.internal import (
    INTERNAL_DOMAIN,
    Activation,
    CompressedMatMul,
    CompressedMatMulSpec,
    FusedConv,
    FusedMatMul,
)
from engine.ops.matmul import GemmSpec, MatMulSpec
from engine.ops.spec import spec_of
from engine.passes.fusion import dims_of, same_lengths

CONVOLUTIONS = ["Conv", "ConvTranspose", f"{INTERNAL_DOMAIN}.FusedConv"]
PRODUCTS = ["MatMul", "Gemm", f"{INTERNAL_DOMAIN}.FusedMatMul"]
COMPRESSED = f"{INTERNAL_DOMAIN}.CompressedMatMul"
FINISHED = frozenset(kind.rpartition(".")[2] for kind in (*CONVOLUTIONS, *PRODUCTS, COMPRESSED))
"""The names of operators that `with_epilogue` takes."""
_OWN = frozenset({"transposed", "activation", "activation_parameters"})


def with_epilogue(
    node: Node,
    *,
    bias: Output | None = None,
    residual: Output | None = None,
    activation: Activation | None = None,
) -> Node | None:
    """The internal operator that computes `node` followed by the given epilogue; None if there is none.

    `node` is one of `CONVOLUTIONS`, `PRODUCTS` or `COMPRESSED`. An activation must be last, and there is at most one
    residual. Operators of f64 have neither, since no device has a kernel for these: only a separate activation has one.
    """
    spec = spec_of(node)
    assert isinstance(spec, ConvSpec | MatMulSpec | GemmSpec | CompressedMatMulSpec)
    if not isinstance(spec, GemmSpec) and spec.activation is not None:
        return None
    first = 4 if isinstance(spec, CompressedMatMulSpec) else 2
    old_bias, old_residual = spec.input(first), spec.input(first + 1)
    if (bias is not None and old_bias is not None) or (residual is not None and old_residual is not None):
        return None
    bias, residual = bias or old_bias, residual or old_residual
    a, b = node.input_value(0), node.input_value(1)
    if not a.element_type.is_real or (a.element_type is f64 and (residual is not None or activation is not None)):
        return None
    if isinstance(spec, CompressedMatMulSpec):
        return CompressedMatMul(
            a, b, spec.scale, spec.zero_point, bias, residual,
            block_size=spec.block_size, accuracy_level=spec.accuracy_level, activation=activation,
        )  # fmt: skip
    if isinstance(spec, ConvSpec):
        attributes = {name: value for name, value in node.attributes.items() if name not in _OWN}
        return FusedConv(a, b, bias, residual, activation=activation, transposed=spec.transposed, **attributes)
    if isinstance(spec, GemmSpec) and not _is_plain(spec, bias):
        return None
    trans_b = spec.transB if isinstance(spec, GemmSpec) else spec.trans_b
    return FusedMatMul(a, b, bias, residual, activation=activation, trans_b=trans_b)


def fits_as_residual(value: OutputLike, output: Output) -> bool:
    """True if `value` provably has the type of `output`, so that adding it does not broadcast."""
    source = value.output(0) if isinstance(value, Node) else value
    own, wanted = dims_of(source), dims_of(output)
    if own is None or wanted is None or source.element_type is not output.element_type:
        return False
    return same_lengths(own, wanted)


def _is_plain(gemm: GemmSpec, bias: Output | None) -> bool:
    """True for a Gemm that only multiplies and adds one value per column."""
    if gemm.alpha != 1 or gemm.beta != 1 or gemm.transA:
        return False
    columns = dims_of(gemm.output())
    return bias is None or (columns is not None and same_lengths(dims_of(bias) or (), columns[-1:]))
