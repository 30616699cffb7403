"""The behaviour suite against devices with one fault each: a check that no device fails proves nothing."""

from __future__ import annotations

import inspect
import sys
from pathlib import Path
from typing import Any

import pytest

from engine import Core
from engine.testing import BehaviourSuite
from engine.testing.behaviour.cases import CASES

HERE = Path(__file__).parent
CASE = {case.name: case for case in CASES}

# device, check, arguments of the check, a pattern of the failure
FAULTS: list[tuple[str, str, dict[str, Any], str]] = [
    ("SWAPS_OUTPUTS", "test_basic_model_runs", {}, "output `total`"),
    ("SWAPS_OUTPUTS", "test_start_and_wait", {}, "output `total`"),
    ("SWAPS_OUTPUTS", "test_network_and_request_may_go_while_an_inference_runs", {}, r"total\s+Mismatched"),
    ("RETURNS_ITS_BUFFERS", "test_results_stay_when_the_next_inference_runs", {}, "output `total`"),
    (
        "RETURNS_ITS_MEMORY",
        "test_results_belong_to_the_caller",
        {"case": "passed_through"},
        "shares memory with input `x`",
    ),
    ("RETURNS_ITS_MEMORY", "test_results_belong_to_the_caller", {"case": "constant_output"}, "`table` is read-only"),
    ("WRITES_TO_INPUTS", "test_inputs_are_not_written_to", {"case": "elementwise"}, "read-only"),
    ("WRITES_TO_INPUTS", "test_input_tensors_are_used_in_place", {}, "output `total`"),
    ("REMEMBERS_THE_FIRST_SHAPE", "test_case", {"case": "dynamic_batch"}, "output `y` has shape"),
    ("STAYS_BUSY_AFTER_CANCELLING", "test_cancel_between_any_two_stages", {}, "the device runs already"),
    ("STAYS_BUSY_AFTER_CANCELLING", "test_deadline_between_any_two_stages", {}, "the device runs already"),
    ("HEARS_NOTHING_IN_LOOPS", "test_a_loop_that_goes_on_and_on_can_be_ended", {}, "it went round too often"),
    ("GIVES_STALE_OUTPUTS", "test_cancel_between_any_two_stages", {}, "output `total`"),
    ("SHARES_MEMORY", "test_concurrent_calls_of_one_network", {}, "output `|evaluation failed|cannot take"),
    ("SHARES_MEMORY", "test_concurrent_requests", {}, "output `|evaluation failed|cannot take"),
    ("RECORDS_NO_NODES", "test_every_node_is_recorded_once", {}, "no node was recorded"),
    ("RECORDS_NODES_TWICE", "test_every_node_is_recorded_once", {}, "recorded twice"),
    ("RECORDS_WRONG_TIMES", "test_every_node_is_recorded_once", {}, "outside the inference"),
    ("FORGETS_A_STAGE", "test_start_and_wait", {}, "omits"),
    ("PUTS_STAGES_IN_WRONG_ORDER", "test_start_and_wait", {}, "the pipeline runs"),
    ("EXPORTS_A_REFERENCE", "test_import_in_another_process", {}, "the subprocess exited with code 1"),
    ("IMPORTS_ITS_PARTS_AS_BYTES", "test_signed_blob", {}, "is not signed"),
    ("EXPORTS_NO_WEIGHTS", "test_case_after_export_and_import", {"case": "convolution"}, "output `y`"),
    ("COMPILES_WHEN_FIRST_USED", "test_network_does_not_depend_on_the_model_afterwards", {}, "output"),
    ("REFUSES_EVERYTHING", "test_basic_model_runs", {}, "for decoration"),
    ("REFUSES_WITHOUT_REASON", "test_query_answers_for_every_node", {"case": "softmax"}, "without a cause"),
    ("PROMISES_TOO_MUCH", "test_compiling_agrees_with_the_query", {"case": "softmax"}, "there is no Softmax"),
    ("PROMISES_TOO_MUCH", "test_case", {"case": "softmax"}, "there is no Softmax"),
    ("PROMISES_TOO_LITTLE", "test_compiling_agrees_with_the_query", {"case": "softmax"}, "DID NOT RAISE"),
    ("ANSWERS_FOR_SOME_NODES", "test_query_answers_for_every_node", {"case": "convolution"}, "must report exactly"),
    (
        "PLACES_AN_OPERATION_TWICE",
        "test_query_answers_for_every_node",
        {"case": "convolution"},
        "in more than one subgraph",
    ),
    (
        "FORGETS_TO_PLACE_AN_OPERATION",
        "test_query_answers_for_every_node",
        {"case": "convolution"},
        "1 nodes are in no subgraph",
    ),
    ("CHANGES_THE_MODEL", "test_compiling_agrees_with_the_query", {"case": "convolution"}, "_compiled"),
    ("KEEPS_NETWORKS", "test_network_is_freed_with_its_last_request", {}, "the network is freed"),
    ("FORGETS_EXPORTED_CONFIG", "test_configuration_travels_and_is_overridden", {}, "NUM_STREAMS|THROUGHPUT|True"),
    ("IGNORES_CONFIG", "test_every_config_value_is_kept", {}, "get_config"),
    ("SETS_DEFAULTS_ONE_BY_ONE", "test_wrong_values_are_refused", {}, "assert True is False"),
    ("REPORTS_A_WRONG_TYPE", "test_device_metrics", {}, "reports an invalid metric"),
    ("HAS_NO_NAME", "test_device_describes_itself", {}, "strip"),
    (
        "FAILS_WITH_AN_OPTION",
        "test_every_config_value_is_kept",
        {},
        "evaluation failed|cannot take inputs",
    ),
    (
        "TAKES_TENSORS_BY_THE_HOST",
        "test_chain_in_device_memory",
        {},
        "copied tensors of the context by way of the host",
    ),
    ("READS_SCALARS_AS_ZEROS", "test_tensor_round_trip", {}, r"DESIRED: array\(7"),
    ("SWAPS_OUTPUTS", "test_remote_and_host_inputs_in_turn", {}, "output `total`"),
    ("WRITES_TENSORS_EARLY", "test_output_in_the_memory_of_an_input", {}, "output `"),
    ("KEEPS_TENSORS", "test_tensor_lives_while_it_is_used", {}, "a tensor outlives its use"),
    ("WRITES_TO_TENSORS_OF_THE_LAST_INFERENCE", "test_output_stays_remote", {}, "of the inference before"),
    ("EXPORTS_THOUGH_IT_DECLARES_NOT", "test_export_that_is_not_declared_is_refused", {}, "DID NOT RAISE"),
]

