"""Shared by passes that compute values in another floating-point type: the converted nodes, and the casts between."""

from __future__ import annotations

from abc import ABC, abstractmethod

from engine import ops
from engine.ir import Constant, ElementType, Node, Output, Result, TensorType
from engine.passes.runtime_info import copy_runtime_info
from engine.passes.surgery import replace_node


class TypeConversion(ABC):
    """Converts nodes one after the other, producers first, to the type `target`.

    Attributes:
        changed: each converted output, with its original type.
    """

    def __init__(self, target: ElementType) -> None:
        self.target = target
        self.changed: dict[Output, ElementType] = {}
        self._converted: dict[Output, Output] = {}
        self._restored: dict[Output, Output] = {}
        self._named: set[Output] = set()

    @abstractmethod
    def is_source(self, value: Output | None) -> bool:
        """Whether a value is a tensor of a type that is converted."""

    @abstractmethod
    def movable(self, node: Node) -> set[int]:
        """The inputs of a node to convert; none if the node stays as it is."""

    @abstractmethod
    def constant(self, constant: Constant) -> Constant:
        """Convert a constant to the target type; rounding is up to the subclass."""

    def cast(self, value: Output, reader: Node) -> Node:
        """Make a Cast of `value` to the target type, with the runtime info of `reader`."""
        made = ops.Cast(value, to=self.target.onnx)
        copy_runtime_info(reader, made)
        return made

    def converted(self, node: Node) -> Node | None:
        """The node on converted inputs; None if it stays as it is. The graph is not changed."""
        indices = self.movable(node)
        if not indices:
            return None
        inputs = list(node.input_values)
        for index, value in enumerate(inputs):
            if value is not None and index in indices:
                inputs[index] = value if value in self.changed else self._to_target(value, node)
            elif value is not None and value in self.changed:
                inputs[index] = self._to_original(value)
        made = node.clone_with_new_inputs(inputs)
        made.forget_inferred_types()  # the clone already has inputs of the converted types
        made.infer_types()
        types = zip(node.output_types, made.output_types, strict=True)
        # Readers of a sequence would not know that its elements have another type.
        return None if any(old != new for old, new in types if not isinstance(old, TensorType)) else made

    def replace(self, node: Node, converted: Node) -> None:
        """Let the consumers of `node` read the converted one."""
        types = [output.element_type if self.is_source(output) else None for output in node.outputs]
        for index, (old, new) in enumerate(zip(node.outputs, converted.outputs, strict=True)):
            is_known = isinstance(old.type, TensorType) and old.shape.rank.is_static
            if is_known and isinstance(new.type, TensorType):
                # The importer may have known more of the shape than type inference.
                converted.set_output_type(index, TensorType(new.element_type, old.shape))
        converted.output_names = node.output_names
        converted.settle_types()
        copy_runtime_info(node, converted)
        replace_node(node, converted)
        for output, original in zip(converted.outputs, types, strict=True):
            if original is not None and output.element_type is self.target:
                self.changed[output] = original

    def restore(self, node: Node) -> None:
        """Make a node that stays as it is read values of the original types."""
        for position in node.inputs:
            if node.has_input(position.index) and position.source_output in self.changed:
                source = position.source_output
                position.replace_source_output(self._to_original(source))
                if isinstance(node, Result):
                    self._take_name(source, position.source_output)

    def _to_target(self, value: Output, reader: Node) -> Output:
        if value not in self._converted:
            if isinstance(value.node, Constant):
                made: Node = self.constant(value.node)
                copy_runtime_info(value.node, made)
            else:
                made = self.cast(value, reader)
            self._converted[value] = made.output(0)
        return self._converted[value]

    def _to_original(self, value: Output) -> Output:
        if value not in self._restored:
            original = self.changed[value]
            made = ops.Cast(value, to=original.onnx)
            copy_runtime_info(value.node, made)
            if value.node.has_own_name:
                made.friendly_name = f"{value.node.friendly_name}.{original.name}"
            self._restored[value] = made.output(0)
        return self._restored[value]

    def _take_name(self, inner: Output, outer: Output) -> None:
        """Move the friendly name of a layer that computes a network output to the node that now computes it."""
        if outer in self._named:
            return
        self._named.add(outer)
        suffix = f".{self.target.name}"
        if inner.node.has_own_name and inner.node.num_outputs == 1:
            outer.node.friendly_name = inner.node.friendly_name
            inner.node.friendly_name += suffix
        if inner.node.output_names is not None:
            outer.name, inner.name = inner.name, inner.name + suffix
