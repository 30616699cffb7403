"""Files of states: what was saved goes on, and a damaged file is an error that says so, never another state."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.blob import BlobReader, BlobWriter
from engine.errors import BlobFormatError, EngineError, StateError
from engine.runtime.state_file import read_state, write_state

VALUES = {"kept": np.arange(6, dtype=np.float32).reshape(1, 2, 3), "fresh": None}


def saved() -> bytes:
    stream = io.BytesIO()
    write_state(stream, "model", VALUES)
    return stream.getvalue()


def changed(**metadata: Any) -> bytes:
    """The saved state with other metadata."""
    reader = BlobReader(saved())
    writer = BlobWriter(replace(reader.manifest, metadata={**reader.manifest.metadata, **metadata}))
    writer.add_section("0", bytes(reader.section("0")))
    stream = io.BytesIO()
    writer.write(stream)
    return stream.getvalue()


def described(**fields: Any) -> bytes:
    """The saved state whose value `kept` is described otherwise; None leaves a field out."""
    value = {"name": "kept", "type": "f32", "shape": [1, 2, 3], "section": "0", **fields}
    return changed(values=[{name: field for name, field in value.items() if field is not None}])


def test_values_come_back_and_may_be_written_to() -> None:
    found = read_state(saved(), "model", "network")
    assert found.keys() == VALUES.keys()
    assert found["fresh"] is None
    np.testing.assert_array_equal(found["kept"], VALUES["kept"], strict=True)
    found["kept"][:] = 1


def test_a_loaded_state_does_not_change_with_its_file(tmp_path: Path) -> None:
    """Its values are those of the mapped file, which the next save replaces."""
    write_state(tmp_path / "state", "model", VALUES)
    found = read_state(tmp_path / "state", "model", "network")
    write_state(tmp_path / "state", "model", {"kept": np.zeros((1, 2, 3), np.float32), "fresh": None})
    np.testing.assert_array_equal(found["kept"], VALUES["kept"], strict=True)


@pytest.mark.parametrize(
    ("blob", "error", "words"),
    [
        (changed(kind="network"), StateError, "not the state of a request"),
        (changed(version="2"), StateError, "not the state of a request"),
        (changed(model_identity="other"), StateError, "another model"),
        (changed(values=None), BlobFormatError, "malformed"),
        (changed(values=[3]), BlobFormatError, "malformed"),
        (described(name=None), BlobFormatError, "malformed"),
        (described(type=None), BlobFormatError, "malformed"),
        (described(type="string"), BlobFormatError, "malformed"),
        (described(type="f99"), BlobFormatError, "malformed"),
        (described(section=None), BlobFormatError, "malformed"),
        (described(section="1"), EngineError, "1"),
        (described(shape=[1, 2, 4]), BlobFormatError, "malformed"),
        (described(type="f64"), BlobFormatError, "malformed"),
    ],
    ids=[
        "blob of a network",
        "future version",
        "other model",
        "no values",
        "no description",
        "no name",
        "no type",
        "text",
        "unknown type",
        "no section",
        "missing section",
        "more elements",
        "wider elements",
    ],
)
def test_what_is_no_state_of_this_model_is_refused(blob: bytes, error: type[EngineError], words: str) -> None:
    with pytest.raises(error, match=words):
        read_state(blob, "model", "network")
