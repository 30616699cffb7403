"""`make_input` and `set_constant`: other values for what a file fixes, per inference or for good."""

from __future__ import annotations

from numpy.typing import ArrayLike

from engine.editing.extraction import find_value
from engine.errors import GraphError
from engine.ir import Constant, Model, Parameter


def make_input(model: Model, name: str) -> Parameter:
    """See `Model.make_input`."""
    constant = _constant(model, name)
    parameter = Parameter(constant.output(0).type, friendly_name=name)
    parameter.output(0).name = name
    model.add_parameter(parameter)
    constant.output(0).replace(parameter)
    return parameter


def set_constant(model: Model, name: str, value: ArrayLike) -> None:
    """See `Model.set_constant`."""
    old = _constant(model, name)
    new = Constant(value, old.element_type, friendly_name=old.friendly_name if old.has_own_name else None)
    if new.shape != old.shape:
        raise GraphError(f"model `{model.name}`: constant `{name}` has shape {list(old.shape)}; got {list(new.shape)}")
    new.output(0).name = old.output(0).name
    new.rt_info.update(old.annotations)
    targets = old.output(0).target_inputs
    old.output(0).replace(new)
    for target in targets:
        target.node.forget_inferred_types()  # the value may decide a shape


def _constant(model: Model, name: str) -> Constant:
    node = find_value(model, name).node
    if not isinstance(node, Constant):
        raise GraphError(f"`{name}` of model `{model.name}` is computed by {node}, so it is not a constant")
    return node
