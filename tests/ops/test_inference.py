"""What breaks if these fail: shapes and types that passes, devices and requests rely on are wrong."""

from collections.abc import Callable

import numpy as np
import pytest

from engine import ops
from engine.errors import ModelError, TypeInferenceError
from engine.ir import UNKNOWN, Constant, Dimension, Node, Parameter, PartialShape, boolean, f16, f32, f64, i32, i64, u8
from engine.ops import inference


def p(shape: object, element_type: object = f32) -> Parameter:
    return Parameter(element_type, shape)  # type: ignore[arg-type]


def t(node: Node, index: int = 0) -> str:
    return str(node.output(index).type)


# -- broadcasting -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        (["N", 4], ["N", 4], "f32[N,4]"),
        (["N", 4], [4], "f32[N,4]"),
        (["N", 1], [1, "M"], "f32[N,M]"),
        (["N"], [1], "f32[N]"),
        (["N"], [3], "f32[3]"),
        (["N"], ["M"], "f32[?]"),
        ([], ["N", 2], "f32[N,2]"),
        ([Dimension(2, 8)], [Dimension(1, 4)], "f32[2..8]"),
        ([Dimension(2, 8, "N")], ["M"], "f32[N:2..8]"),
        ([Dimension(1, 8)], [Dimension(1, 4)], "f32[1..8]"),
        ([Dimension(2, 8)], [Dimension(4, 9)], "f32[4..8]"),
        ([0], ["N"], "f32[0]"),
        (None, [3], "f32[...]"),
        ([5, 1, 3], ["N", 1], "f32[5,N,3]"),
    ],
)
def test_broadcast(a: object, b: object, expected: str) -> None:
    assert t(ops.Add(p(a), p(b))) == expected
    assert t(ops.Max(p(b), p(a))) == expected
    assert t(ops.Less(p(b), p(a))) == expected.replace("f32", "bool")


def test_broadcast_of_three_and_of_where() -> None:
    assert t(ops.Sum(p(["N", 1]), p([1, 4]), p([3, 1, 1]))) == "f32[3,N,4]"
    assert t(ops.Where(p(["N", 1], boolean), p([4], i64), p([], i64))) == "i64[N,4]"
    assert t(ops.Pow(p(["N"], f16), p([1], i32))) == "f16[N]"


@pytest.mark.parametrize(("a", "b"), [([2], [3]), ([2, 3], [2]), ([Dimension(2, 4)], [Dimension(5, 8)]), ([0], [2])])
def test_shapes_that_do_not_broadcast(a: object, b: object) -> None:
    with pytest.raises(TypeInferenceError, match=r"do not broadcast: dimension -1 is .* expected equal lengths or 1"):
        ops.Add(p(a), p(b))


# -- what the operators keep, and refuse -------------------------------------------------------------------


def test_shape_preserving_operators_share_the_type() -> None:
    x = p([Dimension(1, 8, "N"), None])
    for op_type in ("Relu", "Gelu", "Softmax", "Identity", "Clip"):
        assert ops.create(op_type, [x]).output(0).type is x.type
    assert ops.MeanVarianceNormalization(x, axes=[0]).output(0).type is x.type
    assert t(ops.GroupNormalization(p(["N", 4, "H"]), p([4]), p([4]), num_groups=2)) == "f32[N,4,H]"


def test_casts_and_predicates() -> None:
    x = p(["N", 2])
    assert t(ops.Cast(x, to=f16)) == "f16[N,2]"
    assert t(ops.CastLike(x, p([1], u8))) == "u8[N,2]"
    assert t(ops.IsNaN(x)) == "bool[N,2]"
    assert t(ops.Shape(x)) == "i64[2]"
    assert t(ops.Shape(x, start=-1)) == "i64[1]"
    with pytest.raises(TypeInferenceError, match="attribute to is 99; allowed: a value of TensorProto"):
        ops.Cast(x, to=99)


def test_bounds_and_symbols_survive_movement() -> None:
    x = p([Dimension(1, 8, "N"), "M", 3])
    assert t(ops.Transpose(x, perm=[2, 0, 1])) == "f32[3,N:1..8,M]"
    assert t(ops.Transpose(x)) == "f32[3,M,N:1..8]"
    assert t(ops.Concat(x, p([2, "M", 3]), axis=0)) == "f32[3..10,M,3]"
    assert t(ops.Concat(x, x, axis=-1)) == "f32[N:1..8,M,6]"
    assert t(ops.MatMul(x, p([3, "K"]))) == "f32[N:1..8,M,K]"
    assert t(ops.MatMul(p([3]), p([5, 3, "K"]))) == "f32[5,K]"
    assert t(ops.Reshape(x, Constant([0, 0, 3, 1]))) == "f32[N:1..8,M,3,1]"
    assert t(ops.Unsqueeze(x, Constant([0]))) == "f32[1,N:1..8,M,3]"


