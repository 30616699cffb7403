"""Interrupts, forks and the end of the interpreter while requests wait for a batch."""

from __future__ import annotations

import subprocess
import sys

LIMIT = 120.0

SET_UP = """
import os, signal, threading
import numpy as np
from engine import Core, ops
from engine.errors import Cancelled, InferError
from engine.ir import Model, Parameter, f32

signal.signal(signal.SIGINT, signal.default_int_handler)  # shells have what runs in the background ignore it
x = Parameter(f32, [1, 3], "x")
model = Model([ops.Neg(x, friendly_name="y")], [x], name="m")
X = np.ones((1, 3), np.float32)
network = Core().compile_model(model, "BATCH:TEMPLATE(2)", {"BATCH_TIMEOUT": 3600000})

def two():
    return [network.submit(X) for _ in range(2)]
"""


def run(script: str) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", SET_UP + script],
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert not done.stderr, done.stderr
    return done.stdout


def test_a_program_ends_while_a_request_waits() -> None:
    script = """
request = network.create_infer_request()
request.start_async(X)
print("end")
"""
    assert run(script) == "end\n"


def test_a_thread_that_waits_does_not_keep_a_program_from_ending() -> None:
    script = """
def call():
    try:
        network(X)
    except Cancelled:
        os.write(1, b"cancelled\\n")  # a daemon thread must not use sys.stdout while the interpreter ends
threading.Thread(target=call, daemon=True).start()
while not network._called:
    pass
"""
    assert run(script) in ("cancelled\n", "")


def test_ctrl_c_while_a_request_waits() -> None:
    script = """
threading.Timer(0.3, signal.pthread_kill, [threading.main_thread().ident, signal.SIGINT]).start()
try:
    network(X)
except KeyboardInterrupt:
    print("interrupted")
print([float(f.result(60)["y"][0, 0]) for f in two()])  # the one that was interrupted is not among them
"""
    assert run(script) == "interrupted\n[-1.0, -1.0]\n"


def test_a_child_process_collects_batches_of_its_own() -> None:
    script = """
request = network.create_infer_request()
request.start_async(X)
child = os.fork()
if not child:
    try:
        request.wait(60)
    except InferError as e:
        assert "forked" in str(e)
    assert [float(f.result(60)["y"][0, 0]) for f in two()] == [-1.0, -1.0]
    os._exit(0)
_, status = os.waitpid(child, 0)
other = network.create_infer_request()
other.start_async(2 * X)
request.wait(60)
other.wait(60)
print(os.waitstatus_to_exitcode(status), request.results["y"][0, 0], other.results["y"][0, 0])
"""
    assert run(script) == "0 -1.0 -2.0\n"
