"""Arrays of large outputs are filled again once nobody refers to them: a result that somebody has never changes."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt
import pytest

from engine import Core, ops
from engine.ir import Constant, Model, Parameter, f32

COUNT = (16 << 20) // 4

Array = npt.NDArray[np.float32]
Infer = Callable[[float], Array]


@pytest.fixture(scope="module")
def core() -> Core:
    return Core()


@pytest.fixture
def infer(core: Core) -> Iterator[Infer]:
    """An inference whose output of 16 MiB has the given value everywhere."""
    x = Parameter(f32, (1,))
    network = core.compile_model(Model([ops.Expand(x, Constant(np.array([COUNT])))], [x]), "CPU")
    request = network.create_infer_request()

    def run(value: float) -> Array:
        (result,) = request.infer([np.full(1, value, np.float32)]).values()
        return result

    yield run
    network.release_memory()


def is_all(array: Array, value: float) -> bool:
    return bool((array == value).all())


def test_what_refers_to_a_result_keeps_it(infer: Infer) -> None:
    keepers: dict[str, Callable[[Array], Array]] = {
        "array": lambda result: result,
        "slice": lambda result: result[COUNT // 2 :],
        "view of a view": lambda result: result.reshape(2, -1).T,
        "buffer": lambda result: np.asarray(memoryview(result)),
        "DLPack": np.from_dlpack,
        "frombuffer": lambda result: np.frombuffer(result, np.float32),
    }
    for name, keep in keepers.items():
        kept = [keep(infer(value)) for value in (1.0, 2.0)]
        for value in (3.0, 4.0, 5.0, 6.0):
            assert is_all(infer(value), value), name
        assert is_all(kept[0], 1.0), name
        assert is_all(kept[1], 2.0), name


def test_few_arrays_serve_all_inferences_until_memory_is_released(core: Core) -> None:
    x = Parameter(f32, (COUNT,))
    network = core.compile_model(Model([ops.Relu(x)], [x]), "CPU")
    request = network.create_infer_request()
    given = np.ones(COUNT, np.float32)
    request.infer([given])
    made = {}
    for _ in range(6):
        before = request.results
        (result,) = request.infer([given]).values()
        made[id(result)] = weakref.ref(result)
    del result, before
    assert len(made) == 2
    assert all(each() is not None for each in made.values())
    network.release_memory()
    assert sum(each() is not None for each in made.values()) == 1  # the request has the last result
    assert is_all(next(iter(request.results.values())), 1.0)


def test_an_array_that_its_user_changed_is_not_filled_again(infer: Infer) -> None:
    def read_only(array: Array) -> None:
        array.setflags(write=False)

    def reshaped(array: Array) -> None:
        array.resize(2, COUNT // 2, refcheck=False)

    for change in (read_only, reshaped):
        change(infer(1.0))
        for value in (2.0, 3.0, 4.0):
            result = infer(value)
            assert result.shape == (COUNT,)
            assert result.flags.writeable
            assert is_all(result, value)


def test_a_request_reads_its_own_result(core: Core) -> None:
    x = Parameter(f32, (COUNT,))
    network = core.compile_model(Model([ops.Add(x, Constant(np.float32(1)))], [x]), "CPU")
    request = network.create_infer_request()
    value = np.zeros(COUNT, np.float32)
    for _ in range(5):
        (value,) = request.infer([value]).values()
    assert is_all(value, 5.0)
    network.release_memory()
    assert is_all(value, 5.0)
    assert is_all(next(iter(request.results.values())), 5.0)
