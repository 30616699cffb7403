"""Inferred types are true of the results, whatever is known about the inputs.

A wrong length makes passes, memory plans and kernels work on the wrong shape. Each node is typed with its inputs'
ranks, lengths and values hidden at random, alone (`engine.ops`) and in a model that is read; then it is evaluated.

ENGINE_TYPE_TRIALS multiplies the number of trials, and ENGINE_TYPE_SEED gives others:
`ENGINE_TYPE_TRIALS=50 ENGINE_TYPE_SEED=7 pytest -m "" tests/onnx/test_true_types.py`
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from random import Random
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from engine import ops
from engine.ir import (
    UNKNOWN,
    Constant,
    Dimension,
    Model,
    Node,
    Output,
    Parameter,
    PartialShape,
    SequenceType,
    TensorType,
    ValueType,
    f32,
    i64,
    string,
    undefined,
)
from engine.onnx import read_model
from engine.ops import CANONICAL_OPSET, evaluate
from engine.ops.cases import OperatorCase, all_cases
from engine.ops.cases.data import Data
from engine.ops.protos import attribute_to_proto, tensor_to_proto, type_to_proto
from engine.ops.registry import get_op
from engine.testing.random_nodes import MAKERS, random_node

TRIALS = int(os.environ.get("ENGINE_TYPE_TRIALS", "1"))
SEED = int(os.environ.get("ENGINE_TYPE_SEED", "0"))
LARGEST = 20_000
"""Cases with more elements are of sizes that matter to kernels, not to types."""


# -- what is known ------------------------------------------------------------------------------------------


def hidden_shape(random: Random, shape: Sequence[int], knowledge: str) -> PartialShape:
    """A partial shape that accepts `shape`: equal lengths may have one symbol, `L5`."""
    if knowledge == "nothing":
        return PartialShape.dynamic()
    dims: list[Any] = []
    for length in shape:
        kind = random.choice(("lengths", "symbols", "ranks", "bounds")) if knowledge == "some" else knowledge
        bounds = Dimension(max(0, length - random.randint(0, 2)), length + random.randint(0, 3))
        dims.append({"lengths": length, "symbols": f"L{length}", "ranks": None, "bounds": bounds}[kind])
    return PartialShape(dims)


def knowledge_of(random: Random, case: OperatorCase) -> tuple[list[PartialShape], list[bool]]:
    """For each input, its shape as far as it is known, and whether it is a constant."""
    kinds = ("lengths", "symbols", "ranks", "some", "nothing")
    same = random.choice((*kinds, None, None, None))
    shapes = [
        hidden_shape(random, () if data is None else data.shape, same or random.choice(kinds)) for data in case.inputs
    ]
    share = random.choice((0, 0.5, 0.8, 1))
    return shapes, [index > 0 and random.random() < share for index in range(len(shapes))]


# -- what is wrong ------------------------------------------------------------------------------------------


def contradictions(stated: ValueType, value: Any, lengths: dict[str, int]) -> Iterator[str]:
    """The facts of a type that are not true of a value; `lengths` are the lengths of symbols."""
    if isinstance(stated, SequenceType) and stated.element is not None:
        for item in value:
            yield from contradictions(stated.element, item, dict(lengths))
    if not isinstance(stated, TensorType) or stated == UNKNOWN:
        return
    element = stated.element_type
    if element is not undefined and value.dtype != (object if element is string else np.dtype(element.numpy)):
        yield f"{stated} for {value.dtype}"
    if stated.shape.rank.is_dynamic:
        return
    if len(stated.shape) != value.ndim:
        yield f"{stated} for {list(value.shape)}"
        return
    for dim, length in zip(stated.shape, value.shape, strict=True):
        if not dim.accepts(length) or (dim.symbol and lengths.setdefault(dim.symbol, length) != length):
            yield f"{stated} for {list(value.shape)}"


def check_types(outputs: Mapping[Output, Any], case: object) -> None:
    lengths = {f"L{length}": length for length in range(LARGEST)}
    for output, value in outputs.items():
        wrong = list(contradictions(output.type, value, lengths))
        assert not wrong, (str(output.node), output.index, wrong, case)


def all_values(model: Model, feeds: Mapping[str, Any]) -> dict[Output, Any]:
    """The values of all nodes' outputs."""
    values: dict[Output, Any] = {each.output(0): feeds[each.friendly_name] for each in model.parameters}
    for node in model.ordered_nodes():
        if isinstance(node, Constant):
            values[node.output(0)] = node.data
        elif node.op_type not in ("Parameter", "Result"):
            given = [None if source is None else values[source] for source in node.input_values]
            values.update(zip(node.outputs, evaluate(node, given), strict=True))
    return values


