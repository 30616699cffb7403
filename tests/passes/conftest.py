"""Small models and passes that the tests of passes share."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from engine import ops
from engine.ir import Model, Node, Parameter, f32
from engine.passes import MatcherPass, copy_runtime_info, pattern, replace_node


class ReluReluFusion(MatcherPass):
    """Two Relus in a row are one."""

    def __init__(self) -> None:
        super().__init__()
        first = pattern.wrap_type("Relu", predicate=pattern.consumers_count(1))
        second = pattern.wrap_type("Relu", [first])

        def callback(m: pattern.Matcher) -> bool:
            relu = self.register_new_node(ops.Relu(m.pattern_value_map[first].node.input_value(0)))
            relu.friendly_name = m.match_root.friendly_name
            copy_runtime_info(m.matched_nodes, relu)
            replace_node(m.match_root, relu)
            return True

        self.register_matcher(pattern.Matcher(second, "ReluReluFusion"), callback)


@pytest.fixture
def relu_relu_fusion() -> type[MatcherPass]:
    return ReluReluFusion


@pytest.fixture
def relu_chain() -> Callable[[int], Model]:
    """`relu_chain(n)`: x -> relu0 -> ... -> relu(n-1)."""

    def build(length: int) -> Model:
        x = Parameter(f32, [1, 8], "x")
        node: Node = x
        for i in range(length):
            node = ops.Relu(node, friendly_name=f"relu{i}")
        return Model([node], [x])

    return build


@pytest.fixture
def x() -> Parameter:
    return Parameter(f32, [2, "N", 4], "x")
