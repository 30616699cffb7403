"""`docs/reference/specs.md`, from the registry of specs: `python -m engine.cli.specs_reference` prints it."""

from __future__ import annotations

from collections import defaultdict

import engine.ops  # noqa: F401  (registers the specs)
from engine.ops.registry import INTERNAL_DOMAIN
from engine.ops.spec import spec_classes

_INTRODUCTION = """\
# Specs

The attributes of each operator, typed and complete: defaults are filled in, axes are counted from the front, values
that the operator does not allow are refused. Fields have the names of ONNX's attributes. `ops.spec_of(node)` returns
the spec of a node; [read attributes](../quick-start.md#read-attributes) shows it in use. Operators without attributes
have `OperatorSpec`.
"""


def specs_reference() -> str:
    """Return the reference of all specs of ONNX's operators as Markdown, with directives for mkdocstrings."""
    rows, modules = [], defaultdict(set)
    for operator, cls in sorted(spec_classes().items()):
        if not cls.__module__.startswith("engine.ops.") or operator.startswith(INTERNAL_DOMAIN):
            continue
        place = f"{cls.__module__}.{cls.__name__}"
        rows.append(f"| {operator} | [`{cls.__name__}`](#{place}) |")
        for base in cls.__mro__[:-1]:
            if base.__module__.startswith("engine.ops.") and not base.__name__.startswith("_"):
                modules[base.__module__].add(base.__name__)
    del modules["engine.ops.spec"]
    sections = (_section(module, sorted(modules[module])) for module in sorted(modules))
    return "\n".join([_INTRODUCTION, "| operator | spec |\n|---|---|", *rows, "", *sections])


def _section(module: str, members: list[str]) -> str:
    return (
        f"::: {module}\n    options:\n      members: [{', '.join(members)}]\n"
        '      filters: ["!^_", "!^resolve$"]\n      show_root_full_path: true\n'
    )


if __name__ == "__main__":
    print(specs_reference(), end="")
