import asyncio
import concurrent.futures
import contextlib
import gc
import threading
import time
import weakref

import numpy as np
import pytest

from engine.errors import (
    Busy,
    CallbackError,
    Cancelled,
    DeadlineExceeded,
    DeviceError,
    InferError,
    InputError,
    PluginContractError,
    UnsupportedError,
)
from engine.runtime import AsyncInferRequest, InlineExecutor, RequestState

LONG = 30.0


class Gate:
    """A stage hook that says when it is reached and goes on when told, checking for cancellation or not."""

    def __init__(self, *, checks=False):
        self.reached = threading.Event()
        self.open = threading.Event()
        self._checks = checks

    def __call__(self, request):
        self.reached.set()
        end = time.monotonic() + LONG
        while not self.open.wait(0.001 if self._checks else LONG):
            if self._checks:
                request.check_cancelled()
            assert time.monotonic() < end, "the test never opened the gate"


@pytest.fixture
def gate():
    made = Gate()
    yield made
    made.open.set()


@pytest.fixture
def checking_gate():
    made = Gate(checks=True)
    yield made
    made.open.set()


def assert_usable(request, x):
    """The request does whatever can be asked of one."""
    assert request.state is RequestState.IDLE
    request.set_callback(None)
    request.start_async({"x": x})
    request.wait(LONG)
    np.testing.assert_array_equal(request.results["y"], x * 2)
    np.testing.assert_array_equal(request.infer({"x": x + 1})[0], (x + 1) * 2)


def failing_once(error):
    left = [error]

    def fail(request):
        if left:
            raise left.pop()

    return fail


# -- the usual way ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("staged", [False, True])
def test_start_wait_and_infer_give_the_same(make_network, x, staged):
    request = make_network(staged=staged).create_infer_request()
    request.start_async({"x": x})
    request.wait()
    request.wait(0)
    np.testing.assert_array_equal(request.results["y"], x * 2)
    assert request.results["y"] is request.get_tensor("y")
    assert_usable(request, x)


def test_tensors_set_before_are_used_and_kept(make_network, x):
    request = make_network().create_infer_request()
    mine = np.zeros_like(x)
    request.set_tensor("x", x)
    request.set_tensor("y", mine)
    request.start_async()
    request.wait(LONG)
    assert request.get_tensor("y") is mine
    assert request.get_tensor("x") is x
    np.testing.assert_array_equal(mine, x * 2)
    with pytest.raises(InputError, match="no tensor is called 'z'; tensors: x, y"):
        request.set_tensor("z", x)
    with pytest.raises(InputError, match="is not a name"):
        request.get_tensor(0)
    assert request.get_input_tensor(0) is x


def test_tensors_that_are_cleared_are_not_kept(make_network, x):
    request = make_network().create_infer_request()
    given, mine = x.copy(), np.empty_like(x)
    request.set_tensor("y", mine)
    request.infer({"x": given})
    kept = weakref.ref(given), weakref.ref(mine)
    request.clear_tensors()
    del given, mine
    assert [ref() for ref in kept] == [None, None]
    with pytest.raises(InputError, match="missing"):
        request.infer()
    with pytest.raises(InferError):
        _ = request.results
    assert_usable(request, x)


def test_a_missing_input_starts_nothing(make_network, x):
    request = make_network().create_infer_request()
    for start in (request.start_async, request.infer):
        with pytest.raises(InputError, match=r"input `x` \(f32\[1,N\]\) is missing"):
            start()
    with pytest.raises(InferError, match="was never started"):
        request.wait()
    with pytest.raises(InferError, match="no results"):
        request.results  # noqa: B018
    assert_usable(request, x)


def test_results_of_one_inference_outlive_the_next(make_network, x):
    request = make_network().create_infer_request()
    first = request.infer({"x": x})
    second = request.infer({"x": x + 1})
    np.testing.assert_array_equal(first[0], x * 2)
    np.testing.assert_array_equal(second[0], (x + 1) * 2)


# -- stages and executors -----------------------------------------------------------------------------------