@pytest.mark.parametrize(
    ("attributes", "expected"),
    [
        ({"pads": [1, 1, 1, 1]}, "f32[N,5,H,8]"),
        ({}, "f32[N,5,?,6]"),
        ({"strides": [2, 2], "auto_pad": "SAME_UPPER"}, "f32[N,5,?,4]"),
        ({"auto_pad": "SAME_LOWER"}, "f32[N,5,H,8]"),
        ({"strides": [2, 2], "dilations": [1, 2]}, "f32[N,5,?,2]"),
    ],
)
def test_convolution(attributes: dict[str, object], expected: str) -> None:
    node = ops.Conv(p(["N", 2, "H", 8]), p([5, 2, 3, 3]), p([5]), **attributes)
    assert t(node).replace("0..", "?") == expected


@pytest.mark.parametrize(
    ("shape", "target", "expected"),
    [
        (["N", 2, 3], [-1, 6], "f32[N,6]"),
        (["N", 2, 3], [0, -1], "f32[N,6]"),
        (["N", "M", 6], [0, 0, 2, -1], "f32[N,M,2,3]"),
        (["N", "M", 6], [-1, 6], "f32[?,6]"),
        (["N", 4], [-1, 2], "f32[?,2]"),
        ([2, 0], [0, -1], "f32[2,0]"),
        ([2, 3], [], None),
        ([1, 1], [], "f32[]"),
        (["N"], [5], "f32[5]"),
        (None, [2, -1], "f32[2,?]"),
        (None, [0, 4], "f32[?,4]"),
    ],
)
def test_reshape(shape: object, target: list[int], expected: str | None) -> None:
    if expected is None:
        with pytest.raises(TypeInferenceError, match="do not fill"):
            ops.Reshape(p(shape), Constant(np.array(target, np.int64)))
    else:
        assert t(ops.Reshape(p(shape), Constant(np.array(target, np.int64)))).replace("0..", "?") == expected


def test_convolution_bounds() -> None:
    x = p([1, 1, Dimension(8, 16)])
    assert t(ops.Conv(x, p([1, 1, 3]), strides=[2])) == "f32[1,1,3..7]"
    assert t(ops.MaxPool(x, kernel_shape=[3], strides=[2], ceil_mode=1)) == "f32[1,1,4..8]"
    small = Parameter(f32, [1, 1, 7])  # a window larger than the image still takes one position, cut off
    assert t(ops.AveragePool(small, kernel_shape=[1280], strides=[1280], ceil_mode=1)) == "f32[1,1,1]"
    with pytest.raises(TypeInferenceError, match="a window of 16 does not fit spatial dimension 0 of length 7"):
        ops.AveragePool(small, kernel_shape=[16], strides=[4], ceil_mode=1)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: ops.Not(p([1])), r"input 0 \(X\) is f32\[1\]; expected one of bool"),
        (lambda: ops.Add(p([1]), p([1], i64)), r"input 1 \(B\) is i64\[1\] and must have the element type of input 0"),
        (lambda: ops.MatMul(p([2, 3]), p([4, 5])), r"last dimension of A \(3\) and the last but one of B \(4\)"),
        (lambda: ops.MatMul(p([]), p([4, 5])), "a scalar cannot be multiplied"),
        (lambda: ops.Transpose(p([2, 3]), perm=[0, 0]), r"perm is \[0, 0\]; allowed: a permutation of the 2 axes"),
        (lambda: ops.Softmax(p([2]), axis=1), r"axis is 1; allowed: -1\.\.0, as the rank is 1"),
        (lambda: ops.Concat(p([2, 3]), p([2, 4]), axis=0), r"dimension 1 differs between the inputs \(3, 4\)"),
        (lambda: ops.Conv(p([1, 3, 8]), p([4, 2, 3])), "X has 3 channels; W takes 2 per group, and group is 1, so 2"),
        (lambda: ops.Conv(p([1, 4, 8]), p([3, 2, 3]), group=2), "group 2 does not divide the 3 output channels"),
        (lambda: ops.Conv(p([1, 2, 2]), p([4, 2, 3])), "a window of 3 does not fit spatial dimension 0 of length 2"),
        (lambda: ops.Conv(p([1, 2, 8]), p([4, 2, 3]), p([3])), "one value per output channel"),
        (lambda: ops.ConvTranspose(p([1, 3, 8]), p([4, 2, 3])), "X has 3 channels, W takes 4"),
        (lambda: ops.PRelu(p([2]), p([3, 2])), "must broadcast to the shape of X"),
        (lambda: ops.GroupNormalization(p([1, 5, 2]), p([5]), p([5]), num_groups=2), "does not divide the 5 channels"),
        (lambda: ops.Reshape(p([2, 3]), Constant([4])), r"6 elements do not fill shape \[4\]"),
        (lambda: ops.Reshape(p([2, 3]), Constant([4, -1])), r"6 elements cannot be divided by the 4 of shape"),
        (lambda: ops.Reshape(p([2, 3]), Constant([-1, -1])), "may hold one -1"),
        (lambda: ops.Reshape(p([2, 3]), Constant([2, 3, 0])), "the 0 at place 2 of the shape copies dimension 2"),
        (lambda: ops.Gather(p([2, 3]), Constant([0]), axis=5), "axis"),
        (lambda: ops.Resize(p([1, 1, 4]), None, None, None), "exactly one of scales and sizes"),
        (lambda: ops.STFT(p([1, 8, 1]), Constant(2), None, Constant(9)), "frames of 9 do not fit a signal of length 8"),
    ],
)
def test_what_cannot_be_is_refused(build: object, message: str) -> None:
    with pytest.raises(TypeInferenceError, match=message) as caught:
        build()  # type: ignore[operator]
    assert "inputs: " in str(caught.value)


