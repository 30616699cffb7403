"""A model for batches of requests: which of its dimensions is the batch, and models for more of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from engine.errors import ModelError
from engine.ir import Constant, Dimension, Node
from engine.ops.registry import find_op
from engine.plugin_api import Model, TensorType, UnsupportedError, ValueType

_SYMBOL: Final = "requests"


@dataclass(frozen=True)
class BatchedModel:
    """The models of one model of the user.

    Attributes:
        single: as the user passed it.
        unit: the batch of each request if it is fixed; None if requests may have any.
        rows: the batch of a full batch of requests.
        full: for full batches.
        any_rows: for any number of rows.
    """

    single: Model
    unit: int | None
    rows: int
    full: Model
    any_rows: Model

    @classmethod
    def of(cls, model: Model, size: int) -> BatchedModel:
        """The models for batches of `size` requests.

        The batch is the first dimension of all inputs and outputs. Raises `UnsupportedError`, naming input, output or
        node, for a model that has none, that keeps values between inferences, or that has random operators.
        """
        _refuse_dependent(model)
        batch = _common_length(model)
        symbol = _unused_symbol(model)
        probe = _with_batch(model, symbol)
        for result in probe.results:
            _require_batch(model, result.friendly_name, result.type, symbol)
        rows = size * (batch.min if batch.is_static else 1)
        full = _with_batch(model, rows)
        return cls(model, batch.min if batch.is_static else None, rows, full, probe if batch.is_static else model)


def _refuse_dependent(model: Model) -> None:
    if model.variables:
        names = ", ".join(f"`{variable.name}`" for variable in model.variables)
        raise UnsupportedError(
            f"model `{model.name}` keeps values between the inferences of a request ({names}), and a batch has "
            "inferences of many requests; compile it for the device itself"
        )
    for node in _all_nodes(model):
        op = find_op(node.op_type, node.domain)
        if op is not None and not op.is_deterministic and not _is_idle_dropout(node):
            raise UnsupportedError(
                f"{node} gives random values, which a batch would draw in another order; compile the model for the "
                "device itself"
            )


def _is_idle_dropout(node: Node) -> bool:
    """Whether it is a Dropout that does nothing, since the model is not trained."""
    mode = node.input_values[2] if node.op_type == "Dropout" and len(node.input_values) > 2 else None
    is_off = mode is None or (isinstance(mode.node, Constant) and not mode.node.data.any())
    return node.op_type == "Dropout" and is_off


def _all_nodes(model: Model) -> Iterator[Node]:
    for node in model.ordered_nodes():
        yield node
        for body in node.bodies.values():
            yield from _all_nodes(body)


def _common_length(model: Model) -> Dimension:
    """The first length of all inputs. Raises `UnsupportedError` naming an input that has none, or another one."""
    found: dict[str, Dimension] = {}
    for parameter in model.parameters:
        name, value_type = parameter.friendly_name, parameter.type
        if not isinstance(value_type, TensorType) or value_type.shape.rank.is_dynamic or not len(value_type.shape):
            raise UnsupportedError(
                f"model `{model.name}` has no batch: input `{name}` is {value_type}; every input needs the batch as "
                "its first dimension"
            )
        found[name] = value_type.shape[0]
    if not found:
        raise UnsupportedError(f"model `{model.name}` has no batch: it has no inputs")
    first, batch = next(iter(found.items()))
    for name, length in found.items():
        if length != batch:
            raise UnsupportedError(
                f"model `{model.name}` has no batch: the first dimension of input `{name}` is {length}, and that of "
                f"`{first}` is {batch}; every input needs the batch as its first dimension"
            )
    if batch.is_static and not batch.min:
        raise UnsupportedError(f"model `{model.name}` has a batch of 0; give it another with set_batch")
    return batch


def _unused_symbol(model: Model) -> str:
    used = {
        dim.symbol
        for parameter in model.parameters
        if isinstance(parameter.type, TensorType) and parameter.type.shape.rank.is_static
        for dim in parameter.type.shape
    }
    symbol = _SYMBOL
    while symbol in used:
        symbol += "_"
    return symbol


def _with_batch(model: Model, batch: int | str) -> Model:
    copy = model.clone()
    _free_reshapes(copy)
    try:
        copy.set_batch(batch, {parameter.friendly_name: 0 for parameter in copy.parameters})
    except ModelError as e:
        raise UnsupportedError(str(e)) from e
    return copy


def _free_reshapes(model: Model) -> None:
    """Have Reshapes copy the batch from their input where a constant repeats it: [1, 1024] becomes [0, 1024]."""
    for node in model.ordered_nodes():
        if node.op_type != "Reshape" or node.domain or node.attributes.get("allowzero"):
            continue
        data, target = node.input_value(0).type, node.input_value(1).node
        if not isinstance(data, TensorType) or data.shape.rank.is_dynamic or not len(data.shape):
            continue
        if not isinstance(target, Constant) or not target.data.size:
            continue
        lengths = target.data.reshape(-1).copy()
        if data.shape[0].is_static and data.shape[0].min == lengths[0]:
            lengths[0] = 0
            node.input(1).replace_source_output(Constant(lengths))


def _require_batch(model: Model, name: str, value_type: ValueType, symbol: str) -> None:
    if isinstance(value_type, TensorType) and value_type.shape.rank.is_dynamic:
        return  # its length is checked after each batch
    has_batch = isinstance(value_type, TensorType) and len(value_type.shape) > 0
    if has_batch:
        assert isinstance(value_type, TensorType)
        first = value_type.shape[0]
        has_batch = first.symbol == symbol or (first.is_dynamic and first.symbol is None)
    if not has_batch:
        raise UnsupportedError(
            f"model `{model.name}` has no batch: output `{name}` would be {value_type} for inputs with a batch of "
            f"`{symbol}`; every output needs the batch as its first dimension"
        )
