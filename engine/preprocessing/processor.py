"""`PrePostProcessor`: makes the preparation of inputs and the reading of outputs a part of the model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from engine.errors import PreprocessingError
from engine.ir import ElementType, Model, Node
from engine.ir.shape import ShapeLike, as_shape
from engine.preprocessing.colour import CHANNELS, PLANES, ToColour
from engine.preprocessing.edit import Edit
from engine.preprocessing.geometry import CentreCrop, Crop, LetterBox, Pad, Resize, check_choice
from engine.preprocessing.layout import checked_layout
from engine.preprocessing.plan import InputPlan, OutputPlan, located
from engine.preprocessing.scores import ArgMax, Sigmoid, Softmax, TopK
from engine.preprocessing.step import Clamp, Mean, Scale, Step, ToLayout, ToType, element_type_of

_S = TypeVar("_S", bound="Steps")
_NumberOrSize = int | Sequence[int]


class PrePostProcessor:
    """Adds steps before the inputs and after the outputs of a model, as operators that every device runs.

        prepared = (
            PrePostProcessor(model)
            .input("x", "u8", "NHWC", colour="BGR")
            .to_colour("RGB").resize((224, 224)).mean([123.7, 116.3, 103.5]).scale([58.4, 57.1, 57.4])
            .output("y").softmax().top_k(5)
            .build()
        )
        network = core.compile_model(prepared, "CPU")

    `input` and `output` choose the port that the steps after them belong to; `build` returns the model with all of
    them, and leaves the given one as it is. The steps of an input begin with the tensor that the application passes,
    and are applied in the order in which they are written; what comes out gets the layout and the element type of the
    model's input. The steps of an output begin with what the model computes.

    Every method raises `PreprocessingError`, which names the step, what it got and expected.
    """

    def __init__(self, model: Model) -> None:
        self._model = model
        self._inputs: dict[str, InputPlan] = {}
        self._outputs: dict[str, OutputPlan] = {}

    def input(
        self,
        name: str | int | None = None,
        element_type: ElementType | str | Any = None,
        layout: str | None = None,
        *,
        shape: ShapeLike = None,
        colour: str = "",
        model_layout: str | None = None,
    ) -> InputSteps:
        """Describe the data that the application passes for an input, and add steps to it.

        Args:
            name: the input's name or index; may be left out if there is only one.
            element_type: the type of the application's tensor, such as "u8" (default: the model's).
            layout: the layout of the application's tensor, such as "NHWC", or "HWC" for one image (default: the
                model's).
            shape: the shape of the application's tensor, in its layout. By default, lengths are the model's, but
                heights and widths are arbitrary if a step changes them.
            colour: GREY, RGB, BGR, RGBA or BGRA; NV12 or I420 for a tensor [N, H * 3 / 2, W, 1]; NV12_TWO_PLANES makes
                inputs `name/y` and `name/uv`, I420_THREE_PLANES `name/y`, `name/u` and `name/v`.
            model_layout: the layout of the model's input. By default, the one that is stored with the model, or that
                its operators determine: a convolution reads NCHW.
        """
        plan = InputPlan(self._model.parameter(_only(name, self._model.parameters, "input")).friendly_name)
        if any(plan.name == variable.parameter for variable in self._model.variables):
            raise PreprocessingError(f"{plan} belongs to a variable, so that no application passes it")
        if plan.name in self._inputs:
            raise PreprocessingError(f"{plan} has steps already; write all of them in one chain")
        with located(str(plan)):
            plan.element_type = None if element_type is None else element_type_of(element_type)
            plan.layout = "" if layout is None else checked_layout(layout)
            plan.shape = None if shape is None else as_shape(shape)
            plan.model_layout = "" if model_layout is None else checked_layout(model_layout)
            if colour:
                check_choice("colour", colour, (*CHANNELS, *PLANES))
                plan.colour = colour
        self._inputs[plan.name] = plan
        return InputSteps(self, plan)

    def output(self, name: str | int | None = None, *, model_layout: str | None = None) -> OutputSteps:
        """Add steps to an output, by its name or index, or to the only one.

        `model_layout` is the layout in which the model computes it; by default, the one that is stored with the model.
        """
        plan = OutputPlan(self._model.result(_only(name, self._model.results, "output")).friendly_name)
        if any(plan.name == variable.result for variable in self._model.variables):
            raise PreprocessingError(f"{plan} belongs to a variable, so that no application reads it")
        if plan.name in self._outputs:
            raise PreprocessingError(f"{plan} has steps already; write all of them in one chain")
        with located(str(plan)):
            plan.model_layout = "" if model_layout is None else checked_layout(model_layout)
        self._outputs[plan.name] = plan
        return OutputSteps(self, plan)

    def build(self) -> Model:
        """The model with all steps; its `parameters` and `results` are its inputs and outputs.

        Layouts and steps of inputs and outputs are in `rt_info`, so that `port.layout` and `port.preprocess` of every
        network and blob of the model, and a file that it is saved to, have them.
        """
        edit = Edit(self._model)
        for each in self._inputs.values():
            edit.prepare(each)
        for output in self._outputs.values():
            edit.read(output)
        return edit.finish()


class Steps:
    """The steps that inputs and outputs have in common."""

    def __init__(self, processor: PrePostProcessor, plan: InputPlan | OutputPlan) -> None:
        self._processor = processor
        self._plan = plan

    def input(self, *arguments: Any, **declared: Any) -> InputSteps:
        """Go on with an input: see `PrePostProcessor.input`."""
        return self._processor.input(*arguments, **declared)

    def output(self, *arguments: Any, **declared: Any) -> OutputSteps:
        """Go on with an output: see `PrePostProcessor.output`."""
        return self._processor.output(*arguments, **declared)

    def build(self) -> Model:
        """The model with all steps: see `PrePostProcessor.build`."""
        return self._processor.build()

    def to_type(self: _S, element_type: ElementType | str | Any) -> _S:
        """Convert to an element type; to integers by rounding, halves to even, and within their range."""
        return self._add(ToType, element_type)

    def to_layout(self: _S, layout: str) -> _S:
        """Bring the axes into the order of `layout`; N comes as an axis of length 1, or leaves as one."""
        return self._add(ToLayout, layout)

    def mean(self: _S, values: float | Sequence[float]) -> _S:
        """Subtract a number, or one for each channel. Integers become f32."""
        return self._add(Mean, values)

    def scale(self: _S, values: float | Sequence[float]) -> _S:
        """Divide by a number, or by one for each channel. Integers become f32."""
        return self._add(Scale, values)

    def clamp(self: _S, low: float, high: float) -> _S:
        """Replace numbers below `low` and above `high` by these."""
        return self._add(Clamp, low, high)

    def resize(
        self: _S,
        size: _NumberOrSize | None = None,
        mode: str = "linear",
        *,
        coordinates: str = "half_pixel",
        nearest: str = "round_prefer_floor",
        antialias: bool = False,
        cubic_coefficient: float = -0.75,
        aspect: str = "stretch",
    ) -> _S:
        """Resize height and width to `size`, (height, width) or one number for both; by default, to the model's.

        Args:
            size: the new height and width.
            mode: nearest, linear or cubic. Integers stay integers with nearest and become f32, not rounded, otherwise.
            coordinates: how positions correspond: half_pixel (as OpenCV and Pillow), align_corners, asymmetric, ..
            nearest: how nearest rounds positions: round_prefer_floor, round_prefer_ceil, floor, ceil.
            antialias: whether each pixel of a smaller result is an average of all that it covers, as in Pillow.
            cubic_coefficient: the coefficient of cubic: -0.75 (OpenCV, PyTorch) or -0.5 (Pillow).
            aspect: stretch, or keep the ratio of both lengths: not_larger makes the image fit into `size`,
                not_smaller makes it cover `size`, so that its shorter side has that length; lengths are rounded.

        All of these are the attributes of ONNX's Resize, which defines the result.
        """
        return self._add(
            Resize, size, mode, coordinates=coordinates, nearest=nearest, antialias=antialias,
            cubic_coefficient=cubic_coefficient, aspect=aspect,
        )  # fmt: skip

    def crop(self: _S, begin: Sequence[int], end: Sequence[int]) -> _S:
        """Keep the rows and columns from `begin` (top, left) to `end` (bottom, right), exclusive.

        Negative numbers count from the end.
        """
        return self._add(Crop, begin, end)

    def centre_crop(self: _S, size: _NumberOrSize) -> _S:
        """Keep the middle; of an odd rest, the smaller half goes from the front. Smaller images are an error."""
        return self._add(CentreCrop, size)

    def pad(self: _S, begin: Sequence[int], end: Sequence[int], mode: str = "constant", value: float = 0.0) -> _S:
        """Add rows and columns before (top, left) and after (bottom, right): constant, edge, reflect or wrap."""
        return self._add(Pad, begin, end, mode, value)

    def _add(self: _S, kind: type[Step], *arguments: Any, **named: Any) -> _S:
        with located(f"{self._plan}: step {len(self._plan.steps) + 1}, {kind.name}"):
            self._plan.steps.append(kind(*arguments, **named))
        return self


class InputSteps(Steps):
    """The steps before an input; each method adds one and returns this."""

    def to_colour(self, colour: str) -> InputSteps:
        """Convert the colours that `input` states to GREY, RGB, BGR, RGBA or BGRA.

        Grey is 0.299 R + 0.587 G + 0.114 B, and becomes f32. Video (NV12, I420) becomes RGB or BGR in f32, 0 to 255 and
        not rounded, as ITU-R BT.601 has it for luma of 16..235: with y = 255 / 219 (Y - 16), R = y + 1.596 (V - 128),
        G = y - 0.392 (U - 128) - 0.813 (V - 128), B = y + 2.017 (U - 128).
        """
        return self._add(ToColour, colour)

    def letter_box(
        self,
        size: _NumberOrSize | None = None,
        value: float = 114.0,
        *,
        mode: str = "linear",
        position: str = "centre",
        antialias: bool = False,
    ) -> InputSteps:
        """Resize until one length equals its length in `size`, keeping their ratio, and fill the rest with `value`.

        `value` is in the units that the image has at this step. The image is in the centre, or at the start: top left.
        Of an odd rest, the smaller half comes first. By default, `size` is the size of the model's input. An image so
        long or wide that its other length would be rounded to 0 is an error.
        """
        return self._add(LetterBox, size, value, mode, position, antialias)


class OutputSteps(Steps):
    """The steps after an output; each method adds one and returns this.

    `axis` is a number or a letter of the layout. By default, it is C if the layout is known, otherwise the last of two.
    """

    _plan: OutputPlan

    def softmax(self, axis: int | str | None = None) -> OutputSteps:
        """Turn scores into shares of 1 along the axis."""
        return self._add(Softmax, axis)

    def sigmoid(self) -> OutputSteps:
        """Turn each score into a share of 1."""
        return self._add(Sigmoid)

    def argmax(self, axis: int | str | None = None, keep_axis: bool = False) -> OutputSteps:
        """The index of the greatest score along the axis, i64; the axis leaves, unless it is kept."""
        return self._add(ArgMax, axis, keep_axis)

    def top_k(self, k: int, axis: int | str | None = None, largest: bool = True) -> OutputSteps:
        """The k greatest scores along the axis, or the smallest, in order.

        Their indices, i64, are another output, `NAME_indices`, and no later step changes them.
        """
        return self._add(TopK, k, axis, largest)

    def rename(self, name: str) -> OutputSteps:
        """Give the output another name. Raises `PreprocessingError` unless it is a non-empty string."""
        if not isinstance(name, str) or not name:
            raise PreprocessingError(f"{self._plan}: rename: expected a name, got {name!r}")
        self._plan.new_name = name
        return self


def _only(key: str | int | None, nodes: Sequence[Node], what: str) -> str | int:
    """The key, or the key of the only one. Raises `PreprocessingError` if there are several."""
    if key is None and len(nodes) != 1:
        names = ", ".join(node.friendly_name for node in nodes) or "none"
        raise PreprocessingError(f"the model has {len(nodes)} {what}s, so {what}() needs a name or an index: {names}")
    return 0 if key is None else key
