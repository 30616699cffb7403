"""The behaviour suite finds every fault of `mutants/lifecycle.py`, each by a named check and for the right reason."""

from __future__ import annotations

import inspect
import sys
from pathlib import Path
from typing import Any

import pytest

from engine import Core
from engine.testing import BehaviourSuite

MUTANTS = Path(__file__).parent / "mutants"

# device, check, arguments of the check, a pattern of the failure
FOUND: list[tuple[str, str, dict[str, Any], str]] = [
    ("REPORTS_ANOTHER_NAME_EACH_TIME", "test_metrics_have_the_declared_type_each_time", {}, "FULL_DEVICE_NAME changed"),
    ("REPORTS_ANOTHER_TYPE_LATER", "test_metrics_have_the_declared_type_each_time", {}, "invalid metric.*MUTANT_LOAD"),
    ("CHANGES_ITS_IDS", "test_ids_of_devices_stay", {}, "AVAILABLE_DEVICES changes from one reading"),
    ("RUNS_ON_THE_FIRST_DEVICE", "test_id_selects_the_device", {}, "compiled for id 1; runs on .*FIRST_DEVICE.0"),
    ("HAS_AN_UNDOCUMENTED_KEY", "test_every_property_is_described", {}, "MUTANT_MODE has no documentation"),
    ("IGNORES_STREAMS", "test_so_many_streams_run_at_the_same_time", {"streams": 3}, "but only 1 inferences run"),
    ("USES_TOO_MANY_STREAMS", "test_so_many_streams_run_at_the_same_time", {"streams": 1}, "but 2 inferences run"),
    ("IGNORES_EXCLUSIVE_REQUESTS", "test_exclusive_requests_never_overlap", {}, "two networks run at the same time"),
    ("IGNORES_PERF_COUNT", "test_profile_is_taken_only_with_perf_count", {}, "PERF_COUNT=True, and 0 stages"),
    ("PROFILES_ALWAYS", "test_profile_is_taken_only_with_perf_count", {}, "PERF_COUNT=False, and 4 stages"),
    ("ASKS_FOR_MORE_WITH_LATENCY", "test_throughput_takes_as_many_requests_as_latency", {}, "LATENCY asks for 4"),
    ("LOSES_CONFIG_ON_IMPORT", "test_every_value_is_kept_by_a_blob", {}, "was exported as .* and imported as"),
    (
        "LOSES_ITS_OWN_KEY_ON_IMPORT",
        "test_every_value_is_kept_by_a_blob",
        {},
        "TEMPLATE_TRANSFORMATIONS was exported as False and imported as True",
    ),
    ("KEEPS_CONFIG_ON_IMPORT", "test_every_value_is_kept_by_a_blob", {}, "on import and is"),
    ("IGNORES_CHANGED_DEFAULTS", "test_every_default_takes_effect", {}, "a network compiled later has"),
    ("CALLS_BACK_TWICE", "test_executors_run_each_task_once", {}, "ran 200 of 200 tasks more than once"),
    ("CALLS_BACK_NEVER", "test_callback_is_called_exactly_once", {"outcome": "success"}, "has not finished after"),
    ("RUNS_TASKS_TWICE", "test_executors_run_each_task_once", {}, "ran 200 of 200 tasks more than once"),
    ("LOSES_TASKS", "test_executors_run_each_task_once", {}, "timed out waiting: .* runs each of 200 tasks"),
    ("RUNS_TASKS_IN_ANOTHER_ORDER", "test_executors_run_each_task_once", {}, "ran its tasks in another order"),
    (
        "NOTICES_CANCELLATION_AT_THE_END",
        "test_an_inference_that_must_end_ends_before_it_is_done",
        {"reason": "cancelled"},
        "was cancelled after .* and ran 24 of 24 nodes",
    ),
    (
        "SWALLOWS_THE_DEADLINE",
        "test_an_inference_that_must_end_ends_before_it_is_done",
        {"reason": "late"},
        "was late after .* and ran 24 of 24 nodes",
    ),
    (
        "SWALLOWS_CANCELLING",
        "test_an_inference_that_must_end_ends_before_it_is_done",
        {"reason": "cancelled"},
        "was cancelled after .* and ran 24 of 24 nodes",
    ),
    ("IS_STUCK_AFTER_AN_ERROR", "test_request_is_usable_after_an_error_at_any_stage", {}, "the device is stuck"),
    ("IS_STUCK_AFTER_AN_ERROR", "test_request_is_usable_after_every_kind_of_error_in_turn", {}, "the device is stuck"),
    ("FAILS_WHEN_ABORTED", "test_request_is_usable_after_an_error_at_any_stage", {}, "the device is locked"),
    (
        "TURNS_ERRORS_INTO_ZEROS",
        "test_lengths_that_contradict_each_other_are_refused",
        {"op_type": "Add"},
        "DID NOT RA",
    ),
    ("REPEATS_FORMER_RESULTS", "test_input_tensors_are_used_in_place", {}, "output `total`"),
    ("IGNORES_OUTPUT_TENSORS", "test_output_tensors_are_written_in_place", {}, r"array\(.* is array\("),
    ("LEAKS_REQUESTS", "test_requests_are_freed", {"use": "created"}, "a request that was created is freed"),
    ("LEAKS_REQUESTS", "test_requests_are_freed", {"use": "cancelled"}, "a request that was cancelled is freed"),
    ("LEAKS_NETWORKS", "test_compilations_do_not_grow", {}, "Python's memory grows by .* each compilation"),
    ("LEAKS_CORES", "test_core_is_freed", {}, "timed out waiting: the (core|plugin) is freed"),
    ("HOLDS_INPUTS", "test_inputs_are_released", {}, "inputs are freed after a call of the network"),
    (
        "HOLDS_INPUTS_UNTIL_CLEARED",
        "test_inputs_are_released",
        {},
        "inputs are freed after an inference with other inputs",
    ),
    ("HOLDS_OUTPUTS", "test_results_are_released", {}, "results are freed after a call of the network"),
    ("HOLDS_OUTPUT_TENSORS", "test_output_tensors_are_released", {}, "array that was set for an output is freed"),
    ("LOSES_ITS_PROGRAM_ON_RELEASE", "test_inferences_are_right_after_memory_was_released", {}, "NoneType"),
    (
        "FORECASTS_THE_SAME_FOR_ANY_SHAPE",
        "test_memory_is_forecast",
        {},
        "the inputs take .* bytes, and the forecast has 64",
    ),
    ("FORECASTS_LESS_FOR_MORE", "test_memory_is_forecast", {}, "64 times as long, peak falls from"),
    ("FORECASTS_WHAT_IT_INFERRED_LAST", "test_memory_is_forecast", {}, "two forecasts of one network differ"),
    ("FORECASTS_NEGATIVE_WEIGHTS", "test_memory_is_forecast", {}, "weights -1"),
    ("COUNTS_MEMORY_IN_WORDS", "test_inferences_are_right_after_memory_was_released", {}, "got {.weights.: .4 KB.}"),
    ("GROWS_WITH_EACH_COMPILATION", "test_compilations_do_not_grow", {}, "memory grows by .* each compilation"),
    ("GROWS_NATIVELY", "test_compilations_do_not_grow", {}, "the process grew by .* MiB"),
    ("GROWS_WITH_EACH_INFERENCE", "test_inferences_do_not_grow", {}, "memory grows by .* each inference"),
    ("GROWS_WITH_EACH_REQUEST", "test_requests_do_not_grow", {}, "memory grows by .* each request"),
    ("LEAVES_FILES_OPEN", "test_compilations_do_not_grow", {}, "files stayed open"),
    ("SHARES_STAGING", "test_requests_share_no_memory_between_stages", {}, "got results of another request"),
    ("SHARES_SCRATCH", "test_large_tensors_in_many_threads", {}, "do not follow from its inputs"),
    ("SHARES_CONFIG_BETWEEN_CORES", "test_cores_have_properties_of_their_own", {}, "is seen by a network of another"),
    ("SHARES_NETWORKS_BETWEEN_CORES", "test_cores_have_properties_of_their_own", {}, "two cores share one network"),
    ("SHARES_NETWORKS_BETWEEN_CORES", "test_cores_have_networks_of_their_own", {}, "two cores share one network"),
    ("SHARES_CONSTANTS_BETWEEN_NETWORKS", "test_networks_have_constants_of_their_own", {}, "constants of another"),
    ("PRINTS", "test_nothing_is_printed", {}, "standard output has 'compiling"),
    ("PRINTS_ERRORS", "test_nothing_is_printed", {}, "standard error has 'driver: warning"),
    ("LEAVES_FILES", "test_no_files_are_left_in_the_working_directory", {}, r"\['basic\.kernels'\]"),
    ("CHANGES_THE_DIRECTORY", "test_process_state_is_not_changed", {}, "the working directory was .*, is /"),
    ("TAKES_SIGNALS", "test_process_state_is_not_changed", {}, "changed: the signal handlers was"),
    ("CHANGES_NUMPYS_ERRORS", "test_process_state_is_not_changed", {}, "changed: numpy's error handling was"),
    ("SEEDS_THE_RANDOM_STATE", "test_process_state_is_not_changed", {}, "changed: numpy's random state was"),
    ("LEAVES_THREADS", "test_networks_leave_no_threads", {}, r"threads remain: \['left behind'"),
    ("NAMES_ITS_KERNELS", "test_names_are_those_of_the_model", {}, r"names \['kernel_add', 'kernel_mul'\]"),
    ("NAMES_ITS_KERNELS", "test_names_after_fusion_are_those_of_the_model", {"case": "elementwise"}, "names .*kernel_"),
    ("USES_ANOTHER_CLOCK", "test_times_add_up", {}, "ran outside the inference"),
    ("COUNTS_TIMES_TWICE", "test_times_add_up", {}, "ns in total, the inference"),
    ("RECORDS_NO_TIMES", "test_long_operators_take_time", {}, "has nodes of 0 ns in total"),
]

