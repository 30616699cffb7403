"""Terminal output beyond plain text: coloured tables and progress, by `rich` if it is installed.

Pipes, and terminals without `rich`, get the same text without formatting. `rich` is imported when it is first needed,
since it takes a third of the time in which `engine --help` has to start.
"""

from __future__ import annotations

import importlib
import sys
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias

from engine.cli.benchmark.schedule import Progress
from engine.drawing.table import escaped, table

Stream: TypeAlias = Any
DELAY_SECONDS = 1.0
"""Work that is shorter needs no bar."""


def show_table(rows: Sequence[Sequence[object]], header: Sequence[str], right: Collection[int] = ()) -> None:
    """Print a table on standard output, in colours on a terminal."""
    rich = _rich(sys.stdout)
    if rich is None:
        for line in table(rows, header, right):
            print(line)
        return
    console = importlib.import_module("rich.console").Console()
    made = importlib.import_module("rich.table").Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for index, name in enumerate(header):
        made.add_column(name, justify="right" if index in right else "left", no_wrap=True, overflow="ellipsis")
    cell = importlib.import_module("rich.text").Text  # not markup: names of nodes may have brackets
    for row in rows:
        made.add_row(*(cell(escaped(str(each)), style=_STYLES.get(str(each), "")) for each in row))
    console.print(made)


_STYLES = {"faster": "green", "slower": "red", "undecided": "yellow"}


@contextmanager
def progress_bar(delay_seconds: float = 0.0) -> Iterator[Progress]:
    """A progress bar on standard error while it is a terminal and `rich` is installed; otherwise, nothing is shown.

    It is drawn only when progress is reported, between the blocks of a measurement, so that it does not disturb one.
    """
    if _rich(sys.stderr) is None:
        yield lambda _what, _share: None
        return
    module = importlib.import_module("rich.progress")
    console = importlib.import_module("rich.console").Console(stderr=True)
    bar = module.Progress(
        module.TextColumn("{task.description}", markup=False), module.BarColumn(), module.TaskProgressColumn(),
        console=console, transient=True, auto_refresh=False,
    )  # fmt: skip
    begin = time.monotonic() + delay_seconds
    task = bar.add_task("", total=1.0)

    def report(what: str, share: float) -> None:
        if time.monotonic() >= begin:
            bar.start()  # does nothing if it has begun
            bar.update(task, description=escaped(what), completed=share)
            bar.refresh()

    try:
        yield report
    finally:
        bar.stop()


def _rich(stream: Stream) -> Any:
    """The module if the stream is a terminal and it is installed, otherwise None."""
    if stream is None or not stream.isatty():
        return None
    try:
        return importlib.import_module("rich")
    except ImportError:
        return None
