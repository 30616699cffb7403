"""Each device of `mutants/numeric*.py` is found by a named check, for the right reason.

All of them are TEMPLATE but for one fault, and TEMPLATE itself passes these checks in its own tests.
"""

from __future__ import annotations

import functools
import inspect
import re
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from engine import Core
from engine.testing import BehaviourSuite
from engine.testing.behaviour.cases import CASES
from engine.testing.behaviour.layout_cases import LAYOUTS
from engine.testing.behaviour.product_cases import PRODUCTS
from engine.testing.behaviour.value_cases import VALUES
from engine.testing.behaviour.window_cases import WINDOWS

HERE = Path(__file__).parent
CASE = {case.name: case for case in (*CASES, *PRODUCTS, *WINDOWS, *LAYOUTS, *VALUES)}

WRONG = "elements are wrong"

# check -> mutant -> the case that finds it; each message names the case.
KERNELS: dict[str, dict[str, str]] = {
    "test_matrix_products": {
        "GEMM_IGNORES_TRANS_A": "Gemm: transA",
        "GEMM_IGNORES_TRANS_B": "Gemm: transB",
        "GEMM_IGNORES_ALPHA": "Gemm: alpha",
        "GEMM_IGNORES_BETA": "Gemm: beta",
        "GEMM_IGNORES_C": "Gemm: C [5]",
        "GEMM_ADDS_EVERY_C_AS_A_ROW": "Gemm: C [3, 1]",
        "MATMUL_USES_ONE_MATRIX_OF_A_STACK": "MatMul: stacks",
        "MATMUL_LOSES_THE_LAST_COLUMNS": "MatMul: more columns than rows",
    },
    "test_windows": {
        "CONV_IGNORES_GROUP": "Conv: group",
        "CONV_KNOWS_ONE_MAP_A_CHANNEL": "Conv: depthwise with two maps a channel",
        "CONV_IGNORES_DILATIONS": "Conv: dilations",
        "CONV_IGNORES_STRIDES": "Conv: strides",
        "CONV_STRIDES_BY_THE_FIRST_AXIS": "Conv: strides of the other axis",
        "CONV_TAKES_PADS_BY_AXIS": "Conv: pads left",
        "CONV_PADS_BEGIN_AT_THE_END": "Conv: pads top",
        "CONV_IGNORES_BIAS": "Conv: bias",
        "CONV_IGNORES_AUTO_PAD": "Conv: auto_pad SAME_UPPER",
        "CONV_PADS_SAME_LOWER_AS_SAME_UPPER": "Conv: auto_pad SAME_LOWER",
        "CONV_TURNS_THE_KERNEL": "Conv: plain",
        "AVERAGE_POOL_COUNTS_ALL_PADDING": "AveragePool: padding does not count",
        "AVERAGE_POOL_COUNTS_NO_PADDING": "AveragePool: count_include_pad",
        "AVERAGE_POOL_DIVIDES_BY_THE_KERNEL": "AveragePool: ceil_mode",
        "MAX_POOL_PADS_WITH_ZEROS": "MaxPool: pads top",
        "MAX_POOL_IGNORES_CEIL_MODE": "MaxPool: ceil_mode",
        "MAX_POOL_IGNORES_DILATIONS": "MaxPool: dilations",
        "MAX_POOL_IGNORES_STRIDES": "MaxPool: strides",
        "GLOBAL_AVERAGE_POOL_OVER_THE_LAST_AXIS": "GlobalAveragePool: 2-D",
    },
    "test_axes_shapes_and_integers": {
        "SOFTMAX_IGNORES_AXIS": "Softmax: axis 0",
        "SOFTMAX_OVER_ALL_LATER_AXES": "Softmax: axis 1",
        "CONCAT_IGNORES_AXIS": "Concat: axis 1",
        "CONCAT_KNOWS_TWO_INPUTS": "Concat: axis 0",
        "TRANSPOSE_INVERTS_PERM": "Transpose: perm [0, 2, 3, 1]",
        "TRANSPOSE_SWAPS_THE_LAST_AXES": "Transpose: perm [1, 0, 3, 2]",
        "RESHAPE_READS_BY_COLUMNS": "Reshape: -1",
        "BROADCASTS_FROM_THE_LEFT": "Add: [3, 3] and [3, 1]",
        "MAX_KNOWS_TWO_INPUTS": "Max: three inputs",
        "ADD_SATURATES": "Add: uint8 wraps around",
        "INTEGERS_ARE_MULTIPLIED_AS_REALS": "Mul: int64 beyond its reals",
        "SMALL_INTEGERS_ARE_COMPARED_AS_REALS": "Max: int32 beyond its reals",
        "SPLIT_RETURNS_ITS_PARTS_BACKWARDS": "Split: equal parts",
        "SLICE_IGNORES_THE_SIGN_OF_STEPS": "Slice: negative steps",
        "GATHER_COUNTS_NO_INDEX_FROM_THE_END": "Gather: axis 1, from the end too",
        "PAD_FILLS_WITH_ZEROS": "Pad: constant",
        "TOP_K_IS_NOT_SORTED": "TopK: values and indices",
    },
    "test_special_values": {
        "RELU_LOSES_NAN": "Relu: NaN and infinities",
        "MAX_LOSES_NAN": "Max: NaN and infinities",
        "MIN_LOSES_THE_SECOND_NAN": "Min: NaN and infinities",
        "CLIP_LOSES_NAN": "Clip: NaN and infinities",
        "REDUCE_SUM_LOSES_NAN": "ReduceSum: NaN and infinities",
        "SOFTMAX_LOSES_NAN": "Softmax: NaN, infinities and large values",
        "NEG_SATURATES_INFINITIES": "Neg: NaN and infinities",
        "PRODUCTS_OF_HALVES": "MatMul: more digits than float16",
        "CONVOLUTIONS_OF_HALVES": "Conv: more digits than float16",
        "ELEMENTWISE_IN_HALVES": "Relu: more digits than float16",
    },
}

