"""Operations that a driver may not survive: each trial runs in a process of its own, which may crash or block.

python -m comparison.gpu_faults --device OPENCL           # from the folder benchmarks; a row for each trial
python -m comparison.gpu_faults --device OPENCL --trial "a fork"
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
import pyopencl as cl
from engine_opencl.devices.device import device_of
from onnx import ModelProto, TensorProto, helper, numpy_helper

from engine import Core
from engine.errors import EngineError
from engine.testing.models import relative_error
from engine.testing.networks import seeded_network

LIMIT: Final = 90.0
"""Seconds of one trial."""
_PRECISE: Final = 1e-3


class LeftOut(Exception):
    """The trial makes no sense on this device."""


class Trial:
    """A small network on the device, and its answer on CPU."""

    def __init__(self, device: str) -> None:
        self.device, self.core = device, Core()
        seeded = seeded_network("mobilenet_v2", small=True)
        self.model, self.inputs = seeded.model, dict(seeded.inputs)
        self.expected = [np.array(value) for value in self.core.compile_model(self.model, "CPU")(self.inputs).values()]

    def network(self) -> Any:
        """The network on the device."""
        return self.core.compile_model(self.model, self.device)

    def check(self, network: Any) -> None:
        """Raise if the network's answer is wrong."""
        found = network(self.inputs).values()
        error = max(relative_error(one, other) for one, other in zip(found, self.expected, strict=True))
        if not error < _PRECISE:
            raise ArithmeticError(f"the answer deviates by {error:.1e}")


def networks_are_released(trial: Trial) -> None:
    for _ in range(10):
        trial.check(trial.network())
        gc.collect()


def a_fork(trial: Trial) -> None:
    network = trial.network()
    trial.check(network)
    child = os.fork()
    if not child:
        del network  # releases nothing of the driver
        gc.collect()
        sys.exit(0)
    _, status = os.waitpid(child, 0)
    if status:
        raise ChildProcessError(f"the forked process ended with {os.waitstatus_to_exitcode(status)}")
    trial.check(network)


def an_exit_with_inferences_in_flight(trial: Trial) -> None:
    network = trial.network()
    trial.check(network)
    for _ in range(32):
        network.submit(trial.inputs)


def four_threads_with_networks_of_their_own(trial: Trial) -> None:
    errors: list[BaseException] = []

    def work() -> None:
        try:
            for _ in range(3):
                trial.check(trial.network())
        except BaseException as e:
            errors.append(e)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def a_kernel_that_does_not_compile(trial: Trial) -> None:
    network = trial.network()
    context = device_of(trial.device.partition(".")[2]).context
    try:
        cl.Program(context, "__kernel void broken(__global float* x) { x[0] = nothing; }").build()
    except cl.RuntimeError:
        pass
    else:
        raise ArithmeticError("the driver compiled a kernel with an error")
    trial.check(network)
    trial.check(trial.network())


def more_memory_than_the_device_has(trial: Trial) -> None:
    """Values that together need a quarter more memory than the device has; only a sum leaves the device."""
    handle = device_of(trial.device.partition(".")[2]).handle
    if handle.type & cl.device_type.CPU:
        raise LeftOut("the device's memory is the host's")
    length = int(handle.global_mem_size * 1.25 / 4 / 8)
    nodes = []
    for i in range(8):
        nodes.append(helper.make_node("Expand", [f"x{i}", "length"], [f"wide{i}"]))
        nodes.append(helper.make_node("CumSum", [f"wide{i}", "axis"], [f"sums{i}"]))
    nodes.append(helper.make_node("Sum", [f"sums{i}" for i in range(8)], ["all"]))
    nodes.append(helper.make_node("ReduceMax", ["all"], ["y"], keepdims=0))
    info = helper.make_tensor_value_info
    weights = [numpy_helper.from_array(np.array([length]), "length"), numpy_helper.from_array(np.array(0), "axis")]
    given = [info(f"x{i}", TensorProto.FLOAT, [1]) for i in range(8)]
    graph = helper.make_graph(nodes, "large", given, [info("y", TensorProto.FLOAT, [])], weights)
    model: ModelProto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    network = trial.network()
    try:
        trial.core.compile_model(model, trial.device)({f"x{i}": np.ones(1, np.float32) for i in range(8)})
    except EngineError:
        pass
    else:
        raise ArithmeticError("an inference that needs more memory than there is has an answer")
    trial.check(network)


def ctrl_c_during_inferences(trial: Trial) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background processes ignore it
    network = trial.network()
    trial.check(network)
    for delay in (0.001, 0.005, 0.02):
        timer = threading.Timer(delay, signal.raise_signal, [signal.SIGINT])
        try:
            timer.start()
            while True:
                network(trial.inputs)
        except KeyboardInterrupt:
            timer.join()
        trial.check(network)


def a_kill_while_kernels_compile(trial: Trial) -> None:
    """Their cache is used by the next process."""
    with tempfile.TemporaryDirectory() as cache:
        code = "from comparison.gpu_faults import Trial; print('begins', flush=True); "
        code += f"Trial({trial.device!r}).network()"
        process = subprocess.Popen(
            [sys.executable, "-c", code], env={**os.environ, "XDG_CACHE_HOME": cache}, stdout=subprocess.PIPE
        )
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(0.5)
        process.kill()
        process.wait()
        process.stdout.close()
        os.environ["XDG_CACHE_HOME"] = cache
        trial.check(trial.network())


TRIALS: Final[dict[str, Callable[[Trial], None]]] = {
    run.__name__.replace("_", " "): run
    for run in (
        networks_are_released, a_fork, an_exit_with_inferences_in_flight, four_threads_with_networks_of_their_own,
        a_kernel_that_does_not_compile, more_memory_than_the_device_has, ctrl_c_during_inferences,
        a_kill_while_kernels_compile,
    )
}  # fmt: skip
_LEFT_OUT: Final = 77


def outcome(name: str, device: str) -> str:
    """The outcome of a trial in a process of its own."""
    command = [sys.executable, "-m", "comparison.gpu_faults", "--device", device, "--trial", name]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=LIMIT)
    except subprocess.TimeoutExpired:
        return f"FAILED: no end in {LIMIT:g} s"
    said = (done.stderr.strip() or "it said nothing").splitlines()[-1]
    if done.returncode == _LEFT_OUT:
        return f"left out: {said}"
    if done.returncode < 0:
        return f"FAILED: the process ended by {signal.Signals(-done.returncode).name}"
    return f"FAILED: {said}" if done.returncode else "passed"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="OPENCL")
    parser.add_argument("--trial", choices=TRIALS, help="run this trial in this process")
    parser.add_argument("--json", help="where to write the outcomes")
    options = parser.parse_args(arguments)
    if options.trial is not None:
        try:
            TRIALS[options.trial](Trial(options.device))
        except LeftOut as e:
            print(e, file=sys.stderr)
            return _LEFT_OUT
        return 0
    found = {}
    for name in TRIALS:
        found[name] = outcome(name, options.device)
        print(f"{name}: {found[name]}", flush=True)
        if options.json:  # after each, since the next one may take the time that is left
            with open(options.json, "w", encoding="utf-8") as file:
                json.dump(found, file, indent=1)
    return int(any(text.startswith("FAILED") for text in found.values()))


if __name__ == "__main__":
    sys.exit(main())
