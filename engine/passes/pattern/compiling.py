"""Compiling a pattern, once, into the steps of the matching machine."""

from __future__ import annotations

from collections.abc import Sequence

from engine.ir import Node, Output
from engine.ops import find_op
from engine.passes.pattern.matching import (
    AnyOfStep,
    AnyStep,
    CommutativeStep,
    Kind,
    OptionalStep,
    PortStep,
    Step,
    TypeStep,
    is_commutative,
    kinds_text,
)
from engine.passes.pattern.nodes import AnyInput, AnyOf, Block, OptionalNode, PatternNode, WrapType
from engine.passes.pattern.predicates import Predicate


def compile_pattern(root: Output) -> tuple[Step, list[Node]]:
    """The steps of the pattern that ends in `root`, and its nodes that match operators, root first.

    Shared pattern nodes become shared steps.
    """
    order = _postorder(root.node)
    dependent = _dependent(order)
    steps: dict[Node, Step] = {}
    for node in order:
        steps[node] = _compile_node(node, [_port(steps, s) for s in node.sources], dependent)
    operators = [node for node in reversed(order) if isinstance(_present(steps[node]), TypeStep)]
    step = _port(steps, root)
    assert step is not None
    return step, operators


def _compile_node(node: Node, inputs: Sequence[Step | None], dependent: frozenset[Node]) -> Step:
    label = node.friendly_name if node.has_own_name else ""
    step: Step
    if isinstance(node, AnyInput):
        step = AnyStep(node, label or "any_input", node.predicate)
    elif isinstance(node, (AnyOf, Block)):
        step = AnyOfStep(node, label or ("any_of" if isinstance(node, AnyOf) else "block"), None)
        step.alternatives = [entry for entry in inputs if entry is not None]
        step.is_final = node not in dependent
    elif isinstance(node, OptionalNode):
        step = OptionalStep(node, label or f"optional({kinds_text(node.kinds)})", None)
        step.present = _type_step(node, label or f"optional({kinds_text(node.kinds)})", inputs, dependent)
        assert inputs[0] is not None
        step.absent = inputs[0]
        step.is_final = node not in dependent
    else:
        step = _type_step(node, label, inputs, dependent)
    step.counts_outputs = _counts_outputs(node)
    return step


def _type_step(node: Node, label: str, inputs: Sequence[Step | None], dependent: frozenset[Node]) -> TypeStep:
    predicate: Predicate | None = None
    steps: Sequence[Step | None] | None = inputs
    if isinstance(node, WrapType):
        kinds, predicate = node.kinds, node.predicate
        label = label or f"wrap_type({kinds_text(kinds)})"
        if node.any_inputs:
            steps = None
    else:
        kinds = frozenset({(node.domain, node.op_type)})
        label = label or f"{node.op_type} of the pattern"
    if not inputs and all(op_type in ("Constant", "Parameter") for _, op_type in kinds):
        steps = None
    commutative = frozenset(kind for kind in kinds if is_commutative(kind))
    step: TypeStep
    if commutative and steps is not None and len(steps) > 1 and None not in steps:
        step = CommutativeStep(node, label, predicate)
        step.commutative = commutative
        step.order = sorted(range(len(steps)), key=lambda position: _takes_anything(steps[position]))
        step.is_final = node not in dependent
    else:
        step = TypeStep(node, label, predicate)
    step.kinds, step.inputs = kinds, steps
    step.has_gaps = steps is not None and None in steps
    step.counts_outputs = _counts_outputs(node)
    return step


def _counts_outputs(node: Node) -> bool:
    if isinstance(node, PatternNode):
        return node.counts_outputs
    op = find_op(node.op_type, node.domain)
    return node.num_outputs != 1 or (op is not None and op.max_outputs > 1)


def _port(steps: dict[Node, Step], source: Output | None) -> Step | None:
    """The step for one edge of the pattern."""
    if source is None:
        return None
    step = steps[source.node]
    if not step.counts_outputs:
        return step
    port = PortStep(source.node, f"output {source.index} of {step.label}", None)
    port.inner, port.index, port.counts_outputs = step, source.index, True
    return port


def _postorder(root: Node) -> list[Node]:
    """The nodes that `root` reaches, inputs before what reads them."""
    order: dict[Node, None] = {}
    stack = [root]
    while stack:
        node = stack[-1]
        pending = [s.node for s in node.sources if s is not None and s.node not in order]
        if pending:
            stack.extend(reversed(pending))
            continue
        stack.pop()
        order.setdefault(node)
    return list(order)


def _dependent(order: list[Node]) -> frozenset[Node]:
    """The pattern nodes on whose inner choices something outside them depends.

    That is where a node below is read from elsewhere too, or where a predicate below binds symbols.
    """
    readers: dict[Node, set[Node]] = {}
    for node in order:
        for source in node.sources:
            if source is not None:
                readers.setdefault(source.node, set()).add(node)
    found = []
    for node in order:
        below = set(_postorder(node)) - {node}
        inside = below | {node}
        if any(_binds(n) or not readers.get(n, set()) <= inside for n in below):
            found.append(node)
    return frozenset(found)


def _binds(node: Node) -> bool:
    return isinstance(node, PatternNode) and node.predicate is not None and node.predicate.uses_symbols


def _takes_anything(step: Step | None) -> bool:
    return isinstance(step, AnyStep) and step.predicate is None


def _present(step: Step) -> Step:
    return step.present if isinstance(step, OptionalStep) else step


def root_kinds(step: Step) -> frozenset[Kind] | None:
    """The operators that the root can have; None where any operator can match."""
    if isinstance(step, TypeStep):
        return step.kinds
    if isinstance(step, PortStep):
        return root_kinds(step.inner)
    if isinstance(step, OptionalStep):
        behind = root_kinds(step.absent)
        return None if behind is None else step.present.kinds | behind
    if isinstance(step, AnyOfStep):
        kinds: frozenset[Kind] = frozenset()
        for alternative in step.alternatives:
            found = root_kinds(alternative)
            if found is None:
                return None
            kinds |= found
        return kinds
    return None
