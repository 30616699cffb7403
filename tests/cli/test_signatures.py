"""Signatures on the command line: a key, a signed blob, and who runs it.

If these fail, a host that must run only its own blobs runs others, or its operator cannot see who signed a blob.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Engine = Callable[..., Any]


@pytest.fixture(params=["ed25519", "hmac-sha256"])
def keys(request: pytest.FixtureRequest, engine: Engine, tmp_path: Path) -> tuple[Path, Path]:
    """The files of the key that signs, and of the key that verifies."""
    done = engine("keygen", "release-1", "--algorithm", request.param, "--json", cwd=tmp_path)
    assert (done.code, done.err) == (0, "")
    files = [tmp_path / name for name in json.loads(done.out)["files"]]
    if os.name == "posix":
        assert files[0].stat().st_mode & 0o777 == 0o600
    return files[0], files[-1]


def test_a_blob_is_signed_inspected_and_run(
    engine: Engine, files: Path, keys: tuple[Path, Path], tmp_path: Path
) -> None:
    signing, trusted = keys
    blob, bare = tmp_path / "signed.blob", files / "basic.blob"
    done = engine("compile", files / "basic.onnx", "-d", "TEMPLATE", "-o", blob, "--sign", signing)
    assert done.code == 0
    assert done.out.endswith(", signed by key release-1\n")
    done = engine("inspect", blob)
    assert (done.code, "signature: by key release-1 (" in done.out, "NOT verified" in done.out) == (0, True, True)
    done = engine("inspect", blob, "--trusted-key", trusted, "--require-signature", "--json")
    assert done.code == 0
    assert json.loads(done.out)["signature"]["trusted"] is True
    assert "signature: none" in engine("inspect", bare).out
    done = engine("inspect", bare, "--trusted-key", trusted, "--require-signature")
    assert (done.code, "the blob is not signed" in done.out) == (1, True)
    for command in (("run",), ("benchmark", "--count", "1")):
        options = ("-i", files / "basic_input.npz", "--trusted-key", trusted, "--require-signature")
        assert engine(*command, blob, *options).code == 0
        done = engine(*command, bare, *options)
        assert (done.code, "is not signed" in done.err) == (3, True)


def test_the_page_says_whether_a_signature_was_verified(
    engine: Engine, files: Path, keys: tuple[Path, Path], tmp_path: Path
) -> None:
    signing, trusted = keys
    blob, page = tmp_path / "signed.blob", tmp_path / "page.html"
    assert engine("compile", files / "basic.onnx", "-d", "TEMPLATE", "-o", blob, "--sign", signing).code == 0
    for options, verdict in ((["--trusted-key", trusted], "), verified<"), ([], "), not verified<")):
        engine("inspect", blob, "--html", page, *options)
        assert verdict in page.read_text(encoding="utf-8")


def test_inspect_says_how_sections_are_stored(engine: Engine, files: Path, tmp_path: Path) -> None:
    """Whoever gets an encrypted blob learns that it needs a key; of others nothing is said."""
    assert engine("keygen", "model-1", "--algorithm", "aes-256-gcm", "-o", tmp_path / "a.key").code == 0
    blob = tmp_path / "secret.blob"
    assert (
        engine("compile", files / "basic.onnx", "-d", "TEMPLATE", "-o", blob, "--encrypt", tmp_path / "a.key").code == 0
    )
    assert "sections are stored by" in engine("inspect", blob).out
    assert "sections are stored by" not in engine("inspect", files / "basic.blob").out


def test_a_changed_blob_is_refused(engine: Engine, files: Path, keys: tuple[Path, Path], tmp_path: Path) -> None:
    """Signed by another key of this id."""
    other, blob = tmp_path / "other", tmp_path / "signed.blob"
    other.mkdir()
    assert engine("keygen", "release-1", "-o", other / "a.key").code == 0
    assert engine("compile", files / "basic.onnx", "-d", "TEMPLATE", "-o", blob, "--sign", other / "a.key").code == 0
    done = engine("run", blob, "-i", files / "basic_input.npz", "--trusted-key", keys[1])
    assert (done.code, "release-1" in done.err) == (3, True)
    done = engine("inspect", blob, "--trusted-key", keys[1])
    assert (done.code, "loads here: NO" in done.out) == (1, True)


def test_a_key_is_not_overwritten_and_a_missing_one_is_told_before_compiling(
    engine: Engine, files: Path, keys: tuple[Path, Path], tmp_path: Path
) -> None:
    done = engine("keygen", "release-1", cwd=tmp_path)
    assert (done.code, "keys are not overwritten" in done.err) == (3, True)
    assert engine("keygen", "no id", cwd=tmp_path).code == 3
    target = tmp_path / "x.blob"
    done = engine("compile", files / "basic.onnx", "-d", "TEMPLATE", "-o", target, "--sign", tmp_path / "missing")
    assert (done.code, "cannot be read" in done.err, target.exists()) == (3, True, False)


def test_an_older_release_is_refused(engine: Engine, files: Path, keys: tuple[Path, Path], tmp_path: Path) -> None:
    signing, trusted = keys
    blob, compiled = tmp_path / "net.blob", ("compile", files / "basic.onnx", "-d", "TEMPLATE")
    assert engine(*compiled, "-o", blob, "--sign", signing, "--release", "net:7").code == 0
    done = engine("inspect", blob, "--trusted-key", trusted, "--release", "net:7")
    assert (done.code, "\nrelease: net:7\n" in done.out) == (0, True)
    done = engine("inspect", blob, "--trusted-key", trusted, "--release", "net:8")
    assert (done.code, "is release net:7; expected net of version 8 or later" in done.out) == (1, True)
    for command in (("run",), ("benchmark", "--count", "1")):
        options = (blob, "-i", files / "basic_input.npz", "--trusted-key", trusted, "--release")
        assert engine(*command, *options, "net:6").code == 0
        done = engine(*command, *options, "net:8")
        assert (done.code, "expected net of version 8 or later" in done.err) == (3, True)
    done = engine(*compiled, "--release", "net:7")
    assert (done.code, "only a signed blob states a release" in done.err) == (2, True)
    done = engine("run", files / "basic.onnx", "--release", "net:7")
    assert (done.code, "--release are for blobs" in done.err) == (2, True)
