from engine.testing import BehaviourSuite


class TestCpuBehaviour(BehaviourSuite):
    device = "CPU"
