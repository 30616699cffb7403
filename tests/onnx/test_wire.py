"""Numbers and short texts of attributes are skipped in runs: the fields after them are found as without that."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from engine.onnx.wire import ELEMENTS, WireError, fields


def attribute(**values: object) -> bytes:
    proto = onnx.AttributeProto(name="a", type=onnx.AttributeProto.TENSOR, **values)  # type: ignore[arg-type]
    proto.t.raw_data = b"=1234@\x01" * 3  # looks like numbers
    return proto.SerializeToString()


@pytest.mark.skipif(ELEMENTS is None, reason="this Python's re is wrong about possessive repeats")
@pytest.mark.parametrize("seed", range(20))
def test_other_fields_are_found(seed: int) -> None:
    rng = np.random.default_rng(seed)
    floats = rng.standard_normal(rng.integers(0, 5)).tolist()
    ints = [int(v) for v in rng.integers(-(2**62), 2**62, rng.integers(0, 5)) >> rng.integers(0, 60)]
    texts = [b"=abcd"[:length] if length < 6 else b"J\x02" * length for length in rng.integers(0, 20, 5)]
    data = attribute(floats=floats, ints=ints, strings=texts, i=7, f=0.5)
    whole = [f for f in fields(data, 0, len(data)) if f[0] not in (7, 8) and (f[0] != 9 or f[4] - f[3] > 16)]
    found = list(fields(data, 0, len(data), ELEMENTS))
    assert [field for field in found if field[0] != 8] == whole
    assert all(data[payload:stop][-1] < 2 for number, _, _, payload, stop in found if number == 8)  # of 10 bytes


@pytest.mark.parametrize(
    "tail", [b"=", b"=abc", b"@", b"@\x80", b"@" + b"\xff" * 9 + b"\x7f", b"@" + b"\xff" * 12, b"J", b"J\x04LEA"]
)
def test_elements_that_are_cut_or_too_long_are_refused(tail: bytes) -> None:
    data = b"=abcd@\x05" * 3 + tail
    with pytest.raises(WireError):
        list(fields(data, 0, len(data), ELEMENTS))
    with pytest.raises(WireError):  # also if the data continues after the message
        list(fields(data + b"\x01" * 20, 0, len(data), ELEMENTS))
