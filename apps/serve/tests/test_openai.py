"""OpenAI's own client, and texts and probabilities that transformers computed (`fixtures/write_models.py`). If this
fails, programs written for OpenAI's API get other answers than the model gives.
"""

from __future__ import annotations

import concurrent.futures
import json
import shutil
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from apps.serve.tests.conftest import CONFIG, END, EXPECTED, FIXTURES, Running, dense, running, wait_for, write

openai = pytest.importorskip("openai")
FIRST = EXPECTED["completions"][0]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("openai") / "models"
    shutil.copytree(FIXTURES / "chat", folder / "chat")
    (folder / "chat" / "config.toml").write_text(CONFIG)
    # Its tokenizer has more tokens than the model.
    shutil.copytree(folder / "chat", folder / "other")
    tokenizer = json.loads((folder / "other" / "tokenizer.json").read_text())
    tokenizer["model"]["vocab"]["quickfox"] = 300
    (folder / "other" / "tokenizer.json").write_text(json.dumps(tokenizer))
    write(folder, "dense", dense(), 'device = "CPU"\n')
    with running(folder) as found:
        yield found


def joined(stream: Any, index: int = 0) -> tuple[str, str | None]:
    """The text of the events of one choice, and why it ended."""
    choices = [choice for event in stream for choice in event.choices if choice.index == index]
    assert [choice.finish_reason for choice in choices[:-1]] == [None] * (len(choices) - 1)
    return "".join(choice.text for choice in choices), choices[-1].finish_reason


@pytest.mark.parametrize("expected", EXPECTED["completions"], ids=lambda expected: expected["prompt"])
@pytest.mark.parametrize("of_tokens", [False, True])
def test_texts_are_those_of_transformers(client: Any, expected: Any, of_tokens: bool) -> None:
    prompt = expected["prompt_tokens"] if of_tokens else expected["prompt"]
    asked = {"model": "chat", "prompt": prompt, "max_tokens": 24, "temperature": 0}
    found = client.completions.create(**asked)
    (choice,) = found.choices
    is_stopped = expected["tokens"][-1] == END
    assert (choice.text, choice.finish_reason) == (expected["text"], "stop" if is_stopped else "length")
    assert choice.token_ids == expected["tokens"]
    counts = len(expected["prompt_tokens"]), len(expected["tokens"])
    assert (found.usage.prompt_tokens, found.usage.completion_tokens, found.usage.total_tokens) == (
        *counts,
        sum(counts),
    )
    assert joined(client.completions.create(**asked, stream=True)) == (choice.text, choice.finish_reason)


def test_several_prompts_and_choices(client: Any) -> None:
    """Texts or tokens; each choice of a prompt is drawn with the next seed, and stays the same for its seed."""
    texts = [each["prompt"] for each in EXPECTED["completions"]]
    tokens = [each["prompt_tokens"] for each in EXPECTED["completions"]]
    for prompts in (texts, tokens):
        found = client.completions.create(model="chat", prompt=prompts, max_tokens=24, temperature=0)
        assert [choice.text for choice in found.choices] == [each["text"] for each in EXPECTED["completions"]]
        assert found.usage.prompt_tokens == sum(map(len, tokens))
    asked = {"model": "chat", "max_tokens": 12, "temperature": 1.5}
    alone = [
        client.completions.create(**asked, prompt=prompt, seed=seed).choices[0].text
        for prompt in texts[:2]
        for seed in (7, 8, 9)
    ]
    assert len(set(alone)) == 6
    found = client.completions.create(**asked, prompt=texts[:2], n=3, seed=7)
    assert [choice.text for choice in found.choices] == alone
    assert [choice.index for choice in found.choices] == [*range(6)]
    events = list(client.completions.create(**asked, prompt=texts[:2], n=3, seed=7, stream=True))
    assert [joined(events, index)[0] for index in range(6)] == alone


def test_tokens_are_drawn_by_default(client: Any) -> None:
    """As in OpenAI's API, whose temperature is 1 by default."""
    asked = {"model": "chat", "prompt": "The quick fox", "max_tokens": 24}
    found = client.completions.create(**asked, n=4)
    assert len({choice.text for choice in found.choices}) == 4


@pytest.mark.parametrize("stop", ["iq", ["nothing", "x\N{GREEK CAPITAL LETTER SIGMA}", "L"]])
def test_a_text_ends_before_a_stop(client: Any, stop: Any) -> None:
    first = min(
        FIRST["text"].find(each) for each in ([stop] if isinstance(stop, str) else stop) if each in FIRST["text"]
    )
    asked = {"model": "chat", "prompt": FIRST["prompt"], "max_tokens": 24, "temperature": 0, "stop": stop}
    found = client.completions.create(**asked)
    assert (found.choices[0].text, found.choices[0].finish_reason) == (FIRST["text"][:first], "stop")
    assert found.choices[0].token_ids == FIRST["tokens"][: found.usage.completion_tokens]
    assert found.usage.completion_tokens < 24
    assert joined(client.completions.create(**asked, stream=True)) == (FIRST["text"][:first], "stop")


