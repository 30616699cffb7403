"""The conformance kit's checks through BATCH: of the models that have a batch, the rest is refused."""

from engine.testing import BehaviourSuite


class TestBatchOfTemplate(BehaviourSuite):
    device = "BATCH:TEMPLATE"
    config = {"BATCH_TIMEOUT": 1}

    # Inferences change the metric that counts them.
    test_metrics_have_the_declared_type_each_time = None