A, B, ONE, ZERO = p([3, 4], u8), p([4, 5], u8), p([]), p([], u8)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: ops.QLinearMatMul(A, p([2]), p([2], u8), B, ONE, ZERO, ONE, ZERO), r"1 has shape \[2\].* row, \[3\]"),
        (lambda: ops.QLinearMatMul(A, ONE, ZERO, B, p([3]), p([3], u8), ONE, ZERO), r"4 has shape .* column, \[5\]"),
        (lambda: ops.QLinearMatMul(A, ONE, ZERO, B, ONE, ZERO, p([5]), p([5], u8)), r"6 has shape .* row, \[3\]"),
        (lambda: ops.QLinearMatMul(A, p([1, 3]), ZERO, B, ONE, ZERO, ONE, ZERO), r"1 has shape \[1,3\].* row, \[3\]"),
        (lambda: ops.MatMulInteger(A, B, p([4], u8)), r"2 has shape \[4\].* row, \[3\]"),
        (lambda: ops.MatMulInteger(A, B, ZERO, p([3], u8)), r"3 has shape \[3\].* column, \[5\]"),
        (lambda: ops.ConvInteger(p([1, 2, 5], u8), p([3, 2, 1], u8), p([2], u8)), "2 has shape .* expected one value"),
    ],
)
def test_scales_and_zero_points_of_the_wrong_length_are_refused(build: Callable[[], Node], message: str) -> None:
    """Otherwise a device fails on them when it compiles or runs the model."""
    with pytest.raises(TypeInferenceError, match=message):
        build()


def test_scales_and_zero_points_of_rows_and_columns_are_accepted() -> None:
    rows, columns = p([3]), p([5])
    assert t(ops.QLinearMatMul(A, rows, p([3], u8), B, columns, p([5], u8), rows, p([3], u8))) == "u8[3,5]"
    stacked = p([2, 3, 4], u8), p([2, 4, 5], u8), p([2, 3, 1], u8), p([2, 1, 5], u8)
    assert t(ops.MatMulInteger(*stacked)) == "i32[2,3,5]"
    assert t(ops.MatMulInteger(p(["N", 4], u8), B, p([7], u8))) == "i32[N,5]"


# -- where ONNX's own inference is wrong or silent ----------------------------------------------------------


def test_stft() -> None:
    signal = p(["N", 128, 1])
    assert t(ops.STFT(signal, Constant(8), None, Constant(16))) == "f32[N,15,9,2]"
    assert t(ops.STFT(signal, Constant(8), None, Constant(16), onesided=0)) == "f32[N,15,16,2]"
    assert t(ops.STFT(signal, p([], i64), p([16]))) == "f32[N,?,9,2]"


def test_windows_and_mel_weights() -> None:
    assert t(ops.HannWindow(Constant(10))) == "f32[10]"
    assert t(ops.BlackmanWindow(p([], i64), output_datatype=f64)) == "f64[?]"
    assert (
        t(ops.MelWeightMatrix(Constant(8), Constant(16), Constant(8192), Constant(0.0), Constant(4096.0))) == "f32[9,8]"
    )


