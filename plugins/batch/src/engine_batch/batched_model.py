"""A model for batches of requests: which of its dimensions is the batch, and models for larger batches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from engine.errors import ModelError
from engine.ir import Constant, Dimension, Node, Output, Parameter, Result
from engine.ops import Moves, axes_of, traits_of
from engine.ops.registry import find_op
from engine.ops.reshape import ReshapeSpec
from engine.plugin_api import Model, TensorType, UnsupportedError
from engine.startup import dataclass

_SYMBOL: Final = "requests"


@dataclass(frozen=True)
class BatchedModel:
    """The models made from one model of the user.

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
            _require_batch(model, result, symbol)
        _refuse_along_batch(probe, symbol)
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
    """Whether a node is a Dropout that does nothing, since it is not in training mode."""
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
                f"model `{model.name}` has no batch: input `{name}` is {value_type}{_reader(parameter)}; every input "
                "needs the batch as its first dimension"
            )
        length = found[name] = value_type.shape[0]
        first, batch = next(iter(found.items()))
        if length != batch:
            raise UnsupportedError(
                f"model `{model.name}` has no batch: the first dimension of input `{name}` is {length}"
                f"{_reader(parameter)}, and the first dimension of `{first}` is {batch}; every input needs the batch "
                "as its first "
                "dimension"
            )
    if not found:
        names = next((f" of `{node.friendly_name}`" for node in model.ordered_nodes() if not _is_port(node)), "")
        raise UnsupportedError(f"model `{model.name}`{names} has no batch: it has no inputs")
    batch = next(iter(found.values()))
    if batch.is_static and not batch.min:
        raise UnsupportedError(
            f"model `{model.name}` has a batch of 0{_reader(model.parameters[0])}; give it another with set_batch"
        )
    return batch


def _is_port(node: Node) -> bool:
    return isinstance(node, (Constant, Parameter, Result))


def _reader(parameter: Parameter) -> str:
    """Which node reads an input."""
    readers = [target.node for target in parameter.output(0).target_inputs]
    return f" (read by `{readers[0].friendly_name}`)" if readers else ""


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
        first = model.parameters[0]
        raise UnsupportedError(
            f"{e}; the batch is the first dimension of input `{first.friendly_name}`{_reader(first)}"
        ) from e
    return copy


def _free_reshapes(model: Model) -> None:
    """Have Reshapes copy the batch from their input where a constant repeats it: [1, 1024] becomes [0, 1024]."""
    for node in model.ordered_nodes():
        if node.op_type != "Reshape" or node.domain or ReshapeSpec.of(node).allowzero:
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


def _require_batch(model: Model, result: Result, symbol: str) -> None:
    value_type, source = result.type, result.input_value(0).node
    if isinstance(value_type, TensorType) and value_type.shape.rank.is_static and len(value_type.shape):
        first = value_type.shape[0]
        if first.symbol == symbol:
            return
        if first.is_dynamic:
            raise UnsupportedError(
                f"model `{model.name}`: output `{result.friendly_name}` ({source}) would be {value_type} for inputs "
                f"with a batch of `{symbol}`, so that its batch is known only during an inference; it is needed before"
            )
    where = str(source)
    if isinstance(source, Constant):
        names = [node.friendly_name for node in model.ordered_nodes() if not _is_port(node)]
        where = f"a constant beside `{names[0]}`" if names else "a constant"
    raise UnsupportedError(
        f"model `{model.name}` has no batch: output `{result.friendly_name}` ({where}) would be {value_type} for "
        f"inputs with a batch of `{symbol}`; every output needs the batch as its first dimension"
    )


def _refuse_along_batch(model: Model, symbol: str) -> None:
    """Refuse operators that compute along the batch, and whose types do not show it.

    For an operator whose axes are not known, its types decide.
    """
    for node in model.ordered_nodes():
        mapping = None if traits_of(node).moves is Moves.VIEW else axes_of(node)
        if mapping is None:
            continue
        for index, value in enumerate(node.input_values):
            axes = [] if value is None or mapping.inputs[index] is None else _batches(value, symbol)
            for axis in axes:
                if mapping.output_axis(axis, index) is None:
                    raise UnsupportedError(
                        f"model `{model.name}`: {node} computes along dimension {axis} of input {index}, the batch, so "
                        "that requests would affect each other; compile it for the device itself"
                    )


def _batches(value: Output, symbol: str) -> list[int]:
    """The axes that have the length of the batch."""
    if not isinstance(value.type, TensorType) or value.type.shape.rank.is_dynamic:
        return []
    return [axis for axis, dim in enumerate(value.type.shape) if dim.symbol == symbol]
