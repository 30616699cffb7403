"""Measured figures outlive a compilation: their file must merge updates and survive a crash, and a damaged file is
never used.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from engine_hetero.affinity.costs.calibration import (
    Calibration,
    Figure,
    merge,
    read_calibration,
    signature_of,
    update_calibration,
)

from engine import ops
from engine.errors import PropertyError
from engine.ir import Constant, Model, Node, Parameter, f32, i64


def calibration(**devices: dict[str, tuple[float, int]]) -> Calibration:
    return Calibration({d: {name: Figure(*figure) for name, figure in e.items()} for d, e in devices.items()})


A = calibration(cpu={"x": (1.0, 1), "y": (2.0, 1)})
B = calibration(cpu={"x": (4.0, 3)}, gpu={"x": (5.0, 2)})


def test_merging_averages_by_count_in_either_order() -> None:
    expected = calibration(cpu={"x": (3.25, 4), "y": (2.0, 1)}, gpu={"x": (5.0, 2)})
    assert merge(A, B).devices == expected.devices
    assert merge(B, A).devices == expected.devices
    assert A.of("cpu")["x"] == Figure(1.0, 1), "merging changed what was merged"


def test_old_figures_do_not_outweigh_new_ones_for_ever() -> None:
    old = Figure(1.0, 1_000_000)
    assert old.merged(old).count == old.count


def test_a_file_holds_what_was_measured_and_adds_to_it(tmp_path: Path) -> None:
    path = tmp_path / "new" / "calibration.json"
    assert read_calibration(path).devices == {}
    update_calibration(path, A)
    assert read_calibration(path).devices == A.devices
    update_calibration(path, B)
    assert read_calibration(path).devices == merge(A, B).devices
    assert [file.name for file in path.parent.iterdir()] == ["calibration.json"], "a temporary file was left"


def test_a_file_of_someone_else_is_added_to_ones_own(tmp_path: Path) -> None:
    update_calibration(tmp_path / "theirs.json", B)
    update_calibration(tmp_path / "mine.json", A)
    update_calibration(tmp_path / "mine.json", read_calibration(tmp_path / "theirs.json"))
    assert read_calibration(tmp_path / "mine.json").devices == merge(A, B).devices


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "link.json").symlink_to(tmp_path / "real.json")
    update_calibration(tmp_path / "link.json", A)
    assert (tmp_path / "link.json").is_symlink()
    assert read_calibration(tmp_path / "real.json").devices == A.devices


def file_of(devices: object, **changes: object) -> str:
    return json.dumps({"format": "engine.hetero.calibration", "version": 1, "devices": devices, **changes})


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "Expecting value"),
        ("{", "damaged"),
        ("[" * 100_000, "damaged"),
        ("[]", "not a calibration file"),
        ('{"weights": 1}', "not a calibration file"),
        (file_of({}, version=2), "version is 2"),
        (file_of([]), "not an object whose values are objects"),
        (file_of({"cpu": []}), "not an object whose values are objects"),
        *(
            (file_of({"cpu": {"x": value}}), r"'x' of 'cpu' is .*; expected \[seconds >= 0, count >= 1\]")
            for value in (1, [], [1], [1, 1, 1], [-1, 1], ["1", 1], [1, 0], [1, 1.5], [True, 1], [1, True], [None, 1])
        ),
        (file_of({"cpu": {"x": [float("nan"), 1]}}), "'x' of 'cpu'"),
        (file_of({"cpu": {"x": [float("inf"), 1]}}), "'x' of 'cpu'"),
        (file_of({"cpu": {"x": [10**400, 1]}}), "'x' of 'cpu'"),
        (file_of({"cpu": {"x": [1, 10**12]}}), "'x' of 'cpu'"),
    ],
)
def test_a_damaged_file_is_refused_and_stays_as_it_is(tmp_path: Path, text: str, reason: str) -> None:
    path = tmp_path / "calibration.json"
    path.write_text(text)
    with pytest.raises(PropertyError, match=reason) as caught:
        read_calibration(path)
    assert str(path) in str(caught.value)
    with pytest.raises(PropertyError):
        update_calibration(path, A)
    assert path.read_text() == text


def test_every_truncation_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "calibration.json"
    update_calibration(path, A)
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(PropertyError):
            read_calibration(path)


def test_what_cannot_be_read_or_written_is_an_error_that_names_the_file(tmp_path: Path) -> None:
    with pytest.raises(PropertyError, match="cannot be read"):
        read_calibration(tmp_path)
    (tmp_path / "file").write_bytes(b"\xff")
    with pytest.raises(PropertyError, match="cannot be read"):
        read_calibration(tmp_path / "file")
    with pytest.raises(PropertyError, match="cannot be"):
        update_calibration(tmp_path / "file" / "below", A)


# -- signatures --------------------------------------------------------------------------------------------


def conv(**attributes: object) -> Node:
    x = Parameter(f32, [1, 3, 8, 8], "x")
    return ops.Conv(x, Constant(np.ones((4, 3, 3, 3), np.float32)), **attributes)  # type: ignore[arg-type]


def test_a_signature_says_what_it_is_of() -> None:
    assert signature_of(conv()).startswith("Conv(f32[1,3,8,8], const f32[4,3,3,3]) -> f32[1,4,6,6] #")


def test_equal_nodes_of_two_models_share_a_signature() -> None:
    assert signature_of(conv(pads=(1, 1, 1, 1))) == signature_of(conv(pads=(1, 1, 1, 1)))


def sliced(start: int) -> Node:
    x = Parameter(f32, [8], "x")
    return ops.Slice(x, Constant(np.array([start]), i64), Constant(np.array([start + 2]), i64))


def body(op: str) -> Node:
    captured = Parameter(f32, [2], "captured")
    branch = Model([Node(op, [captured])], [], captures=[captured])
    return Node("If", [Parameter(f32, [], "c"), captured], {"then_branch": branch}, types=[captured.type])


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (conv(), conv(pads=(1, 1, 1, 1))),
        (conv(pads=(1, 1, 1, 1), strides=(2, 2)), conv(pads=(1, 1, 1, 1), strides=(2, 1))),
        (sliced(0), sliced(4)),
        (ops.Relu(Parameter(f32, [4], "x")), ops.Relu(Parameter(f32, [5], "x"))),
        (ops.Relu(Parameter(f32, [4], "x")), ops.Abs(Parameter(f32, [4], "x"))),
        (Node("A", [], domain="a", types=[]), Node("A", [], domain="b", types=[])),
        (
            ops.MatMul(Parameter(f32, [4, 4], "x"), Parameter(f32, [4, 4], "y")),
            ops.MatMul(Parameter(f32, [4, 4], "x"), Constant(np.ones((4, 4), np.float32))),
        ),
        (body("Relu"), body("Abs")),
    ],
)
def test_what_may_take_longer_has_another_signature(a: Node, b: Node) -> None:
    assert signature_of(a) != signature_of(b)


def test_the_values_of_weights_do_not_count() -> None:
    x = Parameter(f32, [2, 2], "x")
    made = [signature_of(ops.MatMul(x, Constant(np.full((2, 2), v, np.float32)))) for v in (1, 2)]
    assert made[0] == made[1]
