"""Requests per second and latency of `engine serve`, beside onnxruntime behind the same server.

    python benchmarks/serving.py                                  # MobileNetV2; 1 and 8 clients; HTTP and gRPC
    python benchmarks/serving.py --models mlp,resnet50 --clients 1,16,64 --rounds 5

Both engines are devices of one server, which has each run an inference for each core side by side, and take turns. The
server's overhead for a request is the latency of a client minus the time of the inference, which the server's metrics
have; and the latency of a model that does nothing. The CPU time of the server for each request is the same on a busy
machine. Clients are threads of another process on the same machine, so that they take some of its cores.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections import defaultdict
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import tritonclient.grpc
import tritonclient.http
from comparison.report import markdown

from engine import Core, ops
from engine.ir import Model, Parameter, Result, f32
from engine.native import cpu_features
from engine.onnx import write_model
from engine.testing.networks import seeded_network

SERVER = Path(__file__).parent / "served" / "server.py"
MODULES = {"http": tritonclient.http, "grpc": tritonclient.grpc}
DEVICES = {"engine": "CPU", "onnxruntime": "ONNXRUNTIME"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0], allow_abbrev=False)
    parser.add_argument("--models", default="mobilenet_v2", help="of engine.testing.seeded_network")
    parser.add_argument("--clients", default="1,8", help="numbers of clients")
    parser.add_argument("--protocols", default="http,grpc")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=3.0, help="of each measurement")
    options = parser.parse_args()
    print(f"CPU: {cpu_features().model}; medians of {options.rounds} rounds of {options.seconds:g} s\n")
    with tempfile.TemporaryDirectory() as made:
        folder, inputs = Path(made), {}
        x = Parameter(f32, [1, 4], "x")
        inputs["nothing"] = write(folder, "nothing", Model([Result(ops.Identity(x), "y")], [x]), "CPU")
        for model in options.models.split(","):
            for engine, device in DEVICES.items():
                name = f"{model}-{engine}"
                inputs[name] = write(folder, name, Core().read_model(seeded_network(model).model), device)
        process = subprocess.Popen([sys.executable, str(SERVER), str(folder)], stdout=subprocess.PIPE, text=True)
        try:
            assert process.stdout is not None
            found = re.search(r"http://(\S+) and grpc://(\S+)", process.stdout.readline())
            assert found is not None
            measure({"http": found[1], "grpc": found[2]}, inputs, options)
        finally:
            process.terminate()
            process.wait()


def write(folder: Path, name: str, model: Model, device: str) -> dict[str, Any]:
    """Put a model into the repository; returns random inputs for it."""
    (folder / name).mkdir()
    (folder / name / "config.toml").write_text(f'device = "{device}"\n')
    write_model(model, folder / name / "model.onnx")
    random, found = np.random.default_rng(0), {}
    for parameter in model.parameters:
        shape = [dim.min or 1 for dim in parameter.type.shape]
        numbers = random.random(shape) if parameter.type.element_type.is_real else random.integers(0, 100, shape)
        found[parameter.friendly_name] = numbers.astype(parameter.type.element_type.numpy)
    return found


def measure(addresses: dict[str, str], inputs: dict[str, Any], options: argparse.Namespace) -> None:
    client = tritonclient.http.InferenceServerClient(addresses["http"])
    while not client.is_server_ready():
        time.sleep(0.1)
    for name in inputs:
        assert client.is_model_ready(name), f"{name} cannot be loaded: {client.get_model_repository_index()}"
    client.close()
    cases = [
        (name, protocol, int(count))
        for name in inputs
        for protocol in options.protocols.split(",")
        for count in options.clients.split(",")
    ]
    results = defaultdict(list)
    for turn in range(options.rounds + 1):
        for name, protocol, count in cases:
            before = counters(addresses["http"], name)
            seconds = 0.5 if not turn else options.seconds
            latencies = talk(addresses[protocol], protocol, name, inputs[name], count, seconds)
            spent, runs, cpu = (b - a for a, b in zip(before, counters(addresses["http"], name), strict=True))
            if turn:  # the first round warms up
                inside = spent / max(1, runs)
                p50, p99 = np.percentile(latencies, [50, 99])
                mean = float(np.mean(latencies))
                figures = (len(latencies) / seconds, p50, p99, inside, mean - inside, cpu / len(latencies))
                results[name, protocol, count].append(figures)
    rows = []
    for (name, protocol, count), found in results.items():
        rate, *times = (median(each) for each in zip(*found, strict=True))
        rows.append([name, protocol, str(count), f"{rate:.0f}", *(f"{each * 1e3:.2f}" for each in times)])
    head = [
        "model",
        "protocol",
        "clients",
        "requests/s",
        "p50 (ms)",
        "p99 (ms)",
        "inference (ms)",
        "the rest (ms)",
        "server CPU (ms)",
    ]
    print(markdown(head, rows))


def talk(address: str, protocol: str, name: str, values: Any, count: int, seconds: float) -> list[float]:
    """Seconds of each request of `count` clients, each with a connection of its own, for a while."""
    latencies: list[float] = []

    def run() -> None:
        module = MODULES[protocol]
        client, given = module.InferenceServerClient(address), []
        for key, value in values.items():
            datatype = {"float32": "FP32", "int64": "INT64", "int32": "INT32"}[str(value.dtype)]
            given.append(module.InferInput(key, list(value.shape), datatype))
            given[-1].set_data_from_numpy(value)
        end = time.perf_counter() + seconds
        while (start := time.perf_counter()) < end:
            client.infer(name, given)
            latencies.append(time.perf_counter() - start)
        client.close()

    threads = [threading.Thread(target=run) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return latencies


def counters(address: str, name: str) -> tuple[float, ...]:
    """Seconds and number of the inferences of a model so far, and the CPU time of the server, in seconds."""
    text = urllib.request.urlopen(f"http://{address}/metrics").read().decode()
    labels = rf'{{model="{name}",version="1"}}'
    lines = (f"engine_infer_seconds_sum{labels}", f"engine_infer_seconds_count{labels}", "process_cpu_seconds_total")
    found = [re.search(rf"^{re.escape(line)} (\S+)$", text, re.MULTILINE) for line in lines]
    return tuple(0.0 if each is None else float(each[1]) for each in found)


if __name__ == "__main__":
    main()
