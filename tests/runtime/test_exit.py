"""The end of the process, in a process of its own: requests are finished or refused; it never aborts nor hangs."""

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
GRACE_SECONDS = 60
"""Longer than any process here takes on a busy machine; a process that takes longer hangs."""

PRELUDE = """
import asyncio, atexit, gc, os, signal, sys, threading, time
import numpy as np
from engine import AsyncInferQueue, Core, EngineError
from engine.onnx import read_model
from onnx import TensorProto, helper, numpy_helper

random = np.random.default_rng(0)
SIZE = 256

def model():
    value = lambda name: helper.make_tensor_value_info(name, TensorProto.FLOAT, [64, SIZE])
    nodes, name = [], "x"
    for layer in range(6):
        nodes.append(helper.make_node("MatMul", [name, "w"], [f"m{layer}"], name=f"product{layer}"))
        nodes.append(helper.make_node("Tanh", [f"m{layer}"], [f"t{layer}"], name=f"tanh{layer}"))
        name = f"t{layer}"
    nodes.append(helper.make_node("Identity", [name], ["y"]))
    weight = numpy_helper.from_array(random.standard_normal((SIZE, SIZE)).astype(np.float32) / 16, "w")
    graph = helper.make_graph(nodes, "exit", [value("x")], [value("y")], [weight])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)

DEVICE = sys.argv[1]
core = Core()
read = core.read_model(model().SerializeToString())
if "HETERO" in DEVICE:
    for index, node in enumerate(read.ordered_nodes()):
        if node.op_type in ("MatMul", "Tanh"):
            node.rt_info["affinity"] = DEVICE.partition(":")[2].split(",")[index % 2]
network = core.compile_model(read, DEVICE)
x = {"x": random.standard_normal((64, SIZE)).astype(np.float32)}
expected = network(x)["y"]
running = threading.Event()

def infer_forever(infer=lambda: network(x)):
    while True:
        try:
            infer()
            running.set()
        except EngineError as e:
            running.set()
            last = e

def infer_until_refused():
    while True:
        try:
            network(x)
            running.set()
        except EngineError as e:
            print("refused:", type(e).__name__, flush=True)
            return

def start(target, count=3, daemon=True):
    threads = [threading.Thread(target=target, daemon=daemon) for _ in range(count)]
    for thread in threads:
        thread.start()
    assert running.wait(60)
    time.sleep(random.uniform(0, 0.01) if len(sys.argv) < 3 else float(sys.argv[2]))
    return threads

def restarting(request):
    def again(request, error):
        running.set()
        request.start_async()
    request.set_callback(again)
    request.start_async(x)
    return request
"""

