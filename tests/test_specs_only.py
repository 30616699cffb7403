"""Plugins read what a node's attributes mean from its spec. If this fails, a device has a rule of its own again: of
defaults, of negative axes, of what is allowed."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
OTHERS = frozenset({"candidate", "program", "self", "g", "geometry"})
"""Names of what has `attributes` and is not a node: kernels' candidates and geometries."""
RUNTIMES = ("onnxruntime", "openvino")
"""Plugins that say what a runtime does with an attribute that a file states, such as to ignore it."""


def reads(source: str) -> list[int]:
    """The lines that read a node's attributes."""
    return sorted(_reads(ast.parse(source)))


def _reads(tree: ast.AST) -> Iterator[int]:
    compared: set[ast.AST] = set()  # all attributes together, whatever their names
    for found in ast.walk(tree):
        match found:
            case ast.Call(func=ast.Name(id="attribute") | ast.Attribute(attr="attribute")):
                yield found.lineno
            case ast.Call(func=ast.Attribute(attr="items", value=ast.Attribute(attr="attributes") as whole)):
                compared.add(whole)
            case ast.Attribute(attr="attributes", value=owner) if _name(owner) not in OTHERS and found not in compared:
                yield found.lineno


def _name(owner: ast.expr) -> str:
    match owner:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
    return ""


def test_plugins_read_specs_not_attributes() -> None:
    files = sorted(ROOT.glob("plugins/*/src/**/*.py"))
    files = [each for each in files if each.relative_to(ROOT / "plugins").parts[0] not in RUNTIMES]
    assert len(files) > 100
    found = [f"{file.relative_to(ROOT)}:{line}" for file in files for line in reads(file.read_text("utf-8"))]
    assert not found, f"read the node's spec instead of its attributes by name: {', '.join(found)}"


def test_the_check_finds_reads() -> None:
    assert reads("attribute(node, 'axis')\nops.attribute(node, 'axis')\n") == [1, 2]
    assert reads("node.attributes['axis']\nspec.node.attributes.get('axis')\n'axis' in conv.attributes") == [1, 2, 3]
    assert not reads("sorted(node.attributes.items())\ncandidate.attributes['tile']\nspec.axis\nattributes = {}")
