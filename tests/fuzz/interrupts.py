"""Ctrl-C, cancellations and deadlines at random moments: what was interrupted stays usable, and nothing is left.

A case does one thing, such as compiling to a cache, and interrupts it within the time that it takes undisturbed. Then
the same thing is done again with the same objects and has to give the right results.
"""

from __future__ import annotations

import functools
import io
import itertools
import random
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from engine import AsyncInferQueue, Core, ExecutableNetwork
from engine.errors import Cancelled, DeadlineExceeded, InferError

from .finding import Finding, note
from .leaks import Watch, check_no_files
from .load import PATIENCE
from .subjects import Subject, compiled, subjects, warm_up

LIMIT = 90.0
MEMORY = 0
INTERRUPTS = True
IS_KEPT = True

_devices: tuple[str, ...] = ("TEMPLATE", "CPU", "HETERO")
_watch = Watch()
_times: dict[tuple[str, str, str], float] = {}


class Scene:
    """The objects of a case."""

    def __init__(self, r: random.Random, device: str) -> None:
        self.random = r
        self.device = device
        self.core = core()
        self.subject: Subject = r.choice(subjects())
        self.sample = r.randrange(len(self.subject.samples))
        self.network = network(subjects().index(self.subject), device)
        self.request = self.network.create_infer_request()
        self.folder = Path(tempfile.mkdtemp(prefix="fuzz-interrupts-"))
        (self.folder / "model.onnx").write_bytes(self.subject.data)
        self.allowed = {"model.onnx"}

    @property
    def inputs(self) -> dict[str, Any]:
        """The inputs of the sample."""
        return self.subject.samples[self.sample][0]

    def check(self, found: Any) -> None:
        """Raise `Finding` unless these are the sample's results."""
        self.subject.check(self.sample, found)


def prepare(devices: tuple[str, ...]) -> None:
    """Choose the devices."""
    global _devices
    _devices = devices


@functools.cache
def core() -> Core:
    """The core of all cases, which survives their interrupts."""
    return Core()


@functools.cache
def network(index: int, device: str) -> ExecutableNetwork:
    """A network of all cases."""
    made = compiled(Core(), subjects()[index], device)
    warm_up(made, subjects()[index].samples[0][0])
    return made


@functools.cache
def exported(index: int, device: str) -> bytes:
    """A blob of `network`."""
    stream = io.BytesIO()
    network(index, device).export_model(stream)
    return stream.getvalue()


def files(seed: int) -> dict[str, bytes]:
    """Nothing but the seed."""
    return {}


def run(seed: int) -> str:
    """Interrupt an operation, and repeat it."""
    for index, each in itertools.product(range(len(subjects())), _devices):
        network(index, each)
    r = random.Random(f"interrupt {seed}")
    device = r.choice(_devices)
    scene = Scene(r, device)
    try:
        if r.random() < 0.75:
            action = r.choice(ACTIONS)
            outcome = _interrupted(scene, action)
            note(f"again after an interrupt: {action.__name__} on {device}")
            _again(action, scene)
        else:
            outcome = r.choice((_cancelled, _late, _drained))(scene)
        note("looking for what is left")
        _check_usable(scene)
        check_no_files(scene.folder, scene.allowed)
    finally:
        shutil.rmtree(scene.folder)
    del scene
    _watch.check()
    return outcome


def _interrupted(scene: Scene, action: Callable[[Scene], None]) -> str:
    """Do something, with Ctrl-C at a random moment."""
    name = action.__name__
    key = (name, scene.device, scene.subject.name)
    if key not in _times:
        note(f"measuring {name}")
        action(scene)
        start = time.perf_counter()
        action(scene)
        _times[key] = time.perf_counter() - start
    delay = max(1e-6, scene.random.uniform(0, 1.1 * _times[key]))
    note(f"interrupting {name} on {scene.device}")
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        try:
            signal.setitimer(signal.ITIMER_REAL, delay)
            action(scene)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    except KeyboardInterrupt:
        return f"interrupted: {name}"
    finally:
        signal.signal(signal.SIGALRM, before)
    return f"not in time: {name}"


def _again(action: Callable[[Scene], None], scene: Scene) -> None:
    try:
        action(scene)
    except Finding:
        raise
    except Exception as e:
        raise Finding(f"{type(e).__name__} after an interrupt of {action.__name__}", repr(e)) from e


def _check_usable(scene: Scene) -> None:
    if scene.request.state.name != "IDLE":
        raise Finding("stuck", f"the request is {scene.request.state.name}")
    scene.check(scene.request.infer(scene.inputs))
    scene.check(scene.network(scene.inputs))


