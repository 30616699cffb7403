"""Batches of Ray Data as inferences, without Ray. If these fail, results belong to other rows."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from engine_ray import NodeFit, predictor
from engine_ray.batches import fixed_rows, infer_batch
from engine_ray.failed_rows import infer_rows
from engine_ray.job import Job
from engine_ray.nodes import pool_size, raise_if_none, refused_selector, slots_of
from engine_ray.predictor import _default_slot
from engine_ray.progress import Journal

from engine import Core, ops
from engine.blob import BlobReader, BlobWriter, is_blob
from engine.errors import (
    BlobIncompatibleError,
    DeviceError,
    DeviceNotFoundError,
    InputError,
    PluginError,
    PropertyError,
    UnsupportedError,
)
from engine.ir import Constant, Model, Parameter, PartialShape, Result, f32, i64
from engine.plugin_api import ExecutableNetwork


def network(rows: int | None) -> ExecutableNetwork:
    """y = 2 x and the sum of each row."""
    x = Parameter(f32, PartialShape([rows, 4]), "x")
    total = ops.ReduceSum(x, Constant(np.array([1])), keepdims=0)
    return Core().compile_model(
        Model([Result(ops.Add(x, x), "y"), Result(total, "sum")], [x], name="twice"), "TEMPLATE"
    )


def batch(rows: int) -> dict[str, Any]:
    return {"x": np.arange(4 * rows, dtype=np.float32).reshape(rows, 4), "id": np.arange(rows), "other": np.ones(rows)}


@pytest.mark.parametrize("rows_each", [None, 1, 3, 8])
@pytest.mark.parametrize("rows", [1, 2, 3, 7, 8])
def test_results_are_those_of_the_rows(rows: int, rows_each: int | None) -> None:
    compiled, given = network(rows_each), batch(rows)
    assert fixed_rows("twice", compiled.inputs) == rows_each
    results = infer_batch(compiled, rows_each, given, ["id"])
    assert list(results) == ["id", "y", "sum"]
    np.testing.assert_array_equal(results["id"], given["id"])
    np.testing.assert_array_equal(results["y"], 2 * given["x"])
    np.testing.assert_array_equal(results["sum"], given["x"].sum(1))


@pytest.mark.parametrize("rows_each", [None, 3])
def test_an_empty_batch_has_empty_results(rows_each: int | None) -> None:
    results = infer_batch(network(rows_each), rows_each, batch(0), [])
    assert {name: value.shape for name, value in results.items()} == {"y": (0, 4), "sum": (0,)}


def test_columns_that_are_missing_or_ragged_are_named() -> None:
    compiled = network(None)
    with pytest.raises(InputError, match="no column `x`; it has image"):
        infer_batch(compiled, None, {"image": np.ones((2, 4))}, [])
    with pytest.raises(InputError, match="no column `key`"):
        infer_batch(compiled, None, batch(2), ["key"])
    ragged = np.array([np.ones(3), np.ones(4)], object)
    with pytest.raises(InputError, match=r"column `x` has rows of different shapes: row 0 has \[3\], and row 1 \[4\]"):
        infer_batch(compiled, None, {"x": ragged}, [])
    with pytest.raises(InputError, match="element type is float64"):
        infer_batch(compiled, None, {"x": np.ones((2, 4))}, [])


def lookup(rows: int | None) -> ExecutableNetwork:
    """The rows of a table with 4 rows; other numbers of a row are an error."""
    x = Parameter(i64, PartialShape([rows, 1]), "x")
    table = Constant(np.arange(8, dtype=np.float32).reshape(4, 2))
    found = ops.Gather(table, ops.Squeeze(x, Constant(np.array([1]))))
    return Core().compile_model(Model([Result(found, "y")], [x], name="lookup"), "TEMPLATE")


@pytest.mark.parametrize("rows_each", [None, 1, 3])
@pytest.mark.parametrize("wrong", [(), (0,), (5,), (1, 2, 6), tuple(range(7))])
def test_failed_rows_have_their_reason_and_others_their_result(rows_each: int | None, wrong: tuple[int, ...]) -> None:
    given = np.arange(7)[:, None] % 4
    given[list(wrong)] = 9
    results, failed = infer_rows(lookup(rows_each), rows_each, {"x": given, "id": np.arange(7)}, ["id"], "why")
    assert failed == len(wrong)
    assert list(results) == ["id", "y", "why"]
    for row in range(7):
        if row in wrong:
            assert "Gather" in results["why"][row]
            assert np.isnan(results["y"][row]).all()
        else:
            assert results["why"][row] == ""
            np.testing.assert_array_equal(results["y"][row], [2 * (row % 4), 2 * (row % 4) + 1])


def test_rows_of_other_shapes_fail_alone() -> None:
    ragged = np.array([[1.0, 2, 3, 4], [1.0, 2], [5.0, 6, 7, 8]], object)
    results, failed = infer_rows(network(None), None, {"x": ragged}, (), "why")
    assert failed == 1
    assert [bool(why) for why in results["why"]] == [False, True, False]
    np.testing.assert_array_equal(results["sum"][[0, 2]], [10, 26])


def test_results_of_different_shapes_are_arrays_of_objects() -> None:
    x = Parameter(f32, PartialShape([None, None]), "x")
    compiled = Core().compile_model(Model([Result(ops.Add(x, x), "y")], [x], name="twice"), "TEMPLATE")
    rows = np.array([[1.0, 2, 3], [1.0], ["a"], [2.0]], object)
    results, failed = infer_rows(compiled, None, {"x": rows}, (), "why")
    assert failed == 1
    assert [row.tolist() for row in results["y"]] == [[2, 4, 6], [2], [], [4]]


def test_errors_that_are_not_of_rows_are_raised() -> None:
    with pytest.raises(InputError, match="no column `x`"):
        infer_rows(network(None), None, {"image": np.ones((2, 4))}, (), "why")

    class Lost:
        name = "lost"
        inputs = outputs = network(None).inputs

        def input(self, name: str) -> Any:
            return self.inputs[0]

        def __call__(self, inputs: Any) -> Any:
            raise DeviceError("it is gone")

    with pytest.raises(DeviceError, match="gone"):
        infer_rows(cast("ExecutableNetwork", Lost()), None, batch(3), (), "why")


def objects(*rows: Any) -> Any:
    """A column as Arrow gives one of lists: an array of objects."""
    column = np.empty(len(rows), object)
    for index, row in enumerate(rows):
        column[index] = row
    return column


@pytest.mark.parametrize("rows_each", [None, 3])
@pytest.mark.parametrize("rows", [0, 1, 2, 4])
def test_columns_of_lists_of_one_length(rows: int, rows_each: int | None) -> None:
    """Parquet's `list<float>`: pandas and Arrow write arrays of one dimension so, and lists of them as lists."""
    given = batch(rows)
    results = infer_batch(network(rows_each), rows_each, {"x": objects(*given["x"])}, [])
    np.testing.assert_array_equal(results["y"], 2 * given["x"])
    x = Parameter(f32, PartialShape([None, 2, None]), "x")
    deep = Core().compile_model(Model([Result(ops.Add(x, x), "y")], [x]), "TEMPLATE")
    nested = objects(*(objects(*row.reshape(2, 2)) for row in given["x"]))
    found = infer_batch(deep, None, {"x": nested}, [])["y"]
    assert found.shape == (rows, 2, 2 if rows else 1)
    if rows:
        np.testing.assert_array_equal(found.reshape(given["x"].shape), 2 * given["x"])


