"""The conformance kit on ONNXRUNTIME, without the cases that `conftest.py` names."""

from __future__ import annotations

import pytest

from engine.testing import BehaviourSuite, OperatorSuite

pytest.importorskip("onnxruntime")


class TestOnnxRuntime(BehaviourSuite):
    device = "ONNXRUNTIME"


class TestOnnxRuntimeOperators(OperatorSuite):
    device = "ONNXRUNTIME"