def test_stop_tokens_of_a_request_and_none(client: Any, server: Running) -> None:
    asked = {"model": "chat", "prompt": FIRST["prompt"], "max_tokens": 24, "temperature": 0}
    found = client.completions.create(**asked, extra_body={"stop_token_ids": [FIRST["tokens"][5]]}).choices[0]
    assert (found.token_ids, found.finish_reason) == (FIRST["tokens"][:6], "stop")
    ends = {**asked, "logit_bias": {str(END): 100}}
    assert client.completions.create(**ends).choices[0].token_ids == [END]
    found = client.completions.create(**ends, extra_body={"ignore_eos": True}).choices[0]
    assert (found.token_ids, found.finish_reason, found.text) == ([END] * 24, "length", "")


def test_log_probabilities_are_those_of_transformers(client: Any) -> None:
    asked = {"model": "chat", "prompt": FIRST["prompt"], "max_tokens": 24, "temperature": 0, "logprobs": 3}
    logs = client.completions.create(**asked).choices[0].logprobs
    # float32 rounds sums of 32 products, of logits up to 10, by about 1e-5.
    assert logs.token_logprobs == pytest.approx(FIRST["logprobs"], abs=1e-4)
    assert [len(top) for top in logs.top_logprobs] == [len({*top}) for top in FIRST["top"]]
    assert logs.tokens[2:5] == ["i", "qu", "4"]
    assert logs.tokens[0].startswith("bytes:\\x")
    assert logs.text_offset == sorted(logs.text_offset)
    assert all(FIRST["text"][logs.text_offset[place] :].startswith(logs.tokens[place]) for place in (2, 3, 4))
    parts = [event.choices[0].logprobs for event in client.completions.create(**asked, stream=True)]
    assert [token for part in parts if part for token in part.tokens] == logs.tokens
    assert [offset for part in parts if part for offset in part.text_offset] == logs.text_offset
    none = client.completions.create(**{**asked, "logprobs": 0}).choices[0].logprobs
    assert [list(top) for top in none.top_logprobs] == [[name] for name in logs.tokens]


def test_echo(client: Any) -> None:
    for prompt in (FIRST["prompt"], FIRST["prompt_tokens"]):
        asked = {"model": "chat", "prompt": prompt, "max_tokens": 24, "temperature": 0, "echo": True}
        assert client.completions.create(**asked).choices[0].text == FIRST["prompt"] + FIRST["text"]
        assert joined(client.completions.create(**asked, stream=True))[0] == FIRST["prompt"] + FIRST["text"]


def test_usage_of_a_stream(client: Any) -> None:
    asked = {"model": "chat", "prompt": [FIRST["prompt"]] * 2, "max_tokens": 5, "n": 2, "temperature": 0}
    *events, last = client.completions.create(**asked, stream=True, stream_options={"include_usage": True})
    assert {event.usage for event in events} == {None}
    assert (last.choices, last.usage.completion_tokens, last.usage.prompt_tokens) == ([], 20, 6)


def test_models(client: Any) -> None:
    assert [model.id for model in client.models.list()] == ["chat", "other"]
    assert client.models.retrieve("chat").owned_by == "engine"
    with pytest.raises(openai.NotFoundError, match="nothing"):
        client.models.retrieve("nothing")


