"""The reference evaluator against onnxruntime, over the cases that every device is compared with the evaluator by.

If it fails, the reference that all devices answer to gives results that a user's other runtime does not.
"""

from __future__ import annotations

import onnxruntime
import pytest

from engine.ir.element_type import f64
from engine.onnx import model_to_proto
from engine.ops.cases import OperatorCase, all_cases
from engine.testing.operators import assert_right

# Cases, or the beginnings of their names, in which the two differ on purpose.
_ZERO_LENGTH = "a sequence of length 0 ends in its initial state; onnxruntime gives zeros"
_FRACTION = "ONNX's reference places elements by the scale; onnxruntime by the rounded length"
_MIDDLE = "a coordinate in the middle of two elements: onnxruntime rounds it to f32 first"
_OVERFLOW = "the result fits although exp of an element does not; onnxruntime 1.32 gives infinity"
_MANY = "onnxruntime 1.32 counts the samples of all bins beforehand, and the number overflows"
DIFFERENT = {
    **{f"{op}/many-units": _ZERO_LENGTH for op in ("RNN", "GRU", "LSTM")},
    "Sign/edges-f16": "the sign of NaN is NaN, as it is in f32; onnxruntime gives 0",
    "Clip/no-bounds": "infinity stays where there is no bound; onnxruntime gives the largest finite number",
    "ArgMax/edges": "of two NaN the last is asked for; onnxruntime gives the first",
    "ArgMin/edges": "of two NaN the last is asked for; onnxruntime gives the first",
    "Attention/causal-past": "onnxruntime wants a mask as long as past and present together",
    "ConvTranspose/output-shape-beyond": "onnxruntime adds nothing before the full result",
    "MatMulInteger/per-row-of-batches": "onnxruntime takes one zero point of A",
    "ReduceLogSumExp/edges": _OVERFLOW,
    "ReduceLogSumExp/large-exponents": _OVERFLOW,
    **{f"RoiAlign/{mode}-as-many-samples-as-pixels": _MANY for mode in ("avg", "max")},
    "RotaryEmbedding/tables-of-one-batch": "onnxruntime refuses them, though torch exports them",
    "Resize/nearest-half_pixel": _MIDDLE,
    "Resize/nearest-pytorch_half_pixel": _MIDDLE,
}


def difference(name: str) -> str | None:
    """The reason why a case differs; None if it does not."""
    if "/undefined-" in name:
        return "undefined by ONNX"
    if name.startswith("Resize/") and name.endswith("-fractional"):
        return _FRACTION
    if name.startswith(("RNN/", "GRU/", "LSTM/")) and name.endswith("-full"):
        return _ZERO_LENGTH
    return next((reason for prefix, reason in DIFFERENT.items() if name.startswith(prefix)), None)


def _is_comparable(case: OperatorCase) -> bool:
    """Not of f64, which onnxruntime computes by constants of f32, of types that its interface does not take, and of
    quotients at the edges of integers, where it stops the process."""
    types = {data.type for data in case.inputs if data is not None}
    types |= {case.attributes[name] for name in ("to", "output_dtype") if name in case.attributes}
    has_numpy_types = all(element_type.numpy.isbuiltin == 1 for element_type in types)
    return has_numpy_types and f64 not in types and not case.name.startswith(("Div/edges-pairs-", "Mod/edges-pairs-"))


@pytest.mark.parametrize("case", [*filter(_is_comparable, all_cases().values())], ids=str)
def test_case(case: OperatorCase) -> None:
    if reason := difference(case.name):
        pytest.skip(reason)
    model, feeds = case.model()
    data = model_to_proto(model).SerializeToString()
    try:
        session = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])
    except Exception as e:  # onnxruntime raises classes of its own for operators that it does not implement
        pytest.skip(f"{case.op_type}: onnxruntime: {str(e).splitlines()[0][:60]}")
    assert_right(case, session.run(None, feeds))
