"""The suites for the device of `--engine-device`, as the module that pytest collects."""

from engine.testing import BehaviourSuite, OperatorSuite
from engine.testing.conformance import pytest_plugin


class TestBehaviour(BehaviourSuite):
    """See `BehaviourSuite`."""

    device = pytest_plugin.selected_device
    limit = pytest_plugin.selected_limit


class TestOperators(OperatorSuite):
    """See `OperatorSuite`."""

    device = pytest_plugin.selected_device
    limit = pytest_plugin.selected_limit
