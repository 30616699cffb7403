"""`Edit`: a copy of a model that gets the steps of one input or output after the other."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from engine.errors import ModelError, PreprocessingError
from engine.ir import Model, Node, Output, Parameter, PartialShape, Result, TensorType
from engine.ir.shape import Dimension
from engine.preprocessing.axes import read_layout
from engine.preprocessing.colour import PLANES, ToColour
from engine.preprocessing.geometry import CentreCrop, Crop, LetterBox, Resize
from engine.preprocessing.layout import check_rank, checked_layout
from engine.preprocessing.plan import InputPlan, OutputPlan, located
from engine.preprocessing.scores import TopK
from engine.preprocessing.shapes import passed_shape
from engine.preprocessing.step import Step, ToLayout
from engine.preprocessing.tensor import Tensor


class Edit:
    """A copy of a model, in the making."""

    def __init__(self, model: Model) -> None:
        self._model = model.clone()
        self._parameters = {p.friendly_name: [p] for p in self._model.parameters}
        self._results = {r.friendly_name: [r] for r in self._model.results}

    def prepare(self, plan: InputPlan) -> None:
        """Put steps before an input. Raises `PreprocessingError`."""
        with located(str(plan)):
            self._parameters[plan.name] = _prepared(self._model.parameter(plan.name), plan)

    def read(self, plan: OutputPlan) -> None:
        """Put steps after an output. Raises `PreprocessingError`."""
        with located(str(plan)):
            self._results[plan.name] = _read(self._model.result(plan.name), plan)

    def finish(self) -> Model:
        """The changed copy. Raises `PreprocessingError` if it is not a valid model."""
        old = self._model
        try:
            model = Model(_flat(self._results.values()), _flat(self._parameters.values()), old.sinks, old.name)
            for variable in old.variables:
                model.add_variable(variable)
            model.metadata, model.opset_imports, model.rt_info = old.metadata, old.opset_imports, old.rt_info
            model.validate()
        except ModelError as e:
            raise PreprocessingError(f"model `{old.name}` cannot have these steps: {e}") from e
        return model


def _prepared(old: Parameter, plan: InputPlan) -> list[Parameter]:
    goal = old.type
    if not isinstance(goal, TensorType):
        raise PreprocessingError(f"the model's input is {goal}; only tensors can be prepared")
    goal_layout = plan.model_layout or _noted_layout(old) or read_layout(old.output(0))
    if goal_layout and goal.shape.rank.is_static:
        check_rank(goal_layout, len(goal.shape), f"the model's input, {goal},")
    layout = plan.layout or ("NHWC" if plan.colour in PLANES else goal_layout)
    if layout and not goal_layout:
        raise PreprocessingError(f"the layout of the model's input, {goal}, is unknown; give it as model_layout")
    readers = old.output(0).target_inputs
    first, parameters = _passed(old, plan, goal, goal_layout, layout)
    x = first
    takes_layout = bool(goal_layout) and not any(isinstance(step, ToLayout) for step in plan.steps)
    for position, step in enumerate(plan.steps, 1):
        # Slices of the application's tensor move less than the whole in the model's layout. After them, bytes are
        # transposed rather than the larger elements that they become.
        if takes_layout and x.colour not in PLANES and not isinstance(step, (Crop, CentreCrop)):
            x = x.in_layout(goal_layout)
        with located(f"step {position}, {step}"):
            if x.colour in PLANES and not isinstance(step, ToColour):
                raise PreprocessingError(f"{x.colour} needs its colours converted first")
            x = _with_size(step, goal.shape, goal_layout).apply(x)
    if x.colour in PLANES:
        raise PreprocessingError(f'the model does not read {x.colour}; convert it: to_colour("RGB")')
    x = x.in_layout(goal_layout).in_type(goal.element_type)
    _check_goal(x, goal)
    for reader in readers:
        reader.replace_source_output(x.value)
    _note(parameters, layout, [str(step) for step in plan.steps], [])
    return parameters


def _passed(
    old: Parameter, plan: InputPlan, goal: TensorType, goal_layout: str, layout: str
) -> tuple[Tensor, list[Parameter]]:
    """The application's tensor, and the inputs for it."""
    element_type = plan.element_type or goal.element_type
    suffixes = PLANES.get(plan.colour, ("",))
    parameters = []
    for suffix in suffixes:
        shape = passed_shape(plan, goal.shape, goal_layout, layout, suffix)
        parameter = Parameter(element_type, shape, f"{plan.name}{suffix}")
        parameter.output(0).name = f"{plan.name}{suffix}"
        parameter.rt_info.update(old.annotations)
        parameters.append(parameter)
    values = [parameter.output(0) for parameter in parameters]
    if not parameters[0].type.shape.rank.is_static and plan.steps:  # type: ignore[union-attr]
        raise PreprocessingError("its rank is unknown; give its shape")
    return Tensor(values[0], layout, plan.colour, tuple(values[1:])), parameters