def test_stages_of_two_requests_overlap_and_stages_of_one_run_in_order(make_network, x):
    """The device stage of one request and the host stage of the other wait for each other."""
    meeting = threading.Barrier(2)

    def on_device(request):
        if request.request_id == 0:
            meeting.wait(LONG)

    def on_host(request):
        if request.request_id == 1:
            meeting.wait(LONG)

    network = make_network({"PERF_COUNT": True}, staged=True, start_pipeline=on_device, infer_preprocess=on_host)
    requests = [network.create_infer_request() for _ in range(2)]
    for request in requests:
        request.start_async({"x": x})
    for request in requests:
        request.wait(LONG)
    first, second = ({s.name: s for s in r.profiling_info.stages} for r in requests)
    assert first["start_pipeline"].start_ns < second["infer_preprocess"].end_ns
    assert second["infer_preprocess"].start_ns < first["start_pipeline"].end_ns
    for request in requests:
        stages = request.profiling_info.stages
        assert [(s.name, s.executor) for s in stages] == [
            ("infer_preprocess", "host"),
            ("start_pipeline", "device"),
            ("wait_pipeline", "device"),
            ("infer_postprocess", "host"),
        ]
        ends = [moment for s in stages for moment in (s.start_ns, s.end_ns)]
        assert ends == sorted(ends)
        assert request.profiling_info.request_id == request.request_id


def test_adjacent_stages_of_one_executor_are_one_task(make_network, x):
    class Counting(InlineExecutor):
        tasks = 0

        def submit(self, task):
            self.tasks += 1
            super().submit(task)

    network = make_network()
    network.task_executor = Counting()
    request = network.create_infer_request()
    request.start_async({"x": x})
    request.wait(LONG)
    assert network.task_executor.tasks == 1


def test_an_inference_in_place_runs_every_stage_in_the_calling_thread(make_network, x):
    threads = []
    hooks = {stage: lambda _: threads.append(threading.get_ident()) for stage in ("infer_preprocess", "wait_pipeline")}
    network = make_network({"PERF_COUNT": True}, staged=True, **hooks)
    request = network.create_infer_request()
    request.infer({"x": x})
    assert threads == [threading.get_ident()] * 2
    assert [s.executor for s in request.profiling_info.stages] == ["inline"] * 4
    assert not network.host._pool.threads


def test_nodes_are_recorded_only_when_profiling(make_network, x):
    def record(request):
        if request.is_profiling:
            request.record_node("double", "Mul", "native", 10, 25)

    request = make_network({"PERF_COUNT": True}, start_pipeline=record).create_infer_request()
    for _ in range(2):
        request.infer({"x": x})
        (node,) = request.profiling_info.nodes
        assert (node.name, node.op_type, node.status, node.start_ns, node.duration_ns) == (
            "double", "Mul", "native", 10, 15,
        )  # fmt: skip
    silent = make_network(start_pipeline=record).create_infer_request()
    silent.infer({"x": x})
    assert silent.profiling_info.stages == silent.profiling_info.nodes == ()


# -- busy ---------------------------------------------------------------------------------------------------


def test_everything_but_waiting_and_cancelling_is_refused_while_it_runs(make_network, x, gate):
    request = make_network(start_pipeline=gate).create_infer_request()
    request.start_async({"x": x})
    assert gate.reached.wait(LONG)
    assert request.state is RequestState.BUSY
    for touch in (
        lambda: request.start_async({"x": x}),
        lambda: request.infer({"x": x}),
        lambda: request.set_tensor("x", x),
        request.clear_tensors,
        lambda: request.get_tensor("y"),
        lambda: request.set_output_tensor("y", x),
        lambda: request.set_callback(None),
        lambda: request.results,
        lambda: request.error,
        lambda: request.profiling_info,
    ):
        with pytest.raises(Busy, match="TINY network `tiny`: request 0 is running"):
            touch()
    gate.open.set()
    request.wait(LONG)
    assert_usable(request, x)


def test_an_inference_in_place_makes_the_request_busy_for_other_threads(make_network, x, gate):
    request = make_network(start_pipeline=gate).create_infer_request()
    thread = threading.Thread(target=lambda: request.infer({"x": x}))
    thread.start()
    assert gate.reached.wait(LONG)
    with pytest.raises(Busy):
        request.start_async({"x": x})
    gate.open.set()
    thread.join(LONG)
    request.wait(LONG)
    assert_usable(request, x)


