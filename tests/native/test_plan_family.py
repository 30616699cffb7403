"""Families of plans. If one fails, a plan for one length reads or writes what another length has."""

from __future__ import annotations

import numpy as np
import pytest

from engine.errors import InputError, PlanError
from engine.native import CancelFlag, FamilyRunner, PlanFamily, Varying, codes

N = Varying(0, (((0,), 1),))
BYTES = Varying(0, (((0,), 4),))


def negating(most: int) -> tuple[PlanFamily, FamilyRunner]:
    """y = -x of [n, 3], and -x appended to a state of [n + 2, 3]."""
    family = PlanFamily([most])
    all_bytes = Varying(0, (((0,), 12),))
    x, y = family.add_input(all_bytes, 4), family.add_output(all_bytes, 4)
    state = family.add_state(Varying(24, (((0,), 12),)), 4)
    middle = family.add_buffer(all_bytes)
    program = {
        "dims": [N, 3],
        "input_strides": [3, 1],
        "input_types": [0],
        "constants": [],
        "program": [codes("Opcode")["neg"], 0, 0, -1, -1],
        "results": [1],
    }
    family.add_step("elementwise", [x], [middle], program, "negate")
    copy = {"element_bytes": 4, "shape": [N, 3], "source_strides": [3, 1], "destination_strides": [3, 1]}
    family.add_step("strided_copy", [middle], [family.add_view(state, 24, all_bytes)], copy, "append")
    family.add_step("copy", [middle], [y], {}, "result")
    return family, FamilyRunner(family, [(np.dtype(np.float32), [N, 3])])


def test_one_family_runs_for_lengths_in_any_order() -> None:
    _, runner = negating(3000)
    for length in (5, 1, 2999, 64, 65, 0, 3000, 7):
        x = np.arange(3.0 * length, dtype=np.float32).reshape(length, 3)
        state = np.full((length + 10, 3), 7, np.float32)
        (y,) = runner.outputs([length])
        runner.fill([length], [x], [y], [state], CancelFlag())
        np.testing.assert_array_equal(y, -x)
        np.testing.assert_array_equal(state, np.concatenate([np.full((2, 3), 7), -x, np.full((8, 3), 7)]))


def test_arrays_that_do_not_fit_are_refused() -> None:
    _, runner = negating(100)
    x, y = np.zeros((4, 3), np.float32), np.zeros((4, 3), np.float32)
    state = np.zeros((6, 3), np.float32)
    runner.fill([4], [x], [y], [state], CancelFlag())
    with pytest.raises(InputError, match="input 0 has 48 bytes; expected 36"):
        runner.fill([3], [x], [y[:3]], [state], CancelFlag())
    with pytest.raises(InputError, match="state 0 has 60 bytes; expected 72 or more"):
        runner.fill([4], [x], [y], [state[:5]], CancelFlag())
    with pytest.raises(InputError, match="state 0 lies in the memory of output 0"):
        runner.fill([4], [x], [state[:4]], [state], CancelFlag())
    with pytest.raises(PlanError, match="length 0 is 101; expected 0 to 100"):
        runner.fill([101], [x], [y], [state], CancelFlag())


def test_steps_are_checked_for_each_length() -> None:
    """A view that leaves its buffer for some lengths is an error there, before anything runs."""
    family = PlanFamily([50])
    x, y = family.add_input(400, 4), family.add_output(BYTES, 4)
    family.add_step("copy", [family.add_view(x, Varying(-40, (((0,), 4),)), BYTES)], [y], {}, "part")
    with pytest.raises(PlanError, match="-4 bytes"):
        family.plan([9])
    family.plan([10])
    wide = PlanFamily([200])
    x, y = wide.add_input(400, 4), wide.add_output(BYTES, 4)
    wide.add_step("copy", [wide.add_view(x, 0, BYTES)], [y], {}, "part")
    with pytest.raises(PlanError, match="does not lie in"):
        wide.plan([101])


def test_large_arenas_have_no_room_for_many_times_the_lengths_of_a_run() -> None:
    """Images: a room for 64 of them does not fit into memory."""
    image = 32 << 20
    nbytes = Varying(0, (((0,), image),))
    family = PlanFamily([64])
    x, y = family.add_input(nbytes), family.add_output(nbytes)
    first, second = family.add_buffer(nbytes), family.add_buffer(nbytes)
    for source, target in ((x, first), (first, second), (second, y)):
        family.add_step("copy", [source], [target], {}, "copy")
    assert family.plan([3]).arena_bytes == 2 * 4 * image
    assert family.plan([4]).arena_bytes == family.plan([2]).arena_bytes == 2 * 4 * image
    assert family.plan([33]).arena_bytes == 2 * 33 * image


def test_terms_of_more_than_three_lengths_are_refused() -> None:
    with pytest.raises(PlanError, match="a product of 4 lengths; expected at most 3"):
        PlanFamily([9]).add_input(Varying(0, (((0, 0, 0, 0), 1),)))


def test_numbers() -> None:
    number = Varying(3, (((0,), 2), ((0, 1), 5), ((0, 1, 1), 1)))
    assert number.at((4, 7)) == 3 + 8 + 140 + 196
    assert Varying(0, (((0, 0), 1),)).at([6]) == 36
