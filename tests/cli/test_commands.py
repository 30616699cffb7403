"""Each command does its job, on a real network where that matters."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import tokenizers
from onnx import helper, numpy_helper

import engine as engine_package
from engine import Core
from engine.generation import Generator, Scheduler, read_adapter
from engine.passes import MakeAdaptable, MakeStateful
from engine.testing.behaviour.basic import BASIC
from engine.testing.behaviour.cases import CASES, make_model, tensor
from engine.testing.models import light_answer, light_input, light_tolerance, relative_error
from tests.genai_decoders import Decoder
from tests.test_adapters import PLAIN, tensors_of, write_folder

Engine = Callable[..., Any]
CASE = {case.name: case for case in CASES}


@pytest.mark.parametrize("source", ["squeezenet.onnx", pytest.param("squeezenet.blob", marks=pytest.mark.slow)])
def test_run_on_a_real_network(engine_process: Engine, files: Path, tmp_path: Path, source: str) -> None:
    out = tmp_path / "out.npz"
    device = ["-d", "TEMPLATE"] if source.endswith(".onnx") else []
    done = engine_process("run", files / source, *device, "-i", files / "squeezenet_input.npz", "-o", out)
    assert (done.code, done.err) == (0, "")
    assert "f32[1,1000,1,1]" in done.out
    with np.load(out) as outputs:
        (result,) = outputs.values()
    assert relative_error(result, light_answer("squeezenet")) <= light_tolerance("squeezenet")
    tolerance = ["--atol", 1e-4]
    reference = files / "squeezenet_answer.npy"
    done = engine_process(
        "run", files / source, *device, "-i", files / "squeezenet_input.npz", "--reference", reference, *tolerance
    )
    assert (done.code, done.err) == (0, "")
    assert "ok" in done.out
    done = engine_process("run", files / source, *device, "--reference", reference, *tolerance)
    assert done.code == 1, "random inputs do not give this answer"
    assert "DIFFERS" in done.out


def test_run_compares_every_output_and_reports_the_difference(engine: Engine, files: Path, tmp_path: Path) -> None:
    answer = dict(BASIC.sample().outputs)
    common = ["run", files / "basic.onnx", "-d", "TEMPLATE", "-i", files / "basic_input.npz", "--json"]
    found = json.loads(engine(*common, "--reference", files / "basic_answer.npz").out)
    assert found["close"] is True
    assert [c["name"] for c in found["comparison"]] == ["total", "product"]
    answer["product"] = answer["product"].copy()
    answer["product"][1, 2] += 0.5
    np.savez(tmp_path / "wrong.npz", **answer)
    done = engine(*common, "--reference", tmp_path / "wrong.npz")
    total, product = json.loads(done.out)["comparison"]
    assert done.code == 1
    assert (total["close"], product["close"], product["mismatches"], product["size"]) == (True, False, 1, 6)
    assert product["max_absolute"] == 0.5
    assert engine(*common, "--reference", tmp_path / "wrong.npz", "--atol", "0.5").code == 0
    np.save(tmp_path / "product.npy", BASIC.sample().outputs["product"])
    assert engine(*common, "--reference", f"product={tmp_path / 'product.npy'}").code == 0
    np.save(tmp_path / "product.npy", np.zeros((3, 2), np.float32))
    done = engine(*common, "--reference", f"product={tmp_path / 'product.npy'}")
    assert done.code == 1
    assert "shape is (2, 3), expected (3, 2)" in json.loads(done.out)["comparison"][0]["problem"]


def test_run_compares_two_devices(engine: Engine, files: Path) -> None:
    done = engine("run", files / "squeezenet.onnx", "-d", "TEMPLATE", "--reference-device", "TEMPLATE", "--rtol", 0)
    assert done.code == 0
    assert "0 of 1000 differ" in done.out


def test_run_makes_the_same_inputs_for_the_same_seed(engine: Engine, files: Path, tmp_path: Path) -> None:
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        engine("run", files / "basic.blob", "--seed", seed, "-o", tmp_path / f"{name}.npz")
    a, b, c = (dict(np.load(tmp_path / f"{name}.npz")) for name in "abc")
    assert all((a[name] == b[name]).all() for name in a)
    assert any((a[name] != c[name]).any() for name in a)


def test_run_takes_and_gives_the_layout_of_onnx_test_data(engine: Engine, tmp_path: Path) -> None:
    case = CASE["sequence"]
    model, data = tmp_path / "model.onnx", tmp_path / "data"
    onnx.save(case.model, model)
    data.mkdir()
    for position, (name, value) in enumerate(case.samples[0].inputs.items()):
        (data / f"input_{position}.pb").write_bytes(numpy_helper.from_array(value, name).SerializeToString())
    assert engine("run", model, "-d", "TEMPLATE", "-i", data, "-o", data).code == 0
    assert sorted(file.name for file in data.iterdir()) == ["input_0.pb", "input_1.pb", "output_0.pb", "output_1.pb"]
    done = engine("run", model, "-d", "TEMPLATE", "-i", data, "--reference", data)
    assert done.code == 0
    assert "pair[1]" in done.out


def test_an_open_batch_of_random_inputs_is_one(engine: Engine, tmp_path: Path) -> None:
    model = tmp_path / "model.onnx"
    onnx.save(CASE["dynamic_batch"].model, model)
    done = engine("run", model, "-d", "template")
    assert done.code == 0
    assert "y: f32[1,2]" in done.out
    assert done.err == "input `x` is f32[N,3]: its batch is taken to be 1; --shape x=.. sets it\n"
    done = engine("run", model, "-d", "TEMPLATE", "--shape", "x=5,3")
    assert (done.code, done.err) == (0, "")
    assert "y: f32[5,2]" in done.out


def _added(tmp_path: Path, *shapes: list[str]) -> Path:
    """A model that adds two inputs of these shapes."""
    inputs = [helper.make_tensor_value_info(name, 1, dims) for name, dims in zip("ab", shapes, strict=True)]
    graph = helper.make_graph(
        [helper.make_node("Add", ["a", "b"], ["y"])], "g", inputs, [helper.make_tensor_value_info("y", 1, None)]
    )
    onnx.save(helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)]), tmp_path / "m.onnx")
    return tmp_path / "m.onnx"


def test_random_inputs_have_the_lengths_of_those_that_are_given(engine: Engine, tmp_path: Path) -> None:
    model = _added(tmp_path, ["N", "T"], ["N", "T"])
    np.save(tmp_path / "a.npy", np.zeros((3, 4), np.float32))
    done = engine("run", model, "-d", "TEMPLATE", "-i", f"a={tmp_path / 'a.npy'}")
    assert (done.code, done.err) == (0, "")
    assert "y: f32[3,4]" in done.out


def test_run_asks_for_an_open_length_that_is_not_the_batch(engine: Engine, tmp_path: Path) -> None:
    done = engine("run", _added(tmp_path, ["N", "T"], ["N", "T"]), "-d", "TEMPLATE")
    assert (done.code, done.err.count("\n")) == (3, 1)
    assert "pass its shape, such as a=1,1" in done.err
    assert "--shape" in done.err


def test_devices_may_be_written_in_lower_case(engine: Engine, files: Path) -> None:
    done = engine("query", files / "basic.onnx", "-d", "hetero:template,cpu", "--json")
    assert json.loads(done.out)["device"] == "HETERO:TEMPLATE,CPU"
    assert engine("devices", "cpu").code == 0


def test_a_shape_reshapes_the_model_before_it_is_compiled(engine: Engine, tmp_path: Path) -> None:
    model, blob = tmp_path / "dynamic.onnx", tmp_path / "fixed.blob"
    onnx.save(CASE["dynamic_batch"].model, model)
    assert engine("compile", model, "-d", "TEMPLATE", "--shape", "x=5,3", "-o", blob).code == 0
    described = json.loads(engine("inspect", blob, "--json").out)
    assert [port["type"] for port in described["inputs"]] == ["f32[5,3]"]
    described = json.loads(engine("inspect", model, "--shape", "x=1..8,3", "--json").out)
    assert [port["type"] for port in described["inputs"]] == ["f32[1..8,3]"]
    done = engine("query", model, "-d", "TEMPLATE", "--shape", "x=5,4")
    assert done.code == 3
    assert "cannot be reshaped to `x` [5,4]" in done.err
    done = engine("inspect", blob, "--shape", "x=5,3")
    assert done.code == 2
    assert "whose inputs keep their shapes" in done.err


def test_steps_become_part_of_the_model(engine: Engine, tmp_path: Path) -> None:
    model, blob, values = tmp_path / "model.onnx", tmp_path / "model.blob", tmp_path / "x.npy"
    onnx.save(CASE["dynamic_batch"].model, model)
    np.save(values, np.array([[2, 4, 6], [1, 0, 1]], np.uint8))
    steps = ["--preprocess", "x=input(u8, NC).scale([2, 4, 6])", "--preprocess", "y=output().argmax().to_type(i32)"]
    refused = engine("compile", model, "-d", "TEMPLATE", *steps, "-o", blob)
    assert (refused.code, "model_layout" in refused.err) == (3, True)
    steps[1] = "x=input(u8, NC, model_layout=NC).scale([2, 4, 6])"
    assert engine("compile", model, "-d", "TEMPLATE", *steps, "-o", blob).code == 0
    described = json.loads(engine("inspect", blob, "--json").out)
    assert [port["type"] for port in described["inputs"]] == ["u8[N,3]"]
    assert [port["preprocess"]["steps"] for port in described["outputs"]] == [["argmax()", "to_type(i32)"]]
    assert "\n  x: u8[N,3] (NC)\n    scale([2.0, 4.0, 6.0])\n" in engine("inspect", blob).out
    done = engine("run", blob, "-i", f"x={values}", "--json")
    assert [(output["name"], output["type"]) for output in json.loads(done.out)["outputs"]] == [("y", "i32[2]")]
    same = engine("run", model, "-d", "TEMPLATE", *steps, "-i", f"x={values}", "--reference-device", "CPU", "--json")
    assert (same.code, json.loads(same.out)["close"]) == (0, True)
    for command in ("query", "inspect", "benchmark"):
        more = {"query": ["-d", "TEMPLATE"], "benchmark": ["-d", "TEMPLATE", "--count", "1"]}.get(command, [])
        given = ["-i", f"x={values}"] if command == "benchmark" else []
        done = engine(command, model, *more, *steps, *given)
        assert done.code == 0, done.err


def test_compile_writes_a_blob_that_another_process_loads(engine_process: Engine, files: Path, tmp_path: Path) -> None:
    done = engine_process("compile", files / "squeezenet.onnx", "-d", "TEMPLATE", "-c", "PERF_COUNT=yes", cwd=tmp_path)
    assert done.code == 0
    assert "wrote squeezenet.blob: 5.0 MB, for TEMPLATE" in done.out
    network = Core().import_model(tmp_path / "squeezenet.blob")
    assert network.get_config("PERF_COUNT") is True
    result = network(light_input("squeezenet"))[0]
    assert relative_error(result, light_answer("squeezenet")) <= light_tolerance("squeezenet")
    found = json.loads(engine_process("compile", files / "basic.onnx", "-d", "TEMPLATE", "--json", cwd=tmp_path).out)
    assert (found["file"], found["bytes"]) == ("basic.blob", (tmp_path / "basic.blob").stat().st_size)


def test_compile_a_stateful_model(engine: Engine, files: Path, tmp_path: Path) -> None:
    """The blob's requests keep the past; a model without pairs is refused, and writes nothing."""
    decoder = Path(__file__).parents[1] / "fixtures" / "decoders" / "llama.dynamo23.onnx"
    blob = tmp_path / "decoder.blob"
    done = engine("compile", decoder, "-d", "CPU", "--stateful", "-o", blob)
    assert (done.code, done.err) == (0, "")
    inspected = json.loads(engine("inspect", blob, "--json").out)
    assert [port["name"] for port in inspected["inputs"]] == ["input_ids", "attention_mask", "position_ids"]
    assert [(each["name"], each["axis"]) for each in inspected["variables"]] == [
        (f"past_key_values.{layer}.{part}", 2) for layer in range(2) for part in ("key", "value")
    ]
    assert "past_key_values.0.key: f32" in engine("inspect", blob).out
    static, written = decoder.with_name("llama_static.dynamo23.onnx"), tmp_path / "static.blob"
    assert engine("compile", static, "-d", "CPU", "--stateful", "-o", written).code == 0
    assert ", written along axis 2" in engine("inspect", written).out
    request = Core().import_model(blob).create_infer_request()
    ids = np.array([[1, 2, 3]])
    request.infer({"input_ids": ids, "attention_mask": np.ones_like(ids), "position_ids": ids - 1})
    assert request.length == 3
    whole = request.get_tensor("logits")
    options = ["-d", "CPU", "--stateful", "--last-position", "-o", blob]
    assert engine("compile", decoder, *options).code == 0
    request = Core().import_model(blob).create_infer_request()
    last = request.infer({"input_ids": ids, "attention_mask": np.ones_like(ids), "position_ids": ids - 1})["logits"]
    np.testing.assert_allclose(last, whole[:, -1:], rtol=1e-5, atol=1e-6)
    grouped = tmp_path / "grouped.onnx"
    grouped.write_bytes(Decoder(("packed", 16)).proto().SerializeToString())
    assert engine("compile", grouped, "-d", "CPU", "--stateful", "--masked-caches", "-o", blob).code == 0
    with Scheduler(Core().import_model(blob), 2) as scheduler:
        assert len(scheduler.submit([1, 2], 3).result()) == 3
    done = engine("compile", files / "basic.onnx", "-d", "CPU", "--stateful", "-o", tmp_path / "basic.blob")
    assert done.code == 3
    assert "no input of model `basic` has the name of a past value" in done.err
    assert not (tmp_path / "basic.blob").exists()


