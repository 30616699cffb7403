"""Requests per second of `engine serve`, beside onnxruntime behind other servers in Python.

    python benchmarks/serving.py                        # an MLP, MobileNetV2, BERT; 8 and 32 clients
    python benchmarks/serving.py --models mlp --forms json --servers engine,litserve --rounds 9
    python benchmarks/serving.py --models nothing,mlp --forms binary,grpc --servers engine,device --clients 1,8

The servers are `engine serve`; KServe's server, LitServe, and a bare application of Starlette under uvicorn, each with
onnxruntime (packages kserve, litserve, starlette); and, as "device", onnxruntime as a device of our server. All have
loaded all models, and take turns in short blocks, since the machine's other work changes. Each has its own defaults. A
server that is not installed is left out. All must give the same numbers; the exit status is 1 if they do not.

Forms of requests: the protocol's JSON; its binary tensors, for LitServe base64 in JSON; gRPC, which only our server is
asked by. Clients of HTTP are one thread that sends a prepared request over many connections; those of gRPC are
tritonclient's, in threads, and take much of the machine. Beside the rate, which depends on what else the machine does
and on the clients, there are the milliseconds of CPU time that an answer costs the server's processes, and the clients.
"""

from __future__ import annotations

import argparse
import base64
import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from comparison.report import markdown
from served.load import Load, ask, cpu_seconds, request, talk

from engine import Core, ops
from engine.ir import Model, Parameter, Result, f32
from engine.native import cpu_features
from engine.onnx import write_model
from engine.testing.networks import seeded_network

SERVED = Path(__file__).parent / "served"
DATATYPES = {"float32": "FP32", "int64": "INT64", "int32": "INT32"}
START_SECONDS = 60


@dataclass(frozen=True)
class Server:
    """A server under test: the program, the package that it needs, and the suffix of its models' names."""

    program: str
    package: str
    suffix: str = ""
    has_base64: bool = False


SERVERS = {
    "engine": Server("server.py", "kserve"),
    "device": Server("server.py", "kserve", "-onnxruntime"),
    "kserve": Server("kserve_server.py", "kserve"),
    "litserve": Server("litserve_server.py", "litserve", has_base64=True),
    "starlette": Server("starlette_server.py", "starlette"),
}


@dataclass(frozen=True)
class Running:
    """A server that runs: its process, and its addresses by protocol."""

    process: int
    http: str
    grpc: str


def main() -> int:
    options = parsed()
    names = [name for name in options.servers.split(",") if importlib.util.find_spec(SERVERS[name].package)]
    packages = ("onnxruntime", "uvicorn", *dict.fromkeys(SERVERS[name].package for name in names))
    versions = ", ".join(f"{package} {version(package)}" for package in dict.fromkeys(packages))
    print(f"CPU: {cpu_features().model}; {versions}; medians of {options.rounds} rounds of {options.seconds:g} s")
    with tempfile.TemporaryDirectory() as made, ExitStack() as stack:
        folder, inputs = Path(made), {}
        (folder / "ours").mkdir()
        for model in options.models.split(","):
            inputs[model] = write(folder, model, "device" in names)
        programs = dict.fromkeys((SERVERS[name].program for name in names), folder / "peers")
        if "server.py" in programs:
            programs["server.py"] = folder / "ours"
        running = {program: stack.enter_context(started(program, where)) for program, where in programs.items()}
        return measure({name: running[SERVERS[name].program] for name in names}, inputs, options)


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0], allow_abbrev=False)
    parser.add_argument("--models", default="mlp,mobilenet_v2,bert_base", help="of engine.testing; or `nothing`")
    parser.add_argument("--servers", default="engine,kserve,litserve,starlette", help=f"of {', '.join(SERVERS)}")
    parser.add_argument("--forms", default="json,binary", help="of json, binary, grpc")
    parser.add_argument("--clients", default="8,32", help="numbers of clients")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=2.0, help="of each measurement")
    return parser.parse_args()


