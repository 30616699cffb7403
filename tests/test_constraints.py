"""Tokens that may follow, and their probabilities. If this fails, structured output has another structure."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine import Core
from engine.errors import DeviceError, InputError
from engine.generation import Generator, PromptLookup, Sampling, Scheduler, TokenLogProbabilities
from engine.generation.log_probabilities import log_probabilities
from engine.passes import MakeStateful

DECODER = Path(__file__).parent / "fixtures" / "decoders" / "llama.dynamo23.onnx"


class Only:
    """Allows the tokens of one set at even places and of another at odd ones, and completes with `end`."""

    def __init__(self, even: list[int], odd: list[int], end: int = -1) -> None:
        self.sets, self.end, self.count = (even, odd), end, 0

    def allowed(self, logits: Any) -> Any:
        found = np.full_like(logits, -np.inf)
        tokens = self.sets[self.count % 2]
        found[tokens] = logits[tokens]
        return found

    def add(self, token: int) -> bool:
        self.count += 1
        return token == self.end


@pytest.fixture(scope="module")
def llama() -> Any:
    core = Core()
    model = core.read_model(DECODER)
    MakeStateful().run_on_model(model)
    return core.compile_model(model, "CPU")


def step_by_step(llama: Any, prompt: list[int], count: int, constraint: Only | None = None) -> tuple[list[int], Any]:
    """The likeliest tokens, and the logits before each."""
    generator, tokens, seen = Generator(llama), [], []
    generator.append(prompt)
    for _ in range(count):
        seen.append(generator.logits()[0])
        tokens.append(int((seen[-1] if constraint is None else constraint.allowed(seen[-1])).argmax()))
        if constraint is not None:
            constraint.add(tokens[-1])
        generator.append(tokens[-1:])
    return tokens, seen


@pytest.mark.parametrize("sampling", [None, Sampling(temperature=2.0, seed=3)])
def test_a_constraint_is_of_one_sequence(llama: Any, sampling: Sampling | None) -> None:
    plain = Generator(llama, sampling).generate([2, 5], 9)[0]
    with Scheduler(llama, 4) as scheduler:
        first = scheduler.submit([2, 5], 9, sampling=sampling, constraint=Only([1, 4, 6], [9, 11]))
        other = scheduler.submit([2, 5], 9, sampling=sampling)
        found = first.result()
        assert other.result() == plain != found
    assert {*found[::2]} <= {1, 4, 6}
    assert {*found[1::2]} <= {9, 11}
    if sampling is None:
        assert found == step_by_step(llama, [2, 5], 9, Only([1, 4, 6], [9, 11]))[0]


def test_a_complete_sequence_ends(llama: Any) -> None:
    with Scheduler(llama, 4) as scheduler:
        for options, count, expected, is_stopped in (
            ({"constraint": Only([1], [9], end=9)}, 9, [1, 9], True),
            ({"constraint": Only([1], [9], end=9)}, 2, [1, 9], True),
            ({"constraint": Only([1], [9], end=1)}, 9, [1], True),
            ({"constraint": Only([1], [9])}, 3, [1, 9, 1], False),
            ({"constraint": Only([1], [9]), "stop_tokens": [9]}, 3, [1, 9], True),
        ):
            stream = scheduler.submit([2, 5], count, **options)
            assert (stream.result(), stream.is_stopped) == (expected, is_stopped)


def test_an_error_of_a_constraint_ends_its_sequence_only(llama: Any) -> None:
    class Failing(Only):
        def add(self, token: int) -> bool:
            raise ZeroDivisionError

    class Refusing(Only):
        def allowed(self, logits: Any) -> Any:
            if self.count == 3:
                raise InputError("the grammar is too complex")
            return super().allowed(logits)

    with Scheduler(llama, 4) as scheduler:
        other = scheduler.submit([2, 5], 30)
        with pytest.raises(InputError, match="too complex"):
            scheduler.submit([2, 5], 9, constraint=Refusing([1], [9])).result()
        with pytest.raises(DeviceError, match="ZeroDivisionError"):
            scheduler.submit([2, 5], 9, constraint=Failing([1], [9])).result()
        with pytest.raises(InputError, match="no token can be chosen"):
            scheduler.submit([2, 5], 9, constraint=Only([1], [])).result()
        assert other.result() == Generator(llama).generate([2, 5], 30)[0]


def test_log_probabilities_are_those_of_the_model(llama: Any) -> None:
    """Before penalties, biases and constraints, so that they say what the model knows."""
    constraint, changed = Only([1, 4], [9, 11]), Sampling(presence_penalty=2.0, logit_bias={4: 9.0})
    with Scheduler(llama, 4) as scheduler:
        plain = scheduler.submit([2, 5], 6, log_probabilities=3)
        bound = scheduler.submit([2, 5], 6, sampling=changed, constraint=constraint, log_probabilities=0)
        without = scheduler.submit([2, 5], 6)
        tokens = [each.result() for each in (plain, bound, without)]
    assert without.log_probabilities == []
    for stream, chosen in zip((plain, bound), tokens, strict=False):
        generator = Generator(llama)
        generator.append([2, 5])
        assert len(stream.log_probabilities) == len(chosen)
        for token, found in zip(chosen, stream.log_probabilities, strict=True):
            logits = generator.logits()[0].astype(np.float64)
            expected = logits - np.logaddexp.reduce(logits)
            # Both sums run over 32 float32 logits that a batch may have rounded in another order.
            assert found.chosen == pytest.approx(expected[token], abs=1e-4)
            best = np.argsort(-expected, kind="stable")[: len(found.top)]
            assert [each for each, _ in found.top] == best.tolist()
            assert [each for _, each in found.top] == pytest.approx(expected[best], abs=1e-4)
            generator.append([token])
    assert {len(each.top) for each in plain.log_probabilities} == {3}
    assert {len(each.top) for each in bound.log_probabilities} == {0}


def test_log_probabilities_of_odd_logits() -> None:
    inf, nan = np.inf, np.nan
    found = log_probabilities(np.array([nan, 1.0, 1.0, -inf], np.float32), 2, 9)
    assert found.chosen == pytest.approx(-np.log(2))
    assert [token for token, _ in found.top] == [1, 2, 0, 3]
    assert [each for _, each in found.top[2:]] == [-inf, -inf]
    assert log_probabilities(np.array([inf, 3.0, inf]), 0, 1).top == ((0, pytest.approx(-np.log(2))),)
    assert log_probabilities(np.array([1e308, -1e308]), 1, 0).chosen == -inf
    assert log_probabilities(np.array([5.0], np.float16), 0, 2).top == ((0, 0.0),)


@pytest.mark.parametrize("count", [True, -1, 1.5, "3"])
def test_counts_that_are_none(llama: Any, count: Any) -> None:
    with Scheduler(llama) as scheduler, pytest.raises(InputError, match="log_probabilities is"):
        scheduler.submit([1], 1, log_probabilities=count)


def test_proposals_leave_constraints_and_log_probabilities_as_they_are(llama: Any) -> None:
    def run(draft: PromptLookup | None) -> list[tuple[list[int], list[TokenLogProbabilities]]]:
        with Scheduler(llama, 2, draft=draft) as scheduler:
            streams = [
                scheduler.submit([7, 7, 7], 12, log_probabilities=2),
                scheduler.submit([2, 5, 2, 5], 9, constraint=Only([1, 4, 6], [9, 11]), log_probabilities=1),
            ]
            found = [(stream.result(), stream.log_probabilities) for stream in streams]
            if draft is not None:
                assert streams[0].proposed > 0
                assert streams[1].proposed == 0, "a constraint takes note of one token after another"
        return found

    for (tokens, likely), (expected, likely_then) in zip(
        run(PromptLookup(shortest=1, cost=0.02)), run(None), strict=True
    ):
        assert tokens == expected
        assert len(likely) == len(tokens)
        for one, then in zip(likely, likely_then, strict=True):
            np.testing.assert_allclose(one.chosen, then.chosen, rtol=0, atol=1e-4)


class Gives(Only):
    """Gives these logits, whatever the model's are."""

    def __init__(self, given: Any) -> None:
        super().__init__([], [])
        self.given = given

    def allowed(self, logits: Any) -> Any:
        return self.given


@pytest.mark.parametrize("given", [np.zeros(3, np.float32), np.zeros(99, np.float32), None, "x", np.zeros((1, 32))])
def test_logits_of_other_tokens_end_the_sequence_only(llama: Any, given: Any) -> None:
    """A token of a shorter vector would be one that the constraint has not meant."""
    with Scheduler(llama, 2) as scheduler:
        other, wrong = scheduler.submit([2, 5], 6), scheduler.submit([2, 5], 6, constraint=Gives(given))
        with pytest.raises(InputError, match=r"the constraint gives .*; expected the logits of 32 tokens"):
            wrong.result()
        assert other.result() == Generator(llama).generate([2, 5], 6)[0]


def test_what_is_no_constraint_is_refused(llama: Any) -> None:
    with Scheduler(llama) as scheduler, pytest.raises(InputError, match="constraint is 'even'; expected a Constraint"):
        scheduler.submit([2], constraint="even")  # type: ignore[arg-type]
