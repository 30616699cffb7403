"""Servers that require a minimum version of a release. If these fail, whoever can write to the repository can restore
an older model with a known fault, or exchange two models, without being noticed.
"""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import numpy as np
import pytest

from apps.serve.tests.conftest import Running, dense, running, write
from engine import Core, ops
from engine.blob import make_key_files
from engine.ir import Constant, Model, Parameter, Result, f32

SERVED = {"right": ("dense:2", 2.0), "later": ("dense:3", 3.0)}
REFUSED = {
    "older": ("dense:1", "release dense:1; expected dense of version 2 or later"),
    "another": ("other:5", "release other:5; expected dense of version 2 or later"),
    "nameless": (None, "states no release; expected dense of version 2 or later"),
    "stranger": ("dense:2", "release dense:2 is required"),
    "unsigned": ("", "release dense:2 is required"),
}


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a key that is trusted, `ours`, and one that is not."""
    folder = tmp_path_factory.mktemp("keys")
    for name in ("ours", "theirs"):
        make_key_files(folder / name, name, "hmac-sha256")
    return folder


def put(folder: Path, name: str, release: str | None, factor: float, key: Path | None) -> None:
    """A blob of y = factor * x in a repository; `release` None: signed without one."""
    x = Parameter(f32, ["N"], "x")
    model = Model([Result(ops.Mul(x, Constant(np.float32(factor))), "y")], [x])
    (folder / name).mkdir(parents=True, exist_ok=True)
    stated = {} if key is None else {"sign": key, "release": release}
    Core().compile_model(model, "CPU").export_model(folder / name / "model.blob", **stated)


def require(folder: Path, name: str, release: str) -> None:
    (folder / name / "config.toml").write_text(f'release = "{release}"\n')


def ask(server: Running, name: str) -> float:
    body = json.dumps({"inputs": [{"name": "x", "shape": [1], "datatype": "FP32", "data": [1.0]}]}).encode()
    url = f"http://{server.http}/v2/models/{name}/infer"
    request = urllib.request.Request(url, body, {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as response:
        return float(json.load(response)["outputs"][0]["data"][0])


def post(server: Running, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://{server.http}{path}", b"{}", timeout=60) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as e:
        return e.code, e.read().decode()


def reasons(server: Running) -> dict[str, str]:
    """Why models are not ready, by their names; empty for one that is."""
    code, text = post(server, "/v2/repository/index")
    assert code == 200, text
    return {each["name"]: each.get("reason") or "" for each in json.loads(text)}


def test_a_release_that_is_required_is_served_and_nothing_else(tmp_path: Path, keys: Path) -> None:
    folder = tmp_path / "models"
    for name, (release, factor) in SERVED.items():
        put(folder, name, release, factor, keys / "ours")
    for name, (release, _) in REFUSED.items():
        key = None if name == "unsigned" else keys / ("theirs" if name == "stranger" else "ours")
        put(folder, name, release, 1.0, key)
    write(folder, "model", dense())
    for name in (*SERVED, *REFUSED, "model"):
        require(folder, name, "dense:2")
    put(folder, "nonsense", "dense:2", 1.0, keys / "ours")
    require(folder, "nonsense", "dense")
    with running(folder, "--trusted-key", str(keys / "ours")) as server:
        found = reasons(server)
        for name, (_, factor) in SERVED.items():
            assert ask(server, name) == factor
        for name, (_, words) in REFUSED.items():
            assert words in found[name], name
        assert "is a model, which has no signature, and release dense:2 is required" in found["model"]
        assert "config.toml: `release`: 'dense' is not a release" in found["nonsense"]


def test_a_served_release_does_not_go_back(tmp_path: Path, keys: Path) -> None:
    folder = tmp_path / "models"
    put(folder, "m", "m:2", 2.0, keys / "ours")
    require(folder, "m", "m:2")
    with running(folder, "--trusted-key", str(keys / "ours")) as server:
        put(folder, "m", "m:1", 1.0, keys / "ours")
        code, text = post(server, "/v2/repository/models/m/load")
        assert (code, "expected m of version 2 or later" in text) == (400, True)
        assert ask(server, "m") == 2.0
        put(folder, "m", "m:3", 3.0, keys / "ours")
        assert post(server, "/v2/repository/models/m/load")[0] == 200
        assert ask(server, "m") == 3.0


def test_the_option_holds_whatever_the_folder_says(tmp_path: Path, keys: Path) -> None:
    """And the higher of two versions, if both name one."""
    folder = tmp_path / "models"
    for name in ("bare", "lower", "higher", "another", "free"):
        put(folder, name, "m:2", 2.0, keys / "ours")
    for name, release in (("lower", "m:1"), ("higher", "m:3"), ("another", "n:1")):
        require(folder, name, release)
    given = {"bare": "m:3", "lower": "m:3", "higher": "m:2", "another": "m:2"}
    options = [option for name, release in given.items() for option in ("--release", f"{name}={release}")]
    with running(folder, "--trusted-key", str(keys / "ours"), *options) as server:
        found = reasons(server)
        assert "config.toml requires a release of n, but the server one of m" in found.pop("another")
        assert found.pop("free") == ""
        for name, reason in found.items():
            assert "release m:2; expected m of version 3 or later" in reason, name


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["n=m:1"], "model 'n' is not a folder of"),
        (["m:1"], "is not a folder of"),
        (["../models/m=m:1"], "is not a folder of"),
        (["m=m"], "'m' is not a release; expected NAME:VERSION"),
        (["m=m:1", "m=m:2"], "model 'm' is given twice"),
    ],
)
def test_options_that_would_protect_nothing_are_refused(options: list[str], words: str, tmp_path: Path) -> None:
    write(tmp_path / "models", "m", dense())
    arguments = [option for each in options for option in ("--release", each)]
    done = subprocess.run(
        [sys.executable, "-m", "engine", "serve", str(tmp_path / "models"), *arguments],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert (done.returncode, words in done.stderr) == (2, True), done.stderr
