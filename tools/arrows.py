#!/usr/bin/env python3
"""Which components may import which: the table that tests/test_layering.py checks and docs/architecture.md shows.

tools/arrows.py             print the table of the page
tools/arrows.py --write     write it into the page
"""

from __future__ import annotations

import functools
import re
import sys
import textwrap
from pathlib import Path
from typing import Final

PAGE: Final = Path(__file__).resolve().parent.parent / "docs" / "architecture.md"
_PLACE: Final = re.compile(r"(?<=<!-- tools/arrows.py --write -->\n).*?(?=<!-- end -->\n)", re.DOTALL)

# A component is a module or a package directly in `engine`; `__init__` is `engine` itself, the public names. An arrow
# also allows the components that its target may import. `native` alone imports the extension `_core`.
ARROWS: Final[dict[str, set[str]]] = {
    "__main__": {"cli"},
    "cli": {
        *("__init__", "core", "editing", "generation", "passes", "preprocessing", "testing", "values"),
        "visualize",
    },
    "values": {"onnx"},
    "session": {"core"},
    "testing": {"__init__", "core", "passes"},
    "__init__": {"core", "include", "preprocessing"},
    "core": {"registry", "onnx", "extensions"},
    "extensions": {"onnx", "ops", "native", "blob", "registry"},
    "registry": {"plugin_api"},
    "include": set(),
    "plugin_api": {"hosting", "placement"},
    "hosting": {"runtime", "properties", "blob"},
    "generation": {"onnx", "plugin_api"},
    "placement": {"drawing", "errors", "files"},
    "drawing": {"startup"},
    "files": {"startup"},
    "runtime": {"ir", "blob", "drawing", "files", "threads"},
    "threads": set(),
    "properties": {"ir", "limits"},
    "blob": {"ir", "files", "threads"},
    "editing": {"passes"},
    "visualize": {"ir", "placement", "drawing", "files"},
    "preprocessing": {"ops"},
    "passes": {"onnx", "ops", "ir", "runtime", "visualize", "files", "threads"},
    "lowering": {"plugin_api", "passes"},
    "onnx": {"ops", "files"},
    "ops": {"ir", "limits"},
    "limits": {"errors", "startup"},
    "native": {"ir", "_core"},
    "ir": {"drawing", "errors"},
    "errors": set(),
    "startup": set(),
}
PLUGIN: Final = {
    *("plugin_api", "lowering", "passes", "onnx", "ops", "ir", "runtime"),
    *("properties", "blob", "native", "errors", "files", "limits", "startup", "threads", "visualize"),
}


# An application imports what it uses, and no other application.
APP: Final = {
    *("__init__", "blob", "cli", "core", "errors", "files", "generation", "ir", "passes", "plugin_api", "properties"),
    *("runtime", "threads"),
}
# The programs of plugins, which run in processes of their own, are applications.
PROGRAMS: Final = {"engine_isolated/program.py"}


def allowed(component: str) -> set[str]:
    """The components that `component` may import: those that its arrows reach, and itself."""
    reached, ahead = {component}, {component}
    while ahead:
        ahead = {target for source in ahead for target in ARROWS.get(source, ())} - reached
        reached |= ahead
    return reached if component == "native" else reached - {"_core"}


def direct(component: str) -> list[str]:
    """The arrows of a component that do not follow from its others, in order."""
    targets = ARROWS[component]
    return sorted(each for each in targets if not any(each in allowed(other) for other in targets - {each}))


def table() -> str:
    """The arrows as text, each component above those that it imports."""
    order = sorted(ARROWS, key=lambda each: (-_height(each), each))
    rows = {each: ", ".join(direct(each)) or "nothing" for each in order}
    rows["plugins/*"] = f"only {', '.join(sorted(PLUGIN))}"
    rows["apps/*"] = f"only {', '.join(sorted(APP))}"
    width = max(map(len, rows))
    lines = []
    for name, targets in rows.items():
        first = f"{name:<{width}} ─▶ "
        lines.append(textwrap.fill(targets, 120, initial_indent=first, subsequent_indent=" " * len(first)))
    return "```text\n" + "\n".join(lines) + "\n```\n"


@functools.cache
def _height(component: str) -> int:
    return 1 + max((_height(each) for each in ARROWS.get(component, ())), default=0)


def page_with_table() -> str:
    """The page with the current table."""
    text, count = _PLACE.subn(lambda _: table(), PAGE.read_text(encoding="utf-8"))
    if count != 1:
        raise SystemExit(f"{PAGE}: expected one place for the table, between two comments; got {count}")
    return text


if __name__ == "__main__":
    if sys.argv[1:] == ["--write"]:
        PAGE.write_text(page_with_table(), encoding="utf-8")
    else:
        print(table(), end="")
