"""A model goes from stage to stage without returning, so that reading the stages in order is enough to follow it."""

from __future__ import annotations

import ast
import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import engine_hetero
import pytest

ROOT = Path(__file__).parents[3]
STAGES = ("query", "affinity", "division", "parts", "wiring", "network")


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("stages", ROOT / "tools" / "stages.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["stages"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def test_a_stage_knows_nothing_of_later_ones() -> None:
    folder = Path(engine_hetero.__file__).parent
    for number, stage in enumerate(STAGES):
        later = {*STAGES[number + 1 :], "stages", "report", "plugin"}
        for path in (folder / stage).rglob("*.py"):
            found = later & set(own_imports(path))
            assert not found, f"{stage}/{path.name} imports {found}"


def own_imports(path: Path) -> Iterator[str]:
    """The modules and folders of the package that a file imports from."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        names += [each.name for each in node.names] if isinstance(node, ast.Import) else []
        yield from (name.split(".")[1] for name in names if name.startswith("engine_hetero."))


@pytest.mark.parametrize("device", ["HETERO:CPU,TEMPLATE", "HETERO:TEMPLATE,CPU"])
def test_a_model_returns_to_few_modules(tool: ModuleType, device: str) -> None:
    visits = tool.compiling_visits(tool.divided_model(device), device)
    entered = list(dict.fromkeys(visit.module.partition(".")[0] for visit in visits))
    assert tuple(stage for stage in entered if stage in STAGES) == STAGES
    returns = [visit for visit in visits if visit.is_return]
    assert len(returns) <= 10, "\n".join(f"{visit.module}: {', '.join(visit.functions)}" for visit in returns)
