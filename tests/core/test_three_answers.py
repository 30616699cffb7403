"""The check of a blob has three answers, which plugins can correct, and which those who import blobs see.

If these fail, production runs blobs that are slower than they need to be without knowing, or refuses some that run.
"""

from __future__ import annotations

import io
import json
import logging
from pathlib import Path
from typing import Any

import onnx
import pytest

from engine import Core
from engine.blob import BlobAnswer, BlobCheck
from engine.cli.main import main
from engine.errors import BlobIncompatibleError, PluginContractError
from tests.core.conftest import ScaleNetwork, ScalePlugin


class Prefers(ScaleNetwork):
    def preferences(self) -> dict[str, str]:
        return {"clock": ">=2,<4"}


class PrefersPlugin(ScalePlugin):
    def compile_model(self, *given: Any) -> Any:
        made = super().compile_model(*given)
        made.__class__ = Prefers
        return made


@pytest.fixture
def plugin() -> type[PrefersPlugin]:
    return type("PrefersPlugin", (PrefersPlugin,), {"features": {**ScalePlugin.features, "clock": "3.5"}})


@pytest.fixture
def core(plugin: type[PrefersPlugin]) -> Core:
    core = Core()
    core.register_plugin("SCALE", plugin)
    return core


@pytest.fixture
def blob(core: Core, model: onnx.ModelProto) -> bytes:
    stream = io.BytesIO()
    core.compile_model(model, "SCALE").export_model(stream)
    return stream.getvalue()


def test_preferences_give_the_second_answer(
    core: Core, plugin: type[PrefersPlugin], blob: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    assert core.check_blob(blob).answer is BlobAnswer.RUNS
    plugin.features = {**plugin.features, "clock": "4.0"}
    check = core.check_blob(blob)
    assert (check.answer, check.reasons) == (BlobAnswer.RECOMPILE, ())
    assert check.advice == (
        "clock: the blob was made for >=2,<4, this host has 4.0; compiled again here, it is faster",
    )
    with caplog.at_level(logging.INFO, "engine.core"):
        core.import_model(blob)
    assert any(f"would be faster if it was compiled again: {check.advice[0]}" in r.getMessage() for r in caplog.records)
    plugin.features = {"unit": (), "clock": "4.0"}
    assert core.check_blob(blob).answer is BlobAnswer.NO
    with pytest.raises(BlobIncompatibleError, match="requirement 'unit': the blob needs scaler"):
        core.import_model(blob)


def test_a_plugin_corrects_the_answer(core: Core, plugin: type[PrefersPlugin], blob: bytes) -> None:
    """It has its own features, and is asked before each import."""
    seen = []

    def check_blob(self: Any, manifest: Any, features: Any) -> BlobCheck:
        seen.append((manifest.requirements, features))
        return BlobCheck((), manifest, advice=("it has to be tuned again",))

    plugin.check_blob = check_blob  # type: ignore[assignment]
    plugin.features = {"unit": ()}
    assert core.check_blob(blob).advice == ("it has to be tuned again",)
    core.import_model(blob)
    assert seen == [({"unit": ["scaler"]}, {"unit": ()})] * 2


@pytest.mark.parametrize("wrong", [None, "no", BlobCheck("no", None), BlobCheck((), None, advice=(1,))])  # type: ignore[arg-type]
def test_a_wrong_answer_names_the_plugin(core: Core, plugin: type[PrefersPlugin], blob: bytes, wrong: Any) -> None:
    plugin.check_blob = lambda *_: wrong  # type: ignore[assignment, method-assign]
    assert "plugin SCALE: check_blob must return a BlobCheck" in core.check_blob(blob).reasons[0]
    with pytest.raises(PluginContractError, match="plugin SCALE: check_blob must return a BlobCheck"):
        core.import_model(blob)


@pytest.mark.parametrize(
    ("oldest", "loads"), [("", False), ("1.1", True), ("1.0", True), ("0.9", False), ("2.0", False)]
)
def test_a_plugin_says_from_which_version_on_it_reads_blobs(
    core: Core, plugin: type[PrefersPlugin], blob: bytes, oldest: str, loads: bool
) -> None:
    plugin.version, plugin.oldest_blob_version = "1.3.0", oldest
    assert core.check_blob(blob).compatible is loads
    if not loads:
        assert "plugin version: the blob has 1.2.0, this host has 1.3.0" in core.check_blob(blob).reasons[0]


def test_parts_and_the_command_show_the_advice(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a blob in a blob, with the name of its part."""
    from engine_template import TemplatePlugin

    for device, part in (("TEMPLATE", ""), ("AUTO:TEMPLATE", "network: "), ("HETERO:TEMPLATE", "part0: ")):
        monkeypatch.undo()
        path = tmp_path / "made.blob"
        Core().compile_model(add(), device).export_model(path)
        check_blob = TemplatePlugin.check_blob
        monkeypatch.setattr(
            TemplatePlugin,
            "check_blob",
            lambda *given, check_blob=check_blob: BlobCheck(
                check_blob(*given).reasons, None, advice=("tune it again",)
            ),
        )
        check = Core().check_blob(path)
        assert (check.answer, check.advice) == (BlobAnswer.RECOMPILE, (f"{part}tune it again",))
        assert main(["inspect", str(path)]) == 0
        assert capsys.readouterr().out.endswith(f"loads here: yes; recompile to be faster\n  {part}tune it again\n")
        assert main(["inspect", str(path), "--json", "--html", str(tmp_path / "page.html")]) == 0
        shown = json.loads(capsys.readouterr().out)
        assert (shown["answer"], shown["loads_here"]) == ("runs; recompile to be faster", True)
        assert shown["advice"] == [f"{part}tune it again"]
        assert "It would load here; recompile it to be faster." in (tmp_path / "page.html").read_text()


def add() -> onnx.ModelProto:
    x, y = (onnx.helper.make_tensor_value_info(name, 1, [2]) for name in "xy")
    graph = onnx.helper.make_graph([onnx.helper.make_node("Add", ["x", "x"], ["y"])], "add", [x], [y])
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 21)], ir_version=10)