# -- errors in stages ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("staged", [False, True])
@pytest.mark.parametrize("stage", ["infer_preprocess", "start_pipeline", "wait_pipeline", "infer_postprocess"])
def test_an_error_of_any_stage_is_typed_and_the_request_is_usable_after_it(make_network, x, stage, staged):
    request = make_network(staged=staged, **{stage: failing_once(ZeroDivisionError("by 0"))}).create_infer_request()
    request.start_async({"x": x})
    message = f"TINY network `tiny`: request 0: {stage} failed: ZeroDivisionError: by 0"
    for _ in range(2):
        with pytest.raises(DeviceError, match=message) as caught:
            request.wait(LONG)
        assert isinstance(caught.value.__cause__, ZeroDivisionError)
    with pytest.raises(DeviceError):
        request.results  # noqa: B018
    assert request.error is caught.value
    with pytest.raises(InferError, match="has no value"):
        request.get_tensor("y")
    assert request._request.aborts == 1
    assert_usable(request, x)


def test_an_engine_error_of_a_stage_passes_unchanged(make_network, x):
    error = UnsupportedError("no such kernel")
    request = make_network(start_pipeline=failing_once(error)).create_infer_request()
    with pytest.raises(UnsupportedError) as caught:
        request.infer({"x": x})
    assert caught.value is error
    request = make_network(start_pipeline=failing_once(error)).create_infer_request()
    request.start_async({"x": x})
    with pytest.raises(UnsupportedError) as caught:
        request.wait(LONG)
    assert caught.value is error


def test_even_a_stage_that_exits_the_interpreter_ends_only_the_inference(make_network, x):
    request = make_network(start_pipeline=failing_once(SystemExit(3))).create_infer_request()
    request.start_async({"x": x})
    with pytest.raises(DeviceError, match="SystemExit: 3"):
        request.wait(LONG)
    assert_usable(request, x)


def test_an_interrupt_in_place_passes_and_leaves_the_request_usable(make_network, x):
    request = make_network(start_pipeline=failing_once(KeyboardInterrupt())).create_infer_request()
    with pytest.raises(KeyboardInterrupt):
        request.infer({"x": x})
    with pytest.raises(InferError, match="interrupted by KeyboardInterrupt"):
        request.results  # noqa: B018
    assert_usable(request, x)


def test_an_error_while_aborting_is_noted_on_the_first_error(make_network, x):
    def fail(request):
        raise OSError("still busy")

    network = make_network(start_pipeline=failing_once(ValueError("first")), abort_pipeline=fail)
    with pytest.raises(DeviceError, match="first") as caught:
        network.create_infer_request().infer({"x": x})
    assert "abort_pipeline failed: OSError: still busy" in caught.value.__cause__.__notes__[0]


@pytest.mark.parametrize(("executor", "aborts"), [("host", 0), ("device", 1)])
def test_an_executor_that_is_shut_down_is_an_error_of_the_inference(make_network, x, executor, aborts):
    network = make_network(staged=True)
    request = network.create_infer_request()
    getattr(network, executor).shutdown(LONG)
    request.start_async({"x": x})
    with pytest.raises(InferError, match=f"executor {executor} is shut down"):
        request.wait(LONG)
    assert request._request.aborts == aborts
    np.testing.assert_array_equal(request.infer({"x": x})[0], x * 2)


# -- waiting ------------------------------------------------------------------------------------------------


def test_a_wait_that_times_out_leaves_the_inference_running(make_network, x, gate):
    request = make_network(start_pipeline=gate).create_infer_request()
    request.start_async({"x": x})
    for timeout in (0, 0.001):
        with pytest.raises(DeadlineExceeded, match="has not finished after"):
            request.wait(timeout)
        assert request.state is RequestState.BUSY
    gate.open.set()
    request.wait(float("inf"))
    request.wait(10**400)
    np.testing.assert_array_equal(request.results[0], x * 2)


@pytest.mark.parametrize("seconds", [-1, True, "1", float("nan")])
def test_a_time_limit_that_is_none_is_refused(make_network, x, seconds):
    request = make_network().create_infer_request()
    with pytest.raises(InferError, match="deadline must be in seconds"):
        request.start_async({"x": x}, deadline=seconds)
    request.start_async({"x": x})
    with pytest.raises(InferError, match="timeout must be in seconds"):
        request.wait(seconds)
    request.wait(LONG)


