"""The ONNX backend suite's node cases of every operator that OPENCL claims, through the public API.

If a case fails here, the device says that it runs an operator and gives users wrong answers. Many operators run only
where shapes, axes or weights are known, which the suite gives as inputs: such a case is run with all its inputs but
the first as constants.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx
import pytest
from engine_opencl.compiler import build_plan
from engine_opencl.devices.device import DeviceFacts, device_of
from engine_opencl.lowering import OpenclGraph
from engine_opencl.transform import prepare_model
from onnx import numpy_helper

from engine import Core, Model, ops
from engine.errors import InputError
from engine.ir import Constant, Node, Parameter, Result
from engine.ir.element_type import ElementType, f32, i64
from engine.plugin_api import SupportLevel
from engine.testing.onnx_suite import CASES, SuiteCase, assert_same, read_case, run_case

_MUST_RUN = 1318
"""Of the suite's node cases, whole or with constants; what is refused may only become less."""
_MUST_DIFFER = 350
"""Of those: for which GPUs have kernels of their own; 393 on Intel's runtime, whose facts decide some."""
NODE_CASES = sorted(name for name, case in CASES.items() if case.kind == "node")


@pytest.fixture(scope="module")
def core() -> Core:
    return Core()


@pytest.fixture(scope="module")
def accepted(core: Core) -> dict[str, SuiteCase]:
    """The cases that OPENCL takes: as they are, else with constants."""
    found = {}
    for name in NODE_CASES:
        for case in (CASES[name], with_constants(CASES[name])):
            if case is not None and is_accepted(core, case):
                found[name] = case
                break
    return found


def is_accepted(core: Core, case: SuiteCase) -> bool:
    """Whether every operation of the case's model has a kernel, and there is one."""
    model = read_case(core, case)
    answer = core.query_model(model, "OPENCL")
    return bool(answer.at(SupportLevel.NATIVE)) and not answer.at(SupportLevel.REFUSED)


def with_constants(case: SuiteCase) -> SuiteCase | None:
    """The case with all inputs but the first as constants; None where that is not possible."""
    assert case.data_sets is not None
    assert case.model is not None
    inputs, outputs = case.data_sets[0]
    others = list(zip(case.model.graph.input, inputs, strict=False))[1:]
    if len(case.data_sets) > 1 or not others or not all(isinstance(v, (np.ndarray, np.generic)) for _, v in others):
        return None
    model = onnx.ModelProto()
    model.CopyFrom(case.model)
    for info, value in others:
        model.graph.initializer.append(numpy_helper.from_array(np.asarray(value), info.name))
    del model.graph.input[1:]
    return replace(case, model=model, data_sets=[(inputs[:1], outputs)])


def with_roundings(case: SuiteCase) -> SuiteCase:
    """The case with a tolerance for f16, which two answers may round differently after each operation."""
    assert case.model is not None
    graph = case.model.graph
    if all(output.type.tensor_type.elem_type != onnx.TensorProto.FLOAT16 for output in graph.output):
        return case
    return replace(case, rtol=max(case.rtol, 2 * len(graph.node) * 2.0**-11))


def test_claims(accepted: dict[str, SuiteCase]) -> None:
    assert len(accepted) >= _MUST_RUN


@pytest.mark.parametrize("name", NODE_CASES)
def test_case(core: Core, accepted: dict[str, SuiteCase], name: str) -> None:
    if name not in accepted:
        pytest.skip("refused by the query")
    for got, expected in run_case(core, accepted[name], "OPENCL"):
        assert_same(got, expected, with_roundings(accepted[name]))


# -- kernels for GPUs, on a device that poses as one -----------------------------------------------------------


def sources(prepared: OpenclGraph, facts: DeviceFacts) -> list[str]:
    """The kernels that a device of this kind runs."""
    return [launch.source for launch in build_plan(prepared, facts).launches]


@pytest.fixture(scope="module")
def differing(core: Core, accepted: dict[str, SuiteCase]) -> set[str]:
    """The cases for which a GPU gets other kernels than a CPU, without those that spell them out once more."""
    facts, found = device_of("0").facts, set()
    for name in accepted.keys() - {name for name in accepted if name.endswith("_expanded")}:
        prepared = prepare_model(read_case(core, accepted[name]))
        if sources(prepared, replace(facts, kind="cpu")) != sources(prepared, replace(facts, kind="gpu")):
            found.add(name)
    return found