# mutant, check, arguments of the check, a pattern of the failure
OTHERS: list[tuple[str, str, dict[str, Any], str]] = [
    ("CONV_KNOWS_TWO_AXES", "test_windows", {"case": "Conv: 1-D"}, "expected an image with two axes"),
    ("RESHAPE_TAKES_0_AS_1", "test_axes_shapes_and_integers", {"case": "Reshape: 0 and -1"}, "shape"),
    ("UNSQUEEZE_COUNTS_AXES_OF_THE_INPUT", "test_axes_shapes_and_integers", {"case": "Unsqueeze: axes from the end"},
     "shape"),
    ("TOP_K_RETURNS_SMALL_INDICES_AS_INT32", "test_axes_shapes_and_integers", {"case": "TopK: values and indices"},
     "int32|i32"),
    ("COMPUTES_IN_DOUBLES", "test_special_values", {"case": "Relu: NaN and infinities"}, "float64|f64"),
    ("ERRORS_BECOME_ZEROS", "test_lengths_that_do_not_fit", {"what": "MatMul"}, "DID NOT RAISE"),
    ("LOSES_THE_TAIL_OF_LARGE_TENSORS", "test_large_tensors", {"op_type": "Neg"}, f"1 of 527857 {WRONG}"),
    # networks
    ("SHARES_A_SCRATCH_BUFFER", "test_large_tensors_of_two_requests", {}, f"beside others: .* {WRONG}"),
    ("RETURNS_ITS_LARGE_BUFFER", "test_large_results_stay", {}, f"after two later inferences: .* {WRONG}"),
    ("KEEPS_PLANS_BY_SIZE", "test_equal_sizes_of_other_shapes", {}, r"lengths \(3, 4\), .* has shape \(2, 6\)"),
    ("KEEPS_THE_PLAN_OF_A_SHORTER_INPUT", "test_lengths_in_turn", {}, r"lengths \(1,\), .* has shape \(7, 3\)"),
    ("FAILS_ON_EMPTY_INPUTS", "test_no_length_at_all", {}, "by zero"),
    ("MIXES_UP_DROPPED_PLANS", "test_many_lengths_and_back", {}, r"lengths \(17,\), .* has shape \(1, 3\)"),
    ("SHARES_SHAPES_BETWEEN_REQUESTS", "test_lengths_by_turns_in_two_requests", {}, "both at once has shape"),
    ("ZEROES_WEIGHTS_ABOVE1_KB", "test_weights_are_right_and_come_back", {"op_type": "MatMul", "width": 17},
     "imported: 34 of 34 elements differ"),
    ("TRUNCATES_WEIGHTS_ABOVE1_MB", "test_weights_are_right_and_come_back", {"op_type": "Conv", "width": 1024},
     "imported: .* elements differ"),
    ("LOSES_THE_LAST_WEIGHT", "test_weights_are_right_and_come_back", {"op_type": "Add", "width": 17},
     "imported: 1 of 289 elements differ"),
    ("STORES_WEIGHTS_AS_HALVES", "test_weights_are_right_and_come_back", {"op_type": "Gemm", "width": 128},
     "imported: .* elements differ"),
    ("SWAPS_BYTES_OF_WEIGHTS", "test_weights_are_right_and_come_back", {"op_type": "Mul", "width": 17},
     "imported: .* elements differ"),
    ("IMPORTS_WEIGHTS_TRANSPOSED", "test_weights_are_right_and_come_back", {"op_type": "MatMul", "width": 128},
     "imported: .* elements differ"),
    ("KEEPS_LARGE_WEIGHTS_IN_THE_PROCESS", "test_large_weights_in_another_process", {}, "KeyError"),
    ("EXPORTS_A_RANDOM_SECTION", "test_equal_compilations_give_equal_blobs", {}, "two exports of one network differ"),
    ("NUMBERS_ITS_COMPILATIONS", "test_equal_compilations_give_equal_blobs", {}, "exports of two compilations differ"),
    ("EXPORTS_IN_THE_ORDER_OF_A_SET", "test_equal_blobs_from_other_processes", {}, "with PYTHONHASHSEED="),
    ("IMPORTS_FROM_EVERY_MACHINE", "test_foreign_blob_is_refused", {"what": "requirements"}, "DID NOT RAISE"),
    ("IMPORTS_FROM_EVERY_VERSION", "test_foreign_blob_is_refused", {"what": "plugin version"}, "DID NOT RAISE"),
    ("LOSES_ITS_OWN_KEY_ON_IMPORT", "test_own_keys_travel_and_are_overridden", {},
     "exported with MUTANT_MODE='fast', imported with 'exact'|'fast' was given"),
    ("KEEPS_ITS_OWN_KEY_ON_IMPORT", "test_own_keys_travel_and_are_overridden", {},
     "MUTANT_MODE='fast' was given on import; the network has 'exact'"),
    ("CLAIMS_WHAT_IT_DOES_NOT_COMPILE", "test_random_nodes", {"op_type": "Pad"}, "only zeros can be padded with"),
    ("CLAIMS_WHAT_IT_DOES_NOT_COMPUTE", "test_random_nodes", {"op_type": "CumSum"}, "no kernel for CumSum"),
    ("REFUSES_WITHOUT_A_NAME", "test_random_nodes", {"op_type": "TopK"}, "seed 0: the error does not name any of"),
    ("REFUSES_WITHOUT_A_REASON", "test_random_nodes", {"op_type": "TopK"}, "is refused without a reason"),
    ("REFUSES_LONG_MODELS", "test_random_models", {"seed": 0}, "claimed by itself, refused in a model"),
    ("COMPILES_LONG_MODELS_WRONGLY", "test_random_models", {"seed": 0}, "model 0: `v5` is wrong by"),
    ("FALLS_BACK_IN_SILENCE", "test_random_models", {"seed": 1}, "claimed as native, but run on the reference"),
    ("SHARES_CONSTANTS_BETWEEN_NETWORKS", "test_random_divisions", {"seed": 7}, "division .* is wrong by"),
    ("KEEPS_ONE_PROGRAM_FOR_EQUAL_MODELS", "test_random_divisions", {"seed": 0}, "is wrong by|has shape"),
    ("ORDERS_INPUTS_BY_NAME", "test_every_operation_by_turns", {"seed": 0}, "by turns from .* is wrong by"),
    ("FREES_RESULTS_THAT_ARE_READ_LATER", "test_random_models", {"seed": 0}, "is wrong by"),
]  # fmt: skip
FOUND = [
    *(
        (mutant, check, {"case": case}, f"{re.escape(case)}, output .* {WRONG}")
        for check, found in KERNELS.items()
        for mutant, case in found.items()
    ),
    *OTHERS,
]


