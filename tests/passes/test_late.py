"""Passes that are imported when a model needs them: what the pipeline states of them, and when they run.

A pass that is not imported although it could change a model would be a fusion lost, without any error.
"""

from __future__ import annotations

import inspect
import itertools
import re
import sys
from collections.abc import Iterator
from typing import ClassVar

import pytest

from engine import ops
from engine.ir import Model, Node, Parameter, f32
from engine.passes import GraphRewrite, Manager, MatcherPass, PassConfig
from engine.passes.common.common_optimizations import CommonOptimizations
from engine.passes.common.movements import MOVEMENTS
from engine.passes.late import LatePass
from engine.passes.pattern import Matcher, wrap_type
from engine.passes.pattern.nodes import AnyInput, AnyOf, OptionalNode, WrapType
from engine.passes.surgery import replace_node

BY_CALLBACK = {
    # Their patterns are single nodes, or there is none; the functions look for these operators.
    "ExpandElimination": {"Expand"},
    "DequantizeSinking": {"DequantizeLinear"},
    "HardSwishFusion": {"Clip", "HardSigmoid"},
    "QKVProjectionFusion": {"MatMul"},
    "ChannelsFirstSinking": {"Transpose"},
    "TransposeSinking": {"Transpose"},
    "LinearConcatSplitting": {"Concat", "Conv", "Gemm", "MatMul"},
    "LinearMerging": {"Conv", "Gemm", "MatMul"},
    "LinearHoisting": {"Conv", "Gemm", "MatMul", *MOVEMENTS},
    "LinearSinking": {"Conv", "Gemm", "MatMul"},
    "PadConvFusion": {"Pad"},
    "QuantizedProductFusion": {"DequantizeLinear", "QuantizeLinear"},
    "QuantizedMapsFusion": {"DequantizeLinear", "QuantizeLinear"},
    "CompressedWeightsFusion": {"DequantizeLinear", "CompressedMatMul"},
    "CompressedGatherFusion": {"DequantizeLinear"},
    "ExpertMatMulFusion": {"Gather"},
    "QuantizedFusion": {"DequantizeLinear", "MatMulInteger", "QuantizedConv", "QuantizedMatMul"},
    "LayerNormalizationFusion": {"ReduceMean"},
}


def members(manager: Manager) -> Iterator[tuple[GraphRewrite | None, LatePass]]:
    """The passes that are imported on demand, each with the rewrite in which it is."""
    for item, _ in manager._passes:
        if isinstance(item, Manager):
            yield from members(item)
        elif isinstance(item, GraphRewrite):
            yield from ((item, each) for each in item.members if isinstance(each, LatePass))
        elif isinstance(item, LatePass):
            yield None, item


ALL = list(members(CommonOptimizations()))
CASES = pytest.mark.parametrize("late", [each for _, each in ALL], ids=lambda each: each.name)


def required(pattern: Node) -> list[frozenset[tuple[str, str]]]:
    """Sets of operators of which each match has at least one."""
    sources = [source.node for source in pattern.sources if source is not None]
    if isinstance(pattern, AnyInput):
        return []
    if isinstance(pattern, OptionalNode):
        return required(sources[0])
    if isinstance(pattern, AnyOf):
        each = [required(source) for source in sources]
        return [frozenset().union(*choice) for choice in itertools.islice(itertools.product(*each), 5000)]
    own = pattern.kinds if isinstance(pattern, WrapType) else frozenset({(pattern.domain, pattern.op_type)})
    return [own, *(found for source in sources for found in required(source))]


@CASES
def test_what_the_pipeline_states_of_a_pass_is_what_its_class_has(late: LatePass) -> None:
    item = late.loaded()
    assert (late.name, late.makes, late.removes) == (type(item).__name__, item.makes, item.removes)
    assert item.name == late.name
    assert late.by_default is type(item).by_default
    assert item.is_transformation


