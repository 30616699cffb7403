"""The nodes of patterns. They are IR nodes, so that they can be inputs of ordinary operations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from engine.errors import PassError, UnknownOperatorError
from engine.ir import UNKNOWN, Node, Output, OutputLike
from engine.ops import CANONICAL_VERSIONS, OpDef, find_op
from engine.ops.registry import definition_of
from engine.passes.pattern.predicates import Predicate, PredicateLike, as_predicate, value_matches
from engine.startup.onnx_library import onnx

PATTERN_DOMAIN = "engine.pattern"


class PatternNode(Node):
    """A pattern for a value or a node.

    By default it matches one value, which may be any output of a node. Once `output(i)` is used, it matches a node, and
    an edge from it matches only output i.
    """

    __slots__ = ("counts_outputs", "predicate")

    counts_outputs: bool
    predicate: Predicate | None

    def __init__(self, kind: str, inputs: Sequence[OutputLike | None], predicate: PredicateLike | None) -> None:
        if isinstance(inputs, (Node, Output, str)):
            raise PassError(f"{kind} takes a list of patterns, got {inputs}; write [{inputs}]")
        super().__init__(kind, inputs, domain=PATTERN_DOMAIN, types=[UNKNOWN])
        self.counts_outputs = False
        self.predicate = None if predicate is None else as_predicate(predicate)

    def output(self, index: int) -> Output:
        """Output `index` of the matched node. Raises `PassError` for a negative index."""
        if index < 0:
            raise PassError(f"{self} has no output {index}; outputs count from 0")
        self.counts_outputs = True
        while self.num_outputs <= index:
            self.add_output(UNKNOWN)
        return Output(self, index)


class AnyInput(PatternNode):
    """Any value; it ends the pattern there."""

    __slots__ = ()


class WrapType(PatternNode):
    """A node of one of several operators."""

    __slots__ = ("any_inputs", "kinds")

    def __init__(
        self,
        kinds: Sequence[str],
        inputs: Sequence[OutputLike | None] | None,
        predicate: PredicateLike | None,
    ) -> None:
        super().__init__("WrapType", inputs or (), predicate)
        self.kinds = frozenset(split_kind(kind) for kind in kinds)
        self.any_inputs = inputs is None


class OptionalNode(WrapType):
    """A node of one of several operators or, if it is absent, the pattern of its first input."""

    __slots__ = ()


class AnyOf(PatternNode):
    """The first alternative that matches."""

    __slots__ = ()


class Block(PatternNode):
    """A named sub-pattern; its parts are found by name in `Matcher.block`."""

    __slots__ = ("parts",)

    def __init__(self, root: OutputLike, name: str, parts: dict[str, Node]) -> None:
        super().__init__("Block", [root], None)
        self.friendly_name = name
        self.parts = parts


Kinds: TypeAlias = "str | Sequence[str]"
Inputs: TypeAlias = "Sequence[OutputLike | None]"


def split_kind(kind: str) -> tuple[str, str]:
    """Domain and operator of `Relu`, `ai.onnx.ml.LabelEncoder` or `engine.ConvActivation`."""
    if not isinstance(kind, str) or not kind:
        raise PassError(f"an operator type is a name such as 'Relu' or 'com.example.Op', got {kind!r}")
    domain, _, op_type = kind.rpartition(".")
    return "" if domain == "ai.onnx" else domain, op_type


def any_input(predicate: PredicateLike | None = None) -> AnyInput:
    """Any value for which `predicate` holds. It is in `pattern_value_map`, but not in `matched_nodes`."""
    return AnyInput("AnyInput", (), predicate)


def wrap_type(kinds: Kinds, inputs: Inputs | None = None, predicate: PredicateLike | None = None) -> WrapType:
    """A node of one of the operators `kinds`, whatever its attributes.

    Args:
        kinds: `"Relu"`, `"com.example.Op"`, or several.
        inputs: patterns of all its inputs; None in the list is an omitted optional input; without the list, any inputs
            match. The inputs of commutative operators match in any order.
        predicate: a condition on the matched output; a function of an `Output`, or of `pattern`'s predicates.

    Raises `PassError` for an unknown operator of a domain that the engine knows, and for more inputs than it takes.
    """
    names = [kinds] if isinstance(kinds, str) else list(kinds)
    if not names:
        raise PassError("wrap_type needs at least one operator type")
    node = WrapType(names, inputs, predicate)
    _check_kinds(node)
    return node


def optional(kinds: Kinds, inputs: Inputs, predicate: PredicateLike | None = None) -> OptionalNode:
    """Like `wrap_type`, but if there is no such node, the first of `inputs` is matched instead."""
    names = [kinds] if isinstance(kinds, str) else list(kinds)
    if not names or not inputs or inputs[0] is None:
        raise PassError(
            f"optional({kinds!r}) needs an operator type and a first input, which matches if the operator is absent"
        )
    node = OptionalNode(names, inputs, predicate)
    _check_kinds(node)
    return node


def any_of(alternatives: Sequence[OutputLike]) -> AnyOf:
    """The first of several patterns that matches, in the order given."""
    if not alternatives:
        raise PassError("any_of needs at least one alternative")
    return AnyOf("AnyOf", alternatives, None)


def wrap_const(value: object = None, predicate: PredicateLike | None = None) -> WrapType:
    """A constant; with `value`, one whose every element equals it (see `value_matches`)."""
    condition = None if predicate is None else as_predicate(predicate)
    if value is not None:
        equals = value_matches(value)
        condition = equals if condition is None else equals & condition
    return WrapType(["Constant"], (), condition)


def block(root: OutputLike, name: str, **parts: Node) -> Block:
    """A named sub-pattern ending in `root`; after a match `Matcher.block(name)[part]` gives the parts' values."""
    return Block(root, name, parts)


def _check_kinds(node: WrapType) -> None:
    """Refuse unknown operators, attributes in predicates, and numbers of inputs."""
    ops = []
    for domain, op_type in node.kinds:
        is_ours = domain in CANONICAL_VERSIONS or find_op(op_type, domain) is not None
        if op_type in ("Parameter", "Result", "Constant") or not is_ours:
            continue
        try:
            ops.append(definition_of(op_type, domain))
        except UnknownOperatorError as e:
            raise PassError(f"a pattern names an unknown operator: {e}") from None
    if len(ops) < len(node.kinds):
        return
    # Most patterns need no attributes, which are expensive to read from a schema.
    most_inputs = max(op.max_inputs for op in ops)
    if node.num_inputs > most_inputs and not any(map(_has_bodies, ops)):  # captures are inputs too
        raise PassError(
            f"a pattern of {_listed(node)} has {node.num_inputs} inputs, the operator takes at most {most_inputs}"
        )
    named = frozenset() if node.predicate is None else node.predicate.attributes
    unknown = sorted(named.difference(*(op.attributes for op in ops))) if named else []
    if unknown:
        known = ", ".join(sorted({name for op in ops for name in op.attributes})) or "none"
        raise PassError(f"a pattern of {_listed(node)} has attribute {unknown[0]!r}; known: {known}")


def _has_bodies(op: OpDef) -> bool:
    return any(attribute.kind == onnx.AttributeProto.GRAPH for attribute in op.attributes.values())


def _listed(node: WrapType) -> str:
    return ", ".join(sorted(op_type for _, op_type in node.kinds))
