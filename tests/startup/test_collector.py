"""A paused collector: what a program pays after the pause, and that its own settings of the collector stay."""

from __future__ import annotations

import gc
import subprocess
import sys
from collections.abc import Iterator
from types import ModuleType

import pytest

from engine.startup import paused_collector


@pytest.fixture
def modules() -> Iterator[list[str]]:
    """Names of modules that a test may load; they are removed after it."""
    names = [f"{__name__}.loaded{index}" for index in range(100)]
    yield names
    for name in names:
        sys.modules.pop(name, None)


@pytest.fixture
def thawed() -> Iterator[None]:
    """No frozen objects: `conftest.py` freezes those that it has imported."""
    gc.unfreeze()
    yield
    gc.freeze()


def load(names: list[str]) -> list[list[object]]:
    """What importing modules does: they are known, and they keep objects."""
    sys.modules.update({name: ModuleType(name) for name in names})
    return [[] for _ in range(10_000)]


@pytest.mark.usefixtures("thawed")
@pytest.mark.skipif(sys.version_info >= (3, 14), reason="its generations are others")
def test_the_objects_of_modules_are_not_visited_when_the_pause_ends(modules: list[str]) -> None:
    with paused_collector():
        kept = load(modules)
    assert len(kept) > len(gc.get_objects(generation=0)) + len(gc.get_objects(generation=1))


@pytest.mark.usefixtures("thawed")
@pytest.mark.skipif(sys.version_info >= (3, 14), reason="its generations are others")
def test_the_objects_of_a_graph_stay_young(modules: list[str]) -> None:
    """Or the garbage of many compilations would become old without being counted, and stay."""
    with paused_collector():
        kept = load(modules[:1])
    assert len(kept) < len(gc.get_objects(generation=0)) + len(gc.get_objects(generation=1))


def test_frozen_objects_stay_frozen(modules: list[str]) -> None:
    gc.freeze()
    frozen = gc.get_freeze_count()
    with paused_collector():
        load(modules)
    assert gc.get_freeze_count() > frozen // 2  # some may have died


@pytest.mark.parametrize("enabled", [True, False])
def test_the_collector_is_as_before(enabled: bool) -> None:
    before = gc.isenabled()
    (gc.enable if enabled else gc.disable)()
    try:
        with paused_collector():
            assert not gc.isenabled()
        assert gc.isenabled() is enabled
    finally:
        (gc.enable if before else gc.disable)()


FORK = """
import gc, os, threading
from engine.startup import paused_collector
begun, ended = threading.Event(), threading.Event()
def pause():
    with paused_collector():
        begun.set()
        ended.wait()
thread = threading.Thread(target=pause)
thread.start()
begun.wait()
assert not gc.isenabled()
child = os.fork()
if not child:
    os._exit(not gc.isenabled())
_, status = os.waitpid(child, 0)
ended.set()
thread.join()
assert gc.isenabled()
assert status == 0, "the child's collector is disabled"
"""


def test_a_pause_of_another_thread_does_not_last_in_a_forked_process() -> None:
    """Or a worker that is forked while a server compiles never frees cycles."""
    done = subprocess.run([sys.executable, "-c", FORK], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
