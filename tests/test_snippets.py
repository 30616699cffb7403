"""The documents do what they say: their code and commands run, and print what stands there.

If this fails, the first thing that a new user tries does not work. Each document with code is in one of the tables.
"""

from __future__ import annotations

import importlib.util
import json
import shutil
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine import Core, ops
from engine.ir import Constant, Model, Parameter, Result, f32
from engine.onnx import write_model
from tests.snippets import CODE, DOCS, ROOT, Block, blocks, check_command, commands, run_document

Namespace = dict[str, Any]


def small_model(_: Namespace) -> None:
    """Write `model.onnx`: a convolution and a product."""
    rng = np.random.default_rng(0)
    x = Parameter(f32, [1, 3, 8, 8], "x")
    conv = ops.Conv(x, Constant(rng.standard_normal((4, 3, 3, 3)).astype(np.float32), friendly_name="filters"))
    flat = ops.Reshape(ops.Relu(conv), Constant(np.array([1, 144])))
    weights = Constant(rng.standard_normal((144, 128)).astype(np.float32), friendly_name="weights")
    write_model(Model([ops.MatMul(flat, weights, friendly_name="y")], [x], name="small"), "model.onnx")


def model_and_values(namespace: Namespace) -> None:
    """Write `model.onnx`, and a value of its input."""
    small_model(namespace)
    np.save("x.npy", np.ones((1, 3, 8, 8), np.float32))


def open_batch(_: Namespace) -> None:
    """Write `model.onnx`, a classifier of any number of images, with a value `features` inside."""
    rng = np.random.default_rng(0)
    x = Parameter(f32, ["N", 3, 8, 8], "x")
    conv = ops.Conv(x, Constant(rng.standard_normal((4, 3, 3, 3)).astype(np.float32), friendly_name="filters"))
    pooled = ops.Flatten(ops.GlobalAveragePool(ops.Relu(conv, friendly_name="features")))
    weights = Constant(rng.standard_normal((4, 10)).astype(np.float32), friendly_name="weights")
    write_model(Model([ops.MatMul(pooled, weights, friendly_name="y")], [x], name="small"), "model.onnx")


def vectors(_: Namespace) -> None:
    """Write `model.onnx`, a product for any number of rows."""
    x = Parameter(f32, ["N", 144], "x")
    weights = Constant(np.random.default_rng(0).standard_normal((144, 128)).astype(np.float32))
    write_model(Model([Result(ops.MatMul(x, weights), "y")], [x], name="scorer"), "model.onnx")


def vectors_and_decoder(namespace: Namespace) -> None:
    """Write `model.onnx`, and `decoder.onnx`, a language model of two layers."""
    vectors(namespace)
    shutil.copy(ROOT / "tests" / "fixtures" / "decoders" / "llama.dynamo23.onnx", "decoder.onnx")


def classifier_and_detector(_: Namespace) -> None:
    """Write `classifier.onnx`, which tells the colour of an image, and `detector.onnx`, which finds what is white."""
    filters = Constant(np.eye(3, dtype=np.float32).reshape(3, 3, 1, 1))
    x = Parameter(f32, ["N", 3, 224, 224], "x")
    scores = ops.Flatten(ops.GlobalAveragePool(ops.Conv(x, filters)))
    write_model(Model([Result(scores, "y")], [x], name="classifier"), "classifier.onnx")
    x = Parameter(f32, [1, 3, 320, 320], "x")
    mean = Constant(np.full((1, 3, 1, 1), 1 / 3, np.float32))
    found = ops.Cast(ops.Greater(ops.Conv(x, mean), Constant(0.75)), to=f32.onnx)
    ends = [ops.ReduceMax(found, Constant(np.array([1, axis])), keepdims=0) for axis in (2, 3)]
    first = [ops.Cast(ops.ArgMax(each, axis=1), to=f32.onnx) for each in ends]
    last = [ops.Cast(ops.ArgMax(each, axis=1, select_last_index=1), to=f32.onnx) for each in ends]
    box = ops.Concat(*first, *(ops.Add(each, Constant(1.0)) for each in last), axis=1)
    write_model(Model([Result(box, "box")], [x], name="detector"), "detector.onnx")


