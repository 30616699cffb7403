"""Models of one node, the ONNX suite's and classical ones, and changes that may make the node invalid."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import AttributeProto, TensorProto, helper, numpy_helper

from engine.testing.onnx_suite import CASES

from .classical_nodes import classical_models

NAME = "culprit"
HUGE = [2**31 - 1, -(2**31), 2**62, -(2**63)]
INTS = [0, -1, 1, 2, -2, 7, 100, -100, *HUGE]
FLOATS = [0.0, -1.0, float("nan"), float("inf"), -float("inf"), 1e30]
TEXTS = [b"", b"WRONG", b"\xff", b"constant"]
TYPES = [TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL, TensorProto.UINT8, TensorProto.DOUBLE]


@dataclass(frozen=True)
class Subject:
    """A model of one node with values for its inputs, and what was changed.

    `is_known`: every value on which the validity of the node depends is in the model.
    """

    model: onnx.ModelProto
    values: dict[str, Any]
    change: str = ""
    is_known: bool = False

    @property
    def node(self) -> onnx.NodeProto:
        """The node, whose name is `NAME`."""
        return self.model.graph.node[0]

    def copy(self, change: str) -> Subject:
        """An independent copy."""
        model = onnx.ModelProto()
        model.CopyFrom(self.model)
        return Subject(model, dict(self.values), change, self.is_known)


@functools.cache
def subjects() -> dict[str, list[Subject]]:
    """Valid models by operator."""
    found: dict[str, list[Subject]] = {}
    suite = [
        (case.model, case.data_sets[0][0])
        for case in CASES.values()
        if case.kind == "node" and case.model is not None and len(case.model.graph.node) == 1 and case.data_sets
    ]
    for model, given in [*suite, *classical_models()]:
        node = model.graph.node[0]
        if any(attribute.type == AttributeProto.GRAPH for attribute in node.attribute):
            continue
        if any(not isinstance(value, np.ndarray) or value.size > 10_000 for value in given):
            continue
        named = onnx.ModelProto()
        named.CopyFrom(model)
        named.graph.node[0].name = NAME
        values = {info.name: value for info, value in zip(model.graph.input, given, strict=False)}
        found.setdefault(f"{node.domain}.{node.op_type}".strip("."), []).append(Subject(named, values))
    return found


def changed(r: random.Random) -> Subject:
    """A subject with one change. It mostly omits the suite's declarations of the outputs."""
    operator = r.choice(sorted(subjects()))
    made = r.choice(subjects()[operator])
    if r.random() < 0.5:
        integers = {name for name, value in made.values.items() if value.dtype.kind in "iub"}
        made = _with_constants(made.copy(""), integers)
    made = r.choice(_CHANGES)(made, r)
    if r.random() < 0.9:
        for output in made.model.graph.output:
            output.ClearField("type")
    return made


def _with_constants(subject: Subject, names: set[str]) -> Subject:
    kept = [info for info in subject.model.graph.input if info.name not in names]
    for name in sorted(names):
        subject.model.graph.initializer.append(numpy_helper.from_array(subject.values.pop(name), name))
    del subject.model.graph.input[:]
    subject.model.graph.input.extend(kept)
    is_known = all(value.dtype.kind not in "iub" for value in subject.values.values())
    return Subject(subject.model, subject.values, subject.change, is_known)


def _change_attribute(subject: Subject, r: random.Random) -> Subject:
    """Give an attribute, also one that the node does not have, another value of its type, or of another type."""
    schema = onnx.defs.get_schema(subject.node.op_type, domain=subject.node.domain)
    names = sorted({*schema.attributes, *(attribute.name for attribute in subject.node.attribute)})
    if not names:
        return _change_rank(subject, r)
    name = r.choice(names)
    present = {attribute.name: helper.get_attribute_value(attribute) for attribute in subject.node.attribute}
    kind = schema.attributes[name].type.name if name in schema.attributes else ""
    value = _changed_value(kind, present.get(name), r)
    made = subject.copy(f"{name}={value!r:.60}, was {present.get(name)!r:.60}")
    del made.node.attribute[:]
    made.node.attribute.extend(a for a in subject.node.attribute if a.name != name)
    if value is not None:
        made.node.attribute.append(helper.make_attribute(name, value))
    return made