def test_max_unpool_with_a_constant_shape() -> None:
    data, indices = p([1, 1, 2, 2]), p([1, 1, 2, 2], i64)
    assert t(ops.MaxUnpool(data, indices, Constant([1, 1, 5, 5]), kernel_shape=[2, 2])) == "f32[1,1,5,5]"
    assert t(ops.MaxUnpool(data, indices, p([4], i64), kernel_shape=[2, 2])) == "f32[?,?,?,?]"


def test_resize_with_an_unknown_number_of_sizes() -> None:
    x = p(["N", 3, 8, Dimension(4, 9)])
    assert t(ops.Resize(x, None, None, p(["K"], i64))) == "f32[?,?,?,?]"
    assert t(ops.Resize(x, None, Constant([1.0, 1.0, 2.0, 0.5]))) == "f32[N,3,16,2..4]"
    assert t(ops.Resize(x, None, None, Constant([4, 4]), axes=[2, 3])) == "f32[N,3,4,4]"
    square = p([1, 1, 8, 6])
    policy = {"axes": [2, 3], "keep_aspect_ratio_policy": "not_larger"}
    assert t(ops.Resize(square, None, None, Constant([4, 4]), **policy)) == "f32[1,1,4,3]"


def test_attention_with_symbolic_lengths() -> None:
    q, k, v = p(["B", 8, "S", 64]), p(["B", 2, "T", 64]), p(["B", 2, "T", 32])
    past = p(["B", 2, 10, 64]), p(["B", 2, 10, 32])
    node = ops.Attention(q, k, v, None, *past, num_outputs=4)
    expected = ["f32[B,8,S,32]", "f32[B,2,10..,64]", "f32[B,2,10..,32]", "f32[B,8,S,10..]"]
    assert [t(node, i) for i in range(4)] == expected
    flat = ops.Attention(p([1, 5, 32]), p([1, 7, 16]), p([1, 7, 16]), q_num_heads=4, kv_num_heads=2)
    assert t(flat) == "f32[1,5,32]"
    with pytest.raises(TypeInferenceError, match="head size of Q and K must be equal, got 64 and 32"):
        ops.Attention(q, p([1, 2, 3, 32]), v)


# -- constants, the memo, and what is not known -------------------------------------------------------------


def test_constant_values_decide_and_are_not_confused() -> None:
    x = p([2, 12])
    assert [t(ops.Reshape(x, Constant(s))) for s in ([24], [4, 6], [3, -1])] == ["f32[24]", "f32[4,6]", "f32[3,8]"]
    assert t(ops.Reshape(x, p([2], i64))) == "f32[?,?]"
    assert t(ops.Range(Constant(0), Constant(10), Constant(3))) == "i64[4]"


def test_memo_tells_attributes_and_symbols_apart() -> None:
    for axis, expected in ((0, "f32[1,N,3]"), (1, "f32[N,1,3]"), (0, "f32[1,N,3]")):
        assert t(ops.Unsqueeze(p(["N", 3]), Constant([axis]))) == expected
    assert t(ops.Flatten(p(["A", 3]))) == "f32[A,3]"
    assert t(ops.Flatten(p(["B", 3]))) == "f32[B,3]"


def test_memo_tells_kinds_of_attributes_apart() -> None:
    x = p([2, 3, 4])
    assert t(Node("Flatten", [x], {"axis": 2})) == "f32[6,4]"
    with pytest.raises(ModelError, match="axis"):
        Node("Flatten", [x], {"axis": 2.0})


def test_memo_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inference, "_MEMO_SIZE", 8)
    for length in range(40):
        ops.Flatten(p([length + 5000, 3]))
    assert len(inference._memo) <= 8


def test_custom_domains_have_unknown_types() -> None:
    node = Node("Thing", [p([1])], domain="vendor", num_outputs=2)
    assert [o.type for o in node.outputs] == [UNKNOWN, UNKNOWN]
    assert t(ops.Relu(node.output(0))) == "undefined[...]"
    assert ops.MatMul(node.output(0), p([2, 3])).output(0).element_type is f32
    assert ops.Conv(node.output(0), node.output(1)).output(0).shape == PartialShape.dynamic()


def test_types_follow_a_changed_input() -> None:
    x = p([1, 3])
    node = ops.Concat(ops.Relu(x), ops.Relu(x), axis=1)
    x.type = p([1, "N"]).type
    for producer in (node.input_value(0).node, node.input_value(1).node, node):
        producer.infer_types()
    assert t(node) == "f32[1,?]"


def test_small_constants_only_are_read() -> None:
    def load() -> np.ndarray:
        raise AssertionError("a weight was loaded for its type")

    weight = Constant.lazy(p([8, 8]).type, load)  # type: ignore[arg-type]
    assert t(ops.Gemm(p([2, 8]), weight)) == "f32[2,8]"


