"""The ONNX backend suite on TEMPLATE and CPU, through the public API. If it fails on TEMPLATE, that is no reference any
more; on CPU, a kernel, its lowering, or what runs between them gives users wrong answers.

`exceptions.csv` lists each case that cannot pass on any device, with its reason: `fail` must fail, so that the list
cannot rot; `random` must run and give values of the right shape and type.
"""

from __future__ import annotations

import csv
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from engine import Core, EngineError
from engine.ir import OptionalType, SequenceType, ValueType

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # the suite computes its expected values while it is imported
    from onnx.backend.test.case.test_case import TestCase as SuiteCase
    from onnx.backend.test.loader import load_model_tests
    from onnx.backend.test.runner import Runner

    CASES = {
        case.name: case
        for kind in ("node", "simple", "pytorch-converted", "pytorch-operator", "real")
        for case in load_model_tests(kind=kind)
    }

_HERE = Path(__file__).parent
_ONNX = Path(onnx.__file__).parent
DEVICES = ("TEMPLATE", "CPU")
_NUM_CASES = 2033
_MUST_PASS = 2015


def _exceptions() -> dict[str, tuple[str, str]]:
    with open(_HERE / "exceptions.csv", newline="") as file:
        return {row["name"]: (row["expected"], row["reason"]) for row in csv.DictReader(file)}


EXCEPTIONS = _exceptions()


@pytest.fixture(scope="module")
def core() -> Core:
    return Core()


def test_the_suite_is_whole_and_the_list_is_short() -> None:
    assert len(CASES) == _NUM_CASES
    assert set(EXCEPTIONS) <= set(CASES)
    assert {expected for expected, _ in EXCEPTIONS.values()} <= {"fail", "random"}
    assert all(reason for _, reason in EXCEPTIONS.values())
    assert len(CASES) - len(EXCEPTIONS) >= _MUST_PASS


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", sorted(set(CASES) - set(EXCEPTIONS)))
def test_case(core: Core, name: str, device: str) -> None:
    for got, expected in _run(core, CASES[name], device):
        _assert_same(got, expected, CASES[name])


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", sorted(n for n, (expected, _) in EXCEPTIONS.items() if expected == "fail"))
def test_listed_case_fails(core: Core, name: str, device: str) -> None:
    with pytest.raises((AssertionError, EngineError)):
        test_case(core, name, device)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", sorted(n for n, (expected, _) in EXCEPTIONS.items() if expected == "random"))
def test_random_case_runs(core: Core, name: str, device: str) -> None:
    for got, expected in _run(core, CASES[name], device):
        assert [(g.shape, g.dtype) for g in got] == [(e.shape, e.dtype) for e in expected]
        assert all(np.isin(g, (0, 1)).all() for g in got)


def _run(core: Core, case: SuiteCase, device: str) -> Iterator[tuple[list[Any], list[Any]]]:
    """For each data set, what the device gives and what the suite expects."""
    source = case.model.SerializeToString() if case.model is not None else _path(case)
    model = core.read_model(source)
    network = core.compile_model(model, device)
    parameters = [parameter.type for parameter in model.parameters]
    results = [result.type for result in model.results]
    names = [parameter.friendly_name for parameter in model.parameters]
    for inputs, expected in _data_sets(case, parameters, results):
        # What a request is given it must not write.
        for value in inputs:
            if isinstance(value, np.ndarray):
                value.flags.writeable = False
        answer = network(dict(zip(names, inputs, strict=False)))
        yield [answer[index] for index in range(len(expected))], expected


def _assert_same(got: Any, expected: Any, case: SuiteCase) -> None:
    if isinstance(expected, (list, tuple)):
        assert isinstance(got, (list, tuple)), f"got {type(got).__name__}, expected a list"
        assert len(got) == len(expected)
        for g, e in zip(got, expected, strict=True):
            _assert_same(g, e, case)
    elif isinstance(expected, np.ndarray):
        assert isinstance(got, np.ndarray)
        Runner.assert_similar_outputs([expected], [got], rtol=case.rtol, atol=case.atol)
    else:
        assert got == expected


# -- the suite's data: in memory (node), in folders (simple, pytorch), or computed (the light real models) -----


def _path(case: SuiteCase) -> Path:
    return _light_model(case) if case.model_dir is None else Path(case.model_dir) / "model.onnx"


def _light_model(case: SuiteCase) -> Path:
    assert case.url is not None
    return _ONNX.parent / case.url


def _data_sets(
    case: SuiteCase, parameters: list[ValueType], results: list[ValueType]
) -> Iterator[tuple[list[Any], list[Any]]]:
    if case.data_sets is not None:
        for inputs, outputs in case.data_sets:
            yield [_value(v) for v in inputs], [_value(v) for v in outputs]
    elif case.model_dir is None:
        yield _light_data(case, parameters)
    else:
        for folder in sorted(Path(case.model_dir).glob("test_data_set*")):
            yield _load_all(folder, "input", parameters), _load_all(folder, "output", results)


def _light_data(case: SuiteCase, parameters: list[ValueType]) -> tuple[list[Any], list[Any]]:
    """The suite's own data for models without any: a ramp in, and the output saved beside the model."""
    inputs = []
    for value_type in parameters:
        shape = value_type.shape.get_shape()  # type: ignore[union-attr]
        count = int(np.prod(shape))
        inputs.append((np.arange(count).reshape(shape) / count).astype(np.float32))
    path = _light_model(case)
    saved = sorted(path.parent.glob(f"{path.stem}_output_*.pb"))
    return inputs, [numpy_helper.to_array(onnx.TensorProto.FromString(p.read_bytes())) for p in saved]


def _load_all(folder: Path, kind: str, types: list[ValueType]) -> list[Any]:
    paths = [folder / f"{kind}_{index}.pb" for index in range(len(list(folder.glob(f"{kind}_*.pb"))))]
    return [_load(path, value_type) for path, value_type in zip(paths, types, strict=False)]


def _load(path: Path, value_type: ValueType) -> Any:
    data = path.read_bytes()
    if isinstance(value_type, SequenceType):
        return numpy_helper.to_list(onnx.SequenceProto.FromString(data))
    if isinstance(value_type, OptionalType):
        return numpy_helper.to_optional(onnx.OptionalProto.FromString(data))
    return numpy_helper.to_array(onnx.TensorProto.FromString(data))


def _value(value: Any) -> Any:
    if isinstance(value, onnx.TensorProto):
        return numpy_helper.to_array(value)
    if isinstance(value, onnx.SequenceProto):
        return numpy_helper.to_list(value)
    if isinstance(value, onnx.OptionalProto):
        return numpy_helper.to_optional(value)
    if isinstance(value, list):
        return [_value(item) for item in value]
    return value if value is None or isinstance(value, (np.ndarray, dict)) else np.asarray(value)
