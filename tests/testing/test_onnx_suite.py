"""The computed cases of the ONNX suite are kept between processes.

If this fails, every test run of a plugin starts seconds later, or does not start because of a damaged file.
"""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import numpy as np
import pytest

from engine.testing.onnx_suite import CASES, SuiteCase, kept

NAMES = [name for name, case in CASES.items() if case.kind == "node"][:2]


@pytest.mark.parametrize("content", [None, b"", b"damaged", b"\x80\x05cmissing\nname\n."])
def test_cases_are_computed_once(tmp_path: Path, content: bytes | None) -> None:
    path, calls = tmp_path / "folder" / "cases.pickle", 0
    if content is not None:
        path.parent.mkdir()
        path.write_bytes(content)

    def compute() -> dict[str, SuiteCase]:
        nonlocal calls
        calls += 1
        return {name: CASES[name] for name in NAMES}

    first, second = kept(path, compute), kept(path, compute)
    assert calls == 1
    assert list(first) == list(second) == NAMES
    for name, case in first.items():
        assert case.data_sets is not None
        assert second[name].data_sets is not None
        np.testing.assert_equal(second[name].data_sets, case.data_sets)
        assert second[name].model == case.model


@pytest.mark.skipif(os.name != "posix", reason="needs permissions of POSIX")
def test_a_file_that_another_user_can_change_is_not_read(tmp_path: Path) -> None:
    """It is a pickle, which runs what its author wants."""
    path = tmp_path / "cases.pickle"
    path.write_bytes(pickle.dumps({"theirs": None}))
    path.chmod(0o644)
    assert list(kept(path, dict)) == ["theirs"]
    path.chmod(0o646)
    assert kept(path, dict) == {}


def test_a_folder_that_cannot_be_written_is_no_obstacle(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert kept(tmp_path / "file" / "cases.pickle", dict) == {}