def test_several_threads_may_wait_and_all_see_the_error(make_network, x, gate):
    def fail_after_gate(request):
        gate(request)
        raise ValueError("late")

    request = make_network(start_pipeline=fail_after_gate).create_infer_request()
    request.start_async({"x": x})
    errors = []

    def wait():
        try:
            request.wait(LONG)
        except DeviceError as e:
            errors.append(e)

    threads = [threading.Thread(target=wait) for _ in range(4)]
    for thread in threads:
        thread.start()
    assert gate.reached.wait(LONG)
    gate.open.set()
    for thread in threads:
        thread.join(LONG)
    assert len(errors) == 4


# -- cancelling and deadlines -------------------------------------------------------------------------------


def occupied(network, x, gate):
    """A request that holds the network's only task thread."""
    blocker = network.create_infer_request()
    blocker.start_async({"x": x})
    assert gate.reached.wait(LONG)
    return blocker


def blocking_first(gate):
    return lambda request: gate(request) if request.request_id == 0 else None


def test_a_queued_inference_is_cancelled_at_once(make_network, x, gate):
    started = []
    network = make_network(
        start_pipeline=blocking_first(gate), infer_preprocess=lambda request: started.append(request.request_id)
    )
    blocker, queued = occupied(network, x, gate), network.create_infer_request()
    queued.start_async({"x": x})
    queued.cancel()
    assert queued.state is RequestState.IDLE
    with pytest.raises(Cancelled, match="request 1 was cancelled"):
        queued.wait(0)
    # It can even start again before the executor reached its first, cancelled start.
    queued.start_async({"x": x + 1})
    gate.open.set()
    queued.wait(LONG)
    np.testing.assert_array_equal(queued.results[0], (x + 1) * 2)
    blocker.wait(LONG)
    assert queued._request.aborts == 0
    assert started == [0, 1]


def test_a_running_inference_is_cancelled_at_its_next_check(make_network, x, checking_gate):
    request = make_network(start_pipeline=checking_gate).create_infer_request()
    request.start_async({"x": x})
    assert checking_gate.reached.wait(LONG)
    request.cancel()
    request.cancel()
    with pytest.raises(Cancelled):
        request.wait(LONG)
    assert request._request.aborts == 1
    checking_gate.open.set()
    assert_usable(request, x)


@pytest.mark.parametrize("stage", ["infer_preprocess", "infer_postprocess"])
def test_an_inference_whose_stages_do_not_check_is_cancelled_after_the_stage(make_network, x, gate, stage):
    request = make_network(staged=True, **{stage: gate}).create_infer_request()
    request.start_async({"x": x})
    assert gate.reached.wait(LONG)
    request.cancel()
    assert request.state is RequestState.CANCELLED
    with pytest.raises(Busy):
        request.start_async({"x": x})
    gate.open.set()
    with pytest.raises(Cancelled):
        request.wait(LONG)
    assert_usable(request, x)


def test_an_inference_in_place_can_be_cancelled_by_another_thread(make_network, x, checking_gate):
    request = make_network(start_pipeline=checking_gate).create_infer_request()
    thread = threading.Thread(target=lambda: (checking_gate.reached.wait(LONG), request.cancel()))
    thread.start()
    with pytest.raises(Cancelled):
        request.infer({"x": x})
    thread.join(LONG)
    checking_gate.open.set()
    assert_usable(request, x)


@pytest.mark.parametrize(
    ("stage", "run"),
    [
        ("infer_preprocess", ["infer_preprocess"]),
        ("infer_postprocess", ["infer_preprocess", "start_pipeline", "infer_postprocess"]),
    ],
)
def test_no_stage_of_an_inference_in_place_begins_after_cancelling_it(make_network, x, stage, run):
    seen = []
    hooks = {
        name: lambda _, name=name: (seen.append(name), request.cancel() if name == stage else None)
        for name in ("infer_preprocess", "start_pipeline", "infer_postprocess")
    }
    request = make_network(**hooks).create_infer_request()
    with pytest.raises(Cancelled):
        request.infer({"x": x})
    assert seen == run
    with pytest.raises(InferError, match="has no value"):
        request.get_tensor("y")


def test_cancelling_what_does_not_run_changes_nothing(make_network, x):
    request = make_network().create_infer_request()
    request.cancel()
    request.infer({"x": x})
    request.cancel()
    assert request.error is None
    np.testing.assert_array_equal(request.results[0], x * 2)


