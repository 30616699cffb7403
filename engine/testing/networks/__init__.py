"""Networks in the form that exporters write, with seeded weights, in full size and in a small size for tests.

    network = seeded_network("mobilenet_v2", small=True)
    answer = run(network.model, network.inputs)

Devices are compared on them: all layers keep values at a moderate scale, without saturation or underflow, so that an
error in one layer shows in the output. No file is downloaded, and the same seed gives the same model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field
from typing import Any

from engine.errors import ModelError
from engine.startup import dataclass
from engine.testing.networks.arithmetic import floating_point_operations, rounding_tolerance, storage_tolerance
from engine.testing.networks.batches import repeated, with_any_batch
from engine.testing.networks.builder import NetworkBuilder, SeededNetwork
from engine.testing.networks.classifiers import (
    densenet121,
    efficientnet_b0,
    efficientnet_lite0,
    mobilenet_v2,
    resnet50,
    squeezenet,
    vgg19,
)
from engine.testing.networks.images import mobilevit, segformer_b0, unet, yolo
from engine.testing.networks.sequences import gru, lstm, mlp
from engine.testing.networks.transformers import bert_base, convnext_t, gpt2_blocks, vit_b16, whisper_tiny_encoder

__all__ = [
    "NETWORKS", "NetworkBuilder", "NetworkKind", "SeededNetwork", "floating_point_operations", "repeated",
    "rounding_tolerance", "seeded_network", "storage_tolerance", "with_any_batch",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class NetworkKind:
    """How a network is built, and the arguments that make it small."""

    build: Callable[..., SeededNetwork]
    small: Mapping[str, Any] = field(default_factory=dict)


NETWORKS: Mapping[str, NetworkKind] = {
    "resnet50": NetworkKind(resnet50, {"image": 64, "width": 16, "blocks": (1, 2, 2, 1), "classes": 10}),
    "mobilenet_v2": NetworkKind(
        mobilenet_v2,
        {"image": 48, "stem": 16, "last": 64, "classes": 10,
         "stages": ((1, 8, 1, 1), (6, 12, 2, 2), (6, 20, 2, 2), (6, 24, 1, 1))},
    ),
    "efficientnet_b0": NetworkKind(
        efficientnet_b0,
        {"image": 48, "stem": 16, "last": 64, "classes": 10,
         "stages": ((1, 3, 8, 1, 1), (6, 3, 12, 2, 2), (6, 5, 20, 2, 2), (6, 5, 24, 1, 1))},
    ),
    "efficientnet_lite0": NetworkKind(
        efficientnet_lite0,
        {"image": 48, "stem": 16, "last": 64, "classes": 10,
         "stages": ((1, 3, 8, 1, 1), (6, 3, 12, 2, 2), (6, 5, 20, 2, 2), (6, 5, 24, 1, 1))},
    ),
    "unet": NetworkKind(unet, {"image": 48, "width": 8, "depth": 2}),
    "squeezenet": NetworkKind(
        squeezenet, {"image": 64, "stem": 16, "fires": ((8, 16), (8, 24), (12, 32)), "pooled": (0, 2), "classes": 10}
    ),
    "densenet121": NetworkKind(
        densenet121, {"image": 64, "stem": 16, "growth": 8, "blocks": (2, 3, 2), "classes": 10}
    ),
    "vgg19": NetworkKind(vgg19, {"image": 32, "stages": ((8, 2), (16, 2), (32, 2)), "inner": 64, "classes": 10}),
    "bert_base": NetworkKind(
        bert_base, {"layers": 2, "hidden": 48, "heads": 3, "inner": 96, "tokens": 12, "vocabulary": 60}
    ),
    "gpt2_blocks": NetworkKind(gpt2_blocks, {"layers": 2, "hidden": 48, "heads": 3, "tokens": 10}),
    "vit_b16": NetworkKind(
        vit_b16, {"image": 32, "patch": 8, "layers": 2, "hidden": 48, "heads": 3, "classes": 10}
    ),
    "convnext_t": NetworkKind(
        convnext_t, {"image": 64, "widths": (16, 24, 40, 48), "depths": (1, 1, 2, 1), "classes": 10}
    ),
    "lstm": NetworkKind(lstm, {"steps": 12, "width": 20, "hidden": 24}),
    "mlp": NetworkKind(mlp, {"width": 20}),
    "yolo": NetworkKind(yolo, {"image": 64, "width": 8, "repeats": (1, 1, 1, 1), "classes": 5}),
    "segformer_b0": NetworkKind(
        segformer_b0,
        {"image": 64, "widths": (8, 16, 20, 32), "heads": (1, 2, 2, 4), "depths": (1, 1, 1, 1), "decoder": 24,
         "classes": 5},
    ),
    "mobilevit": NetworkKind(
        mobilevit,
        {"image": 128, "channels": (8, 12, 16, 20, 24), "widths": (16, 24, 32), "depths": (1, 1, 1), "classes": 10},
    ),
    "whisper_tiny_encoder": NetworkKind(
        whisper_tiny_encoder, {"mels": 12, "frames": 60, "layers": 2, "hidden": 48, "heads": 3}
    ),
    "gru": NetworkKind(gru, {"steps": 12, "width": 20, "hidden": 24}),
}  # fmt: skip


def seeded_network(name: str, *, small: bool = False, seed: int = 0, **changes: Any) -> SeededNetwork:
    """Build the network `name` of `NETWORKS`; `changes` override arguments of its builder.

    The larger ones have 100 to 580 MB of weights. Raises ModelError for an unknown name.
    """
    kind = NETWORKS.get(name)
    if kind is None:
        raise ModelError(f"unknown network `{name}`; expected one of {', '.join(sorted(NETWORKS))}")
    return kind.build(seed, **{**(kind.small if small else {}), **changes})
