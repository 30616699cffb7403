"""Step one of compiling: turn the user's model into what the device runs."""

from __future__ import annotations

from engine.passes import Manager
from engine.passes.common.common_optimizations import CommonOptimizations
from engine.passes.common.qkv_projection_fusion import QKVProjectionFusion
from engine.plugin_api import Model


def transform_network(model: Model) -> Model:
    """A transformed copy of `model`.

    The pipeline is the common one, trimmed by its `PassConfig`: a pass is switched off where it does not help the
    device, and on where the device can run what it makes. This device evaluates one operation at a time, so one
    large product and a Split are no faster than three products; and it has no kernel for the internal operators, so
    the passes that make them stay off, as they are by default. A device with fused convolutions would write
    `config.enable(ActivationFusion, ResidualFusion)`, and register passes of its own after the common ones.
    """
    graph = model.clone()
    manager = Manager()
    manager.register_pass(CommonOptimizations)
    manager.pass_config.disable(QKVProjectionFusion)
    manager.run_passes(graph)
    return graph
