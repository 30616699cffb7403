"""Checks of operators: attributes, shapes and values at their limits, against answers that numpy computed."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import pytest

from engine.core import Core
from engine.ops.cases.undefined import leaves_nan_undefined
from engine.properties import ANSWERS_UNDEFINED
from engine.testing.behaviour.base import DeviceChecks
from engine.testing.behaviour.layout_cases import LAYOUTS
from engine.testing.behaviour.numeric import NumericCase
from engine.testing.behaviour.product_cases import PRODUCTS
from engine.testing.behaviour.value_cases import VALUES
from engine.testing.behaviour.window_cases import WINDOWS


class OperatorChecks(DeviceChecks):
    """The operators that the device claims are right for every attribute; others are skipped with the reason."""

    area: ClassVar[str] = "operators"

    @pytest.mark.parametrize("case", PRODUCTS, ids=str)
    def test_matrix_products(self, core: Core, case: NumericCase) -> None:
        """Gemm and MatMul obey transA, transB, alpha and beta, every form of C, and stacks of matrices."""
        self.check_numeric(core, case)

    @pytest.mark.parametrize("case", WINDOWS, ids=str)
    def test_windows(self, core: Core, case: NumericCase) -> None:
        """Conv and pools obey strides, dilations, groups, each pad by itself, auto_pad and ceil_mode, in 1-D to 3-D."""
        self.check_numeric(core, case)

    @pytest.mark.parametrize("case", LAYOUTS, ids=str)
    def test_axes_shapes_and_integers(self, core: Core, case: NumericCase) -> None:
        """Axes from either end, permutations, 0 and -1 in shapes, broadcasting, and integers that reals cannot hold."""
        self.check_numeric(core, case)

    @pytest.mark.parametrize("case", VALUES, ids=str)
    def test_special_values(self, core: Core, case: NumericCase) -> None:
        """NaN and infinities stay unchanged; float32 has the digits and the range of float32."""
        reals = [value for value in case.inputs if value is not None and value.dtype.kind == "f"]
        has_nan = any(bool(np.isnan(value).any()) for value in reals)
        is_undefined = has_nan and leaves_nan_undefined(case.op_type)
        if is_undefined and not core.get_property(self.device, ANSWERS_UNDEFINED.name):
            pytest.skip(f"{case.op_type}: ONNX leaves NaN undefined, and {self.device} has an answer of its own")
        self.check_numeric(core, case)

    def check_numeric(self, core: Core, case: NumericCase) -> None:
        """Compile a case, run it twice, and compare; skip it with the device's reason if its query refuses the node."""
        model = case.model()
        self.require_support(core, model)
        request = self.compile(core, model).create_infer_request()
        for _ in range(2):
            result = request.infer(case.feeds())
            for index, expected in enumerate(case.expected):
                expected.check(result[index], self._rtol_of(case), f"{case}, output {index}")

    def _rtol_of(self, case: NumericCase) -> float:
        """The tighter one of the case, unless the device declares that it computes with larger errors than usual."""
        is_usual = self.rtol <= DeviceChecks.rtol
        return case.rtol if case.rtol is not None and is_usual else self.rtol
