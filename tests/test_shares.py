"""The shares of conftest.py are of tests that exist: if this fails, tests run by default that others repeat."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent


@pytest.fixture
def conftest(pytestconfig: pytest.Config) -> Any:
    return pytestconfig.pluginmanager.get_plugin(str(ROOT / "conftest.py"))


def test_every_share_is_of_tests_that_exist(conftest: Any) -> None:
    assert [path for path in (*conftest.SUITES, *conftest.CASES) if not (ROOT / path).exists()] == []


class Item:
    def __init__(self, nodeid: str) -> None:
        self.nodeid = nodeid
        self.markers: list[str] = []

    def get_closest_marker(self, name: str) -> str | None:
        return name if name in self.markers else None

    def add_marker(self, name: str) -> None:
        self.markers.append(name)


def default(conftest: Any, *nodeids: str) -> list[str]:
    """Those that are not repeated."""
    items = [Item(nodeid) for nodeid in nodeids]
    conftest.pytest_collection_modifyitems(items)
    return [item.nodeid for item in items if "repeated" not in item.markers]


def test_each_test_keeps_one_case_in_so_many_and_at_least_one(conftest: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conftest, "SUITES", {"t/test_suite.py": 4})
    monkeypatch.setattr(conftest, "CASES", {"t": 3, "t/test_all.py": 1})
    for count in range(1, 10):
        cases = [f"t/test_a.py::test[{index}]" for index in range(count)]
        assert len(default(conftest, *cases)) in (max(count // 3, 1), -(-count // 3))
    others = ["t/test_all.py::test[0]", "t/test_all.py::test[1]", "u/test_b.py::test[0]", "u/test_b.py::test[1]"]
    assert default(conftest, *others) == others
    suite = [f"t/test_suite.py::TestA::test_{index}" for index in range(12)]
    assert len(default(conftest, *suite)) == 3
    assert default(conftest, suite[5]) == [suite[5]]
