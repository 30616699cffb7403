"""Where two sides part: the culprit is named, and neither what follows it nor rounding is taken for it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from engine_template import TemplatePlugin

from engine import Core, ops
from engine.cli.diff import Side, diff_page, find_difference, open_side
from engine.cli.diff.report import describe, node_rows, shown_nodes, verdict
from engine.cli.diff.statistics import gap
from engine.errors import InputError, PropertyError
from engine.ir import Constant, Model, Parameter, Result, f32, i64
from engine.onnx import write_model
from engine.testing.behaviour.cases import CASES
from engine.testing.networks import seeded_network
from tests.browser import needs_browser, open_page

Fault = Callable[[Model], None]


def device(core: Core, fault: Fault) -> Side:
    """A device that changes each model before it compiles it, and so a node alone, too."""

    class Faulty(TemplatePlugin):
        def compile_model(self, model: Model, config: Any) -> Any:
            copy = model.clone()
            fault(copy)
            return super().compile_model(copy, config)

    core.register_plugin("FAULTY", Faulty)
    return open_side(core, "FAULTY")


def shifted(name: str) -> Fault:
    """The fault that a convolution reads one pixel beside."""

    def fault(model: Model) -> None:
        for node in model.ordered_nodes():
            if node.friendly_name == name:
                node.set_attribute("pads", [2, 2, 0, 0])

    return fault


@pytest.fixture(scope="module")
def convolutions() -> tuple[Model, dict[str, Any]]:
    network = seeded_network("squeezenet", small=True)
    return Core().read_model(network.model), dict(network.inputs)


@pytest.mark.parametrize("memory", [1 << 30, 1 << 17, 1 << 15, 1], ids=["all", "some", "few", "one"])
@pytest.mark.parametrize("culprit", ["node_conv_7", "node_conv_22"])
def test_the_culprit_is_found_with_any_memory(
    convolutions: tuple[Model, dict[str, Any]], memory: int, culprit: str
) -> None:
    model, inputs = convolutions
    core = Core()
    reference = open_side(core, "TEMPLATE")
    found = find_difference(model, device(core, shifted(culprit)), reference, inputs, memory_bytes=memory)
    assert found.first is not None
    assert (found.first.node, found.first.op_type) == (culprit, "Conv")
    assert found.differs
    assert verdict(found)[0] == f"first difference: {culprit} (Conv), value {found.first.name}"
    assert (found.skipped > 0) == (memory < 1 << 20)
    assert found.skipped + len(found.nodes) == 29


@pytest.mark.parametrize("examined", ["CPU", "OPENCL", "HETERO:CPU,TEMPLATE", "ONNXRUNTIME"])
@pytest.mark.parametrize("name", ["squeezenet", "bert_base", "lstm"])
def test_rounding_is_no_difference(examined: str, name: str) -> None:
    core = Core()
    if examined in core.unavailable_devices:
        pytest.skip(str(core.unavailable_devices[examined]))
    network = seeded_network(name, small=True)
    sides = open_side(core, examined), open_side(core, "TEMPLATE")
    found = find_difference(core.read_model(network.model), *sides, dict(network.inputs))
    assert found.first is None, verdict(found)
    assert not found.differs
    assert len(found.nodes) > 20
    assert verdict(found)[0].startswith("no difference beyond rounding in ")


def chain(*, noise: float = 0.0) -> Model:
    """x -> a -> b -> c -> y, where b cancels almost everything, so that errors before it grow."""
    x = Parameter(f32, ["N", 4], "x")
    a = ops.Mul(x, Constant(np.float32(1.0 + noise)), friendly_name="a")
    b = ops.Sub(a, Constant(np.float32(1.0)), friendly_name="b")
    c = ops.Mul(b, Constant(np.float32(1000.0)), friendly_name="c")
    return Model([Result(ops.Relu(c, friendly_name="y").output(0), "y")], [x], name="chain")


def noisy(value: str) -> Callable[[Model, Mapping[str, Any]], Mapping[str, Any]]:
    """A side that computes one value a little wrongly, when the node runs with others, and exactly the rest."""
    core = Core()

    def run(model: Model, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        copy = model.clone()
        for node in copy.ordered_nodes():
            if node.friendly_name == value and node.op_type != "Result":
                constant = node.input_value(1).node
                assert isinstance(constant, Constant)
                changed = Constant(constant.data * np.float32(1 + 1e-4))
                node.input(1).replace_source_output(changed.output(0))
        return core.compile_model(copy, "TEMPLATE")(inputs)

    return run


def test_what_is_propagated_is_not_blamed() -> None:
    x = np.array([[1.0, 1.001, 0.999, 1.0005]], np.float32)
    reference = open_side(Core(), "TEMPLATE")
    found = find_difference(chain(), Side("noisy", noisy("a")), reference, {"x": x})
    assert found.first is not None
    assert found.first.node == "a"
    later = {each.node: each for each in found.nodes}
    assert all(later[name].is_beyond for name in "abc"), "the error is in all of them"
    assert later["c"].total.max_absolute > 100 * later["a"].total.max_absolute


def test_a_difference_that_outputs_inside_hide_is_a_fusion() -> None:
    core = Core()
    reference = open_side(core, "TEMPLATE")

    def run(model: Model, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        result = dict(reference.run(model, inputs))
        return result if len(result) > 1 else {name: value + 1 for name, value in result.items()}

    x = np.full((1, 4), 1.5, np.float32)
    found = find_difference(chain(), Side("fused", run), reference, {"x": x})
    assert found.first is None
    assert found.differs
    assert "prevents fusions" in verdict(found)[0]


def test_values_that_are_not_finite_are_counted_and_blamed() -> None:
    core = Core()

    def fault(model: Model) -> None:
        for node in model.ordered_nodes():
            if node.friendly_name == "b" and node.op_type != "Result":
                node.input(1).replace_source_output(Constant(np.float32(np.nan)).output(0))

    found = find_difference(
        chain(), device(core, fault), open_side(core, "TEMPLATE"), {"x": np.ones((2, 4), np.float32)}
    )
    assert found.first is not None
    assert found.first.node == "b"
    assert found.first.non_finite == (8, 0)
    assert found.first.total.units == float("inf")
    json.dumps(describe(found), default=str)


def test_what_becomes_a_step_of_quantized_values_is_no_fault() -> None:
    """A rounding error before QuantizeLinear moves codes by one, which is far more than rounding behind it."""
    x = Parameter(f32, [3], "x")
    a = ops.Mul(x, Constant(np.float32(1.0)), friendly_name="a")
    scale, zero = Constant(np.float32(0.5)), Constant(np.uint8(0))
    codes = ops.QuantizeLinear(a, scale, zero, friendly_name="codes")
    y = ops.DequantizeLinear(codes, scale, zero, friendly_name="y")
    model = Model([Result(ops.Mul(y, Constant(np.float32(3.0)), friendly_name="end").output(0), "end")], [x])
    core = Core()
    reference = open_side(core, "TEMPLATE")

    def run(model: Model, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        if model.name != "a" and "x" in inputs:
            inputs = {"x": np.nextafter(inputs["x"], np.float32(2))}
        return reference.run(model, inputs)

    values = np.array([0.75, 1.25, 3.0], np.float32)
    found = find_difference(model, Side("rounded", run), reference, {"x": values})
    assert found.is_suspect
    assert found.is_propagated
    assert not found.differs
    assert verdict(found)[0].startswith("no node goes wrong by itself")


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_every_kind_of_value_is_compared_and_the_first_wrong_one_found(case: Any) -> None:
    """Sequences, strings, bodies, unknown shapes; and each model on a device that is wrong everywhere."""
    core = Core()
    model, inputs = core.read_model(case.model), case.samples[0].inputs
    reference = open_side(core, "TEMPLATE")
    for memory in (1 << 30, 1):
        assert not find_difference(model, open_side(core, "CPU"), reference, inputs, memory_bytes=memory).differs

    def wrong(model: Model, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        return {name: added(value) for name, value in reference.run(model, inputs).items()}

    def added(value: Any) -> Any:
        if isinstance(value, list):
            return [added(each) for each in value]
        return 2 * value + 1 if isinstance(value, np.ndarray) and value.dtype.kind == "f" else value

    found = find_difference(model, Side("wrong", wrong), reference, inputs)
    is_real = [each for each in found.nodes if each.element_type.startswith("float") and 0 not in each.shape]
    assert (found.first is not None) == bool(is_real)
    if is_real:
        assert found.first is not None
        assert found.first.node == is_real[0].node


def test_random_numbers_are_not_judged() -> None:
    x = Parameter(f32, [4], "x")
    draw = ops.RandomNormalLike(x, friendly_name="draw")
    model = Model([Result(ops.Add(x, draw, friendly_name="sum").output(0), "y")], [x])
    core = Core()
    side = open_side(core, "TEMPLATE")
    found = find_difference(model, side, side, {"x": np.ones(4, np.float32)})
    assert [each.is_judged for each in found.nodes] == [False, True]
    assert found.first is None


def test_other_inputs_are_refused() -> None:
    side = open_side(Core(), "TEMPLATE")
    with pytest.raises(InputError, match="has the inputs x; got z"):
        find_difference(chain(), side, side, {"z": np.ones(4, np.float32)})


@pytest.mark.parametrize(
    ("words", "error", "text"),
    [
        ("", InputError, "expected a device"),
        ("A=1", InputError, "expected a device"),
        ("CPU fast", InputError, "got 'fast'"),
        ("CPU NO_SUCH=1", PropertyError, "NO_SUCH"),
        ("ONNXRUNTIME COMPILE_EFFORT=full", PropertyError, "COMPILE_EFFORT"),
    ],
)
def test_words_that_are_no_side(words: str, error: type[Exception], text: str) -> None:
    x = {"x": np.ones((1, 4), np.float32)}
    with pytest.raises(error, match=text):
        open_side(Core(), words).run(chain(), x)


@pytest.mark.parametrize(
    ("actual", "expected", "units", "mismatched"),
    [
        (np.float32([1, 2]), np.float32([1, 2]), 0, 0),
        (np.float32([1 + 2**-23, 2]), np.float32([1, 2]), 0.5, 0),
        (np.float32([np.nan, 1]), np.float32([np.nan, 1]), 0, 0),
        (np.float32([np.nan, 1]), np.float32([0, 1]), np.inf, 1),
        (np.float32([np.inf, 1]), np.float32([-np.inf, 1]), np.inf, 1),
        (np.int64([5]), np.int64([3]), 2, 0),
        (np.int64([2**53 + 1]), np.int64([2**53]), 1, 0),
        (np.int64([-(2**63)]), np.int64([-(2**63) + 1]), 1, 0),
        (np.uint64([2**64 - 1]), np.uint64([2**64 - 2]), 1, 0),
        (np.array([-8], ml_dtypes.int4), np.array([7], ml_dtypes.int4), 15, 0),
        (np.array([True]), np.array([False]), 1, 0),
        (np.array([1.0078125], ml_dtypes.bfloat16), np.array([1], ml_dtypes.bfloat16), 1, 0),
        (np.float32([1]), np.float32([[1]]), np.inf, 0),
        (np.float32([1]), np.float64([1]), np.inf, 0),
        (np.float32([]), np.float32([]), 0, 0),
        (np.float32([1e-30]), np.float32([0]), np.inf, 0),
    ],
)
def test_gaps_are_in_units_of_rounding(actual: Any, expected: Any, units: float, mismatched: int) -> None:
    found = gap(actual, expected)
    assert (found.units, found.mismatched) == (units, mismatched)


def test_integers_are_exact_and_quantized_ones_may_take_a_neighbour() -> None:
    x = Parameter(f32, [3], "x")
    codes = ops.QuantizeLinear(x, Constant(np.float32(0.5)), Constant(np.uint8(0)), friendly_name="codes")
    wide = ops.Cast(codes, to=i64, friendly_name="wide")
    model = Model([Result(wide.output(0), "y")], [x])
    side = open_side(Core(), "TEMPLATE")
    found = find_difference(model, side, side, {"x": np.float32([0.2, 0.9, 3.0])})
    assert {each.node: each.tolerance for each in found.nodes} == {"codes": 1, "wide": 0}


@needs_browser
@pytest.mark.parametrize("width", [500, 1280])
def test_the_report_opens_in_a_browser(convolutions: tuple[Model, dict[str, Any]], tmp_path: Path, width: int) -> None:
    model, inputs = convolutions
    core = Core()
    found = find_difference(model, device(core, shifted("node_conv_14")), open_side(core, "TEMPLATE"), inputs)
    script = """
    const texts = [...document.querySelectorAll("svg text")];
    return [document.querySelectorAll("circle").length, document.querySelector(".bad").textContent,
      texts.filter((text) => text.getAttribute("fill") === "var(--bad)").map((text) => text.textContent)]"""
    opened = open_page(diff_page(found, "a <b>title</b>"), tmp_path, script=script, width=width)
    off = sum(each.total.units > 0 for each in found.nodes)
    assert found.first is not None
    assert opened.value == [off, verdict(found)[0], [f"first difference: {found.first.name}"]]
    assert all(len("  ".join(row)) < 80 for row in node_rows(shown_nodes(found, 20)))


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from engine.cli.main import main

    write_model(chain(), tmp_path / "chain.onnx")
    common = ["diff", str(tmp_path / "chain.onnx"), "--shape", "x=2,4", "-d"]
    report = tmp_path / "diff.html"
    assert main([*common, "CPU", "-d", "TEMPLATE", "--html", str(report)]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("no difference beyond rounding in 4 values and 1 outputs\n")
    *lines, last = shown.splitlines()
    assert all(len(line) <= 80 for line in lines)
    assert last == f"wrote {report}"
    assert report.read_text().startswith("<!DOCTYPE html>")
    assert main([*common, "CPU INFERENCE_NUM_THREADS=1", "-d", "ONNXRUNTIME", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["examined"], found["reference"]) == ("CPU INFERENCE_NUM_THREADS=1", "ONNXRUNTIME")
    assert [each["node"] for each in found["nodes"]] == ["a", "b", "c", "y"]
    assert found["differs"] is False


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["-d", "CPU"], 2, "given 1 times"),
        (["-d", "CPU", "-d", "NO_SUCH"], 3, "NO_SUCH"),
        (["-d", "CPU", "-d", "TEMPLATE", "-i", "z=x.npy"], 2, "no input 'z'"),
        (["-d", "CPU", "-d", "TEMPLATE", "--html", "nowhere/x.html"], 2, "nowhere"),
    ],
)
def test_wrong_use_is_one_line(
    arguments: list[str], code: int, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    from engine.cli.main import main

    write_model(chain(), tmp_path / "chain.onnx")
    monkeypatch.chdir(tmp_path)
    try:
        found = main(["diff", "chain.onnx", "--shape", "x=2,4", *arguments])
    except SystemExit as e:
        found = int(e.code or 0)
    assert found == code
    assert words in capsys.readouterr().err.splitlines()[-1]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["chain.onnx"]
