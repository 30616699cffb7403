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
    def _with_picky(self, picky_core: Core) -> None:
        self.picky_core = picky_core

    def new_core(self) -> Core:
        return self.picky_core

    # Another process, and a core of the check's own, have no device PICKY.
    test_import_in_another_process = None
    test_case_in_another_process = None
    test_cached_network = None
    test_large_weights_in_another_process = None
    test_equal_blobs_from_other_processes = None
