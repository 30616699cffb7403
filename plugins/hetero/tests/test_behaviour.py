from collections.abc import Callable

import pytest

from engine.core import Core
from engine.testing import BehaviourSuite


class TestHeteroBehaviour(BehaviourSuite):
    device = "HETERO:TEMPLATE,CPU"


class TestHeteroBehindCpu(BehaviourSuite):
    """Operations without CPU kernels run on the other device."""

    device = "HETERO:CPU,TEMPLATE"
    config = {"DEVICE_PROPERTIES": {"CPU": {"ALLOW_REFERENCE": False}}}


class TestHeteroOfTwoHalves(BehaviourSuite):
    """About every other node on another device, so that most models are in several parts."""

    device = "HETERO:PICKY,CPU"

    @pytest.fixture(autouse=True)
    def _device_picky(self, make_picky_core: Callable[[], Core]) -> None:
        self.make_core = make_picky_core

    # Another process, and a core of the check's own, have no device PICKY.
    test_import_in_another_process = None
    test_case_in_another_process = None
    test_cached_network = None
    test_large_weights_in_another_process = None
    test_equal_blobs_from_other_processes = None
    test_nothing_is_printed = None
    test_no_files_are_left_in_the_working_directory = None
    test_process_state_is_not_changed = None
    test_networks_leave_no_threads = None
