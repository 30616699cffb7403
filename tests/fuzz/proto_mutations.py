"""Changes of a model's protobuf that a file from outside may have: each takes what it changes at random."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import onnx
from google.protobuf.message import Message
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto

from engine.ops.registry import all_ops

INTEGERS = (
    0,
    1,
    -1,
    2,
    3,
    7,
    64,
    127,
    255,
    -128,
    1000,
    65536,
    2**31 - 1,
    -(2**31),
    2**31,
    2**40,
    2**62,
    2**63 - 1,
    -(2**63),
)
REALS = (0.0, -0.0, 1.0, -1.0, 0.5, 1e-38, 1e38, float("inf"), float("-inf"), float("nan"), 3.5)
TEXTS = (
    "",
    "x0",
    "y0",
    "NOTSET",
    "SAME_UPPER",
    "linear",
    "cubic",
    "add",
    "a" * 300,
    "ü",
    "../../etc/passwd",
    "..i->..",
    "1" * 400,
)
# Lengths between what can be allocated and what cannot take the memory of the machine before the limit is noticed.
LENGTHS = (0, 1, 2, 3, 5, 17, -1, 1024, 2**20, 2**28, 2**31, 2**40, 2**62, 2**63 - 1)
_NAMES = sorted({op.name for op in all_ops()})

Mutation = Callable[[random.Random, ModelProto], None]


def graphs_of(model: ModelProto) -> list[GraphProto]:
    """The graph of the model, and the graphs of bodies."""
    found, ahead = [], [model.graph]
    while ahead:
        graph = ahead.pop()
        found.append(graph)
        ahead += [a.g for node in graph.node for a in node.attribute if a.HasField("g")]
    return found


def _graph(r: random.Random, model: ModelProto) -> GraphProto:
    return r.choice(graphs_of(model))


def _node(r: random.Random, model: ModelProto) -> NodeProto | None:
    nodes = [node for graph in graphs_of(model) for node in graph.node]
    return r.choice(nodes) if nodes else None


def _tensors(model: ModelProto) -> list[TensorProto]:
    found = [tensor for graph in graphs_of(model) for tensor in graph.initializer]
    return found + [a.t for g in graphs_of(model) for n in g.node for a in n.attribute if a.HasField("t")]


def _value_names(model: ModelProto) -> list[str]:
    names = []
    for graph in graphs_of(model):
        names += [each.name for each in graph.input] + [each.name for each in graph.initializer]
        names += [name for node in graph.node for name in node.output]
    return names or [""]


def attribute_value(r: random.Random, model: ModelProto) -> None:
    """An attribute has another value of its type."""
    node = _node(r, model)
    if node is None or not node.attribute:
        return
    change_attribute(r, r.choice(node.attribute))


def change_attribute(r: random.Random, attribute: AttributeProto) -> None:
    """Change an attribute's value, within its type."""
    kinds = AttributeProto
    match attribute.type:
        case kinds.INT:
            attribute.i = _integer(r, attribute.i)
        case kinds.FLOAT:
            attribute.f = r.choice(REALS)
        case kinds.STRING:
            attribute.s = r.choice(TEXTS).encode() if r.random() < 0.8 else r.randbytes(5)
        case kinds.INTS:
            _change_list(r, attribute.ints, lambda old: _integer(r, old))
        case kinds.FLOATS:
            _change_list(r, attribute.floats, lambda old: r.choice(REALS))
        case kinds.STRINGS:
            _change_list(r, attribute.strings, lambda old: r.choice(TEXTS).encode())
        case kinds.TENSOR:
            change_tensor(r, attribute.t)
        case _:
            attribute.type = r.randint(0, 14)


def _integer(r: random.Random, old: int) -> int:
    return old + r.choice((-2, -1, 1, 2)) if r.random() < 0.4 and abs(old) < 2**40 else r.choice(INTEGERS)


