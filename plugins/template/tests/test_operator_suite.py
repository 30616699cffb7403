"""Every operator on TEMPLATE, which may refuse none: by passes and program, compared with the evaluator itself, and
with the answers of the ONNX suite.
"""

from engine.testing import OperatorSuite


class TestTemplateOperators(OperatorSuite):
    device = "TEMPLATE"
    is_complete = True
