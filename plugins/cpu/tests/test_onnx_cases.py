"""Every node case of the ONNX suite on CPU, natively or on the reference evaluator; none may be refused."""

from engine.testing import OperatorSuite


class TestCpuOnnxCases(OperatorSuite):
    device = "CPU"
    is_complete = True
    test_case = None  # in test_operator_suite.py