def test_gpus_have_kernels_of_their_own(differing: set[str]) -> None:
    assert len(differing) >= _MUST_DIFFER


@pytest.mark.parametrize("name", [name for name in NODE_CASES if not name.endswith("_expanded")])
def test_case_on_a_gpu(
    core: Core, accepted: dict[str, SuiteCase], differing: set[str], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if name not in differing:
        pytest.skip("refused by the query, or run by the kernels for CPUs")
    device = device_of("0")
    monkeypatch.setattr(device, "facts", replace(device.facts, kind="gpu"))
    for got, expected in run_case(core, accepted[name], "OPENCL"):
        assert_same(got, expected, accepted[name])


# -- indices that are out of range -----------------------------------------------------------------------------


def _indexing_model(op_type: str) -> Model:
    x = Parameter(f32, (5, 2), "x")
    shape = (3, 1) if op_type.endswith("ND") else (3, 2) if op_type.endswith("Elements") else (3,)
    indices = Parameter(i64, shape, "indices")
    inputs: list[Node] = [x, indices]
    if op_type.startswith("Scatter"):
        inputs.append(Constant(np.zeros((3, 2), np.float32)))
    node = ops.create(op_type, inputs)
    node.friendly_name = "lookup"
    return Model([Result(node)], [x, indices])


@pytest.mark.parametrize("op_type", ["Gather", "GatherND", "GatherElements", "ScatterND", "ScatterElements"])
@pytest.mark.parametrize("index", [5, 2**40, -6])
def test_an_index_out_of_range_fails_by_name(core: Core, op_type: str, index: int) -> None:
    """As on CPU; the network stays usable, with no trace of it."""
    network = core.compile_model(_indexing_model(op_type), "OPENCL")
    x = np.arange(10, dtype=np.float32).reshape(5, 2)
    shape = network.inputs[1].shape.get_shape()
    good, bad = np.full(shape, -5), np.full(shape, index)
    before = network({"x": x, "indices": good})[0]
    for _ in range(2):
        with pytest.raises(
            InputError, match=rf"{op_type} `lookup`: index {index} is out of range for a dimension of 5"
        ):
            network({"x": x, "indices": bad})
        np.testing.assert_array_equal(network({"x": x, "indices": good})[0], before)


# -- values at the edges, for which the suite has no case: as on CPU -------------------------------------------

SPECIAL = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 0.5, 1.5, 2.5, -0.5, -1.5, 100, -100, 1e30, -1e30], np.float32)
UNARY = (
    "Abs", "Neg", "Sign", "Round", "Floor", "Ceil", "Exp", "Log", "Sqrt", "Tanh", "Sigmoid", "Relu", "Erf",
    "Softplus", "Selu", "Celu", "Elu", "LeakyRelu", "HardSigmoid", "IsNaN", "IsInf", "Reciprocal",
)  # fmt: skip
BINARY = ("Add", "Sub", "Mul", "Div", "Pow", "Max", "Min", "Less", "LessOrEqual", "Greater", "Equal", "PRelu")
INTEGER = ("Add", "Sub", "Mul", "Div", "Mod", "Max", "Min", "Less", "Equal")


def _answer(core: Core, device: str, op_type: str, values: list[np.ndarray], attributes: dict[str, object]) -> object:
    parameters = [Parameter(ElementType.from_numpy(v.dtype), v.shape, f"x{i}") for i, v in enumerate(values)]
    node = ops.create(op_type, parameters, attributes)
    network = core.compile_model(Model([Result(node.output(0))], parameters), device)
    return network({f"x{i}": v for i, v in enumerate(values)})[0]


def check_as_on_cpu(core: Core, op_type: str, *values: np.ndarray, **attributes: object) -> None:
    found, expected = (_answer(core, device, op_type, list(values), attributes) for device in ("OPENCL", "CPU"))
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6, equal_nan=True)


@pytest.mark.parametrize("op_type", UNARY)
def test_special_values(core: Core, op_type: str) -> None:
    check_as_on_cpu(core, op_type, SPECIAL)


