"""Annotations follow the computation: the ones that a user or a plugin wrote on a node are found on its replacement."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from engine import ops
from engine.errors import PassError
from engine.ir import Constant, Model, Node, Parameter, boolean, f32
from engine.passes import InitNodeInfo, RuntimeAttribute, check_rt_info, copy_runtime_info


def nodes(count: int, **infos: dict[str, Any]) -> list[Node]:
    x = Parameter(f32, [4], "x")
    made = [ops.Relu(x, friendly_name=f"n{i}") for i in range(count)]
    for name, info in infos.items():
        made[int(name[1:])].rt_info.update(info)
    return made


def test_one_to_one() -> None:
    transpose, reshape = nodes(2, n0={"affinity": "CPU"}, n1={"stale": 1})
    copy_runtime_info(transpose, reshape)
    assert reshape.rt_info == {"affinity": "CPU"}, "what the target had is removed"
    reshape.rt_info["own"] = 1
    assert transpose.rt_info == {"affinity": "CPU"}, "the two do not share one dict"


def test_one_to_many() -> None:
    div, power, mul = nodes(3, n0={"affinity": "CPU"}, n2={"stale": 1})
    copy_runtime_info(div, [power, mul])
    assert power.rt_info == mul.rt_info == {"affinity": "CPU"}
    assert power.rt_info is not mul.rt_info


def test_many_to_one_merges_what_agrees_and_drops_what_differs() -> None:
    conv, bias, fused = nodes(
        3,
        n0={"affinity": "CPU", "stage": 1, "fused_names": ("conv",), "only": "conv"},
        n1={"affinity": "GPU", "stage": 1, "fused_names": ("bias", "conv")},
    )
    copy_runtime_info([conv, bias], fused)
    assert fused.rt_info == {"stage": 1, "only": "conv", "fused_names": ("conv", "bias")}


def test_many_to_many_and_a_target_among_the_sources_keeps_its_own() -> None:
    a, b, c, e = nodes(4, n0={"affinity": "CPU", "x": 0}, n1={"affinity": "GPU", "y": 1}, n2={"z": 2}, n3={"stale": 3})
    copy_runtime_info([a, b, c], [a, e])
    assert a.rt_info == {"affinity": "CPU", "x": 0, "y": 1, "z": 2}
    assert e.rt_info == {"x": 0, "y": 1, "z": 2}


def test_nothing_to_copy_still_removes_what_the_target_had() -> None:
    source, target = nodes(2, n1={"stale": 1})
    copy_runtime_info([source], [target])
    assert target.rt_info == {}


def test_iterators_and_values_without_a_truth_are_taken() -> None:
    a, b, c = nodes(3, n0={"scales": np.ones(3)}, n1={"scales": np.ones(3)})
    copy_runtime_info(iter([a, b]), iter([c]))
    assert list(c.rt_info) == ["scales"]


class Longest(RuntimeAttribute):
    def __init__(self, text: str, stays: bool = False) -> None:
        self.text = text
        self.stays = stays

    def merge(self, others: Sequence[Any]) -> Any | None:
        longest = max([self, *others], key=lambda item: len(item.text))
        return longest if longest.text != "none" else None

    def is_copyable(self, to: Node) -> bool:
        return not self.stays


@pytest.mark.parametrize(
    ("names", "merged"),
    [
        ([("a",), ("b", "c")], ("a", "b", "c")),
        ([("a", "b"), ("c",)], ("a", "b", "c")),
        ([("a", "b"), ("b", "c")], ("a", "b", "c")),
        ([("a",), ("a",)], ("a",)),
        ([("a",), ("b", "a"), ("c", "b")], ("a", "b", "c")),
        ([["a"], ("b",)], ("a", "b")),
    ],
)
def test_names_of_merged_nodes_are_listed_once_in_order(names: list[Any], merged: tuple[str, ...]) -> None:
    *sources, target = nodes(len(names) + 1, **{f"n{i}": {"fused_names": value} for i, value in enumerate(names)})
    copy_runtime_info(sources, target)
    assert target.rt_info == {"fused_names": merged}


def test_attributes_decide_themselves_how_they_merge_and_travel() -> None:
    a, b, c = nodes(3, n0={"why": Longest("ab")}, n1={"why": Longest("abc")})
    copy_runtime_info([a, b], c)
    assert c.rt_info["why"].text == "abc"
    a.rt_info["why"], b.rt_info["why"] = Longest("none"), Longest("x")
    copy_runtime_info([a, b], c)
    assert c.rt_info == {}
    a.rt_info["why"] = Longest("fixed", stays=True)
    copy_runtime_info(a, c)
    assert c.rt_info == {}
    copy_runtime_info([a, b], a)
    assert a.rt_info["why"].text == "fixed", "on the node where it is it stays"


def model_with_bodies() -> Model:
    condition, x = Parameter(boolean, [], "condition"), Parameter(f32, [4], "x")
    captures = [Parameter(f32, [4]), Parameter(f32, [4])]
    bodies = [Model([ops.Relu(c, friendly_name=f"inner{i}")], captures=[c]) for i, c in enumerate(captures)]
    node = ops.If(condition, x, x, then_branch=bodies[0], else_branch=bodies[1], friendly_name="if")
    return Model([ops.Add(node, Constant(1.0), friendly_name="sum")], [condition, x])


def test_names_are_written_once_and_checked_everywhere() -> None:
    model = model_with_bodies()
    assert InitNodeInfo().run_on_model(model)
    assert model.node("sum").rt_info["fused_names"] == ("sum",)
    assert not InitNodeInfo().run_on_model(model), "names that are there stay"
    check_rt_info(model)
    inner = model.node("if").bodies["else_branch"].node("inner1")
    assert inner.rt_info["fused_names"] == ("inner1",)
    inner.rt_info.clear()
    with pytest.raises(PassError, match=r"1 nodes lost their rt_info: Relu `inner1`; call copy_"):
        check_rt_info(model)
