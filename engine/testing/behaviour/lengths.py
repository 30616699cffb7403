"""Checks of symbolic lengths: a network serves any lengths in any order, not an earlier inference's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Final

import numpy as np
import onnx
import pytest
from onnx import helper

from engine.core import Core
from engine.errors import EngineError
from engine.plugin_api import AsyncInferRequest, ExecutableNetwork, SupportLevel
from engine.testing.behaviour.base import DeviceChecks
from engine.testing.behaviour.basic import BasicOperator
from engine.testing.behaviour.cases import Array, make_model, tensor
from engine.testing.behaviour.claims import claimed, lengths_answer, lengths_model
from engine.testing.behaviour.numeric import Expected
from engine.testing.conformance.selection import LIMIT

_MANY: Final = 20
"""More lengths than a device keeps plans for, usually."""

_TYPES: Final = {"f": onnx.TensorProto.FLOAT, "i": onnx.TensorProto.INT64}
_MISFITS: Final = ("Add", "MatMul", "Concat", "Reshape", "Gather")


class LengthChecks(DeviceChecks):
    """A row of claimed operators on an input whose lengths are not known when the model is compiled."""

    area: ClassVar[str] = "shapes"

    def test_lengths_in_turn(self, core: Core) -> None:
        """Longer, shorter, equal, and back to an earlier one, with other values each time."""
        network, operators = self.dynamic(core)
        request = network.create_infer_request()
        for turn, length in enumerate((3, 7, 7, 1, 3, 64, 2, 7)):
            self.run_length(request, operators, (length,), turn)

    def test_no_length_at_all(self, core: Core) -> None:
        """A length of zero gives an empty result, first, between and after others."""
        network, operators = self.dynamic(core)
        request = network.create_infer_request()
        for turn, length in enumerate((0, 4, 0, 4, 1, 0)):
            self.run_length(request, operators, (length,), turn)

    def test_lengths_by_turns_in_two_requests(self, core: Core) -> None:
        """Each request at its own length while the other runs at another, synchronously and asynchronously."""
        network, operators = self.dynamic(core)
        first, second = network.create_infer_request(), network.create_infer_request()
        for turn in range(3):
            self.run_length(first, operators, (5,), turn)
            self.run_length(second, operators, (9,), turn + 10)
        given = [(first, self._x_of(operators, (2,), 1)), (second, self._x_of(operators, (11,), 2))]
        for request, x in given:
            request.start_async({"x": x})
        for request, x in given:
            request.wait(LIMIT)
            self._check_lengths(request.results["y"], operators, x, "asynchronous, both at once")

    def test_many_lengths_and_back(self, core: Core) -> None:
        """Plans that were dropped are made again."""
        network, operators = self.dynamic(core, most=2)
        request = network.create_infer_request()
        for turn, length in enumerate((*range(1, _MANY + 1), 1, _MANY // 2)):
            self.run_length(request, operators, (length,), turn)

    def test_equal_sizes_of_other_shapes(self, core: Core) -> None:
        """Two lengths: 2 by 6, 3 by 4, 12 by 1 have as many elements, but are not the same."""
        network, operators = self.dynamic(core, 2)
        request = network.create_infer_request()
        for turn, lengths in enumerate(((2, 6), (3, 4), (6, 2), (12, 1), (1, 12), (2, 6), (0, 5), (5, 0))):
            self.run_length(request, operators, lengths, turn)

    @pytest.mark.parametrize("what", _MISFITS)
    def test_lengths_that_do_not_fit(self, core: Core, what: str) -> None:
        """They are an error and never a result; the request is usable afterwards."""
        model, right, wrong = _misfit(what)
        self.require_support(core, model)
        request = self.compile(core, model).create_infer_request()
        expected = request.infer(right)[0]
        for _ in range(2):
            with pytest.raises(EngineError):
                request.infer(wrong)
            np.testing.assert_array_equal(request.infer(right)[0], expected)

    def dynamic(self, core: Core, symbols: int = 1, most: int = 6) -> tuple[ExecutableNetwork, list[BasicOperator]]:
        """A network of some operators that the device claims with this many symbolic lengths, or the check skipped."""
        names = ("N", "M")[:symbols]

        def supports(operators: Sequence[BasicOperator]) -> bool:
            if symbols > 1 and any(each.constants or each.attributes or len(each.shape) != 2 for each in operators):
                return False
            model = lengths_model(operators, names)
            return core.query_model(model, self.device, dict(self.config)).is_supported

        known = claimed(lambda model: core.query_model(model, self.device, dict(self.config)).is_supported)
        operators = [each for each in known if supports([each])]
        if not operators:
            pytest.skip(self._why_not(core, known, symbols))
        operators = operators[:most]
        return self.compile(core, lengths_model(operators, names)), operators

    def _why_not(self, core: Core, known: Sequence[BasicOperator], symbols: int) -> str:
        if not known:
            return self.why_not_basic()
        answer = core.query_model(lengths_model(known[:1], ("N", "M")[:symbols]), self.device, dict(self.config))
        reasons = [support.reason for support in answer.at(SupportLevel.REFUSED).values()]
        return ": ".join([f"{self.device} claims no operator on {symbols} unknown lengths", *reasons[:1]])

    def run_length(
        self, request: AsyncInferRequest, operators: Sequence[BasicOperator], lengths: tuple[int, ...], turn: int
    ) -> None:
        """Infer with an input of these lengths, and compare."""
        x = self._x_of(operators, lengths, turn)
        self._check_lengths(request.infer({"x": x})["y"], operators, x, f"lengths {lengths}, inference {turn}")

    def _check_lengths(self, actual: object, operators: Sequence[BasicOperator], x: Array, where: str) -> None:
        expected = lengths_answer(operators, x)
        scale = np.full(expected.shape, max(1.0, float(np.abs(expected).max(initial=0.0))))
        Expected(expected, len(operators) * scale).check(actual, self.rtol, where)

    @staticmethod
    def _x_of(operators: Sequence[BasicOperator], lengths: tuple[int, ...], turn: int) -> Array:
        shape = (*lengths, *operators[0].shape[len(lengths) :])
        return np.random.default_rng(turn).uniform(-1, 1, shape).astype(np.float32)


def _misfit(op_type: str) -> tuple[onnx.ModelProto, dict[str, Array], dict[str, Array]]:
    """A model of symbolic lengths, inputs that fit, and inputs that only their lengths or values show to be wrong."""
    attributes: dict[str, Any] = {"axis": 1} if op_type == "Concat" else {}
    constants: dict[str, Array] = {"b": np.array([2, -1])} if op_type == "Reshape" else {}
    fits: Array
    does_not: Array
    a, fits, does_not = _ones(2, 3), _ones(2, 3), _ones(4, 3)
    if op_type == "MatMul":
        fits, does_not = _ones(3, 4), _ones(5, 4)
    elif op_type == "Gather":
        fits, does_not = np.array([1, 0]), np.array([2, 0])
    ports = [tensor("a", ["N", "K"]), tensor("b", ["M", "L"][: fits.ndim], _TYPES[fits.dtype.kind])]
    right, wrong = {"a": a, "b": fits}, {"a": a, "b": does_not}
    if op_type == "Reshape":
        ports, right, wrong = ports[:1], {"a": a}, {"a": _ones(1, 7)}
    node = helper.make_node(op_type, ["a", "b"], ["y"], name="node", **attributes)
    return make_model([node], ports, [tensor("y", ["P", "Q"])], constants), right, wrong


def _ones(*shape: int) -> Array:
    return np.ones(shape, np.float32)