@CASES
def test_a_pass_does_nothing_without_the_operators_that_it_needs(late: LatePass) -> None:
    item = late.loaded()
    pattern = item.matcher.pattern if isinstance(item, MatcherPass) and item.matcher is not None else None
    known = [] if pattern is None else required(pattern)
    for needed in late.needs:
        is_found_by_callback = {name for _, name in needed} <= BY_CALLBACK.get(late.name, set())
        assert is_found_by_callback or any(found <= needed for found in known), needed


@pytest.mark.parametrize("rewrite", {id(each): each for each, _ in ALL if each}.values(), ids=lambda each: each.name)
def test_passes_of_a_rewrite_state_what_they_make_for_each_other(rewrite: GraphRewrite) -> None:
    """An operator that one makes in the traversal, and another needs, must be known when it begins."""
    late = [each for where, each in ALL if where is rewrite]
    known = rewrite.matchers
    for item in known:
        module = sys.modules[type(item).__module__]
        passes = [each for each in vars(module).values() if isinstance(each, type) and issubclass(each, MatcherPass)]
        is_shared = sum(each.__module__ == module.__name__ for each in passes) > 1
        text = inspect.getsource(type(item) if is_shared else module)
        found = {*re.findall(r"\bops\.([A-Z]\w+)\(", text), *re.findall(r"\bcreate\(\"(\w+)\"", text)}
        own = {name for each in late if each.name == item.name for kinds in each.needs for _, name in kinds}
        for other in late:
            for needed in other.needs:
                awaited = {name for _, name in needed} & (found - item.makes - own)
                assert other.name == item.name or not awaited, (item.name, other.name)


class NegFusion(MatcherPass):
    """Turns Relu into Neg."""

    makes: ClassVar = frozenset({"Neg"})

    def __init__(self) -> None:
        super().__init__()
        self.register_matcher(Matcher(wrap_type("Relu"), self.name), self._replace)

    def _replace(self, m: Matcher) -> bool:
        replace_node(m.match_root, self.register_new_node(ops.Neg(m.match_root.input_value(0))))
        return True


class AbsFusion(MatcherPass):
    """Turns Neg into Abs."""

    def __init__(self) -> None:
        super().__init__()
        self.register_matcher(Matcher(wrap_type("Neg"), self.name), self._replace)

    def _replace(self, m: Matcher) -> bool:
        replace_node(m.match_root, ops.Abs(m.match_root.input_value(0)))
        return True


def late_abs() -> LatePass:
    return LatePass(f"{__name__}.AbsFusion", "Neg")


def kinds_of(model: Model) -> list[str]:
    return [node.op_type for node in model.ordered_nodes() if node.op_type not in ("Parameter", "Result")]


def model_of(op_type: str) -> Model:
    x = Parameter(f32, [2], "x")
    return Model([ops.create(op_type, [x])], [x])


@pytest.mark.parametrize(("op_type", "made"), [("Relu", "Abs"), ("Neg", "Abs"), ("Exp", "Exp")])
def test_it_matches_what_other_passes_of_the_rewrite_make(op_type: str, made: str) -> None:
    model, rewrite = model_of(op_type), GraphRewrite([NegFusion, late_abs()], "Both")
    manager = Manager()
    manager.register_pass(rewrite)
    assert manager.run_passes(model) is (op_type != made)
    assert kinds_of(model) == [made]
    again = model_of("Neg")  # by the same pipeline, in which it may be imported now
    manager.run_passes(again)
    assert kinds_of(again) == ["Abs"]


def test_it_is_configured_by_name_and_by_class() -> None:
    for item in ("AbsFusion", AbsFusion):
        manager = Manager()
        manager.register_pass(late_abs())
        manager.pass_config.disable(item)
        model = model_of("Neg")
        assert not manager.run_passes(model)
    config = PassConfig()
    manager = Manager(config)
    manager.register_pass(late_abs())
    config.set_callback(AbsFusion, callback=lambda node: True)
    assert manager.run_passes(model_of("Neg"))  # the pass asks no callback
    assert [type(item) for item in manager.passes] == [AbsFusion]
    assert manager.rewrite_counts() == {"AbsFusion": 1}