# -- what is interrupted -----------------------------------------------------------------------------------


def read(s: Scene) -> None:
    """Read a model from a file."""
    s.core.read_model(s.folder / "model.onnx")


def compile_model(s: Scene) -> None:
    """Compile a model, and run it."""
    s.check(compiled(s.core, s.subject, s.device)(s.inputs))


def compile_to_cache(s: Scene) -> None:
    """Compile with a cache, and run what it gives."""
    cache = s.folder / "cache"
    s.check(compiled(s.core, s.subject, s.device, {"CACHE_DIR": str(cache)})(s.inputs))
    s.allowed |= {path.name for path in cache.rglob("*") if path.suffix == ".blob"}
    _check_temporary(cache)


def _check_temporary(cache: Path) -> None:
    """A run to its end has cleared what an earlier one left."""
    s = sorted(path.name for path in cache.rglob("*") if path.is_file())
    if any(".tmp" in name for name in s):
        raise Finding("temporary files", f"in the cache: {s}")


def infer(s: Scene) -> None:
    """Run in place."""
    s.check(s.request.infer(s.inputs))


def call(s: Scene) -> None:
    """Call the network."""
    s.check(s.network(s.inputs))


def infer_in_background(s: Scene) -> None:
    """Start and wait; an interrupted wait leaves the inference running."""
    if s.request.state.name != "IDLE":
        s.request.wait(PATIENCE)
    s.request.start_async(s.inputs)
    s.request.wait(PATIENCE)
    s.check(s.request.results)


def queue(s: Scene) -> None:
    """Fill a queue."""
    wrong: list[Exception] = []

    def done(request: Any, sample: int) -> None:
        try:
            s.check(request.results)
        except Cancelled:
            return
        except Exception as e:
            wrong.append(e)

    with AsyncInferQueue(s.network, 3, callback=done) as queue:
        for _ in range(6):
            queue.start_async(s.inputs, s.sample)
    if wrong:
        raise wrong[0]


def export(s: Scene) -> None:
    """Export to a file, and import what is there."""
    path = s.folder / "network.blob"
    s.allowed.add(path.name)
    s.network.export_model(path)
    s.check(s.core.import_model(path)(s.inputs))


def import_model(s: Scene) -> None:
    """Import, and run."""
    blob = exported(subjects().index(s.subject), s.device)
    s.check(s.core.import_model(blob)(s.inputs))


ACTIONS = (
    read,
    compile_model,
    compile_to_cache,
    infer,
    infer,
    call,
    call,
    infer_in_background,
    queue,
    export,
    import_model,
)


# -- cancellations and deadlines ---------------------------------------------------------------------------


def _moment(s: Scene) -> float:
    key = ("moment", s.device, s.subject.name)
    if key not in _times:
        s.request.infer(s.inputs)
        start = time.perf_counter()
        s.request.infer(s.inputs)
        _times[key] = time.perf_counter() - start
    return s.random.uniform(0, 2 * _times[key])


def _cancelled(s: Scene) -> str:
    note(f"cancelling on {s.device}")
    moment = _moment(s)
    in_place = s.random.random() < 0.5
    timer = threading.Timer(moment, s.request.cancel)
    timer.start()
    try:
        if in_place:
            s.check(s.request.infer(s.inputs))
        else:
            s.request.start_async(s.inputs)
            s.request.wait(PATIENCE)
            s.check(s.request.results)
    except Cancelled:
        return "cancelled"
    finally:
        timer.join()
    return "not in time: cancel"


def _late(s: Scene) -> str:
    note(f"late on {s.device}")
    s.request.start_async(s.inputs, deadline=max(1e-6, _moment(s)))
    try:
        s.request.wait(PATIENCE)
    except DeadlineExceeded as e:
        if s.request.state.name != "IDLE":
            raise Finding("stuck", "a request runs long after its deadline") from e
        return "late"
    s.check(s.request.results)
    return "not in time: deadline"


def _drained(s: Scene) -> str:
    """Many requests, all cancelled at one moment."""
    note(f"cancelling many on {s.device}")
    requests = [s.network.create_infer_request() for _ in range(4)]
    for request in requests:
        request.start_async(s.inputs)
    time.sleep(_moment(s))
    for request in requests:
        request.cancel()
    for request in requests:
        try:
            request.wait(PATIENCE)
            s.check(request.results)
        except Cancelled:
            pass
        except InferError as e:
            raise Finding(f"{type(e).__name__} of a cancelled request", str(e)) from e
    return "drained"
