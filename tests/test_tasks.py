"""`docs/tasks.md`: each task takes no more lines than with the others, and gives what onnxruntime gives."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.snippets import DOCS, Block, blocks
from tests.test_snippets import open_batch

PAGE = DOCS / "tasks.md"


def tasks() -> dict[str, list[Block]]:
    """The blocks of each task: the engine's, then the others'."""
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    heads = {number: line.removeprefix("## ") for number, line in enumerate(lines, 1) if line.startswith("## ")}
    starts = [*heads, len(lines) + 1]
    found = blocks(PAGE)
    return {
        heads[start]: [block for block in found if start < block.line < end]
        for start, end in itertools.pairwise(starts)
    }


def length(block: Block) -> int:
    """The number of statements' lines, imports excepted."""
    return sum(bool(line.strip()) and not line.startswith(("import ", "from ")) for line in block.source.splitlines())


TASKS = tasks()


def test_there_are_fifteen() -> None:
    assert len(TASKS) == 15
    assert all(len(found) == 3 for found in TASKS.values()), {task: len(found) for task, found in TASKS.items()}


@pytest.mark.parametrize("task", TASKS)
def test_no_task_takes_more_lines_than_with_the_others(task: str) -> None:
    ours, *others = TASKS[task]
    for block in TASKS[task]:
        compile(block.source, str(block), "exec")
    assert length(ours) <= min(map(length, others)), (length(ours), [length(other) for other in others])


def test_both_give_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, Any] = {"__name__": "page"}
    open_batch(namespace)
    exec(blocks(PAGE)[0].source, namespace)
    compared = []
    for task, (ours, onnxruntimes, _) in TASKS.items():
        results = []
        for block in (ours, onnxruntimes):
            for name in ("y", "features", "results"):
                namespace.pop(name, None)
            if block.is_run:
                exec(block.source, namespace)
            results.append({name: namespace[name] for name in ("y", "features", "results") if name in namespace})
        for name in results[0].keys() & results[1].keys():
            np.testing.assert_allclose(results[0][name], results[1][name], rtol=1e-5, atol=1e-5, err_msg=task)
            compared.append(task)
    assert len(compared) >= 7, compared
