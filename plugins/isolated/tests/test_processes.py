"""Forks, interrupts, threads that end, and the end of the application: the process ends with it, and not before."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

from .faulty_device import HANG_WITH_GIL, TARGET

LIMIT = 120.0

SET_UP = f"""
import gc, os, signal, subprocess, sys, threading
import numpy as np
from engine import Core, ops
from engine.errors import DeviceError
from {TARGET.partition(":")[0]} import KILLED, SLOW, doubling, values

signal.signal(signal.SIGINT, signal.default_int_handler)  # shells have what runs in the background ignore it
core = Core()
core.register_plugin("FAULTY", "{TARGET}")
network = core.compile_model(doubling(), "ISOLATED:FAULTY")
X = values()

def pid():
    return network.get_property("PROCESS_STATISTICS")["pid"]

def works():
    return bool(np.array_equal(network({{"x": X}})["y"], X * 2))
"""


def run(script: str) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", SET_UP + script],
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    assert done.returncode == 0, done.stderr
    assert not done.stderr, done.stderr
    return done.stdout


def ends(pid: int) -> bool:
    """Whether a process ends within some time. It is a child of no process that waits for it, or is waited for."""
    end = time.monotonic() + LIMIT
    while time.monotonic() < end:
        try:
            with open(f"/proc/{pid}/stat") as file:
                if file.read().rpartition(")")[2].split()[0] == "Z":
                    return True
        except OSError:
            return True
        time.sleep(0.02)
    return False


def test_the_process_ends_with_the_program() -> None:
    assert ends(int(run("print(pid())")))


def test_a_thread_that_compiles_and_ends_does_not_take_the_process_with_it() -> None:
    script = """
def work():
    global network
    network = core.compile_model(doubling("other"), "ISOLATED:FAULTY")
thread = threading.Thread(target=work)
thread.start()
thread.join()
before = pid()
print(works(), pid() == before)
"""
    assert run(script) == "True True\n"


def test_an_interrupt_of_the_terminals_processes_ends_the_inference_only() -> None:
    script = """
os.setpgid(0, 0)  # as a shell does
before = pid()
threading.Timer(0.5, os.killpg, (os.getpgrp(), signal.SIGINT)).start()
try:
    while True:
        network({"x": values(SLOW)})
except KeyboardInterrupt:
    print("interrupted")
print(works(), pid() == before)
"""
    assert run(script) == "interrupted\nTrue True\n"


def test_a_fork_starts_a_process_of_its_own_and_leaves_the_parents_alone() -> None:
    script = """
large = core.compile_model(doubling(shape=(300, 1000)), "ISOLATED:FAULTY")
result = large({"x": values(shape=(300, 1000))})["y"]
before = pid()
reader, writer = os.pipe()
go, gone = os.pipe()
child = os.fork()
if not child:
    os.read(go, 1)
    os.write(writer, repr((works(), pid() != before, float(result.sum()))).encode())
    del network
    gc.collect()
    os._exit(0)
kept = float(result.sum())
del result
for _ in range(4):  # not in the memory of the result, which the other process sees
    large({"x": np.zeros((300, 1000), np.float32)})
os.write(gone, b"x")
print(os.read(reader, 100).decode() == repr((True, True, kept)), os.waitpid(child, 0)[1])
print(works(), pid() == before)
"""
    assert run(script) == "True 0\nTrue True\n"


def test_crashes_leave_no_descriptors_processes_or_threads() -> None:
    script = """
import logging
logging.disable()

def count():
    gc.collect()
    return len(os.listdir("/proc/self/fd")), threading.active_count()

def crash():
    try:
        network({"x": values(KILLED)})
    except DeviceError:
        pass
    return works()

crash()
before = count()
print([crash() for _ in range(3)], count() == before)
"""
    assert run(script) == "[True, True, True] True\n"


def test_a_process_that_is_used_again_has_the_environment_of_now() -> None:
    told = run("""
os.environ["ENGINE_MAX_ISA"] = "generic"
one = core.compile_model(doubling(), "ISOLATED:CPU")
print(one.get_property("INSTRUCTION_SET"))
former = one.get_property("PROCESS_STATISTICS")["pid"]
del one, os.environ["ENGINE_MAX_ISA"]
gc.collect()
two = core.compile_model(doubling(), "ISOLATED:CPU")
print(two.get_property("PROCESS_STATISTICS")["pid"] == former)
print(two.get_property("INSTRUCTION_SET") == core.compile_model(doubling(), "CPU").get_property("INSTRUCTION_SET"))
""")
    assert told.split() == ["generic", "True", "True"]


def test_the_process_inherits_no_files() -> None:
    script = """
fd = os.open("/dev/zero", os.O_RDONLY)
os.set_inheritable(fd, True)
network = core.compile_model(doubling(), "ISOLATED:TEMPLATE")  # another device: in a new process
links = [os.readlink(f"/proc/{pid()}/fd/{each}") for each in os.listdir(f"/proc/{pid()}/fd")]
print(links.count("/dev/zero"))
"""
    assert run(script) == "0\n"


@pytest.mark.parametrize("is_hung", [False, True], ids=["idle", "hung"])
def test_the_process_ends_when_the_program_is_killed(is_hung: bool) -> None:
    wait = f'network({{"x": values({HANG_WITH_GIL})}})' if is_hung else "threading.Event().wait()"
    program = subprocess.Popen(
        [sys.executable, "-c", f"{SET_UP}\nprint(pid(), flush=True)\n{wait}"],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    try:
        assert program.stdout is not None
        number = int(program.stdout.readline())
        time.sleep(0.3)
    finally:
        program.send_signal(signal.SIGKILL)
        program.wait()
    program.stdout.close()
    assert ends(number)
