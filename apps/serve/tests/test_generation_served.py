"""Tokens over the wire. If this fails, a client gets another's tokens, or those that have gone keep their caches."""

from __future__ import annotations

import concurrent.futures
import json
import queue
import shutil
import socket
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto

from apps.serve.tests.conftest import Running, collecting, dense, running, wait_for, write
from engine import Core
from engine.generation import Generator, Sampling
from engine.passes import MakeStateful
from tests.genai_decoders import Decoder

DECODER = Path(__file__).parents[3] / "tests" / "fixtures" / "decoders" / "llama.dynamo23.onnx"
CONFIG = 'device = "CPU"\nqueue_size = 2\n[generation]\nslots = 2\nmax_tokens = 2000\n'
PROMPTS = [[3, 14, 15, 9], [2], [7, 1, 8], [31]]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("generated") / "models"
    target = folder / "llama"
    target.mkdir(parents=True)
    for path in DECODER.parent.glob(DECODER.name + "*"):
        shutil.copy(path, target / path.name.replace(DECODER.name, "model.onnx"))
    (target / "config.toml").write_text(CONFIG)
    write(folder, "dense", dense(), 'device = "CPU"\n')
    with running(folder) as found:
        yield found


@pytest.fixture(scope="module")
def alone() -> Any:
    core = Core()
    model = core.read_model(DECODER)
    MakeStateful().run_on_model(model)
    network = core.compile_model(model, "CPU")
    return lambda prompt, count: Generator(network).generate(prompt, count)[0]


def post(server: Running, path: str, body: Any) -> Any:
    request = urllib.request.Request(
        f"http://{server.http}{path}", json.dumps(body).encode(), {"content-type": "application/json"}
    )
    return urllib.request.urlopen(request, timeout=60)


def events(response: Any) -> Iterator[Any]:
    for line in response:
        if line.startswith(b"data: "):
            text = line.removeprefix(b"data: ").decode().strip()
            yield text if text == "[DONE]" else json.loads(text)


def test_tokens_at_once(server: Running, alone: Any) -> None:
    import tritonclient.grpc
    import tritonclient.http

    for module, address in ((tritonclient.http, server.http), (tritonclient.grpc, server.grpc)):
        client = module.InferenceServerClient(address)
        given = module.InferInput("input_ids", [1, 4], "INT64")
        given.set_data_from_numpy(np.array([PROMPTS[0]]))
        found = client.infer("llama", [given], parameters={"max_tokens": 7}).as_numpy("tokens")
        assert found.tolist() == [alone(PROMPTS[0], 7)]
        client.close()


@pytest.mark.parametrize("is_batched", [True, False])
def test_a_model_with_grouped_query_attention(tmp_path: Path, is_batched: bool) -> None:
    """It has no `position_ids`, and writes each sequence at the beginning of its row. Here, it also keeps prefixes."""
    core, target = Core(), tmp_path / "models" / "grouped"
    target.mkdir(parents=True)
    decoder = Decoder(("packed", 16), ("windowed", 16))
    if not is_batched:  # what it computes depends on the columns of a batch, as with a LongRoPE
        decoder.nodes[-1].output[0] = "product"
        decoder.add("Cast", ["columns"], ["real"], to=TensorProto.FLOAT)
        decoder.add("Mul", ["product", "real"], ["logits"])
    (target / "model.onnx").write_bytes(decoder.proto().SerializeToString())
    (target / "config.toml").write_text(CONFIG + "prefix_cache_mib = 1\n")
    model = core.read_model(target / "model.onnx")
    MakeStateful().run_on_model(model)
    network = core.compile_model(model, "CPU")

    def generate(prompt: list[int]) -> list[int]:
        with post(server, "/v2/models/grouped/generate", {"input_ids": prompt, "parameters": {"max_tokens": 9}}) as got:
            return list(json.loads(got.read())["tokens"])

    with running(tmp_path / "models") as server, concurrent.futures.ThreadPoolExecutor(4) as pool:
        found = list(pool.map(generate, PROMPTS))
        chat = [*PROMPTS[0], *generate(PROMPTS[0]), 3, 14, 15, 9, 2, 6]
        chat += generate(chat)
        last = generate([*chat, 5])
        labels = '{model="grouped"'
        assert server.metric("engine_prefix_tokens_total" + labels) >= len(chat) - 1
        prompts = [*PROMPTS, PROMPTS[0], chat[:-9], [*chat, 5]]
        assert server.metric("engine_prompt_tokens_total" + labels) == sum(map(len, prompts))
    assert last == Generator(network).generate([*chat, 5], 9)[0]
    assert found == [Generator(network).generate(prompt, 9)[0] for prompt in PROMPTS]


