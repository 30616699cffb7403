from engine.testing import BehaviourSuite


class TestTemplate(BehaviourSuite):
    device = "TEMPLATE"
