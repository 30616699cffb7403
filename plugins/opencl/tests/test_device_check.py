"""The check of a device before its first use, and the record of its result.

If this fails, a broken driver gives wrong answers or ends the application, or every start of one takes a second longer.
"""

from __future__ import annotations

import json
import re
import sys
import time
from pathlib import Path
from typing import Any

import pyopencl as cl
import pytest
from engine_opencl.binaries import BinaryCache, default_folder
from engine_opencl.children import check_worker
from engine_opencl.devices import device, device_check
from engine_opencl.devices.device import find_devices
from engine_opencl.devices.device_check import MEMORY_KINDS, Verdict, verdict

from engine import Core
from engine.errors import DeviceNotFoundError


@pytest.fixture
def first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A device without a cached verdict."""
    found = find_devices()[0]
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return found


def answering(monkeypatch: pytest.MonkeyPatch, body: str) -> None:
    """Make children run this instead of the check."""
    monkeypatch.setattr(device_check, "_COMMAND", (sys.executable, "-c", body))


def found_out(first: Any) -> Verdict:
    return verdict(first.handle, first.position)


def test_a_device_is_checked_once(first: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    found = found_out(first)
    assert found == Verdict("", first.memory_kind)
    answering(monkeypatch, "raise SystemExit(7)")
    assert found_out(first) == found


def test_a_driver_that_aborts_is_left_out_with_the_reason(first: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    answering(monkeypatch, "import os; os.write(2, b'LLVM ERROR: no such CPU'); os.abort()")
    monkeypatch.setattr(device, "_found", [])
    name = re.escape(first.facts.name)
    with pytest.raises(DeviceNotFoundError, match=rf"{name}: .*SIGABRT.*LLVM ERROR: no such CPU.*pip install"):
        find_devices()
    assert "SIGABRT" in str(Core().unavailable_devices["OPENCL"])


def test_a_driver_that_hangs_is_left_out(first: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_check, "_SECONDS", 0.2)
    answering(monkeypatch, "import time; time.sleep(60)")
    assert "did not end within 0.2 s" in found_out(first).failed


def test_what_failed_is_tried_again_after_a_day(first: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as broken:
        answering(broken, "raise SystemExit(7)")
        assert "exited with code 7" in found_out(first).failed
    assert "exited with code 7" in found_out(first).failed
    tomorrow = time.time() + 90_000
    monkeypatch.setattr(time, "time", lambda: tomorrow)
    assert not found_out(first).failed


@pytest.mark.parametrize("content", [b"", b"[]", b"{", b'{"failed": "", "memory": "odd", "at": 0}', b'{"at": "x"}'])
def test_a_verdict_that_cannot_be_read_is_found_out_again(first: Any, content: bytes) -> None:
    BinaryCache(default_folder()).put(device_check._key(first.handle), content)
    assert found_out(first) == Verdict("", first.memory_kind)
    kept = BinaryCache(default_folder()).get(device_check._key(first.handle))
    assert kept is not None
    assert json.loads(kept)["memory"] in MEMORY_KINDS


def test_where_no_process_can_be_started_the_check_is_made_in_this_one(
    first: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device_check, "_COMMAND", ("/nonexistent",))
    assert found_out(first) == Verdict("", first.memory_kind)


# -- what the check sees ------------------------------------------------------------------------------------------


def test_a_compiler_that_refuses(first: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check_worker, "SOURCE", "__kernel void check(no such type) {}")
    answer = check_worker.checked(first.handle)
    assert list(answer) == ["failed"]
    assert "options: " in answer["failed"]


def test_a_kernel_that_gives_wrong_results(first: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    source = "__kernel void check(__global const int* x, __global int* y) { y[get_global_id(0)] = x[0]; }"
    monkeypatch.setattr(check_worker, "SOURCE", source)
    failed = check_worker.checked(first.handle)["failed"]
    assert "a minimal test kernel gives wrong results: got 0 for item 1, expected 4" in failed


def test_a_compiler_that_compares_wrongly(first: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """As Mesa 22.3 does after widening: lookups by negative indices would give other elements."""
    monkeypatch.setattr(check_worker, "SOURCE", check_worker.SOURCE.replace("wide < 0", "false"))
    failed = check_worker.checked(first.handle)["failed"]
    assert "a minimal test kernel gives wrong results: got -20 for item 1, expected -19" in failed


def test_memory_that_is_not_what_the_driver_claims(first: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory with a stale copy is not used in place."""
    original = check_worker._Check._launched

    def stale(self: Any, x: Any, y: Any) -> Any:
        return original(self, x, cl.Buffer(self.context, cl.mem_flags.READ_WRITE, y.size))

    broken: list[str] = []
    for way in ("_shared", "_mapped"):
        run = getattr(check_worker._Check, way)

        def lying(self: Any, like: Any, run: Any = run) -> Any:
            inner = run(self, like)

            def once(values: Any) -> Any:
                with monkeypatch.context() as patched:
                    patched.setattr(check_worker._Check, "_launched", stale)
                    return inner(values)

            return once

        monkeypatch.setattr(check_worker._Check, way, lying)
        broken.append(check_worker.checked(first.handle)["memory"])
    assert first.memory_kind == "staged" or broken[0] in ("mapped", "staged")
    assert broken[1] == "staged"
