import gc
import threading
import weakref

import pytest

from engine.errors import InferError
from engine.runtime import InlineExecutor, ThreadExecutor, shared_executor

LONG = 30.0


def test_one_thread_runs_tasks_in_order_under_the_executors_name():
    executor = ThreadExecutor("stage")
    seen = []
    for i in range(20):
        executor.submit(lambda i=i: seen.append((i, threading.current_thread().name)))
    assert executor.shutdown(LONG)
    assert seen == [(i, "stage") for i in range(20)]


def test_as_many_tasks_run_at_once_as_there_are_threads_and_no_more():
    executor = ThreadExecutor("pool", 3)
    together = threading.Barrier(3)
    running, most, lock = 0, 0, threading.Lock()

    def task():
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        together.wait(LONG)
        with lock:
            running -= 1

    for _ in range(9):
        executor.submit(task)
    assert executor.shutdown(LONG)
    assert most == 3


def test_no_thread_starts_before_the_first_task():
    before = threading.active_count()
    executor = ThreadExecutor("lazy", 4)
    assert threading.active_count() == before
    done = threading.Event()
    executor.submit(done.set)
    assert done.wait(LONG)
    while executor._is_busy():
        pass
    executor.submit(done.clear)
    assert executor.shutdown(LONG)
    assert not done.is_set()
    assert len(executor._pool.threads) == 1


def test_dropping_an_executor_ends_its_threads_and_frees_what_tasks_referred_to():
    class Payload:
        pass

    executor = ThreadExecutor("dropped")
    payload = Payload()
    alive = weakref.ref(payload)
    started = threading.Event()
    threads = []
    executor.submit(lambda p=payload: (threads.append(threading.current_thread()), started.set()))
    assert started.wait(LONG)
    del executor, payload
    gc.collect()
    threads[0].join(LONG)
    assert not threads[0].is_alive()
    assert alive() is None


def test_shutdown_runs_what_waits_and_refuses_what_comes_later():
    executor = ThreadExecutor("closing")
    gate, seen = threading.Event(), []
    executor.submit(lambda: gate.wait(LONG))
    executor.submit(lambda: seen.append(1))
    assert not executor.shutdown(0)
    with pytest.raises(InferError, match="executor closing is shut down"):
        executor.submit(lambda: seen.append(2))
    gate.set()
    assert executor.shutdown(LONG)
    assert seen == [1]


def test_a_task_that_raises_is_logged_and_the_next_one_runs(caplog):
    executor = ThreadExecutor("sturdy")
    done = threading.Event()
    executor.submit(lambda: 1 / 0)
    executor.submit(done.set)
    assert done.wait(LONG)
    assert "executor sturdy: a task raised" in caplog.text
    executor.shutdown(LONG)


def test_an_executor_knows_its_own_threads():
    executor = ThreadExecutor("own")
    answers = []
    executor.submit(lambda: answers.append(executor.owns_current_thread()))
    executor.shutdown(LONG)
    assert answers == [True]
    assert not executor.owns_current_thread()


def test_the_inline_executor_runs_a_task_before_submit_returns():
    seen = []
    InlineExecutor().submit(lambda: seen.append(threading.get_ident()))
    assert seen == [threading.get_ident()]


def test_a_shared_executor_is_one_per_key_while_it_is_held():
    first = shared_executor("DEV.0")
    assert shared_executor("DEV.0") is first
    assert shared_executor("DEV.1") is not first
    alive = weakref.ref(first)
    del first
    gc.collect()
    assert alive() is None


def test_an_executor_without_threads_is_refused():
    with pytest.raises(InferError, match="at least 1 thread"):
        ThreadExecutor("none", 0)