@pytest.mark.parametrize("equation", ["i.j->", "..,->", "ij-", "ij->ij->i", "-", "....", "i\u00e9->i"])
def test_a_malformed_equation_is_refused_before_onnx_reads_it_without_end(equation: str) -> None:
    with pytest.raises(TypeInferenceError, match="allowed: comma-separated terms of letters"):
        ops.Einsum(Parameter(f32, [2, 3], "x"), equation=equation)


@pytest.mark.parametrize(
    ("dim", "start", "end", "step", "expected"),
    [
        ("N", 0, 2**63 - 1, 1, "N"),
        ("N", 0, 2**31 - 1, 1, "N"),
        ("N", 1, 2**31 - 1, 1, "?"),
        ("N", -3, 2**31 - 1, 1, "0..3"),
        ("N", 1, 7, 2, "0..3"),
        ("N", 0, -1, 1, "?"),
        ("N", 2**31, -(2**31), -1, "?"),
        (Dimension(4, 9), 0, 9, 1, "4..9"),
        (Dimension(4, 9), 1, -1, 1, "2..7"),
        (Dimension(4, 9), -5, 3, 1, "0..9"),
        (Dimension(4, 9, "N"), 0, 20, 1, "N:4..9"),
        (7, -1, -8, -2, "4"),
        (7, 5, 2, 1, "0"),
    ],
)
def test_slices(dim: object, start: int, end: int, step: int, expected: str) -> None:
    node = ops.Slice(p([2, dim]), Constant([start]), Constant([end]), Constant([-1]), Constant([step]))
    assert t(node) == f"f32[2,{expected}]"


def test_slices_of_unknown_bounds() -> None:
    assert t(ops.Slice(p([5, "N"]), p([1], i64), Constant([3]))) == "f32[0..5,N]"
    assert t(ops.Slice(p([5, "N"]), p(None, i64), p(None, i64))) == "f32[0..5,?]"
    assert t(ops.Slice(p([5, "N"]), p([0], i64), p([0], i64), p([0], i64))) == "f32[5,N]"
    with pytest.raises(TypeInferenceError, match=r"must have equal lengths, got \[1, 2\]"):
        ops.Slice(p([5, 5]), Constant([0]), Constant([1, 1]))
    with pytest.raises(TypeInferenceError, match="steps are \\[0\\]; expected any number but 0"):
        ops.Slice(p([5, 5]), Constant([0]), Constant([1]), Constant([0]), Constant([0]))


def test_pads() -> None:
    x = p(["N", Dimension(3, 5), 4])
    assert t(ops.Pad(x, Constant([0, 1, -1, 0, 1, 0]))) == "f32[N,5..7,3]"
    assert t(ops.Pad(x, Constant([1, 2]), None, Constant([0]))) == "f32[3..,3..5,4]"
    assert t(ops.Pad(x, Constant([0, 0]), None, p([1], i64))) == "f32[N,3..5,4]"
    assert t(ops.Pad(x, p([6], i64))) == "f32[?,?,?]"
    assert t(ops.Pad(x, p([4], i64), None, Constant([-1, 1]))) == "f32[N,?,?]"
    assert t(ops.Pad(x, p([2], i64), None, p([1], i64))) == "f32[?,?,?]"
    assert t(ops.Pad(p(None), p([6], i64))) == "f32[?,?,?]"
    with pytest.raises(TypeInferenceError, match="2 pads do not fit 3 axes; expected two per axis"):
        ops.Pad(x, Constant([1, 2]))
    with pytest.raises(TypeInferenceError, match="remove more than dimension 2"):
        ops.Pad(x, Constant([-3, -2]), None, Constant([2]))


@pytest.mark.parametrize("value", [2**64, 2**63, -(2**63) - 1])
def test_integers_of_more_than_64_bits_are_refused(value: int) -> None:
    x = p([1, 1, 8])
    with pytest.raises(ModelError, match=rf"`shape`: attribute start is {value}; allowed: integers of 64 bits"):
        ops.Shape(x, start=value, friendly_name="shape")
    with pytest.raises(ModelError, match=r"attribute pads is .* allowed: integers of 64 bits"):
        ops.Conv(x, p([1, 1, 3]), pads=[value, 0])
    if value > 0:
        for given in (value, np.uint64(value) if value < 2**64 else value, Dimension(symbol="N")):
            with pytest.raises(ModelError, match=r"lengths are at most 2\^63 - 1"):
                p([given if not isinstance(given, Dimension) else Dimension(1, value)])
    ops.Shape(x, start=-(2**63), end=2**63 - 1)
