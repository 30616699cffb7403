"""libengine_runtime: programs in C and Rust get the bits that Python gets, and blobs that need more are refused."""

from __future__ import annotations

import ctypes
import io
import json
import os
import random
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pytest

from engine import Core, ops
from engine.blob import BlobReader, HmacKey, SectionTransform
from engine.errors import EngineError
from engine.ir import Constant, Model, Parameter, Result, Variable, bf16, boolean, f32, i64, string
from engine.plugin_api import ExecutableNetwork
from engine.testing.networks import seeded_network
from engine.testing.values import values
from tests.fuzz.blobs import changed_json
from tests.fuzz.blobs import written as written_blob

ROOT = Path(__file__).parent.parent
EXAMPLES = ROOT / "examples" / "c_runtime"
sys.path.insert(0, str(ROOT / "csrc"))
import native_build  # noqa: E402

# `probe model.blob threads runs x.bin ...` runs a blob in several threads at once, writes the outputs, and prints the
# largest resident memory of the process in KiB.
PROBE = r"""
#include <engine_runtime.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static engine_runtime_network *network;
static const char *blob;
static char **files;
static int runs;

static void fail(const char *what) {
  fprintf(stderr, "%s: %s\n", what, engine_runtime_message());
  exit(1);
}

static void *work(void *number) {
  engine_runtime_request *request;
  if (engine_runtime_create_request(network, &request)) fail("create_request");
  for (int run = 0; run < runs; ++run) {
    for (size_t i = 0; i < engine_runtime_num_inputs(network); ++i) {
      engine_runtime_tensor tensor = {.struct_size = sizeof tensor};
      if (engine_runtime_input(network, i, &tensor)) fail("input");
      void *data = malloc(tensor.bytes + 1);
      FILE *file = fopen(files[i], "rb");
      const size_t count = fread(data, 1, tensor.bytes + 1, file);
      fclose(file);
      if (engine_runtime_set_input(request, i, data, count)) fail("set_input");
      free(data);
    }
    if (engine_runtime_run(request)) fail("run");
  }
  for (size_t i = 0; i < engine_runtime_num_outputs(network); ++i) {
    engine_runtime_tensor tensor = {.struct_size = sizeof tensor};
    char path[4096];
    if (engine_runtime_output(network, i, &tensor)) fail("output");
    void *data = malloc(tensor.bytes + 1);
    if (engine_runtime_get_output(request, i, data, tensor.bytes)) fail("get_output");
    snprintf(path, sizeof path, "%s.%zu.%d", blob, i, *(int *)number);
    FILE *file = fopen(path, "wb");
    fwrite(data, 1, tensor.bytes, file);
    fclose(file);
    free(data);
  }
  engine_runtime_destroy_request(request);
  return NULL;
}

int main(int argc, char **argv) {
  const int threads = argc > 2 ? atoi(argv[2]) : 1;
  pthread_t started[64];
  int numbers[64];
  char line[256];
  blob = argv[1], runs = atoi(argv[3]), files = argv + 4;
  const int status = engine_runtime_open(blob, NULL, &network);
  if (status) {
    printf("%d %s\n", status, engine_runtime_message());
    return 1;
  }
  for (int i = 0; i < threads; ++i) {
    numbers[i] = i;
    pthread_create(&started[i], NULL, work, &numbers[i]);
  }
  for (int i = 0; i < threads; ++i) pthread_join(started[i], NULL);
  engine_runtime_close(network);
  FILE *file = fopen("/proc/self/status", "r");
  while (fgets(line, sizeof line, file)) if (strncmp(line, "VmHWM:", 6) == 0) printf("%d\n", atoi(line + 6));
  fclose(file);
  return 0;
}
"""


