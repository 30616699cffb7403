"""The suites for the device of `--engine-device`, as the module that pytest collects."""

from engine.testing import BehaviourSuite, OperatorSuite
from engine.testing.conformance.selection import SELECTED


class TestBehaviour(BehaviourSuite):
    """The checks of `BehaviourSuite`, on the device of `--engine-device`."""

    device = SELECTED.device
    limit = SELECTED.limit
    memory_share = 1.0 if SELECTED.is_full else BehaviourSuite.memory_share


class TestOperators(OperatorSuite):
    """The cases of `OperatorSuite`, on the device of `--engine-device`."""

    device = SELECTED.device
    limit = SELECTED.limit
