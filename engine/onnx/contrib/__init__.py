"""Operators of onnxruntime's domain `com.microsoft`, read as ONNX operators.

A model that contains them has ONNX operators once it is read: every device runs them, and passes recognise them. An
operator that is not here, or a call that ONNX's operators cannot express, stays a node of its domain, without types.

A family of operators has its module here; `@contrib` registers the function that expresses one by ONNX operators.
"""

from collections.abc import Sequence
from typing import Final

from engine.ir import Output
from engine.onnx.contrib import integer_products, packed_products, packed_tables, quantized, recurrent
from engine.onnx.contrib.call import DOMAIN, OPERATORS, ContribCall

__all__ = ["DOMAIN", "FAMILIES", "OPERATORS", "ContribCall", "expand", "is_known"]

FAMILIES: Final = (integer_products, packed_products, packed_tables, quantized, recurrent)
"""Imported because they register operators."""


def is_known(op_type: str, domain: str) -> bool:
    """Whether `expand` knows the operator."""
    return domain == DOMAIN and op_type in OPERATORS


def expand(call: ContribCall) -> Sequence[Output] | None:
    """The values of the outputs of a call, computed by unnamed ONNX nodes; None if ONNX's operators cannot express it.

    Raises `ModelError` if the operator does not accept its inputs or attributes.
    """
    call.check()
    return OPERATORS[call.op_type].function(call)