@pytest.mark.parametrize("op_type", BINARY)
def test_pairs_of_special_values(core: Core, op_type: str) -> None:
    x, y = (each.copy() for each in np.meshgrid(SPECIAL, SPECIAL))
    check_as_on_cpu(core, op_type, x, y)


@pytest.mark.parametrize("element", [np.int32, np.int64, np.int8, np.uint8])
@pytest.mark.parametrize("op_type", INTEGER)
def test_integers_at_their_limits(core: Core, op_type: str, element: type[np.integer]) -> None:
    """Also what overflows, and the least number divided by -1."""
    limits = np.iinfo(element)
    numbers = np.array([limits.min, limits.max, 0, 1, 3, 7, *([-1, -3, -7] if limits.min else [])], element)
    x, y = (each.copy() for each in np.meshgrid(numbers, numbers))
    y[y == 0] = 5
    check_as_on_cpu(core, op_type, x, y)


@pytest.mark.parametrize("element", [np.float32, np.int64, np.int8])
def test_limits_that_are_computed(core: Core, element: type[np.generic]) -> None:
    """Also those that cross, where the upper one holds."""
    x = np.arange(-9, 9).astype(element)
    for low, high in ((-3, 4), (4, -3)):
        check_as_on_cpu(core, "Clip", x, np.array(low, element), np.array(high, element))


@pytest.mark.parametrize("element", [np.int32, np.int64])
def test_powers_of_integers_by_floats(core: Core, element: type[np.integer]) -> None:
    """Roots of squares are whole, not the number below."""
    x = np.array([1, 4, 9, 25, 81, 121], element)
    check_as_on_cpu(core, "Pow", x, np.array([[0.5], [1], [0], [-1], [1.5]], np.float32))


@pytest.mark.parametrize("length", [5, 4100])
def test_statistics_of_layer_normalization(core: Core, length: int) -> None:
    """Of lines that fit registers and of longer ones: what a user reads beside the result."""
    x = np.random.default_rng(1).normal(3, 2, (3, length)).astype(np.float32)
    for index, expected in ((1, x.mean(1)), (2, 1 / np.sqrt(x.var(1) + 1e-5))):
        parameter = Parameter(f32, x.shape, "x")
        scale = Constant(np.ones(length, np.float32))
        node = ops.create("LayerNormalization", [parameter, scale], {"axis": 1}, num_outputs=3)
        network = core.compile_model(Model([Result(node.output(index))], [parameter]), "OPENCL")
        np.testing.assert_allclose(network({"x": x})[0].reshape(-1), expected, rtol=1e-5)


@pytest.mark.parametrize("element", [np.float32, np.uint8, np.int8])
@pytest.mark.parametrize("order", [0, 1])
def test_places_of_the_largest(core: Core, element: type[np.generic], order: int) -> None:
    """Of equal ones the first; the least number there is wins over padding."""
    numbers = np.random.default_rng(1).integers(0, 4, (2, 3, 6, 5)).astype(element)
    least = np.full_like(numbers, -np.inf if element is np.float32 else np.iinfo(element).min)
    x = Parameter(ElementType.from_numpy(numbers.dtype), numbers.shape, "x")
    window = {"kernel_shape": (3, 2), "strides": (2, 2), "pads": (1, 1, 0, 1), "storage_order": order}
    model = Model([Result(each) for each in ops.create("MaxPool", [x], window, num_outputs=2).outputs], [x])
    networks = [core.compile_model(model, device) for device in ("OPENCL", "CPU")]
    for given in (numbers, least):
        found, expected = (network({"x": given}) for network in networks)
        for index in (0, 1):
            np.testing.assert_array_equal(found[index], expected[index])


@pytest.mark.parametrize(
    "op_type", ["ReduceMax", "ReduceMin", "ReduceSum", "ReduceLogSumExp", "ReduceL2", "ReduceProd"]
)
@pytest.mark.parametrize(
    "values", [SPECIAL, np.zeros((0,), np.float32), np.full(2, -np.inf, np.float32), np.array(3, np.float32)]
)
def test_reductions_of_special_values(core: Core, op_type: str, values: np.ndarray) -> None:
    """Also of nothing, and of a scalar."""
    check_as_on_cpu(core, op_type, values, keepdims=0)


