"""The weight store. If it fails, a network computes with weights that nobody has packed."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from engine_cpu import weights
from engine_cpu.weights import WeightStore

from engine.errors import OutOfMemoryError
from engine.ir import Constant
from engine.native import Packing, default_isa, pack

FORM = {"n": 48, "k": 24, "transposed": 0}


def matrix(number: int) -> Constant:
    return Constant(np.random.default_rng(number).standard_normal((24, 48)).astype(np.float32))


def requested(store: WeightStore, constant: Constant, key: str) -> np.ndarray:
    return store.get(key, [constant.output(0)], lambda: Packing("pack_gemm_f32", [constant.data], FORM, isa=store.isa))


@pytest.mark.parametrize("limit", [0, 1 << 20], ids=["one by one", "all at once"])
def test_arrays_are_filled_at_the_end(limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights, "_MAX_WAITING", limit)
    store, constants = WeightStore(default_isa()), [matrix(number) for number in range(3)]
    arrays = [requested(store, constant, str(number)) for number, constant in enumerate(constants)]
    store.finish()
    for constant, array in zip(constants, arrays, strict=True):
        np.testing.assert_array_equal(array, pack("pack_gemm_f32", [constant.data], FORM, isa=store.isa))


def test_arrays_that_could_not_be_filled_are_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(packings: Sequence[Packing]) -> None:
        raise OutOfMemoryError("no memory is left")

    store, constant = WeightStore(default_isa()), matrix(0)
    with monkeypatch.context() as patch:
        patch.setattr(weights, "run_packings", fail)
        requested(store, constant, "key")
        with pytest.raises(OutOfMemoryError):
            store.finish()
    again = requested(store, constant, "key")
    store.finish()
    np.testing.assert_array_equal(again, pack("pack_gemm_f32", [constant.data], FORM, isa=store.isa))


def test_weights_that_wait_to_be_packed_are_not_read_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is computed from them in between, such as their sums, does not drop their pages."""
    released: list[Constant] = []
    monkeypatch.setattr(Constant, "release", lambda constant: released.append(constant))
    store, constant, other = WeightStore(default_isa()), matrix(0), matrix(1)
    requested(store, constant, "key")
    store.get("sums", [constant.output(0)], lambda: constant.data.sum(axis=0))
    store.get("others", [other.output(0)], lambda: other.data.sum(axis=0))
    assert released == [other]
    store.finish()
    assert released == [other, constant]
