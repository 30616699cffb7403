"""Steps that do not fit are refused in one line that names the step; if not, images are silently prepared wrongly."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine import Core, Model, PrePostProcessor, ops
from engine.errors import EngineError, InputError, PreprocessingError
from engine.ir import Parameter, Result, SequenceType, TensorType, Variable, f32
from engine.preprocessing import InputSteps, OutputSteps, add_steps
from tests.preprocessing.conftest import convolving, passing


def refusal(model: Model, add: Callable[[PrePostProcessor], Any]) -> str:
    def build() -> None:
        processor = PrePostProcessor(model)
        add(processor)
        processor.build()

    with pytest.raises(PreprocessingError) as caught:
        build()
    message = str(caught.value)
    assert "\n" not in message
    return message


@pytest.mark.parametrize(
    ("add", "words"),
    [
        (lambda p: p.input("x", "u3"), "input `x`: expected an element type such as u8 or f16, got 'u3'"),
        (lambda p: p.input("x", "string"), "expected an integer or floating-point type of 8 bits or more, got string"),
        (lambda p: p.input("x", layout="nhwc"), "expected a layout of one capital letter"),
        (lambda p: p.input("x", layout="NHHC"), "names axis H twice"),
        (lambda p: p.input("x", layout="NHWX"), "layout NHWX cannot become NCHW: their axes are not the same"),
        (lambda p: p.input("x", layout="NC"), "layout NC cannot become NCHW"),
        (lambda p: p.input("x", model_layout="NC"), "layout NC names 2 axes, but the model's input"),
        (lambda p: p.input("x", colour="CMYK"), "expected colour of GREY, RGB"),
        (lambda p: p.input("x", shape=[1, 8]), "layout NCHW names 4 axes, but the given shape [1,8] has 2"),
        (lambda p: p.input("x", shape=[1, 4, 8, 8]), "the given shape [1,4,8,8] cannot be [1,3,8,8]"),
        (lambda p: (p.input("x"), p.input("x")), "input `x` has steps already"),
        (lambda p: p.input("x").mean([1, 2]), "input `x`: step 1, mean([1.0, 2.0]): got 2 numbers for 3 channels"),
        (lambda p: p.input("x").mean([]), "step 1, mean: expected a finite number for mean"),
        (lambda p: p.input("x").mean(float("nan")), "expected a finite number for mean"),
        (lambda p: p.input("x").scale([1, 0, 1]), "step 1, scale: divides by its numbers, so they cannot be 0"),
        (lambda p: p.input("x", "f16").mean(1e6), "step 1, mean(1000000.0): 1000000.0 is infinite in f16"),
        (lambda p: p.input("x").to_type("f16").mean([1, 2, 7e4]), "[1.0, 2.0, 70000.0] is infinite in f16"),
        (lambda p: p.input("x", "f16").clamp(0, 1e6), "1000000.0 is infinite in f16"),
        (lambda p: p.input("x", shape=[1, 3, 9, 9]).crop([-4, 0], [0, 4]), "keeps 5..0 of H"),
        (lambda p: p.input("x").crop([-4, 0], [0, 4]), "keeps nothing of H"),
        (lambda p: p.input("x", shape=[1, 3, 1, 900]).letter_box(8), "is too long or too wide to keep its ratio"),
        (
            lambda p: p.input("x", shape=[1, 3, 900, 1]).resize(8, aspect="not_larger"),
            "got f32[1,3,8,0] NCHW",
        ),
        (lambda p: p.input("x", "f16").scale(1e-9), "which is 0 in f16"),
        (lambda p: p.input("x").mean(1).clamp(2, 1), "step 2, clamp: expected two numbers, the lower first, got 2 and"),
        (lambda p: p.input("x", "u8").clamp(0, 300), "300 is not a number of u8; convert the tensor with to_type"),
        (lambda p: p.input("x").resize((0, 3)), "expected a height and a width of 1 or more, got (0, 3)"),
        (lambda p: p.input("x").resize((4.5, 3)), "expected two whole numbers, of height and width, for size"),
        (lambda p: p.input("x").resize(mode="lanczos"), "expected mode of nearest, linear, cubic, got 'lanczos'"),
        (lambda p: p.input("x").resize(mode="nearest", antialias=True), "antialias needs mode linear or cubic"),
        (
            lambda p: p.input("x").resize((4, 4)),
            "after its steps, it is f32[1,3,4,4] NCHW, but the model expects f32[1,",
        ),
        (lambda p: p.input("x").resize(8, aspect="not_smaller"), "but the model expects f32[1,3,8,8]; resize,"),
        (lambda p: p.input("x", shape=[1, 3, 9, 9]).crop((0, 0), (8, 10)), "keeps 0..10 of W, got f32[1,3,9,9] NCHW"),
        (lambda p: p.input("x").crop((4, 0), (4, 2)), "keeps nothing of H"),
        (
            lambda p: p.input("x", shape=[1, 3, 7, 9]).centre_crop(8),
            "keeps 8 of H, got f32[1,3,7,9] NCHW, whose H is 7",
        ),
        (lambda p: p.input("x").pad((-1, 0), (0, 0)), "expected numbers of 0 or more for begin"),
        (lambda p: p.input("x", shape=[1, 3, 3, 8]).pad((3, 0), (2, 0), "reflect"), "at most 2 to reflect"),
        (lambda p: p.input("x", "u8").pad((1, 1), (1, 1), value=0.5), "0.5 is not a number of u8"),
        (lambda p: p.input("x").letter_box(position="end"), "expected position of centre, start, got 'end'"),
        (lambda p: p.input("x").to_colour("RGB"), "the colours of f32[1,?,8,8] NCHW are unknown"),
        (lambda p: p.input("x", colour="BGR").to_colour("RGBA"), "cannot convert BGR to RGBA: it has no A"),
        (lambda p: p.input("x", colour="GREY").to_colour("RGBA"), "cannot convert GREY to RGBA"),
        (lambda p: p.input("x", colour="NV12"), "the model does not read NV12; convert it"),
        (lambda p: p.input("x", colour="NV12").to_colour("GREY"), "cannot convert NV12 to GREY"),
        (lambda p: p.input("x", colour="NV12").scale(2).to_colour("RGB"), "needs its colours converted first"),
        (
            lambda p: p.output("y").top_k(0),
            "output `y`: step 1, top_k: expected a whole number of 1 or more for k",
        ),
        (lambda p: p.output("y").top_k(4), "k is 4, but axis 1 of f32[1,3,8,8] NCHW has 3 elements"),
        (lambda p: p.output("y").top_k(1).top_k(1), "step 2, top_k(1): only one top_k has an output of its own"),
        (lambda p: p.output("y").softmax("K"), "needs axis K, got layout NCHW"),
        (lambda p: p.output("y").softmax(4), "expected an axis of -4..3"),
        (lambda p: p.output("y").to_layout("HW"), "cannot become HW"),
        (lambda p: p.output("y").resize(), "the height and width to resize to are unknown"),
        (lambda p: p.output("y").rename(""), "output `y`: rename: expected a name, got ''"),
    ],
)
def test_steps_that_do_not_fit(add: Callable[[PrePostProcessor], Any], words: str) -> None:
    assert words in refusal(passing(), add)


def test_a_layout_that_nothing_tells_is_asked_for() -> None:
    x = Parameter(f32, [1, 3, 8, 8], "x")
    model = Model([Result(ops.Softmax(x), "y")], [x])
    assert "is unknown; give it as model_layout" in refusal(model, lambda p: p.input("x", layout="NHWC"))
    assert "needs axis H, but the layout of f32[1,3,8,8] is unknown" in refusal(model, lambda p: p.input("x").resize(4))
    assert "which axis of f32[1,3,8,8] is meant?" in refusal(model, lambda p: p.output("y").softmax())


def test_notes_of_a_foreign_file() -> None:
    model = passing()
    model.parameter("x").rt_info.update(layout="channels first", preprocess={"steps": 5, "by": "hand"})
    assert "input `x`: expected a layout of one capital letter for each axis" in refusal(model, lambda p: p.input())
    built = PrePostProcessor(model).input("x", model_layout="NCHW").scale(2).build()
    assert built.parameter("x").annotations["preprocess"] == {"steps": ["scale(2.0)"], "by": "hand"}
    model.parameter("x").rt_info["preprocess"] = "by hand"
    assert PrePostProcessor(model).input("x", model_layout="NCHW").scale(2).build()


def test_video_of_odd_lengths() -> None:
    assert "has even heights and widths" in refusal(
        passing(f32, [1, 3, 7, 8]), lambda p: p.input("x", "u8", colour="NV12").to_colour("RGB")
    )
    shape = [1, 10, 8, 1]
    assert "[N, H * 3 / 2, W, 1] of an even height and width, got u8[1,10,8,1]" in refusal(
        passing(), lambda p: p.input("x", "u8", colour="NV12", shape=shape).to_colour("RGB").resize()
    )


@pytest.mark.parametrize("colour", ["NV12", "I420"])
def test_video_of_one_row_has_no_chroma(colour: str) -> None:
    """Two rows of the tensor would be one of luma and one of chroma, which broadcast."""
    model = PrePostProcessor(passing()).input("x", "u8", colour=colour).to_colour("RGB").resize().build()
    network = Core().compile_model(model, "TEMPLATE")
    assert network({"x": np.full((1, 3, 4, 1), 100, np.uint8)})["y"].shape == (1, 3, 8, 8)
    with pytest.raises(InputError, match="dimension 1 is 2, expected 3"):
        network({"x": np.full((1, 2, 4, 1), 100, np.uint8)})


def test_what_is_no_tensor_is_not_prepared() -> None:
    x = Parameter(SequenceType(TensorType(f32, passing().inputs[0].shape)), friendly_name="x")
    model = Model([Result(x, "y")], [x])
    assert "only tensors can be prepared" in refusal(model, lambda p: p.input("x").scale(2))
    assert "steps need a tensor of known rank" in refusal(model, lambda p: p.output("y").sigmoid())


def test_variables_are_not_the_applications() -> None:
    model = passing()
    past = model.add_parameter(Parameter(f32, [1], "past"))
    model.add_result(ops.Identity(past), "present")
    model.add_variable(Variable("state", "past", "present", np.zeros(1, np.float32)))
    assert "belongs to a variable" in refusal(model, lambda p: p.input("past"))
    assert "belongs to a variable" in refusal(model, lambda p: p.output("present"))
    assert PrePostProcessor(model).input("x", "u8").scale(2).build().variables == model.variables


def test_names_that_are_taken() -> None:
    model = passing()
    assert PrePostProcessor(model).output().sigmoid().build().results[0].friendly_name == "y"
    model.add_result(model.inputs[0], "z")
    assert "the model has 2 outputs, so output() needs a name or an index: y, z" in refusal(model, lambda p: p.output())
    assert "two outputs" in refusal(model, lambda p: p.output("y").rename("z"))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("x", "expected NAME=input(..) or NAME=output(..)"),
        ("x=input(u8", "expected NAME="),
        ("x=input(u8).scale(2) + 1", "expected NAME="),
        ("x=input(u8).scale(__import__('os').abort())", "expected NAME="),
        ("x=input(u8).scale(**a)", "expected NAME="),
        ("x=input(u8)(3)", "expected NAME="),
        ("x=input(u8).blur(3)", "input `x` has no step blur; it has centre_crop, clamp, "),
        ("x=input(u8).build()", "has no step build"),
        ("x=input(u8)._add(3)", "has no step _add"),
        ("x=input(u8).softmax()", "has no step softmax"),
        ("x=input(u8).scale()", "scale in 'x=input(u8).scale()': missing 1 required positional argument: 'values'"),
        ("x=input(u8).resize(antialias=false)", "expected True or False for antialias, got 'false'"),
        ("x=input(u8).scale(2, by=3)", "unexpected keyword argument 'by'"),
        ("x=input(u8).scale([1, 0, 1])", "input `x`: step 1, scale: divides by its numbers"),
        ("x=input(" + "(" * 3000 + ")" * 3000 + ")", "expected NAME="),
    ],
)
def test_texts_that_are_no_steps(text: str, words: str) -> None:
    assert words in refusal(passing(), lambda p: add_steps(p, text))


def test_unknown_names_are_errors_of_the_model() -> None:
    with pytest.raises(EngineError, match="has no input 'q'; it has 'x'"):
        add_steps(PrePostProcessor(convolving()), "q=input(u8)")


NAMES = sorted(
    {name for kind in (InputSteps, OutputSteps) for name in dir(kind) if not name.startswith("_")} - {"build", "input"}
)
ARGUMENTS = st.recursive(
    st.sampled_from(
        ["8", "-1", "0", "0.5", "1e999", "10**9", "9" * 30, "NHWC", "RGB", "u8", "linear", "True", "None", "''"]
    ),
    lambda inner: st.lists(inner, max_size=4).map(lambda values: f"[{', '.join(values)}]"),
    max_leaves=4,
)
KEYS = st.sampled_from(["", "", "mode=", "value=", "size=", "axis=", "aspect="])
CALLS = st.builds(
    lambda name, arguments: f".{name}({', '.join(arguments)})",
    st.sampled_from(NAMES),
    st.lists(st.builds(str.__add__, KEYS, ARGUMENTS), max_size=3),
)
HEADS = st.sampled_from(
    ["x=input(u8)", "x=input(u8, NHWC)", "x=input(colour=BGR)", "x=input(u8, colour=NV12)", "y=output()"]
)


@settings(deadline=None, max_examples=150)
@given(st.builds(lambda head, calls: head + "".join(calls), HEADS, st.lists(CALLS, max_size=3)) | st.text())
def test_any_text_is_steps_or_refused(text: str) -> None:
    processor = PrePostProcessor(passing())
    with contextlib.suppress(PreprocessingError):
        add_steps(processor, text)
        processor.build()
