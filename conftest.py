"""Set-up of all tests: an OpenCL runtime that pip has installed, which the loader does not look for, is found; modules
are compiled once, not in each process; the garbage collector does not go through the tests that were collected; of
suites that many devices repeat, a share runs by default."""

from __future__ import annotations

import atexit
import ctypes
import gc
import os
import shutil
import sys
import tempfile
from binascii import crc32
from collections import defaultdict
from contextlib import suppress
from pathlib import Path

import pytest

with suppress(ImportError):  # the tests of wheels run without it
    from hypothesis import HealthCheck, settings

    # On a busy machine, making an example takes as long as a slow strategy does on an idle one.
    settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
    settings.load_profile("any machine")

# In the order in which they need one another.
_INTEL = ("libintlc.so.5", "libimf.so", "libirng.so", "libsvml.so", "libintelocl.so")

# Of what repeats for a device, a network or a value what others show, a share runs by default; the rest is marked as
# repeated. By file, of the suites that CPU runs in full: one test in so many.
SUITES = {
    "plugins/auto/tests/test_behaviour.py": 12,
    "plugins/batch/tests/test_behaviour.py": 8,
    "plugins/hetero/tests/test_behaviour.py": 16,
    "plugins/hetero/tests/test_operator_suite.py": 32,
    "plugins/isolated/tests/test_behaviour.py": 48,
    "plugins/onnxruntime/tests/test_behaviour.py": 24,
    "plugins/opencl/tests/test_behaviour.py": 3,
    "plugins/opencl/tests/test_operator_suite.py": 8,
    "plugins/openvino/tests/test_behaviour.py": 32,
    "plugins/openvino/tests/test_operator_suite.py": 64,
    "plugins/template/tests/test_behaviour.py": 6,
    "plugins/template/tests/test_operator_suite.py": 6,
}
# By file, or else by folder: of each test's cases, one in so many.
CASES = {
    "plugins/cpu/tests": 2,
    "plugins/cpu/tests/test_behaviour.py": 1,
    "plugins/cpu/tests/test_families.py": 4,
    "plugins/cpu/tests/test_onnx_cases.py": 4,
    "plugins/cpu/tests/test_operator_suite.py": 1,
    "plugins/hetero/tests": 3,
    "plugins/opencl/tests": 3,
    "plugins/opencl/tests/test_gpu_kernels.py": 1,
    "plugins/opencl/tests/test_operators.py": 16,
    "plugins/opencl/tests/test_simulated_gpu.py": 1,
    "tests/conformance/test_type_inference.py": 4,
    "tests/onnx": 2,
    "tests/onnx/test_bad_quantization.py": 4,
    "tests/ops/test_cases_against_onnxruntime.py": 2,
    "tests/passes/common": 2,
    "tests/passes/common/test_real_models.py": 8,
    "tests/passes/test_limit_to.py": 3,
    "tests/test_architectures.py": 5,
    "tests/test_decoders.py": 4,
    "tests/test_generation.py": 2,
    "tests/testing/test_lifecycle_mutants.py": 3,
    "tests/testing/test_numeric_mutants.py": 3,
    "tests/cli/test_examples_run.py": 2,
}


def _use_installed_runtime() -> None:
    """Offer Intel's runtime, which knows every x86 CPU; PoCL's package knows those that its compiler is older than."""
    folder = Path(sys.prefix) / "lib"
    if "OCL_ICD_VENDORS" in os.environ or not all((folder / name).exists() for name in _INTEL):
        return
    for name in _INTEL[:-1]:
        ctypes.CDLL(str(folder / name), ctypes.RTLD_GLOBAL)
    vendors = Path(tempfile.mkdtemp(prefix="engine-opencl-"))
    (vendors / "intel.icd").write_text(str(folder / _INTEL[-1]) + "\n", encoding="utf-8")
    os.environ["OCL_ICD_VENDORS"] = str(vendors)
    # Kernels are compiled without optimizations, in less than half of the time.
    os.environ.setdefault("PYOPENCL_BUILD_OPTIONS", "-cl-opt-disable")
    # For the processes that tests start.
    paths = [str(folder), *filter(None, [os.environ.get("LD_LIBRARY_PATH")])]
    os.environ["LD_LIBRARY_PATH"] = os.pathsep.join(paths)


def _keep_bytecode() -> None:
    """Write bytecode below `build` where PYTHONDONTWRITEBYTECODE is set, as in many images.

    Compiling the engine's modules takes more than half of the time of each process that a test starts.
    """
    if "PYTHONPYCACHEPREFIX" in os.environ or not os.environ.pop("PYTHONDONTWRITEBYTECODE", ""):
        return
    folder = Path(__file__).parent / "build" / "bytecode"
    os.environ["PYTHONPYCACHEPREFIX"] = sys.pycache_prefix = str(folder)
    sys.dont_write_bytecode = False
    # Modules that tests write are not there in the next run.
    written = folder / Path(tempfile.gettempdir()).relative_to("/")
    atexit.register(shutil.rmtree, written, ignore_errors=True)


# Tests compile: none loads the network of another one, or of an earlier run. Also for the processes that they start.
os.environ["ENGINE_CACHE_DIR"] = ""
_use_installed_runtime()
_keep_bytecode()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark all tests outside the shares as repeated. If tests are chosen by name, at least one of them runs."""
    groups: dict[tuple[str, int], list[pytest.Item]] = defaultdict(list)
    for item in items:
        test = item.nodeid.partition("[")[0]
        file = test.partition("::")[0]
        folder = file.rpartition("/")[0]
        group = (file, SUITES[file]) if file in SUITES else (test, CASES.get(file, CASES.get(folder, 1)))
        if group[1] > 1 and item.get_closest_marker("slow") is None:
            groups[group].append(item)
    for (name, share), members in groups.items():
        first = crc32(name.encode()) % min(share, len(members))
        for index, item in enumerate(members):
            if (index - first) % share:
                item.add_marker("repeated")


def pytest_collection_finish() -> None:
    """Keep the collected tests, some forty thousand, out of every later collection of garbage."""
    gc.collect()
    gc.freeze()
