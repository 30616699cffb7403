"""Tensors given to requests: accepted in place, or refused with nothing changed."""

import json
import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import BlobFormatError, InferError, InputError, ModelError, PluginContractError
from engine.ir import (
    Model,
    OptionalType,
    Parameter,
    PartialShape,
    Result,
    SequenceType,
    TensorType,
    bf16,
    boolean,
    f16,
    f32,
    i8,
    i64,
    string,
    u64,
    undefined,
)
from engine.plugin_api import Port, SyncInferRequest
from engine.runtime import Signature


class Echo(SyncInferRequest):
    """Returns its inputs as outputs, by whatever means the test sets."""

    give = staticmethod(lambda request: [request.store_output(i, v) for i, v in enumerate(request.inputs)])

    def start_pipeline(self):
        type(self).give(self)


class Owner:
    is_profiling = False
    context = None

    def __init__(self, inputs, outputs=None):
        named = [Port(f"x{i}", t) for i, t in enumerate(inputs)]
        self.signature = Signature(
            named, [Port(f"y{i}", t) for i, t in enumerate(inputs if outputs is None else outputs)], "net"
        )

    def next_request_id(self):
        return 0


def echo(*inputs, outputs=None, give=None):
    request_class = type("EchoOnce", (Echo,), {} if give is None else {"give": staticmethod(give)})
    return request_class(Owner(inputs, outputs))


def tensor(element_type, *dims):
    return TensorType(element_type, PartialShape(dims))


X = np.arange(6, dtype=np.float32).reshape(2, 3)


# -- what is taken in place ---------------------------------------------------------------------------------


class OnlyDLPack:
    """A tensor of another framework."""

    def __init__(self, array, error=None):
        self._array, self._error = array, error

    def __dlpack__(self, **options):
        if self._error:
            raise self._error
        return self._array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self._array.__dlpack_device__()


@pytest.mark.parametrize(
    "given_as", [X, X[:], OnlyDLPack(X), X.view(np.matrix)], ids=["array", "view", "dlpack", "subclass"]
)
def test_contiguous_data_is_used_in_place(given_as):
    request = echo(tensor(f32, 2, "N"))
    request.set_inputs({"x0": given_as})
    bound = request.get_input_tensor("x0")
    assert type(bound) is np.ndarray
    assert np.shares_memory(bound, X)


def test_a_read_only_array_is_used_in_place():
    array = X.copy()
    array.flags.writeable = False
    request = echo(tensor(f32, 2, 3))
    for _ in range(2):
        request.set_inputs(array)
        assert request.inputs[0] is array


@pytest.mark.parametrize("array", [X.T, X[:, ::2], X[::-1], np.ones((4, 4), np.float32)[1:3, 1:3]])
def test_strided_data_is_copied_and_keeps_its_values(array):
    request = echo(tensor(f32, None, None))
    request.set_inputs(np.zeros(array.shape, np.float32))
    request.set_inputs(array)
    assert request.inputs[0].flags.c_contiguous
    np.testing.assert_array_equal(request.infer()[0], array)


REREAD = {
    "strided": lambda array: array[:, ::2],
    "strided, of another library": lambda array: OnlyDLPack(array[:, ::2]),
}


@pytest.mark.parametrize("window", REREAD)
def test_each_inference_reads_what_a_strided_input_holds_then(window):
    array = X.copy()
    request = echo(tensor(f32, None, None))
    request.set_input_tensor(0, REREAD[window](array))
    for _ in range(2):
        np.testing.assert_array_equal(request.infer()[0], array[:, ::2])
        array += 1


def test_each_inference_reads_what_the_arrays_of_a_sequence_and_strings_hold_then():
    array, words = X.copy(), np.array(["a", "b"])
    request = echo(SequenceType(tensor(f32, None, None)), tensor(string, 2))
    given = [array.T]
    request.set_inputs([given, words])
    assert request.get_input_tensor(0) is given
    array += 1
    words[0] = "c"
    result = request.infer()
    np.testing.assert_array_equal(result[0][0], array.T)
    assert result[1].tolist() == ["c", "b"]
    given.append(np.zeros(3, np.float32))
    with pytest.raises(InputError, match=r"input `x0`: \[1\]: rank is 1"):
        request.infer()


def test_a_strided_input_is_copied_once_for_each_inference(monkeypatch):
    request, copies = echo(tensor(f32, None, None)), []
    view = X.T
    require = np.require

    def counting(array, requirements):
        copies.extend([array] if array is view else [])
        return require(array, requirements=requirements)

    monkeypatch.setattr(np, "require", counting)
    for inputs in (view, view, {"x0": view}, None):
        copies.clear()
        np.testing.assert_array_equal(request.infer(inputs)[0], view)
        assert len(copies) == 1