def _change_list(r: random.Random, values: Any, another: Callable[[Any], Any]) -> None:
    match r.randrange(4):
        case 0 if values:
            del values[r.randrange(len(values))]
        case 1:
            values.append(another(values[-1] if values else 0))
        case 2:
            del values[:]
        case _ if values:
            index = r.randrange(len(values))
            values[index] = another(values[index])


def attribute_added(r: random.Random, model: ModelProto) -> None:
    """A node has an attribute that it need not have, of any type."""
    node = _node(r, model)
    if node is None:
        return
    ops = [op for op in all_ops() if op.name == node.op_type]
    names = [name for op in ops for name in op.attributes] or ["axis"]
    value = r.choice(
        (r.choice(INTEGERS), [r.choice(INTEGERS) for _ in range(r.randint(1, 4))], r.choice(REALS), r.choice(TEXTS))
    )
    node.attribute.append(onnx.helper.make_attribute(r.choice(names), value))


def attribute_type(r: random.Random, model: ModelProto) -> None:
    """An attribute says that it has another type, or has another name."""
    node = _node(r, model)
    if node is not None and node.attribute:
        attribute = r.choice(node.attribute)
        if r.random() < 0.6:
            attribute.type = r.randint(0, 14)
        else:
            attribute.name = r.choice(("axis", "axes", "perm", "body", "to", "kernel_shape", "", attribute.name + "x"))


def attribute_removed(r: random.Random, model: ModelProto) -> None:
    """A node lacks an attribute, or has it twice."""
    node = _node(r, model)
    if node is not None and node.attribute:
        index = r.randrange(len(node.attribute))
        if r.random() < 0.6:
            del node.attribute[index]
        else:
            node.attribute.append(node.attribute[index])


def operator(r: random.Random, model: ModelProto) -> None:
    """A node is of another operator or domain."""
    node = _node(r, model)
    if node is not None:
        if r.random() < 0.85:
            node.op_type = r.choice(_NAMES)
        else:
            node.domain = r.choice(("com.microsoft", "ai.onnx.ml", "engine", "nowhere", "ai.onnx"))


def node_input(r: random.Random, model: ModelProto) -> None:
    """A node reads another value, one that is not there, its own result, none, or one more."""
    node = _node(r, model)
    if node is None:
        return
    names = [*_value_names(model), "", "nowhere", *node.output]
    match r.randrange(4):
        case 0 if node.input:
            del node.input[r.randrange(len(node.input))]
        case 1:
            node.input.append(r.choice(names))
        case _ if node.input:
            node.input[r.randrange(len(node.input))] = r.choice(names)


def node_output(r: random.Random, model: ModelProto) -> None:
    """A node writes a value that another writes, none, or more of them."""
    node = _node(r, model)
    if node is None:
        return
    match r.randrange(3):
        case 0 if node.output:
            del node.output[r.randrange(len(node.output))]
        case 1:
            node.output.append(r.choice(("", "new", *_value_names(model))))
        case _ if node.output:
            node.output[r.randrange(len(node.output))] = r.choice(_value_names(model))


def node_moved(r: random.Random, model: ModelProto) -> None:
    """Nodes are out of order, missing, or twice there."""
    graph = _graph(r, model)
    if not graph.node:
        return
    index = r.randrange(len(graph.node))
    match r.randrange(3):
        case 0:
            del graph.node[index]
        case 1:
            graph.node.append(graph.node[index])
        case _:
            graph.node.append(graph.node[index])
            del graph.node[index]


