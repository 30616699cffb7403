"""The suites for the device of `--engine-device`, as the module that pytest collects."""

from engine.testing import BehaviourSuite, OperatorSuite
from engine.testing.conformance.selection import SELECTED


class TestBehaviour(BehaviourSuite):
    """See `BehaviourSuite`."""

    device = SELECTED.device
    limit = SELECTED.limit
    memory_share = 1.0 if SELECTED.is_full else BehaviourSuite.memory_share


class TestOperators(OperatorSuite):
    """See `OperatorSuite`."""

    device = SELECTED.device
    limit = SELECTED.limit