def test_unaligned_data_is_copied():
    array = np.zeros(4 * 6 + 1, np.uint8)[1:].view(np.float32)
    assert not array.flags.aligned
    request = echo(tensor(f32, 6))
    request.set_inputs(np.zeros(6, np.float32))
    request.set_inputs(array)
    assert request.inputs[0].flags.aligned


def test_scalars_keep_rank_zero():
    request = echo(tensor(f32))
    assert request.infer([np.float32(3)])[0].shape == ()
    assert request.infer([np.array(3, np.float32)])[0] == 3


def test_small_float_arrays_pass():
    value = np.ones((2,), ml_dtypes.bfloat16)
    assert echo(tensor(bf16, 2)).infer([value])[0].dtype == value.dtype


def test_a_type_that_is_not_known_takes_any_array():
    anything = TensorType(undefined, PartialShape.dynamic())
    assert echo(anything).infer([np.ones((1, 2), np.int8)])[0].dtype == np.int8


# -- what is refused ----------------------------------------------------------------------------------------

WRONG = [
    ({"z": X}, "no input 'z'; inputs: x0"),
    ({"x00": X}, "no input .x00.; did you mean `x0`"),
    ({7: X}, "no input 7"),
    ({"x0": X.astype(np.float64)}, "input `x0`: element type is float64, expected float32"),
    ({"x0": X.astype(">f4")}, "element type is >f4, expected float32"),
    ({"x0": X[0]}, r"rank is 1 \(3,\), expected 2 \[2,3..8\]"),
    ({"x0": np.zeros((2, 9), np.float32)}, "dimension 1 is 9, expected 3..8"),
    ({"x0": [[1, 2, 3], [4, 5]]}, "the list is not an array of f32: its lists have unequal lengths"),
    ({"x0": [[1, True, 3]] * 2}, "it holds a bool; expected float or int for f32"),
    ({"x0": [X[0], X[1].astype(float)]}, "it holds a numpy float64; expected float or int for f32"),
    ({"x0": [[1, 1e39, 3]] * 2}, r"not every number fits f32: the largest is 1e\+39"),
    ({"x0": [[10**400, 2, 3]] * 2}, "not every number fits f32"),
    ({"x0": [1, 2, 3]}, r"rank is 1 \(3,\), expected 2"),
    ({"x0": object()}, "expected an array, got object; use np.asarray"),
    ({"x0": None}, "expected an array, got NoneType"),
    ({"x0": np.ma.masked_array(X)}, "would lose its mask"),
    ({"x0": OnlyDLPack(X, BufferError("on a GPU"))}, r"cannot be read through DLPack \(on a GPU\)"),
    ({}, r"input `x0` \(f32\[2,3..8\]\) is missing"),
    ([], r"got 0 inputs, expected 1 \(x0\)"),
    ([X, X], "got 2 inputs, expected 1"),
    (None, "is missing"),
]


@pytest.mark.parametrize(("inputs", "message"), WRONG)
def test_a_wrong_input_names_itself_and_what_is_expected(inputs, message):
    request = echo(tensor(f32, 2, "3..8"))
    with pytest.raises(InputError, match=message):
        request.infer(inputs)
    np.testing.assert_array_equal(request.infer(X)[0], X)


@pytest.mark.parametrize(
    ("element_type", "good", "bad"),
    [
        (f32, [1, 2.5], ["1"]),
        (i64, [1, -(2**63)], [1.0]),
        (i64, [], [2**63]),
        (u64, [2**64 - 1], [-1]),
        (u64, [1, 2**63 + 1, 2**64 - 1], [-1, 2**63]),
        (i64, [-1, 2**62 + 1], [-1, 2**63]),
        (i8, [-128, 127], [128]),
        (boolean, [True, False], [1]),
        (string, ["a", ""], [b"a"]),
        (f16, [65504], [1e5]),
    ],
)
def test_lists_of_numbers_become_arrays_of_the_inputs_type(element_type, good, bad):
    request = echo(TensorType(element_type, PartialShape.dynamic()))
    for value in (good, tuple(good), [good, good], *good):
        found = request.infer({"x0": value})[0]
        assert (found.dtype, found.shape) == (element_type.numpy, np.shape(value))
        assert found.tolist() == (list(value) if isinstance(value, tuple) else value)
    with pytest.raises(InputError, match="input `x0`: the list is not an array of"):
        request.infer({"x0": bad})
    nested: list[Any] = []
    nested.append(nested)
    with pytest.raises(InputError, match="nested more than 64 deep"):
        request.infer({"x0": nested})
    values = [*good]
    request.set_input_tensor("x0", values)
    values += good
    assert request.infer()[0].shape == (2 * len(good),)  # lists are read when an inference begins


