"""What whole networks cost on a GPU, counted on the description of one: launches, and bytes of intermediate values.

Counts need no clock and no GPU. If this fails, every user of a GPU waits for more launches, or needs more memory, than
before; a number that has become smaller should be entered here.
"""

from __future__ import annotations

import pytest
from engine_opencl.compiler import build_plan
from engine_opencl.devices.device import PTX, DeviceFacts
from engine_opencl.memory.slots import slots_of
from engine_opencl.plan import Buffer, LaunchPlan
from engine_opencl.transform import prepare_model

from engine.lowering import known_shapes
from engine.onnx.importer import read_model
from engine.testing.networks import seeded_network

GPU = DeviceFacts(
    name="a large GPU", driver="simulated", kind="gpu", shares_memory=False, alignment=512, max_work_group=1024,
    local_bytes=48 << 10, largest_buffer=32 << 30, memory=128 << 30, compute_units=132,
    max_work_items=(1024, 1024, 64), argument_bytes=32764, has_fp64=True, matrix_unit=PTX,
)  # fmt: skip
"""As NVIDIA's driver describes an H200."""


def planned(network: str, precision: str) -> LaunchPlan:
    prepared = prepare_model(read_model(seeded_network(network).model), GPU, precision)
    return build_plan(prepared.at(known_shapes(prepared.graph)), GPU)


def accessed(plan: LaunchPlan) -> int:
    """Bytes of the values that launches read or write, each value once per launch."""
    return sum(
        each.byte_size
        for launch in plan.launches
        for each in set(launch.arguments)
        if isinstance(each, Buffer) and each.weight is None
    )


@pytest.mark.parametrize(
    ("network", "precision", "launches", "megabytes"),
    [
        ("resnet50", "f32", 89, 374),
        ("resnet50", "f16", 69, 90),
        ("mobilenet_v2", "f32", 65, 60),
        ("bert_base", "f32", 137, 692),
        ("bert_base", "f16", 102, 140),
        ("vit_b16", "f32", 117, 439),
        ("gpt2_blocks", "f32", 170, 468),
        ("unet", "f32", 39, 464),
    ],
)
def test_launches_and_bytes(network: str, precision: str, launches: int, megabytes: int) -> None:
    plan = planned(network, precision)
    assert len(plan.launches) <= launches
    assert accessed(plan) <= megabytes * 1_000_000
    assert sum(slots_of(plan.values)[1]) <= 2 * plan.arena_bytes


def test_a_convolution_and_its_ending_are_one_launch() -> None:
    """Where the steps are not split: the bias, the residual and the activation are part of the product."""
    plan = planned("mobilenet_v2", "f16")
    assert [launch.op_type for launch in plan.launches].count("Clip") == 0
    assert {launch.kernel for launch in plan.launches} >= {"matrix_tiles", "depthwise"}
