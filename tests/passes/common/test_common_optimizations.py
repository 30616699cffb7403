"""The bundle: what runs by default, how it is trimmed, and that it is safe to run on anything."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from engine import ops
from engine.ir import Constant, Model, Node, Parameter, boolean, f32
from engine.passes import InitNodeInfo, Manager, Pass, PassConfig, check_rt_info
from engine.passes.catalog import list_passes
from engine.passes.common.activation_fusion import ActivationFusion
from engine.passes.common.attention_fusion import AttentionFusion, RelaxedAttentionFusion
from engine.passes.common.common_optimizations import CommonOptimizations
from engine.passes.common.convert_precision import ConvertPrecision
from engine.passes.common.decompositions import (
    SwishDecomposition,
)
from engine.passes.common.divide_to_multiply import DivideToMultiply
from engine.passes.common.gelu_fusion import GeluFusion
from engine.passes.common.last_position import LastPosition
from engine.passes.common.make_adaptable import MakeAdaptable
from engine.passes.common.make_stateful import MakeStateful
from engine.passes.common.masked_caches import MaskedCaches
from engine.passes.common.matmul_bias_fusion import MatMulBiasFusion
from engine.passes.common.residual_fusion import ResidualFusion
from engine.passes.common.swish_fusion import SwishFusion
from engine.passes.common.widen_precision import WidenPrecision
from engine.passes.late import loaded
from engine.passes.rewrite import GraphRewrite
from engine.passes.runtime_info import FUSED_NAMES


def leaves(item: Pass) -> list[tuple[type[Pass], bool | None]]:
    """Every pass in a container, with whether it runs by default; None if that depends on the device."""
    if isinstance(item, Manager):
        return [(kind, enabled and inner) for child, enabled in item._passes for kind, inner in leaves(child)]
    if isinstance(item, GraphRewrite):
        return [(type(loaded(child)), enabled) for child, enabled in item._passes]
    return [(type(loaded(item)), True)]


def test_every_transformation_is_in_it_and_runs_by_default_as_its_class_says() -> None:
    found = dict(leaves(CommonOptimizations()))
    optional = {kind for kind, enabled in found.items() if enabled is False}
    assert optional == {kind for kind in found if not kind.by_default}
    ready = [info.cls for info in list_passes() if info.cls.is_transformation and not issubclass(info.cls, Manager)]
    # Which type a device computes in is for the device to say, and who keeps a model's past for the application.
    assert set(ready) - set(found) == {
        ConvertPrecision,
        WidenPrecision,
        LastPosition,
        MakeAdaptable,
        MakeStateful,
        MaskedCaches,
    }


@pytest.mark.parametrize("kind", [DivideToMultiply, RelaxedAttentionFusion, SwishDecomposition, MatMulBiasFusion])
def test_what_may_change_results_or_needs_kernels_waits_to_be_enabled(kind: type[Pass]) -> None:
    assert not PassConfig().is_enabled(kind, None if kind.by_default else False)


def silu_gelu() -> Model:
    x = Parameter(f32, ["N", 4], "x")
    silu = ops.Mul(x, ops.Sigmoid(x))
    gate = ops.Add(ops.Erf(ops.Div(silu, Constant(np.float32(np.sqrt(2))))), Constant(1.0))
    return Model([ops.Mul(ops.Mul(silu, gate), Constant(0.5))], [x])


def test_a_plugin_trims_it_by_class(count: Callable[[Model], Counter[str]]) -> None:
    model = silu_gelu()
    manager = Manager()
    manager.pass_config.disable(SwishFusion)
    manager.register_pass(CommonOptimizations)
    manager.run_passes(model)
    assert count(model) == {"Sigmoid": 1, "Mul": 1, "Gelu": 1}
    assert manager.rewrite_counts()["GeluFusion"] == 1
    manager.pass_config.enable(SwishFusion)
    manager.pass_config.disable(GeluFusion)
    assert manager.run_passes(model)
    assert count(model) == {"Swish": 1, "Gelu": 1}


def test_recognitions_do_not_undo_decompositions_that_are_enabled(count: Callable[[Model], Counter[str]]) -> None:
    x = Parameter(f32, ["N", 4], "x")
    model = Model([ops.Swish(x)], [x])
    manager = Manager()
    manager.register_pass(CommonOptimizations)
    manager.pass_config.enable(SwishDecomposition)
    assert manager.run_passes(model)
    assert count(model) == {"Sigmoid": 1, "Mul": 1}
    assert not manager.run_passes(model)


def test_every_node_says_which_original_ones_it_stands_for(load: Callable[[str], Model]) -> None:
    model = load("bert_sdpa.dynamo20.static")
    InitNodeInfo().run_on_model(model)
    softmaxes = {node.friendly_name for node in model.ordered_nodes() if node.op_type == "Softmax"}
    results = [result.friendly_name for result in model.results]
    manager = Manager(checked=True)
    manager.register_pass(CommonOptimizations)
    manager.pass_config.enable(RelaxedAttentionFusion, ActivationFusion, MatMulBiasFusion, ResidualFusion)
    manager.run_passes(model)
    check_rt_info(model)
    attentions = [node for node in model.ordered_nodes() if node.op_type == "Attention"]
    covered = {name for node in attentions for name in node.rt_info[FUSED_NAMES]}
    assert softmaxes <= covered
    assert [result.friendly_name for result in model.results] == results


def test_bodies_are_optimized_too(apply: Callable[..., Counter[str]]) -> None:
    chosen, x = Parameter(boolean, [], "chosen"), Parameter(f32, [2, 3], "x")

    def body(make: Callable[[Node], Node]) -> Model:
        inner = Parameter(f32, [2, 3], "inner")
        return Model([make(inner)], captures=[inner])

    bodies = {
        "then_branch": body(lambda v: ops.Mul(v, ops.Sigmoid(v))),
        "else_branch": body(lambda v: ops.Identity(ops.Neg(v))),
    }
    node = ops.create("If", [chosen, x, x], bodies, num_outputs=1, friendly_name="choice")
    model = Model([node], [chosen, x])
    apply(model, CommonOptimizations, inputs={"chosen": np.array(True)})
    kinds = [{n.op_type for n in b.ordered_nodes()} for b in model.node("choice").bodies.values()]
    assert "Swish" in kinds[0]
    assert "Identity" not in kinds[1]


@pytest.mark.parametrize(
    "name", ["bert_eager.dynamo20.dynamic", "convnext.script14.static", "llama_sdpa.dynamo20.static"]
)
def test_placed_nodes_and_kept_nodes_are_left_alone(
    name: str, load: Callable[[str], Model], count: Callable[[Model], Counter[str]]
) -> None:
    """A callback for all passes that keeps every node: the graph does not change."""
    model = load(name)
    before = count(model)
    manager = Manager()
    manager.register_pass(CommonOptimizations)
    manager.pass_config.set_callback(callback=lambda node: True)
    manager.run_passes(model)
    assert count(model) == before


def test_custom_operators_pass_through(apply: Callable[..., Counter[str]]) -> None:
    x = Parameter(f32, [2, 3], "x")
    custom = Node("Gelu", [ops.Identity(ops.Relu(x))], domain="com.example", friendly_name="custom")
    model = Model([ops.Identity(ops.Neg(x)), custom], [x])
    manager = Manager(checked=True)
    manager.register_pass(CommonOptimizations)
    assert manager.run_passes(model)
    assert model.node("custom").input_value(0).node.op_type == "Relu"
    assert not manager.run_passes(model)


def test_attention_stays_where_it_is_disabled(load: Callable[[str], Model], count: Any) -> None:
    model = load("vit_eager.dynamo20.static")
    manager = Manager()
    manager.register_pass(CommonOptimizations)
    manager.pass_config.disable(AttentionFusion)
    manager.run_passes(model)
    assert count(model)["Softmax"] == 2
