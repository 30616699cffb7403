"""Step one of compiling: transform the user's model for the device."""

from __future__ import annotations

from typing import Final

from engine.passes import Manager, PassPipeline
from engine.passes.common.common_optimizations import CommonOptimizations
from engine.passes.common.qkv_projection_fusion import QKVProjectionFusion
from engine.plugin_api import Model


def transform_network(model: Model) -> Model:
    """A transformed copy of `model`."""
    graph = model.clone()
    _PASSES.run(graph)
    return graph


def _register(manager: Manager) -> None:
    """Register and configure the passes.

    The pipeline is the common one, adjusted by its `PassConfig`: disable a pass that does not help the device, and
    enable one whose operators the device can run. This device evaluates one operation at a time, so one large product
    and a Split are no faster than three products; and it has no kernels for the internal operators, so the passes that
    make them stay disabled, as by default. A device with fused convolutions would write
    `config.enable(ActivationFusion, ResidualFusion)`, and register its own passes after the common ones.
    """
    manager.register_pass(CommonOptimizations)
    manager.pass_config.disable(QKVProjectionFusion)


_PASSES: Final = PassPipeline(_register)