def test_numbers_that_are_not_tokens(server: Running) -> None:
    """1.5 is not read as 1."""
    tensor = {"name": "input_ids", "shape": [1], "datatype": "INT64", "data": [1.5]}
    with pytest.raises(urllib.error.HTTPError, match="400"):
        post(server, "/v2/models/llama/infer", {"inputs": [tensor]})


def test_a_stream_over_grpc(server: Running, alone: Any) -> None:
    """Each token is a response, as soon as it is computed; a request that is refused does not end the stream."""
    import tritonclient.grpc

    client, answers = tritonclient.grpc.InferenceServerClient(server.grpc), queue.Queue[Any]()
    client.start_stream(lambda result, error: answers.put((result, error)))
    for prompt in ([31], [999_999]):
        given = tritonclient.grpc.InferInput("input_ids", [1], "INT64")
        given.set_data_from_numpy(np.array(prompt))
        client.async_stream_infer("llama", [given], parameters={"max_tokens": 5})
    found = [answers.get(timeout=30) for _ in range(6)]
    assert [result.as_numpy("tokens").item() for result, _ in found[:5]] == alone([31], 5)
    assert "InputError" in str(found[5][1])
    client.stop_stream()
    client.close()


def test_streams_of_several_clients_over_http(server: Running, alone: Any) -> None:
    def generate(prompt: list[int]) -> list[int]:
        body = {"input_ids": prompt, "parameters": {"max_tokens": 9}}
        with post(server, "/v2/models/llama/generate_stream", body) as response:
            return [token for event in events(response) for token in event["tokens"]]

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        assert list(pool.map(generate, PROMPTS)) == [alone(prompt, 9) for prompt in PROMPTS]
    assert server.metric('engine_tokens_total{model="llama"') >= 36


def test_completions_as_openai_clients_ask(server: Running, alone: Any) -> None:
    """With what they send that does not change the answer."""
    body = {"model": "llama", "prompt": PROMPTS[0], "max_tokens": 4, "n": 1, "stop": None, "presence_penalty": 0.0}
    body |= {"temperature": 0}
    body |= {"user": "a", "metadata": {"a": "b"}, "store": True, "service_tier": "auto", "stop_token_ids": []}
    with post(server, "/openai/v1/completions", body) as response:
        answer = json.load(response)
    assert answer["choices"][0]["token_ids"] == alone(PROMPTS[0], 4)
    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["usage"] == {"prompt_tokens": 4, "completion_tokens": 4, "total_tokens": 8}
    with post(server, "/openai/v1/completions", body | {"stream": True}) as response:
        *pieces, last = events(response)
    assert [token for piece in pieces for token in piece["choices"][0]["token_ids"]] == alone(PROMPTS[0], 4)
    assert last == "[DONE]"
    assert not any("usage" in piece for piece in pieces)
    assert [piece["choices"][0]["finish_reason"] for piece in pieces] == [None] * 4 + ["length"]
    options = {"stream": True, "stream_options": {"include_usage": True}}
    with post(server, "/openai/v1/completions", body | options) as response:
        *pieces, usage, last = events(response)
    assert [token for piece in pieces for token in piece["choices"][0]["token_ids"]] == alone(PROMPTS[0], 4)
    assert {piece["usage"] for piece in pieces} == {None}
    assert (usage["choices"], usage["usage"], last) == ([], answer["usage"], "[DONE]")
    assert usage["id"] == pieces[0]["id"]
    (model,) = json.loads(server.get("/openai/v1/models")[1])["data"]
    assert model | {"created": 0} == {"id": "llama", "object": "model", "created": 0, "owned_by": "engine"}