def test_generate(engine: Engine, tmp_path: Path) -> None:
    """From a model or a blob, the same tokens; nonsense is refused."""
    decoder = Path(__file__).parents[1] / "fixtures" / "decoders" / "llama.dynamo23.onnx"
    prompt = ["--prompt-ids", "3,14,15", "--max-tokens", 4]
    tokens = json.loads(engine("generate", decoder, "-d", "CPU", *prompt, "--json").out)["tokens"]
    assert len(tokens) == 4
    assert engine("compile", decoder, "-d", "CPU", "--stateful", "-o", tmp_path / "d.blob").code == 0
    done = engine("generate", tmp_path / "d.blob", *prompt)
    assert done.code == 0
    assert done.out.splitlines()[0].split() == [str(token) for token in tokens]
    assert "4 tokens; the first after" in done.out
    stopped = engine("generate", decoder, "-d", "CPU", *prompt, "--stop-ids", tokens[1], "--json")
    assert json.loads(stopped.out)["tokens"] == tokens[: tokens.index(tokens[1]) + 1]
    draw = [*prompt, "--temperature", 2, "--seed", 5, "--json"]
    drawn = [json.loads(engine("generate", decoder, "-d", "CPU", *draw).out)["tokens"] for _ in range(2)]
    assert drawn[0] == drawn[1]
    for wrong, code, said in (
        (["--prompt-ids", "a"], 2, "expected numbers of tokens"),
        (["--prompt-ids", "99"], 3, "token 99 is out of range; expected 0 to 31"),
        (["--prompt-ids", "1", "--top-p", "2"], 3, "top_p is 2.0; expected a number above 0, and 1 at most"),
    ):
        done = engine("generate", decoder, "-d", "CPU", *wrong)
        assert (done.code, said in done.err) == (code, True)


