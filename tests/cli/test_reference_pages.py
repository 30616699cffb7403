"""The committed references say what the declarations say, and the examples in them are valid."""

from __future__ import annotations

import shlex
from pathlib import Path

import numpy as np
import pytest
from engine_serve import command as serve
from PIL import Image

from engine.cli.command_line_reference import command_line_reference
from engine.cli.discovery import OWN, own_command
from engine.cli.main import EXAMPLES, EXIT_CODES, make_parser
from engine.cli.properties_reference import properties_reference
from engine.cli.specs_reference import specs_reference
from engine.cli.undefined_reference import undefined_reference
from engine.ir import PartialShape, TensorType, u8
from engine.values.images import image_value

DOCS = Path(__file__).parents[2] / "docs"


def test_command_line_page_is_current() -> None:
    committed = (DOCS / "command-line.md").read_text(encoding="utf-8")
    assert committed == command_line_reference({"serve": serve}), (
        "run: python -m engine.cli.command_line_reference serve=engine_serve.command > docs/command-line.md"
    )


def test_properties_page_is_current() -> None:
    committed = (DOCS / "properties.md").read_text(encoding="utf-8")
    assert committed == properties_reference(), "run: python -m engine.cli.properties_reference > docs/properties.md"


def test_specs_page_is_current() -> None:
    committed = (DOCS / "reference" / "specs.md").read_text(encoding="utf-8")
    assert committed == specs_reference(), "run: python -m engine.cli.specs_reference > docs/reference/specs.md"


def test_page_of_what_is_undefined_is_current() -> None:
    committed = (DOCS / "undefined.md").read_text(encoding="utf-8")
    assert committed == undefined_reference(), "run: python -m engine.cli.undefined_reference > docs/undefined.md"


@pytest.mark.parametrize("name", OWN)
def test_help_has_examples_and_exit_codes(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit) as caught:
        make_parser().parse_args([name, "--help"])
    assert caught.value.code == 0
    shown = capsys.readouterr().out
    assert f"engine {name} " in shown
    assert [line for line in shown.splitlines() if len(line) > 80] == []
    unwrapped = " ".join(shown.split())
    for code, meaning in EXIT_CODES.items():
        assert f"{code} {meaning}" in unwrapped


@pytest.mark.parametrize("command", ["run", "benchmark", "profile", "diff"])
def test_help_says_what_happens_to_images(command: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Nobody would look for a network's wrong answer in a photo that was squeezed without a word."""
    with pytest.raises(SystemExit):
        make_parser().parse_args([command, "--help"])
    shown = " ".join(capsys.readouterr().out.split())
    assert "resized to the height and width of the input, bilinearly and not cropped" in shown

    file = tmp_path / "photo.png"
    Image.fromarray(np.repeat(np.uint8([[0] * 4 + [200] * 4]), 4, axis=0)).save(file)
    halves = image_value(file.read_bytes(), "x", TensorType(u8, PartialShape([1, 1, 4, 4])))
    assert halves[0, 0, 0, 0] == 0
    assert halves[0, 0, 0, -1] == 200, "both halves are there"


def test_examples_are_valid_command_lines(capsys: pytest.CaptureFixture[str]) -> None:
    parser, wrong = make_parser(), []
    for line in [*EXAMPLES.splitlines(), *(e for name in OWN for e in own_command(name).EXAMPLES.splitlines())]:
        program, *arguments = shlex.split(line, comments=True)
        assert program == "engine", line
        assert "#" in line, f"an example says what it is good for: {line}"
        try:
            parser.parse_args(arguments)
        except SystemExit:
            wrong.append((line, capsys.readouterr().err))
    assert not wrong
