"""The conformance kit's checks through BATCH."""

from engine.testing import BehaviourSuite


class TestBatchOfTemplate(BehaviourSuite):
    device = "BATCH:TEMPLATE(3)"
    config = {"BATCH_TIMEOUT": 1}