@pytest.mark.parametrize(
    ("options", "kind", "said"),
    [
        ({"n": 0}, "BadRequestError", "`n`"),
        ({"n": 17}, "APIStatusError", "17 answers, and at most 16"),
        ({"n": 10**9}, "BadRequestError", "`n`"),
        ({"n": "two"}, "BadRequestError", "`n`"),
        ({"max_tokens": 0}, "BadRequestError", "max_tokens"),
        ({"max_tokens": -1}, "BadRequestError", "max_tokens"),
        ({"max_tokens": 401}, "APIStatusError", "at most 400"),
        ({"prompt": [[1] * 300], "max_tokens": 300}, "BadRequestError", "at most 512"),
        ({"prompt": [1] * 513}, "BadRequestError", "513 tokens"),
        ({"prompt": "a" * 2000}, "BadRequestError", "at most 512"),
        ({"prompt": []}, "BadRequestError", "prompt"),
        ({"prompt": [[]]}, "BadRequestError", "empty"),
        ({"prompt": ["a", [1]]}, "BadRequestError", "prompt"),
        ({"prompt": [1, "a"]}, "BadRequestError", "prompt"),
        ({"prompt": ["a", 1.5]}, "BadRequestError", "prompt"),
        ({"prompt": [300]}, "BadRequestError", "token 300"),
        ({"logprobs": -1}, "BadRequestError", "logprobs"),
        ({"logprobs": 21}, "BadRequestError", "logprobs"),
        ({"logprobs": True}, "BadRequestError", "logprobs"),
        ({"echo": "yes"}, "BadRequestError", "echo"),
        ({"echo": True, "logprobs": 1}, "BadRequestError", "echo"),
        ({"best_of": 2}, "BadRequestError", "best_of"),
        ({"stop": [""]}, "BadRequestError", "stop"),
        ({"stop": [1]}, "BadRequestError", "stop"),
        ({"stop": ["a"] * 17}, "BadRequestError", "stop"),
        ({"stop": "a" * 257}, "BadRequestError", "stop"),
        ({"temperature": "hot"}, "BadRequestError", "temperature"),
        ({"seed": -1}, "BadRequestError", "seed"),
        ({"seed": 1.5}, "BadRequestError", "seed"),
        ({"suffix": "after"}, "BadRequestError", "suffix"),
        ({"stream": "yes"}, "BadRequestError", "stream"),
        ({"extra_body": {"foo": 1}}, "BadRequestError", "foo"),
        ({"extra_body": {"stop_token_ids": {}}}, "BadRequestError", "stop_token_ids"),
        ({"model": "nothing"}, "NotFoundError", "nothing"),
        ({"model": ""}, "BadRequestError", "model"),
        ({"model": "dense"}, "BadRequestError", "generation"),
        ({"model": "other"}, "BadRequestError", "tokens up to 300"),
    ],
)
def test_what_is_refused(client: Any, options: dict[str, Any], kind: str, said: str) -> None:
    """With an error of OpenAI's form, whose message and class clients can read."""
    asked = {"model": "chat", "prompt": "a", "max_tokens": 3} | options
    with pytest.raises(getattr(openai, kind)) as caught:
        list(client.completions.create(**{"stream": True, **asked}))
    assert said in caught.value.body["message"]
    assert caught.value.code.endswith(("Error", "Busy"))
    assert 400 <= caught.value.status_code < 500


def test_a_tokenizer_of_another_model_leaves_tokens(client: Any, server: Running) -> None:
    found = client.completions.create(model="other", prompt=FIRST["prompt_tokens"], max_tokens=24, temperature=0)
    assert (found.choices[0].token_ids, found.choices[0].text) == (FIRST["tokens"], "")
    assert server.log.count("model `other` has no text") == 1


def test_an_error_within_a_stream_is_an_event(client: Any) -> None:
    """Of one of several answers; the client raises it, and the other answers end."""
    asked = {"model": "chat", "prompt": [FIRST["prompt_tokens"], [999]], "max_tokens": 400, "stream": True}
    with pytest.raises(openai.APIError, match="999"):
        list(client.completions.create(**asked))


def test_many_clients(client: Any) -> None:
    def ask(index: int) -> bool:
        expected = EXPECTED["completions"][index % 3]
        asked = {"model": "chat", "prompt": expected["prompt"], "max_tokens": 24, "temperature": 0}
        if index % 2:
            return joined(client.completions.create(**asked, stream=True))[0] == expected["text"]
        return bool(client.completions.create(**asked).choices[0].text == expected["text"])

    with concurrent.futures.ThreadPoolExecutor(6) as pool:
        assert all(pool.map(ask, range(24)))


@pytest.mark.parametrize("stream", [False, True])
def test_clients_that_go_away_make_room(server: Running, stream: bool) -> None:
    """All answers of their requests end."""
    labels = 'engine_requests_total{end="Cancelled",model="chat"'
    before = server.metric(labels)
    host, port = server.http.split(":")
    asked = {"model": "chat", "prompt": "a", "max_tokens": 400, "n": 8, "stream": stream}
    body = json.dumps(asked | {"ignore_eos": True}).encode()
    head = f"POST /openai/v1/completions HTTP/1.1\r\nHost: {host}\r\nContent-Length: {len(body)}\r\n\r\n"
    with socket.create_connection((host, int(port)), timeout=60) as gone:
        gone.sendall(head.encode() + body)
        wait_for(lambda: server.metric('engine_queue_length{model="chat"') >= 1)
    wait_for(lambda: server.metric('engine_running_inferences{model="chat"') == 0)
    assert server.metric(labels) > before


def test_nothing_failed_inside(server: Running) -> None:
    assert "Traceback" not in server.log
    assert "never retrieved" not in server.log
