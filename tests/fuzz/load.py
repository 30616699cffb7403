"""Requests under load: many threads use several networks and devices in every way, and every result is checked.

A case is a round: threads with random work, after which the resources that are still in use are checked.
"""

from __future__ import annotations

import asyncio
import functools
import io
import itertools
import random
import threading
import time
import traceback
from collections.abc import Callable
from typing import Any

import numpy as np

from engine import AsyncInferQueue, AsyncInferRequest, Core, ExecutableNetwork
from engine.errors import Busy, Cancelled, DeadlineExceeded
from engine.testing.behaviour.states import History, chunk

from .finding import Finding, note
from .leaks import Watch
from .subjects import Subject, compiled, history, subjects, warm_up

LIMIT = 120.0
MEMORY = 0
INTERRUPTS = False
IS_KEPT = True

THREADS = 6
WORKS = 40
PATIENCE = 60.0
"""Seconds after which an inference of microseconds that has not ended hangs, on however slow a machine."""

_devices: tuple[str, ...] = ("TEMPLATE", "CPU", "HETERO")
_watch = Watch()


def prepare(devices: tuple[str, ...]) -> None:
    """Choose the devices."""
    global _devices
    _devices = devices


@functools.cache
def core() -> Core:
    """The core of all rounds."""
    return Core()


@functools.cache
def network(index: int, device: str) -> ExecutableNetwork:
    """A network that all rounds use."""
    made = compiled(core(), subjects()[index], device)
    warm_up(made, subjects()[index].samples[0][0])
    return made


@functools.cache
def stateful(device: str) -> ExecutableNetwork:
    """A network with variables that all rounds use."""
    return history(core(), device)


def files(seed: int) -> dict[str, bytes]:
    """Nothing but the seed."""
    return {}


def run(seed: int) -> str:
    """One round."""
    for index, device in itertools.product(range(len(subjects())), _devices):
        network(index, device)
    failures: list[BaseException] = []
    threads = [
        threading.Thread(target=_work, args=(random.Random(f"load {seed} {index}"), failures), daemon=True)
        for index in range(THREADS)
    ]
    note(f"load: {THREADS} threads")
    for thread in threads:
        thread.start()
    end = time.monotonic() + LIMIT / 2
    for thread in threads:
        thread.join(max(0.0, end - time.monotonic()))
    if any(thread.is_alive() for thread in threads):
        raise Finding("hang", f"{sum(t.is_alive() for t in threads)} threads have not ended after {LIMIT / 2} s")
    for failure in failures:
        if isinstance(failure, Finding):
            raise failure
        raise Finding(f"{type(failure).__name__} in a thread", "".join(traceback.format_exception(failure)))
    note("load: looking for leaks")
    _watch.check()
    return "round"


def _work(r: random.Random, failures: list[BaseException]) -> None:
    try:
        for _ in range(WORKS):
            index, device = r.randrange(len(subjects())), r.choice(_devices)
            r.choice(WAYS)(r, subjects()[index], network(index, device), device)
    except BaseException as e:
        failures.append(e)


def called(r: random.Random, subject: Subject, of: ExecutableNetwork, device: str) -> None:
    """Call the network, with other lengths each time."""
    for _ in range(3):
        sample = r.randrange(len(subject.samples))
        subject.check(sample, of(subject.samples[sample][0]))


def in_place(r: random.Random, subject: Subject, of: ExecutableNetwork, device: str) -> None:
    """Use one request again and again."""
    request = of.create_infer_request()
    for _ in range(3):
        sample = r.randrange(len(subject.samples))
        subject.check(sample, request.infer(subject.samples[sample][0]))
        if r.random() < 0.3:
            request.clear_tensors()


def in_background(r: random.Random, subject: Subject, of: ExecutableNetwork, device: str) -> None:
    """Several requests at a time; some are cancelled, some are late, some have callbacks."""
    requests = [of.create_infer_request() for _ in range(r.randint(1, 4))]
    called_back: list[int] = []
    samples = [r.randrange(len(subject.samples)) for _ in requests]
    with_callback = r.random() < 0.5
    for request, sample in zip(requests, samples, strict=True):
        request.set_callback((lambda done, error: called_back.append(done.request_id)) if with_callback else None)
        request.start_async(subject.samples[sample][0], deadline=r.choice((None, None, 1e-5, 1e-3)))
    for request in r.sample(requests, r.randint(0, len(requests))):
        if r.random() < 0.5:
            request.cancel()
    for request, sample in zip(requests, samples, strict=True):
        _finish(request, subject, sample)
    if with_callback and sorted(called_back) != sorted(request.request_id for request in requests):
        raise Finding("callbacks", f"{len(called_back)} calls for {len(requests)} inferences")
    for request, sample in zip(requests, samples, strict=True):
        request.set_callback(None)
        subject.check(sample, request.infer(subject.samples[sample][0]))