def test_a_deadline_ends_a_queued_inference_although_nobody_waits(make_network, x, gate):
    network = make_network(start_pipeline=blocking_first(gate))
    occupied(network, x, gate)
    late, told = network.create_infer_request(), threading.Event()
    errors = []
    late.set_callback(lambda request, error: (errors.append(error), told.set()))
    late.start_async({"x": x}, deadline=0.01)
    assert told.wait(LONG)
    assert isinstance(errors[0], DeadlineExceeded)
    with pytest.raises(DeadlineExceeded, match=r"request 1 did not finish within its deadline of 0.01 s"):
        late.wait(LONG)
    gate.open.set()
    assert_usable(late, x)


def test_a_deadline_ends_a_running_inference_at_its_next_check(make_network, x, checking_gate):
    request = make_network(start_pipeline=checking_gate).create_infer_request()
    request.start_async({"x": x}, deadline=0.01)
    with pytest.raises(DeadlineExceeded):
        request.wait(LONG)
    checking_gate.open.set()
    assert_usable(request, x)


def test_a_deadline_that_is_met_has_no_effect_later(make_network, x):
    request = make_network().create_infer_request()
    request.start_async({"x": x}, deadline=LONG)
    request.wait(LONG)
    alive = weakref.ref(request)
    del request
    gc.collect()
    assert alive() is None


# -- callbacks ----------------------------------------------------------------------------------------------


def test_a_callback_gets_the_idle_request_and_no_error(make_network, x):
    seen = []
    request = make_network().create_infer_request()
    request.set_callback(lambda r, error: seen.append((r, error, r.state, r.results[0].copy())))
    request.start_async({"x": x})
    request.wait(LONG)
    ((same, error, state, y),) = seen
    assert (same, error, state) == (request, None, RequestState.IDLE)
    np.testing.assert_array_equal(y, x * 2)


def test_a_callback_gets_the_error_of_a_failed_inference(make_network, x):
    seen = []
    request = make_network(start_pipeline=failing_once(ValueError("bad"))).create_infer_request()
    request.set_callback(lambda r, error: seen.append(error))
    request.start_async({"x": x})
    with pytest.raises(DeviceError):
        request.wait(LONG)
    assert seen == [request.error]
    assert_usable(request, x)


def test_what_a_callback_raises_reaches_the_waiter_once_and_harms_nothing(make_network, x):
    request = make_network().create_infer_request()
    request.set_callback(lambda r, error: 1 / 0)
    request.start_async({"x": x})
    with pytest.raises(CallbackError, match="the callback raised ZeroDivisionError") as caught:
        request.wait(LONG)
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    request.wait(LONG)
    np.testing.assert_array_equal(request.results[0], x * 2)
    assert_usable(request, x)


NEXT = {
    "starts": lambda request, x: (request.start_async({"x": x}), request.wait(LONG)),
    "infers in place": lambda request, x: request.infer({"x": x}),
    "forgets": lambda request, x: request.clear_tensors(),
}


@pytest.mark.parametrize("next_step", NEXT)
def test_what_a_callback_raises_is_logged_once_where_nobody_waited_for_it(make_network, x, caplog, next_step):
    request = with_failed_callback(make_network(), x)
    assert caplog.text == ""
    request.set_callback(None)
    for _ in range(2):
        NEXT[next_step](request, x)
    (record,) = caplog.records
    assert (record.name, record.levelname) == ("engine.runtime", "ERROR")
    assert "callback raised KeyError: 'no such key'; the error reached no waiter" in caplog.text
    assert "test_async_request.py" in caplog.text, "the traceback leads to the callback"


def test_what_a_callback_raises_is_logged_where_the_request_is_dropped(make_network, x, caplog):
    request = with_failed_callback(make_network(), x)
    del request
    gc.collect()
    assert len(caplog.records) == 1
    assert "KeyError" in caplog.text


def test_what_a_callback_raises_is_not_logged_where_a_waiter_got_it(make_network, x, caplog):
    request = with_failed_callback(make_network(), x)
    with pytest.raises(CallbackError):
        request.wait(LONG)
    request.set_callback(None)
    assert_usable(request, x)
    del request
    gc.collect()
    assert caplog.text == ""


def with_failed_callback(network, x):
    """A request whose callback has raised, and returned, without anybody waiting."""
    called, returned = threading.Event(), threading.Event()
    request = network.create_infer_request()
    request.set_callback(lambda r, error: (called.set(), {}["no such key"]))
    request.start_async({"x": x})
    assert called.wait(LONG)
    network.callback_executor.submit(returned.set)  # runs after the callback, in the same thread
    assert returned.wait(LONG)
    return request


