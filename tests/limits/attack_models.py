"""Models of a few kilobytes that would take more memory, or more time, than any machine has."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from engine.ops import CANONICAL_VERSIONS

F32, I64, STRING, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.STRING, TensorProto.BOOL
Attack = tuple[bytes, dict[str, Any]]
ATTACKS: Final[dict[str, Callable[[], Attack]]] = {}


def attack(make: Callable[[], Attack]) -> Callable[[], Attack]:
    """Decorator: the function makes a model and its inputs."""
    ATTACKS[make.__name__] = make
    return make


def model(
    nodes: list[onnx.NodeProto],
    inputs: dict[str, Any] | None = None,
    constants: dict[str, Any] | None = None,
    output: str = "y",
    *,
    declared: list[int] | None = None,
    kind: int = F32,
    dynamic: bool = True,
    functions: list[onnx.FunctionProto] | None = None,
) -> Attack:
    """A model of `nodes` whose inputs have the types of the given values, with unknown lengths unless `dynamic` is off.

    `declared`: the shape that the model states for its output.
    """
    given = inputs or {}
    parameters = []
    for name, value in given.items():
        shape = [f"{name}{axis}" for axis in range(value.ndim)] if dynamic else value.shape
        element = STRING if value.dtype == object else helper.np_dtype_to_tensor_dtype(value.dtype)
        parameters.append(helper.make_tensor_value_info(name, element, shape))
    held = [numpy_helper.from_array(np.asarray(value), name) for name, value in (constants or {}).items()]
    result = helper.make_tensor_value_info(output, kind, declared)
    graph = helper.make_graph(nodes, "attack", parameters, [result], held)
    imports = [helper.make_opsetid("", CANONICAL_VERSIONS[""]), helper.make_opsetid("local", 1)]
    made = helper.make_model(graph, opset_imports=imports, functions=functions or [])
    return made.SerializeToString(), given


def numbers(*values: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    return np.array(values, np.int64)


node = helper.make_node

# -- constants that multiply ---------------------------------------------------------------------------------


@attack
def concat_doubles_a_constant() -> Attack:
    nodes = [node("Concat", [f"c{i}", f"c{i}"], [f"c{i + 1}"], f"double_{i}", axis=0) for i in range(34)]
    nodes.append(node("ReduceMax", ["c34"], ["y"], "last", keepdims=0))
    return model(nodes, constants={"c0": np.zeros(16, np.float32)})


@attack
def products_of_constants() -> Attack:
    nodes = [node("ConstantOfShape", ["n"], ["c0"], "fill")]
    nodes += [node("MatMul", [f"c{i}", "c0"], [f"c{i + 1}"], f"product_{i}") for i in range(60)]
    # Nodes that are not folded run in the inference: here, in a branch that is not taken.
    nodes += [node("Shape", ["c60"], ["s"], "shape"), node("Add", ["s", "x"], ["y"], "last")]
    return model(nodes, {"x": numbers(1)}, {"n": numbers(3000, 3000)}, kind=I64)


@attack
def products_of_integers() -> Attack:
    nodes = [node("ConstantOfShape", ["n"], ["c0"], "fill", value=numpy_helper.from_array(numbers(1)))]
    nodes += [node("MatMul", [f"c{i}", "c0"], [f"c{i + 1}"], f"product_{i}") for i in range(60)]
    nodes += [node("Shape", ["c60"], ["s"], "shape"), node("Add", ["s", "x"], ["y"], "last")]
    return model(nodes, {"x": numbers(1)}, {"n": numbers(3000, 3000)}, kind=I64)


@attack
def einsum_of_many_labels() -> Attack:
    labels = "abcdefghij"
    terms = ",".join(labels)
    names = [f"c{i}" for i in range(len(labels))]
    nodes = [node("Einsum", names, ["e"], "sum", equation=f"{terms}->{labels}")]
    nodes += [node("Shape", ["e"], ["s"], "shape"), node("Add", ["s", "x"], ["y"], "last")]
    return model(nodes, {"x": numbers(1)}, {name: np.ones(100, np.float32) for name in names}, kind=I64)


@attack
def expands_of_a_constant() -> Attack:
    nodes = []
    for i in range(40):
        nodes += [
            node("Expand", ["c", "s"], [f"e{i}"], f"expand_{i}"),
            node("ReduceMax", [f"e{i}"], [f"m{i}"], keepdims=0),
        ]
    nodes.append(node("Sum", [f"m{i}" for i in range(40)], ["y"], "last"))
    return model(nodes, constants={"c": np.ones(1, np.float32), "s": numbers(15 << 20)})


@attack
def long_constant_range() -> Attack:
    nodes = [node("Range", ["a", "b", "d"], ["r"], "range"), node("ReduceMax", ["r"], ["y"], "last", keepdims=0)]
    return model(nodes, constants={"a": np.int64(0), "b": np.int64(1 << 40), "d": np.int64(1)}, kind=I64)


@attack
def tiles_of_a_constant() -> Attack:
    nodes = [node("Tile", ["c", "n"], ["t"], "tile"), node("ReduceMax", ["t"], ["y"], "last", keepdims=0)]
    return model(nodes, constants={"c": np.ones((1, 1), np.float32), "n": numbers(1 << 20, 1 << 20)})


@attack
def strings_double_when_folded() -> Attack:
    nodes = [node("StringConcat", [f"s{i}", f"s{i}"], [f"s{i + 1}"], f"double_{i}") for i in range(40)]
    nodes.append(node("Equal", ["s40", "x"], ["y"], "last"))
    return model(nodes, {"x": np.array(["a"], object)}, {"s0": np.array(["a"], object)}, kind=BOOL)


@attack
def nested_functions() -> Attack:
    functions = []
    for level in range(40):
        called = [
            node(f"f{level + 1}", ["a"], ["b"], domain="local"),
            node(f"f{level + 1}", ["b"], ["c"], domain="local"),
        ]
        body = called if level < 39 else [node("Neg", ["a"], ["c"])]
        imports = [helper.make_opsetid("", CANONICAL_VERSIONS[""]), helper.make_opsetid("local", 1)]
        functions.append(helper.make_function("local", f"f{level}", ["a"], ["c"], body, imports))
    call = node("f0", ["x"], ["y"], "call", domain="local")
    return model([call], {"x": np.ones(1, np.float32)}, functions=functions)


@attack
def nested_functions_with_metadata() -> Attack:
    functions = []
    for level in range(18):
        called = [
            node(f"f{level + 1}", ["a"], ["b"], domain="local"),
            node(f"f{level + 1}", ["b"], ["c"], domain="local"),
        ]
        body = called if level < 17 else [node("Neg", ["a"], ["c"])]
        imports = [helper.make_opsetid("", CANONICAL_VERSIONS[""]), helper.make_opsetid("local", 1)]
        functions.append(helper.make_function("local", f"f{level}", ["a"], ["c"], body, imports))
    call = node("f0", ["x"], ["y"], "call", domain="local")
    call.metadata_props.add(key="owner", value="x" * 100)
    return model([call], {"x": np.ones(1, np.float32)}, functions=functions)


@attack
def sparse_constants() -> Attack:
    made, given = model([node("ReduceMax", ["w0"], ["y"], "last", keepdims=0)], {})
    proto = onnx.load_from_string(made)
    for i in range(8):
        values = numpy_helper.from_array(np.ones(1, np.float32), f"w{i}")
        proto.graph.sparse_initializer.append(
            helper.make_sparse_tensor(values, numpy_helper.from_array(numbers(0)), [1 << 14, 1 << 14])
        )
        if i:
            proto.graph.node.insert(0, node("Add", [f"w{i}", "w0"], [f"s{i}"]))
    return proto.SerializeToString(), given


# -- sizes by values of inputs -------------------------------------------------------------------------------


@attack
def expand() -> Attack:
    nodes = [node("Expand", ["x", "s"], ["y"], "big")]
    return model(nodes, {"x": np.ones(1, np.float32), "s": numbers(1 << 40)})


@attack
def expand_beyond_64_bits() -> Attack:
    nodes = [node("Expand", ["x", "s"], ["y"], "big")]
    return model(nodes, {"x": np.ones(1, np.float32), "s": numbers(1 << 32, 1 << 32, 1 << 32)})


@attack
def tile() -> Attack:
    return model([node("Tile", ["x", "n"], ["y"], "big")], {"x": np.ones(1, np.float32), "n": numbers(1 << 40)})


@attack
def range_of_inputs() -> Attack:
    inputs = {"a": np.array(0, np.int64), "b": np.array(1 << 62, np.int64), "d": np.array(1, np.int64)}
    return model([node("Range", ["a", "b", "d"], ["y"], "big")], inputs, kind=I64)


@attack
def constant_of_shape() -> Attack:
    return model([node("ConstantOfShape", ["s"], ["y"], "big")], {"s": numbers(1 << 62)})


@attack
def resize() -> Attack:
    x = np.ones((1, 1, 8, 8), np.float32)
    return model([node("Resize", ["x", "", "s"], ["y"], "big")], {"x": x, "s": np.array([1, 1, 1e5, 1e5], np.float32)})


@attack
def resize_beyond_64_bits() -> Attack:
    x = np.ones((1, 1, 8, 8), np.float32)
    return model(
        [node("Resize", ["x", "", "", "n"], ["y"], "big", mode="cubic")], {"x": x, "n": numbers(1, 1, 1 << 62, 1 << 62)}
    )


@attack
def pad() -> Attack:
    return model([node("Pad", ["x", "p"], ["y"], "big")], {"x": np.ones(1, np.float32), "p": numbers(1 << 40, 1 << 40)})


@attack
def one_hot() -> Attack:
    inputs = {"i": numbers(0, 1), "d": np.array(1 << 40, np.int64), "v": np.array([0, 1], np.float32)}
    return model([node("OneHot", ["i", "d", "v"], ["y"], "big")], inputs)


@attack
def gather() -> Attack:
    nodes = [node("Expand", ["zero", "n"], ["i"], "indices"), node("Gather", ["x", "i"], ["y"], "big")]
    inputs = {"x": np.ones((1, 1 << 20), np.float32), "n": numbers(1 << 20)}
    return model(nodes, inputs, {"zero": numbers(0)})


@attack
def broadcast() -> Attack:
    inputs = {"a": np.ones((1 << 20, 1), np.float32), "b": np.ones((1, 1 << 20), np.float32)}
    return model([node("Add", ["a", "b"], ["y"], "big")], inputs)


@attack
def product_of_vectors() -> Attack:
    inputs = {"a": np.ones((1 << 20, 1), np.float32), "b": np.ones((1, 1 << 20), np.float32)}
    return model([node("MatMul", ["a", "b"], ["y"], "big")], inputs)


@attack
def doubling_in_the_inference() -> Attack:
    nodes = [node("Concat", [f"c{i}", f"c{i}"], [f"c{i + 1}"], f"big_{i}", axis=0) for i in range(40)]
    nodes.append(node("NonZero", ["c40"], ["y"], "last"))
    return model(nodes, {"c0": np.ones(16, np.float32)}, kind=I64)


@attack
def many_values_at_once() -> Attack:
    nodes = [node("Expand", ["x", "s"], [f"e{i}"], f"big_{i}") for i in range(100)]
    nodes.append(node("Concat", [f"e{i}" for i in range(100)], ["y"], "big_last", axis=0))
    return model(nodes, {"x": np.ones(1, np.float32), "s": numbers(15 << 20)})


@attack
def convolution_with_large_pads() -> Attack:
    nodes = [node("Conv", ["x", "w"], ["y"], "big", pads=[1 << 20] * 4)]
    return model(nodes, {"x": np.ones((1, 1, 3, 3), np.float32)}, {"w": np.ones((1, 1, 3, 3), np.float32)})


@attack
def transposed_convolution_with_large_strides() -> Attack:
    nodes = [node("ConvTranspose", ["x", "w"], ["y"], "big", strides=[1 << 24, 1 << 24])]
    return model(nodes, {"x": np.ones((1, 1, 3, 3), np.float32)}, {"w": np.ones((1, 1, 3, 3), np.float32)})


@attack
def center_crop_pad() -> Attack:
    return model(
        [node("CenterCropPad", ["x", "s"], ["y"], "big")], {"x": np.ones(1, np.float32), "s": numbers(1 << 40)}
    )


@attack
def affine_grid() -> Attack:
    inputs = {"t": np.ones((1, 2, 3), np.float32), "s": numbers(1, 1, 1 << 20, 1 << 20)}
    return model([node("AffineGrid", ["t", "s"], ["y"], "big")], inputs)


@attack
def window() -> Attack:
    return model([node("HannWindow", ["n"], ["y"], "big")], {"n": np.array(1 << 40, np.int64)})


@attack
def random_numbers() -> Attack:
    return model([node("RandomUniform", [], ["y"], "big", shape=[1 << 20, 1 << 20], seed=1.0)])


@attack
def roi_align() -> Attack:
    inputs = {"x": np.ones((1, 1, 8, 8), np.float32), "r": np.ones((1, 4), np.float32), "b": numbers(0)}
    nodes = [node("RoiAlign", ["x", "r", "b"], ["y"], "big", output_height=1 << 20, output_width=1 << 20)]
    return model(nodes, inputs)


@attack
def max_unpool() -> Attack:
    inputs = {"x": np.ones((1, 1, 2, 2), np.float32), "i": numbers(0, 1, 2, 3).reshape(1, 1, 2, 2)}
    inputs["s"] = numbers(1, 1, 1 << 20, 1 << 20)
    return model([node("MaxUnpool", ["x", "i", "s"], ["y"], "big", kernel_shape=[2, 2])], inputs)


@attack
def declared_shape_is_static() -> Attack:
    nodes = [node("Expand", ["x", "s"], ["y"], "big")]
    size = 1 << 40
    return model(nodes, {"x": np.ones(1, np.float32)}, {"s": numbers(size)}, declared=[size], dynamic=False)


@attack
def declared_shape_is_a_lie() -> Attack:
    nodes = [node("Expand", ["x", "s"], ["y"], "big")]
    return model(nodes, {"x": np.ones(1, np.float32), "s": numbers(1 << 40)}, declared=[1])


@attack
def static_broadcast() -> Attack:
    nodes = [node("Reshape", ["x", "s"], ["t"], "reshape"), node("Add", ["x", "t"], ["y"], "big")]
    return model(nodes, {"x": np.ones(1 << 20, np.float32)}, {"s": numbers(-1, 1)}, dynamic=False)


# -- text and sequences --------------------------------------------------------------------------------------


@attack
def strings_double() -> Attack:
    nodes = [node("StringConcat", [f"s{i}", f"s{i}"], [f"s{i + 1}"], f"big_{i}") for i in range(50)]
    nodes.append(node("Equal", ["s50", "s0"], ["y"], "last"))
    return model(nodes, {"s0": np.array(["a"], object)}, kind=BOOL)


@attack
def split_of_strings() -> Attack:
    nodes = [node("Tile", ["a", "n"], ["t"], "rows"), node("Concat", ["t", "b"], ["x"], "strings", axis=0),
             node("StringSplit", ["x"], ["y", "count"], "big", delimiter=",")]  # fmt: skip
    inputs = {"a": np.array(["a"], object), "n": numbers(1 << 20), "b": np.array([",".join("a" * (1 << 16))], object)}
    return model(nodes, inputs, kind=STRING)


@attack
def skips_of_ngrams() -> Attack:
    attributes = {"mode": "TF", "min_gram_length": 2, "max_gram_length": 2, "max_skip_count": 1 << 33}
    nodes = [node("TfIdfVectorizer", ["x"], ["y"], "skips", ngram_counts=[0, 0], ngram_indexes=[0],
                  pool_int64s=[1, 2], **attributes)]  # fmt: skip
    return model(nodes, {"x": numbers(1, 2, 1, 2)})


@attack
def columns_of_ngrams() -> Attack:
    attributes = {"mode": "TF", "min_gram_length": 1, "max_gram_length": 1, "max_skip_count": 0}
    nodes = [node("TfIdfVectorizer", ["x"], ["y"], "big", ngram_counts=[0], ngram_indexes=[1 << 40],
                  pool_int64s=[1], **attributes)]  # fmt: skip
    return model(nodes, {"x": numbers(1, 2, 1, 2)})


@attack
def sequence_doubles() -> Attack:
    nodes = [node("SequenceConstruct", ["x0", "x0"], ["q0"], "pair_0")]
    for i in range(40):
        nodes.append(node("ConcatFromSequence", [f"q{i}"], [f"x{i + 1}"], f"big_{i}", axis=0))
        nodes.append(node("SequenceConstruct", [f"x{i + 1}", f"x{i + 1}"], [f"q{i + 1}"], f"pair_{i + 1}"))
    nodes.append(node("NonZero", ["x40"], ["y"], "last"))
    return model(nodes, {"x0": np.ones(16, np.float32)}, kind=I64)


@attack
def split_to_many_parts() -> Attack:
    nodes = [node("Expand", ["x", "s"], ["e"], "expand"), node("SplitToSequence", ["e"], ["q"], "big"),
             node("SequenceLength", ["q"], ["y"], "last")]  # fmt: skip
    return model(nodes, {"x": np.ones(1, np.int8), "s": numbers(1 << 27)}, kind=I64)


# -- loops ---------------------------------------------------------------------------------------------------


def loop(body_nodes: list[onnx.NodeProto], scans: int, trips: int, **changes: Any) -> Attack:
    """A Loop of `trips` iterations whose body carries `v`, of any length, and stacks `scans` values."""
    value_info = helper.make_tensor_value_info
    body_inputs = [value_info("i", I64, []), value_info("go", BOOL, []), value_info("v", F32, ["n"])]
    body_outputs = [value_info("go_on", BOOL, []), value_info("w", F32, ["m"])]
    body_outputs += [value_info(f"z{k}", F32, ["k"]) for k in range(scans)]
    body = helper.make_graph([node("Identity", ["go"], ["go_on"]), *body_nodes], "body", body_inputs, body_outputs)
    outputs = ["last", *(f"s{k}" for k in range(scans))]
    nodes = [node("Loop", ["trips", "go", "x"], outputs, "big", body=body)]
    constants = {"trips": np.array(trips, np.int64), "go": np.array(True)}
    return model(nodes, {"x": np.ones(1 << 18, np.float32)}, constants, output=outputs[-1], **changes)


@attack
def loop_that_doubles() -> Attack:
    return loop([node("Concat", ["v", "v"], ["w"], "double", axis=0)], 0, 60)


@attack
def loop_that_stacks() -> Attack:
    return loop([node("Identity", ["v"], ["w"]), node("Neg", ["v"], ["z0"], "value")], 1, 1 << 60)


@attack
def loop_that_stacks_one_value() -> Attack:
    return loop([node("Identity", ["v"], ["w"]), node("Identity", ["v"], ["z0"], "value")], 1, 1 << 60)


@attack
def endless_loop() -> Attack:
    return loop([node("Neg", ["v"], ["w"], "value")], 0, 1 << 60)
