import gc
import threading
import time
import weakref

import numpy as np
import pytest

from engine.errors import Busy, CallbackError, Cancelled, DeadlineExceeded, DeviceError, InferError, InputError
from engine.runtime import AsyncInferQueue, AsyncInferRequest, RequestState

LONG = 30.0


@pytest.fixture
def gate():
    event = threading.Event()
    yield event
    event.set()


def inputs(i):
    return {"x": np.full((1, 4), i, np.float32)}


@pytest.mark.parametrize("streams", [1, 3])
def test_every_job_runs_once_with_its_own_inputs_and_userdata(make_network, streams):
    network = make_network({"NUM_STREAMS": streams})
    results = {}
    with AsyncInferQueue(network, 4, callback=lambda r, i: results.__setitem__(i, r.results["y"][0, 0])) as queue:
        for i in range(50):
            queue.start_async(inputs(i), i)
    assert results == {i: 2 * i for i in range(50)}
    assert len(queue) == 4
    assert {request.state for request in queue} == {RequestState.IDLE}
    assert queue[3] in list(queue)


def test_the_number_of_jobs_is_the_devices_choice_by_default(make_network):
    assert len(AsyncInferQueue(make_network({"NUM_STREAMS": 3}))) == 3


@pytest.mark.parametrize(("arguments", "message"), [((-1,), "must be 1 or more"), ((True,), "must be 1 or more"),
                                                    ((1, "drop"), '"block" or "reject"; got \'drop\'')])  # fmt: skip
def test_wrong_settings_are_refused(make_network, arguments, message):
    with pytest.raises(InferError, match=message):
        AsyncInferQueue(make_network(), *arguments)


def test_a_full_queue_rejects_by_policy_and_takes_jobs_again_later(make_network, gate):
    queue = AsyncInferQueue(make_network(start_pipeline=lambda r: gate.wait(LONG)), 2, "reject")
    assert queue.is_ready
    queue.start_async(inputs(1))
    queue.start_async(inputs(2))
    assert not queue.is_ready
    with pytest.raises(Busy, match="all 2 requests of the queue are in flight"):
        queue.start_async(inputs(3))
    gate.set()
    queue.wait_all(LONG)
    queue.start_async(inputs(4))
    queue.wait_all(LONG)


def test_a_full_queue_blocks_by_policy_until_a_request_is_idle(make_network, gate):
    network = make_network(start_pipeline=lambda r: gate.wait(LONG))
    queue = AsyncInferQueue(network, 1)
    queue.start_async(inputs(1))
    with pytest.raises(DeadlineExceeded, match=r"no request of the queue became idle within 0.01 s"):
        queue.start_async(inputs(2), timeout=0.01)
    started = threading.Event()
    thread = threading.Thread(target=lambda: (queue.start_async(inputs(3)), started.set()))
    thread.start()
    assert not started.is_set()
    gate.set()
    assert started.wait(LONG)
    thread.join(LONG)
    queue.wait_all(LONG)
    assert queue[0].results[0][0, 0] == 6


def test_wait_all_reports_the_first_error_once_and_may_be_called_again(make_network):
    def fail_on_odd(request):
        if request.inputs[0][0, 0] % 2:
            raise ValueError(f"odd {request.inputs[0][0, 0]:g}")

    queue = AsyncInferQueue(make_network(start_pipeline=fail_on_odd), 2)
    for i in range(6):
        queue.start_async(inputs(i))
    with pytest.raises(DeviceError, match="odd 1") as caught:
        queue.wait_all(LONG)
    assert "and 2 more inferences of the queue failed" in caught.value.__notes__
    queue.wait_all(LONG)
    queue.start_async(inputs(2))
    queue.wait_all(LONG)


def test_a_failing_callback_is_reported_and_ends_nothing(make_network):
    results = []

    def callback(request, i):
        if i == 1:
            raise KeyError("one")
        results.append(i)

    queue = AsyncInferQueue(make_network(), 2, callback=callback)
    for i in range(4):
        queue.start_async(inputs(i), i)
    with pytest.raises(CallbackError, match="callback raised KeyError: 'one'") as caught:
        queue.wait_all(LONG)
    assert isinstance(caught.value.__cause__, KeyError)
    assert sorted(results) == [0, 2, 3]
    queue.wait_all(LONG)
    queue.start_async(inputs(9), 9)
    queue.wait_all(LONG)
    assert results[-1] == 9


def test_what_wait_all_cannot_raise_of_callbacks_is_logged(make_network, caplog):
    queue = AsyncInferQueue(make_network(), 1, callback=lambda request, i: {}[f"job {i}"])
    for i in range(3):
        queue.start_async(inputs(i), i)
    with pytest.raises(CallbackError, match="job 0"):
        queue.wait_all(LONG)
    assert [f"job {i}" in caplog.text for i in range(3)] == [False, True, True]


def test_what_a_callback_raises_is_logged_where_the_queue_is_dropped(make_network, caplog):
    called, returned = threading.Event(), threading.Event()
    network = make_network()
    queue = AsyncInferQueue(network, 1, callback=lambda request, i: (called.set(), {}["no such key"]))
    queue.start_async(inputs(0), 0)
    assert called.wait(LONG)
    network.callback_executor.submit(returned.set)  # runs after the callback, in the same thread
    assert returned.wait(LONG)
    assert caplog.text == ""
    del queue
    gc.collect()
    assert "the queue's callback raised KeyError: 'no such key'; the error reached no waiter" in caplog.text


