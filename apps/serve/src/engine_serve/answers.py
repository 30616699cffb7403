"""Answers of several sequences: their pieces as they come, and each as a whole."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field

from engine.generation import TokenLogProbabilities
from engine_serve.generative_model import Piece

Pieces = AsyncGenerator[Piece, None]


@dataclass(slots=True)
class Answer:
    """The pieces of a sequence so far."""

    text: str = ""
    tokens: list[int] = field(default_factory=list)
    logs: list[TokenLogProbabilities] = field(default_factory=list)
    finish_reason: str | None = None

    def add(self, piece: Piece) -> None:
        """Append a piece."""
        self.text += piece.text
        if piece.token is not None:
            self.tokens.append(piece.token)
        if piece.log is not None:
            self.logs.append(piece.log)
        self.finish_reason = piece.finish_reason


async def merged(sequences: Sequence[Pieces]) -> AsyncGenerator[tuple[int, Piece], None]:
    """The pieces of all sequences, each with the index of its sequence, as soon as they come.

    The first error of a sequence is raised, and ends the others, as does closing. A sequence continues when its last
    piece was taken, so that a client that reads slowly does not fill the memory.
    """
    if len(sequences) == 1:
        async with contextlib.aclosing(sequences[0]) as pieces:
            async for piece in pieces:
                yield 0, piece
        return
    taken: asyncio.Queue[tuple[int, Piece] | None] = asyncio.Queue(1)

    async def read(index: int) -> None:
        async with contextlib.aclosing(sequences[index]) as pieces:
            async for piece in pieces:
                await taken.put((index, piece))

    tasks = [asyncio.ensure_future(read(index)) for index in range(len(sequences))]
    try:
        async for found in _until_done(tasks, taken):
            yield found
    finally:
        for task in tasks:
            task.cancel()
        # Waits for their ends, since the places in the batch become free there; their errors are read.
        await asyncio.gather(*tasks, return_exceptions=True)


async def _until_done(
    tasks: Sequence[asyncio.Future[None]], taken: asyncio.Queue[tuple[int, Piece] | None]
) -> AsyncGenerator[tuple[int, Piece], None]:
    """What the tasks put into a queue, until all have ended, or one has failed, whose error is raised."""
    ended = asyncio.gather(*tasks)

    def wake(_: object) -> None:
        if not ended.cancelled():
            ended.exception()  # it is read, because otherwise asyncio logs it if nobody asks any more
        if not taken.full():
            taken.put_nowait(None)

    ended.add_done_callback(wake)
    while True:
        found = await taken.get()
        if found is not None:
            yield found
        if ended.done() and (taken.empty() or ended.exception() is not None):
            ended.result()
            return
