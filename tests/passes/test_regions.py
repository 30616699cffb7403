"""Leaving out passes that are not used: single passes record which of them fired, and only these run later."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import pytest

from engine import ops
from engine.errors import PassError
from engine.ir import Constant, Model, Parameter, f32
from engine.passes import (
    ConstantFolding,
    GraphRewrite,
    Manager,
    MatcherPass,
    ModelPass,
    Validate,
    VisualizeTree,
    copy_runtime_info,
    pattern,
    replace_node,
)
from engine.passes.regions import without_passes

Chain = Callable[[int], Model]


class ToNeg(MatcherPass):
    def __init__(self) -> None:
        super().__init__()

        def callback(m: pattern.Matcher) -> bool:
            node = ops.Neg(m.match_root.input_value(0), friendly_name=m.match_root.friendly_name)
            copy_runtime_info(m.match_root, node)
            replace_node(m.match_root, node)
            return True

        self.register_matcher(pattern.Matcher(pattern.wrap_type("Relu"), self.name), callback)


class Wrapper(ModelPass):
    """A model pass with a pipeline of its own."""

    def run_on_model(self, model: Model) -> bool:
        manager = Manager(self.config)
        manager.register_pass(ToNeg)
        return manager.run_passes(model)


@pytest.fixture
def record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "regions"
    monkeypatch.setenv("ENGINE_PASSES_RECORD", str(path))
    return path


def restrict(monkeypatch: pytest.MonkeyPatch, path: Path, *names: str) -> None:
    path.write_text("".join(f"{name}\n" for name in names))
    monkeypatch.setenv("ENGINE_PASSES_ONLY", str(path))


def pipeline(fusion: type[MatcherPass]) -> Manager:
    nested = Manager(name="nested")
    nested.register_pass(GraphRewrite([fusion, ToNeg], name="rewrite"))
    manager = Manager()
    manager.register_pass(ConstantFolding)
    manager.register_pass(nested)
    manager.register_pass(Validate)
    return manager


def test_single_matchers_are_recorded_and_containers_are_not(
    record: Path, relu_relu_fusion: type[MatcherPass], relu_chain: Chain
) -> None:
    pipeline(relu_relu_fusion).run_passes(relu_chain(1))
    assert record.read_text().split() == ["ToNeg"], "the fusion and the folding were tried and did nothing"
    x = Parameter(f32, [4], "x")
    pipeline(relu_relu_fusion).run_passes(Model([ops.Mul(x, ops.Neg(Constant(1.0)))], [x]))
    assert record.read_text().split() == ["ToNeg", "ConstantFolding"]
    pipeline(relu_relu_fusion).run_passes(relu_chain(1))
    assert record.read_text().split() == ["ToNeg", "ConstantFolding"], "each region once"


def test_a_pass_that_runs_others_is_recorded_with_them(record: Path, relu_chain: Chain) -> None:
    manager = Manager()
    manager.register_pass(Wrapper)
    manager.run_passes(relu_chain(1))
    assert record.read_text().split() == ["ToNeg", "Wrapper"]


def test_what_the_file_does_not_name_does_not_run(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    relu_relu_fusion: type[MatcherPass],
    relu_chain: Chain,
) -> None:
    restrict(monkeypatch, tmp_path / "only", "ReluReluFusion")
    model = relu_chain(3)
    picture = tmp_path / "after.svg"
    manager = pipeline(relu_relu_fusion)
    manager.register_pass(VisualizeTree(picture))
    with caplog.at_level(logging.WARNING, "engine.passes"):
        assert manager.run_passes(model)
        manager.run_passes(model)
    assert [n.op_type for n in model.ordered_nodes()] == ["Parameter", "Relu", "Result"]
    assert [r.name for r in manager.records] == ["nested", "Validate", "VisualizeTree"]
    assert picture.exists(), "what only looks is never left out"
    only = [message for message in caplog.messages if "ENGINE_PASSES_ONLY" in message]
    assert only == [f"ENGINE_PASSES_ONLY={tmp_path / 'only'}: only these passes run: ReluReluFusion"], "said once"


def test_a_recorded_run_gives_the_same_result_with_only_what_it_recorded(
    record: Path,
    monkeypatch: pytest.MonkeyPatch,
    relu_relu_fusion: type[MatcherPass],
    relu_chain: Chain,
) -> None:
    first, second = relu_chain(4), relu_chain(4)
    manager = Manager()
    manager.register_pass(relu_relu_fusion)
    manager.register_pass(Wrapper)
    manager.register_pass(ConstantFolding)
    manager.run_passes(first)
    monkeypatch.setenv("ENGINE_PASSES_ONLY", str(record))
    manager.run_passes(second)
    assert second.to_text() == first.to_text()
    assert [r.name for r in manager.records] == ["ReluReluFusion", "Wrapper"]


def test_files_that_cannot_be_used_are_errors_and_not_ignored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, relu_chain: Chain
) -> None:
    manager = Manager()
    manager.register_pass(ToNeg)
    monkeypatch.setenv("ENGINE_PASSES_ONLY", str(tmp_path / "missing"))
    with pytest.raises(PassError, match=r"ENGINE_PASSES_ONLY=.*missing cannot be read"):
        manager.run_passes(relu_chain(1))
    monkeypatch.delenv("ENGINE_PASSES_ONLY")
    monkeypatch.setenv("ENGINE_PASSES_RECORD", str(tmp_path))
    with pytest.raises(PassError, match=r"ENGINE_PASSES_RECORD=.* cannot be"):
        manager.run_passes(relu_chain(1))


@pytest.mark.parametrize("name", ["ToNeg", "rewrite", "nested"])
def test_a_pass_can_be_left_out_by_its_name_or_that_of_what_contains_it(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    relu_relu_fusion: type[MatcherPass],
    relu_chain: Chain,
    name: str,
) -> None:
    monkeypatch.setenv("ENGINE_PASSES_WITHOUT", f" {name}, Other")
    model = relu_chain(3)
    with caplog.at_level(logging.WARNING, "engine.passes"):
        pipeline(relu_relu_fusion).run_passes(model)
    relus = ["Relu"] if name == "ToNeg" else ["Relu"] * 3
    assert [n.op_type for n in model.ordered_nodes()] == ["Parameter", *relus, "Result"]
    stated = ", ".join(sorted([name, "Other"]))
    assert caplog.messages == [f"ENGINE_PASSES_WITHOUT: these passes do not run: {stated}"]


def test_passes_are_left_out_for_a_while(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, relu_chain: Chain
) -> None:
    def is_changed() -> bool:
        manager = Manager()
        manager.register_pass(ToNeg)
        return manager.run_passes(relu_chain(1))

    monkeypatch.delenv("ENGINE_PASSES_WITHOUT", raising=False)
    with caplog.at_level(logging.WARNING, "engine.passes"):
        with without_passes(["ToNeg"]):
            assert not is_changed()
            with without_passes(["Another"]):
                assert not is_changed()
        assert is_changed()
    assert caplog.messages == [], "the caller knows"
