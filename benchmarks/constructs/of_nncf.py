"""Models that nncf writes for ONNX models."""

from __future__ import annotations

from typing import Any

import nncf
import numpy as np

from constructs.construct import Written, construct
from constructs.of_quantizers import X, network

EXPORTER = "nncf"


def declared(name: str, **options: Any) -> None:
    """Declare `nncf.quantize` with options."""

    def make() -> Written:
        rng = np.random.default_rng(3)
        items = [{"x": rng.standard_normal((2, 3, 8, 8)).astype(np.float32)} for _ in range(4)]
        return Written(nncf.quantize(network(13), nncf.Dataset(items), **options), [X], (), 1e-2)

    construct(EXPORTER, "nncf", name=name)(make)


declared("quantize, performance", preset=nncf.QuantizationPreset.PERFORMANCE)
declared("quantize, mixed", preset=nncf.QuantizationPreset.MIXED)
declared("quantize, fast bias correction off", fast_bias_correction=False)


@construct(EXPORTER, "nncf", name="compress_weights, int8")
def _() -> Written:
    return Written(nncf.compress_weights(network(21), mode=nncf.CompressWeightsMode.INT8_ASYM), [X], (), 1e-2)


@construct(EXPORTER, "nncf", name="compress_weights, int4")
def _() -> Written:
    made = nncf.compress_weights(network(21), mode=nncf.CompressWeightsMode.INT4_SYM, group_size=16, ratio=1.0)
    return Written(made, [X], (), 1e-2)
