"""The cases of the ONNX backend suite, and how to run one on a device.

The first import computes the suite's expected values, which takes 10 seconds or more; the user's cache folder keeps
them for later ones.
"""

from __future__ import annotations

import csv
import pickle
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from importlib import resources
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np
import onnx
from onnx import numpy_helper

from engine.core import Core
from engine.files import CacheFolder, user_cache_folder
from engine.ir import Model, OptionalType, SequenceType, ValueType
from engine.ops import CANONICAL_VERSIONS

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # the suite computes its expected values while it is imported
    from onnx.backend.test.case.test_case import TestCase
    from onnx.backend.test.loader import load_model_tests
    from onnx.backend.test.runner import Runner

SuiteCase: TypeAlias = TestCase


def kept(path: Path, compute: Callable[[], dict[str, SuiteCase]]) -> dict[str, SuiteCase]:
    """The cases in a file; if it is missing or damaged, those that `compute` gives, which are then written to it.

    A pickle is code, so a file that another user can change is not read.
    """
    folder = CacheFolder(path.parent)
    if folder.refusal(path.name) is None:
        with suppress(Exception):  # damage may raise anything
            found: dict[str, SuiteCase] = pickle.loads(path.read_bytes())
            return found
    cases = compute()
    with suppress(OSError), folder.file(path.name) as file:
        pickle.dump(cases, file)
    return cases


def _of_kind(kind: str) -> dict[str, SuiteCase]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return {case.name: case for case in load_model_tests(kind=kind)}


def _cases() -> dict[str, SuiteCase]:
    versions = f"onnx-{onnx.__version__}-numpy-{np.__version__}-{sys.implementation.cache_tag}"
    path = user_cache_folder("engine-testing") / f"{versions}.pickle"
    cases = kept(path, lambda: _of_kind("node"))
    for kind in ("simple", "pytorch-converted", "pytorch-operator", "real"):  # folders of files, nothing to compute
        cases |= _of_kind(kind)
    return {name: case for name, case in cases.items() if not _is_later(case)}


def _is_later(case: SuiteCase) -> bool:
    """Whether a case of a later release than the engine's tests an operator that the canonical opsets do not have."""
    opsets = case.model.opset_import if case.model is not None else ()
    return any(entry.version > CANONICAL_VERSIONS.get(entry.domain, entry.version) for entry in opsets)


CASES: Final = _cases()


def _exceptions() -> dict[str, tuple[str, str]]:
    text = resources.files("engine.testing").joinpath("data", "onnx_exceptions.csv").read_text(encoding="utf-8")
    return {row["name"]: (row["expected"], row["reason"]) for row in csv.DictReader(text.splitlines())}


EXCEPTIONS = _exceptions()
"""The cases that cannot pass on any device: the expectation for each ("fail", or "random" values) and the reason."""
_ONNX = Path(onnx.__file__).parent


def read_case(core: Core, case: SuiteCase) -> Model:
    """The model of a case, in canonical form."""
    return core.read_model(case.model.SerializeToString() if case.model is not None else _path(case))


def run_case(
    core: Core, case: SuiteCase, device: str, config: Mapping[str, object] | None = None
) -> Iterator[tuple[list[Any], list[Any]]]:
    """For each data set, the device's outputs and the expected ones."""
    model = read_case(core, case)
    network = core.compile_model(model, device, config)
    parameters = [parameter.type for parameter in model.parameters]
    results = [result.type for result in model.results]
    names = [parameter.friendly_name for parameter in model.parameters]
    for inputs, expected in _data_sets(case, parameters, results):
        # A request must not write to its inputs.
        for value in inputs:
            if isinstance(value, np.ndarray):
                value.flags.writeable = False
        answer = network(dict(zip(names, inputs, strict=False)))
        yield [answer[index] for index in range(len(expected))], expected


def assert_same(got: Any, expected: Any, case: SuiteCase) -> None:
    """Compare values as the suite does, with the tolerances of the case."""
    if isinstance(expected, (list, tuple)):
        assert isinstance(got, (list, tuple)), f"got {type(got).__name__}, expected a list"
        assert len(got) == len(expected)
        for g, e in zip(got, expected, strict=True):
            assert_same(g, e, case)
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
    """The suite's data for models without data sets: a ramp as input, and the output saved beside the model."""
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
