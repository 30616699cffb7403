"""Runs that a network prepares before there are sequences."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TypeAlias

from engine.errors import InputError
from engine.generation.roles import Array
from engine.plugin_api import ExecutableNetwork

Run: TypeAlias = tuple[Mapping[str, Array], int]
"""The inputs of a run, and how many tokens were computed before."""


def prepare_runs(
    network: ExecutableNetwork, tokens: int, runs: Callable[[int], Iterator[Run]], room: int | None = None
) -> None:
    """Have a network prepare runs of so many tokens, before and after as many.

    Of fewer, if its variables or the model, such as its table of positions, have no room for them. Raises `InputError`
    if the model cannot take one.
    """
    if isinstance(tokens, bool) or not isinstance(tokens, int) or tokens < 1:
        raise InputError(f"tokens is {tokens!r}; expected 1 or more")
    bounds = [each for each in (room, *(variable.bound for variable in network.variables)) if each is not None]
    tokens = max(1, min([tokens, *(each // 2 for each in bounds)]))
    while True:
        try:
            for given, past in runs(tokens):
                network.prepare_shapes({name: value.shape for name, value in given.items()}, past)
        except InputError:
            if tokens == 1:
                raise
            tokens //= 2
        else:
            return
