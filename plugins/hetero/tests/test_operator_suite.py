"""Every operator through HETERO, and ONNX's node cases, some of which are graphs of several nodes."""

from engine.testing import OperatorSuite


class TestHeteroOperators(OperatorSuite):
    device = "HETERO:CPU,TEMPLATE"