def write(folder: Path, name: str, with_device: bool) -> dict[str, Any]:
    """Put a model into the repositories; returns random inputs for it."""
    x = Parameter(f32, [1, 4], "x")
    nothing = Model([Result(ops.Identity(x), "y")], [x])
    model = nothing if name == "nothing" else Core().read_model(seeded_network(name).model)
    devices = {f"ours/{name}": "CPU", f"peers/{name}": ""}
    if with_device:
        devices[f"ours/{name}-onnxruntime"] = "ONNXRUNTIME"
    for path, device in devices.items():
        (folder / path).mkdir(parents=True)
        write_model(model, folder / path / "model.onnx")
        if device:
            (folder / path / "config.toml").write_text(f'device = "{device}"\n')
    random, found = np.random.default_rng(0), {}
    for parameter in model.parameters:
        shape = [dim.min or 1 for dim in parameter.type.shape]
        is_real = parameter.type.element_type.is_real
        numbers = random.random(shape) if is_real else random.integers(0, 2, shape)
        found[parameter.friendly_name] = numbers.astype(parameter.type.element_type.numpy)
    return found


@contextmanager
def started(program: str, folder: Path) -> Iterator[Running]:
    """A server of the models in a folder, until the end of the block."""
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
    command = [sys.executable, str(SERVED / program), str(folder), str(port)]
    with open(f"{folder}-{program}.log", "w") as log:
        out = subprocess.PIPE if program == "server.py" else log  # a pipe that nobody reads would fill
        process = subprocess.Popen(command, stdout=out, stderr=log, text=True, start_new_session=True)
    try:
        if program == "server.py":
            assert process.stdout is not None
            http, _, grpc = process.stdout.readline().strip().partition(" and ")
            yield Running(process.pid, http.rpartition("/")[2], grpc.rpartition("/")[2])
        else:
            yield Running(process.pid, f"127.0.0.1:{port}", "")
    finally:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(20)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # the workers of LitServe outlive it
        process.wait()


def measure(running: dict[str, Running], inputs: dict[str, Any], options: argparse.Namespace) -> int:
    """Print the tables; returns the exit status."""
    is_right = True
    for model, values in inputs.items():
        rows, notes = [], []
        for form in options.forms.split(","):
            asked = {name: each for name, each in running.items() if form != "grpc" or each.grpc}
            answers = {name: first_answer(each, name, model, values, form) for name, each in asked.items()}
            for name, answer in answers.items():
                if not np.allclose(answer, next(iter(answers.values())), rtol=1e-3, atol=1e-4):
                    print(f"{name} answers other numbers for {model} than {next(iter(answers))}")
                    is_right = False
            for clients in map(int, options.clients.split(",")):
                talks = {name: talker(each, name, model, values, form, clients) for name, each in asked.items()}
                found, failed = alternated(talks, options)
                rows += [[form, str(clients), name, *figures(loads)] for name, loads in found.items()]
                rows += [[form, str(clients), name, "failed", "", "", "", ""] for name in failed]
                notes += [f"{name} failed with {clients} clients, {form}: {why}" for name, why in failed.items()]
        print(f"\n{model}\n")
        head = ["form", "clients", "server", "requests/s", "p50 (ms)", "p99 (ms)"]
        print(markdown([*head, "server CPU (ms)", "client CPU (ms)"], rows), flush=True)
        print("".join(f"\n{note}" for note in notes), flush=True)
    return int(not is_right)


def alternated(
    talks: dict[str, Callable[[float], Load]], options: argparse.Namespace
) -> tuple[dict[str, list[Load]], dict[str, str]]:
    """The loads of each server, in turns; and the errors of those that refused a request, such as by a deadline."""
    results, failed = defaultdict(list), {}
    for turn in range(options.rounds + 1):
        order = list(talks) if turn % 2 else list(reversed(talks))
        for name in order:
            if name in failed:
                continue
            try:
                found = talks[name](options.seconds if turn else min(0.5, options.seconds))
            except RuntimeError as e:
                failed[name] = str(e)
                continue
            if turn:  # the first round warms up
                results[name].append(found)
    return {name: results[name] for name in talks if name not in failed}, failed


def figures(loads: list[Load]) -> list[str]:
    """The columns of a row: the medians of the rounds."""
    times = [np.percentile(load.latencies, [50, 99]) for load in loads]
    p50, p99 = (median(each) * 1e3 for each in zip(*times, strict=True))
    cpu = [median(each) * 1e3 for each in ([x.server_cpu for x in loads], [x.client_cpu for x in loads])]
    rate = median(load.rate for load in loads)
    shown = f"{rate:.0f}" if rate >= 100 else f"{rate:.1f}"
    return [shown, f"{p50:.1f}", f"{p99:.1f}", *(f"{each:.2f}" for each in cpu)]