def test_generate_with_proposals(engine: Engine, tmp_path: Path) -> None:
    """The same tokens; a draft may be a model or a blob."""
    decoders = Path(__file__).parents[1] / "fixtures" / "decoders"
    decoder, draft, blob = decoders / "llama.dynamo23.onnx", decoders / "gpt2.script17.onnx", tmp_path / "draft.blob"
    assert engine("compile", draft, "-d", "CPU", "--stateful", "--last-position", "-o", blob).code == 0
    prompt = ["generate", decoder, "-d", "CPU", "--prompt-ids", "3,14,15,3,14", "--max-tokens", 30, "--json"]
    expected = json.loads(engine(*prompt).out)["tokens"]
    for options in (["--lookup"], ["--draft", draft], ["--draft", blob], ["--draft", decoder]):
        found = json.loads(engine(*prompt, *options).out)
        assert found["tokens"] == expected
        assert found["speculation"]["accepted"] <= found["speculation"]["proposed"]
    assert found["speculation"]["accepted"] > 15, "of the same model"
    assert engine("compile", decoder, "-d", "CPU", "--stateful", "--last-position", "-o", blob).code == 0
    done = engine("generate", blob, "--prompt-ids", "3", "--lookup")
    assert (done.code, "not the logits of all tokens" in done.err) == (3, True)
    assert engine(*prompt, "--lookup", "--draft", draft).code == 2