def value_type(r: random.Random, model: ModelProto) -> None:
    """An input or output has another type, shape or name."""
    graph = _graph(r, model)
    infos = [*graph.input, *graph.output, *graph.value_info]
    if not infos:
        return
    info = r.choice(infos)
    kind = info.type.tensor_type
    match r.randrange(6):
        case 0:
            kind.elem_type = r.randint(-1, 30)
        case 1:
            kind.ClearField("shape")
        case 2 if kind.shape.dim:
            r.choice(kind.shape.dim).dim_value = r.choice(LENGTHS)
        case 3 if kind.shape.dim:
            r.choice(kind.shape.dim).dim_param = r.choice(("n", "m", "", "n0", "N + 1", "1" * 200))
        case 4:
            info.name = r.choice((*_value_names(model), "", "other"))
        case _:
            if r.random() < 0.5:
                kind.shape.dim.add().dim_value = r.choice(LENGTHS)
            else:
                info.type.sequence_type.elem_type.tensor_type.elem_type = r.randint(0, 20)


def tensor(r: random.Random, model: ModelProto) -> None:
    """A constant is not what its fields say."""
    tensors = _tensors(model)
    if tensors:
        change_tensor(r, r.choice(tensors))


def change_tensor(r: random.Random, one: TensorProto) -> None:
    """Change one field of a tensor."""
    match r.randrange(8):
        case 0:
            one.data_type = r.randint(-1, 30)
        case 1 if one.dims:
            one.dims[r.randrange(len(one.dims))] = r.choice(LENGTHS)
        case 2:
            one.dims.append(r.choice(LENGTHS))
        case 3:
            one.raw_data = one.raw_data[: r.randint(0, len(one.raw_data))]
        case 4:
            one.raw_data += r.randbytes(r.randint(1, 9))
        case 5 if one.raw_data:
            # Other contents of the same length: indices, shapes, axes and scales that do not fit.
            size = 8 if one.data_type == TensorProto.INT64 else 4
            data = bytearray(one.raw_data)
            at = r.randrange(0, max(1, len(data) - size + 1), size) if len(data) >= size else 0
            number = r.choice(INTEGERS) % 2 ** (8 * size)
            data[at : at + size] = number.to_bytes(size, "little")[: len(data) - at]
            one.raw_data = bytes(data)
        case 6:
            one.data_location = TensorProto.EXTERNAL
            one.external_data.add(
                key="location", value=r.choice(("../secret", "/etc/passwd", "weights.bin", "", ".", "a/../../b", "\0"))
            )
            one.external_data.add(key=r.choice(("offset", "length")), value=str(r.choice(INTEGERS)))
        case _:
            one.float_data.append(1.0)
            if r.random() < 0.5:
                one.ClearField("raw_data")


def initializer(r: random.Random, model: ModelProto) -> None:
    """A constant has another name, or is missing or there twice."""
    graph = _graph(r, model)
    if graph.initializer:
        index = r.randrange(len(graph.initializer))
        match r.randrange(3):
            case 0:
                del graph.initializer[index]
            case 1:
                graph.initializer[index].name = r.choice((*_value_names(model), ""))
            case _:
                graph.initializer.append(graph.initializer[index])


def results(r: random.Random, model: ModelProto) -> None:
    """The model has other inputs and outputs."""
    graph = _graph(r, model)
    many = r.choice((graph.input, graph.output))
    match r.randrange(3):
        case 0 if many:
            del many[r.randrange(len(many))]
        case 1 if many:
            many.append(r.choice(many))
        case _:
            many.add().name = r.choice(_value_names(model))


def versions(r: random.Random, model: ModelProto) -> None:
    """The model states other versions."""
    match r.randrange(4):
        case 0:
            model.ir_version = r.choice((0, 1, 3, 8, 20, -1))
        case 1:
            if model.opset_import:
                r.choice(model.opset_import).version = r.choice((0, 1, 5, 7, 9, 11, 13, 17, 21, 100, -1, 2**40))
        case 2:
            model.opset_import.add(
                domain=r.choice(("", "ai.onnx.ml", "com.microsoft", "x")), version=r.choice((1, 8, 11))
            )
        case _:
            del model.opset_import[:]


