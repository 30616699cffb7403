"""The lowerings of a device, found by operator name."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from importlib import import_module
from typing import Any, ClassVar, Generic, TypeVar

from engine.errors import OperatorSpecError
from engine.ir import Node, Output, TensorType
from engine.lowering.checks import check_tensor, is_omitted
from engine.lowering.refusal import Refusal, RefusalCause
from engine.ops.origin import extension_of, operator_of
from engine.ops.spec import OperatorSpec, SpecT
from engine.passes.config import PassConfig
from engine.startup import dataclass


class Lowering(ABC, Generic[SpecT]):
    """How a device runs one operator or several similar ones; devices subclass this and add their own methods.

    All operators of a lowering share one spec class, which defines the meaning of their attributes.

    Attributes:
        values: the inputs whose values are needed when the node is lowered, such as the axes of a reduction. For a
            table with `binds_values`, plans are made for the values of the model's inputs that these follow from.
    """

    values: ClassVar[tuple[int, ...]] = ()
    takes_any_type: ClassVar[bool] = False
    """Whether the values of a node may also be of unknown rank or no tensors, as those that control flow passes on."""

    @abstractmethod
    def check(self, spec: SpecT) -> Refusal | None:
        """Why the node of `spec` cannot run on the device; None if it can.

        Looks at types, attributes, rank and which inputs are constant. The inputs that are present are tensors of known
        rank. Lengths may be unknown: the answer must hold for any length.
        """

    def is_bound_late(self, spec: SpecT) -> bool:
        """Whether the types of the outputs follow from values that become known only during an inference.

        The device then lowers the node when it has these values, so the ranks of the outputs may be unknown until then.
        """
        return False


LoweringT = TypeVar("LoweringT", bound=Lowering[Any])


@dataclass(frozen=True, slots=True)
class Decision(Generic[LoweringT]):
    """The decision for one node: how it is lowered, or why it is refused.

    Attributes:
        refusal: why the device has no kernel for the node; None if it has one.
        chosen: the node's spec and lowering; None if the node is refused.
    """

    refusal: Refusal | None
    chosen: tuple[OperatorSpec, LoweringT] | None

    @property
    def spec(self) -> OperatorSpec:
        """The spec of a node that is not refused."""
        assert self.chosen is not None, self.refusal
        return self.chosen[0]

    @property
    def lowering(self) -> LoweringT:
        """The lowering of a node that is not refused."""
        assert self.chosen is not None, self.refusal
        return self.chosen[1]


class LoweringTable(Generic[LoweringT]):
    """The lowerings of a device.

    `binds_values`: plans are also made for the values of inputs, where a lowering needs them (`bind_inputs`).
    """

    def __init__(self, *, binds_values: bool = False) -> None:
        self.binds_values = binds_values
        self._of_extensions: LoweringT | None = None
        self._lowerings: dict[tuple[str, str], tuple[LoweringT, type[OperatorSpec]]] = {}
        self._homes: dict[tuple[str, str], str] = {}

    def lowers(
        self, *op_types: str, domain: str = "", spec: type[OperatorSpec] = OperatorSpec
    ) -> Callable[[type[LoweringT]], type[LoweringT]]:
        """Register a class of lowerings, made without arguments, for operators of one domain.

        Args:
            op_types: the operators.
            domain: their domain; "" is ONNX's own.
            spec: the spec class that the lowering reads; by default each operator's, which for operators without
                attributes is `OperatorSpec`.

        Raises `ValueError` if an operator already has a lowering.
        """

        def register(cls: type[LoweringT]) -> type[LoweringT]:
            lowering = cls()
            keys = [(domain, op_type) for op_type in op_types]
            for key in keys:
                # One that is imported on demand would otherwise fail later, in the compilation that needs it.
                if key in self._lowerings or self._homes.get(key, cls.__module__) != cls.__module__:
                    raise ValueError(f"{key[1]} of domain {domain!r} has two lowerings")
            self._lowerings.update(dict.fromkeys(keys, (lowering, spec)))
            return cls

        return register

    def lowers_on_demand(self, module: str, *op_types: str, domain: str = "") -> None:
        """State that `module` registers the lowerings of these operators: it is imported when one of them is needed."""
        self._homes.update({(domain, op_type): module for op_type in op_types})

    def lowers_extensions(self, cls: type[LoweringT]) -> type[LoweringT]:
        """Decorator: register a class of lowerings, made without arguments, for the operators of extensions.

        It lowers those with a native kernel (`engine.ops.extension.Operator.kernel`); others have none on the device.
        """
        self._of_extensions = cls()
        return cls

    @property
    def operators(self) -> frozenset[tuple[str, str]]:
        """The (domain, operator) pairs that have a lowering."""
        return frozenset({**self._lowerings, **self._homes})

    def configure(self, config: PassConfig) -> None:
        """Run the passes that make what this device has kernels for, and decompose the nodes that it refuses.

        See `PassConfig.limit_to`; switches and callbacks of `config` are exceptions.
        """
        config.limit_to(self.operators, self.has_kernel)

    def has_kernel(self, node: Node) -> bool:
        """Whether the device can run `node`: it has a lowering, whose checks do not refuse it."""
        return self.decide(node).refusal is None

    def values_of(self, node: Node) -> list[Output]:
        """The inputs of `node` whose values its lowering needs; see `Lowering.values`."""
        found = self._found(node)
        if found is None:
            return []
        return [node.input_value(index) for index in found[0].values if node.has_input(index)]

    def decide(self, node: Node) -> Decision[LoweringT]:
        """How `node` is lowered, or why it is refused. `Decisions` caches the answers for a graph."""
        found = self._found(node) or self._of_extension(node)
        if found is None:
            name = f"{node.domain}.{node.op_type}" if node.domain else node.op_type
            extension = extension_of(node)
            origin = f", an operator of extension {extension}," if extension else ""
            return Decision(Refusal(RefusalCause.OP, f"{name}{origin} has no kernel on this device"), None)
        lowering, spec_class = found
        is_checked = not lowering.takes_any_type
        if is_checked and (refused := _check_tensors(node.input_values)):
            return Decision(refused, None)
        try:
            spec = spec_class.of(node)
        except OperatorSpecError as e:
            return Decision(Refusal(RefusalCause.ATTRIBUTE, str(e)), None)
        # The lowering's own reason is more specific than an unknown output rank.
        if refused := lowering.check(spec):
            return Decision(refused, None)
        if is_checked and (refused := _check_tensors(node.outputs)) and not lowering.is_bound_late(spec):
            return Decision(refused, None)
        return Decision(None, (spec, lowering))

    def _found(self, node: Node) -> tuple[LoweringT, type[OperatorSpec]] | None:
        key = (node.domain, node.op_type)
        found = self._lowerings.get(key)
        if found is None and key in self._homes:
            import_module(self._homes[key])
            found = self._lowerings[key]
        return found

    def _of_extension(self, node: Node) -> tuple[LoweringT, type[OperatorSpec]] | None:
        if self._of_extensions is None or not node.domain:
            return None
        operator = operator_of(node)
        return None if operator is None or operator.kernel is None else (self._of_extensions, OperatorSpec)


def _check_tensors(values: Iterable[Output | None]) -> Refusal | None:
    for value in values:
        if value is None:
            continue
        value_type = value.type
        if type(value_type) is TensorType and value_type.shape.is_static:
            continue  # almost all values
        if not is_omitted(value) and (refused := check_tensor(value)) is not None:
            return refused
    return None
