"""The cost of whole networks on a GPU, counted for a description of one: launches, bytes of values, and local memory.

Counts need no clock and no GPU. If this fails, every user of a GPU waits for more launches, or needs more memory, than
before; a number that has become smaller should be entered here.
"""

from __future__ import annotations

import logging

import pytest
from engine_opencl.large_gpu import LARGE_GPU, planned
from engine_opencl.lowering.matmul.tile_candidates import SPARE_LOCAL_BYTES
from engine_opencl.memory.slots import slots_of

from engine import Core
from engine.onnx.importer import read_model
from engine.testing.networks import seeded_network


@pytest.mark.parametrize(
    ("network", "precision", "launches", "megabytes", "local_kibibytes", "kernel"),
    [
        ("resnet50", "f32", 89, 374, 17, "tiles"),
        ("resnet50", "f16", 69, 90, 36, "matrix_tiles"),
        ("mobilenet_v2", "f32", 65, 60, 21, "tiles"),
        ("bert_base", "f32", 137, 692, 33, "tiles"),
        ("bert_base", "f16", 102, 140, 36, "matrix_tiles"),
        ("vit_b16", "f32", 117, 439, 33, "tiles"),
        ("gpt2_blocks", "f32", 134, 440, 25, "attention_tiles"),
        ("unet", "f32", 39, 464, 33, "implicit_gemm"),
    ],
)
def test_launches_and_memory(
    network: str, precision: str, launches: int, megabytes: int, local_kibibytes: int, kernel: str
) -> None:
    plan = planned(read_model(seeded_network(network).model), precision)
    assert len(plan.launches) <= launches
    assert plan.moved_bytes <= megabytes * 1_000_000
    assert sum(slots_of(plan.values)[1]) <= 2 * plan.arena_bytes
    assert plan.local_memory[0] <= local_kibibytes * 1024
    assert plan.local_memory[1] == kernel
    assert plan.local_memory[0] + SPARE_LOCAL_BYTES <= LARGE_GPU.local_bytes


def test_a_convolution_and_its_ending_are_one_launch() -> None:
    """Where the steps are not split: the bias, the residual and the activation are part of the product."""
    plan = planned(read_model(seeded_network("mobilenet_v2").model), "f16")
    assert [launch.op_type for launch in plan.launches].count("Clip") == 0
    assert {launch.kernel for launch in plan.launches} >= {"matrix_tiles", "depthwise"}


def test_sums_and_activations_after_flattened_products_are_no_launches() -> None:
    """Exporters reshape the rows of GPT-2 around each product; what follows belongs to it nevertheless."""
    plan = planned(read_model(seeded_network("gpt2_blocks").model))
    elementwise = [launch.op_type for launch in plan.launches if launch.kernel == "elementwise"]
    assert elementwise == ["Add"]  # of the positions, to the inputs


def test_the_log_has_the_counts(caplog: pytest.LogCaptureFixture) -> None:
    """Otherwise a user does not see what a network costs on the device at hand."""
    small = seeded_network("mobilenet_v2", small=True)
    with caplog.at_level(logging.INFO, logger="engine.opencl"):
        Core().compile_model(small.model, "OPENCL")
    (message,) = (record.getMessage() for record in caplog.records if " launches" in record.getMessage())
    assert message.startswith("OPENCL: network `")
    assert "local memory" in message
