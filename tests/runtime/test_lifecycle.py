"""Forks and the interpreter's exit, each in a process of its own."""

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent

PRELUDE = """
import contextlib, os, sys, threading, time
sys.path.insert(0, {tests!r})
import numpy as np
from conftest import TinyPlugin, tiny_model
from engine.errors import *
from engine.core.plugin_calls import compile_network
from engine.runtime import *
from engine.runtime import lifecycle

x = np.ones((1, 4), np.float32)

def make(**hooks):
    network = compile_network(TinyPlugin(None), tiny_model())
    network.hooks = hooks
    return network

def in_child(check):
    pid = os.fork()
    if pid == 0:
        try:
            check()
        except BaseException:
            import traceback
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0

"""


def run(script, timeout=60):
    source = PRELUDE.format(tests=str(Path(__file__).parent)) + textwrap.dedent(script)
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", source],
        capture_output=True,
        text=True,
        timeout=timeout,
        cwd=ROOT,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done


@pytest.mark.parametrize(
    "in_flight",
    [
        "start_pipeline=lambda r: (reached.set(), time.sleep(0.3))",
        "start_pipeline=lambda r: (reached.set(), threading.Event().wait())",
        "start_pipeline=lambda r: (reached.set(), [(r.check_cancelled(), time.sleep(0.001)) for _ in iter(int, 1)])",
    ],
    ids=["ends soon", "never ends", "checks for cancellation"],
)
@pytest.mark.parametrize("held", ["request", "queue", "None"])
def test_the_interpreter_exits_with_inferences_in_flight(in_flight, held):
    done = run(f"""
        lifecycle.EXIT_GRACE_SECONDS = 0.5
        reached = threading.Event()
        network = make({in_flight})
        queue = AsyncInferQueue(network, 3)
        for _ in range(3):
            queue.start_async(x)
        request = network.create_infer_request()
        request.set_callback(lambda r, e: None)
        request.start_async(x, deadline=1000)
        assert reached.wait(30)
        held = {held}
        del queue, request, network
        print("end of script")
    """)
    assert done.stdout == "end of script\n"
    assert done.stderr == ""


def test_requests_in_flight_are_told_that_the_interpreter_exits():
    done = run("""
        reached = threading.Event()
        network = make(start_pipeline=lambda r: (reached.set(), time.sleep(0.2)))
        requests = [network.create_infer_request() for _ in range(2)]
        for request in requests:
            request.set_callback(lambda r, e: print(r.request_id, type(e).__name__, flush=True))
            request.start_async(x)
        assert reached.wait(30)
    """)
    assert sorted(done.stdout.split("\n")) == ["", "0 Cancelled", "1 Cancelled"]
    assert done.stderr == ""


def test_what_a_callback_raises_is_logged_at_exit_where_nobody_waited():
    done = run("""
        network = make()
        request, queue = network.create_infer_request(), AsyncInferQueue(network, 1, callback=lambda r, i: {}["queue"])
        request.set_callback(lambda r, e: {}["request"])
        request.start_async(x)
        queue.start_async(x)
    """)
    assert [done.stderr.count(f"KeyError: '{key}'; the error reached no waiter") for key in ("request", "queue")] == [
        1,
        1,
    ]


def test_an_inference_at_exit_is_an_error_not_a_crash():
    done = run("""
        import atexit
        network = make()
        request = network.create_infer_request()

        def late():
            for call in (request.start_async, request.infer, network):
                try:
                    call(x)
                except Cancelled as e:
                    print(e)

        lifecycle.atexit.unregister(lifecycle.lifecycle.exit)
        atexit.register(late)
        atexit.register(lifecycle.lifecycle.exit)
    """)
    assert done.stdout.count("is refused: the interpreter exits") == 3
    assert done.stderr == ""


def test_requests_networks_and_queues_work_in_a_forked_child_and_after_it_in_the_parent():
    run("""
        network = make()
        request = network.create_infer_request()
        queue = AsyncInferQueue(network, 2)
        endless = make(start_pipeline=lambda r: [(r.check_cancelled(), time.sleep(0.001)) for _ in iter(int, 1)])
        slow = endless.create_infer_request()

        def use():
            assert network(x)[0][0, 0] == 2
            request.start_async({"x": x}, deadline=30)
            request.wait(30)
            assert request.results[0][0, 0] == 2
            for _ in range(5):
                queue.start_async(x)
            queue.wait_all(30)
            slow.start_async(x, deadline=0.01)
            try:
                slow.wait(30)
            except DeadlineExceeded as e:
                assert "its deadline of 0.01 s" in str(e), e
            else:
                raise AssertionError("the deadline passed unseen")
            shared = shared_executor("DEVICE")
            done = threading.Event()
            shared.submit(done.set)
            assert done.wait(30)

        use()
        in_child(use)
        use()
    """)