@pytest.mark.parametrize("op_type", ["ArgMax", "ArgMin"])
@pytest.mark.parametrize("last", [0, 1])
def test_extremes_among_special_values(core: Core, op_type: str, last: int) -> None:
    check_as_on_cpu(core, op_type, SPECIAL, axis=0, select_last_index=last)


@pytest.mark.parametrize("op_type", ["Softmax", "LogSoftmax"])
def test_softmax_of_special_values(core: Core, op_type: str) -> None:
    check_as_on_cpu(core, op_type, SPECIAL.reshape(2, 7), axis=-1)
    check_as_on_cpu(core, op_type, np.zeros((0, 3), np.float32), axis=-1)


# -- what follows from shapes ----------------------------------------------------------------------------------


def test_values_made_of_unknown_lengths(core: Core) -> None:
    """The device takes them while the lengths are unknown, and computes them for each."""
    x = Parameter(f32, ("N", 3), "x")
    shape = ops.create("Shape", [x])
    ones = ops.create("ConstantOfShape", [shape], {"value": np.array([2], np.float32)})
    size = ops.create("Cast", [ops.create("Size", [x])], {"to": 1})
    results = [Result(ops.create("Add", [x, ones]).output(0)), Result(ops.create("Mul", [x, size]).output(0))]
    network = core.compile_model(Model([*results, Result(shape.output(0))], [x]), "OPENCL")
    for rows in (1, 4, 0):
        value = np.ones((rows, 3), np.float32)
        added, scaled, lengths = (network({"x": value})[index] for index in range(3))
        np.testing.assert_array_equal(added, value + 2)
        np.testing.assert_array_equal(scaled, value * value.size)
        np.testing.assert_array_equal(lengths, [rows, 3])


def test_lengths_that_follow_from_computed_ones(core: Core) -> None:
    """Those of what is padded by a computed number, of which another number is made, and so on."""
    x = Parameter(f32, ("N",), "x")
    value: Node = x
    for _ in range(4):
        length = ops.create("Shape", [value])
        pads = ops.create("Concat", [Constant(np.array([0])), length], {"axis": 0})
        value = ops.create("Pad", [value, pads])
    model = Model([Result(ops.Relu(value))], [x])
    assert not core.query_model(model, "OPENCL").at(SupportLevel.REFUSED)
    network = core.compile_model(model, "OPENCL")
    for rows in (3, 1):
        expected = np.repeat(np.array([1, 0], np.float32), [rows, 15 * rows])
        np.testing.assert_array_equal(network([np.ones(rows, np.float32)])[0], expected)


@pytest.mark.parametrize("op_type", ["Reshape", "Expand"])
def test_lengths_that_only_an_inference_tells_are_left_to_another_device(core: Core, op_type: str) -> None:
    """Instead of a network that cannot be compiled."""
    x, target = Parameter(f32, (1, 6), "x"), Parameter(i64, (2,), "target")
    node = ops.create(op_type, [x, target])
    model = Model([Result(ops.Relu(node))], [x, target])
    assert set(core.query_model(model, "OPENCL").at(SupportLevel.REFUSED)) == {node.friendly_name}
    value = np.arange(6, dtype=np.float32)[None]
    (found,) = core.compile_model(model, "HETERO:OPENCL,CPU")(
        [value, np.array([3, 6 if op_type == "Expand" else 2])]
    ).values()
    np.testing.assert_array_equal(found, np.repeat(value, 3, 0) if op_type == "Expand" else value.reshape(3, 2))


# -- attributes together, for which the suite has no case: as on CPU -------------------------------------------


def check_node_as_on_cpu(
    core: Core, op_type: str, values: list[np.ndarray], *constants: object, **kept: object
) -> None:
    """Of exact results: integers, or sums of them."""
    parameters = [Parameter(ElementType.from_numpy(v.dtype), v.shape, f"x{i}") for i, v in enumerate(values)]
    node = ops.create(op_type, [*parameters, *(Constant(np.array(each)) for each in constants)], kept)
    model = Model([Result(node.output(0))], parameters)
    found, expected = (core.compile_model(model, device)(values)[0] for device in ("OPENCL", "CPU"))
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("mode", ["constant", "edge", "reflect", "wrap"])
@pytest.mark.parametrize("pads", [(2, -2, -1, 2), (-3, 2, 0, -2), (3, -1, -2, -1)])
def test_borders_repeat_what_negative_pads_leave(core: Core, mode: str, pads: tuple[int, ...]) -> None:
    """Not what they cut off."""
    x = np.arange(30, dtype=np.int32).reshape(6, 5)
    check_node_as_on_cpu(core, "Pad", [x], np.array(pads), mode=mode)