def _with_size(step: Step, goal: PartialShape, layout: str) -> Step:
    """A resizing without a size gets the height and width of the model's input."""
    if not isinstance(step, (Resize, LetterBox)) or step.size is not None or goal.rank.is_dynamic:
        return step
    lengths = [goal[layout.index(letter)] for letter in "HW" if letter in layout]
    if len(lengths) < 2 or any(length.is_dynamic for length in lengths):
        return step
    return replace(step, size=tuple(length.get_length() for length in lengths))


def _check_goal(x: Tensor, goal: TensorType) -> None:
    got, expected = x.value.shape, goal.shape
    if expected.rank.is_dynamic:
        return
    fits = got.rank.is_static and len(got) == len(expected)
    if not fits or not all(_is_within(a, b) for a, b in zip(got, expected, strict=True)):
        sizes = "; resize, letter_box, crop and centre_crop give images a size" if x.layout else ""
        raise PreprocessingError(f"after its steps, it is {x}, but the model expects {goal}{sizes}")


def _is_within(got: Dimension, expected: Dimension) -> bool:
    return (got.is_static or expected.is_dynamic) and expected.compatible(got)


def _read(result: Result, plan: OutputPlan) -> list[Result]:
    value = result.input_value(0)
    if not isinstance(value.type, TensorType) or value.shape.rank.is_dynamic:
        raise PreprocessingError(f"it is {value.type}; steps need a tensor of known rank")
    layout = plan.model_layout or _noted_layout(result)
    if layout:
        check_rank(layout, len(value.shape), f"the model's output, {value.type},")
    x = Tensor(value, layout)
    indices: list[Result] = []
    name = plan.new_name or plan.name
    for position, step in enumerate(plan.steps, 1):
        with located(f"step {position}, {step}"):
            if isinstance(step, TopK) and indices:
                raise PreprocessingError("only one top_k has an output of its own")
            x = step.apply(x)
        if isinstance(step, TopK):
            made = Result(Output(x.value.node, 1), f"{name}_indices")
            indices.append(made)
    if x.value != value:
        result.input(0).replace_source_output(x.value)
    result.friendly_name = name
    _note([result, *indices], x.layout, [], [str(step) for step in plan.steps])
    return [result, *indices]


def _noted_layout(node: Node) -> str:
    """The layout stored with the model, "" if there is none. Raises `PreprocessingError` if it is not a layout."""
    noted = node.annotations.get("layout", "")
    return "" if noted == "" else checked_layout(noted)


def _note(nodes: Iterable[Node], layout: str, before: list[str], after: list[str]) -> None:
    """Store the layout, and the steps before and after those that are stored already, which a file may have."""
    for node in nodes:
        if layout:
            node.rt_info["layout"] = layout
        if before or after:
            noted = node.annotations.get("preprocess", {})
            notes: dict[str, Any] = dict(noted) if isinstance(noted, Mapping) else {}
            known = notes.get("steps", [])
            node.rt_info["preprocess"] = {**notes, "steps": before + (known if isinstance(known, list) else []) + after}


def _flat(groups: Iterable[list[Any]]) -> list[Any]:
    return [node for group in groups for node in group]