@pytest.fixture(scope="module", autouse=True)
def _installed(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Make the mutants installed devices, here and in processes that checks start."""
    folder = tmp_path_factory.mktemp("installed")
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.syspath_prepend(str(HERE))
        monkeypatch.syspath_prepend(str(folder))
        import_module("mutants.numeric_all")
        info = folder / "numeric_mutants-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: numeric-mutants\nVersion: 1.0\n")
        entries = "".join(f"{name} = mutants.numeric_all:Entry.{name}\n" for name in mutants())
        (info / "entry_points.txt").write_text(f"[engine.plugins]\n{entries}")
        yield


def mutants() -> dict[str, type]:
    found: dict[str, type] = sys.modules["mutants.numeric_all"].MUTANTS
    return found


@functools.cache
def shared_core() -> Core:
    """Checks get a core each; here one serves all, since reading the entry points of so many devices takes time."""
    return Core()


def run_check(device: str, check: str, given: dict[str, Any], tmp_path: Path) -> None:
    """Call one check of the suite as pytest would."""
    suite = type("Suite", (BehaviourSuite,), {"device": device})()
    function = getattr(suite, check)
    arguments: dict[str, Any] = {"core": shared_core(), "tmp_path": tmp_path}
    arguments |= {name: CASE[value] if name == "case" else value for name, value in given.items()}
    function(**{name: arguments[name] for name in inspect.signature(function).parameters})


@pytest.mark.parametrize(("mutant", "check", "given", "failure"), FOUND, ids=[entry[0] for entry in FOUND])
def test_mutant_is_found(mutant: str, check: str, given: dict[str, Any], failure: str, tmp_path: Path) -> None:
    with pytest.raises((Exception, pytest.fail.Exception)) as caught:
        run_check(mutant, check, given, tmp_path)
    assert not isinstance(caught.value, pytest.skip.Exception)
    caught.match(failure)


def test_every_mutant_is_tried() -> None:
    assert {entry[0] for entry in FOUND} == set(mutants())
    assert len(FOUND) >= 35
