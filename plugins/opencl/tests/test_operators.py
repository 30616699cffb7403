"""Operators on a device that poses as a GPU, indices that are out of range, and lengths that are computed.

`test_operator_suite.py` runs every operator on the device as it is.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from engine_opencl.compiler import build_plan
from engine_opencl.devices.device import DeviceFacts, device_of
from engine_opencl.lowering import OpenclGraph
from engine_opencl.transform import prepare_model

from engine import Core, Model, ops
from engine.errors import InputError
from engine.ir import Constant, Node, Parameter, Result
from engine.ir.element_type import f32, i32, i64
from engine.plugin_api import SupportLevel
from engine.testing.onnx_suite import CASES, SuiteCase, assert_same, read_case, run_case
from engine.testing.operators import with_constants

_MUST_RUN = 1651
"""Of ONNX's node cases, whole or with constants; what is refused may only become less."""
_MUST_DIFFER = 350
"""Of those: for which GPUs have kernels of their own; 393 on Intel's runtime, whose facts decide some."""
NODE_CASES = sorted(name for name, case in CASES.items() if case.kind == "node")


@pytest.fixture(scope="module")
def core() -> Core:
    return Core()


def accepted(core: Core, name: str) -> SuiteCase | None:
    """A case as OPENCL supports it: unchanged, or else with constants; None if it does not."""
    for case in (CASES[name], with_constants(CASES[name])):
        if case is not None and is_accepted(core, case):
            return case
    return None


def is_accepted(core: Core, case: SuiteCase) -> bool:
    """Whether every operation of the case's model has a kernel, and there is one."""
    model = read_case(core, case)
    answer = core.query_model(model, "OPENCL")
    return bool(answer.at(SupportLevel.NATIVE)) and not answer.at(SupportLevel.REFUSED)


@pytest.mark.slow
def test_claims(core: Core) -> None:
    assert sum(accepted(core, name) is not None for name in NODE_CASES) >= _MUST_RUN


# -- kernels for GPUs, on a device that poses as one -----------------------------------------------------------

# Without duplicates.
GPU_CASES = [name for name in NODE_CASES if not name.endswith("_expanded")]


def sources(prepared: OpenclGraph, facts: DeviceFacts) -> list[str]:
    """The kernels that a device of this kind runs."""
    return [launch.source for launch in build_plan(prepared, facts).launches]


def differs(core: Core, name: str) -> bool:
    """Whether a GPU gets other kernels for a case than a CPU."""
    case = accepted(core, name)
    if case is None:
        return False
    facts = device_of("0").facts
    prepared = prepare_model(read_case(core, case), facts)
    if prepared.bound:  # kernels are for known values
        constant = with_constants(CASES[name])
        if constant is None:
            return False
        prepared = prepare_model(read_case(core, constant), facts)
    return sources(prepared, replace(facts, kind="cpu")) != sources(prepared, replace(facts, kind="gpu"))


@pytest.mark.slow
def test_gpus_have_kernels_of_their_own(core: Core) -> None:
    assert sum(differs(core, name) for name in GPU_CASES) >= _MUST_DIFFER


@pytest.mark.parametrize("name", GPU_CASES)
def test_case_on_a_gpu(core: Core, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case = accepted(core, name)
    if case is None or not differs(core, name):
        pytest.skip("refused by the query, or run by the kernels for CPUs")
    device = device_of("0")
    monkeypatch.setattr(device, "facts", replace(device.facts, kind="gpu"))
    for got, expected in run_case(core, case, "OPENCL"):
        assert_same(got, expected, case)


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


# -- what follows from shapes ----------------------------------------------------------------------------------


def test_values_made_of_unknown_lengths(core: Core) -> None:
    """The device accepts them while the lengths are unknown, and computes them for each set of lengths."""
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
    """Lengths of a Pad by a computed number, from which another number is computed, and so on."""
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
    """Otherwise the network could not be compiled. Those that are inputs are known when a plan is made."""
    x, given = Parameter(f32, (1, 6), "x"), Parameter(i64, (2,), "target")
    value, lengths = np.arange(6, dtype=np.float32)[None], np.array([3, 6 if op_type == "Expand" else 2])
    nothing = ops.Cast(ops.Mul(ops.ReduceSum(x, keepdims=0), Constant(np.float32(0))), to=i64.onnx)
    for target, device in ((ops.Add(given, nothing), "HETERO:OPENCL,CPU"), (given, "OPENCL")):
        node = ops.create(op_type, [x, target])
        model = Model([Result(ops.Relu(node))], [x, given])
        is_refused = node.friendly_name in core.query_model(model, "OPENCL").at(SupportLevel.REFUSED)
        assert is_refused is (device != "OPENCL")
        (found,) = core.compile_model(model, device)([value, lengths]).values()
        np.testing.assert_array_equal(found, np.repeat(value, 3, 0) if op_type == "Expand" else value.reshape(3, 2))


# -- attributes together, for which the suite has no case: as on CPU -------------------------------------------


# -- what moves by indices and lengths: as on CPU ---------------------------------------------------------------


def test_an_index_to_unpool_to_that_is_out_of_range_fails_by_name(core: Core) -> None:
    x, indices = Parameter(f32, (1, 1, 2, 2), "x"), Parameter(i64, (1, 1, 2, 2), "indices")
    node = ops.MaxUnpool(x, indices, kernel_shape=(2, 2), strides=(2, 2), friendly_name="lookup")
    network = core.compile_model(Model([Result(node)], [x, indices]), "OPENCL")
    with pytest.raises(InputError, match=r"MaxUnpool `lookup`: index 16 is out of range for a dimension of 16"):
        network([np.ones((1, 1, 2, 2), np.float32), np.full((1, 1, 2, 2), 16)])


@pytest.mark.parametrize("length", [4, -1, 2**31 - 1])
def test_a_sequence_length_out_of_range_fails_by_name(core: Core, length: int) -> None:
    """As on other devices; it gave the results of another length. The network stays usable."""
    x, lengths = Parameter(f32, (3, 2, 2), "x"), Parameter(i64, (2,), "lengths")
    weights = [Constant(np.ones((1, rows, columns), np.float32)) for rows, columns in ((4, 2), (4, 1))]
    short = ops.Cast(lengths, to=i32.onnx)
    nodes = [
        ops.ReverseSequence(x, lengths, friendly_name="turn"),
        ops.create("LSTM", [x, *weights, None, short], {"hidden_size": 1}, friendly_name="layer"),
    ]
    for node in nodes:
        network = core.compile_model(Model([Result(node.output(0))], [x, lengths]), "OPENCL")
        value = np.ones((3, 2, 2), np.float32)
        for _ in range(2):
            with pytest.raises(
                InputError,
                match=rf"{node.op_type} `{node.friendly_name}`: a sequence length {length} is out of range for "
                r"sequences of 3 steps; expected 0..3",
            ):
                network([value, np.array([1, length])])
            assert np.isfinite(network([value, np.array([0, 3])])[0]).all()


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
