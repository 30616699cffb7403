"""The ONNX backend suite on TEMPLATE and CPU, through the public API. If it fails on TEMPLATE, the reference is wrong;
on CPU, a kernel, its lowering, or what runs between them gives users wrong answers. Cases of kind `node` are part of
the operator suite, which runs in the tests of each plugin; here are the others.

`EXCEPTIONS` lists each case that cannot pass on any device, with its reason: `fail` must fail, so that the list
cannot rot; `random` must run and give values of the right shape and type.
"""

from __future__ import annotations

import numpy as np
import pytest

from engine import Core, EngineError
from engine.testing.onnx_suite import CASES, EXCEPTIONS, assert_same, run_case
from engine.testing.operators import with_roundings

DEVICES = ("TEMPLATE", "CPU")
_NUM_CASES = 2033
_MUST_PASS = 2015


@pytest.fixture(scope="module")
def core() -> Core:
    return Core()


def test_the_suite_is_whole_and_the_list_is_short() -> None:
    assert len(CASES) == _NUM_CASES
    assert set(EXCEPTIONS) <= set(CASES)
    assert {expected for expected, _ in EXCEPTIONS.values()} <= {"fail", "random"}
    assert all(reason for _, reason in EXCEPTIONS.values())
    assert len(CASES) - len(EXCEPTIONS) >= _MUST_PASS


# Networks all of whose operators occur in others.
_SLOW = {
    f"test_{name}"
    for name in ("bvlc_alexnet", "densenet121", "inception_v1", "inception_v2", "resnet50", "vgg19", "zfnet512")
}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow if name in _SLOW else ())
        for name in sorted(n for n in set(CASES) - set(EXCEPTIONS) if CASES[n].kind != "node")
    ],
)
def test_case(core: Core, device: str, name: str) -> None:
    case = CASES[name]
    if device != "TEMPLATE" and case.model is not None:
        case = with_roundings(case)  # CPU rounds f16 once, the suite after each operation
    for got, expected in run_case(core, case, device):
        assert_same(got, expected, case)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", sorted(n for n, (expected, _) in EXCEPTIONS.items() if expected == "fail"))
def test_listed_case_fails(core: Core, name: str, device: str) -> None:
    with pytest.raises((AssertionError, EngineError)):
        test_case(core, device, name)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", sorted(n for n, (expected, _) in EXCEPTIONS.items() if expected == "random"))
def test_random_case_runs(core: Core, name: str, device: str) -> None:
    for got, expected in run_case(core, CASES[name], device):
        assert [(g.shape, g.dtype) for g in got] == [(e.shape, e.dtype) for e in expected]
        assert all(np.isin(g, (0, 1)).all() for g in got)