def nested(depth: int, innermost: Any = 1.0) -> Any:
    found = innermost
    for _ in range(depth):
        found = [found]
    return found


def containing_itself() -> Any:
    found = objects(None)
    found[0] = found
    return found


@pytest.mark.parametrize("row", [[1, 2.5, 3, 4], (1.0, 2.5, 3.0, 4.0), objects(1.0, 2.5, 3.0, 4), [np.float32(1)] * 4])
def test_columns_of_numbers_have_the_type_of_the_input(row: Any) -> None:
    """As `network({"x": [[1.0]]})` has it; arrays, and numpy's numbers, keep their types."""
    found = infer_batch(network(None), None, {"x": objects(row, np.ones(4, np.float32))}, [])["y"]
    np.testing.assert_array_equal(found, [2 * np.array(list(row), np.float32), [2] * 4])


def test_columns_that_are_masked_are_refused() -> None:
    with pytest.raises(InputError, match="column `x` has a masked array, which would lose its mask; fill it first"):
        infer_batch(network(3), 3, {"x": np.ma.ones((2, 4), np.float32)}, [])


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ((np.ones(4, np.float32), None), "row 1 has a missing value"),
        ((np.ones(4, np.float32), "text"), "row 1 has a str"),
        (({"a": 1},), "row 0 has a dict"),
        ((objects(1.0, None, 2.0, 3.0),), "row 0 has a missing value"),
        ((objects(np.ones(2, np.float32), np.ones(3, np.float32)),), r"row 0 has lists of different shapes, \(2,\)"),
        (([1.0, 2.0, 3.0, "x"],), "row 0 has a str"),
        ((np.ones(4),), "element type is float64"),
        (([1.0, True, 2.0, 3.0],), "row 0: it holds a bool; expected float or int for f32"),
        (([1e39] * 4,), "row 0: not every number fits f32"),
        (([[1.0, 2.0], [3.0]],), "row 0: its lists have unequal lengths"),
        ((nested(2000),), "row 0: its lists are nested more than 64 deep"),
        ((nested(70, np.ones(4)),), "nested more than 64 deep"),
        ((containing_itself(),), "nested more than 64 deep"),
        ((containing_itself().tolist(),), "nested more than 64 deep"),
        ((np.ones(4, np.float32), np.ma.ones(4, np.float32)), "row 1 has a masked array, which would lose its mask"),
        (([1.0, np.ma.masked, 2.0, 3.0],), "row 0 has a masked array"),
        (([np.str_("a")] * 4,), "row 0 has an array of str32"),
    ],
)
def test_columns_of_objects_that_are_no_numbers_say_so(rows: Any, said: str) -> None:
    with pytest.raises(InputError, match=said):
        infer_batch(network(None), None, {"x": objects(*rows)}, [])