def test_a_callback_that_passes_the_inferences_error_on_adds_nothing(make_network, x):
    request = make_network(start_pipeline=failing_once(ValueError("bad"))).create_infer_request()
    request.set_callback(lambda r, error: r.results)
    request.start_async({"x": x})
    for _ in range(2):
        with pytest.raises(DeviceError, match="bad") as caught:
            request.wait(LONG)
        assert not hasattr(caught.value, "__notes__")


def test_a_callback_may_start_its_request_again(make_network, x):
    request = make_network().create_infer_request()
    values, done = [], threading.Event()

    def again(r, error):
        values.append(r.results[0][0, 1])
        if len(values) < 5:
            r.start_async({"x": r.results[0]})
        else:
            done.set()

    request.set_callback(again)
    request.start_async({"x": x})
    assert done.wait(LONG)
    request.wait(LONG)
    assert values == [2, 4, 8, 16, 32]


@pytest.mark.parametrize("restarts", [0, 1])
def test_waiting_in_a_callback_is_an_error_instead_of_a_deadlock(make_network, x, restarts):
    request = make_network().create_infer_request()
    caught, done = [], threading.Event()

    def wait_inside(r, error):
        if len(caught) < restarts:
            r.start_async({"x": x})
        try:
            r.wait()
        except InferError as e:
            caught.append(e)
        if len(caught) > restarts:
            done.set()

    request.set_callback(wait_inside)
    request.start_async({"x": x})
    assert done.wait(LONG)
    request.wait(LONG)
    assert all("which the inference itself needs" in str(error) for error in caught)
    assert_usable(request, x)


def test_waiting_in_a_stage_for_a_request_that_needs_its_thread_is_an_error(make_network, x):
    requests = []

    def wait_for_other(request):
        if request.request_id == 0:
            requests[1].start_async({"x": x})
            requests[1].wait()

    network = make_network(start_pipeline=wait_for_other)
    requests += [network.create_infer_request() for _ in range(2)]
    requests[0].start_async({"x": x})
    with pytest.raises(InferError, match="waiting on thread TINY:tiny"):
        requests[0].wait(LONG)
    requests[1].wait(LONG)


def test_no_callback_follows_an_inference_in_place(make_network, x):
    request = make_network().create_infer_request()
    called = []
    request.set_callback(lambda r, error: called.append(1))
    request.infer({"x": x})
    request.start_async({"x": x})
    request.wait(LONG)
    assert called == [1]


def test_a_callback_that_cannot_be_called_is_reported(make_network, x):
    network = make_network()
    request = network.create_infer_request()
    request.set_callback(lambda r, error: None)
    network.callback_executor.shutdown(LONG)
    request.start_async({"x": x})
    with pytest.raises(CallbackError, match="is shut down"):
        request.wait(LONG)
    assert_usable(request, x)


# -- asyncio ------------------------------------------------------------------------------------------------


def test_awaiting_returns_results_and_does_not_block_the_loop(make_network, x):
    async def main():
        opened = threading.Event()
        network = make_network({"NUM_STREAMS": 3}, start_pipeline=lambda r: opened.wait(LONG))
        requests = [network.create_infer_request() for _ in range(3)]
        for i, request in enumerate(requests):
            request.start_async({"x": x + i})
        asyncio.get_running_loop().call_soon(opened.set)
        return await asyncio.gather(*requests)

    for i, result in enumerate(asyncio.run(main())):
        np.testing.assert_array_equal(result["y"], (x + i) * 2)


def test_awaiting_a_finished_request_and_one_that_fails(make_network, x):
    async def main():
        request = make_network(start_pipeline=failing_once(ValueError("bad"))).create_infer_request()
        request.start_async({"x": x})
        with pytest.raises(DeviceError):
            await request
        request.infer({"x": x})
        np.testing.assert_array_equal((await request)[0], x * 2)
        assert_usable(request, x)

    asyncio.run(main())


def test_cancelling_the_awaiting_task_cancels_the_inference(make_network, x, checking_gate):
    async def main():
        request = make_network(start_pipeline=checking_gate).create_infer_request()
        request.start_async({"x": x})
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(request, 0.05)
        with pytest.raises(Cancelled):
            await request
        return request

    request = asyncio.run(main())
    checking_gate.open.set()
    assert_usable(request, x)