def message(server: str, model: str, values: dict[str, Any], form: str, address: str) -> bytes:
    """A request of HTTP."""
    path = f"/v2/models/{model}{SERVERS[server].suffix}/infer"
    kind = {"content-type": "application/json"}
    if form == "json" or SERVERS[server].has_base64:
        tensors = [described(name, value) | {"data": value.ravel().tolist()} for name, value in values.items()]
        coded = {name: (base64.b64encode(v).decode(), str(v.dtype), v.shape) for name, v in values.items()}
        body = {"inputs": tensors} if form == "json" else {"base64": coded}
        return request(path, json.dumps(body).encode(), kind, address)
    tensors = [described(name, v) | {"parameters": {"binary_data_size": v.nbytes}} for name, v in values.items()]
    head = json.dumps({"inputs": tensors, "parameters": {"binary_data_output": True}}).encode()
    body = head + b"".join(value.tobytes() for value in values.values())
    kind = {"content-type": "application/octet-stream", "inference-header-content-length": str(len(head))}
    return request(path, body, kind, address)


def described(name: str, value: Any) -> dict[str, Any]:
    return {"name": name, "shape": list(value.shape), "datatype": DATATYPES[str(value.dtype)]}


def first_answer(running: Running, server: str, model: str, values: dict[str, Any], form: str) -> Any:
    """The numbers of the first output, once the server answers."""
    if form == "grpc":
        (result,) = talk_grpc(running, server, model, values, 1, 0)
        return result.as_numpy(result.get_response().outputs[0].name).ravel()
    given, end = message(server, model, values, form, running.http), time.monotonic() + START_SECONDS
    while True:
        try:
            head, body = ask(running.http, given)
            break
        except (OSError, RuntimeError):  # it does not listen yet, or the model is not ready
            if time.monotonic() > end:
                raise
            time.sleep(0.2)
    if form == "json":
        return np.array(json.loads(body)["outputs"][0]["data"], np.float32).ravel()
    if SERVERS[server].has_base64:
        return np.frombuffer(base64.b64decode(json.loads(body)["base64"][0]), np.float32)
    (length,) = (int(v) for k, _, v in (x.partition(b":") for x in head.split(b"\r\n")) if k.lower() == LENGTH)
    return np.frombuffer(body[length:], np.float32)


LENGTH = b"inference-header-content-length"


def talker(
    running: Running, server: str, model: str, values: dict[str, Any], form: str, clients: int
) -> Callable[[float], Load]:
    """What measures the load of so many clients for some seconds."""
    if form == "grpc":
        return partial(load_grpc, running, server, model, values, clients)
    given = message(server, model, values, form, running.http)
    return lambda seconds: talk(running.http, given, clients, seconds, running.process)


def load_grpc(running: Running, server: str, model: str, values: dict[str, Any], clients: int, seconds: float) -> Load:
    cpu, own_cpu, latencies = cpu_seconds(running.process), time.process_time(), []
    talk_grpc(running, server, model, values, clients, seconds, latencies)
    used, own_used = cpu_seconds(running.process) - cpu, time.process_time() - own_cpu
    return Load(len(latencies) / seconds, latencies, used / len(latencies), own_used / len(latencies))


def talk_grpc(
    running: Running,
    server: str,
    model: str,
    values: dict[str, Any],
    clients: int,
    seconds: float,
    latencies: list[float] | None = None,
) -> list[Any]:
    """Let clients ask by gRPC for some seconds, at least once each; returns the last answer of each."""
    import tritonclient.grpc

    last: list[Any] = []

    def run() -> None:
        client, given = tritonclient.grpc.InferenceServerClient(running.grpc), []
        for name, value in values.items():
            given.append(tritonclient.grpc.InferInput(name, list(value.shape), DATATYPES[str(value.dtype)]))
            given[-1].set_data_from_numpy(value)
        end = time.perf_counter() + seconds
        while True:
            start = time.perf_counter()
            found = client.infer(f"{model}{SERVERS[server].suffix}", given)
            now = time.perf_counter()
            if latencies is not None:
                latencies.append(now - start)
            if now >= end:
                break
        last.append(found)
        client.close()

    threads = [threading.Thread(target=run) for _ in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return last


if __name__ == "__main__":
    sys.exit(main())
