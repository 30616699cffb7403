"""Operator specs: the attributes of a node, parsed and validated in one place for type rules, evaluation and devices.

The module of a family of operators contains its spec, its type rules and its evaluation::

    @specifies("Concat")
    @dataclass(frozen=True, slots=True, kw_only=True)
    class ConcatSpec(OperatorSpec):
        axis: int

        @classmethod
        def resolve(cls, node: Node, given: dict[str, Any]) -> None:
            given["axis"] = resolved_axis(node, given["axis"], rank_of(node, 0))

    spec = ConcatSpec.of(node)    # spec.axis is 0..rank-1; raises OperatorSpecError naming node, attribute, allowed

Fields have ONNX's attribute names; defaults are filled in from the operator's schema. Facts that depend on lengths
follow in a second stage, `spec.at(shapes)`, once these are known. A spec describes a node at the time of its creation:
create a new one after changing the node or the types of its inputs.
"""

from __future__ import annotations

import dataclasses
from array import array
from collections.abc import Callable, Collection, Sequence
from dataclasses import field
from functools import cache
from typing import Any, Final, NoReturn, Self, TypeVar

import numpy as np

from engine.errors import ModelError, OperatorSpecError
from engine.ir import Node, Output, TensorType
from engine.ir.long_list import LONG, LongList
from engine.ir.single_floats import shown_attribute
from engine.ops.families import Declarations, import_families
from engine.ops.protos import attribute_kind
from engine.ops.registry import AttributeDef, Evaluator, OpDef, compiles, find_op
from engine.ops.rules import describe_inputs
from engine.startup import dataclass
from engine.startup.onnx_library import onnx

_A: Final = onnx.AttributeProto
_KINDS: Final[dict[int, tuple[str, frozenset[int]]]] = {
    _A.INT: ("an int", frozenset({_A.INT})),
    _A.FLOAT: ("a float", frozenset({_A.FLOAT, _A.INT})),
    _A.STRING: ("a str", frozenset({_A.STRING})),
    _A.TENSOR: ("a tensor", frozenset({_A.TENSOR})),
    _A.INTS: ("a sequence of ints", frozenset({_A.INTS})),
    _A.FLOATS: ("a sequence of floats", frozenset({_A.FLOATS, _A.INTS})),
}
"""By the type of an attribute: its name, and the accepted types of values (an empty list counts as INTS)."""
_CONVERSIONS: Final[dict[int, Callable[[Any], Any]]] = {
    _A.INT: int,
    _A.FLOAT: float,
    _A.INTS: lambda values: tuple(map(int, values)),
    _A.FLOATS: lambda values: tuple(map(float, values)),
}
_MEMO_SIZE: Final = 20_000
_FEW: Final = 8
_WITHOUT_ZEROS: Final = {int, str}
"""Types whose equal values are equal in everything."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorSpec:
    """The attributes of a node, typed and complete. Operators without a spec class of their own use this class.

    Attributes:
        node: the described node. It is not compared: specs of equal operations are equal.
    """

    node: Node = field(compare=False, repr=False)

    @classmethod
    def of(cls, node: Node) -> Self:
        """The spec of `node`, of the class registered for its operator, which is `cls` or a subclass.

        Raises `OperatorSpecError` if the node is of another operator, an attribute is missing, of the wrong type
        or out of range, or a rank is not allowed.
        """
        found = _spec_class(node)
        if not issubclass(found, cls):
            operators = ", ".join(sorted(_operators_of(cls))) or "no operator"
            raise OperatorSpecError(
                f"{node}: {cls.__name__} describes {operators}, not {_name_of(node.domain, node.op_type)}"
            )
        known, key, fields = _find(node, found)
        if fields is not None:
            return found(node=node, **fields)
        described: Any = found
        op = find_op(node.op_type, node.domain)
        if op is None:  # of a custom domain: fields with defaults may be omitted
            given = {name: node.attributes[name] for name in _attribute_names(described) if name in node.attributes}
        else:
            given = {each.name: each.read(node) for each in _readers(described, op)}
        _read_flags(node, described, given)
        found.resolve(node, given)
        try:
            spec = found(node=node, **given)
        except TypeError as e:
            raise OperatorSpecError(f"{node}: {e}") from e
        if key is not None:
            if len(known) >= (_MEMO_SIZE if known is _resolved else _FEW):
                known.clear()
            known[key] = given
        return spec

    @classmethod
    def resolve(cls, node: Node, given: dict[str, Any]) -> None:
        """Validate the attributes in `given` and normalize them in place: axes become positive, fields are derived.

        Overridden by subclasses. The validation may depend on attributes, the number of ports, and the element types
        and ranks of inputs, but not on lengths or values, because results are kept for similar nodes; so values in
        `given` must not be changed later. Raises `OperatorSpecError`, preferably through `refuse`.
        """

    # -- the node's ports, as lowerings read them ---------------------------------------------------------

    def input(self, index: int) -> Output | None:
        """Input `index`; None if it is omitted."""
        return self.node.input_value(index) if self.node.has_input(index) else None

    def output(self, index: int = 0) -> Output:
        """Output `index` of the node. Raises `GraphError` if there is none."""
        return self.node.output(index)

    def input_shapes(self) -> tuple[tuple[int, ...] | None, ...]:
        """The shapes of the inputs, for the second stage `at`; None for omitted ones. All lengths must be known."""
        values = self.node.input_values
        return tuple(None if value is None else value.shape.get_shape() for value in values)

    def is_read(self, index: int) -> bool:
        """Whether the node has an output `index`, and it has consumers."""
        return index < self.node.num_outputs and self.node.output(index).num_consumers > 0

    @property
    def op_type(self) -> str:
        """The operator's name without its domain, such as "Conv"."""
        return self.node.op_type