# These checks wait for what never happens.
WAITING = {
    "CALLS_BACK_NEVER", "HOLDS_INPUTS", "HOLDS_INPUTS_UNTIL_CLEARED", "HOLDS_OUTPUTS", "HOLDS_OUTPUT_TENSORS",
    "IGNORES_STREAMS", "LEAKS_CORES", "LEAKS_REQUESTS", "LEAVES_THREADS", "LOSES_TASKS",
}  # fmt: skip
WAIT = 1.5


@pytest.fixture(autouse=True)
def _installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the mutants installed devices, here and in processes that checks start."""
    monkeypatch.syspath_prepend(str(MUTANTS))
    monkeypatch.syspath_prepend(str(tmp_path))
    import lifecycle

    info = tmp_path / "lifecycle_mutants-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: lifecycle-mutants\nVersion: 1.0\n")
    entries = "".join(f"{name} = lifecycle:{name}\n" for name in lifecycle.FAULTY)
    (info / "entry_points.txt").write_text(f"[engine.plugins]\n{entries}")


@pytest.mark.parametrize(("device", "check", "given", "failure"), FOUND)
def test_mutant_is_found(device: str, check: str, given: dict[str, Any], failure: str, tmp_path: Path) -> None:
    with pytest.raises((Exception, pytest.fail.Exception), match=failure) as caught:
        run_check(device, check, given, tmp_path)
    assert not isinstance(caught.value, pytest.skip.Exception)


def run_check(device: str, check: str, given: dict[str, Any], tmp_path: Path) -> None:
    """Call one check of the suite as pytest would."""
    limit = WAIT if device in WAITING else 60.0
    suite = type("Suite", (BehaviourSuite,), {"device": device, "limit": limit})()
    function = getattr(suite, check)
    folder = tmp_path / "folder"
    folder.mkdir()
    arguments: dict[str, Any] = {"core": Core(), "tmp_path": folder, **given}
    if "case" in given:
        arguments["case"] = next(mark for mark in _cases(function) if mark.name == given["case"])
    needed = inspect.signature(function).parameters
    if "network" in needed:
        arguments["network"] = BehaviourSuite.network.__wrapped__(suite, arguments["core"])
    function(**{name: arguments[name] for name in needed})


def _cases(function: Any) -> Any:
    (mark,) = [mark for mark in function.pytestmark if mark.args[0] == "case"]
    return mark.args[1]


def test_every_mutant_is_tried() -> None:
    assert set(sys.modules["lifecycle"].FAULTY) == {entry[0] for entry in FOUND}


def test_new_groups_have_an_area_and_each_check_a_requirement() -> None:
    """Reports show the area of a check and the first line of its docstring."""
    areas = {"properties", "requests", "asynchronous", "profiles", "threads", "memory", "isolation", "states"}
    for name in ("Effect", "Completion", "Collision", "Profile", "Isolation", "Memory"):
        group = getattr(sys.modules["engine.testing.behaviour"], f"{name}Checks")
        assert group.area in areas
        for check, function in vars(group).items():
            if check.startswith("test_"):
                assert (function.__doc__ or "").strip().endswith("."), check