def test_lists_may_have_scalars_and_arrays_of_the_inputs_type():
    request = echo(TensorType(f32, PartialShape.dynamic()))
    one = np.float32(0.5)
    for value in ([one, 2], [[one], [1.5]], [X[0], X[1]], (X, X)):
        found = request.infer({"x0": value})[0]
        np.testing.assert_array_equal(found, np.asarray(value, np.float32), strict=True)
    for bad, message in (
        ([np.float64(1)], "it holds a numpy float64"),
        ([np.ones(2, np.float32), np.ones(3, np.float32)], "unequal lengths"),
        ([np.ma.masked_array(X, X > 0)], "it holds a MaskedArray"),
    ):
        with pytest.raises(InputError, match=message):
            request.infer({"x0": bad})


def test_numbers_of_lists_are_rounded_once_to_bf16():
    request = echo(TensorType(bf16, PartialShape.dynamic()))
    tie = 1 + 2.0**-8
    values = [tie, tie + 2.0**-40, -tie - 2.0**-40, 3 + 2.0**-7 - 2.0**-40, 1e-300, -math.inf]
    expected = [1.0, 1 + 2.0**-7, -1 - 2.0**-7, 3.0, 0.0, -math.inf]
    assert request.infer({"x0": values})[0].astype(np.float64).tolist() == expected


def test_nothing_is_bound_where_one_of_several_inputs_is_wrong():
    request = echo(tensor(f32, 2, 3), tensor(i64, 2))
    good, indices = X + 1, np.array([1, 2])
    request.set_inputs([good, indices])
    for wrong in ({"x0": X, "x1": X}, {"x0": X, "nothing": X}):
        with pytest.raises(InputError):
            request.set_inputs(wrong)
    with pytest.raises(InputError):
        request.set_input_tensor("x0", X[:1])
    assert request.inputs[0] is good
    assert request.inputs[1] is indices


def test_a_symbol_must_mean_one_length_within_and_across_inputs():
    request = echo(tensor(f32, "N", "N"), tensor(f32, "N", "M"))
    square = np.zeros((2, 2), np.float32)
    with pytest.raises(InputError, match="equal symbols have different lengths"):
        request.infer([X, X])
    with pytest.raises(InputError, match=r"dimension N must be the same everywhere: `x0`\[0\] is 2"):
        request.infer([square, np.zeros((3, 1), np.float32)])
    with pytest.raises(
        InputError, match=r"compile it after `model\.reshape\({'x1': \[None, 'M'\]}\)`, which gives `x1`"
    ):
        request.infer([square, np.zeros((3, 1), np.float32)])
    request.infer([square, X])


def test_many_shapes_in_turn_are_each_checked():
    request = echo(tensor(f32, "1..200"))
    for length in [*range(1, 150), 1]:
        assert request.infer([np.zeros(length, np.float32)])[0].shape == (length,)
    with pytest.raises(InputError):
        request.infer([np.zeros(201, np.float32)])
    assert len(request.signature.input_checks[0]._fitting) <= 64


# -- strings, sequences, optionals --------------------------------------------------------------------------


@pytest.mark.parametrize("value", [np.array(["a", "bc"]), np.array(["a", "bc"], object), np.array(["a", "bc"])[::1]])
def test_strings_arrive_as_objects(value):
    result = echo(tensor(string, 2)).infer([value])[0]
    assert result.dtype == object
    assert result.tolist() == ["a", "bc"]


@pytest.mark.parametrize("value", [np.array(["a", 1], object), np.array([b"a", b"b"]), X])
def test_what_is_no_string_is_refused(value):
    with pytest.raises(InputError, match="str"):
        echo(tensor(string, 2)).infer([value])


def test_sequences_and_optionals_are_checked_to_the_leaves():
    request = echo(SequenceType(tensor(f32, None)), OptionalType(tensor(i64)))
    row = np.ones(3, np.float32)
    result = request.infer({"x0": (row, row[:1])})  # an absent optional is None
    assert [v.shape for v in result["y0"]] == [(3,), (1,)]
    assert result["y1"] is None
    with pytest.raises(InputError, match=r"input `x0`: \[1\]: element type is int64"):
        request.infer({"x0": [row, np.ones(3, np.int64)]})
    with pytest.raises(InputError, match="a sequence must be a list of values; got ndarray"):
        request.infer({"x0": row})
    assert request.infer({"x1": np.int64(4)})["y1"] == 4


