"""What fusions into the internal operators share: a node again, with one thing more that it does in the end."""

from __future__ import annotations

from engine.ir import Node, Output, OutputLike
from engine.ops import attribute
from engine.ops.internal import INTERNAL_DOMAIN, Activation, FusedConv, FusedMatMul
from engine.passes.fusion import dims_of, same_lengths

CONVOLUTIONS = ["Conv", "ConvTranspose", f"{INTERNAL_DOMAIN}.FusedConv"]
PRODUCTS = ["MatMul", "Gemm", f"{INTERNAL_DOMAIN}.FusedMatMul"]
_OWN = frozenset({"transposed", "activation", "activation_parameters"})


def with_epilogue(
    node: Node,
    *,
    bias: Output | None = None,
    residual: Output | None = None,
    activation: Activation | None = None,
) -> Node | None:
    """The internal operator that computes what `node` does and then this; None where there is none.

    `node` is of `CONVOLUTIONS` or `PRODUCTS`. Nothing can follow an activation, and there is one residual at most.
    """
    is_fused = node.domain == INTERNAL_DOMAIN
    if is_fused and attribute(node, "activation"):
        return None
    old_bias, old_residual = (node.input_value(i) if node.has_input(i) else None for i in (2, 3))
    if (bias is not None and old_bias is not None) or (residual is not None and old_residual is not None):
        return None
    bias, residual = bias or old_bias, residual or old_residual
    a, b = node.input_value(0), node.input_value(1)
    if not a.element_type.is_real:
        return None
    if node.op_type in ("Conv", "ConvTranspose", "FusedConv"):
        transposed = bool(attribute(node, "transposed")) if is_fused else node.op_type == "ConvTranspose"
        attributes = {name: value for name, value in node.attributes.items() if name not in _OWN}
        return FusedConv(a, b, bias, residual, activation=activation, transposed=transposed, **attributes)
    trans_b = bool(attribute(node, "trans_b")) if is_fused else False
    if node.op_type == "Gemm":
        if not _is_plain(node, bias):
            return None
        trans_b = bool(attribute(node, "transB"))
    return FusedMatMul(a, b, bias, residual, activation=activation, trans_b=trans_b)


def fits_as_residual(value: OutputLike, output: Output) -> bool:
    """True where `value` provably has the type of `output`, so that to add it broadcasts nothing."""
    source = value.output(0) if isinstance(value, Node) else value
    own, wanted = dims_of(source), dims_of(output)
    if own is None or wanted is None or source.element_type is not output.element_type:
        return False
    return same_lengths(own, wanted)


def _is_plain(gemm: Node, bias: Output | None) -> bool:
    """True for a Gemm that only multiplies and adds one value a column."""
    if attribute(gemm, "alpha") != 1 or attribute(gemm, "beta") != 1 or attribute(gemm, "transA"):
        return False
    columns = dims_of(gemm.output(0))
    return bias is None or (columns is not None and same_lengths(dims_of(bias) or (), columns[-1:]))