def model_and_weights(namespace: Namespace) -> None:
    """Write a model, and `model.safetensors` with data of one of its initializers."""
    small_model(namespace)
    data = np.ones((144, 128), np.float32).tobytes()
    described = {"weights": {"dtype": "F32", "shape": [144, 128], "data_offsets": [0, len(data)]}}
    header = json.dumps(described).encode()
    Path("model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + data)


def calibrated(namespace: Namespace) -> None:
    """Write a model; `calibration` and `inputs` are what its user has."""
    from onnxruntime.quantization import CalibrationDataReader

    class Calibration(CalibrationDataReader):
        def __init__(self) -> None:
            self.left = iter([{"x": np.full((1, 3, 8, 8), value, np.float32)} for value in (-1, 0.5, 2)])

        def get_next(self) -> Any:
            return next(self.left, None)

    small_model(namespace)
    namespace |= {"calibration": Calibration(), "inputs": {"x": np.ones((1, 3, 8, 8), np.float32)}}


def compiled(namespace: Namespace) -> None:
    """Write a model; the user has compiled it before."""
    small_model(namespace)
    core = Core()
    namespace |= {"core": core, "network": core.compile_model("model.onnx", "CPU")}


@dataclass(frozen=True, slots=True)
class Document:
    """The requirements of a document's code.

    Attributes:
        blocks: how many of its blocks run, so that none is lost.
        left_out: how many do not, for the reasons that stand above them.
        prepare: makes what its reader has already.
        packages: of another distribution, or of an extra.
        install: what installs them.
        device: the device that a machine may lack.
    """

    blocks: int
    left_out: int = 0
    prepare: Callable[[Namespace], None] | None = None
    packages: tuple[str, ...] = ()
    install: str = "engine-sdk[tutorial]"
    device: str = ""


RUN = {
    "README.md": Document(1, 3),
    "docs/index.md": Document(2),
    "docs/quick-start.md": Document(17),
    "docs/onnx-file.md": Document(7, prepare=model_and_values),
    "docs/tasks.md": Document(30, 17, prepare=open_batch),
    "docs/from-onnxruntime.md": Document(1, 1, prepare=small_model),
    "docs/preprocessing.md": Document(6, prepare=classifier_and_detector),
    "docs/hetero.md": Document(13),
    "docs/visualize.md": Document(5),
    "docs/virtual-devices.md": Document(7),
    "docs/stateful-models.md": Document(8),
    "docs/language-models.md": Document(21, 4, packages=("llguidance", "onnxscript", "peft", "torch", "transformers")),
    "apps/ray/README.md": Document(0, 1),
    "apps/serve/README.md": Document(0, 1),
    "docs/add-a-command.md": Document(1),
    "docs/serving-to-others.md": Document(0, 3),
    "docs/serving.md": Document(13, 3, packages=("kserve", "tritonclient"), install="engine-serve"),
    "docs/openai.md": Document(6, 1, packages=("kserve", "llguidance", "openai"), install="engine-serve[openai]"),
    "docs/remote-tensors.md": Document(6, device="OPENCL"),
    "docs/extensions.md": Document(8, 4),
    "docs/transformations.md": Document(38),
    "docs/debugging.md": Document(10),
    "docs/low-precision.md": Document(4, 2, prepare=calibrated),
    "docs/memory.md": Document(4, prepare=open_batch),
    "docs/cpu.md": Document(1, prepare=small_model),
    "docs/models.md": Document(2, 1, prepare=model_and_weights),
    "docs/published-models.md": Document(0, 1),
    "docs/exporters.md": Document(0, 1),
    "docs/blobs.md": Document(11, 4, prepare=small_model),
    "docs/runtime.md": Document(2, 4, prepare=small_model),
    "docs/compatibility.md": Document(1, prepare=small_model),
    "docs/scaling.md": Document(9, 3, prepare=vectors_and_decoder, packages=("ray", "pyarrow"), install="engine-ray"),
    "docs/security.md": Document(6, 1, prepare=compiled),
    "docs/conformance.md": Document(1, 1),
    "docs/runtimes.md": Document(1, 1, device="ONNXRUNTIME"),
    "docs/performance.md": Document(0, 7),
    "CONTRIBUTING.md": Document(0, 7),
    "plugins/cpu/README.md": Document(1, prepare=small_model),
    "plugins/onnxruntime/README.md": Document(0, 1),
    "plugins/openvino/README.md": Document(0, 1),
    "plugins/template/README.md": Document(1),
}
ELSEWHERE = {
    "docs/write-a-plugin.md": "test_tutorial.py",
    "docs/command-line.md": "cli/test_reference_pages.py",  # parses the examples; the guides run such commands
}


def documents() -> list[Path]:
    """Every document that users read."""
    return [*ROOT.glob("*.md"), *DOCS.rglob("*.md"), *ROOT.glob("plugins/*/README.md"), *ROOT.glob("apps/*/README.md")]


def code_of(path: Path) -> list[Block]:
    return [block for block in blocks(path) if block.language in CODE]


# Of torch's own use of its types, in the export.
@pytest.mark.filterwarnings(r"ignore:.isinstance\(treespec, LeafSpec\). is deprecated:FutureWarning")
# Of peft's use of transformers.
@pytest.mark.filterwarnings(r"ignore:.is_gradient_checkpointing. is deprecated:FutureWarning")
@pytest.mark.parametrize("name", RUN, ids=lambda name: name.removeprefix("docs/").removesuffix(".md"))
def test_the_code_runs_and_prints_what_stands_below_it(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    document = RUN[name]
    for package in document.packages:
        if importlib.util.find_spec(package) is None:  # not imported: some cannot be beside others in one process
            pytest.skip(f"{package} is not installed: pip install '{document.install}'")
    if document.device and document.device in (missing := Core().unavailable_devices):
        pytest.skip(str(missing[document.device]))
    if "ray" in document.packages:  # of its own configuration
        warnings.filterwarnings("ignore", category=DeprecationWarning, module="ray")
        monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    monkeypatch.chdir(tmp_path)
    namespace: Namespace = {"__name__": "guide"}
    if document.prepare is not None:
        document.prepare(namespace)
    run_document(ROOT / name, tmp_path, namespace)


@pytest.mark.parametrize("name", RUN)
def test_what_does_not_run_is_counted_and_makes_sense(name: str) -> None:
    """A block that no longer runs, or is lost, is seen here; commands that do not run name what exists."""
    code = code_of(ROOT / name)
    left_out = [block for block in code if not block.is_run]
    assert (len(code) - len(left_out), len(left_out)) == (RUN[name].blocks, RUN[name].left_out)
    for block in left_out:
        for line in commands(block) if block.language == "console" else ():
            check_command(line, str(block))


def test_every_document_with_code_is_run() -> None:
    found = {path.relative_to(ROOT).as_posix() for path in documents() if code_of(path)}
    assert found == {*RUN, *ELSEWHERE}
    for name in ELSEWHERE.values():
        assert (ROOT / "tests" / name).is_file()
