"""Interrupts, forks and the end of the interpreter while devices are compiled for in the background."""

from __future__ import annotations

import subprocess
import sys

LIMIT = 120.0

SET_UP = """
import os, signal, sys, threading, time
import numpy as np
from engine_template import TemplatePlugin
from engine import Core, ops
from engine.ir import Model, Parameter, f32

signal.signal(signal.SIGINT, signal.default_int_handler)  # shells have what runs in the background ignore it
x = Parameter(f32, [2, 3], "x")
model = Model([ops.Neg(x, friendly_name="y")], [x], name="m")
X = np.ones((2, 3), np.float32)
gate = threading.Event()

class Device(TemplatePlugin):
    def metric(self, name, device_id):
        return False if name == "IS_REFERENCE" else super().metric(name, device_id)

class Slow(Device):
    name = "SLOW"
    def compile_model(self, model, config):
        gate.wait(SECONDS)
        return super().compile_model(model, config)

class Slower(Slow):
    name = "SLOWER"

core = Core()
core.register_plugin("SLOW", Slow)
core.register_plugin("SLOWER", Slower)
"""


def run(script: str, seconds: float) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", f"SECONDS = {seconds}\n{SET_UP}\n{script}"],
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert not done.stderr, done.stderr
    return done.stdout


def test_a_program_ends_while_a_device_is_compiled_for() -> None:
    script = """
core.compile_model(model, "CPU")
network = core.compile_model(model, "AUTO:SLOW,CPU", {"REUSE_CHOICE": False})
print(network(X)["y"][0, 0], *network.get_metric("EXECUTION_DEVICES"))
"""
    assert run(script, 3.0) == "-1.0 CPU\n"


def test_a_child_process_goes_on_with_the_device_that_is_ready() -> None:
    script = """
network = core.compile_model(model, "AUTO:SLOW,CPU", {"REUSE_CHOICE": False})
child = os.fork()
if not child:
    assert network(X)["y"][0, 0] == -1
    assert network.submit(X).result(60)["y"][0, 0] == -1
    assert network.wait_for_choice(60)
    assert network.get_metric("CHOICE_IS_FINAL")
    assert "forked" in network.get_metric("CHOICE_REASON")
    assert network.get_metric("CANDIDATES")["SLOW"]["state"] == "waiting"
    os._exit(0)
_, status = os.waitpid(child, 0)
print(os.waitstatus_to_exitcode(status))
gate.set()
assert network.wait_for_choice(60)
assert "measured" in network.get_metric("CHOICE_REASON") or "5 %" in network.get_metric("CHOICE_REASON")
"""
    assert run(script, 60.0) == "0\n"


def test_ctrl_c_while_the_first_device_is_waited_for() -> None:
    script = """
core.compile_model(model, "TEMPLATE")  # an interrupt of an import would leave a warning
core.query_model(model, "AUTO:SLOW,SLOWER")
import engine_auto.network
threading.Timer(0.5, signal.pthread_kill, [threading.main_thread().ident, signal.SIGINT]).start()
begun = time.monotonic()
try:
    core.compile_model(model, "AUTO:SLOW,SLOWER", {"REUSE_CHOICE": False})
except KeyboardInterrupt:
    print("interrupted", time.monotonic() - begun < 50)
gate.set()
network = core.compile_model(model, "AUTO:SLOW,SLOWER", {"REUSE_CHOICE": False})
print(network(X)["y"][0, 0])
"""
    assert run(script, 60.0) == "interrupted True\n-1.0\n"


def test_a_device_of_its_own_is_left_with_one_warning_in_the_log() -> None:
    """Warnings as errors, as tests of applications have them, do not lose an inference in the background."""
    script = """
import logging
from engine.errors import DeviceError
class Lost(Device):
    name = "LOST"
    def compile_model(self, model, config):
        gate.wait(60)
        raise DeviceError("lost")
core.register_plugin("LOST", Lost)
records = []
handler = logging.Handler()
handler.emit = lambda record: records.append(record.getMessage())
logging.getLogger("engine.auto").addHandler(handler)
network = core.compile_model(model, "AUTO:LOST,CPU", {"REUSE_CHOICE": False})
gate.set()
assert network.wait_for_choice(60)
print(*[r for r in records if "LOST is left" in r])
print(network.get_metric("CANDIDATES")["LOST"]["state"], *network.get_metric("EXECUTION_DEVICES"))
"""
    lines = run(script, 60.0).splitlines()
    assert "LOST is left for other devices: DeviceError: lost" in lines[0]
    assert lines[1] == "failed CPU"
