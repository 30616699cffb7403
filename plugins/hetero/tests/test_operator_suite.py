"""Every operator through HETERO, and ONNX's node cases, of which some are graphs of several nodes."""

from engine.testing import OperatorSuite


class TestHeteroOperators(OperatorSuite):
    device = "HETERO:CPU,TEMPLATE"
