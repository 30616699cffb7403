"""Low-rank adapters by the names of models. If this fails, a client gets the answers of another one's adapter."""

from __future__ import annotations

import concurrent.futures
import json
import shutil
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from apps.serve.tests.conftest import CONFIG, EXPECTED, FIXTURES, Running, running
from engine import Core
from engine.generation import Generator, read_adapter
from engine.passes import MakeAdaptable, MakeStateful

openai = pytest.importorskip("openai")
Q = "base_model.model.model.layers.{}.self_attn.q_proj.lora_{}.weight"
PROMPT = EXPECTED["completions"][0]["prompt_tokens"]


def write_adapter(folder: Path, seed: int, rank: int) -> None:
    """As PEFT writes it."""
    random = np.random.default_rng(seed)
    shapes = {"A": (rank, 32), "B": (32, rank)}
    tensors = {
        Q.format(layer, part): random.normal(size=shape).astype(np.float32)
        for layer in (0, 1)
        for part, shape in shapes.items()
    }
    header: dict[str, Any] = {}
    data = b""
    for name, value in tensors.items():
        span = [len(data), len(data) + value.nbytes]
        header[name] = {"dtype": "F32", "shape": list(value.shape), "data_offsets": span}
        data += value.tobytes()
    text = json.dumps(header).encode()
    folder.mkdir()
    (folder / "adapter_model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + data)
    config = {"peft_type": "LORA", "r": rank, "lora_alpha": rank, "target_modules": ["q_proj"], "bias": "none"}
    (folder / "adapter_config.json").write_text(json.dumps(config))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("adapted") / "models"
    adapters = '[generation.adapters]\nfox = "adapters/fox"\ndog = "adapters/dog"\n'
    for name, config in (("chat", adapters), ("small", f"adapter_rank = 3\n{adapters}"), ("lost", adapters)):
        shutil.copytree(FIXTURES / "chat", folder / name)
        (folder / name / "config.toml").write_text(CONFIG + config)
        if name != "lost":
            (folder / name / "adapters").mkdir()
            write_adapter(folder / name / "adapters" / "fox", 1, 2)
            write_adapter(folder / name / "adapters" / "dog", 2, 4)
    with running(folder) as found:
        yield found


def test_answers_have_the_adapter_of_their_name(client: Any, server: Running) -> None:
    """Of clients at the same time, whose prompts are the same and whose keys and values are kept."""
    folder = Path(server.process.args[4]) / "chat"  # type: ignore[index]
    core = Core()
    model = core.read_model(folder / "model.onnx")
    MakeStateful().run_on_model(model)
    MakeAdaptable().run_on_model(model)
    network = core.compile_model(model, "CPU")
    expected = {"chat": EXPECTED["completions"][0]["tokens"]}
    for name in ("fox", "dog"):
        adapted = Generator(network, adapter=read_adapter(folder / "adapters" / name))
        expected[f"chat:{name}"] = adapted.generate(PROMPT, 24)[0]
    assert len({tuple(tokens) for tokens in expected.values()}) == 3

    def ask(name: str) -> tuple[str, list[int]]:
        found = client.completions.create(model=name, prompt=PROMPT, max_tokens=24, temperature=0)
        assert found.model == name
        return name, found.choices[0].token_ids

    with concurrent.futures.ThreadPoolExecutor(6) as pool:
        for name, tokens in pool.map(ask, [*expected] * 4):
            assert tokens == expected[name]


def test_names(client: Any) -> None:
    assert [model.id for model in client.models.list()] == ["chat", "chat:fox", "chat:dog"]
    assert client.models.retrieve("chat:fox").id == "chat:fox"
    for name in ("chat:cat", "chat:", "cat:fox"):
        with pytest.raises(openai.NotFoundError):
            client.models.retrieve(name)
        with pytest.raises(openai.NotFoundError):
            client.completions.create(model=name, prompt="a")


def test_adapters_that_cannot_be_loaded(server: Running) -> None:
    request = urllib.request.Request(f"http://{server.http}/v2/repository/index", b"{}")
    with urllib.request.urlopen(request, timeout=20) as response:
        reasons = {each["name"]: each["reason"] for each in json.load(response)}
    assert "rank" in reasons["small"]
    assert "adapter_config.json" in reasons["lost"]
