"""The operator suite: every operator that a device claims gives right results, for all attributes and shapes.

A plugin subclasses `OperatorSuite` in a test file and names its device. Two sets of cases run: `engine.ops.cases`
against the reference evaluator, and the node cases of the ONNX backend suite against its answers. Cases that the
device's query refuses are skipped; `pytest -rs` summarizes them by operator and cause.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Final, TypeVar

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import numpy_helper

from engine.core import Core
from engine.ir import Model, Output
from engine.ir.element_type import f16
from engine.ops.cases import OperatorCase, all_cases
from engine.ops.cases.undefined import is_undefined
from engine.ops.reference import evaluate
from engine.plugin_api import QueryResult, RefusalCause, SupportLevel
from engine.properties import ANSWERS_UNDEFINED
from engine.runtime.comparison import distances
from engine.testing.conformance.selection import LIMIT
from engine.testing.onnx_suite import CASES as ONNX_CASES
from engine.testing.onnx_suite import EXCEPTIONS, SuiteCase, assert_same, read_case, run_case

_OPERATOR_CASES: Final = tuple(all_cases().values())
_NODE_CASES: Final = sorted(name for name, case in ONNX_CASES.items() if case.kind == "node" and name not in EXCEPTIONS)

_Case = TypeVar("_Case")

_RANDOM: Final = "test_training_dropout"
"""ONNX cases whose answers are those of one generator of random numbers."""
_ROUNDINGS: Final = {"Attention": 3}
"""How many results in a row an operator may round to f16: two products, and the softmax between them."""
_TRANSFORMS: Final = frozenset({"DFT", "STFT"})

_NATIVE: Final = frozenset({SupportLevel.NATIVE})


class OperatorSuite:
    """Set `device` and, if needed, `config`.

    Attributes:
        device: the device string.
        config: the configuration that cases compile with.
        levels: the levels of support at which an ONNX case runs. Cases of `engine.ops.cases` run only with native
            support, since the reference evaluator would be compared with itself.
        is_complete: whether the device runs every ONNX case. Then a refusal fails, instead of skipping the case.
        area, limit: as of the groups of the behaviour suite.
    """

    area: ClassVar[str] = "operators"
    device: ClassVar[str]
    config: ClassVar[Mapping[str, object]] = {}
    levels: ClassVar[frozenset[SupportLevel]] = _NATIVE
    is_complete: ClassVar[bool] = False
    limit: ClassVar[float] = LIMIT

    @pytest.fixture
    def core(self) -> Core:
        """One core for all cases, since its creation discovers devices."""
        return _shared_core()

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Give the checks of this class their cases; subclasses parametrize checks of their own."""
        if metafunc.function is OperatorSuite.test_case:
            metafunc.parametrize("case", _chosen(metafunc, _OPERATOR_CASES), ids=str)
        elif metafunc.function is OperatorSuite.test_onnx_case:
            metafunc.parametrize("name", _chosen(metafunc, _NODE_CASES))

    def test_case(self, core: Core, case: OperatorCase) -> None:
        """Each case equals the reference, with inputs as parameters or, if the device needs it, as constants."""
        if is_undefined(case):
            self._require_answers(core, case.op_type)
        refusal = f"{case.op_type}: its result is known at compile time"
        for as_constants in (False, True):
            model, feeds = case.model(as_constants=as_constants)
            if not feeds:
                continue
            answer = core.query_model(model, self.device, self.config)
            if _takes(answer, _NATIVE):
                self.check_case(core, case, model, feeds)
                return
            if not as_constants:
                refusal = self._why(answer, model, case.op_type, _NATIVE)
                if _is_final(answer):
                    break
        pytest.skip(refusal)

    def test_onnx_case(self, core: Core, name: str) -> None:
        """Each node case of the ONNX backend suite gives the suite's answers."""
        if name.startswith(_RANDOM):
            self._require_answers(core, "Dropout")
        refusal = ""
        for case in (ONNX_CASES[name], with_constants(ONNX_CASES[name])):
            if case is None:
                continue
            model = read_case(core, case)
            answer = core.query_model(model, self.device, self.config)
            if self.is_complete or _takes(answer, self.levels):
                for got, expected in run_case(core, case, self.device, self.config):
                    assert_same(got, expected, with_roundings(case, expected))
                return
            if not refusal:
                refusal = self._why(answer, model, name, self.levels)
                if _is_final(answer):
                    break
        pytest.skip(refusal)

    def check_case(self, core: Core, case: OperatorCase, model: Model, feeds: Mapping[str, NDArray[Any]]) -> None:
        """Compile and run a case, and compare the outputs; subclasses may run it in other ways too."""
        network = core.compile_model(model, self.device, self.config)
        result = network(feeds)
        assert_right(case, [result[index] for index in range(len(model.results))])

    def _require_answers(self, core: Core, op_type: str) -> None:
        if not core.get_property(self.device, ANSWERS_UNDEFINED.name):
            pytest.skip(f"{op_type}: ONNX leaves the result undefined, and {self.device} has an answer of its own")

    def _why(self, answer: QueryResult, model: Model, name: str, levels: frozenset[SupportLevel]) -> str:
        ops = {node.friendly_name: node.op_type for node in model.ordered_nodes() if node.op_type != "Result"}
        for friendly_name, support in answer.nodes.items():
            if support.level not in levels:
                return f"{ops[friendly_name]}: {support.level.value} on {self.device}: {support.cause}"
        return f"{name}: its result is known at compile time"


