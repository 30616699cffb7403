"""The conformance kit's checks through AUTO: with one device, and while it chooses between two equal ones."""

from collections.abc import Callable

import pytest

from engine.core import Core
from engine.testing import BehaviourSuite


class TestAutoOfCpu(BehaviourSuite):
    device = "AUTO:CPU,TEMPLATE"


class TestAutoOfTwo(BehaviourSuite):
    """Inferences begin on the one that is ready first, while the other one is compiled for, and both are measured."""

    device = "AUTO:ACME,BOLT"
    config = {"MEASURE_SECONDS": 0.05, "REUSE_CHOICE": False}

    @pytest.fixture(autouse=True)
    def _devices(self, new_device: Callable[[str], tuple[type, object]]) -> None:
        def make() -> Core:
            core = Core()
            for name in ("ACME", "BOLT"):
                core.register_plugin(name, new_device(name)[0])
            return core

        self.make_core = make

    # The candidates change until the choice is final, and which of two equal devices is chosen is a matter of chance.
    test_metrics_have_the_declared_type_each_time = None
    test_equal_compilations_give_equal_blobs = None
    # Another process, and a core of the check's own, have no devices ACME and BOLT.
    test_import_in_another_process = None
    test_case_in_another_process = None
    test_cached_network = None
    test_large_weights_in_another_process = None
    test_equal_blobs_from_other_processes = None
    test_nothing_is_printed = None
    test_no_files_are_left_in_the_working_directory = None
    test_process_state_is_not_changed = None
    test_networks_leave_no_threads = None