def test_completions_with_penalties_and_biases(server: Running) -> None:
    core = Core()
    model = core.read_model(DECODER)
    MakeStateful().run_on_model(model)
    options: dict[str, Any] = {"presence_penalty": 1.5, "frequency_penalty": 0.5, "min_p": 0.2}
    sampling = Sampling(temperature=0.5, seed=3, logit_bias={7: 2.5, 26: -100}, **options)
    expected = Generator(core.compile_model(model, "CPU"), sampling).generate(PROMPTS[0], 12)[0]
    body = {"model": "llama", "prompt": PROMPTS[0], "max_tokens": 12, "temperature": 0.5, "seed": 3, **options}
    with post(server, "/openai/v1/completions", body | {"logit_bias": {"7": 2.5, "26": -100}}) as response:
        assert json.load(response)["choices"][0]["token_ids"] == expected


def test_completions_that_a_stop_token_ends(server: Running, alone: Any, tmp_path: Path) -> None:
    """Clients ask for more after "length", and take an answer with "stop" as complete."""
    tokens = alone(PROMPTS[0], 4)
    shutil.copytree(Path(server.process.args[4]) / "llama", tmp_path / "models" / "llama")  # type: ignore[index]
    (tmp_path / "models" / "llama" / "config.toml").write_text(f"{CONFIG}stop_tokens = [{tokens[3]}]\n")
    with running(tmp_path / "models") as stopping:
        for most, given, reason in ((3, 3, "length"), (4, 4, "stop"), (9, 4, "stop")):
            body = {"model": "llama", "prompt": PROMPTS[0], "max_tokens": most, "temperature": 0}
            with post(stopping, "/openai/v1/completions", body) as response:
                (choice,) = json.load(response)["choices"]
            assert (choice["token_ids"], choice["finish_reason"]) == (tokens[:given], reason)
            with post(stopping, "/openai/v1/completions", body | {"stream": True}) as response:
                *pieces, _ = events(response)
            assert [piece["choices"][0]["finish_reason"] for piece in pieces] == [None] * given + [reason]