SKIPS: list[tuple[str, str, dict[str, Any], str]] = [
    ("CANNOT_EXPORT", "test_import_from_path_bytes_and_stream", {}, "IMPORT_EXPORT_SUPPORT = False"),
    ("CANNOT_EXPORT", "test_case_after_export_and_import", {"case": "convolution"}, "IMPORT_EXPORT_SUPPORT = False"),
    ("KNOWS_NO_STRINGS", "test_case", {"case": "strings"}, "no strings here; use numbers"),
    ("HAS_NO_CONTEXTS", "test_chain_in_device_memory", {}, "REMOTE_CONTEXT_SUPPORT = False"),
]

PASSES: list[tuple[str, str, dict[str, Any]]] = [
    ("CANNOT_EXPORT", "test_export_that_is_not_declared_is_refused", {}),
    ("KNOWS_NO_STRINGS", "test_case", {"case": "convolution"}),
    ("HAS_NO_CONTEXTS", "test_context_or_reason", {}),
    ("PLACES_EVERY_OPERATION", "test_query_answers_for_every_node", {"case": "convolution"}),
]


@pytest.fixture(autouse=True)
def _installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the faulty devices installed ones, here and in processes that checks start."""
    monkeypatch.syspath_prepend(str(HERE))
    monkeypatch.syspath_prepend(str(tmp_path))
    import faulty_devices

    info = tmp_path / "faulty_devices-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: faulty-devices\nVersion: 1.0\n")
    entries = "".join(f"{name} = faulty_devices:{name}\n" for name in faulty_devices.FAULTY)
    (info / "entry_points.txt").write_text(f"[engine.plugins]\n{entries}")


def run_check(device: str, check: str, given: dict[str, Any], tmp_path: Path) -> None:
    """Call one check of the suite as pytest would."""
    # The checks of KEEPS_NETWORKS wait for what never happens.
    limit = 0.5 if device == "KEEPS_NETWORKS" else 60.0
    suite = type("Suite", (BehaviourSuite,), {"device": device, "limit": limit})()
    function = getattr(suite, check)
    folder = tmp_path / "folder"
    folder.mkdir()
    arguments: dict[str, Any] = {"core": Core(), "tmp_path": folder}
    arguments |= {name: CASE[value] if name == "case" else value for name, value in given.items()}
    needed = inspect.signature(function).parameters
    if "context" in needed:
        arguments["context"] = BehaviourSuite.context.__wrapped__(suite, arguments["core"])
    if "network" in needed:
        arguments["network"] = BehaviourSuite.network.__wrapped__(suite, arguments["core"])
    function(**{name: arguments[name] for name in needed})


@pytest.mark.parametrize(("device", "check", "given", "failure"), FAULTS)
def test_fault_is_found(device: str, check: str, given: dict[str, Any], failure: str, tmp_path: Path) -> None:
    with pytest.raises((Exception, pytest.fail.Exception), match=failure) as caught:
        run_check(device, check, given, tmp_path)
    assert not isinstance(caught.value, pytest.skip.Exception)


@pytest.mark.parametrize(("device", "check", "given", "reason"), SKIPS)
def test_what_a_device_declares_not_to_do_is_skipped_with_its_reason(
    device: str, check: str, given: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    with pytest.raises(pytest.skip.Exception, match=reason):
        run_check(device, check, given, tmp_path)


@pytest.mark.parametrize(("device", "check", "given"), PASSES)
def test_sound_devices_pass(device: str, check: str, given: dict[str, Any], tmp_path: Path) -> None:
    run_check(device, check, given, tmp_path)


def test_every_faulty_device_is_tried() -> None:
    faulty = sys.modules["faulty_devices"].FAULTY
    assert set(faulty) == {entry[0] for entry in (*FAULTS, *SKIPS, *PASSES)}