SpecT = TypeVar("SpecT", bound=OperatorSpec)

_classes: Declarations[type[OperatorSpec]] = Declarations()
_without_spec: set[tuple[str, str]] = set()
"""Operators that were looked up in `_classes` in vain, which is slower than to find a class."""
_resolved: dict[object, dict[str, Any]] = {}
"""The fields of specs, except the node, by everything that they depend on.

Those of nodes with long attributes take much memory, and are with the first of these lists instead, whose copies of the
node share it: `LongList.derived`.
"""


def spec_classes() -> dict[str, type[OperatorSpec]]:
    """The spec classes by operator, such as "Conv", or "ai.onnx.ml.Scaler" for one of another domain."""
    import_families()
    return {_name_of(*key): cls for key, cls in _classes.items()}


def specifies(*op_types: str, domain: str = "") -> Callable[[type[SpecT]], type[SpecT]]:
    """Decorator: the class is the spec of these operators. Raises `ModelError` if one already has a spec."""

    def register(cls: type[SpecT]) -> type[SpecT]:
        for op_type in op_types:
            if (domain, op_type) in _classes:
                raise ModelError(f"operator {op_type!r} of domain {domain!r} has two specs")
            _classes[domain, op_type] = cls
            _without_spec.discard((domain, op_type))
        return cls

    return register


def spec_of(node: Node) -> OperatorSpec:
    """The spec of a node, of the class registered for its operator, if any. Raises `OperatorSpecError`."""
    return OperatorSpec.of(node)


def has_spec(node: Node) -> bool:
    """Whether a spec class is registered for the node's operator."""
    return _classes[node.domain, node.op_type] is not None


