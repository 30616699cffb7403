"""MatMulNBits and GatherBlockQuantized: onnxruntime's results for packed weights, by ONNX's operators.

If one fails, language models whose weights onnxruntime's tools compressed give other answers, or are not read.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from engine import Core
from engine.errors import ModelError, UnsupportedError
from engine.ir import Constant, Model
from engine.onnx import model_to_proto, read_model
from engine.onnx.annotations import ACCURACY_LEVEL
from engine.onnx.contrib import DOMAIN
from engine.ops.evaluator import ModelEvaluator
from engine.ops.packed_columns import PackedColumns

Array = NDArray[Any]


def pack(elements: Array, bits: int) -> Array:
    """Elements along the last axis in bytes, the first in the low bits; the last byte is filled with zeros."""
    count = 8 // bits
    padding = [(0, 0)] * (elements.ndim - 1) + [(0, -elements.shape[-1] % count)]
    padded = np.pad(elements, padding).astype(np.uint8).reshape(*elements.shape[:-1], -1, count)
    shifted = padded << (np.arange(count) * bits).astype(np.uint8)
    return np.bitwise_or.reduce(shifted, axis=-1).astype(np.uint8)


class Product:
    """A MatMulNBits with random operands; a test may change any of them."""

    def __init__(
        self,
        rows: int = 40,
        columns: int = 5,
        bits: int = 4,
        block: int = 16,
        zero: str = "",
        order: str = "",
        bias: bool = False,
        dtype: Any = np.float32,
        seed: int = 0,
    ) -> None:
        random = np.random.default_rng(seed)
        blocks = -(-rows // block)
        self.attributes: dict[str, Any] = {"K": rows, "N": columns, "bits": bits, "block_size": block}
        self.codes = random.integers(0, 1 << bits, (columns, blocks * block))
        self.x = random.normal(size=(2, 3, rows)).astype(dtype)
        self.scales = random.uniform(-0.1, 0.1, (columns, blocks)).astype(dtype)
        zero_points = random.integers(0, 1 << bits, (columns, blocks))
        self.zero_points: Array | None = {
            "": None,
            "codes": pack(zero_points, bits),
            "middle": pack(np.full((columns, blocks), 1 << (bits - 1)), bits),
            "flat": pack(zero_points, bits).reshape(-1),
            "whole": zero_points.astype(dtype),
            "real": random.uniform(0, 1 << bits, (columns, blocks)).astype(dtype),
        }[zero]
        usual = np.arange(rows) // block
        self.groups: Array | None = {
            "": None, "usual": usual, "sorted": random.permutation(usual), "any": random.integers(0, blocks, rows)
        }[order]  # fmt: skip
        self.bias = random.normal(size=columns).astype(dtype) if bias else None

    def proto(self) -> onnx.ModelProto:
        packed = pack(
            self.codes.reshape(self.attributes["N"], -1, self.attributes["block_size"]), self.attributes["bits"]
        )
        groups = None if self.groups is None else self.groups.astype(np.int32)
        constants = [packed, self.scales, self.zero_points, groups, self.bias]
        return model_of("MatMulNBits", {"x": self.x}, [None, *constants], self.attributes)


def model_of(op_type: str, feed: dict[str, Array], arrays: list[Array | None], attributes: Any) -> onnx.ModelProto:
    """A model of one node; its inputs are the arrays of `feed`, in place of the first Nones, and constants."""
    left, names = list(feed), []
    constants: list[onnx.TensorProto] = []
    for index, array in enumerate(arrays):
        if array is not None:
            constants.append(numpy_helper.from_array(array, f"c{index}"))
        names.append(f"c{index}" if array is not None else left.pop(0) if left else "")
    inputs = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape) for n, a in feed.items()
    ]
    node = helper.make_node(op_type, names, ["y"], "node", domain=DOMAIN, **attributes)
    graph = helper.make_graph([node], "packed", inputs, [onnx.ValueInfoProto(name="y")], constants)
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid(DOMAIN, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def onnxruntime_answer(proto: onnx.ModelProto, feed: dict[str, Array], *, optimized: bool = False) -> Array:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    if not optimized:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return np.asarray(session.run(None, feed)[0])


def reference_answer(model: Model, feed: dict[str, Array]) -> Array:
    return np.asarray(ModelEvaluator(model).run([feed[p.friendly_name] for p in model.parameters])[0])


def check(product: Product, tolerance: float = 2e-6) -> Model:
    proto, feed = product.proto(), {"x": product.x}
    expected, model = onnxruntime_answer(proto, feed), read_model(proto)
    got = reference_answer(model, feed)
    assert (got.dtype, got.shape) == (expected.dtype, expected.shape)
    close(got, expected, tolerance)
    return model


def close(got: Array, expected: Array, tolerance: float) -> None:
    got, expected = got.astype(np.float64), expected.astype(np.float64)
    np.testing.assert_allclose(got, expected, rtol=0, atol=tolerance * max(1.0, np.abs(expected).max()))


PRODUCTS = st.builds(
    Product,
    rows=st.integers(1, 100),
    columns=st.integers(1, 9),
    bits=st.sampled_from([2, 4, 8]),
    block=st.sampled_from([16, 32, 64]),
    zero=st.sampled_from(["", "codes", "middle", "flat"]),
    bias=st.booleans(),
    seed=st.integers(0, 99),
)


@settings(max_examples=120, deadline=None)
@given(PRODUCTS)
def test_products(product: Product) -> None:
    check(product)


@settings(max_examples=60, deadline=None)
@given(
    st.builds(
        Product,
        rows=st.integers(1, 100),
        bits=st.sampled_from([2, 4]),
        zero=st.sampled_from(["whole", "real"]),
        dtype=st.sampled_from([np.float32, np.float16]),
        seed=st.integers(0, 99),
    )
)
def test_products_with_zero_points_that_are_real_numbers(product: Product) -> None:
    check(product, 2e-6 if product.x.dtype == np.float32 else 5e-3)


@settings(max_examples=60, deadline=None)
@given(
    st.builds(
        Product,
        rows=st.integers(1, 100),
        order=st.sampled_from(["usual", "sorted", "any"]),
        zero=st.sampled_from(["", "real"]),
        seed=st.integers(0, 99),
    )
)
def test_products_whose_rows_have_another_order(product: Product) -> None:
    check(product)


@pytest.mark.parametrize("order", ["sorted", "any"])
@pytest.mark.parametrize("bits", [2, 4, 8])
def test_zero_points_of_rows_in_another_order(bits: int, order: str) -> None:
    """onnxruntime does not use these zero points, or refuses the node; this is the documented formula."""
    product = Product(48, bits=bits, zero="codes", order=order)
    assert product.zero_points is not None
    assert product.groups is not None
    count = 8 // bits
    zeros = np.stack([product.zero_points >> (bits * i) & ((1 << bits) - 1) for i in range(count)], -1)
    zeros = zeros.reshape(5, -1)[:, product.groups]
    matrix = (product.codes[:, :48] - zeros.astype(np.float64)) * product.scales[:, product.groups]
    got = reference_answer(read_model(product.proto()), {"x": product.x})
    close(got, product.x.astype(np.float64) @ matrix.T, 2e-6)


@pytest.mark.parametrize("device", ["TEMPLATE", "CPU"])
@pytest.mark.parametrize("dtype", [np.float32, np.float16], ids=["f32", "f16"])
@pytest.mark.parametrize("zero", ["", "codes", "real"])
def test_products_on_devices(zero: str, dtype: Any, device: str) -> None:
    product = Product(zero=zero, dtype=dtype, bias=True)
    (got,) = Core().compile_model(product.proto(), device)({"x": product.x}).values()
    close(got, onnxruntime_answer(product.proto(), {"x": product.x}), 2e-6 if dtype == np.float32 else 5e-3)


@pytest.mark.parametrize(("zero", "name"), [("", "i"), ("middle", "i"), ("codes", "u"), ("whole", "u"), ("real", "i")])
@pytest.mark.parametrize("bits", [2, 4, 8])
def test_the_weights_stay_packed(bits: int, zero: str, name: str) -> None:
    model = read_model(Product(bits=bits, zero=zero).proto())
    (node,) = (node for node in model.ordered_nodes() if node.op_type == "DequantizeLinear")
    codes = node.input_value(0).node
    assert isinstance(codes, Constant)
    assert codes.element_type.name == f"{name}{bits}"
    assert codes.shape == (40, 5)
    assert not codes.is_loaded, "weights are unpacked when a device needs them"


@settings(max_examples=20, deadline=None)
@given(PRODUCTS)
def test_an_exported_product_is_one_that_any_runtime_of_its_opset_runs(product: Product) -> None:
    feed = {"x": product.x}
    model = check(product)
    if product.attributes["bits"] == 2:
        return  # of opset 25, which onnxruntime does not run yet
    close(onnxruntime_answer(model_to_proto(model), feed), reference_answer(model, feed), 2e-6)


def test_the_accuracy_level_is_kept_and_exported() -> None:
    product = Product()
    product.attributes["accuracy_level"] = 4
    model = read_model(product.proto())
    for each in (model, read_model(model_to_proto(model))):
        (node,) = (node for node in each.ordered_nodes() if node.op_type == "MatMul")
        assert node.rt_info[ACCURACY_LEVEL] == 4


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("bits", 3, "attribute `bits` is 3; expected 2, 4 or 8"),
        ("block_size", 24, "attribute `block_size` is 24; expected a power of 2 of at least 16"),
        ("block_size", 8, "attribute `block_size` is 8; expected a power of 2"),
        ("block_size", -16, "attribute `block_size` is -16"),
        ("block_size", 32, "input 1 (B, `c1`) has shape [5,3,8]; expected [5, 2, 16]"),
        ("K", 0, "attribute `K` is 0; expected 1 or more"),
        ("K", 49, "input 1 (B, `c1`) has shape [5,3,8]; expected [5, 4, 8]"),
        ("N", 6, "expected [6, 3, 8]"),
        ("accuracy_level", 5, "attribute `accuracy_level` is 5; expected 0..4"),
        ("weight_prepacked", 1, "attribute `weight_prepacked` is 1: the weights have a layout for one kind of GPU"),
    ],
)
def test_attributes_that_do_not_fit_are_refused(name: str, value: int, words: str) -> None:
    proto = Product().proto()
    node = proto.graph.node[0]
    kept = [attribute for attribute in node.attribute if attribute.name != name]
    del node.attribute[:]
    node.attribute.extend([*kept, helper.make_attribute(name, value)])
    with pytest.raises((ModelError, UnsupportedError)) as found:
        read_model(proto)
    assert "MatMulNBits `node`" in str(found.value)
    assert words in str(found.value)


def change(**changes: Any) -> Product:
    product = Product()
    for name, value in changes.items():
        setattr(product, name, value)
    return product


@pytest.mark.parametrize(
    ("product", "words"),
    [
        (change(scales=np.ones((5, 2), np.float32)), "input 2 (scales, `c2`) has shape [5,2]; expected [5, 3] or [15]"),
        (change(scales=np.ones((5, 3), np.float16)), "input 2 (scales, `c2`) is f16; expected f32"),
        (change(zero_points=np.ones((5, 3), np.uint8)), "input 3 (zero_points, `c3`) has shape [5,3]; expected [5, 2]"),
        (change(zero_points=np.ones((5, 2), np.float32)), "has shape [5,2]; expected [5, 3] or [15]"),
        (change(zero_points=np.ones((5, 2), np.int8)), "input 3 (zero_points, `c3`) is i8; expected f32 or u8"),
        (change(groups=np.full(40, 3)), "input 4 (g_idx, `c4`) has 3 at index 0; expected 0..2"),
        (change(groups=np.arange(40) // 16 - 1), "input 4 (g_idx, `c4`) has -1 at index 0; expected 0..2"),
        (change(groups=np.zeros(39)), "input 4 (g_idx, `c4`) has shape [39]; expected [40]"),
        (change(bias=np.ones(4, np.float32)), "input 5 (bias, `c5`) has shape [4]; expected [5]"),
        (change(bias=np.ones(5, np.float16)), "input 5 (bias, `c5`) is f16; expected f32"),
        (change(x=np.ones((2, 41), np.float32)), "the last dimension of A (41)"),
        (change(x=np.ones((2, 40), np.int32)), "input 0 (A, `x`) is i32; expected bf16 or f16 or f32"),
    ],
    ids=lambda value: "" if isinstance(value, Product) else value[:60],
)
def test_operands_that_do_not_fit_are_refused(product: Product, words: str) -> None:
    with pytest.raises(ModelError) as found:
        read_model(product.proto())
    assert "MatMulNBits `node`" in str(found.value)
    assert words in str(found.value)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("zero", ["", "codes"])
@pytest.mark.parametrize("count", [1, 3])
def test_weights_are_packed_as_they_are_stored(
    monkeypatch: pytest.MonkeyPatch, bits: int, zero: str, count: int
) -> None:
    """Unpacking them before took most of the time in which a language model is loaded. Three products are joined."""
    products = [Product(bits=bits, zero=zero, rows=520, columns=96 + i, block=32) for i in range(count)]
    nodes, constants, outputs = [], [], []
    for index, product in enumerate(products):
        graph = product.proto().graph
        for tensor in graph.initializer:
            tensor.name += f"_{index}"
        node = graph.node[0]
        node.input[1:] = [f"{name}_{index}" if name else "" for name in node.input[1:]]
        node.output[0], node.name = f"p{index}", f"node{index}"
        nodes += [node, helper.make_node("Relu", [f"p{index}"], [f"y{index}"])]
        constants += graph.initializer
        outputs.append(helper.make_tensor_value_info(f"y{index}", TensorProto.FLOAT, None))
    x = products[0].x
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, x.shape)]
    graph = helper.make_graph(nodes, "products", inputs, outputs, constants)
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid(DOMAIN, 1)]
    proto = helper.make_model(graph, opset_imports=opsets, ir_version=10)

    def unpacked(columns: PackedColumns, data: Array) -> Array:
        raise AssertionError("unpacked")

    monkeypatch.setattr(PackedColumns, "__call__", unpacked)
    network = Core().compile_model(proto, "CPU")
    results = network({"x": x})
    for index, each in enumerate(products):
        expected = np.maximum(onnxruntime_answer(each.proto(), {"x": x}), 0)
        np.testing.assert_allclose(results[f"y{index}"], expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("value", [0.0, np.nan, np.inf, -np.inf])
def test_any_scale_is_computed(value: float) -> None:
    product = Product()
    product.scales[2, 1] = value
    feed = {"x": product.x}
    expected = onnxruntime_answer(product.proto(), feed)
    for device in ("TEMPLATE", "CPU"):
        (got,) = Core().compile_model(product.proto(), device)(feed).values()
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)


def test_a_product_with_computed_weights_stays_a_node() -> None:
    proto = Product().proto()
    moved = next(tensor for tensor in proto.graph.initializer if tensor.name == "c1")
    proto.graph.input.append(helper.make_tensor_value_info("c1", moved.data_type, list(moved.dims)))
    proto.graph.initializer.remove(moved)
    assert "MatMulNBits" in {node.op_type for node in read_model(proto).ordered_nodes()}


# -- GatherBlockQuantized ---------------------------------------------------------------------------------


STORED: dict[str, Any] = {"u4": ml_dtypes.uint4, "i4": ml_dtypes.int4}


class Table:
    """A GatherBlockQuantized with random operands."""

    def __init__(
        self,
        shape: tuple[int, ...] = (6, 40),
        kind: str = "u8",
        bits: int = 4,
        block: int = 16,
        axes: tuple[int, int] = (0, 1),
        zero: bool = True,
        dtype: Any = np.float32,
        seed: int = 0,
    ) -> None:
        random = np.random.default_rng(seed)
        count = 8 // bits if kind == "u8" else 1
        shape = (*shape[:-1], -(-shape[-1] // count) * count)
        low, high = (-8, 8) if kind == "i4" else (0, 1 << bits)
        blocked = [-(-n // block) if index == axes[1] % len(shape) else n for index, n in enumerate(shape)]

        def stored(elements: Array) -> Array:
            return pack(elements, bits) if kind == "u8" else elements.astype(STORED[kind])

        self.data = stored(random.integers(low, high, shape))
        self.scales = random.uniform(-0.1, 0.1, blocked).astype(dtype)
        self.zero_points = stored(random.integers(low, high, blocked)) if zero else None
        length = shape[axes[0]]
        self.indices = random.integers(-length - 2, length + 2, (2, 3))
        self.attributes = {"bits": bits, "block_size": block, "gather_axis": axes[0], "quantize_axis": axes[1]}

    def proto(self) -> onnx.ModelProto:
        arrays = [self.data, None, self.scales, self.zero_points]
        return model_of("GatherBlockQuantized", {"i": self.indices}, arrays, self.attributes)


LENGTHS = st.integers(1, 50)
TABLES = st.one_of(
    st.builds(
        Table,
        shape=st.tuples(LENGTHS, LENGTHS),
        bits=st.sampled_from([2, 4, 8]),
        block=st.sampled_from([16, 32]),
        axes=st.sampled_from([(0, 1), (0, -1)]),
        zero=st.booleans(),
        dtype=st.sampled_from([np.float32, np.float16]),
        seed=st.integers(0, 99),
    ),
    st.builds(
        Table,
        shape=st.tuples(st.integers(1, 4), LENGTHS, LENGTHS),
        kind=st.sampled_from(["u4", "i4"]),
        axes=st.tuples(st.integers(-3, 2), st.integers(-3, 2)),
        zero=st.booleans(),
        seed=st.integers(0, 99),
    ),
)


@settings(max_examples=120, deadline=None)
@given(TABLES)
def test_look_ups(table: Table) -> None:
    feed = {"i": table.indices}
    expected = onnxruntime_answer(table.proto(), feed)
    got = reference_answer(read_model(table.proto()), feed)
    assert got.dtype == expected.dtype
    np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("device", ["TEMPLATE", "CPU"])
def test_look_ups_on_devices(device: str) -> None:
    table = Table()
    (got,) = Core().compile_model(table.proto(), device)({"i": table.indices}).values()
    np.testing.assert_array_equal(got, onnxruntime_answer(table.proto(), {"i": table.indices}))


def test_constant_indices_in_range_need_no_check() -> None:
    table = Table()
    proto = model_of(
        "GatherBlockQuantized", {}, [table.data, np.array([1, -6]), table.scales, table.zero_points], table.attributes
    )
    counts = Counter(node.op_type for node in read_model(proto).ordered_nodes())
    assert {name: n for name, n in counts.items() if name not in ("Constant", "Result")} == {
        "DequantizeLinear": 1,
        "Gather": 1,
    }


def altered(**changes: Any) -> Table:
    table = Table()
    for name, value in changes.items():
        if name in table.attributes:
            table.attributes[name] = value
        else:
            setattr(table, name, value)
    return table


@pytest.mark.parametrize(
    ("table", "words"),
    [
        (altered(bits=5), "attribute `bits` is 5; expected 2, 4 or 8"),
        (altered(block_size=20), "attribute `block_size` is 20"),
        (altered(block_size=0), "attribute `block_size` is 0"),
        (altered(gather_axis=1), "attributes `gather_axis` and `quantize_axis` are 1 and 1; expected 0 and the last"),
        (altered(quantize_axis=0), "are 0 and 0; expected 0 and the last axis for data of u8"),
        (altered(quantize_axis=2), "attribute `quantize_axis` is 2; expected -2..1, as the rank is 2"),
        (altered(scales=np.ones((6, 2), np.float32)), "input 2 (scales, `c2`) has shape [6,2]; expected [6, 3]"),
        (altered(scales=np.ones((1, 3), np.float32)), "input 2 (scales, `c2`) has shape [1,3]; expected [6, 3]"),
        (altered(zero_points=np.ones((6, 1), np.uint8)), "input 3 (zero_points, `c3`) has shape [6,1]; expected"),
        (altered(zero_points=np.ones((6, 2), np.int8)), "input 3 (zero_points, `c3`) is i8; expected u8"),
        (altered(data=np.ones((6, 20), np.int8)), "input 0 (data, `c0`) is i8; expected"),
        (altered(data=np.ones((0, 20), np.uint8), scales=np.ones((0, 3), np.float32), zero_points=None),
         "input 0 (data, `c0`) has shape [0, 40]; expected at least one slice along axis 0"),
        (altered(indices=np.ones(2, np.float32)), "input 1 (indices, `i`) is f32; expected i32 or i64"),
    ],
    ids=lambda value: "" if isinstance(value, Table) else value[:60],
)  # fmt: skip
def test_tables_that_do_not_fit_are_refused(table: Table, words: str) -> None:
    with pytest.raises(ModelError) as found:
        read_model(table.proto())
    assert "GatherBlockQuantized `node`" in str(found.value)
    assert words in str(found.value)


# -- constants in another shape or order ------------------------------------------------------------------


def behind_views(proto: onnx.ModelProto) -> onnx.ModelProto:
    """The model with each constant stored as a vector, or turned, and brought into its form by nodes."""
    graph, nodes = proto.graph, []
    for index, stored in enumerate(list(graph.initializer)):
        name, data = stored.name, numpy_helper.to_array(stored)
        graph.initializer.remove(stored)
        if index % 2:
            graph.initializer.append(numpy_helper.from_array(np.ascontiguousarray(data.T), f"{name}_turned"))
            nodes.append(helper.make_node("Transpose", [f"{name}_turned"], [name]))
            continue
        graph.initializer.append(numpy_helper.from_array(data.reshape(1, -1), f"{name}_flat"))
        graph.initializer.append(numpy_helper.from_array(np.array([0]), f"{name}_axes"))
        shape = numpy_helper.from_array(np.array(data.shape))
        nodes.append(helper.make_node("Constant", [], [f"{name}_shape"], value=shape))
        nodes.append(helper.make_node("Squeeze", [f"{name}_flat", f"{name}_axes"], [f"{name}_row"]))
        nodes.append(helper.make_node("Reshape", [f"{name}_row", f"{name}_shape"], [f"{name}_reshaped"]))
        nodes.append(helper.make_node("Identity", [f"{name}_reshaped"], [name]))
    nodes += graph.node
    del graph.node[:]
    graph.node.extend(nodes)
    return proto


@pytest.mark.parametrize("device", ["TEMPLATE", "CPU"])
@pytest.mark.parametrize("operands", [Table(), Product(zero="codes", order="any")], ids=["look-ups", "product"])
def test_constants_that_nodes_bring_into_form(operands: Table | Product, device: str) -> None:
    """A table that a product has too comes through a Reshape, and is not computed."""
    feed = {"i": operands.indices} if isinstance(operands, Table) else {"x": operands.x}
    expected = Core().compile_model(operands.proto(), device)(feed)[0]
    network = Core().compile_model(behind_views(operands.proto()), device)
    np.testing.assert_array_equal(network(feed)[0], expected)


def test_constants_in_a_form_that_is_computed() -> None:
    table = Table().proto()
    proto = behind_views(table)
    proto.graph.input.append(helper.make_tensor_value_info("c0_given", TensorProto.INT64, [2]))
    next(node for node in proto.graph.node if node.op_type == "Reshape").input[1] = "c0_given"
    assert "GatherBlockQuantized" in {node.op_type for node in read_model(proto).ordered_nodes()}
