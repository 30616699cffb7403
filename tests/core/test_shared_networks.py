"""A model that is compiled again while its network is in use shares plans and weights.

If these fail, each worker of a program pays for the weights again, or gets the network of a file as it was before.
"""

from __future__ import annotations

import gc
import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from engine import Core
from engine.core import model_files
from engine.core.model_files import may_be_written
from engine.core.storing import wait_until_stored
from engine.errors import OutOfMemoryError

WIDTH = 512


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENGINE_CACHE_DIR", str(tmp_path / "networks"))
    monkeypatch.setattr(model_files, "SETTLED_NS", 0)


def write(path: Path, factor: float, shape: list[Any] | None = None) -> Path:
    """A product by a diagonal matrix of `factor`, in a file that has settled."""
    weight = numpy_helper.from_array(np.diag(np.full(WIDTH, factor, np.float32)), "w")
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, shape or [1, WIDTH]) for name in "xy")
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"])], "product", [x], [y], [weight])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10), path)
    time.sleep(0.01)  # a later change has another time
    return path


def ones() -> np.ndarray[Any, Any]:
    return np.ones((1, WIDTH), np.float32)


def weights_of(network: Any) -> set[int]:
    """The addresses of the packed weights."""
    return {array.ctypes.data for array in network.weights.packed.values()}


def test_networks_of_one_file_have_one_copy_of_the_weights(tmp_path: Path) -> None:
    core, path = Core(), write(tmp_path / "model.onnx", 3)
    first = core.compile_model(path, "CPU")
    others = [core.compile_model(path, "CPU") for _ in range(7)]
    assert weights_of(first)
    assert all(weights_of(each) == weights_of(first) for each in others)
    assert all(np.array_equal(each({"x": ones()})["y"], 3 * ones()) for each in [first, *others])


def test_a_network_outlives_the_one_that_it_shares_with(tmp_path: Path) -> None:
    core, path = Core(), write(tmp_path / "model.onnx", 3)
    first = core.compile_model(path, "CPU")
    second = core.compile_model(path, "CPU")
    del first
    gc.collect()
    assert np.array_equal(second({"x": ones()})["y"], 3 * ones())


def test_a_file_that_has_changed_is_compiled_again(tmp_path: Path) -> None:
    core, path = Core(), write(tmp_path / "model.onnx", 3)
    first = core.compile_model(path, "CPU")
    status = path.stat()
    write(path, 5)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert np.array_equal(core.compile_model(path, "CPU")({"x": ones()})["y"], 5 * ones())
    assert np.array_equal(first({"x": ones()})["y"], 3 * ones())


def test_other_configurations_share_nothing(tmp_path: Path) -> None:
    core, path = Core(), write(tmp_path / "model.onnx", 3)
    first = core.compile_model(path, "CPU")
    assert not weights_of(core.compile_model(path, "CPU", {"INFERENCE_NUM_THREADS": 1})) & weights_of(first)
    assert not weights_of(core.compile_model(path, "CPU", {"CACHE_DIR": ""})) & weights_of(first)


def test_networks_that_share_run_at_once(tmp_path: Path) -> None:
    core, path = Core(), write(tmp_path / "model.onnx", 3)
    networks = [core.compile_model(path, "CPU") for _ in range(4)]
    inputs = [np.full((1, WIDTH), number, np.float32) for number in range(4)]

    def run(number: int) -> bool:
        return all(np.array_equal(networks[number]({"x": inputs[number]})["y"], 3 * inputs[number]) for _ in range(200))

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(run, range(4)))


def test_open_lengths_are_not_shared_and_right(tmp_path: Path) -> None:
    core, path = Core(), write(tmp_path / "model.onnx", 3, ["n", WIDTH])
    networks = [core.compile_model(path, "CPU") for _ in range(2)]
    for network, rows in zip(networks, (2, 3), strict=True):
        x = np.ones((rows, WIDTH), np.float32)
        assert np.array_equal(network({"x": x})["y"], 3 * x)


def external(path: Path, factor: float) -> Path:
    """The product, with its matrix in another file."""
    write(path, factor)
    model = onnx.load(path)
    onnx.save(model, path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    time.sleep(0.01)
    return path.with_name("weights.bin")


def test_weights_that_a_program_can_still_write_are_read_again(tmp_path: Path) -> None:
    """Writing to mapped memory need not change the times of the file."""
    weights = external(tmp_path / "model.onnx", 3)
    mapped = np.memmap(weights, np.float32, "r+")
    mapped[0] = 3
    if not may_be_written(weights):
        pytest.skip("this system does not tell whether a file is written to")
    for factor in (3, 5):
        mapped[: WIDTH * WIDTH] = np.diag(np.full(WIDTH, factor, np.float32)).ravel()
        for core in (Core(), Core()):
            network = core.compile_model(tmp_path / "model.onnx", "CPU")
            assert np.array_equal(network({"x": ones()})["y"], factor * ones())
            wait_until_stored()


def test_other_limits_and_other_names_share_nothing(tmp_path: Path) -> None:
    """A limit affects no plan, and a network has the name of its file if the model has none."""
    core, path = Core(), write(tmp_path / "model.onnx", 3)
    first = core.compile_model(path, "CPU")
    second = core.compile_model(path, "CPU", {"MAX_TENSOR_BYTES": 1 << 30})
    assert (first.get_property("MAX_TENSOR_BYTES"), second.get_property("MAX_TENSOR_BYTES")) == (0, 1 << 30)
    os.link(path, tmp_path / "link.onnx")
    other = core.compile_model(tmp_path / "link.onnx", "CPU")
    assert not weights_of(other) & weights_of(first)


def test_a_stored_network_keeps_the_limit_of_its_values(tmp_path: Path) -> None:
    core, path = Core(), write(tmp_path / "model.onnx", 3)
    config = {"CACHE_DIR": str(tmp_path / "cache")}
    core.compile_model(path, "CPU", config).export_model(tmp_path / "network.blob")
    for limited in (
        lambda: core.compile_model(path, "CPU", config | {"MAX_TENSOR_BYTES": 100}),
        lambda: core.import_model(tmp_path / "network.blob", config={"MAX_TENSOR_BYTES": 100}),
    ):
        with pytest.raises(OutOfMemoryError, match=r"MatMul.*2048 bytes, more than the 100 bytes of MAX_TENSOR_BYTES"):
            limited()
