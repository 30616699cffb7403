"""Times of a language model: to the first token, and for each one after it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from statistics import median

import numpy as np

from engine.errors import InputError
from engine.generation.generator import Generator
from engine.plugin_api import ExecutableNetwork
from engine.startup import dataclass


@dataclass(frozen=True, slots=True)
class GenerationTimes:
    """The times after a prompt of `context` tokens.

    Attributes:
        context: the length of the prompt.
        first: seconds from the prompt to the first token, the median of the rounds.
        each: seconds of each token after it, the median of all.
        state_bytes: the bytes of the variables after the last token.
    """

    context: int
    first: float
    each: float
    state_bytes: int


def measure_generation(
    network: ExecutableNetwork, contexts: Sequence[int] = (32, 512), tokens: int = 32, rounds: int = 3
) -> list[GenerationTimes]:
    """Generate `tokens` tokens after random prompts of these lengths, one sequence at a time.

    Before it counts, each prompt runs once, in which the device prepares itself. Raises `InputError` for numbers below
    1 or a network that is not a language model with variables, and what `Generator.step` raises.
    """
    counts = [*contexts, rounds, tokens]
    if any(isinstance(each, bool) or not isinstance(each, (int, np.integer)) for each in counts) or (
        min(counts) < 1 or tokens < 2
    ):
        raise InputError(
            f"the measurement has prompts of {list(contexts)!r:.80} tokens, {tokens!r:.80} tokens, {rounds!r:.80} "
            "rounds; expected prompts and rounds of 1 or more, and 2 tokens or more"
        )
    generator = Generator(network)
    found = []
    for context in contexts:
        firsts: list[float] = []
        others: list[float] = []
        random = np.random.default_rng(context)
        for index in range(rounds + 1):
            generator.reset()
            generator.append(random.integers(0, generator.vocabulary or 2, context))
            times = [_timed(generator) for _ in range(tokens)]
            if index:
                firsts.append(times[0])
                others += times[1:]
        states = generator.request.query_state().values()
        found.append(GenerationTimes(context, median(firsts), median(others), sum(state.nbytes for state in states)))
    return found


def _timed(generator: Generator) -> float:
    begin = time.perf_counter()
    generator.step()
    return time.perf_counter() - begin
