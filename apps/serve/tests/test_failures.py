"""Unexpected errors in the server. If this fails, clients are blamed for them, or nobody learns of them."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from apps.serve.tests.conftest import dense, write

PROGRAM = """
import asyncio, logging, types
import numpy as np
from engine_serve.packages import require_packages
require_packages()
from kserve import InferInput, InferRequest
from prometheus_client import REGISTRY
from engine import Core, ops
from engine.ir import Model, Parameter, Result, f32
from engine_serve.metrics import DeviceClock, Tally
from engine_serve.model_config import ModelConfig
from engine_serve.refusals import Refused
from engine_serve.served_model import ServedModel

logging.basicConfig(format="%(levelname)s %(message)s")
x = Parameter(f32, ["N"], "x")
network = Core().compile_model(Model([Result(ops.Relu(x), "y")], [x], name="m"), "CPU")
tally = Tally()
model = ServedModel("m", 1, network, ModelConfig(), DeviceClock(), tally)
def fails(inputs):
    raise LookupError("of a plugin")
model._queue._network = types.SimpleNamespace(submit=fails)
tensor = InferInput("x", [1], "FP32", data=[1.0])
try:
    asyncio.run(model.predict(InferRequest("m", [tensor])))
except Refused as e:
    print(e.http_status, e.details)
labels = {"model": "m", "version": "1", "end": "LookupError"}
print(REGISTRY.get_sample_value("engine_requests_total", labels), tally.cut_off, model.queue.running)
"""


def test_an_error_of_a_plugin_is_the_server_s() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout.splitlines() == [
        "500 ServingError: an inference of model `m` failed: LookupError: of a plugin",
        "1.0 0 0",
    ], done.stderr
    assert done.stderr.count("Traceback") == 1
    assert "ERROR an inference of model `m` failed: LookupError: of a plugin" in done.stderr


GENERATION = """
import asyncio, threading
from engine_serve.packages import require_packages
require_packages()
from engine_serve import generative_model
from engine_serve.generative_model import GenerativeModel, Prompt
from engine_serve.metrics import DeviceClock, ModelSeries, Tally
from engine_serve.model_config import Generation, ModelConfig
from engine_serve.refusals import Refused
from engine_serve.served_model import ServedModel

device = threading.Event()
class Stream:
    tokens, is_stopped = [], True
    def __iter__(self):
        return self
    def __next__(self):
        device.wait()
        raise StopIteration
    def cancel(self):
        pass
class Network:
    variables = ()
class Scheduler:
    failure = None
    def __init__(self, *_, **__):
        pass
    def submit(self, *_, **__):
        return Stream()
def init(self, name, version, network, config, clock, tally):
    self.name, self.version, self.config, self.device = name, "1", config, "CPU"
    self._clock, self._tally = clock, tally
    self._series = ModelSeries(name, "1")
ServedModel.__init__, generative_model.Scheduler = init, Scheduler
config = ModelConfig(queue_size=1, generation=Generation(slots=1))
model = GenerativeModel("m", 1, Network(), config, DeviceClock(), Tally())

async def ask():
    try:
        async for _ in model.stream(Prompt([1], 1, None), 0.05):
            pass
    except Refused as e:
        return e.kind
    return "ok"

async def main():
    print([await ask() for _ in range(4)])
    print(model.queue.longest_run > 0.05, model.queue.waiting, model.queue.running)
    device.set()
    while model.queue.running:
        await asyncio.sleep(0.001)
    print(model.queue.longest_run, await ask())

asyncio.run(main())
"""


def test_a_language_model_whose_device_hangs() -> None:
    """The server reports that it is not alive, and keeps no sequences of clients that have disconnected."""
    done = subprocess.run([sys.executable, "-c", GENERATION], capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout.splitlines() == [
        "['DeadlineExceeded', 'DeadlineExceeded', 'Busy', 'Busy']",
        "True 1 1",
        "0.0 ok",
    ], done.stderr


TRACED = """
import asyncio, sys
from engine_serve.packages import require_packages
require_packages()
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from engine.errors import InputError
from engine_serve import generative_model, tracing
from engine_serve.generative_model import GenerativeModel, Prompt
from engine_serve.metrics import DeviceClock, ModelSeries, Tally
from engine_serve.model_config import Generation, ModelConfig
from engine_serve.refusals import Refused
from engine_serve.served_model import ServedModel

class Network:
    variables = ()
class Scheduler:
    failure = None
    def __init__(self, *_, **__):
        pass
    def submit(self, *_, **__):
        raise {"InputError": InputError, "LookupError": LookupError}[sys.argv[1]]("of a plugin")
def init(self, name, version, network, config, clock, tally):
    self.name, self.version, self.config, self.device = name, "1", config, "CPU"
    self._clock, self._tally = clock, tally
    self._series = ModelSeries(name, "1")