def evaluates_with_spec(*op_types: str, domain: str = "") -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorator: the function evaluates these operators, as `function(spec, *inputs)`; see `registry.evaluates`.

    The spec's node is a copy without inputs, so that the evaluator does not keep the graph alive.
    """

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        def factory(node: Node) -> Evaluator:
            types = [output.type for output in node.outputs]
            alone = Node(
                node.op_type, (), node.attributes, domain=node.domain, types=types, friendly_name=node.friendly_name
            )
            spec = dataclasses.replace(spec_of(node), node=alone)

            def run(inputs: Sequence[Any]) -> tuple[Any, ...]:
                result = function(spec, *inputs)
                return result if type(result) is tuple else (result,)

            return run

        compiles(*op_types, domain=domain)(factory)
        return function

    return register


def check_spec(node: Node) -> None:
    """Raise `OperatorSpecError` if a spec class is registered for the node's operator and rejects the node.

    Cheap for similar nodes, because successful checks are cached.
    """
    operator = node.domain, node.op_type
    if operator in _without_spec:
        return
    cls = _classes[operator]
    if cls is None:
        _without_spec.add(operator)
        return
    if _find(node, cls)[2] is None:
        cls.of(node)


def _read_flags(node: Node, cls: Any, given: dict[str, Any]) -> None:
    """Convert attributes that the spec has as a bool; refuse numbers but 0 and 1, whose meaning differs by runtime."""
    for each in dataclasses.fields(cls):
        value = given.get(each.name)
        if each.type not in ("bool", bool) or value is None:
            continue
        if value not in (0, 1):
            refuse(node, each.name, value, "0 or 1")
        given[each.name] = bool(value)


_Known = dict[object, dict[str, Any]]


def _find(node: Node, cls: Any) -> tuple[_Known, tuple[object, ...] | None, dict[str, Any] | None]:
    """Where the spec's fields for `node` are kept, and their key, None if they cannot be; and the fields, if known."""
    attributes = node.attributes
    if attributes and node.has_bodies:  # keeping them would keep their graphs alive
        return _resolved, None, None
    first = next((value for value in attributes.values() if type(value) is LongList), None)
    known = _resolved if first is None else first.derived
    key = [cls, *attribute_key(node, is_kept=first is not None)]
    for source in node.sources:
        value_type = None if source is None else source.type
        if type(value_type) is TensorType:
            key += value_type.element_type, value_type.shape.rank.max
        else:
            key.append(value_type)
    found = tuple(key)
    try:
        return known, found, known.get(found)
    except TypeError:  # an unhashable attribute, such as a large tensor
        return known, None, None


def attribute_key(node: Node, *, is_kept: bool = False) -> list[object]:
    """A key of the operator, the attributes and the number of outputs of a node; not hashable for a large tensor.

    With `is_kept`, it is: the key lives no longer than the node's attributes, and may refer to them.
    """
    key: list[object] = [node.op_type, node.domain, node.num_outputs]
    for name, value in node.attributes.items():
        if type(value) is np.ndarray:
            key += name, _exact_array(value, is_kept)
        else:
            key += name, type(value), _exact(value)
    return key


def _exact_array(value: np.ndarray[Any, Any], is_kept: bool) -> object:
    if value.size <= LONG and value.dtype != object:
        return value.dtype, value.shape, value.tobytes()
    return _Same(value) if is_kept else value


