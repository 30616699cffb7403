"""A network on an emulated AArch64 CPU, by the wheels that `tools/wheels build` makes.

`tools/wheels emulate` unpacks what this needs and runs it. No machine of that architecture is used.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

BUILD = Path(__file__).parent.parent / "build" / "wheels"
PYTHON = BUILD / "aarch64-root" / "usr" / "bin" / "python3.11"
SITE = BUILD / "aarch64-site"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not shutil.which("qemu-aarch64"), reason="needs qemu-aarch64, of Debian's package qemu-user"),
    pytest.mark.skipif(
        not (PYTHON.exists() and (SITE / "engine").exists()),
        reason="needs Python and the wheels for AArch64: run `tools/wheels emulate`",
    ),
]

CODE = """
import io, json, platform
import numpy as np
from engine import Core, ops
from engine.ir import Constant, Model, Parameter, f32, u8
from engine.native import cpu_features, features
from engine.ops import evaluate_model
from engine.testing.values import values

x = Parameter(f32, [2, 8, 12, 12], "x")
y = ops.Relu(ops.Conv(x, Constant(values(24, 8, 3, 3) / 9), Constant(values(24)), pads=(1, 1, 1, 1)))
y = ops.Add(y, ops.Conv(y, Constant(values(24, 1, 3, 3) / 3), pads=(1, 1, 1, 1), group=24))
y = ops.Flatten(ops.MaxPool(y, kernel_shape=(2, 2), strides=(2, 2)))
y = ops.Softmax(ops.Gelu(ops.MatMul(y, Constant(values(864, 40) / 30))))
model = Model([y], [x])
inputs = values(2, 8, 12, 12)
(expected,) = evaluate_model(model, [inputs])
core, blob = Core(), io.BytesIO()
network = core.compile_model(model, "CPU", {"COMPILE_EFFORT": "none", "ALLOW_REFERENCE": False})
network.export_model(blob)
imported = core.import_model(blob.getvalue(), "CPU")
compiled, again = network([inputs])[0], imported([inputs])[0]

# Products of bytes are exact.
random = np.random.default_rng(1)
codes, pixels = (random.integers(0, 256, shape, np.uint8) for shape in ((5, 70), (1, 20, 9, 9)))
weights, filters = (random.integers(-128, 128, shape).astype(np.int8) for shape in ((70, 33), (19, 20, 3, 3)))
a, b = Parameter(u8, codes.shape, "a"), Parameter(u8, pixels.shape, "b")
integers = Model([ops.MatMulInteger(a, Constant(weights)), ops.ConvInteger(b, Constant(filters))], [a, b])
sums = core.compile_model(integers, "CPU", {"COMPILE_EFFORT": "none", "ALLOW_REFERENCE": False})([codes, pixels])
isa = cpu_features().isa
print(json.dumps({
    "machine": platform.machine(), "isa": isa, "features": sorted(features(isa)),
    "error": float(np.abs(compiled - expected).max()),
    "imported equals": bool((compiled == again).all()),
    "integers equal": [bool((sums[i] == y).all()) for i, y in enumerate(evaluate_model(integers, [codes, pixels]))],
}))
"""


def emulated(cpu: str, code: str) -> dict[str, Any]:
    command = ["qemu-aarch64", "-cpu", cpu, "-L", str(BUILD / "aarch64-root"), "-E", f"PYTHONPATH={SITE}"]
    result = subprocess.run(
        [*command, str(PYTHON), "-c", code],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
        cwd=SITE,  # in the checkout, its engine would be imported
    )
    assert result.returncode == 0, result.stdout + result.stderr
    answer: dict[str, Any] = json.loads(result.stdout.splitlines()[-1])
    return answer


@pytest.mark.parametrize(
    ("cpu", "isa", "features"),
    [("cortex-a53", "neon", ["neon"]), ("max", "neonbf16", ["bf16", "dotprod", "i8mm", "neon"])],
)
def test_a_network_has_the_results_of_the_reference(cpu: str, isa: str, features: list[str]) -> None:
    answer = emulated(cpu, CODE)
    assert (answer["machine"], answer["isa"], answer["features"]) == ("aarch64", isa, features)
    assert answer["error"] == pytest.approx(0, abs=1e-5)  # probabilities after three products of up to 864 terms
    assert answer["imported equals"]
    assert answer["integers equal"] == [True, True]
