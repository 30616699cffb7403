"""Write a corpus of what this release makes: plugins as wheels, and blobs of all devices with their correct outputs.
Later releases load it.

Run as `python tools/freeze.py tests/corpus/0.2` once per minor release, before the versions are raised. The folder must
not exist: a corpus is never written again. It needs onnxruntime, which computes the outputs, and OPENCL.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from onnx import ModelProto, TensorProto, helper, numpy_helper

if TYPE_CHECKING:
    from engine import Core
    from engine.ir import Model

ROOT: Final = Path(__file__).parents[1]
ISA: Final = "avx2"
"""Most CPUs have it, so that most machines can load the blobs."""
BATCHES: Final = (4, 3)
LENGTHS: Final = (5, 9, 2)
RENAMED: Final = {"template": "FROZEN", "batch": "FROZEN_BATCH"}
"""The plugins that are frozen, and the names of their devices: today's plugin has the original name."""
MADE: Final = "FROZEN_MADE"
"""The device of the plugin that `engine new-plugin` writes."""
_MADE_OPERATORS: Final = ("Add", "Conv", "Flatten", "Gemm", "GlobalAveragePool", "MatMul", "MaxPool", "Relu", "Softmax")


def main() -> None:
    """Write the folder, or nothing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="such as tests/corpus/0.2; must not exist")
    folder: Path = parser.parse_args().folder
    if folder.exists():
        parser.error(f"{folder} exists; a corpus is not written again")
    os.environ["ENGINE_MAX_ISA"] = ISA  # before the native core is loaded
    with tempfile.TemporaryDirectory() as work:
        # Compiled programs contain the paths of the caches of their compilers.
        os.environ |= dict.fromkeys(("XDG_CACHE_HOME", "POCL_CACHE_DIR"), work)
        made = Path(work) / "corpus"
        for name in ("plugins", "models", "values", "blobs", "keys"):
            (made / name).mkdir(parents=True)
        write_plugins(made / "plugins", Path(work))
        sys.path[:0] = [str(path) for path in (made / "plugins").iterdir()]
        write_corpus(made)
        (made / "keys" / "release.key").unlink()
        write_list(made)
        shutil.copytree(made, folder)
    print(f"{folder}: {sum(path.stat().st_size for path in folder.rglob('*') if path.is_file())} bytes")


def write_plugins(folder: Path, work: Path) -> None:
    """Build the wheels of the frozen plugins."""
    from engine.testing.scaffold import PluginPlan, new_plugin

    sources = [_renamed(name, device, work / device) for name, device in RENAMED.items()]
    sources.append(new_plugin(PluginPlan(MADE, _MADE_OPERATORS, is_async=True, has_export=True), work / MADE))
    for source in sources:
        subprocess.run(
            [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", folder, source],
            check=True,
            env={**os.environ, "SOURCE_DATE_EPOCH": "1700000000"},
        )


def _renamed(name: str, device: str, target: Path) -> Path:
    """A copy of a plugin of this repository for a device of another name, which states the API as a number."""
    from engine.plugin_api import API_VERSION

    shutil.copytree(ROOT / "plugins" / name, target, ignore=shutil.ignore_patterns("__pycache__", "tests"))
    package, distribution = f"engine_{device.lower()}", f"engine-plugin-{device.lower().replace('_', '-')}"
    (target / "src" / f"engine_{name}").rename(target / "src" / package)
    for path in (*target.rglob("*.py"), target / "pyproject.toml"):
        text = path.read_text()
        text = text.replace(f"engine_{name}", package).replace(f"engine-plugin-{name}", distribution)
        text = re.sub(rf"\b{name.upper()}\b", device, text)
        text = re.sub(r"\bapi_version = API_VERSION\b", f"api_version = {API_VERSION}", text)
        path.write_text(re.sub(r"(?m)^    API_VERSION,\n", "", text))
    return target


def write_corpus(folder: Path) -> None:
    """Write models, values, keys and blobs."""
    from engine import Core
    from engine.blob import make_key_files

    make_key_files(folder / "keys" / "release.key", "corpus", "ed25519")
    make_key_files(folder / "keys" / "cipher.key", "corpus-cipher", "aes-256-gcm")
    for name, proto in _MODELS.items():
        (folder / "models" / f"{name}.onnx").write_bytes(proto.SerializeToString())
        np.savez_compressed(folder / "values" / f"{name}.npz", **_values(name, proto))
    for form in _FORMS:
        _write_blob(Core(), folder, **form)


def write_list(folder: Path) -> None:
    """Write what the blobs are, and the hashes of all files."""
    from engine.plugin_api import API_VERSION, engine_version

    described = {
        "engine": engine_version(),
        "api": API_VERSION,
        "isa": ISA,
        "architecture": platform.machine().lower(),
        "blobs": [{name: value for name, value in form.items() if name != "config"} for form in _FORMS],
        "sha256": {
            path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
            for path in sorted(folder.rglob("*"))
            if path.is_file()
        },
    }
    (folder / "corpus.json").write_text(json.dumps(described, indent=1) + "\n")


def _write_blob(
    core: Core,
    folder: Path,
    name: str,
    network: str,
    device: str,
    config: Mapping[str, object] | None = None,
    **form: str,
) -> None:
    model = _prepared(core, network, device)
    options: dict[str, Any] = {option: folder / form[key] for key, option in _OPTIONS.items() if key in form}
    network_of_device = core.compile_model(model, device, {**_ONE_THREAD, **(config or {})})
    network_of_device.export_model(folder / "blobs" / f"{name}.blob", **options)


def _prepared(core: Core, network: str, device: str) -> Model:
    from engine_hetero import set_affinity

    from engine.passes import MakeStateful

    model = core.read_model(_MODELS[network])
    if network == "history":
        MakeStateful(bound=64).run_on_model(model)
    if device.startswith("HETERO"):
        set_affinity(model, {"scores": "TEMPLATE"})
    return model


# -- models ---------------------------------------------------------------------------------------------------


def _model(
    name: str, nodes: list[Any], inputs: list[Any], outputs: list[Any], weights: Mapping[str, Any]
) -> ModelProto:
    def values(described: list[tuple[str, list[int | str]]]) -> list[Any]:
        return [helper.make_tensor_value_info(each, TensorProto.FLOAT, shape) for each, shape in described]

    constants = [numpy_helper.from_array(data, key) for key, data in weights.items()]
    graph = helper.make_graph(nodes, name, values(inputs), values(outputs), constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)


def _images(batch: int | str) -> ModelProto:
    """A convolutional network."""
    random = np.random.default_rng(7)
    weights = {
        "w1": _normal(random, 0.3, 8, 3, 3, 3), "b1": _normal(random, 0.1, 8),
        "w2": _normal(random, 0.2, 16, 8, 3, 3), "b2": _normal(random, 0.1, 16),
        "w3": _normal(random, 0.3, 16, 10), "b3": _normal(random, 0.1, 10),
    }  # fmt: skip
    nodes = [
        helper.make_node("Conv", ["x", "w1", "b1"], ["c1"], "conv1", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c1"], ["r1"], "relu1"),
        helper.make_node("MaxPool", ["r1"], ["p1"], "pool", kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Conv", ["p1", "w2", "b2"], ["c2"], "conv2", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c2"], ["r2"], "relu2"),
        helper.make_node("GlobalAveragePool", ["r2"], ["g"], "average"),
        helper.make_node("Flatten", ["g"], ["f"], "flat"),
        helper.make_node("Gemm", ["f", "w3", "b3"], ["s"], "dense"),
        helper.make_node("Softmax", ["s"], ["y"], "scores"),
    ]
    return _model("images", nodes, [("x", [batch, 3, 12, 12])], [("y", [batch, 10])], weights)


def _tokens() -> ModelProto:
    """Matrix products over sequences of any number and length."""
    random = np.random.default_rng(8)
    weights = {
        "w1": _normal(random, 0.2, 24, 48), "b1": _normal(random, 0.1, 48), "w2": _normal(random, 0.2, 48, 24),
        "scale": np.ones(24, np.float32), "shift": _normal(random, 0.1, 24),
    }  # fmt: skip
    nodes = [
        helper.make_node("MatMul", ["x", "w1"], ["h"], "up"),
        helper.make_node("Add", ["h", "b1"], ["hb"], "bias"),
        helper.make_node("Tanh", ["hb"], ["t"], "tanh"),
        helper.make_node("MatMul", ["t", "w2"], ["d"], "down"),
        helper.make_node("Add", ["d", "x"], ["r"], "residual"),
        helper.make_node("LayerNormalization", ["r", "scale", "shift"], ["y"], "norm"),
    ]
    shape = ["batch", "length", 24]
    return _model("tokens", nodes, [("x", shape)], [("y", shape)], weights)


def _history() -> ModelProto:
    """The sum over all tokens so far; its past becomes a variable."""
    nodes = [
        helper.make_node("Concat", ["past_key_values.0.key", "x"], ["present.0.key"], axis=1),
        helper.make_node("ReduceSum", ["present.0.key", "axes"], ["total"], keepdims=0),
    ]
    inputs = [("x", ["batch", "new", 4]), ("past_key_values.0.key", ["batch", "past", 4])]
    outputs = [("total", ["batch", 4]), ("present.0.key", ["batch", "all", 4])]
    return _model("history", nodes, inputs, outputs, {"axes": np.array([1], np.int64)})


def _quantized() -> ModelProto:
    """A matrix product in int8, in the form of QDQ. The scales are powers of two, so that the result is exact."""
    random = np.random.default_rng(9)
    weights = {
        "w": random.integers(-8, 8, (32, 16)).astype(np.int8), "s": np.float32(0.25), "z": np.int8(0),
        "ws": np.float32(0.125), "zu": np.uint8(128),
    }  # fmt: skip
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "zu"], ["q"], "quantize"),
        helper.make_node("DequantizeLinear", ["q", "s", "zu"], ["d"], "input"),
        helper.make_node("DequantizeLinear", ["w", "ws", "z"], ["dw"], "weight"),
        helper.make_node("MatMul", ["d", "dw"], ["y"], "product"),
    ]
    arrays = {name: np.asarray(data) for name, data in weights.items()}
    return _model("quantized", nodes, [("x", [4, 32])], [("y", [4, 16])], arrays)


def _normal(random: np.random.Generator, deviation: float, *shape: int) -> Any:
    return (random.standard_normal(shape) * deviation).astype(np.float32)


def _values(name: str, proto: ModelProto) -> dict[str, Any]:
    """Inputs and onnxruntime's outputs of a few inferences in order: "0/in/x", "0/out/y"."""
    import onnxruntime

    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    random, found = np.random.default_rng(10), dict[str, Any]()
    past = np.zeros((2, 0, 4), np.float32)
    for step, shape in enumerate(_SHAPES[name]):
        x = random.integers(-8, 8, shape).astype(np.float32) / 4
        given = {"x": x, "past_key_values.0.key": past} if name == "history" else {"x": x}
        outputs = dict(zip([each.name for each in proto.graph.output], session.run(None, given), strict=True))
        past = outputs.pop("present.0.key", past)
        found |= {f"{step}/in/x": x, **{f"{step}/out/{key}": value for key, value in outputs.items()}}
    return found