def nested(r: random.Random, model: ModelProto) -> None:
    """A part of the graph becomes a body, or a body is given to any node."""
    node = _node(r, model)
    if node is None:
        return
    copy = GraphProto()
    copy.CopyFrom(_graph(r, model))
    name = r.choice(("body", "then_branch", "else_branch", "g"))
    if copy.ByteSize() < 50_000:
        attribute = node.attribute.add(name=name, type=AttributeProto.GRAPH)
        attribute.g.CopyFrom(copy)
        if r.random() < 0.6:
            node.op_type = {"body": r.choice(("Loop", "Scan")), "g": node.op_type}.get(name, "If")


def function(r: random.Random, model: ModelProto) -> None:
    """The model has a local function, which a node calls; it may call itself."""
    one = model.functions.add(name="F", domain="local")
    one.opset_import.add(domain="", version=17)
    one.opset_import.add(domain="local", version=1)
    one.input.append("a")
    one.output.append("b")
    one.node.add(op_type=r.choice(("Relu", "F", "Identity")), domain=r.choice(("", "local")), input=["a"], output=["b"])
    model.opset_import.add(domain="local", version=1)
    node = _node(r, model)
    if node is not None:
        node.op_type, node.domain = "F", "local"


def any_field(r: random.Random, model: ModelProto) -> None:
    """Any scalar field of the whole file has another value."""
    found = list(_scalars(model))
    if not found:
        return
    message, field = r.choice(found)
    value: Any = getattr(message, field.name)
    another: Any
    match field.cpp_type:
        case field.CPPTYPE_INT32 | field.CPPTYPE_ENUM:
            another = r.choice([n for n in INTEGERS if -(2**31) <= n < 2**31])
        case field.CPPTYPE_INT64:
            another = r.choice(INTEGERS)
        case field.CPPTYPE_UINT64 | field.CPPTYPE_UINT32:
            another = r.choice((0, 1, 2**31))
        case field.CPPTYPE_STRING:
            text = r.choice(TEXTS)
            another = text.encode() if field.type == field.TYPE_BYTES else text
        case _:
            another = r.choice(REALS)
    if _is_repeated(field):
        if len(value):
            value[r.randrange(len(value))] = another
    else:
        try:
            setattr(message, field.name, another)
        except ValueError:  # a closed enumeration
            return


def _scalars(message: Message) -> Iterator[tuple[Any, Any]]:
    for field, value in message.ListFields():
        if field.cpp_type != field.CPPTYPE_MESSAGE:
            yield message, field
        else:
            for inner in value if _is_repeated(field) else (value,):
                yield from _scalars(inner)


def _is_repeated(field: Any) -> bool:
    return bool(field.is_repeated) if hasattr(field, "is_repeated") else field.label == field.LABEL_REPEATED


MUTATIONS: tuple[Mutation, ...] = (
    attribute_value, attribute_value, attribute_value, attribute_added, attribute_type, attribute_removed, operator,
    node_input, node_input, node_output, node_moved, value_type, value_type, tensor, tensor, tensor, initializer,
    results, versions, nested, function, any_field, any_field,
)  # fmt: skip


def damaged(r: random.Random, data: bytes) -> bytes:
    """The bytes with some of them changed, removed, repeated, or cut off."""
    changed = bytearray(data)
    for _ in range(r.choice((1, 1, 2, 4, 16))):
        at = r.randrange(len(changed) + 1)
        match r.randrange(5):
            case 0:
                changed[at : at + 1] = bytes([r.randrange(256)])
            case 1 if at < len(changed):
                changed[at] ^= 1 << r.randrange(8)
            case 2:
                del changed[at : at + r.randint(1, 20)]
            case 3:
                changed[at:at] = changed[at : at + r.randint(1, 40)]
            case _:
                if r.random() < 0.2:
                    del changed[at:]
                else:
                    changed[at:at] = r.choice((b"\xff" * 9 + b"\1", b"\x80" * 10, r.randbytes(3)))
    return bytes(changed)