def test_networks_that_take_no_batches_are_refused() -> None:
    scalar, x = Parameter(f32, PartialShape([]), "scalar"), Parameter(f32, PartialShape([2, 4]), "x")
    compiled = Core().compile_model(Model([ops.Add(x, scalar)], [x, scalar]), "TEMPLATE")
    with pytest.raises(UnsupportedError, match="input `scalar` is a scalar"):
        fixed_rows("n", compiled.inputs)
    other = Parameter(f32, PartialShape([3, 4]), "other")
    compiled = Core().compile_model(Model([ops.Concat(x, other, axis=0)], [x, other]), "TEMPLATE")
    with pytest.raises(UnsupportedError, match="'x': 2, 'other': 3"):
        fixed_rows("n", compiled.inputs)
    compiled = Core().compile_model(Model([Result(ops.ReduceSum(x), "total")], [x]), "TEMPLATE")
    with pytest.raises(UnsupportedError, match=r"output `total` has shape \[1, 1\] for 2 rows"):
        infer_batch(compiled, 2, batch(2), [])


def test_networks_without_rows_are_refused() -> None:
    """Otherwise their results would have no rows, whatever the batch has."""
    with pytest.raises(UnsupportedError, match="the length of axis 0 of the inputs is 0"):
        fixed_rows("n", network(0).inputs)
    compiled = Core().compile_model(Model([ops.Identity(Constant(np.ones((2, 4))))], []), "TEMPLATE")
    with pytest.raises(UnsupportedError, match="the network has no inputs"):
        fixed_rows("n", compiled.inputs)


@pytest.mark.parametrize(
    ("device", "config", "slot"),
    [
        ("CPU", {"INFERENCE_NUM_THREADS": 4}, {"num_cpus": 4}),
        ("TEMPLATE", {"INFERENCE_NUM_THREADS": 1}, {"num_cpus": 1}),
        ("OPENCL", {"INFERENCE_NUM_THREADS": 1}, {"num_cpus": 1, "num_gpus": 1}),
        ("OPENCL.1", {}, {"num_cpus": 1, "num_gpus": 1}),
        ("HETERO:OPENCL,CPU", {"INFERENCE_NUM_THREADS": 2}, {"num_cpus": 2, "num_gpus": 1}),
        ("BATCH:CPU(4)", {"INFERENCE_NUM_THREADS": 2}, {"num_cpus": 2}),
    ],
)
def test_a_worker_takes_a_gpu_if_its_device_may_use_one(device: str, config: Any, slot: Any) -> None:
    """Ray hides the GPUs of a node from a worker that takes none."""
    missing = {name for name in ("OPENCL", "HETERO", "BATCH") if name in device} - set(Core().installed_devices)
    if missing:
        pytest.skip(f"not installed: {missing}")
    assert _default_slot(device, config, SimpleNamespace(cluster_resources=lambda: {"CPU": 8.0, "GPU": 2.0})) == slot
    slot.pop("num_gpus", None)
    assert _default_slot(device, config, SimpleNamespace(cluster_resources=lambda: {"CPU": 8.0})) == slot