def _chosen(metafunc: pytest.Metafunc, cases: Sequence[_Case]) -> Sequence[_Case]:
    """The cases that the option -k can choose, one at least: making tests of all takes longer than running a few.

    -k looks for its words in the names of a test and its parents. With `not` among them, all cases are returned.
    """
    words = {*re.split(r"[\s()]+", metafunc.config.getoption("keyword").lower())} - {"and", "or", ""}
    test = metafunc.definition
    names = [*(node.name for node in test.listchain()), *test.listextrakeywords(), *vars(metafunc.function)]
    names += [mark.name for mark in test.iter_markers()]
    if not words or "not" in words or any(word in name.lower() for word in words for name in names):
        return cases
    return [case for case in cases if any(word in f"{test.name}[{case}]".lower() for word in words)] or cases[:1]


@functools.cache
def _shared_core() -> Core:
    return Core()


def _takes(answer: QueryResult, levels: frozenset[SupportLevel]) -> bool:
    """Whether there is an operation, and the device runs every one at one of these levels."""
    found = {support.level for support in answer.nodes.values()}
    return bool(found) and found <= levels


def _is_final(answer: QueryResult) -> bool:
    """Whether constants in place of inputs would not help, since the device lacks the only operator."""
    refused = answer.at(SupportLevel.REFUSED).values()
    return len(answer.nodes) == 1 and any(support.cause == RefusalCause.OP for support in refused)


def assert_right(case: OperatorCase, results: Sequence[Any]) -> None:
    """Fail unless the outputs equal the reference evaluator's, within the case's tolerance."""
    node, _ = case.node()
    expected = evaluate(node, case.arrays())
    for output, got, want in zip(node.outputs, results, expected, strict=True):
        _assert_close(case, output, np.asarray(got), np.asarray(want))


def _assert_close(case: OperatorCase, output: Output, got: NDArray[Any], want: NDArray[Any]) -> None:
    where = f"{case}, output {output.index}"
    assert got.dtype == want.dtype, f"{where} is {got.dtype}, expected {want.dtype}"
    assert got.shape == want.shape, f"{where} has shape {got.shape}, expected {want.shape}"
    if not output.element_type.is_real:
        wrong = np.flatnonzero(distances(got, want).distance > case.steps if case.steps else got != want)
        assert not len(wrong), f"{where}: {len(wrong)} of {want.size} differ; {_first(got, want, wrong)}"
        return
    found = distances(got, want)
    largest = float(found.magnitude[np.isfinite(found.magnitude)].max(initial=0.0))
    relative, absolute = case.tolerance(output.element_type, largest)
    is_close = found.is_finite & (found.distance <= absolute + relative * found.magnitude)
    wrong = np.flatnonzero(~(found.is_same | is_close))
    assert not len(wrong), (
        f"{where}: {len(wrong)} of {want.size} differ by more than {absolute:.3g} + {relative:.3g} * |expected|; "
        f"{_first(got, want, wrong)}"
    )


def _first(got: NDArray[Any], want: NDArray[Any], wrong: NDArray[Any]) -> str:
    at = int(wrong[0]) if len(wrong) else 0
    return f"the first at {np.unravel_index(at, want.shape)}: got {got.flat[at]!r}, expected {want.flat[at]!r}"


def with_constants(case: SuiteCase) -> SuiteCase | None:
    """An ONNX case with all inputs but the first as constants; None if that is not possible."""
    assert case.data_sets is not None
    assert case.model is not None
    inputs, outputs = case.data_sets[0]
    others = list(zip(case.model.graph.input, inputs, strict=False))[1:]
    if len(case.data_sets) > 1 or not others or not all(isinstance(v, (np.ndarray, np.generic)) for _, v in others):
        return None
    model = onnx.ModelProto()
    model.CopyFrom(case.model)
    for info, value in others:
        model.graph.initializer.append(numpy_helper.from_array(np.asarray(value), info.name))
    del model.graph.input[1:]
    return replace(case, model=model, data_sets=[(inputs[:1], outputs)])


def with_roundings(case: SuiteCase, expected: Sequence[Any] = ()) -> SuiteCase:
    """An ONNX case with a tolerance for f16, where each operation may round differently, and for sums that cancel."""
    assert case.model is not None
    graph = case.model.graph
    if any(node.op_type in _TRANSFORMS for node in graph.node):
        # The error of a sum of n terms, none of which is larger than the largest result; a result may be a small rest.
        real = [value for value in expected if isinstance(value, np.ndarray) and value.dtype == np.float32]
        terms = max((dim.dim_value for value in graph.input for dim in value.type.tensor_type.shape.dim), default=1)
        largest = max((float(np.abs(value).max(initial=0.0)) for value in real), default=0.0)
        return replace(case, atol=max(case.atol, 2 * terms * float(np.finfo(np.float32).eps) * largest))
    if all(output.type.tensor_type.elem_type != f16.onnx for output in graph.output):
        return case
    roundings = sum(_ROUNDINGS.get(node.op_type, 1) for node in graph.node)
    return replace(case, rtol=max(case.rtol, 2 * roundings * 2.0**-11))