def test_generate_with_an_adapter(engine: Engine, tmp_path: Path) -> None:
    """A model is prepared for it; a blob must have been."""
    decoder = Path(__file__).parents[1] / "fixtures" / "decoders" / "llama.script17.onnx"
    module = "model.layers.0.self_attn.q_proj"
    folder = write_folder(tmp_path / "adapter", PLAIN, tensors_of(module, 16, 4, 16))
    prompt = ["generate", decoder, "-d", "CPU", "--prompt-ids", "3,14,15", "--max-tokens", 20, "--json"]
    found = json.loads(engine(*prompt, "--adapter", folder).out)["tokens"]
    model = Core().read_model(decoder)
    MakeStateful().run_on_model(model)
    MakeAdaptable().run_on_model(model)
    adapted = Generator(Core().compile_model(model, "CPU"), adapter=read_adapter(folder))
    assert adapted.generate([3, 14, 15], 20) == [found]
    assert json.loads(engine(*prompt).out)["tokens"] != found
    blob = tmp_path / "decoder.blob"
    assert engine("compile", decoder, "-d", "CPU", "--stateful", "-o", blob).code == 0
    done = engine("generate", blob, "--prompt-ids", "3", "--adapter", folder)
    assert (done.code, "takes no adapters" in done.err) == (3, True)


