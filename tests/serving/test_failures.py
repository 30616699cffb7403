"""An error that no one expected. If this fails, it is told as the client's doing, or not at all."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import asyncio, logging, types
import numpy as np
from engine.serving import require_packages
require_packages()
from kserve import InferInput, InferRequest
from prometheus_client import REGISTRY
from engine import Core, ops
from engine.ir import Model, Parameter, Result, f32
from engine.serving.metrics import DeviceClock, Tally
from engine.serving.model_config import ModelConfig
from engine.serving.refusals import Refused
from engine.serving.served_model import ServedModel

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
