"""The shares of conftest.py are of tests that exist: if this fails, tests run by default that were meant to be slow."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent


def test_every_share_is_of_tests_that_exist(pytestconfig: pytest.Config) -> None:
    conftest: Any = pytestconfig.pluginmanager.get_plugin(str(ROOT / "conftest.py"))
    for test in conftest.SHARES:
        file, *names = test.split("::")
        text = (ROOT / file).read_text(encoding="utf-8")
        # Methods of suites are inherited.
        assert not names or f"class {names[0]}(" in text or f"def {names[0]}(" in text, test