def test_generate_from_text(engine: Engine, tmp_path: Path) -> None:
    """By the tokenizer beside the model, or another one: the text of the tokens that the numbers of the prompt give."""
    decoder = tmp_path / "decoder.onnx"
    decoder.write_bytes((Path(__file__).parents[1] / "fixtures" / "decoders" / "llama.dynamo23.onnx").read_bytes())
    words = {f"w{index}": index for index in range(32)}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="w0"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    prompt = ["generate", decoder, "-d", "CPU", "--max-tokens", 4]
    by_numbers = json.loads(engine(*prompt, "--prompt-ids", "3,14,15", "--json").out)
    by_text = json.loads(engine(*prompt, "--prompt", "w3 w14 w15", "--json").out)
    assert by_text["tokens"] == by_numbers["tokens"]
    assert by_text["text"].split() == [f"w{token}" for token in by_numbers["tokens"]]
    done = engine(*prompt, "--prompt", "w3 w14 w15", "--tokenizer", tmp_path / "tokenizer.json")
    assert done.out.splitlines()[0] == by_text["text"]
    missing = engine(*prompt, "--prompt", "w3", "--tokenizer", tmp_path / "none.json")
    assert (missing.code, "none.json cannot be read as a tokenizer" in missing.err) == (3, True)
    assert engine(*prompt, "--prompt", "w3", "--prompt-ids", "3").code == 2
    words_found = by_text["text"].split()
    stopped = json.loads(engine(*prompt, "--prompt", "w3 w14 w15", "--stop", words_found[2], "--json").out)
    assert stopped["text"].split() == words_found[:2]
    assert len(stopped["tokens"]) == 3
    done = engine(*prompt, "--prompt-ids", "3", "--stop", "w3")
    assert (done.code, "--stop is a text" in done.err) == (2, True)