_MODELS: Final = {
    "images": _images(BATCHES[0]),
    "any_images": _images("batch"),
    "tokens": _tokens(),
    "history": _history(),
    "quantized": _quantized(),
}
_SHAPES: Final = {
    "images": [(BATCHES[0], 3, 12, 12)] * 2,
    "any_images": [(batch, 3, 12, 12) for batch in BATCHES],
    "tokens": [(batch, length, 24) for batch, length in zip((1, 2, 3), LENGTHS, strict=True)],
    "history": [(2, length, 4) for length in LENGTHS],
    "quantized": [(4, 32)],
}
_ONE_THREAD: Final = {"INFERENCE_NUM_THREADS": 1}
_SOURCE: Final = {"EXPORT_PACKED_WEIGHTS": False}
_OPTIONS: Final = {"sign": "sign", "encrypt": "transform", "weights": "weights"}
_FORMS: Final[list[dict[str, Any]]] = [
    {"name": "template", "network": "images", "device": "TEMPLATE"},
    {"name": "template-dynamic", "network": "tokens", "device": "TEMPLATE"},
    {"name": "template-stateful", "network": "history", "device": "TEMPLATE"},
    {"name": "cpu-packed", "network": "images", "device": "CPU"},
    {"name": "cpu-source", "network": "images", "device": "CPU", "config": _SOURCE},
    {"name": "cpu-dynamic", "network": "tokens", "device": "CPU"},
    {"name": "cpu-dynamic-source", "network": "tokens", "device": "CPU", "config": _SOURCE},
    {"name": "cpu-stateful", "network": "history", "device": "CPU"},
    {"name": "cpu-quantized", "network": "quantized", "device": "CPU"},
    {
        "name": "cpu-bound",
        "network": "tokens",
        "device": "CPU",
        "config": _SOURCE,
        "weights": "models/tokens.onnx",
    },
    {"name": "cpu-signed", "network": "images", "device": "CPU", "sign": "keys/release.key"},
    {"name": "cpu-sealed", "network": "images", "device": "CPU", "encrypt": "keys/cipher.key"},
    {
        "name": "cpu-sealed-signed",
        "network": "images",
        "device": "CPU",
        "sign": "keys/release.key",
        "encrypt": "keys/cipher.key",
    },
    {"name": "opencl", "network": "images", "device": "OPENCL"},
    {"name": "hetero", "network": "images", "device": "HETERO:CPU,TEMPLATE"},
    {"name": "auto", "network": "images", "device": "AUTO:CPU"},
    {"name": "batch", "network": "any_images", "device": "BATCH:CPU(4)"},
    {"name": "frozen", "network": "images", "device": "FROZEN"},
    {"name": "frozen-batch", "network": "any_images", "device": "FROZEN_BATCH:FROZEN(4)"},
    {"name": "frozen-made", "network": "images", "device": MADE},
    {"name": "hetero-frozen", "network": "images", "device": "HETERO:FROZEN_MADE,TEMPLATE"},
]

if __name__ == "__main__":
    main()
