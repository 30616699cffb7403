"""A model goes from stage to stage without returning, so that who reads the stages in order knows the way."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

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


@pytest.mark.parametrize("device", ["HETERO:CPU,TEMPLATE", "HETERO:TEMPLATE,CPU"])
def test_a_model_returns_to_few_modules(tool: ModuleType, device: str) -> None:
    visits = tool.compiling_visits(tool.divided_model(device), device)
    entered = list(dict.fromkeys(visit.module.partition(".")[0] for visit in visits))
    assert tuple(stage for stage in entered if stage in STAGES) == STAGES
    returns = [visit for visit in visits if visit.is_return]
    assert len(returns) <= 10, "\n".join(f"{visit.module}: {', '.join(visit.functions)}" for visit in returns)