def test_generate_from_a_folder(engine: Engine, tmp_path: Path) -> None:
    """A folder of onnxruntime-genai's builder: its stop tokens, its settings, which options replace, and its tokenizer
    are used.
    """
    decoder = Path(__file__).parents[1] / "fixtures" / "decoders" / "llama.dynamo23.onnx"
    (tmp_path / "decoder.onnx").write_bytes(decoder.read_bytes())
    names = {"input_ids": "input_ids", "past_key_names": "past_key_values.%d.key"}
    config: dict[str, Any] = {
        "model": {"decoder": {"filename": "decoder.onnx", "inputs": names}, "context_length": 64, "eos_token_id": 99},
        "search": {"do_sample": False, "temperature": 2.0, "top_k": 50, "max_length": 9},
    }

    def generated(*options: object, folder: Path = tmp_path) -> Any:
        (tmp_path / "genai_config.json").write_text(json.dumps(config))
        return json.loads(engine("generate", folder, "-d", "CPU", "--json", "--prompt-ids", "3,14,15", *options).out)

    by_file = json.loads(engine("generate", decoder, "-d", "CPU", "--json", "--prompt-ids", "3,14,15").out)["tokens"]
    assert generated()["tokens"] == by_file[:6]  # `max_length` counts the prompt
    config["model"]["eos_token_id"] = by_file[1]
    assert generated()["tokens"] == by_file[: by_file.index(by_file[1]) + 1]
    config["model"]["eos_token_id"], config["search"]["do_sample"] = 99, True
    options = ["--temperature", 2, "--top-k", 50, "--prompt-ids", "3,14,15", "--json", "--max-tokens", 6]
    assert generated()["tokens"] == json.loads(engine("generate", decoder, "-d", "CPU", *options).out)["tokens"]
    assert generated("--temperature", 0)["tokens"] == by_file[:6]
    config["search"] |= {"do_sample": False, "num_beams": 3}
    searched = engine("generate", decoder, "-d", "CPU", *options[4:], "--prompt-ids", "3,14,15", "--beams", 3)
    assert generated()["tokens"] == json.loads(searched.out)["tokens"]
    assert generated("--beams", 1)["tokens"] == by_file[:6]
    config["search"] |= {"do_sample": True, "num_beams": 1}
    assert generated("--temperature", 0)["tokens"] == by_file[:6]
    words = {f"w{index}": index for index in range(32)}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="w0"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    command = ["generate", tmp_path, "-d", "CPU", "--temperature", 0]
    for prompt, said in (("w3", "has no tokenizer.json, which --prompt needs"), ("w3 " * 9, "expected fewer than 9")):
        done = engine(*command, "--prompt", prompt)
        assert (done.code, said in done.err) == (3, True)
        tokenizer.save(str(tmp_path / "tokenizer.json"))
    assert engine(*command, "--prompt", "w3 w14 w15").out.split()[:6] == [f"w{token}" for token in by_file[:6]]
    assert engine("generate", tmp_path.parent, "--prompt", "w3").code == 3


def test_generate_with_an_encoder(engine: Engine, tmp_path: Path) -> None:
    """An encoder of text reads the prompt; one of sound reads features, and the prompt is that of the decoder."""
    folder = Path(__file__).parents[1] / "fixtures" / "encoder_decoders"
    known = {name: json.loads((folder / name / "expected.json").read_text()) for name in ("t5", "whisper")}
    ids = ",".join(map(str, known["t5"]["input_ids"][0]))
    options = ["-d", "TEMPLATE", "--max-tokens", 16, "--json", "--stop-ids"]
    text = ["generate", folder / "t5", "--prompt-ids", ids, *options, known["t5"]["stop"]]
    assert json.loads(engine(*text).out)["tokens"] == known["t5"]["found"][0]["tokens"][0]
    assert json.loads(engine(*text, "--beams", 3).out)["tokens"] == known["t5"]["found"][1]["tokens"][0]
    first, second = known["whisper"]["waves"][0]
    waves = np.arange(3000) / 40 * first + np.arange(4)[:, None] * second
    np.save(tmp_path / "sound.npy", np.sin(waves).astype(np.float32)[None])
    sound = ["generate", folder / "whisper", "--prompt-ids", "4,7,9", *options, known["whisper"]["stop"]]
    found = json.loads(engine(*sound, "--features", tmp_path / "sound.npy").out)["tokens"]
    assert found == known["whisper"]["found"][0]["tokens"][0]
    np.save(tmp_path / "short.npy", np.zeros((1, 4, 5), np.float32))
    (tmp_path / "none.npy").write_bytes(b"")
    for wrong, code, said in (
        (sound, 2, "reads features; give them by --features"),
        ([*sound, "--features", tmp_path / "short.npy"], 3, "dimension 2 is 5, expected 3000"),
        ([*sound, "--features", tmp_path / "none.npy"], 3, "none.npy"),
        ([*text, "--features", tmp_path / "sound.npy"], 2, "the encoder reads tokens"),
        ([*text, "--lookup"], 2, "--lookup, --draft and --adapter are for models without an encoder"),
        ([*text, "--beams", 3, "--lookup"], 2, "--beams computes without proposals"),
        ([*text, "--beams", 40], 3, "beams is 40"),
        ([*text, "--beams", 3, "--temperature", 1], 3, "a beam search draws no tokens"),
    ):
        done = engine(*wrong)
        assert (done.code, said in done.err) == (code, True), done.err


