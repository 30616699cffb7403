"""Embeddings by OpenAI's own client, and ranking, beside those of transformers (`fixtures/write_models.py`). If this
fails, searches find other texts.
"""

from __future__ import annotations

import base64
import json
import shutil
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from apps.serve.tests.conftest import CONFIG, FIXTURES, Running, dense, running, write

openai = pytest.importorskip("openai")
EXPECTED = json.loads((FIXTURES / "encoder" / "expected.json").read_text())
SCORES = json.loads((FIXTURES / "ranker" / "expected.json").read_text())
TEXTS = EXPECTED["texts"]
# The states are sums of 16 to 24 products of float32 in two layers, of values up to 4, in an order of their own.
TOLERANCE = 1e-4
CONFIGS = {
    "mean": ("encoder", 'pooling = "mean"\nnormalize = false\nmax_length = 64'),
    "cls": ("encoder", 'pooling = "cls"\nnormalize = false'),
    "last": ("encoder", 'pooling = "last"\nnormalize = false\noutput = "last_hidden_state"'),
    "unit": ("encoder", ""),
    "ranker": ("ranker", 'pooling = "score"\nmax_length = 64'),
    "logits": ("ranker", 'pooling = "score"\nnormalize = false'),
    "wrong": ("ranker", 'pooling = "mean"'),
    "missing": ("encoder", 'output = "nothing"'),
    "bare": ("encoder", ""),
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("encoders") / "models"
    for name, (source, config) in CONFIGS.items():
        shutil.copytree(FIXTURES / source, folder / name)
        (folder / name / "config.toml").write_text(f'device = "CPU"\n[encoder]\n{config}\n')
    (folder / "bare" / "tokenizer.json").unlink()
    shutil.copytree(FIXTURES / "chat", folder / "chat")
    (folder / "chat" / "config.toml").write_text(CONFIG)
    write(folder, "dense", dense(), 'device = "CPU"\n[encoder]\n')
    shutil.copy(FIXTURES / "encoder" / "tokenizer.json", folder / "dense")
    with running(folder) as found:
        yield found


def post(server: Running, path: str, body: Any) -> Any:
    request = urllib.request.Request(f"http://{server.http}{path}", json.dumps(body).encode())
    with urllib.request.urlopen(request, timeout=60) as response:
        return json.load(response)


@pytest.mark.parametrize("pooling", ["mean", "cls", "last"])
@pytest.mark.parametrize("form", ["float", "base64", None])
def test_vectors_are_those_of_transformers(client: Any, pooling: str, form: str | None) -> None:
    """Of several texts at once, which are padded, and alone. OpenAI's client asks for base64 by itself."""
    options = {} if form is None else {"encoding_format": form}
    found = client.embeddings.create(model=pooling, input=TEXTS, **options)
    expected = np.array(EXPECTED[pooling])
    if form == "base64":
        vectors = [np.frombuffer(base64.b64decode(each.embedding), "<f4") for each in found.data]
    else:
        vectors = [each.embedding for each in found.data]
    assert np.abs(np.array(vectors) - expected).max() < TOLERANCE
    assert [each.index for each in found.data] == [*range(len(TEXTS))]
    alone = client.embeddings.create(model=pooling, input=TEXTS[2])
    assert np.abs(np.array(alone.data[0].embedding) - expected[2]).max() < TOLERANCE
    assert found.usage.prompt_tokens == found.usage.total_tokens > alone.usage.prompt_tokens > 5


def test_vectors_of_length_1_and_tokens(client: Any) -> None:
    expected = np.array(EXPECTED["mean"])
    expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    found = client.embeddings.create(model="unit", input=TEXTS, dimensions=16)
    assert np.abs(np.array([each.embedding for each in found.data]) - expected).max() < TOLERANCE
    tokenizers = pytest.importorskip("tokenizers")
    tokenizer = tokenizers.Tokenizer.from_file(str(FIXTURES / "encoder" / "tokenizer.json"))
    ids = [tokenizer.encode(text).ids for text in TEXTS]
    for given in (ids, ids[0]):
        found = client.embeddings.create(model="unit", input=given)
        vectors = np.array([each.embedding for each in found.data])
        assert np.abs(vectors - expected[: len(vectors)]).max() < TOLERANCE


def test_many_texts(client: Any) -> None:
    """More than are computed together, in any order."""
    order = np.random.default_rng(0).integers(0, len(TEXTS), 200)
    found = client.embeddings.create(model="cls", input=[TEXTS[place] for place in order])
    vectors = np.array([each.embedding for each in found.data])
    assert np.abs(vectors - np.array(EXPECTED["cls"])[order]).max() < TOLERANCE


def test_ranking(server: Running) -> None:
    scores = 1 / (1 + np.exp(-np.array(SCORES["scores"])))
    order = np.argsort(-scores, kind="stable").tolist()
    body = {"model": "ranker", "query": TEXTS[0], "documents": TEXTS}
    found = post(server, "/openai/v1/rerank", body)
    assert [each["index"] for each in found["results"]] == order
    assert [each["relevance_score"] for each in found["results"]] == pytest.approx(scores[order], abs=TOLERANCE)
    assert [each["document"]["text"] for each in found["results"]] == [TEXTS[place] for place in order]
    best = post(server, "/openai/v1/rerank", body | {"top_n": 2, "return_documents": False})
    assert [(each["index"], "document" in each) for each in best["results"]] == [(place, False) for place in order[:2]]
    logits = post(server, "/openai/v1/rerank", body | {"model": "logits", "documents": [{"text": TEXTS[1]}]})
    assert logits["results"][0]["relevance_score"] == pytest.approx(SCORES["scores"][1], abs=TOLERANCE)


def test_encoders_are_listed_and_answer_inferences(client: Any, server: Running) -> None:
    assert [model.id for model in client.models.list()] == ["chat", "cls", "last", "logits", "mean", "ranker", "unit"]
    assert client.models.retrieve("unit").id == "unit"
    tensor = {"shape": [1, 2], "datatype": "INT64", "data": [2, 3]}
    names = ("input_ids", "attention_mask", "token_type_ids")
    body = {"inputs": [{"name": name, **tensor, **({} if name == "input_ids" else {"data": [1, 1]})} for name in names]}
    assert post(server, "/v2/models/unit/infer", body)["outputs"][0]["shape"] == [1, 2, 16]


def test_models_that_are_no_encoders(server: Running) -> None:
    index = json.loads(urllib.request.urlopen(
        urllib.request.Request(f"http://{server.http}/v2/repository/index", b"{}"), timeout=20
    ).read())  # fmt: skip
    reasons = {each["name"]: each["reason"] for each in index}
    assert "needs an output of rank 3" in reasons["wrong"]
    assert "last_hidden_state" in reasons["missing"]
    assert "no tokenizer.json" in reasons["bare"]
    assert "expected input_ids" in reasons["dense"]


@pytest.mark.parametrize(
    ("path", "body", "said"),
    [
        ("embeddings", {"input": []}, "`input`"),
        ("embeddings", {"input": [3, "a"]}, "`input`"),
        ("embeddings", {"input": None}, "`input`"),
        ("embeddings", {"input": ["a"] * 2049}, "`input`"),
        ("embeddings", {"input": [10**6]}, "numbers from 0"),
        ("embeddings", {"input": [-1]}, "numbers from 0"),
        ("embeddings", {"input": [[]]}, "numbers from 0"),
        ("embeddings", {"input": "dog " * 100}, "at most 64"),
        ("embeddings", {"input": "a", "encoding_format": "hex"}, "encoding_format"),
        ("embeddings", {"input": "a", "dimensions": 8}, "dimensions"),
        ("embeddings", {"input": "a", "dimensions": "x"}, "dimensions"),
        ("embeddings", {"input": "a", "truncate": 8}, "truncate"),
        ("embeddings", {"input": "a", "model": "ranker"}, "rerank"),
        ("embeddings", {"input": "a", "model": "chat"}, "[encoder]"),
        ("embeddings", {"input": "dog " * 100, "model": "unit"}, ""),
        ("completions", {"prompt": "a", "model": "mean"}, "[generation]"),
        ("rerank", {"query": "a", "documents": ["a"]}, "embeddings"),
        ("rerank", {"query": 3, "documents": ["a"], "model": "ranker"}, "`query`"),
        ("rerank", {"query": "a", "documents": [], "model": "ranker"}, "`documents`"),
        ("rerank", {"query": "a", "documents": [{"a": 3}], "model": "ranker"}, "`documents`"),
        ("rerank", {"query": "a", "documents": ["a"], "model": "ranker", "top_n": 0}, "top_n"),
        ("rerank", {"query": "dog " * 70, "documents": ["a"], "model": "ranker"}, "at most 64"),
    ],
)
def test_what_is_refused(server: Running, path: str, body: Any, said: str) -> None:
    with pytest.raises(urllib.error.HTTPError) as caught:
        post(server, f"/openai/v1/{path}", {"model": "mean"} | body)
    error = json.loads(caught.value.read())["error"]
    assert (caught.value.code, said in error["message"]) == (400, True), error


def test_nothing_failed_inside(server: Running) -> None:
    assert "Traceback" not in server.log