# -- nodes --------------------------------------------------------------------------------------------------


def created(case: OperatorCase, shapes: Sequence[PartialShape], constants: Sequence[bool]) -> Node:
    sources: list[Parameter | Constant | None] = []
    for data, array, shape, is_constant in zip(case.inputs, case.arrays(), shapes, constants, strict=True):
        if data is None or array is None:
            sources.append(None)
        else:
            sources.append(Constant(array, data.type) if is_constant else Parameter(data.type, shape))
    attributes = dict(case.node()[0].attributes)
    return ops.create(case.op_type, sources, attributes, domain=case.domain, num_outputs=case.num_outputs)


def written(
    case: OperatorCase, shapes: Sequence[PartialShape], constants: Sequence[bool], opset: int
) -> onnx.ModelProto:
    """A model of the case, which also creates tensors of the sizes and shapes of the results."""
    node = case.node()[0]
    graph = onnx.GraphProto(name="g")
    names = [f"x{index}" if data is not None else "" for index, data in enumerate(case.inputs)]
    for name, data, array, shape, is_constant in zip(names, case.inputs, case.arrays(), shapes, constants, strict=True):
        if data is None or array is None:
            continue
        if is_constant:
            graph.initializer.append(tensor_to_proto(np.asarray(array)))
            graph.initializer[-1].name = name
        else:
            graph.input.append(onnx.ValueInfoProto(name=name, type=type_to_proto(TensorType(data.type, shape))))
    outputs = [f"y{index}" for index in range(node.num_outputs)]
    graph.node.append(onnx.NodeProto(op_type=case.op_type, name="node", input=names, output=outputs))
    definitions = get_op(case.op_type).attributes
    graph.node[0].attribute.extend(attribute_to_proto(k, v, definitions[k].kind) for k, v in node.attributes.items())
    for output in outputs:
        if case.op_type != "SplitToSequence":
            graph.node.add(op_type="Shape", input=[output], output=[f"{output}.shape"])
            graph.node.add(op_type="ConstantOfShape", input=[f"{output}.shape"], output=[f"{output}.filled"])
            graph.output.append(onnx.ValueInfoProto(name=f"{output}.filled"))
        graph.output.append(onnx.ValueInfoProto(name=output))
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)


def opsets_of(case: OperatorCase) -> list[int]:
    """The newest opset, and older ones for which the case means the same."""
    versions = {s.since_version for s in onnx.defs.get_all_schemas_with_history() if s.name == case.op_type}
    shapes = [PartialShape(() if data is None else data.shape) for data in case.inputs]
    found = [CANONICAL_OPSET]
    for opset in sorted(versions - {CANONICAL_OPSET}):
        if opset >= 13:
            try:
                read_model(written(case, shapes, [False] * len(shapes), opset))
            except Exception:  # an attribute or a type that the old version lacks
                continue
            found.append(opset)
    return found


