"""The committed references say what the declarations say, and the examples in them are valid."""

from __future__ import annotations

import shlex
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from engine.cli.discovery import OWN, own_command
from engine.cli.main import EXAMPLES, EXIT_CODES, make_parser
from engine.ir import PartialShape, TensorType, u8
from engine.values.images import image_value
from tools.pages import DOCS, PAGES


@pytest.mark.parametrize("page", PAGES)
def test_generated_pages_are_current(page: str) -> None:
    assert (DOCS / page).read_text(encoding="utf-8") == PAGES[page](), "run: tools/pages.py"


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