def _changed_value(kind: str, present: Any, r: random.Random) -> Any:
    """Another value of an attribute; None if it is removed."""
    if r.random() < 0.05:
        return None if present is not None else r.choice([1, 1.5, b"x"])
    match kind:
        case "INT":
            return r.choice(INTS)
        case "FLOAT":
            return r.choice(FLOATS)
        case "STRING":
            return r.choice(TEXTS)
        case "INTS" | "FLOATS":
            values = list(present) if present is not None else [1] * r.randint(0, 4)
            return _changed_list(values, INTS if kind == "INTS" else FLOATS, r)
        case "STRINGS":
            return _changed_list(list(present or [b"a"]), TEXTS, r)
        case "TENSOR":
            shape = r.choice([(), (0,), (1,), (2,), (2, 2)])
            return numpy_helper.from_array(np.zeros(shape, r.choice([np.float32, np.int64, np.bool_])))
    return 1


def _changed_list(values: list[Any], others: list[Any], r: random.Random) -> list[Any] | None:
    match r.randrange(4):
        case 0:
            return values[:-1] or None
        case 1:
            return [*values, r.choice(others)]
        case 2 if values:
            return [values[0]] * len(values)
    if values:
        values[r.randrange(len(values))] = r.choice(others)
    return values or None


def _change_rank(subject: Subject, r: random.Random) -> Subject:
    """Give an input another rank or length."""
    tensors = [name for name, value in subject.values.items() if value.dtype.kind != "O"]
    if not tensors:
        return _change_ports(subject, r)
    name = r.choice(tensors)
    value = subject.values[name]
    shape = list(value.shape)
    match r.randrange(5):
        case 0:
            shape = []
        case 1:
            shape = shape[1:]
        case 2:
            shape = [1, *shape]
        case 3 if shape:
            shape[r.randrange(len(shape))] = r.choice([0, 1])
        case _ if shape:
            shape[r.randrange(len(shape))] += 1
    made = subject.copy(f"{name}: {value.dtype}{shape}, was {list(value.shape)}")
    made.values[name] = np.resize(value, shape) if value.size else np.zeros(shape, value.dtype)
    for info in made.model.graph.input:
        if info.name == name:
            kind = info.type.tensor_type.elem_type
            info.type.CopyFrom(helper.make_tensor_type_proto(kind, shape))
    return made


def _change_type(subject: Subject, r: random.Random) -> Subject:
    """Give an input another element type."""
    tensors = [name for name, value in subject.values.items() if value.dtype.kind in "fiub"]
    if not tensors:
        return _change_ports(subject, r)
    name, kind = r.choice(tensors), r.choice(TYPES)
    made = subject.copy(f"{name}: {TensorProto.DataType.Name(kind)}, was {subject.values[name].dtype}")
    with np.errstate(all="ignore"):
        made.values[name] = subject.values[name].astype(helper.tensor_dtype_to_np_dtype(kind))
    for info in made.model.graph.input:
        if info.name == name:
            info.type.tensor_type.elem_type = kind
    return made


def _change_ports(subject: Subject, r: random.Random) -> Subject:
    """Leave out an input, or add one, or an output."""
    made = subject.copy("with a surplus output")
    names = made.node.input
    match r.randrange(4):
        case 0 if names:
            made = subject.copy(f"without the last of {len(names)} inputs")
            del made.node.input[-1]
        case 1 if names:
            index = r.randrange(len(names))
            made = subject.copy(f"without input {index}")
            made.node.input[index] = ""
        case 2 if names:
            made = subject.copy("with a surplus input")
            made.node.input.append(names[0])
        case _:
            made.node.output.append("surplus")
    return made


def _change_values(subject: Subject, r: random.Random) -> Subject:
    """Change an element of an input of integers, such as axes."""
    constants = {tensor.name: numpy_helper.to_array(tensor) for tensor in subject.model.graph.initializer}
    known = {**subject.values, **constants}
    integers = [name for name, value in known.items() if value.dtype.kind in "iu" and value.size]
    if not integers:
        return _change_attribute(subject, r)
    name = r.choice(integers)
    value = known[name].copy()
    limits = np.iinfo(value.dtype)
    value.reshape(-1)[r.randrange(value.size)] = max(int(limits.min), min(int(limits.max), r.choice(INTS)))
    made = subject.copy(f"{name}={value.tolist()!r:.60}")
    if name in subject.values:
        made.values[name] = value
    for tensor in made.model.graph.initializer:
        if tensor.name == name:
            tensor.CopyFrom(numpy_helper.from_array(value, name))
    return made


_CHANGES: list[Callable[[Subject, random.Random], Subject]] = [
    _change_attribute, _change_attribute, _change_attribute, _change_rank, _change_rank, _change_type, _change_ports,
    _change_values, _change_values,
]  # fmt: skip