def check_case(case: OperatorCase, random: Random, trials: int) -> None:
    arrays = case.arrays()
    feeds = {f"x{index}": array for index, array in enumerate(arrays) if array is not None}
    results = evaluate(created(case, [PartialShape(() if d is None else d.shape) for d in case.inputs],
                               [False] * len(arrays)), arrays)  # fmt: skip
    opsets = opsets_of(case)
    for _ in range(trials):
        shapes, constants = knowledge_of(random, case)
        context = (case.name, case.attributes, [str(shape) for shape in shapes], constants)
        node = created(case, shapes, constants)
        check_types(dict(zip(node.outputs, results, strict=True)), context)
        opset = random.choice(opsets)
        model = read_model(written(case, shapes, constants, opset))
        check_types(all_values(model, feeds), (*context, opset))


@pytest.mark.parametrize("op_type", MAKERS)
def test_types_of_random_nodes(op_type: str) -> None:
    for seed in range(SEED, SEED + 3 * TRIALS):
        check_case(random_node(op_type, seed), Random(seed), 4)


def _small_cases() -> list[OperatorCase]:
    """Every operator's cases, thinned out: many differ only in values."""
    chosen: dict[str, list[OperatorCase]] = {}
    for case in all_cases().values():
        if sum(np.prod(data.shape) for data in case.inputs if data is not None) <= LARGEST:
            chosen.setdefault(case.op_type, []).append(case)
    count = 3 * TRIALS
    return [case for cases in chosen.values() for case in cases[:: -(-len(cases) // count)]]


@pytest.mark.slow
def test_types_of_operator_cases() -> None:
    for case in _small_cases():
        check_case(case, Random(f"{case.name} {SEED}"), 2)


# -- values of shapes ---------------------------------------------------------------------------------------


class ShapeProgram:
    """Random integer arithmetic on the shape of an input, as exporters write it, and tensors of these shapes."""

    def __init__(self, seed: int) -> None:
        self.random = random = Random(f"program {seed}")
        self.x = np.zeros([random.randint(1, 4) for _ in range(random.randint(1, 4))], np.float32)
        self.values: dict[str, Any] = {"x": self.x}
        self.graph = onnx.GraphProto(name="g")
        start, end = random.randint(-3, 2), random.choice((-1, 2, 3, 9))
        integers = [
            self.node("Shape", ["x"]),
            self.node("Shape", ["x"], start=start, end=end),
            self.node("Size", ["x"]),
        ]
        for _ in range(random.randint(1, 7)):
            made = self.step(integers)
            if made is not None and np.abs(self.values[made]).max(initial=0) < 10_000:
                integers.append(made)
        for name in integers:
            self.sink(name)

    def constant(self, values: Any, dtype: Any = np.int64) -> str:
        name = f"c{len(self.graph.initializer)}"
        array = np.asarray(values, dtype)
        self.graph.initializer.append(tensor_to_proto(array))
        self.graph.initializer[-1].name = name
        self.values[name] = array
        return name

    def node(self, op_type: str, inputs: Sequence[str], **attributes: Any) -> str:
        sources = [Constant(self.values[name]) if name else None for name in inputs]
        made = ops.create(op_type, sources, attributes)
        name = f"v{len(self.graph.node)}"
        (self.values[name],) = evaluate(made, [self.values[name] if name else None for name in inputs])
        self.graph.node.append(helper.make_node(op_type, inputs, [name], **attributes))
        self.graph.output.append(onnx.ValueInfoProto(name=name))
        return name

    def step(self, integers: Sequence[str]) -> str | None:
        random = self.random
        name, other = random.choice(integers), random.choice(integers)
        value = self.values[name]
        rank, length = value.ndim, value.size
        kind = random.choice(("Gather", "Slice", "Concat", "Rank", "Binary", "Cast", "Unary", "Reduce", "Where"))
        if kind == "Gather" and rank and length:
            places = random.choice([random.randrange(-length, length), [random.randrange(-length, length)] * 2, []])
            return self.node("Gather", [name, self.constant(places)])
        if kind == "Slice" and rank:
            bounds = [self.constant([random.randint(-4, 4)]) for _ in range(2)]
            steps = random.choice(["", self.constant([random.choice((-2, -1, 1, 2))])])
            return self.node(
                "Slice", [name, *bounds, self.constant([random.choice((0, -1))]), steps][: 4 + bool(steps)]
            )
        if kind == "Concat" and rank and self.values[other].ndim and value.dtype == self.values[other].dtype:
            return self.node("Concat", [name, other, self.constant([2], value.dtype)], axis=random.choice((0, -1)))
        if kind == "Rank":
            if not rank:
                return self.node("Unsqueeze", [name, self.constant([random.choice((0, -1))])])
            return self.node("Squeeze", [name, *random.choice([[], [self.constant([0])]])]) if length == 1 else None
        if kind == "Binary":
            numbers = random.choice([[-3], [2], 3, -2, [1] * max(length, 1), list(range(2, length + 2)) or [1]])
            right = random.choice([other, self.constant(numbers, value.dtype)])
            pair = [name, right] if random.random() < 0.7 else [right, name]
            fits = value.dtype == self.values[right].dtype and len({length, 1, self.values[right].size} - {1}) < 2
            op_type = random.choice(("Add", "Sub", "Mul", "Div", "Mod", "Max", "Min"))
            if op_type in ("Div", "Mod") and not np.all(self.values[pair[1]]):
                return None
            return self.node(op_type, pair) if fits and length and self.values[right].size else None
        if kind == "Cast":
            to = random.choice((onnx.TensorProto.INT64, onnx.TensorProto.INT32, onnx.TensorProto.FLOAT))
            cast = self.node("Cast", [name], to=to)
            if to != onnx.TensorProto.FLOAT:
                return cast
            scaled = self.node("Mul", [cast, self.constant(random.choice((0.5, 1.5, -0.3)), np.float32)])
            scaled = self.node(random.choice(("Floor", "Ceil", "Identity")), [scaled])
            return self.node("Cast", [scaled], to=onnx.TensorProto.INT64)
        if kind == "Unary":
            return self.node(random.choice(("Neg", "Abs", "Identity", "Sign")), [name])
        if kind == "Reduce" and length:
            return self.node(random.choice(("ReduceProd", "ReduceSum")), [name], keepdims=random.randint(0, 1))
        if kind == "Where" and rank == 1 and length:
            zero = self.constant(0, value.dtype)
            return self.node("Where", [self.node("Greater", [name, zero]), name, self.constant([1], value.dtype)])
        return None

    def sink(self, name: str) -> None:
        value = self.values[name]
        if value.dtype != np.int64 or (not value.size and value.ndim != 1):
            return
        small = bool((value >= 0).all()) and np.prod(value) <= 1000
        if value.ndim == 0:
            self.node("Range", [self.constant(0), name, self.constant(self.random.choice((1, 2)))])
        elif value.ndim == 1 and small and value.size < 8:
            self.node("ConstantOfShape", [name])
            if value.all():
                self.node("Expand", [self.constant(1.0, np.float32), name])
                self.node("Tile", [self.constant(np.ones([1] * value.size), np.float32), name])
            if np.prod(value) == self.x.size:
                self.node("Reshape", ["x", name])


@pytest.mark.parametrize("part", range(4))
def test_types_from_computed_shapes(part: int) -> None:
    for trial in range(40 * TRIALS):
        seed = (SEED * 4 + part) * 1_000_003 + trial
        program, random = ShapeProgram(seed), Random(seed)
        knowledge = random.choice(("lengths", "symbols", "ranks", "some", "nothing"))
        shape = hidden_shape(random, program.x.shape, knowledge)
        proto = onnx.GraphProto()
        proto.CopyFrom(program.graph)
        proto.input.append(onnx.ValueInfoProto(name="x", type=type_to_proto(TensorType(f32, shape))))
        opset = random.choice((13, 17, 21, CANONICAL_OPSET))
        if opset < 15 and any(node.op_type == "Shape" and node.attribute for node in proto.node):
            opset = 15
        model = read_model(helper.make_model(proto, opset_imports=[helper.make_opsetid("", opset)], ir_version=10))
        check_types(all_values(model, {"x": program.x}), (seed, str(shape), opset))


# -- known mistakes of ONNX's inference ---------------------------------------------------------------------


def read_node(op_type: str, inputs: Mapping[str, Any], opset: int, **attributes: Any) -> str:
    """The type of the result of a node in a model that is read; inputs are shapes, or arrays for constants."""
    graph = onnx.GraphProto(name="g")
    for name, given in inputs.items():
        if isinstance(given, np.ndarray):
            graph.initializer.append(tensor_to_proto(given))
            graph.initializer[-1].name = name
        elif not isinstance(given, str):
            stated = TensorType(i64 if name in ("axes", "steps") else f32, PartialShape(given))
            graph.input.append(onnx.ValueInfoProto(name=name, type=type_to_proto(stated)))
    names = ["" if isinstance(given, str) else name for name, given in inputs.items()]
    graph.node.append(helper.make_node(op_type, names, ["y"], **attributes))
    graph.output.append(onnx.ValueInfoProto(name="y"))
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)
    return str(read_model(proto).results[0].input_value(0).type)


def test_attention_of_unknown_width() -> None:
    inputs = {"q": [2, 5, "width"], "k": [2, 4, "width"], "v": [2, 4, "width"]}
    assert read_node("Attention", inputs, 24, q_num_heads=2, kv_num_heads=2) == "f32[2,5,?]"


def test_transposed_convolution_that_shrinks() -> None:
    inputs = {"x": [1, 2, 5, 5], "w": [2, 3, 3, 3]}
    assert read_node("ConvTranspose", inputs, 22, output_shape=[5, 4], auto_pad="SAME_UPPER") == "f32[1,3,5,4]"


@pytest.mark.parametrize("count", [[1], [None], None])
@pytest.mark.parametrize("opset", [13, CANONICAL_OPSET])
def test_slice_with_unknown_steps_or_axes(count: Any, opset: int) -> None:
    bounds = {"starts": np.array([0]), "ends": np.array([8])}
    assert read_node("Slice", {"x": [8], **bounds, "axes": np.array([0]), "steps": count}, opset) == "f32[0..8]"
    assert read_node("Slice", {"x": [8, 9], **bounds, "axes": count}, opset) == "f32[0..8,0..9]"


@pytest.mark.parametrize("count", [[1], [None], None])
@pytest.mark.parametrize("opset", [18, CANONICAL_OPSET])
def test_pad_with_unknown_axes(count: Any, opset: int) -> None:
    inputs = {"x": [8, 9], "pads": np.array([1, 2]), "value": "omitted", "axes": count}
    assert read_node("Pad", inputs, opset) == "f32[?,?]"


def test_einsum_whose_first_operand_is_broadcast() -> None:
    inputs = {"a": ["B", 2, 3], "b": [4, 3, 2]}
    assert read_node("Einsum", inputs, 12, equation="...ij,...jk->...ik") == "f32[4,2,2]"


def test_split_with_an_empty_name_for_the_sizes() -> None:
    inputs = {"x": [4, 3], "split": "omitted"}
    assert read_node("SplitToSequence", inputs, 24, keepdims=0) == "seq(f32[3])"


def test_pooling_whose_last_window_is_padding() -> None:
    case = OperatorCase("LpPool/padded", "LpPool", (Data((1, 3, 9)),), PADDED)
    model = read_model(written(case, [PartialShape([1, 3, 9])], [False], 18))
    check_types(all_values(model, {"x0": case.arrays()[0]}), case)


PADDED = {"kernel_shape": [2], "strides": [3], "pads": [0, 1], "ceil_mode": 1}