def test_workers_of_one_node_compile_into_a_cache_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers start at the same time: without waiting, each would compile."""
    x = Parameter(f32, PartialShape([None, 4]), "x")
    model = Model([Result(ops.Add(x, x), "y")], [x])

    def refuse(*_: object) -> None:
        raise BlobIncompatibleError("another CPU")

    compiles, compile_model, both = [], Core.compile_model, threading.Barrier(4)

    def compile_slowly(core: Core, *arguments: Any) -> ExecutableNetwork:
        compiles.append(1)
        assert len(compiles) == 1, "two compile at the same time"
        compiled = compile_model(core, *arguments)
        compiles.pop()
        return compiled

    monkeypatch.setattr(Core, "import_model", refuse)
    monkeypatch.setattr(Core, "compile_model", compile_slowly)
    monkeypatch.setattr("engine_ray.job.ray_package", lambda: SimpleNamespace(get=lambda reference: reference))
    config = {"CACHE_DIR": str(tmp_path / "cache")}
    given = Job("twice", "TEMPLATE", config, None, str(tmp_path / "blob"), model, (), {}, None)
    found: list[tuple[bool, str]] = []

    def work() -> None:
        both.wait()
        opened, why = given.open_network()
        found.append((opened.loaded_from_cache, why))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == [(False, "another CPU"), *[(True, "another CPU")] * 3]


def job() -> Job:
    return Job("twice", "CPU", {}, None, None, None, (), {"num_cpus": 2}, None)


def exported(device: str, path: Path) -> str:
    x = Parameter(f32, PartialShape([None, 4]), "x")
    Core().compile_model(Model([Result(ops.Add(x, x), "y")], [x]), device).export_model(path)
    return str(path)


@pytest.mark.parametrize(
    ("device", "is_refused"),
    [("CPU", False), ("HETERO:CPU", False), ("HETERO:CPU,TEMPLATE", True), ("AUTO:TEMPLATE,CPU", False)],
)
def test_a_node_without_a_device_of_the_list_is_refused(
    device: str, is_refused: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its workers would fail one after the other, and end the job. AUTO goes on with the devices that are there."""
    name = device.partition(":")[0]
    if name not in Core().installed_devices:
        pytest.skip(f"not installed: {name}")
    path, get_property = exported(device, tmp_path / "blob"), Core.get_property

    def without_template(core: Core, where: str, key: str) -> Any:
        return () if (where, key) == ("TEMPLATE", "AVAILABLE_DEVICES") else get_property(core, where, key)

    stated = Job("twice", device, {}, None, path, None, (), {}, None)
    from_blob = Job("twice", name, {}, None, path, None, (), {}, None)  # its list is in the blob
    assert [each.check() for each in (stated, from_blob)] == [(None, "")] * 2
    monkeypatch.setattr(Core, "get_property", without_template)
    for each in (stated, from_blob):
        error, why_compiled = each.check()
        assert why_compiled == ""
        assert isinstance(error, DeviceNotFoundError) == is_refused
        assert not is_refused or "TEMPLATE finds no device on this node" in str(error)