SCENARIOS = {
    "daemon threads infer": "start(infer_forever)",
    "daemon threads infer until they are refused": "start(infer_until_refused)",
    "daemon threads infer with requests of their own": """
        def background():
            request = network.create_infer_request()
            def run():
                request.start_async(x)
                request.wait()
            infer_forever(run)
        start(background)
    """,
    "an exception ends the main thread": """
        start(infer_forever)
        raise KeyError("main")
    """,
    "sys.exit": """
        start(infer_forever)
        sys.exit(7)
    """,
    "os._exit": """
        start(infer_forever)
        os._exit(7)
    """,
    "threads that are joined finish": """
        def some():
            for _ in range(20):
                assert (network(x)["y"] == expected).all()
                running.set()
            os.write(1, b"done\\n")  # print writes the end of the line separately
        start(some, daemon=False)
    """,
    "a thread pool's inferences finish": """
        from concurrent.futures import ThreadPoolExecutor
        pool = ThreadPoolExecutor(3)
        futures = [pool.submit(network, x) for _ in range(30)]
        for future in futures:
            future.add_done_callback(lambda f: f.exception() and print(f.exception(), flush=True))
        futures[0].result()
    """,
    "a callback restarts its request": "request = restarting(network.create_infer_request()); running.wait(60)",
    "a queue's callback restarts its request": """
        def again(request, number):
            running.set()
            request.start_async(x)
        queue = AsyncInferQueue(network, 3, callback=again)
        for number in range(3):
            queue.start_async(x, number)
        running.wait(60)
    """,
    "inferences wait in a queue": """
        queue = AsyncInferQueue(network, 8)
        for _ in range(40):
            queue.start_async(x)
    """,
    "a thread feeds a queue": """
        queue = AsyncInferQueue(network, 2)
        start(lambda: infer_forever(lambda: queue.start_async(x)), count=2)
    """,
    "a thread waits for a request": """
        request = network.create_infer_request()
        def run():
            request.start_async(x)
            running.set()
            request.wait()
        start(lambda: infer_forever(run), count=1)
    """,
    "a handler of the exit infers": """
        @atexit.register
        def late():
            request = network.create_infer_request()
            request.start_async(x)
            request.wait()
            assert (request.results["y"] == expected).all()
            print("late", flush=True)
    """,
    "a handler of the exit that runs after the engine's infers": """
        from engine.runtime.lifecycle import lifecycle
        request = network.create_infer_request()
        def late():
            for call in (lambda: network(x), lambda: request.infer(x), lambda: request.start_async(x)):
                try:
                    call()
                except EngineError as e:
                    assert "the interpreter exits" in str(e), e
                    print("refused:", type(e).__name__, flush=True)
        atexit.unregister(lifecycle.exit)
        atexit.register(late)
        atexit.register(lifecycle.exit)
    """,
    "an event loop is closed": """
        async def main():
            requests = [network.create_infer_request() for _ in range(4)]
            for request in requests:
                request.start_async(x)
            async def forever(request):
                while True:
                    await request
                    request.start_async(x)
            tasks = [asyncio.ensure_future(forever(request)) for request in requests]
            await asyncio.sleep(0.02)
        asyncio.run(main())
    """,
    "an event loop is left with tasks": """
        loop = asyncio.new_event_loop()
        async def forever():
            request = network.create_infer_request()
            while True:
                request.start_async(x)
                await request
                running.set()
        def serve():
            asyncio.set_event_loop(loop)
            try:
                loop.run_until_complete(forever())
            except EngineError as e:
                assert "the interpreter exits" in str(e), e
        start(serve, count=1)
    """,
    "objects live in globals and in cycles": """
        class Cycle:
            pass
        def cycle():
            made = Cycle()
            made.me, made.network, made.request = made, network, network.create_infer_request()
            made.request.set_callback(lambda request, error: made)
            made.request.start_async(x)
            return made
        held = [cycle() for _ in range(3)]
        cycle()
        builtins = __import__("builtins")
        builtins.held = held
    """,
    "networks are deleted while they run": """
        def run():
            own = core.compile_model(read, DEVICE)
            request = own.create_infer_request()
            request.start_async(x)
            del own
            running.set()
            del request
            gc.collect()
        start(lambda: infer_forever(run), count=2)
        del network
    """,
    "threads compile": """
        def run():
            core.compile_model(read, DEVICE)(x)
            running.set()
        start(lambda: infer_forever(run), count=2)
    """,
    "a fork while threads infer": """
        start(infer_forever)
        if os.fork() == 0:
            assert (network(x)["y"] == expected).all()
            restarting(network.create_infer_request())
            sys.exit(0)
        assert os.wait()[1] == 0
    """,
    "multiprocessing": """
        import multiprocessing
        def work():
            assert (network(x)["y"] == expected).all()
            start(infer_forever)
        start(infer_forever)
        process = multiprocessing.get_context("fork").Process(target=work)
        process.start()
        process.join()
        assert process.exitcode == 0, process.exitcode
    """,
    "an interrupt while the main thread infers": """
        signal.signal(signal.SIGINT, signal.default_int_handler)  # Shells have what runs in the background ignore it.
        def interrupt():
            time.sleep(0.05)
            os.kill(os.getpid(), signal.SIGINT)
        start(infer_forever, 1)
        threading.Thread(target=interrupt).start()
        try:
            while True:
                network(x)
        except KeyboardInterrupt:
            print("interrupted", flush=True)
    """,
    "SIGTERM raises SystemExit while the main thread infers": """
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
        start(infer_forever, 1)
        threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGTERM)).start()
        while True:
            network(x)
    """,
    "SIGTERM": """
        start(infer_forever)
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(60)
    """,
}
CODES = {
    "an exception ends the main thread": 1,
    "sys.exit": 7,
    "os._exit": 7,
    "SIGTERM raises SystemExit while the main thread infers": 7,
    "SIGTERM": -signal.SIGTERM,
}
OUTPUT = {
    "threads that are joined finish": "done\n" * 3,
    "a handler of the exit infers": "late\n",
    "a handler of the exit that runs after the engine's infers": "refused: Cancelled\n" * 3,
    "an interrupt while the main thread infers": "interrupted\n",
    "daemon threads infer until they are refused": None,
}
"""The expected output; nothing is printed if it is not given."""
FORKS = ["a fork while threads infer", "multiprocessing"]
"""OPENCL refuses inferences in a forked child; drivers may hang when such a child exits other than by `os._exit`."""
FEW = ["daemon threads infer"]
"""Cases that are tried on every device; half of them on CPU, and the rest by the slow tests."""
ALIKE = [
    "daemon threads infer until they are refused",
    "daemon threads infer with requests of their own",
    "os._exit",
    "a queue's callback restarts its request",
    "inferences wait in a queue",
    "an event loop is left with tasks",
    "networks are deleted while they run",
    "SIGTERM raises SystemExit while the main thread infers",
    "a handler of the exit that runs after the engine's infers",
    "a thread feeds a queue",
    "multiprocessing",
    "sys.exit",
    "threads that are joined finish",
]
"""Each has threads, requests and an end that other scenarios have, too."""


def combinations():
    for scenario in SCENARIOS:
        for device in ("CPU", "TEMPLATE", "HETERO:CPU,TEMPLATE", "OPENCL"):
            if device == "OPENCL" and scenario in FORKS:
                continue
            marks = [pytest.mark.opencl] if device == "OPENCL" else []
            if scenario in ALIKE or (device != "CPU" and scenario not in FEW):
                marks.append(pytest.mark.slow)
            yield pytest.param(scenario, device, marks=marks)


@pytest.mark.parametrize(("scenario", "device"), list(combinations()))
def test_the_process_ends(scenario, device):
    source = PRELUDE + textwrap.dedent(SCENARIOS[scenario])
    done = subprocess.run(
        [sys.executable, "-P", "-W", "ignore::DeprecationWarning", "-c", source, device],
        capture_output=True,
        text=True,
        timeout=GRACE_SECONDS,
        # OpenBLAS, with which numpy multiplies on TEMPLATE, hangs in a child if the parent's threads multiply.
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
        cwd=ROOT,
        check=False,
    )
    assert done.returncode == CODES.get(scenario, 0), done.stderr
    expected = OUTPUT.get(scenario, "")
    assert expected is None or done.stdout == expected
    if scenario != "an exception ends the main thread":
        assert "Traceback" not in done.stderr, done.stderr
