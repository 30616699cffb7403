"""What breaks if these fail: weights, attributes and types are read or written wrongly."""

import numpy as np
import onnx
import onnx.numpy_helper
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine import ir
from engine.errors import ModelReadError, ModelWriteError
from engine.ir import Dimension, ElementType, PartialShape, TensorType
from engine.ir.element_type import ALL
from engine.ops import protos

_TENSORS = [t for t in ALL if t is not ir.undefined]


def _sample(element_type: ElementType, shape: tuple[int, ...]) -> np.ndarray:
    count = int(np.prod(shape))
    if element_type is ir.string:
        flat = np.empty(count, dtype=object)
        flat[:] = [f"é{i}" for i in range(count)]
        return flat.reshape(shape)
    codes = np.random.default_rng(count).integers(1, 3 if element_type.bits != 2 else 2, size=count)
    return codes.astype(np.float32).astype(element_type.numpy).reshape(shape)


def _same(a: np.ndarray, b: np.ndarray) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and (a.size == 0 or bool((a == b).all()))


@pytest.mark.parametrize("element_type", _TENSORS, ids=str)
@pytest.mark.parametrize("shape", [(), (0,), (1,), (3, 5), (7,)])
def test_tensor_round_trip_agrees_with_onnx(element_type: ElementType, shape: tuple[int, ...]) -> None:
    array = _sample(element_type, shape)
    proto = protos.tensor_to_proto(array, "w")
    assert (proto.name, proto.data_type, tuple(proto.dims)) == ("w", element_type.onnx, shape)
    assert _same(protos.tensor_from_proto(proto), array)
    assert _same(onnx.numpy_helper.to_array(proto), array)
    theirs = onnx.numpy_helper.from_array(array, "w")
    assert _same(protos.tensor_from_proto(theirs), array)
    if element_type is not ir.string:
        assert theirs.raw_data == proto.raw_data