@pytest.mark.parametrize("device", ["AUTO", "AUTO:CPU", "HETERO:CPU"])
def test_parts_that_do_not_fit_a_node_are_found_without_reading_weights(
    device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its workers would fail one after the other. Reading gigabytes on each node would take longer than the job."""
    path = exported(device, tmp_path / "blob")
    made = Job("twice", device, {}, None, path, None, (), {}, None)
    with BlobReader(path) as reader:
        manifest, sections = reader.manifest, {name: bytes(reader.section(name)) for name in reader.section_names}
    (part,) = (name for name, data in sections.items() if is_blob(data))
    with BlobReader(sections[part]) as inner:
        of_another_cpu = BlobWriter(replace(inner.manifest, requirements={"machine": "avx4096"}))
        for name in inner.section_names:
            of_another_cpu.add_section(name, inner.section(name))
    stream = io.BytesIO()
    of_another_cpu.write(stream)
    writer = BlobWriter(manifest)
    for name, data in {**sections, part: stream.getvalue()}.items():
        writer.add_section(name, data)
    writer.write_file(tmp_path / "another.blob")
    another = replace(made, path=str(tmp_path / "another.blob"))
    with monkeypatch.context() as patch:
        patch.setattr(BlobReader, "section", lambda *given: pytest.fail("a section was read"))
        error, why_compiled = another.check()
    assert isinstance(error, BlobIncompatibleError)
    assert f"{part}: requirement 'machine': the blob needs avx4096" in str(error)
    assert why_compiled == ""
    assert made.check() == (None, "")


def test_nodes_that_cannot_run_a_worker_are_left_out() -> None:
    fits = [NodeFit("a", "one", 3, None), NodeFit("b", "two", 4, PluginError("why")), NodeFit("c", "three", 1, None)]
    assert slots_of(job(), fits) == 4
    assert refused_selector(fits) == {"label_selector": {"ray.io/node-id": "!in(b)"}}
    raise_if_none(job(), fits)
    assert refused_selector(fits[:1]) == {}


def test_a_cluster_without_the_device_is_an_error_of_the_same_type() -> None:
    fits = [NodeFit("a", "one", 3, DeviceNotFoundError("there is no GPU")), NodeFit("b", "two", 4, PluginError("why"))]
    with pytest.raises(DeviceNotFoundError, match="on any of 2 nodes; on one: there is no GPU"):
        raise_if_none(job(), fits)
    with pytest.raises(UnsupportedError, match=r"has what a worker takes.*num_cpus.*2"):
        raise_if_none(job(), [])


def test_workers_leave_a_cpu_for_the_tasks_that_read() -> None:
    assert pool_size(workers=3, slots=3, cpus_each=1, cpus=3) == 2
    assert pool_size(workers=2, slots=3, cpus_each=1, cpus=3) == 2
    assert pool_size(workers=100, slots=4, cpus_each=4, cpus=16) == 3
    assert pool_size(workers=2, slots=1, cpus_each=1, cpus=8) == 1
    assert pool_size(workers=1, slots=1, cpus_each=4, cpus=4) == 1
    assert pool_size(workers=2, slots=2, cpus_each=0, cpus=1) == 2


def test_progress_counts_workers_batches_and_says_things_once() -> None:
    journal = Journal()
    assert journal.progress("run").items_per_second == 0
    journal.join("run", "host", 7, "node", "imported")
    journal.join("run", "host", 8, "node", "compiled")
    journal.join("other", "host", 9, "node", "imported")
    journal.add("run", 7, "node", 32, 3, 0.5)
    journal.add("run", 8, "node", 16, 0, 0.25)
    journal.add("other", 9, "node", 5, 0, 0.25)
    journal.add("run", 7, "node", 16, 0, 0.25)
    said = [(["a", "b"], "x"), (["b"], "of b"), (["c"], "y"), (["a", "c"], "z"), (["c", "d"], "of d")]
    assert [journal.note(*each) for each in said] == [True, False, True, False, True]
    progress = journal.progress("run")
    assert progress.items == 64
    assert [worker.process for worker in journal.progress("other").workers] == [9]
    assert progress.notes == ("x", "y", "of d")
    assert progress.items_per_second == 64 / progress.seconds
    assert [(w.process, w.how, w.items, w.batches, w.busy_seconds) for w in progress.workers] == [
        (7, "imported", 48, 2, 0.75),
        (8, "compiled", 16, 1, 0.25),
    ]
    assert progress.failed == 3
    assert str(progress).startswith("64 items (3 failed) by 2 workers, ")


def test_without_ray_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UnsupportedError, match="pip install engine-ray"):
        predictor("model.onnx")


def test_importing_the_package_does_not_import_ray() -> None:
    program = "import sys, engine, engine_ray; print('ray' in sys.modules, 'ray.data' in sys.modules)"
    paths = [str(Path(__file__).parents[1] / "src"), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    command = [sys.executable, "-c", program]
    output = subprocess.run(command, capture_output=True, check=True, text=True, env=environment).stdout
    assert output == "False False\n"


@pytest.mark.parametrize("options", [{"error_column": ["why"]}, {"error_column": 5}, {"keep": "id"}, {"keep": [None]}])
def test_columns_that_are_no_names(options: Any) -> None:
    """Before Ray starts: a text as `keep` would keep the columns of its letters."""
    (name,) = options
    with pytest.raises(PropertyError, match=f"{name} is .*; expected "):
        predictor(b"", **options)
