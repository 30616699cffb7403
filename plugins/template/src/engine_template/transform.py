"""Step one of compiling: transform the user's model for the device."""

from __future__ import annotations

from typing import Final

from engine.passes import Manager, PassPipeline
from engine.passes.common.common_optimizations import CommonOptimizations
from engine.passes.common.qkv_projection_fusion import QKVProjectionFusion
from engine.plugin_api import Model


def transform_network(model: Model) -> Model:
    """Copy `model`, and run the passes on the copy. A plugin must not change the user's model."""
    graph = model.clone()
    _PASSES.run(graph)
    return graph


def _register(manager: Manager) -> None:
    """Register and configure the passes.

    The pipeline is the common one, adjusted by its `PassConfig`. This device evaluates one operation at a time, so one
    large product and a Split are no faster than three products. A device with kernels keeps a `LoweringTable` and
    writes `LOWERINGS.configure(manager.pass_config)`, so that passes run which make what it lowers, fused convolutions
    for example; it registers its own passes after the common ones.
    """
    manager.register_pass(CommonOptimizations)
    manager.pass_config.disable(QKVProjectionFusion)


_PASSES: Final = PassPipeline(_register)
