"""Batch inference by workers of a real local Ray. If these fail, a job over a cluster loses, doubles or mixes up rows.

The cluster has three nodes, each a set of processes on this machine: one as it is, one whose CPU seems to have no more
than the oldest instruction set, and one on which the device cannot be used.
"""

from __future__ import annotations

import io
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from engine_ray import Predictor, predictor

from engine import Core, ops
from engine.errors import BlobIncompatibleError, InputError, PropertyError, UnsupportedError
from engine.ir import Constant, Model, Parameter, PartialShape, Result, f32
from engine.native import default_isa, isas_within

ray = pytest.importorskip("ray", reason="Ray is not installed: pip install engine-ray")
pytest.importorskip("ray.data", reason="Ray Data is not installed: pip install engine-ray")

OLDEST = isas_within(default_isa())[0]
WIDTH, ROWS, BLOCKS = 64, 96, 12

pytestmark = [
    # Of Ray's own code: sockets and files of its processes that it leaves to the end of this one.
    pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning"),
    pytest.mark.filterwarnings("ignore:subprocess .* is still running:ResourceWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning:ray.*"),
    pytest.mark.filterwarnings("ignore::FutureWarning:ray.*"),
]


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[Any]:
    from ray.cluster_utils import Cluster

    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    memory = {"object_store_memory": 80 << 20}
    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "include_dashboard": False, **memory})
    made.add_node(num_cpus=1, env_vars={"ENGINE_MAX_ISA": OLDEST}, **memory)
    made.add_node(num_cpus=1, env_vars={"ENGINE_MAX_ISA": "unknown"}, **memory)
    ray.init(address=made.address, log_to_driver=False)
    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
    ray.data.DataContext.get_current().enable_progress_bars = False
    yield made
    ray.shutdown()
    made.shutdown()


def model() -> Model:
    """y = x W, for any number of rows."""
    x = Parameter(f32, PartialShape([None, WIDTH]), "x")
    return Model([Result(ops.MatMul(x, Constant(weights())), "y")], [x], name="scorer")


def weights() -> Any:
    return np.random.default_rng(0).standard_normal((WIDTH, WIDTH), np.float32)


def rows() -> Any:
    return np.random.default_rng(1).standard_normal((ROWS, WIDTH), np.float32)


def dataset() -> Any:
    items = [{"id": number, "x": row} for number, row in enumerate(rows())]
    return ray.data.from_items(items, override_num_blocks=BLOCKS)


def check(results: Any) -> None:
    """Each row once, in order, with its own result."""
    found = results.take_all()
    assert [row["id"] for row in found] == list(range(ROWS))
    np.testing.assert_allclose([row["y"] for row in found], rows() @ weights(), rtol=0, atol=1e-4)


def test_a_killed_worker_loses_nothing_and_doubles_nothing(tmp_path: Path) -> None:
    claim = tmp_path / "process"
    made: Any = predictor(model(), keep=["id"])

    class Stopping(made):  # type: ignore[misc]
        """Waits in the batch of row 30, the first time, to be killed there."""

        def __call__(self, batch: Any) -> Any:
            if 30 in batch["id"]:
                try:
                    with claim.open("x") as file:
                        file.write(f"{os.getpid()}\n")
                    while True:
                        time.sleep(1)
                except FileExistsError:
                    pass
            return super().__call__(batch)

    killed = []

    def kill() -> None:
        while not claim.exists() or not claim.read_text().endswith("\n"):
            time.sleep(0.05)
        killed.append(int(claim.read_text()))
        os.kill(killed[0], signal.SIGKILL)

    thread = threading.Thread(target=kill, daemon=True)
    thread.start()
    check(Stopping.predict(dataset(), workers=2, batch_size=8))
    thread.join()
    progress = Stopping.progress()
    workers = [worker.process for worker in progress.workers]
    assert killed[0] in workers
    assert len(workers) == 3, "one was started in place of the killed one"
    assert ROWS <= progress.items < 2 * ROWS


