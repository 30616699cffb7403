"""Networks, ports, results and configurations take and give what Python and numpy programs use."""

from __future__ import annotations

import copy
import enum
import pickle
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine import Core, Model, ops
from engine.errors import DeviceNotFoundError, InputError, ModelError, PropertyError
from engine.ir import Constant, Dimension, Parameter, PartialShape, Result, Variable, f16, f32, i64
from engine.plugin_api import ExecutableNetwork
from engine.properties import CACHE_DIR, NUM_STREAMS, PERF_COUNT, PERFORMANCE_HINT


@pytest.fixture(scope="module")
def core() -> Core:
    return Core()


def sum_and_product() -> Model:
    x, y = Parameter(f32, [2, 3], "x"), Parameter(f32, [2, 3], "y")
    x.rt_info["layout"] = "NC"
    weights = Constant(np.arange(600, dtype=np.float32).reshape(200, 3)[:2], friendly_name="w")
    return Model([Result(ops.Mul(ops.Add(x, y), weights), "sum"), Result(ops.Mul(x, y), "product")], [x, y], name="m")


def one(device: str, core: Core) -> ExecutableNetwork:
    x = Parameter(f32, [2, 3], "x")
    return core.compile_model(Model([Result(ops.Cast(x, to=i64.onnx), "y")], [x], name="one"), device)


# -- ports and results ----------------------------------------------------------------------------------------


def test_a_static_shape_is_one_of_numpy() -> None:
    assert np.zeros(PartialShape([2, 3])).shape == (2, 3)
    assert int(Dimension(7)) == 7
    assert list(range(5))[Dimension(2)] == 2
    for make in (lambda: np.zeros(PartialShape([2, None])), lambda: int(Dimension(1, 3))):
        with pytest.raises(ModelError, match="dynamic"):
            make()


def test_ports_by_name_index_or_alone(core: Core) -> None:
    network, single = core.compile_model(sum_and_product(), "TEMPLATE"), one("TEMPLATE", core)
    assert network.input("y") is network.input(1) is network.inputs[1]
    assert network.output("sum") == network.outputs[0]
    assert single.input() is single.inputs[0]
    assert (single.input().dtype, single.output().dtype) == (np.float32, np.int64)
    assert {network.input("x"): 1}[network.inputs[0]] == 1  # ports are hashable
    with pytest.raises(InputError, match=r"has 2 inputs, so input\(\) needs a name or an index: x, y"):
        network.input()
    with pytest.raises(InputError, match="no output 'total'"):
        network.output("total")


def test_a_single_output_is_an_array(core: Core) -> None:
    result = one("TEMPLATE", core)(np.full((2, 3), 1.5, np.float32))
    assert np.asarray(result).tolist() == [[1, 1, 1], [1, 1, 1]]
    assert np.asarray(result) is result[0]
    assert np.asarray(result, np.float64).dtype == np.float64
    copied = np.array(result)
    copied[:] = 0
    assert result["y"].max() == 1
    both = core.compile_model(sum_and_product(), "TEMPLATE")([np.ones((2, 3), np.float32)] * 2)
    with pytest.raises(InputError, match=r"2 outputs \(sum, product\)"):
        np.asarray(both)


# -- configurations -------------------------------------------------------------------------------------------


class Hint(enum.Enum):
    FAST = "latency"


@pytest.mark.parametrize(
    ("key", "given", "stored"),
    [
        (PERFORMANCE_HINT, "latency", "LATENCY"),
        (PERFORMANCE_HINT, Hint.FAST, "LATENCY"),
        (PERFORMANCE_HINT, np.str_("Throughput"), "THROUGHPUT"),
        (NUM_STREAMS, np.int64(2), 2),
        (NUM_STREAMS, np.uint8(3), 3),
        (PERF_COUNT, np.bool_(True), True),
        (CACHE_DIR, Path("cache") / "here", str(Path("cache") / "here")),
    ],
)
def test_config_values(core: Core, key: Any, given: object, stored: object) -> None:
    assert key.validate(given) == stored
    assert type(key.validate(given)) is type(stored)


