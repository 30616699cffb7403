"""The rooms of the project: their modules, and the tests that are expected to notice a fault in them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
# Of the native core; their faults are made by `native.py`.
FOLDERS: Final = ("csrc/graph", "csrc/kernels")


@dataclass(frozen=True, slots=True)
class Room:
    """Modules, as patterns below the root, and arguments of pytest."""

    modules: tuple[str, ...]
    tests: tuple[str, ...]

    def files(self) -> list[Path]:
        """The modules, in order, without those that only re-export names."""
        found = {path for pattern in self.modules for path in ROOT.glob(pattern) if path.name != "__init__.py"}
        return sorted(found)


ROOMS: Final = {
    "blob": Room(("engine/blob/*.py",), ("tests/test_blob.py", "tests/test_blob_fuzz.py", "tests/core")),
    "core": Room(
        ("engine/core/*.py", "engine/hosting/*.py", "engine/registry/*.py"),
        ("tests/core", "tests/runtime", "tests/test_registry.py"),
    ),
    "auto": Room(("plugins/auto/src/engine_auto/**/*.py",), ("plugins/auto/tests",)),
    "batch": Room(("plugins/batch/src/engine_batch/**/*.py",), ("plugins/batch/tests",)),
    "cpu": Room(("plugins/cpu/src/engine_cpu/**/*.py",), ("plugins/cpu/tests",)),
    "files": Room(
        ("engine/files/*.py",),
        (
            "tests/test_files.py", "tests/test_permissions.py", "tests/onnx/test_external_data.py",
            "tests/onnx/test_safetensors.py", "plugins/cpu/tests/test_tuning.py",
        ),
    ),
    "isolated": Room(("plugins/isolated/src/engine_isolated/**/*.py",), ("plugins/isolated/tests",)),
    "generation": Room(
        ("engine/generation/*.py",),
        ("tests/test_generation.py", "tests/test_generation_times.py", "tests/test_scheduler.py"),
    ),
    "hetero": Room(("plugins/hetero/src/engine_hetero/**/*.py",), ("plugins/hetero/tests",)),
    "ir": Room(("engine/ir/*.py",), ("tests/ir", "tests/passes")),
    "lowering": Room(
        ("engine/lowering/*.py",),
        ("tests/test_lowering.py", "tests/test_lengths.py", "tests/test_plan_cache.py", "plugins/cpu/tests"),
    ),
    "onnx": Room(("engine/onnx/*.py", "engine/onnx/contrib/*.py"), ("tests/onnx", "tests/core/test_bound_blobs.py")),
    "opencl": Room(("plugins/opencl/src/engine_opencl/**/*.py",), ("plugins/opencl/tests",)),
    "ops": Room(("engine/ops/*.py", "engine/ops/internal/*.py"), ("tests/ops", "plugins/template/tests")),
    "passes": Room(("engine/passes/**/*.py",), ("tests/passes", "plugins/hetero/tests/test_costs.py")),
    "placement": Room(("engine/placement/*.py",), ("tests/placement", "plugins/hetero/tests")),
    "properties": Room(("engine/properties/*.py",), ("tests/test_properties.py", "tests/core")),
    "runtime": Room(("engine/runtime/*.py",), ("tests/runtime", "tests/core")),
    "template": Room(("plugins/template/src/engine_template/*.py",), ("plugins/template/tests",)),
    "testing": Room(("engine/testing/**/*.py",), ("tests/testing",)),
    "cli": Room(("engine/cli/**/*.py", "engine/drawing/*.py"), ("tests/drawing", "tests/cli")),
    "upgrades": Room(("engine/onnx/upgrades/*.py",), ("tests/onnx/test_upgrades.py", "tests/onnx/test_versions.py")),
}  # fmt: skip