# -- outputs ------------------------------------------------------------------------------------------------


def test_results_do_not_alias_inputs_constants_or_later_results():
    constant = X.copy()
    request = echo(
        tensor(f32, 2, 3),
        outputs=[tensor(f32, 2, 3)] * 3,
        give=lambda r: (
            r.store_output(0, r.inputs[0]),
            r.store_output(1, constant),
            np.copyto(r.output_buffer(2, (2, 3)), r.inputs[0]),
        ),
    )
    mine = X.copy()
    first = request.infer(mine)
    kept = [value.copy() for value in first.values()]
    for value in first.values():
        assert not np.shares_memory(value, mine)
        assert not np.shares_memory(value, constant)
    request.infer(mine + 1)
    for value, before in zip(first.values(), kept, strict=True):
        np.testing.assert_array_equal(value, before)


@pytest.mark.parametrize("make", [lambda: np.zeros((2, 3), np.float32), lambda: np.zeros((3, 2), np.float32).T])
@pytest.mark.parametrize(
    "give",
    [lambda r: r.store_output(0, r.inputs[0] * 2), lambda r: np.multiply(r.inputs[0], 2, r.output_buffer(0, (2, 3)))],
    ids=["stored", "written"],
)
def test_an_output_that_the_user_sets_is_filled_in_place(make, give):
    request = echo(tensor(f32, 2, 3), give=give)
    mine = make()
    request.set_output_tensor("y0", mine)
    assert request.infer(X)[0] is mine
    np.testing.assert_array_equal(mine, X * 2)
    request.set_output_tensor(0, None)
    assert request.infer(X)[0] is not mine
    request.set_output_tensor(0, mine)
    request.infer(X)
    request.clear_tensors()
    assert request.infer(X)[0] is not mine


def test_an_output_may_be_set_to_the_memory_of_an_input():
    def reversed_in_two_steps(request):
        buffer = request.output_buffer(0, (6,))
        buffer[:] = 0
        buffer[:] = request.inputs[0][::-1]

    request = echo(tensor(f32, 6), give=reversed_in_two_steps)
    both = np.arange(6, dtype=np.float32)
    request.set_inputs(both)
    request.set_output_tensor(0, both)
    request.infer()
    assert both.tolist() == [5, 4, 3, 2, 1, 0]


def test_a_wrong_output_array_is_refused_and_the_old_one_kept():
    request = echo(tensor(f32, 2, "N"))
    mine = np.zeros((2, 3), np.float32)
    request.set_output_tensor("y0", mine)
    read_only = np.zeros((2, 3), np.float32)
    read_only.flags.writeable = False
    for wrong, message in [
        (np.zeros((2, 3)), "element type is float64"),
        (np.zeros((3, 3), np.float32), "dimension 0 is 3"),
        (read_only, "read-only"),
        ([1.0], "expected a numpy array or DLPack tensor, got list"),
    ]:
        with pytest.raises(InputError, match=message):
            request.set_output_tensor("y0", wrong)
    assert request.infer(X)[0] is mine
    with pytest.raises(InputError, match=r"output `y0` has shape \(2, 2\) for these inputs, but .* has \(2, 3\)"):
        request.infer(X[:, :2])
    assert request.infer(X)[0] is mine


def test_output_arrays_that_overlap_are_refused():
    request = echo(tensor(f32, 3), tensor(f32, 3))
    memory = np.zeros(4, np.float32)
    request.set_output_tensor(0, memory[:3])
    request.set_output_tensor(1, memory[1:])
    with pytest.raises(InputError, match="`y0` and `y1` share memory"):
        request.infer([X[0], X[1]])


@pytest.mark.parametrize(
    ("give", "message"),
    [
        (lambda r: None, "no stage set output `y0`"),
        (
            lambda r: r.store_output(0, X.astype(np.float64)),
            "device's result for output `y0` is not what the model declares: element type is float64",
        ),
        (lambda r: r.store_output(0, X[:1]), "device's result for output `y0` is not what the model declares: shape"),
        (lambda r: r.output_buffer(0, (3, 2)), "device's result for output `y0` is not what the model declares: shape"),
        (
            lambda r: r.store_output(0, 3.0),
            "device's result for output `y0` is not what the model declares: expected an array",
        ),
        (lambda r: r.store_outputs([X, X]), "a stage set 2 outputs at once; expected 1"),
        (lambda r: r.store_outputs([X[:1]]), "device's result for output `y0` is not what the model declares: shape"),
    ],
)
def test_a_device_that_gives_a_wrong_output_is_reported(give, message):
    request = echo(tensor(f32, 2, 3), give=give)
    with pytest.raises(PluginContractError, match=message):
        request.infer(X)
    with pytest.raises(InferError, match="has no value"):
        request.get_output_tensor(0)