def compiler() -> list[str]:
    """The command of a compiler of C."""
    found = shlex.split(os.environ.get("CC", "")) or next(([name] for name in ("cc", "gcc") if shutil.which(name)), [])
    if not found:
        pytest.skip("no compiler of C is on PATH")
    return found


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of an installed library, from the objects of the core that runs the tests."""
    compiler()
    try:
        missing = native_build.stale_units(native_build.kernel_units(native_build.RELEASE), native_build.RELEASE)
    except native_build.BuildError as error:
        pytest.skip(str(error))
    if missing:
        pytest.skip("build/native has no objects of the kernels: the core was built elsewhere")
    folder = tmp_path_factory.mktemp("library")
    native_build.build_runtime(folder)
    return folder


def compiled(library: Path, source: Path) -> Path:
    target = library / source.stem
    command = [
        *(*compiler(), "-std=c99", "-D_POSIX_C_SOURCE=200809L", "-pedantic", "-Wall", "-Wextra", "-Werror", "-O1"),
        *(f"-I{library / 'include'}", str(source), f"-L{library / 'lib'}", "-lengine_runtime", "-pthread"),
        *(f"-Wl,-rpath,{library / 'lib'}", "-o", str(target)),
    ]
    subprocess.run(command, check=True)
    return target


@pytest.fixture(scope="module")
def probe(library: Path) -> Path:
    source = library / "probe.c"
    source.write_text(PROBE, encoding="utf-8")
    return compiled(library, source)


@pytest.fixture(scope="module")
def core() -> Core:
    return Core()


def exported(network: ExecutableNetwork, folder: Path) -> Path:
    path = folder / "network.blob"
    network.export_model(path)
    return path


def written(network: ExecutableNetwork, inputs: Mapping[str, Any], folder: Path) -> list[Path]:
    files = []
    for index, port in enumerate(network.inputs):
        files.append(folder / f"{index}.bin")
        np.ascontiguousarray(inputs[port.name]).tofile(files[-1])
    return files


def check_bits(probe: Path, network: ExecutableNetwork, inputs: Mapping[str, Any], folder: Path, runs: int = 1) -> None:
    """Run the blob of a network in three threads, and compare all bytes of their results with those of its import."""
    blob = exported(network, folder)
    request = Core().import_model(blob).create_infer_request()
    for _ in range(runs):
        expected = request.infer(inputs)
    command = [probe, blob, "3", str(runs), *written(network, inputs, folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    for index, port in enumerate(network.outputs):
        for thread in range(3):
            assert Path(f"{blob}.{index}.{thread}").read_bytes() == expected[port.name].tobytes(), port


@pytest.mark.parametrize("name", ["mlp", "mobilenet_v2", "lstm", "segformer_b0"])
def test_networks_give_the_bits_of_python(core: Core, probe: Path, name: str, tmp_path: Path) -> None:
    network = seeded_network(name, small=True)
    check_bits(probe, core.compile_model(network.model.SerializeToString(), "CPU"), network.inputs, tmp_path)


def test_networks_in_bf16_give_the_bits_of_python(core: Core, probe: Path, tmp_path: Path) -> None:
    """Where the CPU has no bf16, large weights are rounded to it."""
    network = seeded_network("mlp", small=True)
    config = {"INFERENCE_PRECISION_HINT": "bf16"}
    made = core.compile_model(network.model.SerializeToString(), "CPU", config)
    check_bits(probe, made, network.inputs, tmp_path)


def test_quantized_networks_give_the_bits_of_python(core: Core, probe: Path, tmp_path: Path) -> None:
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    network = seeded_network("mlp", small=True)
    onnx.save(network.model, tmp_path / "model.onnx")
    quantize_dynamic(tmp_path / "model.onnx", tmp_path / "int8.onnx", weight_type=QuantType.QInt8)
    made = core.compile_model(tmp_path / "int8.onnx", "CPU", {"CACHE_DIR": ""})
    assert "packed/" in " ".join(BlobReader(exported(made, tmp_path)).section_names)
    check_bits(probe, made, network.inputs, tmp_path)


def test_values_of_other_types_and_forms(core: Core, probe: Path, tmp_path: Path) -> None:
    """An input of bf16, booleans and integers; outputs that are an input, a constant, a scalar, and empty."""
    b, mask, index = Parameter(bf16, [3], "b"), Parameter(boolean, [2, 3], "mask"), Parameter(i64, [2], "index")
    x = Parameter(f32, [2, 3], "x")
    chosen = ops.Where(mask, x, ops.Gather(x, index))
    model = Model(
        [
            Result(ops.Cast(b, to=f32), "wide"), Result(chosen, "chosen"), Result(ops.Identity(x), "same"),
            Result(ops.Identity(Constant(values(3, 5))), "constant"), Result(ops.ReduceSum(x, keepdims=0), "sum"),
            Result(ops.Slice(x, Constant(np.array([0])), Constant(np.array([0]))), "empty"),
        ],
        [b, mask, index, x],
    )  # fmt: skip
    inputs = {
        "b": np.array([1, -2.5, 3], bf16.numpy), "mask": np.array([[1, 0, 1], [0, 0, 1]], bool),
        "index": np.array([1, 0]), "x": values(2, 3),
    }  # fmt: skip
    check_bits(probe, core.compile_model(model, "CPU"), inputs, tmp_path)


def test_variables_are_kept_from_run_to_run(core: Core, probe: Path, tmp_path: Path) -> None:
    x, past = Parameter(f32, [1, 4], "x"), Parameter(f32, [1, 4], "past")
    total = ops.Add(x, past)
    model = Model([Result(ops.Mul(total, total), "y"), Result(total, "sum")], [x, past])
    model.add_variable(Variable("total", "past", "sum", np.array([[1, 2, 3, 4]], np.float32)))
    check_bits(probe, core.compile_model(model, "CPU"), {"x": values(1, 4)}, tmp_path, runs=4)


def test_data_that_a_network_refuses_is_an_error(core: Core, probe: Path, tmp_path: Path) -> None:
    x, index = Parameter(f32, [4, 2], "x"), Parameter(i64, [3], "index")
    made = core.compile_model(Model([Result(ops.Gather(x, index, friendly_name="pick"), "y")], [x, index]), "CPU")
    inputs = {"x": values(4, 2), "index": np.array([0, 4, 1])}
    command = [probe, exported(made, tmp_path), "1", "1", *written(made, inputs, tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "pick" in done.stderr
    inputs["index"] = np.array([0, 1])
    done = subprocess.run([*command[:4], *written(made, inputs, tmp_path)], capture_output=True, text=True, check=False)
    assert "input `index` is i64[3] and has 24 bytes; got 16" in done.stderr


def test_memory_is_that_of_the_weights_and_little_more(core: Core, probe: Path, tmp_path: Path) -> None:
    x = Parameter(f32, [1, 2048], "x")
    random = np.random.default_rng(1)
    weights = [Constant(random.standard_normal((2048, 2048), np.float32)) for _ in range(2)]
    made = core.compile_model(Model([Result(ops.MatMul(ops.MatMul(x, weights[0]), weights[1]), "y")], [x]), "CPU")
    blob = exported(made, tmp_path)
    size = blob.stat().st_size
    assert size > 32 * 2**20
    command = [probe, blob, "1", "2", *written(made, {"x": values(1, 2048)}, tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert int(done.stdout) * 1024 < size + 30 * 2**20


class Reversal(SectionTransform):
    """Stands for a cipher, which needs another package."""

    name = "reversal"

    def apply(self, data: memoryview, context: bytes) -> bytes:
        return bytes(data)[::-1]

    def restore(self, data: memoryview, context: bytes) -> bytes:
        return bytes(data)[::-1]


ARGUMENT, BUSY, CANCELLED = 1, 8, 9
REFUSED = {
    "open lengths": (6, r"the shapes of inputs are open: .*x"),
    "a node without a kernel": (6, r"it has no plans, only the graph: Det `found` runs on the reference evaluator"),
    "texts": (6, "Identity .*runs on the reference evaluator"),
    "a signature": (6, "it is signed, and this runtime cannot verify signatures"),
    "encryption": (6, "it is encrypted"),
    "another device": (5, "it is for the device AUTO"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_blobs_that_need_more_are_refused_with_the_reason(core: Core, probe: Path, what: str, tmp_path: Path) -> None:
    x = Parameter(string if what == "texts" else f32, ["N" if what == "open lengths" else 4], "x")
    result = ops.Identity(x) if what == "texts" else ops.Relu(x)
    if what == "a node without a kernel":
        result = ops.Det(ops.Reshape(x, Constant(np.array([2, 2]))), friendly_name="found")
    made = core.compile_model(Model([Result(result, "y")], [x]), "AUTO" if what == "another device" else "CPU")
    path = tmp_path / "network.blob"
    options: dict[str, Any] = {}
    if what == "a signature":
        options = {"sign": HmacKey("key", bytes(32))}
    elif what == "encryption":
        options = {"transform": Reversal()}
    made.export_model(path, **options)
    done = subprocess.run([probe, path, "1", "1"], capture_output=True, text=True, check=False)
    status, message = REFUSED[what]
    assert done.returncode == 1
    assert re.match(rf"{status} blob {path}: .*{message}", done.stdout), done.stdout


def test_the_example_in_c_runs(core: Core, library: Path, tmp_path: Path) -> None:
    check_example(core, compiled(library, EXAMPLES / "run_blob.c"), tmp_path)


def test_the_example_in_rust_runs(core: Core, library: Path, tmp_path: Path) -> None:
    if not shutil.which("rustc"):
        pytest.skip("no rustc is on PATH (Debian package `rustc`)")
    target, folder = library / "run_blob_in_rust", library / "lib"
    command = ["rustc", "-L", f"native={folder}", "-C", f"link-arg=-Wl,-rpath,{folder}", "-o", str(target)]
    subprocess.run([*command, str(EXAMPLES / "run_blob.rs")], check=True)
    check_example(core, target, tmp_path)


def check_example(core: Core, program: Path, folder: Path) -> None:
    network = seeded_network("mlp", small=True)
    made = core.compile_model(network.model.SerializeToString(), "CPU")
    blob = exported(made, folder)
    files = written(made, network.inputs, folder)
    subprocess.run([program, blob, *files], check=True)
    (expected,) = core.import_model(blob)(network.inputs).values()
    assert Path(f"{blob}.0").read_bytes() == expected.tobytes()
    done = subprocess.run([program, folder / "none.blob", *files], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "none.blob: cannot be opened: No such file" in done.stderr


def status_in_c(library: ctypes.CDLL, blob: bytes, inputs: list[bytes]) -> int:
    """The first status that is not 0 of opening a blob in memory, and running it once."""
    network, request = ctypes.c_void_p(), ctypes.c_void_p()
    memory = ctypes.create_string_buffer(blob, len(blob))
    status = library.engine_runtime_open_memory(memory, ctypes.c_size_t(len(blob)), None, ctypes.byref(network))
    status = status or library.engine_runtime_create_request(network, ctypes.byref(request))
    for index, data in enumerate(inputs):
        size = ctypes.c_size_t(len(data))
        status = status or library.engine_runtime_set_input(request, ctypes.c_size_t(index), data, size)
    status = status or library.engine_runtime_run(request)
    library.engine_runtime_destroy_request(request)
    library.engine_runtime_close(network)
    return int(status)


def test_c_and_python_refuse_the_same_forged_programs(core: Core, library: Path) -> None:
    native = ctypes.CDLL(str(library / "lib" / "libengine_runtime.so"))
    x = Parameter(f32, [2, 64], "x")
    hidden = ops.Relu(ops.Add(ops.MatMul(x, Constant(values(64, 48))), Constant(values(48))))
    stream = io.BytesIO()
    core.compile_model(Model([Result(ops.Softmax(hidden), "y")], [x]), "CPU").export_model(stream)
    reader = BlobReader(stream.getvalue())
    sections = {name: bytes(reader.section(name)) for name in reader.section_names}
    program, data = sections["program"], values(2, 64)
    outcomes = set()
    for seed in range(200):
        forged = changed_json(random.Random(seed), json.loads(program))
        blob = written_blob(reader.manifest, sections | {"program": json.dumps(forged).encode()})
        status = status_in_c(native, blob, [data.tobytes()])
        try:
            core.import_model(blob)({"x": data})
            runs = True
        except EngineError:
            runs = False
        assert runs == (status == 0), seed
        outcomes.add(runs)
    assert outcomes == {True, False}


def test_a_run_in_progress_is_busy_and_can_be_cancelled(core: Core, library: Path, tmp_path: Path) -> None:
    native = ctypes.CDLL(str(library / "lib" / "libengine_runtime.so"))
    native.engine_runtime_message.restype = ctypes.c_char_p
    value = x = Parameter(f32, [512, 512], "x")
    weight = Constant(values(512, 512))
    for _ in range(64):  # so that a run takes longer than the calls below
        value = ops.Relu(ops.MatMul(value, weight))
    blob = exported(core.compile_model(Model([Result(value, "y")], [x]), "CPU"), tmp_path)
    network, request = ctypes.c_void_p(), ctypes.c_void_p()
    assert native.engine_runtime_open(os.fsencode(blob), None, ctypes.byref(network)) == 0
    assert native.engine_runtime_create_request(network, ctypes.byref(request)) == 0
    data, first = values(512, 512).tobytes(), ctypes.c_size_t(0)
    size = ctypes.c_size_t(len(data))
    statuses, meanwhile = set[int](), set[int]()
    native.engine_runtime_set_input(request, first, data, size)
    for _ in range(20):
        thread = Thread(target=lambda: statuses.add(native.engine_runtime_run(request)))
        thread.start()
        while thread.is_alive():
            meanwhile.add(native.engine_runtime_get_output(request, first, data, first))
            native.engine_runtime_cancel(request)
        thread.join()
        if CANCELLED in statuses and BUSY in meanwhile:
            break
    assert CANCELLED in statuses
    assert meanwhile <= {ARGUMENT, BUSY}  # before the run begins, there is no output
    assert BUSY in meanwhile
    assert native.engine_runtime_get_output(request, first, data, size) == ARGUMENT
    assert b"no run has finished, or the last one has failed" in native.engine_runtime_message()
    native.engine_runtime_destroy_request(request)
    native.engine_runtime_close(network)


def test_a_library_for_blobs_has_the_kernels_that_they_name(core: Core, tmp_path: Path) -> None:
    spec = spec_from_loader("c_runtime", SourceFileLoader("c_runtime", str(ROOT / "tools" / "c_runtime")))
    assert spec is not None
    tool = module_from_spec(spec)
    assert spec.loader is not None
    spec.loader.exec_module(tool)
    x = Parameter(f32, [4], "x")
    blob = exported(core.compile_model(Model([Result(ops.Softmax(x), "y")], [x]), "CPU"), tmp_path)
    program = json.loads(bytes(BlobReader(blob).section("program")))
    assert tool.rows_of(blob) == {f"{family}/{isa}" for family, isa in program["rows"]}
    assert "softmax" in " ".join(tool.rows_of(blob))
    x = Parameter(f32, ["N"], "x")
    with pytest.raises(ValueError, match="it has no plans"):
        tool.rows_of(exported(core.compile_model(Model([Result(ops.Softmax(x), "y")], [x]), "CPU"), tmp_path))
    (tmp_path / "text").write_text("x" * 200, encoding="utf-8")
    with pytest.raises(ValueError, match="not a blob"):
        tool.rows_of(tmp_path / "text")


def test_the_library_shows_its_interface_alone(library: Path) -> None:
    """Symbols of C++ would clash with those of the program that links it."""
    if not shutil.which("nm"):
        pytest.skip("no nm is on PATH (binutils)")
    (path,) = (library / "lib").glob("*.so.*")
    listed = subprocess.run(["nm", "-D", "--defined-only", path], capture_output=True, text=True, check=True).stdout
    names = {line.split()[-1] for line in listed.splitlines()} - {"ENGINE_RUNTIME_1"}
    header = (library / "include" / "engine_runtime.h").read_text(encoding="utf-8")
    declared = set(re.findall(r"\b(engine_runtime_\w+)\(", header))
    assert names == {f"{name}@@ENGINE_RUNTIME_1" for name in declared}


def test_the_header_is_one_of_cpp_too(library: Path) -> None:
    command = [*native_build.compiler(), "-std=c++11", "-Wall", "-Wextra", "-Werror", "-fsyntax-only", "-x", "c++"]
    subprocess.run([*command, library / "include" / "engine_runtime.h"], check=True)


def test_the_library_is_found_by_pkg_config(library: Path) -> None:
    if not shutil.which("pkg-config"):
        pytest.skip("no pkg-config is on PATH")
    command = ["pkg-config", "--cflags", "--libs", "engine_runtime"]
    environment = {**os.environ, "PKG_CONFIG_PATH": str(library / "lib" / "pkgconfig")}
    found = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.split()
    assert found[-1] == "-lengine_runtime"
    assert Path(found[0].removeprefix("-I")).resolve() == (library / "include").resolve()