def test_a_loop_that_is_closed_before_the_inference_ends_is_harmless(make_network, x, gate):
    request = make_network(start_pipeline=gate).create_infer_request()
    request.start_async({"x": x})
    loop = asyncio.new_event_loop()
    task = loop.create_task(request._awaited())
    loop.run_until_complete(asyncio.sleep(0))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        loop.run_until_complete(task)
    loop.close()
    gate.open.set()
    with pytest.raises(Cancelled):
        request.wait(LONG)
    assert_usable(request, x)


# -- lifetime -----------------------------------------------------------------------------------------------


def test_an_inference_in_flight_keeps_request_and_network_alive_and_then_lets_go(make_network, x, gate):
    network = make_network(start_pipeline=gate)
    request = network.create_infer_request()
    results, done = [], threading.Event()
    request.set_callback(lambda r, error: (results.append(r.results[0]), done.set()))
    alive = weakref.ref(network)
    request.start_async({"x": x})
    assert gate.reached.wait(LONG)
    del network, request
    gc.collect()
    assert alive() is not None
    gate.open.set()
    assert done.wait(LONG)
    np.testing.assert_array_equal(results[0], x * 2)
    assert wait_until(lambda: alive() is None)


def wait_until(condition):
    end = time.monotonic() + LONG
    while not condition() and time.monotonic() < end:
        gc.collect()
        time.sleep(0.001)
    return condition()


@pytest.mark.parametrize("outcome", ["success", "error", "cancelled"])
def test_an_idle_request_is_freed_with_its_network_without_a_garbage_collection(make_network, x, outcome):
    hooks = {"start_pipeline": failing_once(ValueError("bad"))} if outcome == "error" else {}
    network = make_network(**hooks)
    request = network.create_infer_request()
    gc.collect()
    gc.disable()
    try:
        request.start_async({"x": x})
        if outcome == "cancelled":
            request.cancel()
        with contextlib.suppress(InferError):
            request.wait(LONG)
        alive = weakref.ref(network), weakref.ref(request), weakref.ref(request._request)
        network(x)
        threads = list(network.task_executor._pool.threads)
        del network, request
        end = time.monotonic() + LONG
        while any(ref() is not None for ref in alive) and time.monotonic() < end:
            time.sleep(0.001)  # the worker lets go of its last task
        assert [ref() for ref in alive] == [None] * 3
    finally:
        gc.enable()
    for thread in threads:
        thread.join(LONG)
        assert not thread.is_alive()


@pytest.mark.parametrize(
    ("pipeline", "message"),
    [
        (lambda r, e: [], "a non-empty list of"),
        (lambda r, e: None, "a non-empty list of"),
        (lambda r, e: [(r.start_pipeline, e)], r"entry 0 is .*; expected \(executor, stage\)"),
        (lambda r, e: [(e, None)], "not called"),
        (lambda r, e: [(concurrent.futures.ThreadPoolExecutor(1), r.start_pipeline)], "an Executor"),
        (lambda r, e: [(e, r.start_pipeline), (e, r.infer_preprocess)], "infer_preprocess after start_pipeline"),
        (lambda r, e: [(e, r.start_pipeline), (e, r.start_pipeline)], "start_pipeline after start_pipeline"),
        (lambda r, e: [(e, r.infer_preprocess), (e, r.infer_postprocess)], "omits start_pipeline, wait_pipeline"),
        (lambda r, e: [(e, type(r)(e.network).start_pipeline)], "another request"),
    ],
)
def test_a_pipeline_that_is_none_is_refused_before_anything_runs(make_network, pipeline, message):
    # Otherwise a device's author meets an attribute error in a stage, or a result that the stages never gave.
    network = make_network()
    request = network.create_infer_request()._request
    executor = InlineExecutor()
    executor.network = network
    with pytest.raises(PluginContractError, match=f"TINY network .*the pipeline.*{message}"):
        AsyncInferRequest(request, pipeline(request, executor), executor)


def test_a_pipeline_may_have_stages_of_its_own(make_network, x):
    network = make_network()
    request = network.create_infer_request()._request
    executor = InlineExecutor()
    whole = [(executor, lambda: request.start_pipeline()), (executor, request.infer_postprocess)]
    own = AsyncInferRequest(request, whole, executor, network)
    own.start_async([x])
    own.wait(LONG)
    assert own.results["y"].tolist() == (2 * x).tolist()