ServedModel.__init__, generative_model.Scheduler = init, Scheduler
provider, exporter = TracerProvider(), InMemorySpanExporter()
provider.add_span_processor(SimpleSpanProcessor(exporter))
tracing._tracers[:] = [provider.get_tracer("test")]
model = GenerativeModel("m", 1, Network(), ModelConfig(generation=Generation(slots=1)), DeviceClock(), Tally())

async def main():
    try:
        async for _ in model.stream(Prompt([1], 1, None), None):
            pass
    except Refused as e:
        print(e.kind)

asyncio.run(main())
for span in exporter.get_finished_spans():
    print(span.name, span.status.status_code.name, [event.name for event in span.events])
"""


@pytest.mark.parametrize(("error", "kind"), [("InputError", "InputError"), ("LookupError", "ServingError")])
def test_an_error_is_one_event_of_a_trace(error: str, kind: str) -> None:
    """Otherwise, alerts that count events of exceptions count each failure of a plugin twice."""
    pytest.importorskip("opentelemetry.sdk")
    done = subprocess.run(
        [sys.executable, "-c", TRACED, error], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.stdout.splitlines() == [kind, "generate ERROR ['exception']"], done.stderr


RELOADS = """
import asyncio, gc, sys, weakref
from pathlib import Path
from engine_serve.packages import require_packages
require_packages()
import numpy as np
from engine import Core
from engine_serve.loading import BlobOptions
from engine_serve.repository import Repository

root = Path(sys.argv[1])
config = (root / "model" / "config.toml").read_text()

async def main():
    repository, networks = Repository(root, Core(), BlobOptions()), []
    for turn in range(4):
        (root / "model" / "config.toml").write_text(f"queue_size = {turn}\\n{config}")
        await repository.load("model")
        network = repository.require("model").network
        await asyncio.wrap_future(network.submit({"x": np.ones((2, 16), np.float32)}))
        networks.append(weakref.ref(network))
        del network
    gc.collect()
    print([each() is not None for each in networks])

asyncio.run(main())
"""


@pytest.mark.parametrize("config", ["", "[batching]\nsize = 4\n"])
def test_a_network_that_was_replaced_is_released(tmp_path: Path, config: str) -> None:
    """Otherwise, each reload of a model leaks the memory of its weights."""
    write(tmp_path, "model", dense(), f'device = "CPU"\n{config}')
    done = subprocess.run(
        [sys.executable, "-c", RELOADS, str(tmp_path)], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.stdout.splitlines() == ["[False, False, False, True]"], done.stderr


SCHEDULER = """
import asyncio, sys
from pathlib import Path
from engine_serve.packages import require_packages
require_packages()
from engine import Core
from engine.errors import NotReadyError
from engine.generation import Scheduler
from engine_serve.loading import BlobOptions
from engine_serve.repository import Repository, RepositoryExtension

async def main():
    repository = Repository(Path(sys.argv[1]), Core(), BlobOptions())
    await repository.load("lm")
    model = repository.require("lm")
    serve, Scheduler._serve = Scheduler._serve, lambda self: 1 / 0
    async def tokens(model):
        pieces = model.stream(model.prompt([3], {"max_tokens": 4}), None)
        return [piece.token async for piece in pieces if piece.token is not None]
    try:
        await tokens(model)
    except Exception as e:
        print(e)
    Scheduler._serve = serve
    print(await repository.is_model_ready("lm"), repository.get_model("lm"))
    print((await RepositoryExtension(repository).index())[0]["state"])
    try:
        repository.require("lm")
    except NotReadyError as e:
        print(e)
    await repository.load("lm")
    print(await repository.is_model_ready("lm"), len(await tokens(repository.require("lm"))))

asyncio.run(main())
"""


def test_a_language_model_whose_scheduler_failed_is_not_ready_until_it_is_loaded(tmp_path: Path) -> None:
    """Otherwise, a load balancer sends it requests forever, and loading says that nothing has changed."""
    decoder = Path(__file__).parents[3] / "tests" / "fixtures" / "decoders" / "llama.dynamo23.onnx"
    (tmp_path / "lm").mkdir()
    for path in decoder.parent.glob(decoder.name + "*"):
        shutil.copy(path, tmp_path / "lm" / path.name.replace(decoder.name, "model.onnx"))
    (tmp_path / "lm" / "config.toml").write_text('device = "CPU"\n[generation]\n')
    command = [sys.executable, "-c", SCHEDULER, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    lines = done.stdout.splitlines()
    assert len(lines) == 5, done.stderr
    assert "the scheduler failed: ZeroDivisionError" in lines[0]
    assert lines[1:3] == ["False None", "UNAVAILABLE"]
    assert "the scheduler failed: ZeroDivisionError: division by zero; load it again" in lines[3]
    assert lines[4] == "True 4"
