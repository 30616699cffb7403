"""Nonsense on the command line: a script sees why by the exit code, a person by one message; nothing is left over."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from engine import Core
from engine.testing.behaviour.cases import CASES

Engine = Callable[..., Any]

# Arguments (files lie in the folder of the fixture), exit code, words of the message.
NONSENSE: dict[str, tuple[str, int, tuple[str, ...]]] = {
    "no command": ("", 2, ("command is missing", "--help")),
    "unknown command": ("fly", 2, ("fly", "benchmark")),
    "unknown option": ("devices --all", 2, ("--all",)),
    "shortened option": ("run basic.onnx --dev TEMPLATE", 2, ("--dev",)),
    "no file": ("run -d TEMPLATE", 2, ("FILE",)),
    "missing model": ("run nowhere.onnx -d TEMPLATE", 3, ("nowhere.onnx", "No such file")),
    "folder as model": ("query . -d TEMPLATE", 3, ("directory",)),
    "text as model": ("compile text.onnx -d TEMPLATE", 3, ("text.onnx", "not a valid ONNX model")),
    "empty model": ("inspect empty.onnx", 3, ("empty.onnx", "empty")),
    "missing blob": ("inspect nowhere.blob", 3, ("nowhere.blob", "No such file")),
    "truncated blob": ("benchmark truncated.blob", 3, ("truncated",)),
    "truncated blob inspected": ("inspect truncated.blob", 3, ("truncated",)),
    "blob compiled": ("compile basic.blob -d TEMPLATE", 2, ("already a blob", "inspect")),
    "blob compressed": ("compress basic.blob", 2, ("basic.blob is a blob", "compile the result")),
    "model replaced": ("compress basic.onnx -o basic.onnx", 2, ("would replace the model", "-o FILE")),
    "text compressed": ("compress text.onnx", 3, ("text.onnx", "not a valid ONNX model")),
    "unknown weights": ("compress basic.onnx --weights int3", 2, ("int3", "int4")),
    "negative group": ("compress basic.onnx --weights-group -1", 2, ("0 or more",)),
    "group of one": ("compress basic.onnx --weights-group 1", 3, ("group is 1", "2 or more")),
    "unknown layer": ("compress basic.onnx --exclude head", 3, ("'head'", "exclude")),
    "group without weights": ("compile basic.onnx -d TEMPLATE --weights-group 8", 2, ("--weights-group", "--weights")),
    "no folder": ("compress basic.onnx -o nowhere/x.onnx", 2, ("nowhere", "does not exist")),
    "blob queried": ("query basic.blob -d TEMPLATE", 3, ("basic.blob",)),
    "nothing available": ("run basic.onnx -d AUTO:NO,SUCH", 3, ("no device can be used", "'NO'", "'SUCH'")),
    "batches nowhere": ("run basic.onnx -d BATCH", 3, ("BATCH:CPU(16)",)),
    "batches of nothing": ("compile basic.onnx -d BATCH:TEMPLATE(0) -o new.blob", 3, ("from 1 to 65536",)),
    "batch of a device": ("run basic.onnx -d TEMPLATE(4)", 3, ("parentheses", "'TEMPLATE'")),
    "unknown device": ("run basic.onnx -d TEMPLATES", 3, ("TEMPLATES", "TEMPLATE")),
    "unknown device id": ("run basic.onnx -d TEMPLATE.7", 3, ("'7'", "devices: 0")),
    "list of devices": ("run basic.onnx -d TEMPLATE:CPU", 3, ("does not take a list of devices",)),
    "blob of another device": ("run basic.blob -d NO_SUCH", 3, ("NO_SUCH",)),
    "config without value": ("run basic.onnx -d TEMPLATE -c PERF_COUNT", 2, ("KEY=VALUE", "PERF_COUNT")),
    "unknown config": ("run basic.onnx -d TEMPLATE -c PERF=1", 3, ("'PERF'", "PERF_COUNT", "allowed")),
    "wrong config": ("run basic.onnx -d TEMPLATE -c NUM_STREAMS=many", 3, ("NUM_STREAMS", "0 to 1024", "'many'")),
    "metric as config": ("run basic.blob -c FULL_DEVICE_NAME=x", 3, ("FULL_DEVICE_NAME", "read-only")),
    "missing input file": ("run basic.blob -i a=nowhere.npy", 3, ("nowhere.npy", "No such file")),
    "unknown input": ("run basic.blob -i c=input.npy", 2, ("'c'", "inputs: a, b")),
    "input without name": ("run basic.blob -i input.npy", 3, ("NAME=input.npy", "a, b")),
    "input twice": ("run basic.blob -i a=input.npy -i a=input.npy", 2, ("'a'", "twice")),
    "input of another type": ("run basic.blob -i a=input.npy", 3, ("`a`", "float64", "float32")),
    "outputs as inputs": ("run basic.blob -i basic_answer.npz", 3, ("'total'", "inputs: a, b")),
    "text as input": ("run basic.blob -i a=text.npy", 3, ("text.npy", "cannot be read")),
    "unknown format": ("run basic.blob -i a=text.onnx", 3, ("text.onnx", ".npy, .pb, an image")),
    "file and shape": ("run basic.blob -i a=input.npy --shape a=2,3", 2, ("'a'", "--shape")),
    "shape of no input": ("run basic.blob --shape z=1", 2, ("z", "inputs: a, b")),
    "shape that does not fit": ("run basic.blob --shape a=3,2", 3, ("`a`", "(3, 2)", "f32[2,3]")),
    "huge shape": ("run dynamic.onnx -d TEMPLATE --shape x=1000000000000,3", 3, ("`x`", "cannot allocate")),
    "impossible shape": ("run dynamic.onnx -d TEMPLATE --shape x=9223372036854775807,3", 3, ("`x`", "cannot allocate")),
    "malformed shape": ("run basic.blob --shape a=2x3", 2, ("NAME=DIMS", "a=2x3")),
    "negative shape": ("run basic.blob --shape a=-1,3", 2, ("NAME=DIMS",)),
    "steps of a blob": ("run basic.blob --preprocess a=input(f64)", 2, ("keeps the steps",)),
    "steps of an inspected blob": ("inspect basic.blob --preprocess a=input(f64)", 2, ("keeps the steps",)),
    "malformed steps": ("run basic.onnx -d TEMPLATE --preprocess a=u8", 2, ("NAME=input(..)", "got a=u8")),
    "unknown step": ("run basic.onnx -d TEMPLATE --preprocess a=input(u8).blur(3)", 3, ("no step blur", "resize")),
    "steps that do not fit": (
        "run basic.onnx -d TEMPLATE --preprocess a=input(u8,shape=[3,3]).scale(2)",
        3,
        ("[3,3] cannot be [2,3]",),
    ),
    "steps of no input": ("run basic.onnx -d TEMPLATE --preprocess c=input(u8)", 3, ("no input 'c'", "'a'")),
    "negative seed": ("run basic.blob --seed -1", 2, ("--seed",)),
    "tolerance": ("run basic.blob --rtol nan", 2, ("--rtol", "nan")),
    "two references": ("run basic.onnx -d TEMPLATE --reference a.npz --reference-device CPU", 2, ("not allowed with",)),
    "reference device for a blob": ("run basic.blob --reference-device TEMPLATE", 2, ("needs the model",)),
    "unknown reference device": ("run basic.onnx -d TEMPLATE --reference-device CPUS", 3, ("CPUS",)),
    "missing reference": ("run basic.blob --reference nowhere.npz", 3, ("nowhere.npz",)),
    "output to nowhere": ("run basic.blob -o nowhere/out.npz", 2, ("nowhere",)),
    "output without name": ("run basic.blob -o ''", 2, ("output file is empty",)),
    "output over a file": ("run basic.blob -o basic", 3, ("basic: it is a file",)),
    "blob without name": ("compile basic.onnx -d TEMPLATE -o ''", 2, ("output file is empty",)),
    "model without name": ("compile '' -d TEMPLATE", 3, ("path is empty",)),
    "output of another kind": ("run basic.blob -o out.txt", 2, ("out.txt", ".npz")),
    "blob to nowhere": ("compile basic.onnx -d TEMPLATE -o nowhere/x.blob", 2, ("nowhere",)),
    "blob over a folder": ("compile basic.onnx -d TEMPLATE -o .", 3, ("cannot write blob",)),
    "blob over the model": ("compile basic.onnx -d TEMPLATE -o basic.onnx", 2, ("replace the model",)),
    "no time": ("benchmark basic.blob -t -1", 2, ("--time",)),
    "no inferences": ("benchmark basic.blob --count 0", 2, ("--count", "1 or more")),
    "requests": ("benchmark basic.blob -n two", 2, ("--requests", "'two'")),
    "cores": ("benchmark basic.blob --cores zero", 2, ("0,1", "'zero'")),
    "unusable core": ("benchmark basic.blob --cores 99999", 3, ("core 99999", "usable: ")),
    "pinned nowhere": ("benchmark basic.blob --pin", 2, ("--cores", "-n 0")),
    "pinned requests": ("benchmark basic.blob --pin --cores 1 -n 2", 2, ("--cores", "-n 0")),
    "pinned comparison": ("benchmark basic.blob --pin --cores 1 -n 0 --compare TEMPLATE", 2, ("--pin", "--compare")),
    "setting given twice": ("benchmark basic.blob --streams 2 -c NUM_STREAMS=1", 2, ("NUM_STREAMS", "twice")),
    "layers of tokens": ("benchmark basic.onnx -d CPU --generate 4 --layers", 2, ("--layers", "--generate")),
    "compared with nothing": ("benchmark basic.blob --compare nowhere.json", 3, ("nowhere.json", "No such file")),
    "compared with text": ("benchmark basic.blob --compare nowhere.onnx", 3, ("nowhere.onnx", "does not exist")),
    "compared with no device": ("benchmark basic.onnx -d CPU --compare NO_SUCH", 3, ("NO_SUCH",)),
    "blob for another device": ("benchmark basic.blob --compare ONNXRUNTIME", 3, ("ONNXRUNTIME", "compiled for")),
    "report nowhere": ("benchmark basic.blob --html nowhere/x.html", 2, ("nowhere", "does not exist")),
    "text as image": ("run basic.blob -i a=fake.png", 3, ("fake.png", "cannot be read as an image")),
    "raw bytes of another size": ("run basic.blob -i a=bytes.bin", 3, ("bytes.bin", "5 bytes")),
    "scale without numbers": ("run basic.blob --image-mean a,b", 2, ("0.485,0.456,0.406", "'a,b'")),
}


@pytest.fixture(scope="module")
def folder(files: Path) -> Path:
    (files / "text.onnx").write_text("this is not a model, whatever its name says\n")
    onnx.save(next(case.model for case in CASES if case.name == "dynamic_batch"), files / "dynamic.onnx")
    (files / "basic").write_text("in the way\n")
    (files / "text.npy").write_text("1 2 3\n")
    (files / "fake.png").write_text("no image\n")
    (files / "bytes.bin").write_bytes(b"12345")
    (files / "empty.onnx").write_bytes(b"")
    (files / "truncated.blob").write_bytes((files / "basic.blob").read_bytes()[:-1])
    np.save(files / "input.npy", np.zeros((2, 3)))
    onnx.save(_model_of("Transpose", [], perm=[1, 1]), files / "invalid.onnx")
    onnx.save(_model_of("Gather", [1]), files / "lookup.onnx")
    np.savez(files / "lookup.npz", x=np.zeros((2, 3), np.float32), i=np.array([9]))
    return files


def _model_of(op_type: str, indices: list[int], **attributes: Any) -> onnx.ModelProto:
    """A model of the node `culprit`."""
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 3])]
    if indices:
        inputs.append(helper.make_tensor_value_info("i", TensorProto.INT64, indices))
    node = helper.make_node(op_type, [each.name for each in inputs], ["y"], name="culprit", **attributes)
    result = helper.make_tensor_value_info("y", TensorProto.FLOAT, [None, None])
    graph = helper.make_graph([node], "g", inputs, [result])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


@pytest.mark.parametrize("what", NONSENSE)
def test_nonsense_is_refused(engine: Engine, folder: Path, what: str) -> None:
    arguments, code, words = NONSENSE[what]
    before = {file: file.read_bytes() for file in folder.iterdir()}
    done = engine(*shlex.split(arguments), cwd=folder)
    assert done.code == code, done.err
    assert done.out == ""
    assert "Traceback" not in done.err
    assert [word for word in words if word not in done.err] == [], done.err
    assert done.err.splitlines()[-1].startswith("engine")
    assert {file: file.read_bytes() for file in folder.iterdir()} == before


@pytest.mark.parametrize("command", ["run", "compile", "query", "benchmark", "inspect"])
def test_an_invalid_node_is_named_in_one_line(engine: Engine, folder: Path, command: str) -> None:
    device = () if command == "inspect" else ("-d", "HETERO:CPU,TEMPLATE")
    done = engine(command, "invalid.onnx", *device, cwd=folder)
    message = f"engine {command}: error: Transpose `culprit`: attribute perm is [1, 1]; allowed: a permutation"
    assert (done.code, done.out, len(done.err.splitlines())) == (3, "", 1)
    assert done.err.startswith(message)


@pytest.mark.parametrize("device", ["TEMPLATE", "CPU", "HETERO:CPU,TEMPLATE"])
def test_an_invalid_value_is_named_in_one_line(engine: Engine, folder: Path, tmp_path: Path, device: str) -> None:
    """Also by a network from a blob, which no longer has a model."""
    blob = tmp_path / "lookup.blob"
    assert engine("compile", "lookup.onnx", "-d", device, "-o", blob, cwd=folder).code == 0
    for file in ("lookup.onnx", blob):
        done = engine("run", file, *([] if file is blob else ["-d", device]), "-i", "lookup.npz", cwd=folder)
        assert (done.code, len(done.err.splitlines())) == (3, 1), done.err
        assert [word for word in ("engine run: error: ", "culprit", "9", "out of range") if word not in done.err] == []


@pytest.mark.parametrize(
    "what",
    [
        "missing model",
        "unknown command",
        *(pytest.param(what, marks=pytest.mark.slow) for what in ("text as model", "unknown device", "wrong config")),
    ],
)
def test_another_process_ends_with_the_same_code(engine_process: Engine, folder: Path, what: str) -> None:
    arguments, code, words = NONSENSE[what]
    done = engine_process(*arguments.split(), cwd=folder)
    assert (done.code, done.out) == (code, "")
    assert "Traceback" not in done.err
    assert [word for word in words if word not in done.err] == [], done.err


def test_debug_shows_where_an_error_comes_from(engine: Engine, folder: Path) -> None:
    done = engine("inspect", folder / "empty.onnx", "--debug")
    assert done.code == 3
    assert "Traceback" in done.err
    assert done.err.splitlines()[-1].startswith("engine inspect: error: ")


def test_a_bug_is_not_taken_for_a_difference(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("what nobody thought of")

    monkeypatch.setattr("engine.core.Core.supported_properties", broken)
    done = engine("devices", "TEMPLATE")
    assert done.code == 4
    assert "ZeroDivisionError: what nobody thought of" in done.err
    assert "this is a bug" in done.err


def start(*arguments: object) -> subprocess.Popen[str]:
    """Start `engine` so that it can be interrupted, even where this process ignores interrupts."""
    script = (
        "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler);"
        "from engine.cli.main import main; sys.exit(main())"
    )
    return subprocess.Popen(
        [sys.executable, "-c", script, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": ""},
    )


@pytest.mark.skipif(os.name != "posix", reason="signals and closed pipes are POSIX's")
@pytest.mark.parametrize("requests", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_an_interrupt_ends_it_cleanly(folder: Path, requests: int) -> None:
    with start("benchmark", folder / "basic.blob", "-t", 600, "-n", requests) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("network")
        assert process.stdout.readline().startswith("set-up")
        time.sleep(3)  # more than a block of half a second, so that there are results
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (130, "engine benchmark: interrupted; these are the results until then\n")
    assert "latency     min " in out


@pytest.mark.skipif(os.name != "posix", reason="signals and closed pipes are POSIX's")
@pytest.mark.parametrize("arguments", [["inspect", "squeezenet.blob"], ["--help"]])
def test_a_reader_that_stops_reading_ends_it_cleanly(folder: Path, arguments: list[str]) -> None:
    command, *files = arguments
    with start(command, *(folder / file for file in files)) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        err = process.stderr.read()
    assert (process.returncode, err) == (141, "")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="this system has no /dev/full")
def test_a_full_disk_under_the_output_is_no_difference(folder: Path) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "engine", "inspect", folder / "squeezenet.blob"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert (done.returncode, "No space left" in done.stderr, "Traceback" in done.stderr) == (3, True, False)


@pytest.mark.skipif(os.name != "posix", reason="file descriptors are closed by the shell")
def test_a_closed_output_is_no_difference(folder: Path) -> None:
    command = f'"{sys.executable}" -m engine inspect "{folder / "squeezenet.blob"}" >&-'
    done = subprocess.run(command, shell=True, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_too_little_memory_is_no_bug(engine: Engine, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def exhausted(core: Core, model: Any) -> None:
        raise MemoryError

    monkeypatch.setattr(Core, "read_model", exhausted)
    done = engine("query", folder / "basic.onnx", "-d", "TEMPLATE")
    assert done.code == 3
    assert "not enough memory" in done.err
    assert "Traceback" not in done.err
