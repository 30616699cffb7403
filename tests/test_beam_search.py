"""Beam search: its sequences are those of a search that computes every sequence from its beginning."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine import Core
from engine.errors import InputError
from engine.generation import BeamSearch, Generator, Hypothesis, Sampling
from engine.passes import MakeStateful

DECODERS = Path(__file__).parent / "fixtures" / "decoders"
PROMPTS = [[3, 14, 15, 9], [2, 6]]
STOP = 11


def network(name: str = "llama.dynamo23", device: str = "CPU", **config: str) -> Any:
    core = Core()
    model = core.read_model(DECODERS / f"{name}.onnx")
    MakeStateful().run_on_model(model)
    return core.compile_model(model, device, config)


@pytest.fixture(scope="module")
def llama() -> Any:
    return network()


def searched(compiled: Any, prompt: list[int], options: BeamSearch, count: int) -> list[Hypothesis]:
    """The search without a cache that is reordered, and without a bound on the candidates of a step."""
    open_ones, found = [(0.0, list[int]())], list[Hypothesis]()
    for length in range(1, count + 1):
        candidates = []
        for total, tokens in open_ones:
            generator = Generator(compiled)
            generator.append([*prompt, *tokens])
            logits = generator.logits()[0].astype(np.float64)
            scores = logits - np.logaddexp.reduce(logits)
            candidates += [(total + score, [*tokens, token]) for token, score in enumerate(scores)]
        candidates.sort(key=lambda each: -each[0])
        ends = lambda tokens: tokens[-1] == STOP or len(tokens) == count  # noqa: E731
        found += [
            Hypothesis(tokens, total / length**options.length_penalty)
            for total, tokens in candidates[: options.beams]
            if ends(tokens)
        ]
        found = sorted(found, key=lambda each: -each.score)[: options.beams]
        open_ones = [each for each in candidates if not ends(each[1])][: options.beams]
        if len(found) == options.beams:
            longest = count if options.early_stopping == "never" and options.length_penalty > 0 else length
            if options.early_stopping is True or not open_ones:
                break
            if open_ones[0][0] / longest**options.length_penalty <= found[-1].score:
                break
    return found


@pytest.mark.parametrize(
    "options",
    [
        BeamSearch(1),
        BeamSearch(3),
        BeamSearch(4, 2.0),
        BeamSearch(3, -0.5, early_stopping=True),
        BeamSearch(3, 1.5, early_stopping="never"),
    ],
)
def test_the_search_of_sequences_without_a_cache(llama: Any, options: BeamSearch) -> None:
    expected = [searched(llama, prompt, options, 7) for prompt in PROMPTS]
    generator = Generator(llama, stop_tokens=[STOP])
    generator.append(PROMPTS)
    found = options.search(generator, 7)
    assert [[each.tokens for each in row] for row in found] == [[each.tokens for each in row] for row in expected]
    for row, wanted in zip(found, expected, strict=True):
        np.testing.assert_allclose([each.score for each in row], [each.score for each in wanted], rtol=1e-4)
    assert generator.tokens == PROMPTS
    generator.reset()
    count = min(2, options.beams)
    flat = [each.tokens for row in expected for each in row[:count]]
    assert generator.generate(PROMPTS, 7, beams=options, n=count) == flat
    generator.append([[expected[0][0].tokens[0]], [5]])  # the prompts go on
    assert generator.step() == [_next(llama, [*PROMPTS[0], expected[0][0].tokens[0]]), _next(llama, [*PROMPTS[1], 5])]


def _next(compiled: Any, tokens: list[int]) -> int:
    return Generator(compiled).generate(tokens, 1)[0][0]


def test_one_beam_is_the_likeliest_token(llama: Any) -> None:
    expected = Generator(llama, stop_tokens=[STOP]).generate(PROMPTS[0], 9)
    assert Generator(llama, stop_tokens=[STOP]).generate(PROMPTS[0], 9, beams=BeamSearch(1)) == expected


def test_forbidden_tokens_and_penalties(llama: Any) -> None:
    """Fewer sequences than beams remain open if few tokens are allowed."""
    allowed = [5, 8, STOP]
    bias = {token: -np.inf for token in range(32) if token not in allowed}
    generator = Generator(llama, Sampling(logit_bias=bias), stop_tokens=[STOP])
    generator.append(PROMPTS[0])
    found = BeamSearch(8).search(generator, 3)[0]
    assert len(found) == 8
    assert {token for each in found for token in each.tokens} <= set(allowed)
    assert len({tuple(each.tokens) for each in found}) == 8
    one = Generator(llama, Sampling(logit_bias={token: -np.inf for token in range(32) if token != 5}))
    one.append(PROMPTS[0])
    assert [each.tokens for each in BeamSearch(3).search(one, 4)[0]] == [[5, 5, 5, 5]]


@pytest.mark.parametrize("precision", ["bf16", "int8"])
def test_rows_of_rounded_caches_are_moved_as_they_are(precision: str) -> None:
    compiled = network(KV_CACHE_PRECISION=precision)
    request = compiled.create_infer_request()
    generator = Generator(compiled)
    generator.generate(PROMPTS[:1] * 2, 3)
    request = generator.request
    before = {name: state.get() for name, state in request.query_state().items()}
    for order in ([1, 0, 0], [2, 1, 0]) * 4:
        request.reorder(order)
    for name, state in request.query_state().items():
        assert all(any(np.array_equal(row, old) for old in before[name]) for row in state.get())


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: BeamSearch(0), "beams is 0; expected a number from 1"),
        (lambda: BeamSearch(True), "beams is True"),
        (lambda: BeamSearch(1 << 40), "beams is 1099511627776"),
        (lambda: BeamSearch(length_penalty=float("nan")), "length_penalty is nan; expected a number"),
        (lambda: BeamSearch(length_penalty=1e6), "length_penalty is 1000000.0; expected a number from -16 to 16"),
        (lambda: BeamSearch(length_penalty=10**400), "length_penalty is 1000"),
        (lambda: BeamSearch(early_stopping="always"), "early_stopping is 'always'; expected True, False or \"never\""),
        (lambda: BeamSearch(early_stopping=1), "early_stopping is 1"),
    ],
)
def test_options_that_are_refused(make: Any, said: str) -> None:
    with pytest.raises(InputError, match=said):
        make()


@pytest.mark.parametrize(("penalty", "most"), [(-16, 10**400), (16, 12)])
@pytest.mark.parametrize("early_stopping", [False, "never"])
def test_the_largest_penalties_and_lengths(llama: Any, penalty: float, most: int, early_stopping: Any) -> None:
    """Their powers are still numbers, by which sequences can be compared."""
    generator = Generator(llama, stop_tokens=range(20))
    generator.append([3, 14])
    (found,) = BeamSearch(2, length_penalty=penalty, early_stopping=early_stopping).search(generator, most)
    assert len(found) == 2
    assert all(np.isfinite(each.score) and each.score < 0 for each in found)


def test_searches_that_are_refused(llama: Any) -> None:
    with pytest.raises(InputError, match="no new tokens"):
        BeamSearch().search(Generator(llama))
    generator = Generator(llama)
    generator.append(PROMPTS)
    with pytest.raises(InputError, match="beams is 33; the model has 32 tokens"):
        BeamSearch(33).search(generator)
    with pytest.raises(InputError, match="max_tokens is 0"):
        BeamSearch(2).search(generator, 0)
    assert len(generator.step()) == 2