def test_inspect_a_model(engine: Engine, files: Path) -> None:
    done = engine("inspect", files / "squeezenet.onnx")
    assert (done.code, done.err) == (0, "")
    for words in ("opset ai.onnx 9", "data_0: f32[1,3,224,224]", "65 operations", "Conv               26", "4.9 MB"):
        assert words in done.out
    found = json.loads(engine("inspect", files / "squeezenet.onnx", "--json").out)
    assert (found["operators"]["Relu"], found["constants"]["count"]) == (26, 52)
    assert found["inputs"] == [{"name": "data_0", "type": "f32[1,3,224,224]"}]


def test_inspect_counts_operators_in_bodies(engine: Engine, tmp_path: Path) -> None:
    onnx.save(CASE["branches"].model, tmp_path / "model.onnx")
    found = json.loads(engine("inspect", tmp_path / "model.onnx", "--json").out)
    assert found["operators"] == {"Add": 1, "If": 1, "Neg": 1}


def test_inspect_a_blob(engine: Engine, files: Path, tmp_path: Path) -> None:
    done = engine("inspect", files / "basic.blob", "--verify")
    assert (done.code, done.err) == (0, "")
    for words in ("network `basic` for TEMPLATE", "a: f32[2,3]", "product: f32[2,3]", "sound", "loads here: yes"):
        assert words in done.out
    blob = bytearray((files / "squeezenet.blob").read_bytes())
    blob[-1] ^= 1
    damaged = tmp_path / "damaged.blob"
    damaged.write_bytes(blob)
    assert engine("inspect", damaged).code == 0, "sections are not read unless asked for"
    done = engine("inspect", damaged, "--verify", "--json")
    assert done.code == 1
    found = json.loads(done.out)
    assert [s["sound"] for s in found["sections"]].count(False) == 1
    assert found["loads_here"] is False
    done = engine("inspect", damaged, "--verify")
    assert "loads here: NO\n  " in done.out
    assert "the blob was damaged: export it again" in done.out
    assert engine("run", damaged).code == 3


def test_inspect_tells_why_a_blob_does_not_load_here(engine: Engine, files: Path, tmp_path: Path) -> None:
    import io
    from dataclasses import replace

    from engine.blob import BlobReader, BlobWriter

    reader, target = BlobReader(files / "basic.blob"), io.BytesIO()
    writer = BlobWriter(replace(reader.manifest, engine_version="99.1", requirements={"isa": ["avx9999"]}))
    for name in reader.section_names:
        writer.add_section(name, reader.section(name))
    writer.write(target)
    foreign = tmp_path / "foreign.blob"
    foreign.write_bytes(target.getvalue())
    done = engine("inspect", foreign)
    assert done.code == 1
    assert "loads here: NO" in done.out
    assert "99.1" in done.out
    assert "requires isa: avx9999" in done.out
    done = engine("run", foreign)
    assert done.code == 3
    assert "avx9999" in done.err


def test_query_counts_and_names_what_is_refused(engine: Engine, files: Path, tmp_path: Path) -> None:
    done = engine("query", files / "squeezenet.onnx", "-d", "TEMPLATE")
    assert done.code == 0
    assert "Conv                   26          0        0" in done.out
    strange = helper.make_node("Strange", ["x"], ["y"], name="strange_node", domain="com.example")
    known = helper.make_node("Relu", ["y"], ["z"], name="known_node")
    model = make_model([strange, known], [tensor("x", [2])], [tensor("z", [2])], domains={"com.example": 1})
    onnx.save(model, tmp_path / "strange.onnx")
    done = engine("query", tmp_path / "strange.onnx", "-d", "TEMPLATE", "--why", "--nodes")
    assert done.code == 1
    assert "com.example.Strange       0          0        1" in done.out
    assert "known_node    Relu                 native" in done.out
    assert "refused: com.example.Strange `strange_node` (op): " in done.out
    found = json.loads(engine("query", tmp_path / "strange.onnx", "-d", "TEMPLATE", "--json").out)
    assert found["supported"] is False
    assert {node["name"]: node["support"] for node in found["nodes"]} == {
        "strange_node": "refused",
        "known_node": "native",
    }


