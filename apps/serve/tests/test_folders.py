"""The folders that the repository finds. If this fails, one folder that cannot be read stops the whole server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from engine_serve.folders import list_names, read_folder
from engine_serve.loading import file_identity

from engine.errors import RepositoryError


def test_a_folder_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The model is listed, and loading it raises the error that says what is wrong."""
    for name in ("closed", "good"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "model.onnx").touch()
    examine = Path.is_dir

    def is_dir(path: Path, **options: Any) -> bool:
        if path.name == "closed":
            raise PermissionError(13, "Permission denied", str(path))
        return examine(path, **options)

    monkeypatch.setattr(Path, "is_dir", is_dir)
    assert list_names(tmp_path) == ["closed", "good"]
    with pytest.raises(RepositoryError, match=r"closed cannot be read: .*Permission denied"):
        read_folder(tmp_path, "closed")
    assert list(read_folder(tmp_path, "good").files) == [1]


def test_external_data_in_a_folder_of_its_own(tmp_path: Path) -> None:
    """A model whose weights were replaced is loaded again."""
    weights = tmp_path / "weights" / "0.bin"
    weights.parent.mkdir()
    weights.write_bytes(b"1")
    (tmp_path / "model.onnx").touch()
    before = file_identity(tmp_path / "model.onnx")
    assert file_identity(tmp_path / "model.onnx") == before
    weights.write_bytes(b"22")
    assert file_identity(tmp_path / "model.onnx") != before