@pytest.mark.parametrize(
    ("key", "given"),
    [(NUM_STREAMS, np.float32(1.5)), (NUM_STREAMS, np.array([2])), (PERF_COUNT, 1), (PERFORMANCE_HINT, "fast")],
)
def test_config_values_that_are_something_else(key: Any, given: object) -> None:
    with pytest.raises(PropertyError, match=key.name):
        key.validate(given)


# -- what is shown ----------------------------------------------------------------------------------------------


def test_what_is_shown(core: Core) -> None:
    model = sum_and_product()
    network = core.compile_model(model, "TEMPLATE", {"PERF_COUNT": True})
    request = network.create_infer_request()
    assert repr(network.inputs[0]) == "<Port x: f32[2,3] (NC)>"
    assert repr(request) == "<TEMPLATE network `m`: request 0, idle>"
    assert "TEMPLATE" in repr(core)
    for shown, words in (
        (network, ["TEMPLATE network m", "<td>x</td><td>f32[2,3]</td><td>NC</td>"]),
        (model, ["Model m", "<td>Mul</td><td>2</td>", "<td>Add</td><td>1</td>"]),
        (core, ["<td>TEMPLATE</td>"]),
        (network.inputs[0], ["<td>x</td><td>f32[2,3]</td><td>NC</td>"]),
        (request, ["request 0, idle", "<td>input</td><td>x</td><td>f32[2,3]</td>"]),
        (network([np.ones((2, 3), np.float32)] * 2), ["<td>float32[2, 3]</td><td>0, 2, 4, 6, ..</td>"]),
        (network.config, ["<td>PERF_COUNT</td><td>True</td><td>given</td>"]),
    ):
        page = shown._repr_html_()  # type: ignore[attr-defined]
        assert all(word in page for word in words), page


def test_what_is_shown_is_escaped() -> None:
    x = Parameter(f32, [1], "<script>")
    page = Model([Result(ops.Relu(x), "y")], [x], name="a<b")._repr_html_()
    assert "<script>" not in page
    assert "a&lt;b" in page


# -- pickles ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("device", ["TEMPLATE", "CPU", "HETERO:CPU,TEMPLATE"])
def test_networks_travel_to_processes(device: str, core: Core) -> None:
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        found = pool.submit(one(device, core), x).result(120)
    np.testing.assert_array_equal(found["y"], x.astype(np.int64))


def test_networks_that_cannot_travel() -> None:
    core = Core()
    network = one("TEMPLATE", core)
    pickled = pickle.dumps(network)
    assert np.asarray(pickle.loads(pickled)(np.ones((2, 3), np.float32))).sum() == 6
    from engine_template import TemplatePlugin

    core.register_plugin("OTHER", TemplatePlugin)
    pickled = pickle.dumps(one("OTHER", core))
    with pytest.raises(DeviceNotFoundError, match="OTHER"):
        pickle.loads(pickled)
    context = core.create_context("TEMPLATE")
    x = Parameter(f16, [1], "x")
    of_context = core.compile_model(Model([Result(ops.Relu(x), "y")], [x]), context)
    with pytest.raises(TypeError, match="remote context belongs to this process"):
        pickle.dumps(of_context)


def test_models_are_pickled_whole() -> None:
    model = sum_and_product()
    big, past = Constant(np.arange(4096, dtype=np.float32)), Parameter(f32, [4096], "past")
    model.add_result(ops.Add(big, big), "big")
    model.add_parameter(past)
    model.add_result(ops.Neg(past), "present")
    model.add_variable(Variable("v", "past", "present", np.ones(4096, np.float32)))
    model.metadata["author"] = "me"
    for other in (pickle.loads(pickle.dumps(model)), copy.deepcopy(model), copy.copy(model)):
        assert other is not model
        assert [str(p.type) for p in other.parameters] == [str(p.type) for p in model.parameters]
        assert other.metadata == model.metadata
        assert [variable.name for variable in other.variables] == ["v"]
        values = [np.full((2, 3), 2, np.float32), np.ones((2, 3), np.float32), np.ones(4096, np.float32)]
        for a, b in zip(ops.evaluate_model(other, values), ops.evaluate_model(model, values), strict=True):
            np.testing.assert_array_equal(a, b)
