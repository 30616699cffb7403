"""Plans and contexts: what they compute, refuse, and say of themselves."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import numpy as np
import pytest

from engine.errors import Busy, EngineError, InputError, OutOfMemoryError, PlanError
from engine.native import Context, Plan, PlanBuilder, kernels, run_kernel
from engine.testing.values import values

Array = np.ndarray[Any, np.dtype[Any]]


def chain(length: int, nbytes: int) -> Plan:
    """A plan that copies its input through `length` buffers."""
    builder = PlanBuilder()
    last = builder.add_input(nbytes)
    for index in range(length):
        following = builder.add_output(nbytes) if index + 1 == length else builder.add_buffer(nbytes)
        builder.add_step("copy", [last], [following], name=f"copy_{index}")
        last = following
    return builder.build()


@pytest.mark.parametrize("nbytes", [0, 1, 63, 64, 65, 100_003, 1 << 22])
def test_a_chain_of_copies_copies(nbytes: int) -> None:
    x = np.random.default_rng(nbytes).integers(0, 255, nbytes, np.uint8)
    y = np.zeros_like(x)
    Context(chain(5, nbytes)).run([x], [y])
    np.testing.assert_array_equal(x, y)


def test_a_plan_says_of_which_kernels_it_is_made() -> None:
    assert chain(2, 64).rows == (("copy", "generic"),)
    assert PlanBuilder().build().rows == ()


def test_intermediate_results_share_memory() -> None:
    plan = chain(10, 1 << 20)
    assert plan.naive_bytes == 9 << 20
    assert plan.arena_bytes == plan.lower_bound_bytes == max(plan.live_bytes) == 2 << 20
    assert Context(plan).memory_bytes == plan.arena_bytes
    assert (plan.inputs, plan.outputs) == ((1 << 20,), (1 << 20,))


def test_the_memory_in_use_during_each_step() -> None:
    """A view keeps its buffer in use; what a run binds, and constants, are not of the arena."""
    builder = PlanBuilder()
    given, out = builder.add_input(400), builder.add_output(400)
    first, second, third = (builder.add_buffer(size) for size in (400, 800, 400))
    builder.add_step("copy", [given], [first])
    builder.add_step("copy", [first], [builder.add_view(second, 0, 400)])
    builder.add_step("copy", [builder.add_constant(values(100))], [builder.add_view(second, 400, 400)])
    builder.add_step("copy", [builder.add_view(second, 400, 400)], [third])
    builder.add_step("copy", [third], [out])
    plan = builder.build()
    assert list(plan.live_bytes) == [400, 1200, 800, 1200, 400]
    assert max(plan.live_bytes) <= plan.lower_bound_bytes, "steps without a barrier between them run together"


def test_a_concatenation_of_views_needs_no_copy_of_its_parts() -> None:
    builder = PlanBuilder()
    a, b, out = builder.add_input(400), builder.add_input(800), builder.add_output(1200)
    builder.add_step("copy", [a], [builder.add_view(out, 0, 400)])
    builder.add_step("copy", [b], [builder.add_view(out, 400, 800)])
    plan = builder.build()
    assert plan.arena_bytes == 0
    assert plan.barriers == 0
    x, y, result = values(100), values(200, seed=1), np.empty(300, np.float32)
    Context(plan).run([x, y], [result])
    np.testing.assert_array_equal(result, np.concatenate([x, y]))


def test_a_view_of_a_constant_is_read_in_place_and_kept_alive() -> None:
    weights = values(1000)
    expected = weights[100:200].copy()
    gone = weakref.ref(weights)
    builder = PlanBuilder()
    constant, out = builder.add_constant(weights), builder.add_output(400)
    builder.add_step("copy", [builder.add_view(constant, 400, 400)], [out])
    context = Context(builder.build())
    del weights, builder
    gc.collect()
    result = np.empty(100, np.float32)
    context.run([], [result])
    np.testing.assert_array_equal(result, expected)
    del context
    gc.collect()
    assert gone() is None


def test_an_output_that_another_step_reads_is_no_problem() -> None:
    builder = PlanBuilder()
    a, first, second = builder.add_input(40), builder.add_output(40), builder.add_output(40)
    builder.add_step("copy", [a], [first])
    builder.add_step("copy", [first], [second])
    x, y, z = values(10), np.empty(10, np.float32), np.empty(10, np.float32)
    Context(builder.build()).run([x], [y, z])
    np.testing.assert_array_equal(x, z)


def test_a_profile_has_a_time_for_every_step_and_is_only_made_when_asked_for() -> None:
    plan = chain(6, 1 << 16)
    context = Context(plan)
    x, y = np.ones(1 << 16, np.uint8), np.empty(1 << 16, np.uint8)
    profile = context.run([x], [y], profile=True)
    assert profile is not None
    assert len(profile) == len(plan.steps) == 6
    assert all(nanoseconds > 0 for nanoseconds in profile)
    assert context.run([x], [y]) is None
    assert [step.name for step in plan.steps] == [f"copy_{i}" for i in range(6)]
    assert {step.kernel for step in plan.steps} == {"copy"}


def test_one_kernel_runs_without_a_plan_of_ones_own() -> None:
    x, y = values(50), np.empty(50, np.float32)
    run_kernel("copy", [x], [y])
    np.testing.assert_array_equal(x, y)
    assert "copy" in kernels()


def test_a_builder_is_empty_after_it_built() -> None:
    builder = PlanBuilder()
    builder.add_input(4)
    assert builder.build().inputs == (4,)
    assert builder.build().inputs == ()


class TestWrongPlans:
    @pytest.mark.parametrize(
        ("make", "message"),
        [
            (lambda b: b.add_step("no_such", [], []), 'no kernel "no_such"; this build has .*copy'),
            (lambda b: b.add_step("copy", [], [], name="cat_3"), r'step 0 "cat_3" \(copy\): the step has 0 inputs'),
            (lambda b: b.add_step("copy", [b.add_buffer(4)], [b.add_buffer(4)]), "no step before has written"),
            (lambda b: b.add_step("copy", [b.add_input(4)], [b.add_buffer(8)]), "expected as many"),
            (lambda b: b.add_step("copy", [b.add_input(4)], [b.add_input(4)]), "lies in an input"),
            (lambda b: b.add_step("copy", [7], [8]), "there is no buffer 7; the plan has 0"),
            (lambda b: b.add_step("copy", [b.add_input(4)], [b.add_buffer(4)], {"axis": 1}), '"axis" is not one of'),
            (
                lambda b: b.add_step("copy", [], [], {"axis": b"x"}),
                'attribute "axis" is a .*bytes.*expected a name, an int',
            ),
            (lambda b: b.add_step("copy", [], [], {"axis": 2**70}), "64 bits"),
            (lambda b: b.add_step("copy", [], [], {"axis": [[1]]}), "a list of other than numbers"),
            (lambda b: b.add_view(b.add_buffer(100), 90, 20), "does not lie in buffer 0"),
            (lambda b: b.add_buffer(100, 3), "alignment 3 is not a power of two"),
            (lambda b: b.add_buffer(2**63), "larger than an address space"),
            (lambda b: b.add_constant(np.ones((4, 4))[:, 1]), "contiguous"),
        ],
    )
    def test_an_error_names_step_and_operand(self, make: Any, message: str) -> None:
        with pytest.raises(PlanError, match=message):
            make(PlanBuilder())

    def test_an_output_that_no_step_fills_is_refused(self) -> None:
        builder = PlanBuilder()
        out = builder.add_output(100)
        builder.add_step("copy", [builder.add_input(50)], [builder.add_view(out, 0, 50)])
        with pytest.raises(PlanError, match="no step writes all of buffer 0"):
            builder.build()

    def test_a_refused_step_leaves_the_plan_as_it_was(self) -> None:
        builder = PlanBuilder()
        a, b = builder.add_input(4), builder.add_output(4)
        with pytest.raises(PlanError):
            builder.add_step("copy", [b], [a])
        builder.add_step("copy", [a], [b])
        assert len(builder.build().steps) == 1

    def test_a_kernel_that_does_not_work_in_place_is_not_let(self) -> None:
        builder = PlanBuilder()
        a = builder.add_buffer(8)
        builder.add_step("copy", [builder.add_input(8)], [a])
        with pytest.raises(PlanError, match="in place"):
            builder.add_step("copy", [a], [builder.add_view(a, 0, 8)])

    def test_an_arena_that_the_machine_cannot_hold_is_an_error_and_no_crash(self) -> None:
        builder = PlanBuilder()
        large = builder.add_buffer(1 << 50)
        builder.add_step("copy", [builder.add_input(1 << 50)], [large])
        plan = builder.build()
        with pytest.raises(OutOfMemoryError) as caught:
            Context(plan)
        assert isinstance(caught.value, EngineError)
        assert isinstance(caught.value, MemoryError)


class TestWrongArrays:
    @pytest.fixture
    def context(self) -> Context:
        builder = PlanBuilder()
        builder.add_step("copy", [builder.add_input(40, 4)], [builder.add_output(40, 4)])
        return Context(builder.build())

    def test_sizes_counts_and_kinds_are_checked(self, context: Context) -> None:
        x, y = values(10), np.empty(10, np.float32)
        with pytest.raises(InputError, match="input 0 has 36 bytes; expected 40"):
            context.run([x[:9]], [y])
        with pytest.raises(InputError, match="the run has 0 outputs; the plan has 1"):
            context.run([x], [])
        with pytest.raises(InputError, match="input 0 is not a numpy array"):
            context.run([x.tolist()], [y])  # type: ignore[list-item]
        with pytest.raises(InputError, match="not contiguous"):
            context.run([values(20)[::2]], [y])
        with pytest.raises(InputError, match="not aligned to 4 bytes"):
            context.run([np.zeros(41, np.uint8)[1:]], [y])

    def test_a_read_only_output_is_not_written(self, context: Context) -> None:
        y = np.zeros(10, np.float32)
        y.flags.writeable = False
        with pytest.raises(InputError, match="output 0 is read-only"):
            context.run([values(10)], [y])

    def test_an_output_in_the_memory_of_an_input_is_refused(self, context: Context) -> None:
        x = values(15)
        with pytest.raises(InputError, match="output 0 lies in the memory of input 0"):
            context.run([x[:10]], [x[5:]])

    def test_a_context_runs_after_an_error(self, context: Context) -> None:
        x, y = values(10), np.empty(10, np.float32)
        with pytest.raises(InputError):
            context.run([], [y])
        context.run([x], [y])
        np.testing.assert_array_equal(x, y)


def test_errors_of_the_executor_are_errors_of_the_engine() -> None:
    assert issubclass(PlanError, EngineError)
    assert issubclass(Busy, EngineError)