def _finish(request: AsyncInferRequest, subject: Subject, sample: int) -> None:
    try:
        request.wait(PATIENCE)
    except (Cancelled, DeadlineExceeded) as e:
        if request.state.name != "IDLE":
            raise Finding("hang", f"{subject.name}: a request is {request.state.name} after {PATIENCE} s") from e
    else:
        subject.check(sample, request.results)


def shared(r: random.Random, subject: Subject, of: ExecutableNetwork, device: str) -> None:
    """Two threads use one request: each is refused or gets its own result."""
    request, wrong = of.create_infer_request(), list[BaseException]()

    def use(sample: int) -> None:
        try:
            for _ in range(5):
                try:
                    subject.check(sample, request.infer(subject.samples[sample][0]))
                except Busy:
                    time.sleep(0)
        except BaseException as e:
            wrong.append(e)

    other = threading.Thread(target=use, args=(0,))
    other.start()
    use(len(subject.samples) - 1)
    other.join(PATIENCE)
    if wrong:
        raise wrong[0]


def queued(r: random.Random, subject: Subject, of: ExecutableNetwork, device: str) -> None:
    """A queue that blocks or refuses, whose callback checks the results."""
    wrong: list[BaseException] = []
    counts = {"done": 0}

    def done(request: AsyncInferRequest, sample: int) -> None:
        counts["done"] += 1
        try:
            subject.check(sample, request.results)
        except (Cancelled, DeadlineExceeded):
            return
        except BaseException as e:
            wrong.append(e)

    queue = AsyncInferQueue(of, r.randint(1, 4), r.choice(("block", "reject")), done)
    started = 0
    for _ in range(12):
        sample = r.randrange(len(subject.samples))
        try:
            queue.start_async(subject.samples[sample][0], sample, deadline=r.choice((None, None, 1e-4)))
            started += 1
        except Busy:
            time.sleep(1e-4)
        if r.random() < 0.05:
            queue.cancel()
    try:
        queue.wait_all(PATIENCE)
    except (Cancelled, DeadlineExceeded) as e:
        if "still run" in str(e):
            raise Finding("hang", str(e)) from e
    if wrong:
        raise wrong[0]
    if counts["done"] != started:
        raise Finding("callbacks", f"{counts['done']} calls of the queue's callback for {started} inferences")


def awaited(r: random.Random, subject: Subject, of: ExecutableNetwork, device: str) -> None:
    """Tasks of an event loop; some are cancelled."""

    async def one(sample: int) -> None:
        request = of.create_infer_request()
        request.start_async(subject.samples[sample][0])
        subject.check(sample, await request)

    async def all_of_them() -> list[Any]:
        tasks = [asyncio.create_task(one(r.randrange(len(subject.samples)))) for _ in range(4)]
        await asyncio.sleep(0)
        if r.random() < 0.4:
            r.choice(tasks).cancel()
        return await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), PATIENCE)

    for outcome in asyncio.run(all_of_them()):
        if isinstance(outcome, BaseException) and not isinstance(outcome, asyncio.CancelledError):
            raise outcome


def with_states(r: random.Random, subject: Subject, of: ExecutableNetwork, device: str) -> None:
    """Variables: appended to, forked, saved and loaded, rewound, reset."""
    request, right = stateful(device).create_infer_request(), History()
    for step in range(r.randint(2, 6)):
        x = chunk(r.randint(1, 3), float(r.randint(-3, 3)))
        total = request.infer({"x": x})["total"]
        _equal(total, right.total(x))
        match r.randrange(6):
            case 0:
                fork, forked = request.fork(), History()
                forked.tokens = right.tokens.copy()
                y = chunk(2, float(step))
                _equal(fork.infer({"x": y})["total"], forked.total(y))
            case 1:
                stream = io.BytesIO()
                request.save(stream)
                request = stateful(device).create_infer_request()
                request.load(stream.getvalue())
            case 2:
                request.reset_state()
                right = History()
            case 3:
                request.reorder([0])


def _equal(got: Any, want: Any) -> None:
    # Sums of multiples of 0.5 below 2**20, exact in f32 in any order.
    if not np.array_equal(got, want):
        raise Finding("wrong result", f"the total of a request with variables is {got}, expected {want}")


def made_again(r: random.Random, subject: Subject, of: ExecutableNetwork, device: str) -> None:
    """Compile, export, import and drop a network while others run."""
    if r.random() < 0.7:
        return
    sample = r.randrange(len(subject.samples))
    if r.random() < 0.5:
        made = compiled(core(), subject, device, {"PERF_COUNT": r.random() < 0.5})
    else:
        stream = io.BytesIO()
        of.export_model(stream)
        made = core().import_model(stream.getvalue())
    request = made.create_infer_request()
    request.start_async(subject.samples[sample][0])
    if r.random() < 0.3:
        del made, request  # the inference keeps what it needs
        return
    _finish(request, subject, sample)


WAYS: tuple[Callable[[random.Random, Subject, ExecutableNetwork, str], None], ...] = (
    called, in_place, in_background, in_background, shared, queued, awaited, with_states, made_again,
)  # fmt: skip
