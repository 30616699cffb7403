"""Each promise of `docs/security.md` names tests that exist.

If this fails, a promise has lost the test that keeps it, and nobody notices when it is broken.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")
NAMED = re.findall(r"`((?:tests|plugins|apps)/[\w/]+\.py)(?:::(\w+))?`", PAGE)
# Only for tests, and only from a folder that nobody else can change.
PICKLES = {"engine/testing/onnx_suite.py"}


def collected(path: Path) -> dict[str, list[str]]:
    """The functions that pytest collects, with their decorators; of two with one name, it sees the last."""
    body = ast.parse(path.read_text(encoding="utf-8")).body
    functions = [node for node in body if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")]
    return {each.name: [ast.unparse(decorator) for decorator in each.decorator_list] for each in functions}


def test_every_named_test_exists_and_runs() -> None:
    assert len(NAMED) > 40
    for path, name in NAMED:
        assert (ROOT / path).is_file(), path
        found = collected(ROOT / path)
        assert found if not name else name in found, f"{path}::{name}"
        left_out = [mark for mark in found.get(name, []) if re.match(r"pytest\.mark\.(skip\b|xfail|slow)", mark)]
        assert not left_out, f"{path}::{name}: {left_out}"


def test_every_mention_of_a_test_is_found_by_this_file() -> None:
    mentioned = len(re.findall(r"[\w/]+/test_\w+\.py", PAGE))
    assert mentioned == len(NAMED)


def test_every_section_promises_something_that_is_tested() -> None:
    sections = re.split(r"^## ", PAGE, flags=re.MULTILINE)[1:]
    assert [section.partition("\n")[0] for section in sections if "/test_" not in section] == []


def test_nothing_that_is_read_can_be_a_pickle() -> None:
    found = set()
    for folder in ("engine", "plugins", "apps"):
        for path in (ROOT / folder).rglob("*.py"):
            if "tests" in path.parts:
                continue
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
                names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
                if {name.split(".")[0] for name in names} & {"pickle", "marshal", "shelve", "dill", "cloudpickle"}:
                    found.add(path.relative_to(ROOT).as_posix())
                if isinstance(node, ast.keyword) and node.arg == "allow_pickle":
                    assert isinstance(node.value, ast.Constant), path
                    assert node.value.value is False, path
    assert found == PICKLES


def test_the_page_is_linked() -> None:
    for page in ("README.md", "docs/architecture.md"):
        assert "security.md" in (ROOT / page).read_text(encoding="utf-8")


def test_every_promise_names_its_test() -> None:
    """An item of a list is a promise, unless the list is of what is not promised."""
    without = []
    for section in re.split(r"^## ", PAGE, flags=re.MULTILINE)[1:]:
        is_promised = True
        for block in re.split(r"\n\n|\n(?=- )", section):
            if not block.startswith("- "):
                is_promised = not block.startswith("Not promised")
            elif is_promised and "/test_" not in block:
                without.append(block)
    assert without == []
