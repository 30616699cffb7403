"""Compiling a pattern, once, into the instructions of the matching machine."""

from __future__ import annotations

from collections.abc import Sequence

from engine.ir import Node, Output
from engine.ops import find_op
from engine.passes.pattern.matching import (
    AnyInstruction,
    AnyOfInstruction,
    CommutativeInstruction,
    Instruction,
    Kind,
    OptionalInstruction,
    PortInstruction,
    TypeInstruction,
    is_commutative,
    kinds_text,
)
from engine.passes.pattern.nodes import AnyInput, AnyOf, Block, OptionalNode, PatternNode, WrapType
from engine.passes.pattern.predicates import Predicate


def compile_pattern(root: Output) -> tuple[Instruction, list[Node]]:
    """The instructions of the pattern with root `root`, and its nodes that match operators, root first.

    Shared pattern nodes become shared instructions.
    """
    order = _postorder(root.node)
    dependent = _dependent(order)
    instructions: dict[Node, Instruction] = {}
    for node in order:
        instructions[node] = _compile_node(node, [_port(instructions, s) for s in node.sources], dependent)
    operators = [node for node in reversed(order) if isinstance(_present(instructions[node]), TypeInstruction)]
    instruction = _port(instructions, root)
    assert instruction is not None
    return instruction, operators


def _compile_node(node: Node, inputs: Sequence[Instruction | None], dependent: frozenset[Node]) -> Instruction:
    label = node.friendly_name if node.has_own_name else ""
    instruction: Instruction
    if isinstance(node, AnyInput):
        instruction = AnyInstruction(node, label or "any_input", node.predicate)
    elif isinstance(node, (AnyOf, Block)):
        instruction = AnyOfInstruction(node, label or ("any_of" if isinstance(node, AnyOf) else "block"), None)
        instruction.alternatives = [entry for entry in inputs if entry is not None]
        instruction.is_final = node not in dependent
    elif isinstance(node, OptionalNode):
        instruction = OptionalInstruction(node, label or f"optional({kinds_text(node.kinds)})", None)
        instruction.present = _type_instruction(node, label or f"optional({kinds_text(node.kinds)})", inputs, dependent)
        assert inputs[0] is not None
        instruction.absent = inputs[0]
        instruction.is_final = node not in dependent
    else:
        instruction = _type_instruction(node, label, inputs, dependent)
    instruction.counts_outputs = _counts_outputs(node)
    instruction.accepts = root_kinds(node)
    return instruction


def _type_instruction(
    node: Node, label: str, inputs: Sequence[Instruction | None], dependent: frozenset[Node]
) -> TypeInstruction:
    predicate: Predicate | None = None
    instructions: Sequence[Instruction | None] | None = inputs
    if isinstance(node, WrapType):
        kinds, predicate = node.kinds, node.predicate
        label = label or f"wrap_type({kinds_text(kinds)})"
        if node.any_inputs:
            instructions = None
    else:
        kinds = frozenset({(node.domain, node.op_type)})
        label = label or f"{node.op_type} of the pattern"
    if not inputs and all(op_type in ("Constant", "Parameter") for _, op_type in kinds):
        instructions = None
    commutative: frozenset[Kind] = frozenset()
    if instructions is not None and len(instructions) > 1 and None not in instructions:
        commutative = frozenset(kind for kind in kinds if is_commutative(kind))
    instruction: TypeInstruction
    if commutative and instructions is not None:
        instruction = CommutativeInstruction(node, label, predicate)
        instruction.commutative = commutative
        instruction.order = sorted(
            range(len(instructions)), key=lambda position: _takes_anything(instructions[position])
        )
        instruction.is_final = node not in dependent
    else:
        instruction = TypeInstruction(node, label, predicate)
    instruction.kinds, instruction.inputs = kinds, instructions
    instruction.has_gaps = instructions is not None and None in instructions
    instruction.counts_outputs = _counts_outputs(node)
    return instruction


def _counts_outputs(node: Node) -> bool:
    if isinstance(node, PatternNode):
        return node.counts_outputs
    op = find_op(node.op_type, node.domain)
    return node.num_outputs != 1 or (op is not None and op.max_outputs > 1)


def _port(instructions: dict[Node, Instruction], source: Output | None) -> Instruction | None:
    """The instruction for one edge of the pattern."""
    if source is None:
        return None
    instruction = instructions[source.node]
    if not instruction.counts_outputs:
        return instruction
    port = PortInstruction(source.node, f"output {source.index} of {instruction.label}", None)
    port.inner, port.index, port.counts_outputs = instruction, source.index, True
    port.accepts = instruction.accepts
    return port


def _postorder(root: Node) -> list[Node]:
    """The nodes that `root` reaches, inputs before their consumers."""
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
    """The pattern nodes whose inner choices affect the match outside of them.

    This is the case if a node below is also read from elsewhere, or if a predicate below binds symbols.
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


def _takes_anything(instruction: Instruction | None) -> bool:
    return isinstance(instruction, AnyInstruction) and instruction.predicate is None


def _present(instruction: Instruction) -> Instruction:
    return instruction.present if isinstance(instruction, OptionalInstruction) else instruction


def root_kinds(root: Node) -> frozenset[Kind] | None:
    """The operators that a match of the pattern `root` can have as its root; None if it can be any operator."""
    if not isinstance(root, PatternNode):
        return frozenset({(root.domain, root.op_type)})
    kinds: frozenset[Kind] = frozenset()
    alternatives: Sequence[Output | None] = root.sources
    if isinstance(root, WrapType):
        kinds, alternatives = root.kinds, root.sources[:1] if isinstance(root, OptionalNode) else ()
    elif not isinstance(root, (AnyOf, Block)):
        return None
    for alternative in alternatives:
        found = None if alternative is None else root_kinds(alternative.node)
        if found is None:
            return None
        kinds |= found
    return kinds