@pytest.mark.parametrize(
    ("body", "status", "reason"),
    [
        ({"model": "llama", "prompt": "text"}, 400, "tokenizer.json"),
        ({"model": "llama"}, 400, "prompt"),
        ({"model": "llama", "prompt": [1], "input_ids": [1]}, 400, "both given"),
        ({"model": "llama", "prompt": [1, "a"]}, 400, "numbers of tokens"),
        ({"model": "llama", "prompt": [10**9]}, 400, "1000000000"),
        ({"model": "llama", "prompt": [1], "max_tokens": 9999}, 413, "at most 2000"),
        ({"model": "llama", "prompt": [1], "max_tokens": 0}, 400, "max_tokens"),
        ({"model": "llama", "prompt": [1], "temperature": -1}, 400, "temperature"),
        ({"model": "llama", "prompt": [1], "temperature": "warm"}, 400, "temperature"),
        ({"model": "llama", "prompt": [1], "temperature": 10**400}, 400, "JSON"),
        ({"model": "llama", "prompt": [1], "temperature": float("nan")}, 400, "JSON"),
        ({"model": "llama", "prompt": [10**30]}, 400, "numbers of tokens"),
        *(
            ({"model": "llama", "prompt": [1], name: value}, 400, f"`{name}`")
            for name, value in {
                "stop": ["."], "n": 0, "best_of": 3, "echo": True, "suffix": "a", "logprobs": 21,
                "logit_bias": {"a": 2}, "presence_penalty": 2.5, "frequency_penalty": -3, "stop_token_ids": [-2],
                "min_tokens": 3, "min_p": 1.1,
                "ignore_eos": 1, "response_format": {"type": "json_object"}, "guided_json": {}, "foo_bar": 1,
                "repetition_penalty": 1e308, "temperature": 1e6, "top_p": 1.5, "top_k": 2**40, "seed": 2**64,
                "max_tokens": -(10**18), "timeout": 1, "priority": 1,
            }.items()
        ),
        *(
            ({"model": "llama", "prompt": [1], "logit_bias": bias}, 400, "logit_bias")
            for bias in (3, [1], {"-1": 1}, {"1": 101}, {"1": "x"}, {"1": None}, {"1.5": 1}, {"32": 1}, {"9" * 99: 1},
                         {str(token): 1 for token in range(1025)}, {"1": 1, "01": 2})
        ),
        ({"model": "llama", "prompt": [1], "temperature": "9" * 10_000}, 400, "temperature"),
        *(({"model": "llama", "prompt": [1], "stop": stop}, 400, "`stop` is") for stop in (0, False, {}, [""], [1])),
        ({"model": "llama", "prompt": [1], "stream_options": 1}, 400, "stream_options"),
        ({"model": "llama", "prompt": [1], "stream_options": {"include_usage": 1}}, 400, "include_usage"),
        ({"model": "llama", "prompt": [1], "stream_options": {"chunks": 1}}, 400, "chunks"),
        ({"model": "dense", "prompt": [1]}, 400, "[generation]"),
        ({"model": "nothing", "prompt": [1]}, 404, "nothing"),
        ([], 400, "object"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("streams", [False, True])
def test_refusals(server: Running, body: Any, status: int, reason: str, streams: bool) -> None:
    asked = body | {"stream": streams} if isinstance(body, dict) else body
    with pytest.raises(urllib.error.HTTPError) as caught:
        post(server, "/openai/v1/completions", asked)
    assert (caught.value.code, reason in caught.value.read().decode()) == (status, True)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ({"input_ids": [1], "max_tokens": 3}, "put parameters into `parameters`"),
        ({"input_ids": [1], "parameters": {"stop": ["."]}}, "`stop`"),
        ({"input_ids": [1], "parameters": {"details": True}}, "`details`"),
        ({"input_ids": [1], "parameters": [1]}, "`parameters` must be an object"),
        ({"input_ids": [1], "text_input": "a"}, "both given"),
    ],
)
@pytest.mark.parametrize("route", ["generate", "generate_stream"])
def test_what_generate_refuses(server: Running, route: str, body: Any, reason: str) -> None:
    with pytest.raises(urllib.error.HTTPError) as caught:
        post(server, f"/v2/models/llama/{route}", body)
    assert (caught.value.code, reason in caught.value.read().decode()) == (400, True)


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_parameters_of_an_inference(server: Running, alone: Any, protocol: str) -> None:
    """Those with fractions arrive over gRPC, too, and what is not supported is refused by its name."""
    import tritonclient.grpc
    import tritonclient.http
    from tritonclient.utils import InferenceServerException

    module = tritonclient.http if protocol == "http" else tritonclient.grpc
    client = module.InferenceServerClient(server.http if protocol == "http" else server.grpc)
    given = module.InferInput("input_ids", [1, 4], "INT64")
    given.set_data_from_numpy(np.array([PROMPTS[0]]))

    def ask(**options: Any) -> Any:
        return client.infer("llama", [given], **options).as_numpy("tokens").tolist()[0]

    drawn = {"max_tokens": 12, "seed": 3, "temperature": 5.0}
    body = {"input_ids": PROMPTS[0], "parameters": drawn}
    with post(server, "/v2/models/llama/generate", body) as response:
        expected = json.load(response)["tokens"]
    assert ask(parameters=drawn) == expected != alone(PROMPTS[0], 12)
    for options, said in (
        ({"parameters": {"stop_words": "a"}}, "stop_words"),
        ({"parameters": {"repetition_penalty": 1e308}}, "repetition_penalty"),
        ({"priority": 2}, "priority"),
        ({"sequence_id": 7}, "sequence_"),
        ({"outputs": [module.InferRequestedOutput("tokens", class_count=2)]}, "classification"),
        ({"outputs": [module.InferRequestedOutput("logits")]}, "logits"),
    ):
        with pytest.raises(InferenceServerException, match=said) as caught:
            ask(**options)
        assert caught.value.status() in ("400", "StatusCode.INVALID_ARGUMENT")
    client.close()


def test_options_of_a_stream_that_is_none(server: Running) -> None:
    body = {"model": "llama", "prompt": [1], "stream_options": {"include_usage": True}}
    with pytest.raises(urllib.error.HTTPError) as caught:
        post(server, "/openai/v1/completions", body)
    assert (caught.value.code, "`stream_options`" in caught.value.read().decode()) == (400, True)


def test_traces_of_answers_of_tokens(server: Running, tmp_path: Path) -> None:
    """Each answer has a span, of all protocols, as a child of the client's; the log names the trace of a refusal."""
    import tritonclient.grpc

    def headers(number: int) -> dict[str, str]:
        return {"traceparent": f"00-{number:032x}-{7:016x}-01"}

    def ask(path: str, number: int, prompt: list[int]) -> Any:
        given: Any = {"input_ids": prompt, "parameters": {"max_tokens": 3}}
        if "completions" in path:
            given = {"prompt": prompt, "model": "llama", "max_tokens": 3, "stream": True}
        request = urllib.request.Request(f"http://{traced.http}{path}", json.dumps(given).encode(), headers(number))
        return urllib.request.urlopen(request, timeout=60).read()

    shutil.copytree(Path(server.process.args[4]) / "llama", tmp_path / "models" / "llama")  # type: ignore[index]
    (tmp_path / "models" / "llama" / "config.toml").write_text(CONFIG.replace("2000", "3"))
    with (
        collecting() as (env, received),
        running(tmp_path / "models", "--traces", "--log-format", "json", env=env) as traced,
    ):
        ask("/openai/v1/completions", 1, [3, 14])
        ask("/v2/models/llama/generate_stream", 2, [3, 14])
        ask("/v2/models/llama/generate", 3, [3, 14])
        client, answers = tritonclient.grpc.InferenceServerClient(traced.grpc), queue.Queue[Any]()
        given = tritonclient.grpc.InferInput("input_ids", [2], "INT64")
        given.set_data_from_numpy(np.array([3, 14]))
        client.infer("llama", [given], headers=headers(4))
        client.start_stream(lambda result, error: answers.put((result, error)), headers=headers(5))
        client.async_stream_infer("llama", [given])
        assert [answers.get(timeout=30)[1] for _ in range(3)] == [None] * 3
        client.stop_stream()
        client.close()
        with pytest.raises(urllib.error.HTTPError, match="400"):
            ask("/v2/models/llama/generate", 6, [999_999])
        parts = {(number, name) for number in range(1, 6) for name in ("generate", "first token", "further tokens")}
        parts.add((6, "generate"))
        wait_for(lambda: parts <= {(int.from_bytes(span.trace_id, "big"), span.name) for span in received})
        # The spans of FastAPI around them are sent last, at the latest at the end of the server.
        (refused,) = [json.loads(line) for line in traced.log.splitlines() if '"refused' in line]
    assert refused["trace_id"] == f"{6:032x}"
    whole = {int.from_bytes(span.trace_id, "big"): span for span in received if span.name == "generate"}
    by_identity = {span.span_id: span for span in received}
    for number, span in whole.items():
        numbers = {each.key: each.value.int_value for each in span.attributes if each.key.startswith("tokens.")}
        assert numbers == {"tokens.prompt": 1 if number == 6 else 2, "tokens.answer": 0 if number == 6 else 3}
        parts_of = [each for each in received if each.trace_id == span.trace_id and " token" in each.name]
        assert all(part.parent_span_id == span.span_id for part in parts_of)
        ancestor = span
        while ancestor.parent_span_id in by_identity:  # FastAPI has spans of its own
            ancestor = by_identity[ancestor.parent_span_id]
        assert int.from_bytes(ancestor.parent_span_id, "big") == 7
    assert (whole[1].status.code, whole[6].status.code) == (0, 2)


def begin(server: Running) -> socket.socket:
    """Ask for a long answer, which nobody reads."""
    host, port = server.http.split(":")
    body = json.dumps({"input_ids": [3], "parameters": {"max_tokens": 2000}}).encode()
    client = socket.create_connection((host, int(port)), timeout=60)
    head = f"POST /v2/models/llama/generate_stream HTTP/1.1\r\nHost: {host}\r\nContent-Length: {len(body)}\r\n\r\n"
    client.sendall(head.encode() + body)
    return client


def test_clients_that_go_away_make_room(server: Running, alone: Any) -> None:
    """Two run and two wait, and the next is refused; when they are gone, there is room again at once."""
    cancelled = server.metric('engine_requests_total{end="Cancelled",model="llama"')
    with begin(server), begin(server), begin(server), begin(server):
        wait_for(lambda: server.metric('engine_queue_length{model="llama"') == 2)
        with pytest.raises(urllib.error.HTTPError, match="503"):
            post(server, "/v2/models/llama/generate", {"input_ids": [2]})
    wait_for(lambda: server.metric('engine_requests_total{end="Cancelled",model="llama"') == cancelled + 4)
    wait_for(lambda: server.metric('engine_running_inferences{model="llama"') == 0)
    with post(server, "/v2/models/llama/generate", {"input_ids": [2], "parameters": {"max_tokens": 5}}) as response:
        assert json.load(response)["tokens"] == alone([2], 5)


def test_nothing_failed_inside(server: Running) -> None:
    assert "Traceback" not in server.log
