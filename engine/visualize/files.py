"""Writes the picture of a graph to a file: dot, SVG or HTML, by the file's suffix."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from engine.drawing.colouring import colourings
from engine.drawing.graph import Graph
from engine.drawing.graph_dot import to_dot
from engine.drawing.graph_page import to_html
from engine.drawing.graph_svg import to_svg
from engine.drawing.table import printable
from engine.files import write_file

SUFFIXES: Final = (".html", ".svg", ".dot")


def write_graph(
    graph: Graph, path: str | os.PathLike[str], *, colour: str | None = None, sections: Iterable[str] = ()
) -> None:
    """Draw a graph in a file, which is replaced as a whole or not at all.

    `colour` names the meaning of colours, "device", "time", "operator" or "precision"; by default the first of these
    for which there is data. A page can also show the others. `sections` are HTML below the graph of a page.

    Raises `ValueError` for an unknown suffix, and for a colour without data; `OSError` if the file cannot be written.
    """
    suffix = Path(path).suffix
    if suffix not in SUFFIXES:
        listed = ", ".join(SUFFIXES[:-1])
        raise ValueError(f"{os.fspath(path)}: the name of a picture must end with {listed} or {SUFFIXES[-1]}")
    found = {each.name: each for each in colourings(graph)}
    if colour is not None and colour not in found:
        raise ValueError(f"the graph has no {colour} to colour by; it has {', '.join(found)}")
    colouring = found[colour] if colour is not None else next(iter(found.values()))
    if suffix == ".html":
        text = to_html(graph, f"Graph of {printable(graph.name)}", first=colouring.name, sections=sections)
    else:
        text = to_dot(graph, colouring) if suffix == ".dot" else to_svg(graph, colouring)
    # A lone surrogate in a name cannot be encoded; names as they are shown never have one.
    write_file(path, text.encode("utf-8", "backslashreplace"))


def write_unused(graph: Graph, folder: Path, stem: str, suffix: str) -> Path:
    """Draw a graph in a new file of a folder: `stem` with `suffix`, or with `-2`, `-3` and so on if that exists.

    Processes that write to the same folder at the same time get different files. Raises `OSError`.
    """
    number = 1
    while True:
        path = folder / f"{stem}{'' if number == 1 else f'-{number}'}{suffix}"
        try:
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
        except FileExistsError:
            number += 1
            continue
        try:
            write_graph(graph, path)
        except BaseException:
            path.unlink(missing_ok=True)  # the empty file that reserved the name
            raise
        return path
