"""Plugins of third parties, installed by pip into an environment of their own and seen from another process.

If these fail, a vendor who does as the documentation says has no device, or one vendor's broken package takes
every other device with it.
"""

from __future__ import annotations

import json
import os
import shutil
import site
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

FIXTURES = Path(__file__).parent / "fixtures"


def model_bytes() -> bytes:
    """y = Relu(x + [1, -1])."""
    graph = helper.make_graph(
        [helper.make_node("Add", ["x", "b"], ["s"], "add"), helper.make_node("Relu", ["s"], ["y"], "relu")],
        "chain",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2])],
        [numpy_helper.from_array(np.array([1, -1], "float32"), "b")],
    )
    model = helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)])
    onnx.checker.check_model(model)
    return bytes(model.SerializeToString())


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment that sees this one's packages, with both fixtures installed; gives its Python."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder / "venv", symlinks=os.name != "nt")
    scripts = "Scripts" if os.name == "nt" else "bin"
    python = folder / "venv" / scripts / "python"
    # Through `addsitedir`, which also takes up this environment's editable installs.
    shared = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), *site.getsitepackages()}
    own_site = run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=folder).strip()
    lines = [f"import site; site.addsitedir({path!r})\n" for path in sorted(shared)]
    (Path(own_site) / "shared.pth").write_text("".join(lines))
    for name in ("third_party_plugin", "broken_plugin"):
        shutil.copytree(FIXTURES / name, folder / name)  # building leaves files beside the sources
    run(
        sys.executable, "-m", "pip", "--python", python, "--disable-pip-version-check", "--quiet",
        "install", "--no-index", "--no-deps", "--no-build-isolation",
        folder / "third_party_plugin", folder / "broken_plugin",
        cwd=folder,
    )  # fmt: skip
    return python


def run(*command: object, cwd: Path, stdin: bytes = b"") -> str:
    result = subprocess.run([str(part) for part in command], cwd=cwd, input=stdin, capture_output=True)
    assert result.returncode == 0, result.stdout.decode() + result.stderr.decode()
    return result.stdout.decode()


def report(python: Path, program: str, folder: Path) -> Any:
    """The JSON that a program prints; it has `core`, and the model as `model`."""
    opening = "import json, sys\nfrom engine import Core, EngineError\ncore, model = Core(), sys.stdin.buffer.read()\n"
    return json.loads(run(python, "-c", opening + program, cwd=folder, stdin=model_bytes()))


def test_an_installed_plugin_is_discovered_and_runs(environment: Path, tmp_path: Path) -> None:
    program = """
import numpy as np
network = core.compile_model(model, "ACME")
x = np.array([1, -3], "float32")
request = network.create_infer_request()
request.start_async({"x": x})
request.wait(timeout=60)
version = core.get_versions()["ACME"]
print(json.dumps({
    "devices": core.available_devices,
    "sync": network({"x": x})["y"].tolist(),
    "async": request.results["y"].tolist(),
    "version": version.version,
    "origin": str(version.origin),
    "devices of the network": network.get_property("EXECUTION_DEVICES"),
}))
"""
    seen = report(environment, program, tmp_path)
    assert "ACME" in seen["devices"]
    assert seen["sync"] == seen["async"] == [2.0, 0.0]
    assert (seen["version"], seen["origin"]) == ("1.4.2", "acme_device:AcmePlugin of acme-engine-plugin 1.4.2")
    assert seen["devices of the network"] == ["ACME"]


def test_broken_plugins_are_isolated_and_say_why(environment: Path, tmp_path: Path) -> None:
    program = """
failures = {}
for name in ("IMPORT", "EXIT", "CLASS", "NAME", "API", "INIT"):
    try:
        core.compile_model(model, f"BROKEN_{name}")
    except EngineError as e:
        failures[name] = [type(e).__name__, type(e.__cause__).__name__, str(e)]
print(json.dumps([failures, core.available_devices, sorted(core.unavailable_devices)]))
"""
    failures, available, unavailable = report(environment, program, tmp_path)
    assert {name: (kind, cause) for name, (kind, cause, _) in failures.items()} == {
        "IMPORT": ("PluginLoadError", "ModuleNotFoundError"),
        "EXIT": ("PluginLoadError", "SystemExit"),
        "CLASS": ("PluginLoadError", "PluginContractError"),
        "NAME": ("PluginLoadError", "AttributeError"),
        "API": ("PluginApiError", "PluginApiError"),
        "INIT": ("PluginLoadError", "OSError"),
    }
    said = {name: message for name, (_, _, message) in failures.items()}
    assert all("broken-engine-plugin 0.0.1" in message for message in said.values())
    assert "driver_that_nobody_has" in said["IMPORT"]
    assert "no licence for this device" in said["EXIT"]
    assert "plugin API 99" in said["API"]
    assert "/dev/broken0" in said["INIT"]
    assert "ACME" in available
    assert not any(name.startswith("BROKEN") for name in available)
    assert {f"BROKEN_{name}" for name in failures} <= set(unavailable)


def test_a_plugin_that_is_not_asked_for_is_not_imported(environment: Path, tmp_path: Path) -> None:
    program = """
core.query_model(model, "ACME")
print(json.dumps([name in sys.modules for name in ("acme_device", "broken_device")]))
"""
    assert report(environment, program, tmp_path) == [True, False]


def test_an_operation_without_kernel_is_refused_by_name(environment: Path, tmp_path: Path) -> None:
    program = """
import numpy as np
import onnx
changed = onnx.ModelProto.FromString(model)
changed.graph.node[1].op_type = "Tanh"
try:
    core.compile_model(changed, "ACME")
except EngineError as e:
    print(json.dumps([type(e).__name__, str(e)]))
"""
    kind, message = report(environment, program, tmp_path)
    assert kind == "UnsupportedError"
    assert "relu" in message