@pytest.mark.parametrize("auto_pad", ["SAME_UPPER", "SAME_LOWER"])
@pytest.mark.parametrize(("kernel", "more"), [(3, 1), (4, 1), (1, 0), (1, 1)])
def test_transposed_convolution_of_the_same_size(core: Core, auto_pad: str, kernel: int, more: int) -> None:
    """The padding of the output counts among what is cut off."""
    x, w = (np.arange(np.prod(s), dtype=np.float32).reshape(s) % 7 for s in ((1, 2, 4, 5), (2, 3, kernel, kernel)))
    padding = (more, 0) if more else None
    check_node_as_on_cpu(core, "ConvTranspose", [x], w, auto_pad=auto_pad, strides=(2, 2), output_padding=padding)


def test_a_mean_counts_no_padding_where_there_is_none(core: Core) -> None:
    """Of a window that reaches beyond the input."""
    check_node_as_on_cpu(
        core, "AveragePool", [np.ones((1, 1, 8, 4), np.float32)], kernel_shape=(2, 4), strides=(3, 1), dilations=(2, 1),
        auto_pad="VALID", ceil_mode=1, count_include_pad=1,
    )  # fmt: skip


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_one_element_of_pytorch_half_pixel_lies_at_the_first(core: Core, mode: str) -> None:
    """As ONNX has it for a result of length 1, whatever the scale."""
    x = np.array([[[3, 5, 8]]], np.float32)
    scales, kind = np.array([1, 1, 0.5], np.float32), "pytorch_half_pixel"
    check_node_as_on_cpu(
        core, "Resize", [x], np.zeros(0, np.float32), scales, mode=mode, coordinate_transformation_mode=kind
    )


@pytest.mark.parametrize("element", [np.uint8, np.int8])
def test_a_depth_beyond_what_bytes_hold(core: Core, element: type[np.integer]) -> None:
    """Each index marks one place, though the places' numbers wrap around in the indices' type."""
    limits = np.iinfo(element)
    values = np.array([0, 1, 43, limits.max, limits.min], element)
    indices = Parameter(ElementType.from_numpy(values.dtype), values.shape, "indices")
    marks = ops.create("OneHot", [indices, Constant(np.array(300)), Constant(np.array([0, 1], np.float32))])
    found = core.compile_model(Model([Result(marks.output(0))], [indices]), "OPENCL")([values])[0]
    np.testing.assert_array_equal(found, np.eye(300, dtype=np.float32)[values.astype(np.int64)])


@pytest.mark.parametrize("scale", [(3, 4), (1, 3, 1), (4, 1), (2, 1, 4), (1, 1, 4)])
def test_a_norm_whose_scale_differs_between_rows(core: Core, scale: tuple[int, ...]) -> None:
    """Which the operator allows: scale and shift broadcast to x, whatever axes are normalized."""
    draw = np.random.default_rng(0).standard_normal
    x = draw((2, scale[-2] if scale[-2] > 1 else 3, 4), np.float32)
    scales, shift = draw(scale, np.float32), draw(4, np.float32)
    check_as_on_cpu(core, "LayerNormalization", x, scales, shift, axis=-1)
    check_as_on_cpu(core, "LayerNormalization", x, scales, axis=-1)


# -- what moves by indices and lengths: as on CPU ---------------------------------------------------------------


@pytest.mark.parametrize("shape", [None, (1, 2, 7, 6)])
def test_of_elements_that_are_unpooled_to_one_place_the_last_stays(core: Core, shape: tuple[int, ...] | None) -> None:
    """As the suite has no indices twice, nor over several channels, nor from behind."""
    x = np.arange(1, 13, dtype=np.float32).reshape(1, 2, 3, 2)
    indices = np.array([0, 5, 5, 23, 3, 0, 24, 25, 24, 47, 30, -2], np.int64).reshape(x.shape)
    window = {"kernel_shape": (2, 2), "strides": (2, 2)}
    constants = [] if shape is None else [shape]
    check_node_as_on_cpu(core, "MaxUnpool", [x, indices], *constants, **window)