def test_what_ran_during_a_fork_goes_on_in_the_parent_and_ends_with_an_error_in_the_child():
    run("""
        reached, gate = threading.Event(), threading.Event()
        network = make(start_pipeline=lambda r: (reached.set(), gate.wait(30)))
        request, queued = network.create_infer_request(), network.create_infer_request()
        called = []
        request.set_callback(lambda r, e: called.append(e))
        request.start_async(x)
        queued.start_async(x)
        queue = AsyncInferQueue(network, 1)
        queue.start_async(x)
        assert reached.wait(30)

        def check():
            for r in (request, queued):
                try:
                    r.wait(30)
                except InferError as e:
                    assert "when this one was forked; start it again" in str(e), e
                else:
                    raise AssertionError("no error")
            assert called == []
            network.hooks.clear()
            for r in (request, queued):
                r.set_callback(None)
                r.start_async(x + 1)
                r.wait(30)
                assert r.results[0][0, 0] == 4
            queue.start_async(x)
            queue.wait_all(30)

        in_child(check)
        gate.set()
        request.wait(30)
        queued.wait(30)
        queue.wait_all(30)
        assert called == [None]
        assert request.results[0][0, 0] == 2
    """)


def test_no_lock_that_another_thread_holds_during_a_fork_is_missing_in_the_child():
    run("""
        from engine.runtime import deadlines
        network = make()
        request = network.create_infer_request()
        queue = AsyncInferQueue(network, 1)
        shared = shared_executor("DEVICE")
        request.start_async(x, deadline=30)
        request.wait(30)
        locks = [
            request._lock, queue._lock, network._creating, network.plugin._lock, shared._pool._changed,
            network.task_executor._pool._changed, deadlines.deadline_timer._changed,
        ]
        held, release = threading.Event(), threading.Event()

        def hold():
            with contextlib.ExitStack() as stack:
                for lock in locks:
                    stack.enter_context(lock)
                held.set()
                release.wait(30)

        thread = threading.Thread(target=hold)
        thread.start()
        assert held.wait(30)

        def check():
            request.start_async(x, deadline=30)
            request.wait(30)
            network.create_infer_request().infer(x)
            network.plugin.set_config({"PERF_COUNT": True})
            queue.start_async(x)
            queue.wait_all(30)
            done = threading.Event()
            shared.submit(done.set)
            assert done.wait(30)

        in_child(check)
        release.set()
        thread.join()
    """)


def test_a_fork_while_another_thread_imports(tmp_path):
    """Modules are imported when they are needed, and the lock of a module does not become free in a child."""
    (tmp_path / "engine_slow.py").write_text("import threading\nbegun.set()\nmay_end.wait(30)\nvalue = 3\n")
    run(f"""
        import builtins
        builtins.begun, builtins.may_end = threading.Event(), threading.Event()
        sys.path.insert(0, {str(tmp_path)!r})
        thread = threading.Thread(target=lambda: __import__("engine_slow"))
        thread.start()
        assert begun.wait(30)
        threading.Timer(0.2, may_end.set).start()

        def check():
            import engine_slow
            assert engine_slow.value == 3

        in_child(check)
        thread.join()
    """)


def test_forks_while_other_threads_use_everything():
    run("""
        network = make()
        request = network.create_infer_request()
        request.infer(x)
        stop = threading.Event()

        def churn():
            mine = network.create_infer_request()
            while not stop.is_set():
                mine.start_async(x, deadline=30)
                mine.wait(30)
                network.create_infer_request()
                shared_executor("DEVICE")

        threads = [threading.Thread(target=churn) for _ in range(4)]
        for thread in threads:
            thread.start()

        def check():
            request.start_async(x, deadline=30)
            request.wait(30)
            network.create_infer_request().infer(x)
            shared_executor("DEVICE")

        for _ in range(30):
            in_child(check)
        stop.set()
        for thread in threads:
            thread.join()
    """)


def test_an_inference_that_forks_finishes_in_parent_and_child():
    run("""
        pids = []
        network = make(start_pipeline=lambda r: pids.append(os.fork()))
        request = network.create_infer_request()
        assert request.infer(x)[0][0, 0] == 2
        assert request.results[0][0, 0] == 2
        if pids[0] == 0:
            os._exit(0)
        assert os.waitpid(pids[0], 0)[1] == 0
    """)
