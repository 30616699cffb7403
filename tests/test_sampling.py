"""Candidates, penalties and biases have the meaning that they have in OpenAI's API, transformers and llama.cpp."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine import Core
from engine.errors import InputError, StateError
from engine.generation import Generator, Sampling, Scheduler, TextStream
from engine.passes import MakeStateful

DECODERS = Path(__file__).parent / "fixtures" / "decoders"
NOTHING = np.array([], np.int64)
LOGITS = np.array([1.0, 3.0, 2.0, 3.0, -1.0], np.float32)


@cache
def network(name: str = "llama.dynamo23", device: str = "CPU") -> Any:
    core = Core()
    model = core.read_model(DECODERS / f"{name}.onnx")
    MakeStateful().run_on_model(model)
    return core.compile_model(model, device)


@pytest.fixture
def llama() -> Any:
    return network()


def softmax(scores: Any) -> Any:
    shares = np.exp(scores - np.max(scores))
    return shares / shares.sum()


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.floats(-20, 20, width=32), min_size=1, max_size=20), st.floats(0.1, 5), st.integers(0, 8),
    st.floats(0.1, 1), st.floats(0, 1),
)  # fmt: skip
def test_probabilities_are_those_of_the_definitions(
    logits: list[float], temperature: float, top_k: int, top_p: float, min_p: float
) -> None:
    """A filter after the other, each on probabilities that add up to 1, as in transformers."""
    sampling = Sampling(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    scores = np.array(logits, np.float32).astype(float) / temperature
    order = np.argsort(-scores, kind="stable")
    shares = softmax(scores[order][: top_k or None])
    before = np.cumsum(shares) - shares
    margins = [*np.abs(np.cumsum(shares) - top_p)]
    shares = np.where(before < top_p, shares, 0)
    shares /= shares.sum()
    margins += [*np.abs(shares - min_p * shares.max())[1:]]
    if min(margins, default=1) < 1e-9:  # a candidate by rounding
        return
    shares = np.where(shares >= min_p * shares.max(), shares, 0)
    expected = np.zeros(len(logits))
    expected[order[: len(shares)]] = shares / shares.sum()
    found = sampling.probabilities(np.array(logits, np.float32), NOTHING)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)


def test_probabilities_are_those_with_which_tokens_are_chosen() -> None:
    """4 standard deviations are exceeded once in 16,000."""
    count, seen, generated = 20_000, np.array([1, 1, 4, 2]), np.array([4, 2])
    for sampling in (
        Sampling(temperature=0.7, min_p=0.3),
        Sampling(temperature=1.0, presence_penalty=0.5, frequency_penalty=-0.3, repetition_penalty=1.3),
        Sampling(temperature=1.5, logit_bias={0: 1.0, 1: -np.inf}, top_k=3),
        Sampling(),
    ):
        random = np.random.default_rng(0)
        drawn = np.bincount([sampling.choose(LOGITS, seen, random, generated) for _ in range(count)], minlength=5)
        shares = sampling.probabilities(LOGITS, seen, generated)
        assert (np.abs(drawn - count * shares) <= 4 * np.sqrt(count * shares * (1 - shares)) + 1e-9).all()


def test_penalties_and_biases_have_their_formulas() -> None:
    """Penalties on presence and frequency count generated tokens, the one on repetition all (OpenAI, vLLM)."""
    seen, generated = np.array([3, 0, 0, 2]), np.array([0, 0, 2])
    options: dict[str, Any] = {"presence_penalty": 0.25, "frequency_penalty": 0.5, "repetition_penalty": 2.0}
    sampling = Sampling(temperature=1.0, logit_bias={4: 2.0, 3: -1.0}, **options)
    biased = LOGITS + np.array([0, 0, 0, -1, 2])
    expected = biased / [2, 1, 2, 2, 1] - [0.25 + 2 * 0.5, 0, 0.25 + 0.5, 0, 0]
    np.testing.assert_allclose(sampling.probabilities(LOGITS, seen, generated), softmax(expected), rtol=1e-12)
    without = Sampling(temperature=1.0, presence_penalty=-1.0).probabilities(LOGITS, seen)
    np.testing.assert_allclose(without, softmax(np.add(LOGITS, [1, 0, 1, 1, 0])), rtol=1e-12)


def test_a_bias_forbids_and_forces_tokens() -> None:
    random = np.random.default_rng(0)
    assert Sampling(logit_bias={1: -np.inf}).choose(LOGITS, NOTHING, random) == 3
    assert Sampling(logit_bias={4: 100}).choose(LOGITS, NOTHING, random) == 4
    infinite = np.array([np.inf, 1.0], np.float32)
    assert Sampling(logit_bias={0: -np.inf}).choose(infinite, NOTHING, random) == 1
    assert Sampling(logit_bias={0: -5}).choose(infinite, NOTHING, random) == 0
    with pytest.raises(InputError, match="every logit is NaN or minus infinity"):
        Sampling(logit_bias=dict.fromkeys(range(5), -np.inf)).choose(LOGITS, NOTHING, random)


def test_a_penalty_that_overflows_keeps_tokens_possible() -> None:
    sampling = Sampling(presence_penalty=1e308, frequency_penalty=1e308)
    scores = sampling.probabilities(np.array([1.0, -np.inf], np.float32), np.array([0] * 100))
    np.testing.assert_array_equal(scores, [1, 0])


def test_samplings_can_be_compared_and_hashed() -> None:
    first, second = Sampling(logit_bias={3: 1, 4: 2}), Sampling(logit_bias=((3, 1.0), (4, 2.0)))
    assert first == second
    assert hash(first) == hash(second)
    assert first.logit_bias == ((3, 1.0), (4, 2.0))


@pytest.mark.parametrize(
    "wrong",
    [
        {"min_p": -0.1}, {"min_p": 1.1}, {"min_p": float("nan")}, {"min_p": None}, {"presence_penalty": float("inf")},
        {"presence_penalty": "1"}, {"frequency_penalty": float("nan")}, {"frequency_penalty": 10**400},
        {"min_p": True}, {"temperature": True}, {"top_p": True}, {"repetition_penalty": True}, {"top_k": True},
        {"presence_penalty": False}, {"frequency_penalty": np.True_}, {"seed": True}, {"seed": -1}, {"seed": 1.0},
        {"logit_bias": 3}, {"logit_bias": "ab"}, {"logit_bias": [1, 2]}, {"logit_bias": None},
    ],
)  # fmt: skip
def test_values_that_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=f"^Sampling: {next(iter(wrong))} is .*; expected "):
        Sampling(**wrong)


@pytest.mark.parametrize(
    ("bias", "said"),
    [
        ({-1: 1.0}, "has token -1; expected an integer of 0 or more"),
        ({1.0: 1.0}, "has token 1.0"),
        ({True: 1.0}, "has token True"),
        ({10**5000: 1.0}, "has token an integer of 16610 bits"),
        ({"1": 1.0}, "has token '1'"),
        ({1: float("nan")}, "of token 1 is nan; expected a number, or minus infinity"),
        ({1: float("inf")}, "of token 1 is inf"),
        ({1: None}, "of token 1 is None"),
        ({1: True}, "of token 1 is True"),
        ([(1, 2.0), (1, 3.0)], "has token 1 twice"),
    ],
)
def test_biases_that_are_refused(bias: Any, said: str) -> None:
    with pytest.raises(InputError, match=said):
        Sampling(logit_bias=bias)


def test_a_bias_for_a_token_that_the_model_does_not_have(llama: Any) -> None:
    sampling = Sampling(logit_bias={32: 1.0})
    with pytest.raises(InputError, match="logit_bias has token 32; expected 0 to 31"):
        Generator(llama, sampling)
    with pytest.raises(InputError, match="logit_bias has token 32; expected 0 to 4"):
        sampling.choose(LOGITS, NOTHING, np.random.default_rng(0))


def test_a_generator_counts_the_tokens_that_it_generated(llama: Any) -> None:
    """Not those of the prompt, nor those appended later; a rewound token does not count either."""
    plain = Generator(llama)
    first, second = plain.generate([3, 14, 15, 9], 2)[0]
    penalized = Generator(llama, Sampling(presence_penalty=1000.0))
    assert penalized.generate([3, 14, 15, 9], 1) == [[first]]
    penalized.rewind(1)
    penalized.append([first])
    assert penalized.step() == [second], "an appended token is not a generated one"
    penalized = Generator(llama, Sampling(presence_penalty=1000.0))
    drawn = penalized.generate([first, second], 32)[0]
    assert len(set(drawn)) == 32, "each token once, before any repeats, also those of the prompt"


def test_a_scheduler_chooses_as_a_generator(llama: Any) -> None:
    """Also with penalties that do not count the prompt, for a prompt that has the likeliest tokens."""
    prompt = Generator(llama).generate([3, 14, 15, 9], 4)[0]
    sampling = Sampling(presence_penalty=1000.0, logit_bias={5: -np.inf})
    expected = Generator(llama, sampling).generate(prompt, 12)[0]
    with Scheduler(llama, 2) as scheduler:
        assert scheduler.submit(prompt, 12, sampling=sampling).result() == expected
        with pytest.raises(InputError, match="logit_bias has token 32; expected 0 to 31"):
            scheduler.submit(prompt, sampling=Sampling(logit_bias={32: 1.0}))


# -- several sequences of one prompt ------------------------------------------------------------------------------


@pytest.mark.parametrize("device", ["CPU", "TEMPLATE"])
@pytest.mark.parametrize("name", ["llama.dynamo23", "gpt2.script17", "llama_static.dynamo23", "llama_scatter.dynamo24"])
def test_sequences_of_one_prompt_are_those_of_a_batch(name: str, device: str) -> None:
    """Whose prompt is computed once, also where it has one token, or follows tokens that were computed before."""
    compiled = network(name, device)
    for prompt, further in (([3, 14, 15, 9], [7, 8]), ([5], [6])):
        sampling = Sampling(temperature=1.0, seed=3)
        expected = Generator(compiled, sampling).generate([prompt] * 3, 4)
        assert len({tuple(row) for row in expected}) == 3
        generator = Generator(compiled, sampling)
        assert generator.generate(prompt, 4, n=3) == expected
        assert [row[: len(prompt)] for row in generator.tokens] == [prompt] * 3
        generator = Generator(compiled)
        first = generator.generate(prompt, 2)[0]
        generator.append(further)
        generator.repeat(2)
        generator.append([[1], [2]])
        for last, logits in zip((1, 2), generator.logits(), strict=True):
            whole = Generator(compiled)
            whole.append([*prompt, *first, *further, last])
            np.testing.assert_allclose(logits, whole.logits()[0], rtol=0, atol=1e-5)


def test_the_prompt_of_several_sequences_is_computed_once() -> None:
    """Each new position is computed in one run; the last one of the prompt, in the batch."""
    compiled = network("llama.dynamo23")
    generator = Generator(compiled)
    shapes = []
    original = generator.request.infer

    def infer(inputs: Any) -> Any:
        shapes.append(inputs["input_ids"].shape)
        return original(inputs)

    generator.request.infer = infer  # type: ignore[method-assign]
    generator.generate([3, 14, 15, 9], 3, n=5)
    assert shapes == [(1, 3), (5, 1), (5, 1), (5, 1)]


def test_repetitions_that_are_refused() -> None:
    compiled = network("llama.dynamo23")
    generator = Generator(compiled)
    with pytest.raises(InputError, match="repeat continues one sequence, and there are 0"):
        generator.repeat(2)
    for wrong in (0, True, 1.5):
        with pytest.raises(InputError, match=f"n is {wrong}; expected 1 or more"):
            generator.generate([1], n=wrong)  # type: ignore[arg-type]
    assert generator.tokens == []
    generator.append([[1], [2]])
    with pytest.raises(InputError, match="there are 2"):
        generator.repeat(2)
    assert generator.tokens == [[1], [2]]


def test_sequences_of_a_model_for_one() -> None:
    """The error leaves the one sequence."""
    core = Core()
    model = core.read_model(DECODERS / "llama.script17.onnx")
    shapes = {p.friendly_name: [1, *list(p.output(0).type.shape)[1:]] for p in model.parameters}
    model.reshape(shapes)
    MakeStateful().run_on_model(model)
    compiled = core.compile_model(model, "CPU")
    expected = Generator(compiled).generate([3, 14, 15, 9], 5)
    generator = Generator(compiled)
    generator.append([3, 14, 15, 9])
    with pytest.raises(StateError, match=r"has 3 indices; variable .* has 1 sequences"):
        generator.repeat(3)
    assert generator.tokens == [[3, 14, 15, 9]]
    assert [list(generator.stream(5))] == expected


# -- stop strings -------------------------------------------------------------------------------------------------


class Bytes:
    """A tokenizer with a token for each byte."""

    def encode(self, sequence: str) -> Any:
        raise NotImplementedError

    def decode(self, ids: Any) -> str:
        return bytes(ids).decode("utf-8", "replace")


@settings(max_examples=300, deadline=None)
@given(st.text("ab\N{SNOWMAN}", max_size=30), st.lists(st.text("ab\N{SNOWMAN}", min_size=1, max_size=5), max_size=3))
def test_a_text_ends_before_the_first_stop(text: str, stop: list[str]) -> None:
    """Whole: no piece has a part of the stop, and nothing before it is lost."""
    stream, pieces = TextStream(Bytes(), stop), []
    for token in text.encode():
        pieces.append(stream.add(token))
        shown = "".join(pieces)
        assert text.startswith(shown)
    pieces.append(stream.end())
    ends = [end for end in range(len(text) + 1) if any(each in text[:end] for each in stop)]
    before = text[: ends[0]] if ends else text
    expected = before[: min(before.find(each) for each in stop if each in before)] if ends else text
    assert "".join(pieces) == expected
    assert stream.is_stopped == bool(ends)


def test_text_is_held_only_while_it_may_become_a_stop() -> None:
    stream = TextStream(Bytes(), "</s>")
    assert [stream.add(ord(each)) for each in "a<b</s"] == ["a", "", "<b", "", "", ""]
    assert stream.end() == "</s"
    stream = TextStream(Bytes(), ["</s>", "END"])
    assert [stream.add(ord(each)) for each in "aEND!"] == ["a", "", "", "", ""]
    assert stream.is_stopped
    assert stream.end() == ""


@pytest.mark.parametrize("stop", ["", ["a", ""], [1], [None]], ids=str)
def test_stops_that_are_refused(stop: Any) -> None:
    with pytest.raises(InputError, match=r"stop has .*; expected texts that are not empty"):
        TextStream(Bytes(), stop)