@pytest.mark.skipif(default_isa() == OLDEST, reason="blobs of this CPU fit any")
def test_each_node_does_what_it_can(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    caplog.set_level(logging.WARNING, "engine.ray")
    made: Any = predictor(model(), keep=["id"], path=tmp_path / "shared.blob")
    assert made.slots() == 3

    class Together(made):  # type: ignore[misc]
        """Works when all workers are there."""

        def __call__(self, batch: Any) -> Any:
            while len(self.progress().workers) < 3:
                time.sleep(0.1)
            return super().__call__(batch)

    check(Together.predict(dataset(), workers=3, batch_size=8))
    progress = Together.progress()
    assert sorted(worker.how for worker in progress.workers) == ["compiled", "imported", "imported"]
    logged = [record.getMessage() for record in caplog.records if record.name == "engine.ray"]
    assert sorted(logged) == sorted(progress.notes)
    compiled, unusable = sorted(logged, key=lambda text: "no worker" in text)
    assert compiled.startswith("scorer: 1 nodes (")
    assert "compile the model, since the blob does not fit: " in compiled
    assert "get no worker: " in unusable
    assert "ENGINE_MAX_ISA" in unusable
    (error,) = (fit.error for fit in made.check() if fit.error is not None)
    assert isinstance(error, PropertyError)


@pytest.mark.skipif(default_isa() == OLDEST, reason="blobs of this CPU fit any")
def test_a_blob_that_fits_some_nodes_runs_on_those(tmp_path: Path) -> None:
    blob = str(tmp_path / "network.blob")
    Core().compile_model(model(), "CPU").export_model(blob)
    made = predictor(blob, keep=["id"])
    check(made.predict(dataset(), batch_size=8))
    assert {worker.how for worker in made.progress().workers} == {"imported"}
    errors = [fit.error for fit in made.check() if isinstance(fit.error, BlobIncompatibleError)]
    assert len(errors) == 1
    assert "pass the model to predictor" in str(errors[0])


@pytest.mark.skipif(default_isa() == OLDEST, reason="blobs of this CPU fit any")
def test_nodes_are_asked_for_the_devices_that_a_device_runs_on(tmp_path: Path) -> None:
    """HETERO itself is on every node that has the engine; its devices, and what their parts need, are not."""
    if "HETERO" not in Core().installed_devices:
        pytest.skip("not installed: HETERO")
    blob = str(tmp_path / "network.blob")
    Core().compile_model(model(), "HETERO:CPU,TEMPLATE").export_model(blob)
    fits = predictor(blob).check()
    assert {type(fit.error) for fit in fits} == {type(None), BlobIncompatibleError, PropertyError}
    (refused,) = (str(fit.error) for fit in fits if isinstance(fit.error, BlobIncompatibleError))
    assert "part0: " in refused
    fits = predictor(blob, model=model()).check()
    assert sorted(bool(fit.why_compiled) for fit in fits if fit.error is None) == [False, True]


def test_progress_is_that_of_the_last_dataset() -> None:
    """Otherwise, the throughput of a second one would count both, with the time between them."""
    made = predictor(model(), "TEMPLATE", keep=["id"])
    first, second = (made.predict(dataset(), workers=1, batch_size=8) for _ in range(2))
    check(first)
    assert made.progress().items == 0
    check(second)
    progress = made.progress()
    assert (progress.items, len(progress.workers)) == (ROWS, 1)
    check(made.predict(dataset(), workers=1, batch_size=8))
    assert made.progress().items == ROWS


def test_workers_use_the_blob_in_the_memory_of_the_store() -> None:
    """Weights at another address than a multiple of 64 would be copied by each worker."""
    made = predictor(model())

    def places(blob: Any) -> list[int]:
        data = np.frombuffer(memoryview(ray.get(blob[0])), np.uint8)
        return [data.ctypes.data % 64, int(data.flags.owndata)]

    assert ray.get(ray.remote(places).remote([made.job.blob])) == [0, 0]


def test_what_a_batch_lacks_ends_the_job_with_a_typed_error() -> None:
    made = predictor(model())
    with pytest.raises(InputError, match="no column `x`; it has id, image"):
        made.predict(dataset().rename_columns({"x": "image"}), workers=1).take_all()


def test_failed_rows_are_set_aside_with_their_reason() -> None:
    items = [{"id": number, "x": row} for number, row in enumerate(rows())]
    items[5]["x"], items[77]["x"] = np.ones(1, np.float32), np.ones(WIDTH + 1, np.float32)
    made = predictor(model(), keep=["id"], error_column="why")
    results = made.predict(ray.data.from_items(items, override_num_blocks=BLOCKS), workers=1, batch_size=16).take_all()
    assert [row["id"] for row in results] == list(range(ROWS))
    assert {row["id"] for row in results if row["why"]} == {5, 77}
    expected = rows() @ weights()
    for row in results:
        if not row["why"]:
            np.testing.assert_allclose(row["y"], expected[row["id"]], rtol=0, atol=1e-4)
    assert made.progress().failed == 2
    with pytest.raises(PropertyError, match="error_column `y`"):
        predictor(model(), error_column="y")


def test_workers_on_all_cpus_do_not_keep_the_dataset_from_being_read(caplog: pytest.LogCaptureFixture) -> None:
    made = predictor(model(), "TEMPLATE", keep=["id"])
    cpus = int(ray.cluster_resources()["CPU"])
    assert made.slots() == cpus
    read = ray.data.range(ROWS, override_num_blocks=BLOCKS).map_batches(
        lambda batch: {**batch, "x": rows()[batch["id"]]}
    )
    check(made.predict(read, workers=cpus, batch_size=8))
    assert not [record for record in caplog.records if record.name == "engine.ray"]


def test_a_worker_that_takes_all_cpus_is_a_warning(caplog: pytest.LogCaptureFixture, monkeypatch: Any) -> None:
    monkeypatch.setattr(ray, "cluster_resources", lambda: {"CPU": 1.0})
    predictor(model(), "TEMPLATE").arguments()
    assert "would wait forever" in caplog.text


def test_a_wrong_configuration_is_a_typed_error() -> None:
    """Before the job: what workers raise when they start is Ray's error."""
    stream = io.BytesIO()
    Core().compile_model(model(), "TEMPLATE").export_model(stream)
    with pytest.raises(PropertyError, match="NUM_STREAM"):
        predictor(stream.getvalue(), config={"NUM_STREAM": 1})


def test_a_job_goes_on_without_its_journal(tmp_path: Path) -> None:
    blob = str(tmp_path / "network.blob")
    Core().compile_model(model(), "CPU").export_model(blob)
    made: Any = predictor(blob, keep=["id"])
    here = ray.get_runtime_context().get_node_id()
    place = made.job.journal.__ray_call__.remote(lambda journal: ray.get_runtime_context().get_node_id())
    assert ray.get(place) == here, "a node that is lost would take the counts of all with it"
    ray.kill(made.job.journal)
    check(made.predict(dataset(), workers=1, batch_size=8))


def test_what_the_cluster_lacks_is_an_error_before_the_job() -> None:
    made: type[Predictor] = predictor(model(), slot={"num_gpus": 1})
    with pytest.raises(UnsupportedError, match="no node of the cluster has"):
        made.predict(dataset())
    with pytest.raises(PropertyError, match="'TPU': 1"):
        predictor(model(), slot={"TPU": 1})
    with pytest.raises(PropertyError, match="column `y` of keep"):
        predictor(model(), keep=["y"])


def test_nodes_that_join_are_asked_too(cluster: Any) -> None:
    """It and the next one are the last tests, since they change the cluster."""
    made = predictor(model())
    before = made.slots()
    asked = {fit.node for fit in made.check()}
    cluster.add_node(num_cpus=3, object_store_memory=80 << 20)
    assert made.slots() == before + 3
    assert made.arguments()["compute"].max_size == before + 3
    assert asked < {fit.node for fit in made.check()}


@pytest.mark.skipif(default_isa() == OLDEST, reason="blobs of this CPU fit any")
def test_several_nodes_that_refuse_the_blob_get_no_worker(cluster: Any, tmp_path: Path) -> None:
    """With as many workers as the others have slots, all of them run there, and none is started where it would fail."""
    cluster.add_node(num_cpus=1, env_vars={"ENGINE_MAX_ISA": OLDEST}, object_store_memory=80 << 20)
    blob = str(tmp_path / "network.blob")
    Core().compile_model(model(), "CPU").export_model(blob)
    made: Any = predictor(blob, keep=["id"])
    refused = {fit.node for fit in made.check() if isinstance(fit.error, BlobIncompatibleError)}
    usable = {fit.node: fit.slots for fit in made.check() if fit.error is None}
    assert len(refused) == 2

    class Together(made):  # type: ignore[misc]
        """Works when all workers are there."""

        def __call__(self, batch: Any) -> Any:
            while len(self.progress().workers) < sum(usable.values()):
                time.sleep(0.1)
            return super().__call__(batch)

    check(Together.predict(dataset(), workers=sum(usable.values()), batch_size=8))
    found = [worker.node for worker in Together.progress().workers]
    assert {node: found.count(node) for node in found} == usable
