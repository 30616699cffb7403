"""How models are compiled and configured. If this fails, a server leaves cores idle, or ignores its settings."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from engine_serve.loading import BlobOptions, load_network
from engine_serve.model_config import read_config
from engine_template import TemplatePlugin

from apps.serve.tests.conftest import dense, write
from engine import Core
from engine.blob import BlobCheck
from engine.errors import RepositoryError
from engine.native import cores


@pytest.mark.parametrize(
    ("properties", "at_once"),
    [("", cores()), ('PERFORMANCE_HINT = "LATENCY"', 1), ("NUM_STREAMS = 3", 3), ("INFERENCE_NUM_THREADS = 1", 1)],
)
def test_inferences_run_side_by_side_unless_it_is_said_how(tmp_path: Path, properties: str, at_once: int) -> None:
    write(tmp_path, "dense", dense(), f'device = "CPU"\n[properties]\n{properties}\n')
    folder = tmp_path / "dense"
    network: Any = load_network(Core(), "dense", folder / "model.onnx", read_config(folder), BlobOptions())
    assert network.get_metric("OPTIMAL_NUMBER_OF_INFER_REQUESTS") == at_once


def test_what_is_said_of_a_target_counts_too(tmp_path: Path) -> None:
    """Otherwise, an AUTO or HETERO device would use more threads than its configuration allows."""
    config = 'device = "HETERO:CPU"\n[properties]\nDEVICE_PROPERTIES = {CPU = {INFERENCE_NUM_THREADS = 1}}\n'
    write(tmp_path, "dense", dense(), config)
    folder = tmp_path / "dense"
    network: Any = load_network(Core(), "dense", folder / "model.onnx", read_config(folder), BlobOptions())
    assert network.get_metric("OPTIMAL_NUMBER_OF_INFER_REQUESTS") == 1


@pytest.mark.parametrize("device", ["CPU", "HETERO:CPU", "AUTO"])
@pytest.mark.parametrize("named", [(), ("CPU",)])
def test_what_an_application_has_set_by_default_counts_too(tmp_path: Path, device: str, named: tuple[str, ...]) -> None:
    """Otherwise, a server in an application that has limited its cores takes all of them."""
    write(tmp_path, "dense", dense(), f'device = "{device}"\n')
    folder = tmp_path / "dense"
    core = Core()
    core.set_property(*named, {"PERFORMANCE_HINT": "LATENCY"})  # the declared default, but stated
    network: Any = load_network(core, "dense", folder / "model.onnx", read_config(folder), BlobOptions())
    assert network.get_config("PERFORMANCE_HINT") == "LATENCY"
    other: Any = load_network(Core(), "dense", folder / "model.onnx", read_config(folder), BlobOptions())
    assert other.get_config("PERFORMANCE_HINT") == "THROUGHPUT"


def test_properties_of_a_model_with_batches_are_those_of_its_device(tmp_path: Path) -> None:
    config = 'device = "CPU"\n[properties]\nPERFORMANCE_HINT = "THROUGHPUT"\n[batching]\nsize = 4\n'
    write(tmp_path, "dense", dense(), config)
    folder = tmp_path / "dense"
    network: Any = load_network(Core(), "dense", folder / "model.onnx", read_config(folder), BlobOptions())
    assert network.get_config("DEVICE_PROPERTIES") == {"CPU": {"PERFORMANCE_HINT": "THROUGHPUT"}}
    assert network.graph.get_config("PERFORMANCE_HINT") == "THROUGHPUT"


def test_a_blob_that_would_be_faster_if_it_was_compiled_again_is_logged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Otherwise, nobody notices that a server was moved to a better machine than its blobs are for."""
    path = tmp_path / "model.blob"
    Core().compile_model(dense(), "AUTO:TEMPLATE").export_model(path)
    advised = BlobCheck((), None, advice=("its kernels are old",))
    monkeypatch.setattr(TemplatePlugin, "check_blob", lambda *_: advised)
    load_network(Core(), "dense", path, read_config(tmp_path), BlobOptions())
    said = f"{path} runs, and would be faster if it was compiled again: network: its kernels are old"
    assert [record.getMessage() for record in caplog.records if record.name == "engine.serving"] == [said]


def test_bytes_in_the_queue_of_a_language_model_are_no_bound(tmp_path: Path) -> None:
    """Its prompts are not counted, so that the bound would be silently ignored."""
    (tmp_path / "config.toml").write_text("queue_mib = 1.5\n[generation]\nslots = 2\n")
    with pytest.raises(RepositoryError, match="`queue_mib` is for models that generate no tokens"):
        read_config(tmp_path)
    (tmp_path / "config.toml").write_text("queue_mib = 1.5\n")
    assert read_config(tmp_path).queue_mib == 1.5


IMPATIENT = """
import asyncio, sys, threading
from pathlib import Path
from engine import Core
from engine_serve.loading import BlobOptions
from engine_serve.repository import Repository

make, may_end, lock = Repository._make, threading.Event(), threading.Lock()
running, most, count = 0, 0, 0

def slow(self, *given):
    global running, most, count
    with lock:
        running, count = running + 1, count + 1
        most = max(most, running)
    may_end.wait(60)
    with lock:
        running -= 1
    return make(self, *given)

async def impatient(repository):
    for _ in range(20):
        load = asyncio.create_task(repository.load("dense"))
        await asyncio.sleep(0.01)
        load.cancel()
    waiting = asyncio.create_task(repository.load("dense"))
    await asyncio.sleep(0)
    may_end.set()
    assert await waiting

Repository._make = slow
repository = Repository(Path(sys.argv[1]), Core(), BlobOptions())
asyncio.run(impatient(repository))
print(repository.versions("dense"), most, count)
"""
"""A process of its own: KServe's server and the client of other tests cannot be imported together."""


def test_clients_that_go_away_start_no_further_compilations(tmp_path: Path) -> None:
    """Each would take a thread and memory: of a model, one compilation runs, and one loading waits for all who ask."""
    write(tmp_path, "dense", dense(), 'device = "CPU"\n')
    done = subprocess.run(
        [sys.executable, "-c", IMPATIENT, str(tmp_path)], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.stdout == "['1'] 1 1\n", done.stderr
