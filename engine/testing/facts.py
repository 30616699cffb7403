"""`check_facts`: evaluates a node to check the promises that its operator declares.

    from engine.testing.facts import check_facts

    def test_swirl_keeps_its_promises():
        x = Parameter(f32, [3, 4], "x")
        check_facts(ops.create("Swirl", [x], domain="com.example"), [np.random.default_rng(0).normal(size=(3, 4))])

Inputs are changed, and the results that the operator promises to depend on nothing changed must stay. A single node
can refute a promise, not prove it: check nodes of all attributes, ranks and types. The values should differ from each
other, because elements are told apart by their values.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Final, TypeAlias

import numpy as np

from engine.ir import Node
from engine.ops import OpDef, all_ops
from engine.ops.axes import has_axes, is_axis_shared
from engine.ops.cases import OperatorCase, all_cases
from engine.ops.tensors import Array
from engine.ops.traits import Traits, traits_of
from engine.testing.axis_checks import check_axes
from engine.testing.perturbed import evaluation
from engine.testing.random_nodes import MAKERS, random_node
from engine.testing.trait_checks import CHECKS

Inputs: TypeAlias = Sequence[Array | None]
_MAX_ELEMENTS: Final = 20_000


def check_facts(node: Node, inputs: Inputs) -> list[str]:
    """Compare the traits and axes of a node with its evaluation; the promises that the node could have refuted.

    `inputs`: the values of its inputs, None for an omitted one. Raises `AssertionError` with the promise and the
    elements that refute it.
    """
    traits, checked = traits_of(node), []
    if traits.random or not all(isinstance(each, (np.ndarray, type(None))) for each in inputs):
        return []
    run = evaluation(node)
    inputs = [*inputs][: node.num_inputs]
    for name, check in CHECKS.items():
        if getattr(traits, name) and check(node, traits, run, inputs):
            checked.append(name)
    if has_axes(node.op_type, node.domain) and check_axes(node, run, inputs):
        checked.append("axes")
    return checked


def check_operator(op: OpDef) -> set[str]:
    """`check_facts` for the nodes that the engine has of an operator of ONNX; the promises that were compared."""
    return {name for node, inputs in nodes_of(op.name, op.domain) for name in check_facts(node, inputs)}


def checkable(op: OpDef) -> set[str]:
    """The promises of an operator that evaluations can refute."""
    promised = {name for name in CHECKS if getattr(op.traits, name)}
    return {*promised, "axes"} if is_axis_shared(op.name, op.domain) else promised


def nodes_of(op_type: str, domain: str = "", count: int = 10) -> Iterator[tuple[Node, list[Array | None]]]:
    """Nodes of an operator with inputs: its cases, without the large ones, and random ones."""
    named = [each for each in all_cases().values() if (each.domain, each.op_type) == (domain, op_type)]
    cases = [each for each in named if _elements(each) <= _MAX_ELEMENTS]
    if not domain and op_type in MAKERS:
        cases.extend(random_node(op_type, seed) for seed in range(count))
    for case in cases:
        yield _node(case)


def operators_without_facts() -> list[str]:
    """ONNX's operators without declared facts, about which passes and devices assume nothing."""
    return [str(op) for op in all_ops() if op.traits == Traits() and not is_axis_shared(op.name, op.domain)]


def _node(case: OperatorCase) -> tuple[Node, list[Array | None]]:
    return case.node(as_constants=True)[0], case.arrays()


def _elements(case: OperatorCase) -> int:
    return sum(math.prod(data.shape) for data in case.inputs if data is not None)