def test_a_callback_learns_which_job_failed(make_network):
    def fail_on_two(request):
        if request.inputs[0][0, 0] == 2:
            raise ValueError("two")

    failed = []
    queue = AsyncInferQueue(make_network(start_pipeline=fail_on_two), 2)
    queue.set_callback(lambda request, i: failed.append(i) if request.error else None)
    for i in range(4):
        queue.start_async(inputs(i), i)
    with pytest.raises(DeviceError, match="two"):
        queue.wait_all(LONG)
    assert failed == [2]


def test_a_wrong_input_starts_nothing_and_leaves_the_request_idle(make_network):
    queue = AsyncInferQueue(make_network(), 1, "reject")
    for _ in range(3):
        with pytest.raises(InputError):
            queue.start_async({"z": 1})
    assert queue.is_ready
    queue.wait_all(0)


def test_a_request_that_was_started_before_an_interrupt_takes_no_other_job(make_network, gate, monkeypatch):
    queue = AsyncInferQueue(make_network(start_pipeline=lambda r: gate.wait(LONG)), 1, "reject")
    start = AsyncInferRequest.start_async

    def interrupted(*args, **named):
        start(*args, **named)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(AsyncInferRequest, "start_async", interrupted)
        with pytest.raises(KeyboardInterrupt):
            queue.start_async(inputs(1))
    assert not queue.is_ready
    gate.set()
    queue.wait_all(LONG)
    queue.start_async(inputs(2))
    queue.wait_all(LONG)


def test_a_deadline_of_a_job_is_reported(make_network, gate):
    network = make_network(start_pipeline=lambda r: gate.wait(LONG) if r.request_id == 0 else None)
    queue = AsyncInferQueue(network, 2)
    queue.start_async(inputs(1))
    queue.start_async(inputs(2), deadline=0.01)
    with pytest.raises(DeadlineExceeded, match=r"[12] inferences of the queue still run"):
        queue.wait_all(0)
    threading.Timer(0.1, gate.set).start()
    with pytest.raises(DeadlineExceeded, match="within its deadline"):
        queue.wait_all(LONG)


def test_a_callback_may_start_its_request_again_for_the_same_job(make_network):
    seen = []

    def again(request, job):
        seen.append((job, request.results[0][0, 0]))
        if len([1 for j, _ in seen if j == job]) < 3:
            request.start_async({"x": request.results[0]})

    with AsyncInferQueue(make_network(), 2, callback=again) as queue:
        queue.start_async(inputs(1), "a")
        queue.start_async(inputs(10), "b")
    assert sorted(seen) == [("a", 2), ("a", 4), ("a", 8), ("b", 20), ("b", 40), ("b", 80)]
    assert queue.is_ready


def test_a_request_that_its_callback_started_again_is_not_idle(make_network):
    queue = AsyncInferQueue(make_network(), 1, "reject")
    again, entered = [True], threading.Event()

    def start_again_and_let_it_finish(request, job):
        if again.pop():
            again.append(False)
            request.start_async(inputs(1))
            while request.state is not RequestState.IDLE:
                pass
        else:
            entered.set()

    queue.set_callback(start_again_and_let_it_finish)
    queue.start_async(inputs(0))
    assert entered.wait(LONG)
    queue.wait_all(LONG)
    assert len(queue._idle) == 1


def test_a_callback_that_would_wait_for_itself_is_reported(make_network):
    queue = AsyncInferQueue(make_network(), 1)
    errors = []

    def callback(request, userdata):
        for wait in (queue.wait_all, lambda: queue.start_async(inputs(1))):
            try:
                wait()
            except Busy as e:
                errors.append(str(e))

    queue.set_callback(callback)
    queue.start_async(inputs(0))
    queue.wait_all(LONG)
    assert ["wait_all in a callback" in errors[0], "start_async in a callback" in errors[1]] == [True, True]


def test_the_callback_cannot_change_while_jobs_are_in_flight(make_network, gate):
    queue = AsyncInferQueue(make_network(start_pipeline=lambda r: gate.wait(LONG)), 1)
    queue.start_async(inputs(0))
    with pytest.raises(Busy, match="in flight"):
        queue.set_callback(None)


def test_leaving_the_block_with_an_error_cancels_what_is_in_flight(make_network, gate):
    def end_when_cancelled(request):
        end = time.monotonic() + LONG
        while request.cancellation is None and time.monotonic() < end:
            gate.wait(0.001)

    queue = AsyncInferQueue(make_network(start_pipeline=end_when_cancelled), 3)

    def use():
        with queue:
            for i in range(3):
                queue.start_async(inputs(i))
            raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match="mine"):
        use()
    assert all(isinstance(request.error, Cancelled) for request in queue)


def test_dropping_an_idle_queue_frees_it_and_its_network(make_network):
    network = make_network()
    queue = AsyncInferQueue(network, 2, callback=lambda request, i: None)
    queue.start_async(inputs(0))
    queue.wait_all(LONG)
    alive = weakref.ref(network), weakref.ref(queue)
    threads = [*network.callback_executor._pool.threads, *network.task_executor._pool.threads]
    del network, queue
    for thread in threads:
        thread.join(LONG)
    assert [ref() for ref in alive] == [None, None]


def test_what_is_no_network_or_no_callback_is_refused_at_once(make_network):
    with pytest.raises(InferError, match="a queue takes a compiled network; got str"):
        AsyncInferQueue("network.blob")
    with pytest.raises(InferError, match=r"a callback must be a function.*got 5"):
        AsyncInferQueue(make_network(), 1, callback=5)
    queue = AsyncInferQueue(make_network(), 1)
    with pytest.raises(InferError, match="a callback must be a function"):
        queue.set_callback("print")
    request = queue[0]
    with pytest.raises(InferError, match="a callback must be a function"):
        request.set_callback([])
    queue.start_async(inputs(1))
    queue.wait_all(LONG)
    assert request.results["y"][0, 0] == 2
