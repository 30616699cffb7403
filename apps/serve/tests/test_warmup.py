"""Warm-up before a model is ready. If this fails, first requests wait for plans, or a bad one stops other models."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from apps.serve.tests.conftest import Running, dense, running, write

DECODER = Path(__file__).parents[3] / "tests" / "fixtures" / "decoders" / "llama.dynamo23.onnx"
CPU = 'device = "CPU"\n'
SHAPES = CPU + "[warmup]\nshapes = [{ x = [1, 16] }, { x = [5, 16] }]\n"
FAILING = {
    "unknown": ("[warmup]\nshapes = [{ z = [1, 16] }]\n", "'z', which is not an input of the model; its inputs are x"),
    "missing": ("[warmup]\n", "needs a shape of input `x`"),
    "misfit": ("[warmup]\nshapes = [{ x = [1, 15] }]\n", "inputs of zeros, `x` [1, 15], failed: InputError"),
    "flat": ("[warmup]\nshapes = [{ x = [16] }]\n", "inputs of zeros, `x` [16], failed: InputError"),
    "huge": ("[warmup]\nshapes = [{ x = [2000000000, 2000000000, 2000000000] }]\n", "2000000000], failed:"),
    "misplaced": ("[warmup]\nprompt_tokens = [8]\n", "`warmup.prompt_tokens` is for language models"),
    "malformed": ("[warmup]\nshapes = [{ x = [-1, 16] }]\n", "`warmup.shapes.x` is [-1, 16]"),
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("warm") / "models"
    write(folder, "cold", dense(), CPU)
    write(folder, "warm", dense(), SHAPES)
    write(folder, "fixed", dense(3), CPU + "[warmup]\n")
    write(folder, "batched", dense(), CPU + "[batching]\nsize = 4\n[warmup]\nshapes = [{ x = [1, 16] }]\n")
    for name, (config, _) in FAILING.items():
        write(folder, name, dense(), CPU + config)
    for name, tokens in (("llama", "[8]"), ("bounded", "[65]")):
        target = folder / name
        target.mkdir()
        for path in DECODER.parent.glob(DECODER.name + "*"):
            shutil.copy(path, target / path.name.replace(DECODER.name, "model.onnx"))
        language = f"[generation]\nslots = 2\nmax_length = 64\n[warmup]\nprompt_tokens = {tokens}\n"
        (target / "config.toml").write_text(CPU + language)
    with running(folder) as found:
        yield found


@pytest.fixture
def client(server: Running) -> Iterator[Any]:
    import tritonclient.http

    made = tritonclient.http.InferenceServerClient(server.http)
    yield made
    made.close()


def ask(client: Any, name: str, count: int) -> None:
    import tritonclient.http

    given = tritonclient.http.InferInput("x", [count, 16], "FP32")
    given.set_data_from_numpy(np.ones((count, 16), np.float32))
    client.infer(name, [given])


def lowered(server: Running, name: str) -> float:
    return server.metric(f'engine_lowered_plans_total{{model="{name}"')


def test_no_request_waits_for_a_plan(server: Running, client: Any) -> None:
    for name, counts in (("warm", (5, 1)), ("fixed", (3,))):
        before = lowered(server, name)
        assert before > 0
        for count in counts:
            ask(client, name, count)
        assert lowered(server, name) == before
    before = lowered(server, "cold")
    ask(client, "cold", 5)
    assert lowered(server, "cold") > before


def test_every_size_of_a_batch_is_run(server: Running, client: Any) -> None:
    """Which statistics do not count: they are of requests."""
    assert server.metric('engine_batch_size_count{model="batched"') == 4
    (found,) = client.get_inference_statistics("batched")["model_stats"]
    assert (found["inference_count"], found["execution_count"], found["batch_stats"]) == (0, 0, [])
    ask(client, "batched", 3)
    (found,) = client.get_inference_statistics("batched")["model_stats"]
    assert (found["inference_count"], found["execution_count"]) == (3, 1)


def test_a_language_model_prepares_prompts(server: Running, client: Any) -> None:
    import tritonclient.http

    before = lowered(server, "llama")
    assert before > 0
    for prompt in ([3, 14, 15], [2], [7, 1, 8, 2, 8, 1, 8, 2]):
        given = tritonclient.http.InferInput("input_ids", [1, len(prompt)], "INT64")
        given.set_data_from_numpy(np.array([prompt]))
        assert client.infer("llama", [given], parameters={"max_tokens": 3}).as_numpy("tokens").shape == (1, 3)
    assert lowered(server, "llama") == before


@pytest.mark.parametrize("name", [*FAILING, "bounded"])
def test_a_warm_up_that_fails(server: Running, client: Any, name: str) -> None:
    """The model is not ready, which the log says once, with the model and the input; others are."""
    code, text = server.get(f"/v2/models/{name}/config")
    assert code == 503
    wanted = FAILING[name][1] if name in FAILING else "prompts of 65 tokens (input `input_ids`) failed: InputError"
    assert wanted in json.loads(text)["error"]
    errors = [line for line in server.log.splitlines() if "ERROR" in line]
    (logged,) = [line for line in errors if f"model {name}, version" in line or f"model {name!r} " in line]
    assert "cannot be loaded: RepositoryError" in logged
    assert client.is_model_ready("warm")
