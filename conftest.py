"""What all tests share: an OpenCL runtime that pip has installed, which the loader does not look for, is found; the
garbage collector does not go through the tests that were collected; of suites that many devices repeat, a share runs by
default."""

from __future__ import annotations

import ctypes
import gc
import os
import sys
import tempfile
from binascii import crc32
from pathlib import Path

import pytest

# In the order in which they need one another.
_INTEL = ("libintlc.so.5", "libimf.so", "libirng.so", "libsvml.so", "libintelocl.so")

# What repeats for a device, or on whole networks, what others show. By file and test: of so many tests, one runs by
# default, chosen by its id, so that similar tests have other ones; the others are marked as slow.
SHARES = {
    "plugins/auto/tests/test_behaviour.py": 6,
    "plugins/batch/tests/test_behaviour.py": 4,
    "plugins/cpu/tests/test_families.py::test_one_plan_serves_all_batches_of_real_structures": 3,
    "plugins/cpu/tests/test_onnx_cases.py": 2,
    "plugins/cpu/tests/test_stored_types.py::test_the_answer_is_that_of_f32_rounded_once": 3,
    "plugins/hetero/tests/test_behaviour.py": 8,
    "plugins/hetero/tests/test_measured_placing.py": 2,
    "plugins/hetero/tests/test_networks.py": 4,
    "plugins/hetero/tests/test_operator_suite.py": 8,
    "plugins/opencl/tests/test_behaviour.py": 3,
    "plugins/opencl/tests/test_gpu_convolutions.py::test_tiles": 4,
    "plugins/opencl/tests/test_gpu_networks.py": 4,
    "plugins/opencl/tests/test_networks.py::test_beside_cpu": 4,
    "plugins/opencl/tests/test_networks.py::test_the_answer_is_that_of_cpu": 2,
    "plugins/opencl/tests/test_operator_suite.py": 8,
    "plugins/opencl/tests/test_operators.py::test_case_on_a_gpu": 10,
    "plugins/template/tests/test_behaviour.py": 3,
    "plugins/template/tests/test_operator_suite.py::TestTemplateOperators::test_case": 8,
    "plugins/template/tests/test_operator_suite.py::TestTemplateOperators::test_onnx_case": 4,
    "tests/conformance/test_type_inference.py": 4,
    "tests/onnx/test_bad_quantization.py::test_strange_scales_of_operators_of_codes": 3,
    "tests/onnx/test_contrib.py::test_the_answer_is_that_of_onnxruntime": 2,
    "tests/onnx/test_transformer_operators.py::test_the_answer_is_that_of_onnxruntime": 3,
    "tests/onnx/test_true_types.py::test_types_of_random_nodes": 2,
    "tests/ops/test_cases_against_onnxruntime.py::test_case": 2,
    "tests/passes/common/test_last_position.py::test_the_same_tokens": 3,
    "tests/passes/common/test_real_models.py": 3,
    "tests/passes/common/test_recognitions.py::test_export_is_recognised_and_computes_the_same": 2,
    "tests/passes/test_limit_to.py::test_exports_get_no_operator_that_they_did_not_have": 3,
    "tests/test_architectures.py::test_on_cpu": 3,
    "tests/test_decoders.py::test_a_saved_state_goes_on_on_another_device": 3,
    "tests/test_decoders.py::test_a_sequence_joins_a_batch": 3,
    "tests/test_decoders.py::test_other_tokens_after_a_rewind": 3,
    "tests/test_decoders.py::test_states_of_many_requests_are_independent": 3,
    "tests/testing/test_lifecycle_mutants.py::test_mutant_is_found": 3,
    "tests/testing/test_numeric_mutants.py::test_mutant_is_found": 3,
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
    # For the processes that tests start.
    paths = [str(folder), *filter(None, [os.environ.get("LD_LIBRARY_PATH")])]
    os.environ["LD_LIBRARY_PATH"] = os.pathsep.join(paths)


_use_installed_runtime()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark as slow what `SHARES` leaves out."""
    for item in items:
        file, test = item.nodeid.partition("::")[0], item.nodeid.partition("[")[0]
        if crc32(item.nodeid.encode()) % SHARES.get(file, SHARES.get(test, 1)):
            item.add_marker("slow")


def pytest_collection_finish() -> None:
    """Keep the collected tests, some forty thousand, out of every later collection of garbage."""
    gc.collect()
    gc.freeze()
