"""What an operator is stands in its family's file: lists of operators elsewhere drift apart."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from engine import ops

ROOT = Path(__file__).parents[2]
MAX_LISTS = 30
NAMES = {op.name for op in ops.all_ops()}
LISTED = 4
"""Fewer operators in a literal are a choice of the code around it."""
FAMILY = {"specifies", "infers", "evaluates", "evaluates_with_spec", "compiles", "compares", "declare"}
CASES = ("engine/ops/cases/", "engine/onnx/upgrades/", "engine/testing/")
INDEXES = {
    "engine/ops/families.py": "tests/ops/test_families.py",
    "engine/passes/common/common_optimizations.py": "tests/passes/test_late.py",
    "plugins/cpu/src/engine_cpu/lowering/__init__.py": "plugins/cpu/tests/test_lowering_families.py",
    "plugins/openvino/src/engine_openvino/refusals.py": "plugins/openvino/tests/test_operator_suite.py",
}
"""Tables of what is imported for which operators, or of another runtime's faults, each with the test that compares it
with what it is about.
"""


def literals(tree: ast.Module) -> Iterator[ast.expr]:
    """The sets, lists, tuples and dictionaries that name several operators."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.Set, ast.Tuple, ast.List, ast.Dict)):
            named = node.keys if isinstance(node, ast.Dict) else node.elts
            names = {each.value for each in named if isinstance(each, ast.Constant) and isinstance(each.value, str)}
            if len(names & NAMES) >= LISTED:
                yield node


def is_family(tree: ast.Module) -> bool:
    """Whether a module of `engine/ops` defines operators."""
    calls = (node.func for node in ast.walk(tree) if isinstance(node, ast.Call))
    return any(isinstance(each, ast.Name) and each.id in FAMILY for each in calls)


def is_matcher(path: str, node: ast.expr) -> bool:
    """Whether a literal tells which function of a pass rewrites, or reads, which operator."""
    is_function = (ast.Name, ast.Lambda, ast.Call)
    return (
        path.startswith("engine/passes/")
        and isinstance(node, ast.Dict)
        and all(isinstance(each, is_function) for each in node.values)
    )


def test_few_lists_of_operators_stand_elsewhere() -> None:
    """Declare what they say with the operators (`engine.ops.traits`, `engine.ops.axes`), and ask for it."""
    found = []
    for file in sorted([*ROOT.glob("engine/**/*.py"), *ROOT.glob("plugins/*/src/**/*.py")]):
        path = file.relative_to(ROOT).as_posix()
        tree = ast.parse(file.read_text(encoding="utf-8"))
        if path in INDEXES:
            assert (ROOT / INDEXES[path]).is_file()
            continue
        if path.startswith(CASES) or (path.startswith("engine/ops/") and is_family(tree)):
            continue
        found.extend(f"{path}:{node.lineno}" for node in literals(tree) if not is_matcher(path, node))
    assert len(found) <= MAX_LISTS, "\n".join(found)
    assert found, "the test reads no file"


def test_a_pointwise_operator_is_in_four_files() -> None:
    """As docs/architecture.md says. `Elu` has everything: an attribute, several versions, a use as an activation."""
    vocabulary = "engine/onnx/contrib/"  # what onnxruntime's operators may have as an attribute
    files = [*ROOT.glob("csrc/**/*.*"), *ROOT.glob("engine/**/*.py"), *ROOT.glob("plugins/*/src/**/*.*")]
    named = {
        path
        for file in files
        if file.suffix in {".py", ".def", ".cpp", ".hpp", ".cl"}
        and not (path := file.relative_to(ROOT).as_posix()).startswith((vocabulary, "csrc/tests/"))
        and re.search(r"\bk?Elu\b", file.read_text(encoding="utf-8"))
    }
    assert named == {
        "csrc/pointwise.def",
        "engine/onnx/upgrades/compatible.py",
        "engine/ops/activations.py",
        "engine/ops/cases/elementwise.py",
    }
