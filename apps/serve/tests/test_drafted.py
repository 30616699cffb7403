"""Proposed tokens of served language models. If this fails, they change answers, or a bad draft stops other models."""

from __future__ import annotations

import concurrent.futures
import json
import shutil
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from apps.serve.tests.conftest import CONFIG, EXPECTED, FIXTURES, Running, running

OTHER = Path(__file__).parents[3] / "tests" / "fixtures" / "decoders" / "llama.dynamo23.onnx"
DRAFTS = {"plain": None, "lookup": "prompt-lookup", "same": "draft/model.onnx"}
"""The model itself as a draft proposes what is accepted."""
WRONG = {
    "missing": ("draft/no.onnx", "there is no file"),
    "broken": ("draft/model.onnx", "the draft"),
    "number": (3, "`generation.draft` is 3; expected"),
    "smaller": ("draft/model.onnx", "tokens"),
}


def shared(folder: Path, name: str, draft: object, model: bytes | Path | None) -> None:
    shutil.copytree(FIXTURES / "chat", folder / name)
    (folder / name / "config.toml").write_text(CONFIG + ("" if draft is None else f"draft = {json.dumps(draft)}\n"))
    if model is None:
        return
    (folder / name / "draft").mkdir()
    if isinstance(model, bytes):
        (folder / name / "draft" / "model.onnx").write_bytes(model)
        return
    for path in model.parent.glob(model.name + "*"):
        shutil.copy(path, folder / name / "draft" / path.name.replace(model.name, "model.onnx"))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("drafted") / "models"
    for name, draft in DRAFTS.items():
        shared(folder, name, draft, FIXTURES / "chat" / "model.onnx" if name == "same" else None)
    for name, (draft, _) in WRONG.items():
        shared(folder, name, draft, b"not a model" if name == "broken" else OTHER if name == "smaller" else None)
    with running(folder) as found:
        yield found


def answer(server: Running, name: str, prompt: list[int], **parameters: Any) -> list[int]:
    body = json.dumps({"input_ids": prompt, "parameters": {"max_tokens": 40, "ignore_eos": True, **parameters}})
    request = urllib.request.Request(f"http://{server.http}/v2/models/{name}/generate", body.encode())
    with urllib.request.urlopen(request, timeout=120) as response:
        return list(json.loads(response.read())["tokens"])


@pytest.mark.parametrize("name", ["lookup", "same"])
def test_answers_are_the_same_as_without(server: Running, name: str) -> None:
    """Of prompts that repeat themselves, at the same time; and drawn ones by their seed, one after another."""
    prompts = [each["prompt_tokens"] * 3 for each in EXPECTED["completions"]]
    expected = [answer(server, "plain", prompt) for prompt in prompts]
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        assert list(pool.map(lambda prompt: answer(server, name, prompt), prompts)) == expected
    proposed, accepted = (
        server.metric(f'engine_{kind}_tokens_total{{model="{name}"') for kind in ("proposed", "accepted")
    )
    assert proposed >= accepted
    assert (accepted if name == "same" else proposed) > 0
    if name == "lookup":
        drawn = [answer(server, each, prompts[0], temperature=1.0, seed=7) for each in ("plain", name)]
        assert drawn[0] == drawn[1]


@pytest.mark.parametrize("name", WRONG)
def test_a_draft_that_cannot_propose(server: Running, name: str) -> None:
    request = urllib.request.Request(f"http://{server.http}/v2/repository/index", b"{}")
    request.add_header("Content-Type", "application/json")
    with urllib.request.urlopen(request, timeout=120) as response:
        states = {each["name"]: each for each in json.loads(response.read())}
    assert states[name]["state"] == "UNAVAILABLE"
    assert WRONG[name][1] in states[name]["reason"]
    assert states["plain"]["state"] == "READY"
