"""Operators of onnxruntime, most of them of the domain `com.microsoft`, read as ONNX operators.

A model that contains them has ONNX operators once it is read: every device runs them, and passes recognise them. An
operator that is not here stays a node of its domain, without types. A call whose attributes or inputs ask for something
that ONNX's operators cannot express is refused by name, unless a device may have a kernel for it (an attention whose
cache is written in place, or weights that are computed): such a call also stays a node.

A family of operators has its module here; `@contrib` registers the function that expresses one by ONNX operators.
"""

from collections.abc import Sequence
from typing import Final

from engine.ir import Output
from engine.onnx.contrib import (
    activations,
    attention,
    equivalents,
    experts,
    gated,
    grouped_attention,
    integer_products,
    linear_attention,
    normalizations,
    packed_products,
    packed_tables,
    products,
    quantized,
    recurrent,
    rotary,
)
from engine.onnx.contrib.call import DOMAIN, OPERATORS, ContribCall

__all__ = ["DOMAIN", "FAMILIES", "OPERATORS", "ContribCall", "expand", "is_known"]

FAMILIES: Final = (
    activations, attention, equivalents, experts, gated, grouped_attention, integer_products, linear_attention,
    normalizations, packed_products, packed_tables, products, quantized, recurrent, rotary,
)  # fmt: skip
"""Imported because they register operators."""


def is_known(op_type: str, domain: str) -> bool:
    """Whether `expand` can translate the operator `op_type` of `domain`."""
    found = OPERATORS.get(op_type)
    return found is not None and found.domain == domain


def expand(call: ContribCall, outputs: Sequence[str]) -> Sequence[Output | None] | None:
    """The values of the outputs of a call, computed by unnamed ONNX nodes; None if ONNX's operators cannot express it.

    An empty name in `outputs` is an output that is omitted; it may have no value.

    Raises `ModelError` if the operator does not accept its inputs or attributes, and `UnsupportedError` if one of them,
    or an output, has no form in ONNX's operators.
    """
    call.check()
    definition = OPERATORS[call.op_type]
    values = definition.function(call)
    for index, (value, name) in enumerate(zip(values or (), outputs, strict=False)):
        if value is None and name:
            call.unsupported(
                f"output {index} ({definition.outputs[index]}, `{name}`) has no form in ONNX's operators",
                "write the model without it",
            )
    return values
