"""The intermediate representation: models, nodes, ports, types. Its operators are ONNX's."""

from typing import TYPE_CHECKING

from engine.ir.element_type import (
    ElementType,
    bf16,
    boolean,
    c64,
    c128,
    f4e2m1,
    f6e2m3,
    f6e3m2,
    f8e4m3fn,
    f8e4m3fnuz,
    f8e5m2,
    f8e5m2fnuz,
    f8e8m0,
    f16,
    f32,
    f64,
    i2,
    i4,
    i8,
    i16,
    i32,
    i64,
    string,
    u2,
    u4,
    u8,
    u16,
    u32,
    u64,
    undefined,
)  # fmt: skip
from engine.ir.shape import Dimension, PartialShape, as_dimension, as_shape
from engine.ir.types import (
    UNKNOWN,
    MapType,
    OptionalType,
    SequenceType,
    SparseTensorType,
    TensorType,
    ValueType,
    merge_types,
)  # fmt: skip
from engine.startup import names_on_demand, paused_collector

if TYPE_CHECKING:
    from engine.ir.identity import model_identity
    from engine.ir.leaves import Constant, Parameter, Result
    from engine.ir.model import DECLARED_LENGTHS, UNREAD_CONSTANTS, Model
    from engine.ir.node import Input, Node, Output, OutputLike, as_output
    from engine.ir.stored import stored_bytes
    from engine.ir.variable import Variable
else:
    # A network from a blob has types, and no graph.
    __getattr__ = names_on_demand(__name__, {
        "engine.ir.identity": ["model_identity"],
        "engine.ir.leaves": ["Constant", "Parameter", "Result"],
        "engine.ir.model": ["DECLARED_LENGTHS", "UNREAD_CONSTANTS", "Model"],
        "engine.ir.node": ["Input", "Node", "Output", "OutputLike", "as_output"],
        "engine.ir.stored": ["stored_bytes"],
        "engine.ir.variable": ["Variable"],
    })  # fmt: skip

__all__ = [
    "DECLARED_LENGTHS", "UNKNOWN", "UNREAD_CONSTANTS", "Constant", "Dimension", "ElementType", "Input", "MapType",
    "Model", "Node", "OptionalType", "Output", "OutputLike", "Parameter", "PartialShape", "Result", "SequenceType",
    "SparseTensorType", "TensorType", "ValueType", "Variable", "as_dimension", "as_output", "as_shape", "bf16",
    "boolean", "c64", "c128",
    "f4e2m1", "f6e2m3", "f6e3m2", "f8e4m3fn", "f8e4m3fnuz", "f8e5m2", "f8e5m2fnuz", "f8e8m0", "f16", "f32", "f64",
    "i2", "i4", "i8", "i16", "i32", "i64", "merge_types", "model_identity", "paused_collector", "stored_bytes",
    "string", "u2", "u4", "u8", "u16", "u32", "u64", "undefined",
]  # fmt: skip
