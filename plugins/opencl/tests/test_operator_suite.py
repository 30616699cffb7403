"""Every operator that OPENCL claims, over the operator suite and ONNX's node cases."""

from engine.testing import OperatorSuite


class TestOpenclOperators(OperatorSuite):
    device = "OPENCL"
