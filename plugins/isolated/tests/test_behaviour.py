"""The conformance kit's checks in a process of its own: what the device does right, it does right there."""

from engine.testing import BehaviourSuite


class TestIsolatedTemplate(BehaviourSuite):
    device = "ISOLATED:TEMPLATE"

    # Reading a metric takes memory in the process, which PROCESS_STATISTICS tells.
    test_metrics_have_the_declared_type_each_time = None


class TestIsolatedCpu(BehaviourSuite):
    device = "ISOLATED:CPU"

    # Reading a metric takes memory in the process, which PROCESS_STATISTICS tells.
    test_metrics_have_the_declared_type_each_time = None
