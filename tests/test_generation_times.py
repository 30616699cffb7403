"""Times of a language model are medians of what was timed, without the first run; if not, they mislead a choice."""

from __future__ import annotations

from itertools import accumulate, chain, count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from engine import Core
from engine.errors import InputError
from engine.generation import Generator, measure_generation, measurement
from engine.passes import MakeStateful

LLAMA = Path(__file__).parent / "fixtures" / "decoders" / "llama.dynamo23.onnx"


@pytest.fixture(scope="module")
def llama() -> Any:
    core = Core()
    model = core.read_model(LLAMA)
    MakeStateful().run_on_model(model)
    return core.compile_model(model, "CPU")


def test_medians_of_the_rounds_after_the_first(llama: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a clock that makes the n-th of all tokens take n seconds, and nothing else any time."""
    ticks = accumulate(chain.from_iterable((0.0, float(n)) for n in count(1)))
    monkeypatch.setattr(measurement, "time", SimpleNamespace(perf_counter=lambda: next(ticks)))
    short, long = measure_generation(llama, contexts=(4, 7), tokens=3, rounds=3)
    # Of 12 tokens after each prompt, the first 3 do not count; the first tokens are 4, 7, 10 and 16, 19, 22.
    assert (short.context, short.first, short.each) == (4, 7.0, 8.5)
    assert (long.context, long.first, long.each) == (7, 19.0, 20.5)
    for times in (short, long):
        generator = Generator(llama)
        generator.generate(list(range(times.context)), 3)
        states = generator.request.query_state().values()
        assert times.state_bytes == sum(state.nbytes for state in states) > 0
    assert long.state_bytes > short.state_bytes


@pytest.mark.parametrize(
    ("contexts", "tokens", "rounds"),
    [
        ((0,), 2, 1), ((4, 0), 2, 1), ((4,), 1, 1), ((4,), 2, 0), ((True,), 2, 1), ((4,), 2, True), ((4,), 2.5, 1),
        ((float("nan"),), 2, 1),
    ],
)  # fmt: skip
def test_what_cannot_be_measured_is_refused(llama: Any, contexts: Any, tokens: Any, rounds: Any) -> None:
    with pytest.raises(InputError, match="expected prompts and rounds of 1 or more, and 2 tokens or more"):
        measure_generation(llama, contexts, tokens, rounds)


def test_the_least_that_can_be_measured(llama: Any) -> None:
    (times,) = measure_generation(llama, (1,), tokens=2, rounds=1)
    assert times.context == 1
    assert min(times.first, times.each) > 0
    assert measure_generation(llama, ()) == []


def test_each_run_starts_from_an_empty_sequence() -> None:
    """Otherwise, the second round would exceed the room for tokens, which is enough for one run only."""
    core = Core()
    model = core.read_model(LLAMA)
    MakeStateful(bound=8).run_on_model(model)
    assert measure_generation(core.compile_model(model, "CPU"), (4,), tokens=4, rounds=3)
