"""The values that the nodes of a graph proto can read by name, including values of enclosing graphs."""

from __future__ import annotations

from engine.errors import GraphError
from engine.ir import Constant, Model, Output, Parameter, PartialShape, TensorType
from engine.onnx.skeleton import INLINE_BYTES


class Values:
    """Values by name; a value found in `outer`, the values of the enclosing graph, becomes a capture.

    Attributes:
        name: the graph's name, for messages.
        by_name: the values defined so far, including captures.
        changed: values whose types differ from those that whole-graph inference found.
        is_unshaped: captures have no shapes, because the enclosing graph's do not fit the graph, which is never run.
    """

    __slots__ = ("_captured", "_outer", "by_name", "changed", "is_unshaped", "name")

    def __init__(self, name: str, outer: Values | None, *, is_unshaped: bool = False) -> None:
        self.name = name
        self.is_unshaped = is_unshaped
        self.by_name: dict[str, Output] = {}
        self.changed: set[Output | None] = set()
        self._outer = outer
        self._captured: dict[Parameter, Output] = {}

    def get(self, name: str) -> Output:
        """The value called `name`; if it is of an enclosing graph, a capture, or a copy of a small constant.

        Raises `GraphError` if it is not defined.
        """
        value = self.by_name.get(name)
        if value is not None:
            return value
        if self._outer is None:
            raise GraphError(f"graph `{self.name}` reads `{name}`, which is not defined")
        source = self._outer.get(name)
        if isinstance(source.node, Constant) and source.node.byte_size <= INLINE_BYTES:
            value = source.node.clone_with_new_inputs([]).output(0)
        else:
            value_type = source.type
            if self.is_unshaped and isinstance(value_type, TensorType):
                value_type = TensorType(value_type.element_type, PartialShape.dynamic())
            capture = Parameter(value_type, friendly_name=name)
            self._captured[capture] = source
            value = capture.output(0)
            if source in self._outer.changed:
                self.changed.add(value)
        self.by_name[name] = value
        return value

    def captures(self, draft: Model) -> tuple[list[Parameter], list[Output]]:
        """The captures that the nodes of `draft` read, and the corresponding values of the enclosing graph.

        They are in the order of use, which does not depend on the order of the file.
        """
        used: dict[Parameter, None] = {}
        if self._captured:
            for node in draft.ordered_nodes():
                for source in node.input_values:
                    if source is not None and isinstance(source.node, Parameter) and source.node in self._captured:
                        used[source.node] = None
        return list(used), [self._captured[capture] for capture in used]
