"""Matrix products: MatMul, Gemm, and their fused form."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from engine.ir import Node
from engine.ops.fused_activation import Activation, fused_activation
from engine.ops.registry import INTERNAL_DOMAIN
from engine.ops.spec import OperatorSpec, specifies


@specifies("MatMul")
@specifies("FusedMatMul", domain=INTERNAL_DOMAIN)
@dataclass(frozen=True, slots=True, kw_only=True)
class MatMulSpec(OperatorSpec):
    """numpy's matmul; what is fused with it is absent in a MatMul.

    Attributes:
        trans_b: B, a matrix, is stored [N, K].
        activation: what a FusedMatMul ends with.
    """

    trans_b: bool
    activation: Activation | None

    @classmethod
    def resolve(cls, node: Node, given: dict[str, Any]) -> None:
        """See `OperatorSpec`."""
        given["activation"] = fused_activation(node) if "activation" in given else None
        given["trans_b"] = bool(given.get("trans_b", 0))


@specifies("Gemm")
@dataclass(frozen=True, slots=True, kw_only=True)
class GemmSpec(OperatorSpec):
    """alpha * A * B + beta * C.

    Attributes:
        transA: A is stored [K, M].
        transB: B is stored [N, K].
    """

    alpha: float
    beta: float
    transA: bool  # noqa: N815 - as ONNX names it
    transB: bool  # noqa: N815

    @classmethod
    def resolve(cls, node: Node, given: dict[str, Any]) -> None:
        """See `OperatorSpec`."""
        for name, kind in (("alpha", float), ("beta", float), ("transA", bool), ("transB", bool)):
            given[name] = kind(given[name])
