"""`single_node_model`: one node as a model, to ask a runtime whether it takes it; `NodeAnswers` remembers answers."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Hashable, Sequence
from typing import Final, Generic, TypeVar

from engine.errors import ModelWriteError
from engine.ir import Constant, Model, Node, Output, Parameter
from engine.runtime.lifecycle import ForkSafeLock

AnswerT = TypeVar("AnswerT")

VALUE_BYTES: Final = 1024
"""By default, the most bytes of a constant whose value is part of the question: axes, shapes, bounds, scales."""


def single_node_model(node: Node, *, max_constant_bytes: int | None = None) -> Model:
    """A model of `node` alone, with the answer to whether a runtime takes this node.

    The node keeps its name, attributes, bodies and types. Its inputs become parameters `input_0`, `input_1` and so on,
    by the number of the first port that reads the value; a value that several ports read, or that a body captures, is
    one parameter. Constants stay constants, `constant_2` and so on, and share their data: an operator may need their
    values, such as axes or a shape. The outputs that the node's model reads become results, `output_0` and so on; all
    of them do if it reads none.

    Args:
        node: a node of any model, which is not changed. It is neither a Parameter, a Constant nor a Result.
        max_constant_bytes: larger constants become parameters, too, for a runtime that takes weights as inputs.
    """
    copy, read = _copy(node, max_constant_bytes)
    return _model_of(copy, read)


def _copy(node: Node, max_constant_bytes: int | None) -> tuple[Node, Sequence[int]]:
    """A copy of the node that reads parameters and constants of its own, and the numbers of the outputs to return."""
    copies: dict[Output, Node] = {}
    for index, value in enumerate(node.sources):
        if value is None or value in copies:
            continue
        source = value.node
        if isinstance(source, Constant) and (max_constant_bytes is None or source.byte_size <= max_constant_bytes):
            copies[value] = constant = source.clone_with_new_inputs([])
            constant.friendly_name, constant.output_names = f"constant_{index}", None
            constant.rt_info = {}  # a constant that is also an input of its file would be written as an input
        else:
            copies[value] = Parameter(value.type, friendly_name=f"input_{index}")
    copy = node.clone_with_new_inputs([None if value is None else copies[value] for value in node.sources])
    copy.friendly_name = node.friendly_name
    read = [output.index for output in node.outputs if output.num_consumers]
    names = node.output_names
    there = [index for index in range(node.num_outputs) if index in read or names is None or names[index]]
    copy.output_names = [f"output_{index}" if index in there else "" for index in range(node.num_outputs)]
    return copy, read or there


def _model_of(copy: Node, read: Sequence[int]) -> Model:
    sources = dict.fromkeys(value.node for value in copy.sources if value is not None)
    return Model(
        [copy.output(index) for index in read],
        [source for source in sources if isinstance(source, Parameter)],
        [] if copy.num_outputs else [copy],
        name=copy.friendly_name,
    )


class NodeAnswers(Generic[AnswerT]):
    """What `ask` answers about single nodes, remembered for nodes that do not differ for a runtime. Thread-safe.

    Nodes do not differ if they have the same operator and version, attributes, bodies, types of inputs and outputs,
    outputs that are read, and the same values of constants of at most `value_bytes` bytes; of larger constants, such as
    weights, only the types count. So a model of a hundred equal layers takes the questions of one layer.

    Args:
        ask: answers for the `single_node_model` of a node, and may raise. It is not called twice for equal nodes,
            unless two threads ask at the same time, or it raised.
        value_bytes: the most bytes of a constant whose value is compared. An answer must not depend on the values of
            larger ones.
        max_constant_bytes: as for `single_node_model`.
    """

    def __init__(
        self,
        ask: Callable[[Model], AnswerT],
        *,
        value_bytes: int = VALUE_BYTES,
        max_constant_bytes: int | None = None,
    ) -> None:
        self._ask = ask
        self._value_bytes, self._max_constant_bytes = value_bytes, max_constant_bytes
        self._known: dict[Hashable, AnswerT] = {}
        self._lock = ForkSafeLock()

    def answer(self, node: Node) -> AnswerT:
        """The answer for a node, remembered or asked now. Raises what `ask` raises.

        About a node that ONNX cannot express, `ask` is called each time: `hand_over` raises `ModelWriteError` there.
        """
        try:
            key = self.key(node)
        except ModelWriteError:
            return self._ask(single_node_model(node, max_constant_bytes=self._max_constant_bytes))
        with self._lock:
            if key in self._known:
                return self._known[key]
        given = self._ask(single_node_model(node, max_constant_bytes=self._max_constant_bytes))
        with self._lock:
            return self._known.setdefault(key, given)

    def key(self, node: Node) -> Hashable:
        """What the answers are remembered by. Raises `ModelWriteError` if ONNX cannot express the node."""
        from engine.onnx import model_to_proto

        copy, read = _copy(node, self._value_bytes)
        copy.friendly_name, copy.rt_info = "node", {}  # exporters annotate each node with where it is from
        large = tuple(_is_large_constant(value, self._value_bytes) for value in node.sources)
        return hashlib.sha256(
            model_to_proto(_model_of(copy, read)).SerializeToString(deterministic=True)
        ).digest(), large

    def __len__(self) -> int:
        return len(self._known)


def _is_large_constant(value: Output | None, value_bytes: int) -> bool:
    return value is not None and isinstance(value.node, Constant) and value.node.byte_size > value_bytes