def test_devices_and_their_properties(engine: Engine) -> None:
    done = engine("devices")
    assert done.code == 0
    assert "TEMPLATE" in done.out
    done = engine("devices", "TEMPLATE")
    assert done.code == 0
    assert "NUM_STREAMS = 0\n      How many inferences" in done.out
    assert "(one of LATENCY, THROUGHPUT)" in done.out
    found = json.loads(engine("devices", "--json").out)
    (template,) = (device for device in found["devices"] if device["device"] == "TEMPLATE")
    assert template["properties"]["PERF_COUNT"]["value"] is False
    assert "engine-plugin-template" in template["provided_by"]


def test_devices_tell_why_a_plugin_is_out_of_use(engine_process: Engine, tmp_path: Path) -> None:
    info = tmp_path / "vendor-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: vendor\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[engine.plugins]\nBROKEN = vendor_plugin:Plugin\n")
    (tmp_path / "vendor_plugin.py").write_text("raise OSError('libvendor.so is missing')\n")
    done = engine_process("devices", path=str(tmp_path))
    assert (done.code, done.err) == (0, "")
    assert "TEMPLATE" in done.out
    assert "BROKEN cannot be used" in done.out
    assert "libvendor.so is missing" in done.out
    found = json.loads(engine_process("devices", "--json", path=str(tmp_path)).out)
    # A device of the plugins that are installed may lack its driver here.
    assert [entry["device"] for entry in found["unavailable"]].count("BROKEN") == 1
    done = engine_process("devices", "BROKEN", path=str(tmp_path))
    assert done.code == 3
    assert "libvendor.so is missing" in done.err


@pytest.mark.parametrize("requests", [0, 1, 3])
def test_benchmark(engine: Engine, files: Path, requests: int) -> None:
    done = engine("benchmark", files / "basic.blob", "-n", requests, "--count", 20, "--json")
    assert (done.code, done.err) == (0, "")
    found = json.loads(done.out)
    assert (found["requests"], found["inferences"]) == (requests, 20)
    latency = found["latency_ms"]
    assert 0 < latency["min"] <= latency["median"] <= latency["p90"] <= latency["p99"] <= latency["max"]
    assert found["throughput_per_s"] == pytest.approx(20 / found["duration_s"])


def test_benchmark_of_a_model_for_a_time(engine_process: Engine, files: Path) -> None:
    done = engine_process("benchmark", files / "squeezenet.onnx", "-d", "TEMPLATE", "-t", 0, "-c", "NUM_STREAMS=2")
    assert (done.code, done.err) == (0, "")
    assert "1 in " in done.out
    assert "2 in flight" in done.out
    assert "inferences/s" in done.out


def test_version_and_installed_command(engine_process: Engine) -> None:
    done = engine_process("--version")
    assert (done.code, done.out) == (0, f"engine {engine_package.__version__}\n")
    try:
        installed = subprocess.run(["engine", "--version"], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip("the virtual environment's scripts are not on PATH")
    assert installed.stdout == done.out


def test_compare_fails_where_a_layer_is_less_like_the_original_than_asked(engine: Engine, tmp_path: Path) -> None:
    """A script that quantizes a model stops there."""
    node = helper.make_node("Mul", ["x", "factor"], ["y"])
    for name, factor in (("model", 1.0), ("other", 1.01)):
        model = make_model([node], [tensor("x", [8])], [tensor("y", [8])], {"factor": np.array([factor], np.float32)})
        onnx.save(model, tmp_path / f"{name}.onnx")
    for more in ((), ("--json",)):
        command = ("compare", tmp_path / "model.onnx", tmp_path / "other.onnx", "-d", "TEMPLATE", *more)
        assert engine(*command).code == 0
        assert engine(*command, "--min-db", "39").code == 0  # an error of a hundredth
        assert engine(*command, "--min-db", "41").code == 1
