"""The conformance kit's checks through BATCH: models that have a batch run, and the others are refused."""

from engine.testing import BehaviourSuite


class TestBatchOfTemplate(BehaviourSuite):
    device = "BATCH:TEMPLATE"
    config = {"BATCH_TIMEOUT": 1}

    # Inferences change the metric that counts them.
    test_metrics_have_the_declared_type_each_time = None
