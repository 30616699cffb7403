"""MAX_TENSOR_BYTES holds for results whose size only an inference knows, whatever computes them."""

from __future__ import annotations

import io

import numpy as np
import pytest
from numpy.typing import NDArray
from onnx import parser

from engine import Core, ExecutableNetwork
from engine.errors import OutOfMemoryError

LIMIT = 1 << 20
N = np.array
SHAPE = N([600, 600], np.int64)
LONG = np.ones(600, np.float32)
MODELS: dict[str, tuple[str, dict[str, NDArray[np.generic]]]] = {
    "ConstantOfShape": ("(int64[K] s) => (float[A, B] y) { y = ConstantOfShape(s) }", {"s": SHAPE}),
    "Expand": ("(float[K] x, int64[2] s) => (float[A, B] y) { y = Expand(x, s) }", {"x": LONG, "s": SHAPE}),
    "Tile": ("(float[K] x, int64[1] n) => (float[L] y) { y = Tile(x, n) }", {"x": LONG, "n": N([600], np.int64)}),
    "Pad": ("(float[K] x, int64[2] n) => (float[L] y) { y = Pad(x, n) }", {"x": LONG, "n": N([0, LIMIT], np.int64)}),
    "Range": (
        """(int64 n) => (int64[L] y) { a = Constant<value_int = 0>() \n d = Constant<value_int = 1>()
        y = Range(a, n, d) }""",
        {"n": N(LIMIT, np.int64)},
    ),
    "MatMul": (
        "(float[K, 1] x, float[1, K] z) => (float[K, K] y) { y = MatMul(x, z) }",
        {"x": LONG[:, None], "z": LONG[None]},
    ),
    "Gather": (
        "(float[K, M] x, int64[L] i) => (float[L, M] y) { y = Gather(x, i) }",
        {"x": LONG[None], "i": np.zeros(600, np.int64)},
    ),
    "NonZero": ("(float[K] x) => (int64[1, L] y) { y = NonZero(x) }", {"x": np.ones(LIMIT, np.float32)}),
    "Loop": (
        """(int64[] n, float[M] x) => (float[K, M] y) { c = Constant<value = bool {1}>()
        y = Loop(n, c) <body = b (int64 i, bool c0) => (bool c1, float[M] e) { c1 = Identity(c0)
        e = Add(x, x) }> }""",
        {"n": N(600, np.int64), "x": LONG},
    ),
    "Loop, whose length is not known before": (
        """(int64[] n, float[M] x) => (float[K, M] y) { c = Constant<value = bool {1}>()
        y = Loop(, c) <body = b (int64 i, bool c0) => (bool c1, float[M] e) { c1 = Less(i, n) \n e = Add(x, x) }> }""",
        {"n": N(600, np.int64), "x": LONG},
    ),
    "Loop, evaluated": (
        """(int64[] n, float[M] x) => (float[K, M] y) { c = Constant<value = bool {1}>()
        y = Loop(n, c) <body = b (int64 i, bool c0) => (bool c1, float[M] e) { c1 = Identity(c0)
        p = NonZero(x) \n q = Size(p) \n r = Cast<to = 1>(q) \n e = Add(x, r) }> }""",
        {"n": N(600, np.int64), "x": LONG},
    ),
    "Scan": (
        """(float[K, M] x) => (float[K, M] y) { y = Scan<num_scan_inputs = 1, body = b (float[M] e) => (float[M] o)
        { o = Add(e, e) }>(x) }""",
        {"x": np.tile(LONG, (600, 1))},
    ),
    "ConcatFromSequence": (
        """(float[M] x, int64[] n) => (float[K] y) { c = Constant<value = bool {1}>() \n s0 = SequenceEmpty()
        s = Loop(n, c, s0) <body = b (int64 i, bool c0, seq(float[L]) a) => (bool c1, seq(float[L]) e)
        { c1 = Identity(c0) \n e = SequenceInsert(a, x) }> \n y = ConcatFromSequence<axis = 0>(s) }""",
        {"n": N(600, np.int64), "x": LONG},
    ),
}


def network(text: str, way: str, limit: int) -> ExecutableNetwork:
    """A network of the model in `text`, compiled for a device or imported from a blob, with a limit."""
    model = parser.parse_model(f'<ir_version: 10, opset_import: ["" : 21]> g {text}').SerializeToString()
    if way != "blob":
        return Core().compile_model(model, way, {"MAX_TENSOR_BYTES": limit})
    blob = io.BytesIO()
    Core().compile_model(model, "CPU").export_model(blob)
    blob.seek(0)
    return Core().import_model(blob, "CPU", {"MAX_TENSOR_BYTES": limit})


@pytest.mark.filterwarnings("ignore:.*reference evaluator")
@pytest.mark.parametrize("way", ["CPU", "blob", "TEMPLATE"])
@pytest.mark.parametrize("case", MODELS)
def test_a_result_of_unknown_size_is_held_to_the_limit(case: str, way: str) -> None:
    text, inputs = MODELS[case]
    limited = network(text, way, LIMIT)
    for _ in range(2):  # the first inference builds what the second one uses
        with pytest.raises(OutOfMemoryError, match="MAX_TENSOR_BYTES"):
            limited(inputs)
    (result,) = network(text, way, 64 * LIMIT)(inputs).values()
    assert result.nbytes > LIMIT