class _Same:
    """A key that is equal only for the same object: comparing lists of millions takes too long."""

    __slots__ = ("value",)

    def __init__(self, value: object) -> None:
        self.value = value

    def __hash__(self) -> int:
        return id(self.value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self.value is other.value


def has_long_attributes(node: Node) -> bool:
    """Whether an attribute is a long list, so that little should be kept for the node."""
    return any(type(value) is LongList for value in node.attributes.values())


def _exact(value: object) -> object:
    """A key for the value of an attribute that distinguishes 0.0 from -0.0, which are equal."""
    if type(value) is float:
        return value.hex()
    if not isinstance(value, tuple):
        return value
    if type(value) is LongList:
        return _Same(value)
    types = {*map(type, value)}
    if types <= _WITHOUT_ZEROS:
        return value
    if types == {float}:
        return array("d", value).tobytes()
    return tuple(map(_exact, value))


def refuse(node: Node, name: str, found: object, allowed: object, cause: Exception | None = None) -> NoReturn:
    """Raise `OperatorSpecError` for attribute or input `name` with value `found`; `allowed` describes valid values."""
    op = find_op(node.op_type, node.domain)
    kind = "input" if op is not None and any(port.name == name for port in op.inputs) else "attribute"
    raise OperatorSpecError(
        _described(node, f"{kind} {name} is {shown_attribute(found)!r}; allowed: {allowed}")
    ) from cause


def refuse_rank(node: Node, index: int, rank: int, allowed: object) -> NoReturn:
    """Raise `OperatorSpecError` for the rank of input `index`; `allowed` describes valid ranks."""
    raise OperatorSpecError(_described(node, f"input {index} has rank {rank}; allowed: {allowed}"))


def _described(node: Node, problem: str) -> str:
    """A message with the types of the inputs, if any: the node of an evaluator's spec has none."""
    return f"{node}: {problem}; {describe_inputs(node)}" if node.num_inputs else f"{node}: {problem}"


def check_choice(node: Node, name: str, found: str, allowed: Collection[str]) -> None:
    """Raise `OperatorSpecError` if the value of an attribute is not one of `allowed`."""
    if found not in allowed:
        refuse(node, name, found, ", ".join(allowed))


def rank_of(node: Node, index: int) -> int | None:
    """The rank of input `index`; None if it is unknown. Raises `OperatorSpecError` if the input is not a tensor."""
    value_type = node.input_value(index).type
    if not isinstance(value_type, TensorType):
        raise OperatorSpecError(f"{node}: input {index} is {value_type}; allowed: a tensor")
    rank = value_type.shape.rank
    return rank.min if rank.is_static else None


def check_rank(node: Node, index: int, *allowed: int) -> int | None:
    """The rank of input `index`; None if it is unknown or the input is omitted.

    Raises `OperatorSpecError` if it is not one of `allowed`.
    """
    rank = rank_of(node, index) if node.has_input(index) else None
    if rank is not None and rank not in allowed:
        refuse_rank(node, index, rank, " or ".join(map(str, allowed)))
    return rank


def check_min_rank(node: Node, index: int, least: int) -> None:
    """Raise `OperatorSpecError` if the rank of input `index` is known and less than `least`."""
    rank = rank_of(node, index)
    if rank is not None and rank < least:
        refuse_rank(node, index, rank, f"{least} or more")


def resolved_axis(node: Node, axis: int, rank: int | None, name: str = "axis") -> int:
    """`axis` counted from the front; a negative one is kept while the rank is unknown."""
    if rank is None:
        return axis
    if not -rank <= axis < rank:
        refuse(node, name, axis, f"{-rank}..{rank - 1}, as the rank is {rank}" if rank else "none, as the rank is 0")
    return axis % rank


def resolved_axes(node: Node, axes: Collection[int], rank: int | None, name: str = "axes") -> tuple[int, ...]:
    """`axes` counted from the front, in the given order. Raises `OperatorSpecError` for repeated axes."""
    resolved = tuple(resolved_axis(node, axis, rank, name) for axis in axes)
    if len(set(resolved)) < len(resolved):
        refuse(node, name, list(axes), "each axis once")
    return resolved


def _spec_class(node: Node) -> type[OperatorSpec]:
    return _classes[node.domain, node.op_type] or OperatorSpec


def _operators_of(cls: type[OperatorSpec]) -> list[str]:
    return [name for name, each in spec_classes().items() if issubclass(each, cls)]


def _name_of(domain: str, op_type: str) -> str:
    return f"{domain}.{op_type}" if domain else op_type


# Classes are hashable, but mypy compares a class's own __hash__, which is of its instances: so parameters are Any.
@cache
def _attribute_names(cls: Any) -> tuple[str, ...]:
    return tuple(each.name for each in dataclasses.fields(cls) if each.init and each.name != "node")


@cache
def _readers(cls: Any, op: OpDef) -> tuple[_Reader, ...]:
    return tuple(_Reader(op.attributes[name]) for name in _attribute_names(cls) if name in op.attributes)


class _Reader:
    """Reads one attribute from nodes of an operator."""

    __slots__ = ("_accepted", "_convert", "_default", "_is_required", "_kind", "_text", "name")

    def __init__(self, definition: AttributeDef) -> None:
        self.name = definition.name
        self._kind = definition.kind
        self._is_required = definition.required
        self._text, self._accepted = _KINDS.get(definition.kind, ("", frozenset()))
        self._convert = _CONVERSIONS.get(definition.kind)
        self._default = self._converted(definition.default)

    def read(self, node: Node) -> Any:
        """The value for `node`, which is the default if it has none."""
        value = node.attributes.get(self.name)
        if value is None:
            if self._is_required:
                raise OperatorSpecError(f"{node}: required attribute {self.name!r} is missing")
            return self._default
        if self._text and attribute_kind(value) not in self._accepted:
            refuse(node, self.name, value, self._text)
        return self._converted(value)

    def _converted(self, value: Any) -> Any:
        return value if value is None or self._convert is None else self._convert(value)
