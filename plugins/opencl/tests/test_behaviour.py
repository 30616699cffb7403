from engine.testing import BehaviourSuite


class TestOpenclBehaviour(BehaviourSuite):
    device = "OPENCL"
