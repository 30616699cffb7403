"""The models of benchmarks/generation.py: that all engines compute the same, or it compares different things."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

BENCHMARKS = Path(__file__).parent.parent.parent / "benchmarks"
sys.path.append(str(BENCHMARKS))

from generating.engines import LlamaCpp, ThisEngine  # noqa: E402
from generating.models import MODELS, write_model  # noqa: E402
from generating.report import Times, differing, lowering_line, memory_table, speed_table  # noqa: E402
from generating.worker import Resident  # noqa: E402

PROMPT = [3, 14, 159, 265, 35]
COUNT = 6


def greedy(path: Path, prompt: list[int], count: int) -> list[int]:
    """By onnxruntime, which computes all tokens again for each next one."""
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    shapes = {each.name: each.shape for each in session.get_inputs()}
    past = {
        name: np.zeros((1, shape[1], 0, shape[3]), np.float32)
        for name, shape in shapes.items()
        if name.startswith("past")
    }
    tokens = list(prompt)
    for _ in range(count):
        ids = np.array([tokens], np.int64)
        inputs: dict[str, Any] = {"input_ids": ids, "attention_mask": np.ones_like(ids), **past}
        if "position_ids" in shapes:
            inputs["position_ids"] = np.arange(ids.size)[None]
        tokens.append(int(session.run(["logits"], inputs)[0][0, -1].argmax()))
    return tokens[len(prompt) :]


def written(name: str, form: str, folder: Path) -> Path:
    return write_model(MODELS[name], form, folder)


@pytest.mark.parametrize("form", ["f32", "int8", "int4"])
@pytest.mark.parametrize("name", ["tiny", "tinygpt2"])
def test_tokens_are_those_of_onnxruntime(name: str, form: str, tmp_path: Path) -> None:
    path = written(name, form, tmp_path)
    engine = ThisEngine(path, form, 1)
    expected = greedy(path, PROMPT, COUNT)
    assert len(set(expected)) > 1, "a model that repeats one token shows little"
    for _ in range(2):  # the second time from the beginning
        assert [engine.start(PROMPT), *(engine.step() for _ in range(COUNT - 1))] == expected


@pytest.mark.parametrize("name", ["tiny", "tinygpt2"])
def test_nothing_is_lowered_for_lengths_that_were_seen_before(name: str, tmp_path: Path) -> None:
    engine = ThisEngine(written(name, "f32", tmp_path), "f32", 1)
    for count in (len(PROMPT), 2 * len(PROMPT)):
        engine.start((2 * PROMPT)[:count])
        engine.step()
    lowered = engine.lowered
    for count in (len(PROMPT), 7, 2 * len(PROMPT)):
        engine.start((2 * PROMPT)[:count])
        for _ in range(10):
            engine.step()
    assert engine.lowered == lowered


@pytest.mark.peers
@pytest.mark.skipif(importlib.util.find_spec("llama_cpp") is None, reason="llama-cpp-python is not installed")
@pytest.mark.skipif(importlib.util.find_spec("gguf") is None, reason="gguf is not installed")
@pytest.mark.parametrize("name", ["tiny", "tinygpt2"])
def test_tokens_are_those_of_llama_cpp(name: str, tmp_path: Path) -> None:
    path = written(name, "f32", tmp_path)
    LlamaCpp.prepare(MODELS[name], path, "f32")
    peer = LlamaCpp(path, "f32", 1)
    expected = greedy(path, PROMPT, COUNT)
    assert [peer.start(PROMPT), *(peer.step() for _ in range(COUNT - 1))] == expected


@pytest.mark.peers
@pytest.mark.skipif(importlib.util.find_spec("gguf") is None, reason="gguf is not installed")
@pytest.mark.parametrize(("form", "error"), [("f32", 0), ("bf16", 2**-8), ("int8", 2**-6), ("int4", 2**-2)])
def test_files_for_llama_cpp_have_the_weights_of_the_model(form: str, error: float, tmp_path: Path) -> None:
    import gguf

    path = written("tiny", "f32" if form == "bf16" else form, tmp_path)
    LlamaCpp.prepare(MODELS["tiny"], path, form)
    found = {each.name: each for each in gguf.GGUFReader(path.parent / f"{form}.gguf").tensors}
    again = gguf.dequantize(found["output.weight"].data, found["output.weight"].tensor_type)
    from generating.gguf_file import Weights

    expected = Weights(path).matrix("logits")
    assert again.shape == expected.shape
    np.testing.assert_allclose(again, expected, rtol=0, atol=error * np.abs(expected).max())


def times(*first: float, tokens: int = 7) -> Times:
    found = Times(lowered=[9, 9, 11], resident=Resident(500.0, 450.0, 600.0))
    for context, seconds in zip((32, 512), first, strict=True):
        found.first[context] = [seconds]
        found.each[context] = [seconds / 10, seconds / 10, 1.0]
        found.tokens[context] = [1, 2, tokens]
    return found


def test_the_report_compares_with_each_peer_and_the_fastest() -> None:
    measured = {"engine": times(0.1, 0.2), "fast": times(0.05, 0.3), "slow": times(0.2, 0.2, tokens=8)}
    model = MODELS["tiny"]
    lines = speed_table(model, "f32", [32, 512], measured, model.read_bytes("f32") / 1e6 / 5).splitlines()
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines]
    assert cells[2] == ["engine", "10.00", "20.00", "50%, 25%", "2.00", "100", "200", "0.0", "3/3 3/3"]
    assert cells[4][-1] == "2/3 2/3"
    assert cells[6][:3] == ["fast / engine", "0.50x", "1.50x"]
    assert cells[8][:3] == ["the fastest peer / engine", "0.50x", "1.00x"]
    assert differing(measured) == ["slow"]


def test_the_report_says_what_memory_is_beyond_the_bound_and_what_was_lowered() -> None:
    text = memory_table(300.0, 20.0, {"engine": times(0.1, 0.2)})
    assert "bound 432 MB" in text
    assert text.splitlines()[-1].split("|")[1:-1][-1].strip() == "1.16"
    assert lowering_line([9, 9, 11]).endswith("9 in the first round, 2 in those that count.")