def test_an_index_to_unpool_to_that_is_out_of_range_fails_by_name(core: Core) -> None:
    x, indices = Parameter(f32, (1, 1, 2, 2), "x"), Parameter(i64, (1, 1, 2, 2), "indices")
    node = ops.MaxUnpool(x, indices, kernel_shape=(2, 2), strides=(2, 2), friendly_name="lookup")
    network = core.compile_model(Model([Result(node)], [x, indices]), "OPENCL")
    with pytest.raises(InputError, match=r"MaxUnpool `lookup`: index 16 is out of range for a dimension of 16"):
        network([np.ones((1, 1, 2, 2), np.float32), np.full((1, 1, 2, 2), 16)])


@pytest.mark.parametrize("time", [0, 1])
@pytest.mark.parametrize("element", [np.float32, np.int64, np.bool_])
def test_sequences_backwards(core: Core, time: int, element: type[np.generic]) -> None:
    """Of every length, zero and all of it among them."""
    x = (np.arange(4 * 3 * 5) % 7).astype(element).reshape((4, 3, 5) if time == 0 else (3, 4, 5))
    lengths = np.array([4, 0, 3])
    check_node_as_on_cpu(core, "ReverseSequence", [x, lengths], time_axis=time, batch_axis=1 - time)


@pytest.mark.parametrize("shape", [(3, 5), (5, 3)])
@pytest.mark.parametrize("k", [-1, 0, 2])
def test_diagonals_of_ones(core: Core, shape: tuple[int, int], k: int) -> None:
    check_node_as_on_cpu(core, "EyeLike", [np.zeros(shape, np.int32)], k=k, dtype=1)


@pytest.mark.parametrize("p", [1, 2, 3])
@pytest.mark.parametrize("axes", [1, 2, 3])
def test_norms_of_windows(core: Core, p: int, axes: int) -> None:
    """Of any degree, over one to three axes, with padding on one side only."""
    x = np.random.default_rng(p).normal(size=(2, 3, 7, 6, 5)[: 2 + axes]).astype(np.float32)
    window = {"kernel_shape": (3,) * axes, "strides": (2,) * axes, "pads": (1,) * axes + (0,) * axes, "ceil_mode": 1}
    check_as_on_cpu(core, "LpPool", x, p=p, **window)
    if p < 3:
        check_as_on_cpu(core, "GlobalLpPool", x, p=p)


@pytest.mark.parametrize(("mode", "starts"), [("linear", [0, 3]), ("circular", [4, 2]), ("linear", None)])
@pytest.mark.parametrize("axis", [1, -2])
def test_steps_of_a_cache(core: Core, mode: str, starts: list[int] | None, axis: int) -> None:
    """Each sample's at its own place, also over the end of a circular one."""
    past = np.arange(2 * 5 * 5 * 3, dtype=np.float32).reshape(2, 5, 5, 3)
    update = -1 - past[:, :2] if axis == 1 else -1 - past[:, :, :2]
    indices = [] if starts is None else [np.array(starts)]
    check_node_as_on_cpu(core, "TensorScatter", [past, update.copy(), *indices], mode=mode, axis=axis)


@pytest.mark.parametrize(("start", "told"), [(4, 5), (-1, -1)])
def test_a_step_beyond_the_cache_fails_by_name(core: Core, start: int, told: int) -> None:
    past, update = Parameter(f32, (1, 5, 3), "past"), Parameter(f32, (1, 2, 3), "update")
    starts = Parameter(i64, (1,), "starts")
    node = ops.TensorScatter(past, update, starts, friendly_name="cache")
    network = core.compile_model(Model([Result(node)], [past, update, starts]), "OPENCL")
    given = [np.zeros((1, 5, 3), np.float32), np.ones((1, 2, 3), np.float32)]
    with pytest.raises(InputError, match=rf"TensorScatter `cache`: index {told} is out of range for a dimension of 5"):
        network([*given, np.array([start])])
    assert network([*given, np.array([3])])[0].sum() == 6