def test_a_result_is_a_mapping_by_name_and_by_index():
    result = echo(tensor(f32, 2, 3), tensor(f32, 3)).infer([X, X[0]])
    assert list(result) == ["y0", "y1"]
    assert len(result) == 2
    assert result[1] is result["y1"]
    assert [value.shape for value in result.values()] == [(2, 3), (3,)]
    assert "y0" in result
    assert result.get("y9") is None
    for key in ("y9", 2, None, []):
        with pytest.raises(InputError, match="outputs: y0, y1"):
            result[key]


# -- ports --------------------------------------------------------------------------------------------------


def test_a_port_describes_a_parameter_and_its_preprocessing():
    parameter = Parameter(f32, [1, "N"], "x")
    parameter.rt_info.update(layout="NC", preprocess={"mean": [1.0]})
    model = Model([Result(parameter, "y")], [parameter])
    port = Port.of(model.parameters[0])
    assert (port.name, port.element_type, str(port.shape), port.layout) == ("x", f32, "[1,N]", "NC")
    assert str(port) == "x: f32[1,N] (NC)"
    assert Port.from_json(port.to_json()) == port


@pytest.mark.parametrize(
    ("info", "message"),
    [
        ({"layout": 5}, r'`x`: rt_info\["layout"\] must be a string.*got 5'),
        ({"preprocess": object()}, r'`x`: rt_info\["preprocess"\] must be a mapping.*object'),
        ({"preprocess": {"mean": np.ones(3)}}, "ndarray is not JSON"),
        ({"preprocess": {"scale": float("nan")}}, "JSON"),
    ],
)
def test_a_description_that_no_blob_could_carry_is_refused_when_compiling(info, message):
    parameter = Parameter(f32, [1, "N"], "x")
    parameter.rt_info.update(info)
    with pytest.raises(ModelError, match=message):
        Port.of(parameter)


def test_preprocessing_is_the_same_before_and_after_export():
    parameter = Parameter(f32, [1, "N"], "x")
    parameter.rt_info["preprocess"] = mean = {"mean": (1.0, 2.0)}
    port = Port.of(parameter)
    mean.clear()
    assert port.preprocess == {"mean": [1.0, 2.0]}
    assert Port.from_json(json.loads(json.dumps(port.to_json()))) == port


BOUNDS = st.tuples(st.integers(0, 5), st.integers(5, 9)).map(lambda bounds: f"{bounds[0]}..{bounds[1]}")
SHAPES = st.builds(PartialShape, st.none() | st.lists(st.none() | st.integers(0, 10) | st.text() | BOUNDS))
TENSORS = st.builds(TensorType, st.sampled_from([f32, bf16, string]), SHAPES)
TYPES = st.recursive(
    TENSORS, lambda t: t.map(SequenceType) | t.map(OptionalType) | st.just(SequenceType()), max_leaves=3
)


@given(st.text(), TYPES, st.text())
def test_any_port_survives_json(name, value_type, layout):
    port = Port(name, value_type, layout)
    again = Port.from_json(json.loads(json.dumps(port.to_json())))
    assert again == port
    assert str(again.type) == str(value_type)


KEYS = st.sampled_from(["tensor", "sequence", "map", "value", "shape", "min", "max", "symbol"])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text() | st.just("f32"),
    lambda value: st.lists(value) | st.dictionaries(KEYS, value),
    max_leaves=8,
)


@given(JSON, JSON)
def test_a_forged_port_is_a_format_error(type_json, whole):
    for value in (whole, {"name": "x", "type": type_json}):
        try:
            Port.from_json(value)
        except BlobFormatError:
            continue
        assert isinstance(value, dict)


def test_an_input_is_not_given_twice_under_its_name_and_its_index():
    x = np.zeros(2, np.float32)
    request = echo(tensor(f32, 2), tensor(f32, 2))
    with pytest.raises(InputError, match="`x1` is given twice, by name and by index 1"):
        request.infer({"x0": x, 1: x, "x1": x + 1})
    result = request.infer({"x0": x, 1: x + 1})
    assert result["y1"].tolist() == [1, 1]
