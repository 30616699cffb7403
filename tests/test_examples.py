"""The examples for language models print what the engine generates for the same tokens.

If these fail, users who begin with an example get other text than their model's. The decoder is a fixture, so torch is
not needed; its 32 tokens are single characters.
"""

from __future__ import annotations

import importlib.util
import io
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import tokenizers

from engine import Core
from engine.generation import Generator, Sampling
from engine.passes import MakeStateful

ROOT = Path(__file__).parent.parent
DECODER = ROOT / "tests" / "fixtures" / "decoders" / "llama.dynamo23.onnx"
CHARACTERS = ["<end>", *'{}[]":,', *"0123456789", *"abcdefghijkl", "<u>", "<a>"]
TEMPLATE = "{% for m in messages %}{{ '<u>' if m.role == 'user' else '<a>' }}{{ m.content }}{% endfor %}<a>"


def example(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "examples" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def needed(package: str) -> Any:
    return pytest.importorskip(package, reason=f"{package} is not installed: pip install 'engine-sdk[tutorial]'")


@pytest.fixture(scope="module")
def blob(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("decoder") / "decoder.blob"
    model = Core().read_model(DECODER)
    MakeStateful().run_on_model(model)
    Core().compile_model(model, "CPU").export_model(path)
    return str(path)


@pytest.fixture(scope="module")
def tokenizer() -> tokenizers.Tokenizer:
    made = tokenizers.Tokenizer(tokenizers.models.BPE({text: index for index, text in enumerate(CHARACTERS)}, []))
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    made.add_special_tokens(["<end>", "<u>", "<a>"])
    return made


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, tokenizer: tokenizers.Tokenizer) -> str:
    path = tmp_path_factory.mktemp("tokenizer")
    tokenizer.save(str(path / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<end>", "chat_template": TEMPLATE}
    (path / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    return str(path)


@pytest.fixture
def continued(blob: str, tokenizer: tokenizers.Tokenizer) -> Any:
    """The text that a separate generator adds."""

    def continued(text: str, sampling: Sampling, tokens: int, stop: tuple[int, ...] = ()) -> str:
        generator = Generator(Core().import_model(blob), sampling, stop_tokens=stop)
        found: str = tokenizer.decode(generator.generate(tokenizer.encode(text).ids, tokens)[0])
        return found

    return continued


def test_several_texts_at_a_time(blob: str, folder: str, continued: Any, capsys: pytest.CaptureFixture[str]) -> None:
    module, texts = example("generate_text"), ["abc", "d", "efghi"]
    assert module.main(blob, folder, *texts) == 0
    expected = [text + continued(text, module.SAMPLING, module.TOKENS) for text in texts]
    assert capsys.readouterr().out.splitlines() == expected


def test_a_chat_is_answered_from_the_whole_of_it(
    blob: str, folder: str, continued: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though only what is new is computed; messages are arguments or come from standard input."""
    needed("transformers")
    needed("jinja2")
    module, messages = example("chat"), ["abc", "de", "f"]
    monkeypatch.setattr(module, "SAMPLING", Sampling())
    assert module.main(blob, folder, *messages) == 0
    answers = capsys.readouterr().out.splitlines()
    assert len(answers) == len(messages)
    chat = ""
    for message, answer in zip(messages, answers, strict=True):
        chat += f"<u>{message}<a>"
        assert answer == continued(chat, Sampling(), module.TOKENS, (0,))
        chat += answer
    monkeypatch.setattr(sys, "stdin", io.StringIO("".join(f"{message}\n" for message in messages)))
    assert module.main(blob, folder) == 0
    assert capsys.readouterr().out.splitlines() == answers


def test_a_prompt_that_begins_as_the_one_before_is_computed_from_where_they_differ(blob: str) -> None:
    needed("transformers")
    module, generator = example("chat"), Generator(Core().import_model(blob))
    for prompt in ([5, 6, 7], [5, 6, 7, 8, 9], [5, 6, 3], [5, 6, 3], [5], [4, 4]):
        module.continue_with(generator, prompt)
        assert generator.tokens == [prompt]
        fresh = Generator(Core().import_model(blob))
        fresh.append(prompt)
        assert generator.step() == fresh.step()


def test_json_of_a_schema(
    blob: str, folder: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    needed("transformers")
    needed("llguidance")
    module, schema = example("structured_output"), tmp_path / "schema.json"
    properties = {"a": {"type": "integer", "minimum": 0, "maximum": 99}, "b": {"enum": ["cc", "dd"]}}
    schema.write_text(json.dumps({"type": "object", "properties": properties, "required": ["a", "b"]}))
    assert module.main(blob, folder, str(schema), "abc") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["a"] in range(100)
    assert found["b"] in ("cc", "dd")
    monkeypatch.setattr(module, "TOKENS", 3)
    assert module.main(blob, folder, str(schema), "abc") == 1
    schema.write_text(json.dumps({"type": "number", "minimum": 2, "maximum": 1}))
    with pytest.raises(SystemExit, match=r"schema\.json: "):
        module.main(blob, folder, str(schema), "abc")
