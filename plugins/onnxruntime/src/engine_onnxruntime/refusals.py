"""What the runtime takes and computes otherwise than ONNX says: it is refused, so that nothing is wrong without a word.

Found with onnxruntime 1.32 on its CPU provider, by the conformance kit. What depends on values that only an inference
knows cannot be refused; docs/runtimes.md lists it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeAlias

from engine.ir import Node, Output
from engine.passes.runtime_info import is_operation
from engine.plugin_api import RefusalCause, Support

_Condition: TypeAlias = Callable[[Node], Any]

_WAY_OUT: Final = "run it on another device (HETERO:ONNXRUNTIME,CPU)"
_MODES: Final = ("align_corners", "tf_crop_and_resize")

_WRONG: Final[dict[str, tuple[_Condition, str]]] = {
    "Attention": (
        lambda n: _is_f64(n) or (n.has_input(4) and (n.attributes.get("is_causal") or not _is_read(n, 1)))
        or (n.has_input(3) and n.has_input(6)),
        "computes f64 in f32, and fails or masks otherwise for a causal past, and for lengths of keys with a mask",
    ),
    "ConvInteger": (lambda n: not _is_one(n, 3), "takes no zero point for each channel"),
    "ConvTranspose": (lambda n: n.attributes.get("output_shape"), "takes no output_shape beyond its own formula"),
    "GRU": (lambda n: n.has_input(4) and n.has_input(5), "returns zeros for a sequence of length 0"),
    "Gelu": (lambda n: _is_f64(n) and n.attributes.get("approximate") == "tanh", "rounds constants of f64 to f32"),
    "LSTM": (lambda n: n.has_input(4) and n.has_input(5), "returns zeros for a sequence of length 0"),
    "MatMulInteger": (lambda n: not (_is_one(n, 2) and _has_rank(n, 3, 1)), "takes no zero points for rows of a batch"),
    "RNN": (lambda n: n.has_input(4) and n.has_input(5), "returns zeros for a sequence of length 0"),
    "Resize": (
        lambda n: n.has_input(2) and n.attributes.get("coordinate_transformation_mode") in _MODES,
        "places pixels by lengths that are rounded, not by the scales",
    ),
    "RotaryEmbedding": (
        lambda n: not n.has_input(3) and n.input_value(0).shape[0] != n.input_value(1).shape[0],
        "takes no tables of one batch for several",
    ),
    "ScatterND": (
        lambda n: n.attributes.get("reduction", "none") != "none",
        "loses updates of indices that repeat, if it has several threads",
    ),
    "Shrink": (lambda n: _is_f64(n), "rounds the bias of f64"),
    "SplitToSequence": (lambda n: n.has_input(1) and not n.attributes.get("keepdims", 1), "removes an axis that stays"),
}  # fmt: skip
"""By operator, which nodes the runtime computes wrong, or fails to, and what it does."""


def refusal(node: Node) -> Support | None:
    """Why a node, or one in its bodies, is refused without asking the runtime; None if it may run."""
    for body in node.bodies.values():
        for inner in filter(is_operation, body.ordered_nodes()):
            found = refusal(inner)
            if found is not None:
                return Support.refused(RefusalCause.ATTRIBUTE, f"in its body, {inner.friendly_name}: {found.reason}")
    condition, what = _WRONG.get(node.op_type, (None, ""))
    if node.domain or condition is None or not condition(node):
        return None
    return Support.refused(RefusalCause.ATTRIBUTE, f"onnxruntime {what}; {_WAY_OUT}")


def _value(node: Node, index: int) -> Output | None:
    return node.input_value(index) if node.has_input(index) else None


def _is_f64(node: Node) -> bool:
    return node.output(0).element_type.name == "f64"


def _is_read(node: Node, index: int) -> bool:
    return index < node.num_outputs and node.output(index).num_consumers > 0


def _is_one(node: Node, index: int) -> bool:
    """Whether an optional input is omitted, or has one element."""
    value = _value(node, index)
    return value is None or (value.shape.is_static and all(length == 1 for length in value.shape.get_shape()))


def _has_rank(node: Node, index: int, most: int) -> bool:
    """Whether an optional input is omitted, or has few dimensions."""
    value = _value(node, index)
    return value is None or (value.shape.rank.is_static and len(value.shape) <= most)