@given(st.binary(min_size=6, max_size=6), st.sampled_from([t for t in _TENSORS if t.is_packed]))
def test_every_packed_code_survives(data: bytes, element_type: ElementType) -> None:
    shape = (len(data) * 8 // element_type.bits,)
    array = protos.tensor_from_raw(data, element_type, shape)
    assert bytes(protos.tensor_to_raw(array)) == data


def test_raw_data_is_viewed_not_copied() -> None:
    data = np.arange(8, dtype=np.float32)
    view = protos.tensor_from_raw(memoryview(data.view(np.uint8)), ir.f32, (2, 4))
    assert np.shares_memory(view, data)


def test_typed_fields_are_read() -> None:
    proto = onnx.TensorProto(data_type=onnx.TensorProto.INT4, dims=[3], int32_data=[0x2F, 0x07])
    assert protos.tensor_from_proto(proto).astype(int).tolist() == [-1, 2, 7]
    half = onnx.TensorProto(data_type=onnx.TensorProto.FLOAT16, dims=[1], int32_data=[0x3C00])
    assert protos.tensor_from_proto(half).tolist() == [1.0]


@pytest.mark.parametrize(
    ("proto", "message"),
    [
        (onnx.TensorProto(name="w", data_type=1, dims=[2], raw_data=b"1234567"), "takes 8 bytes of raw data, got 7"),
        (onnx.TensorProto(name="w", data_type=1, dims=[-2], raw_data=b""), "negative length"),
        (onnx.TensorProto(name="w", data_type=1, dims=[2], float_data=[1.0]), "cannot be read as f32"),
        (onnx.TensorProto(name="w", data_type=8, dims=[2], string_data=[b"a"]), "takes 2 items, got 1"),
        (onnx.TensorProto(name="w", data_type=22, dims=[5], int32_data=[1] * 2), "takes 3 items of int32_data.* got 2"),
        (onnx.TensorProto(name="w", data_type=21, dims=[5], int32_data=[1] * 5), "each with 2 elements; got 5"),
        (onnx.TensorProto(name="w", data_type=26, dims=[5], int32_data=[1]), "takes 2 items .* with 4 elements; got 1"),
        (onnx.TensorProto(name="w", data_type=22, dims=[2], int32_data=[256]), "int32_data has 256; expected bytes"),
        (onnx.TensorProto(name="w", data_type=2, dims=[2], int32_data=[7, 256]), "has 256; u8 has 0 to 255"),
        (onnx.TensorProto(name="w", data_type=2, dims=[1], int32_data=[-1]), "has -1; u8 has 0 to 255"),
        (onnx.TensorProto(name="w", data_type=3, dims=[1], int32_data=[200]), "has 200; i8 has -128 to 127"),
        (onnx.TensorProto(name="w", data_type=4, dims=[1], int32_data=[1 << 16]), "has 65536; u16 has 0 to 65535"),
        (onnx.TensorProto(name="w", data_type=5, dims=[1], int32_data=[1 << 15]), "has 32768; i16 has -32768 to 32767"),
        (onnx.TensorProto(name="w", data_type=22, dims=[5], raw_data=b"12"), "takes 3 bytes of raw data, got 2"),
        (onnx.TensorProto(name="w", data_type=8, dims=[2], raw_data=b"ab"), "cannot have raw_data"),
        (onnx.TensorProto(name="w", data_type=1, dims=[2], data_location=1), "external data"),
    ],
)
def test_malformed_tensors_are_refused(proto: onnx.TensorProto, message: str) -> None:
    with pytest.raises(ModelReadError, match=message):
        protos.tensor_from_proto(proto)


def test_bytes_that_are_no_text_survive() -> None:
    proto = onnx.TensorProto(data_type=8, dims=[1], string_data=[b"\xff\x00a"])
    assert protos.tensor_to_proto(protos.tensor_from_proto(proto)).string_data == [b"\xff\x00a"]


_TYPES = [
    TensorType(ir.f32, PartialShape([1, "N", None, Dimension(2, 8, "M"), Dimension.at_least(1, "K")])),
    TensorType(ir.i4, PartialShape([])),
    TensorType(ir.string, PartialShape.dynamic()),
    TensorType(ir.undefined, PartialShape([3])),
    ir.SparseTensorType(ir.f64, PartialShape([3, "N"])),
    ir.SequenceType(TensorType(ir.f32, PartialShape([2]))),
    ir.SequenceType(None),
    ir.OptionalType(ir.SequenceType(TensorType(ir.bf16, PartialShape.dynamic()))),
    ir.OptionalType(None),
    ir.MapType(ir.string, TensorType(ir.i64, PartialShape([]))),
    ir.UNKNOWN,
]


@pytest.mark.parametrize("value_type", _TYPES, ids=str)
def test_type_round_trip(value_type: ir.ValueType) -> None:
    assert protos.type_from_proto(protos.type_to_proto(value_type)) == value_type


def test_anonymous_bounds_do_not_become_a_symbol() -> None:
    proto = protos.type_to_proto(TensorType(ir.f32, PartialShape([Dimension(1, 8)])))
    assert proto.tensor_type.shape.dim[0].WhichOneof("value") is None


_ATTRIBUTES = [
    (3, onnx.AttributeProto.INT),
    (0.25, onnx.AttributeProto.FLOAT),
    ("text", onnx.AttributeProto.STRING),
    (b"\xff\xfe", onnx.AttributeProto.STRING),
    ((1, -2), onnx.AttributeProto.INTS),
    ((0.5, float("inf")), onnx.AttributeProto.FLOATS),
    (("a", b"\xff"), onnx.AttributeProto.STRINGS),
    (_TYPES[5], onnx.AttributeProto.TYPE_PROTO),
    ((_TYPES[5], _TYPES[6]), onnx.AttributeProto.TYPE_PROTOS),
]


@pytest.mark.parametrize(("value", "kind"), _ATTRIBUTES, ids=str)
def test_attribute_round_trip(value: object, kind: int) -> None:
    for proto in (protos.attribute_to_proto("a", value), protos.attribute_to_proto("a", value, kind)):
        assert (proto.name, proto.type) == ("a", kind)
        assert protos.attribute_from_proto(proto) == value


def test_tensor_attributes() -> None:
    array = np.array([[1, 2]], dtype=np.int8)
    one = protos.attribute_from_proto(protos.attribute_to_proto("a", array))
    (many,) = protos.attribute_from_proto(protos.attribute_to_proto("a", (array,)))
    assert _same(one, array)
    assert _same(many, array)


def test_sparse_attribute_and_its_dense_form() -> None:
    for indices in ([1, 5], [[0, 1], [1, 2]]):
        sparse = protos.SparseTensor(np.array([7.0, 8.0], np.float32), np.array(indices), (2, 3))
        back = protos.attribute_from_proto(protos.attribute_to_proto("a", sparse))
        assert back.to_dense().tolist() == [[0, 7, 0], [0, 0, 8]]


@pytest.mark.parametrize("indices", [[1], [1, 6], [[0, 1], [1, 3]], [-1, 0]])
def test_sparse_indices_are_checked(indices: list[object]) -> None:
    sparse = protos.SparseTensor(np.array([7.0, 8.0], np.float32), np.array(indices), (2, 3))
    with pytest.raises(ModelReadError, match="sparse tensor"):
        protos.sparse_from_proto(protos.sparse_to_proto(sparse, "s"))


def test_schema_decides_the_kind_of_an_attribute() -> None:
    assert protos.attribute_to_proto("alpha", 1, onnx.AttributeProto.FLOAT).f == 1.0
    assert protos.attribute_to_proto("scales", (), onnx.AttributeProto.FLOATS).type == onnx.AttributeProto.FLOATS


@pytest.mark.parametrize(
    ("value", "kind"),
    [(object(), None), (("a", 1), None), ("a", onnx.AttributeProto.INT), (0.5, onnx.AttributeProto.INT),
     (3, onnx.AttributeProto.INTS), (3, onnx.AttributeProto.STRING), ("a", onnx.AttributeProto.TENSOR)],
)  # fmt: skip
def test_wrong_attribute_values_name_the_attribute(value: object, kind: int | None) -> None:
    with pytest.raises(ModelWriteError, match="attribute `axis`"):
        protos.attribute_to_proto("axis", value, kind)


def test_attributes_that_need_a_graph_reader_say_so() -> None:
    proto = onnx.AttributeProto(name="body", type=onnx.AttributeProto.GRAPH)
    with pytest.raises(ModelReadError, match="`body` of type GRAPH"):
        protos.attribute_from_proto(proto)
