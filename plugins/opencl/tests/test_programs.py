"""Compiled programs: what a driver does to a process, what is kept of them, and what a blob brings.

If this fails, a driver's compiler ends the user's application, or a foreign binary is run as if it were ours.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections.abc import Iterator
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pyopencl as cl
import pytest
from engine_opencl.children.child import WORKER as TRIAL_WORKER
from engine_opencl.devices.device import OpenclDevice, find_devices
from engine_opencl.plan import Buffer, Launch
from engine_opencl.programs import bundles
from engine_opencl.programs.programs import Building, Programs
from engine_opencl.programs.trial import Trial

from engine import Core
from engine.blob import BlobReader, BlobWriter, make_key_files
from engine.errors import BlobSignatureError, DeviceError
from engine.testing.networks import seeded_network

# A stand-in for a driver: it does what the source says to the child, and otherwise what the real one does.
WORKER = f"""
import ctypes, os, runpy, sys, time
worker = runpy.run_path({str(TRIAL_WORKER)!r})
device = worker["_Device"]
tried = device.tried
def watched(self, item):
    if "KILL_ME" in item["source"] and not item["binary"]:
        print("LLVM ERROR: cannot select", file=sys.stderr, flush=True)
        os.abort()
    if "HANG" in item["source"]:
        time.sleep(60)
    if item["binary"] and "BAD_BINARY" in item["source"]:
        ctypes.string_at(0)
    return tried(self, item)
device.tried = watched
worker["main"]()
"""


@pytest.fixture
def device() -> OpenclDevice:
    return find_devices()[0]


@pytest.fixture
def programs(device: OpenclDevice, tmp_path: Path) -> Programs:
    script = tmp_path / "worker.py"
    script.write_text(WORKER, encoding="utf-8")
    return Programs(device, Trial(device, [sys.executable, "-P", str(script)]))


@pytest.fixture
def notices(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    with caplog.at_level(logging.INFO, "engine.opencl"):
        yield caplog


def test_a_program_compiled_with_other_options_has_another_key(
    programs: Programs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """pyopencl adds options from the environment; a network must not load what they made after they are gone."""
    keys = []
    for options in ("", "-cl-opt-disable", "-g"):
        monkeypatch.setenv("PYOPENCL_BUILD_OPTIONS", options)
        keys.append(programs.key("kernel void k() {}"))
    assert len(set(keys)) == 3


def launch(mark: str, *, body: str = "x[get_global_id(0)] += n;") -> Launch:
    """A kernel that no other test compiles."""
    source = f"// {mark}\n__kernel void add(__global float* x, int n) {{ {body} }}\n"
    return Launch(source, "add", (Buffer(64), np.int32(3)), (16,), (), "node", "Add")


def build(programs: Programs, how: Building, *launches: Launch) -> dict[str, Any]:
    return programs.build(launches, {}, how)


def how(folder: Path, **options: Any) -> Building:
    return Building(str(folder), **options)


def kept(folder: Path) -> list[Path]:
    return sorted((folder / "opencl").glob("*.program"))


def test_a_driver_that_aborts_does_not_end_the_application(programs: Programs, tmp_path: Path) -> None:
    with pytest.raises(DeviceError, match=r"(?s)`add`.*SIGABRT.*LLVM ERROR: cannot select.*KILL_ME"):
        build(programs, how(tmp_path), launch("first"), launch("KILL_ME"), launch("last"))
    assert len(kept(tmp_path)) == 1
    build(programs, how(tmp_path), launch("last"))
    assert len(kept(tmp_path)) == 2


def test_a_compiler_that_does_not_end_is_stopped(programs: Programs, tmp_path: Path) -> None:
    build(programs, how(tmp_path), launch("warm"))
    with pytest.raises(DeviceError, match=r"`add`.*did not end within 0.2 s \(KERNEL_TRIAL_SECONDS sets this limit"):
        build(programs, how(tmp_path, trial_seconds=0.2), launch("HANG"))


def answer(programs: Programs, launch: Launch) -> float:
    """The number that a kernel writes into a zero element."""
    context, value = programs.device.context, np.zeros(16, np.float32)
    buffer = cl.Buffer(context, cl.mem_flags.COPY_HOST_PTR, hostbuf=value)
    kernel = cl.Kernel(programs.program(launch.source), launch.kernel)
    kernel.set_args(buffer, np.int32(0))
    queue = programs.device.new_queue()
    cl.enqueue_nd_range_kernel(queue, kernel, (1,), None)
    cl.enqueue_copy(queue, value, buffer)
    return float(value[0])


def test_each_source_gets_its_own_program(programs: Programs, tmp_path: Path) -> None:
    """For many sources that several children compile concurrently; also after a failed build."""
    many = [launch(str(number), body=f"x[0] = {number};") for number in range(11)]
    with pytest.raises(DeviceError, match="undeclared_name"):
        build(programs, how(tmp_path), *many[:1], launch("bad", body="undeclared_name = 1;"), *many[1:5])
    build(programs, how(tmp_path), *many[5:])
    build(programs, how(tmp_path), *many)
    assert [answer(programs, each) for each in many] == list(range(11))
    assert len(kept(tmp_path)) == 11


def test_what_was_tried_is_not_tried_again(programs: Programs, device: OpenclDevice, tmp_path: Path) -> None:
    build(programs, how(tmp_path), launch("once"))
    other = Programs(device, Trial(device, ["/nonexistent"]))
    build(other, how(tmp_path), launch("once"))
    with pytest.raises(DeviceError, match=r"cannot be started .*KERNEL_TRIAL_SECONDS"):
        build(other, how(tmp_path), launch("never"))
    build(other, how(tmp_path, trial_seconds=0), launch("never"))


def test_a_child_that_cannot_start_says_so(device: OpenclDevice, tmp_path: Path) -> None:
    broken = Programs(device, Trial(device, [sys.executable, "-c", "raise SystemExit(7)"]))
    with pytest.raises(DeviceError, match=r"exited with code 7.*KERNEL_TRIAL_SECONDS"):
        build(broken, how(tmp_path), launch("x"))


@pytest.mark.parametrize("seconds", [0.0, 120.0])
def test_a_build_failure_shows_log_options_and_source(programs: Programs, tmp_path: Path, seconds: float) -> None:
    with pytest.raises(DeviceError, match=r"(?s)-cl-mad-enable.*undeclared_name.*2 __kernel void add"):
        build(programs, how(tmp_path, trial_seconds=seconds), launch("bad", body="undeclared_name = 1;"))
    assert not kept(tmp_path)


def test_a_damaged_file_is_compiled_again(
    programs: Programs, device: OpenclDevice, tmp_path: Path, notices: pytest.LogCaptureFixture
) -> None:
    build(programs, how(tmp_path), launch("damaged"))
    (path,) = kept(tmp_path)
    whole = path.read_bytes()
    for damaged in (b"", whole[:-1], whole[:-1] + bytes([whole[-1] ^ 1]), whole[:20]):
        path.write_bytes(damaged)
        notices.clear()
        build(Programs(device), how(tmp_path), launch("damaged"))
        assert "is damaged" in notices.text
        assert path.read_bytes()[:16] == whole[:16]


def test_a_folder_that_cannot_be_written_is_no_failure(
    programs: Programs, tmp_path: Path, notices: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "opencl").write_text("a file, not a folder")
    build(programs, how(tmp_path), launch("kept nowhere"))
    assert "cannot be cached" in notices.text


@pytest.mark.parametrize("seconds", [0.0, 120.0])
def test_an_offered_binary_that_is_none_is_compiled_from_source(
    programs: Programs, tmp_path: Path, notices: pytest.LogCaptureFixture, seconds: float
) -> None:
    forged = launch("forged")
    offered = {programs.key(forged.source): b"\x7fELF and nothing else"}
    built = build(programs, how(tmp_path, trial_seconds=seconds, offered=offered), forged)
    assert "from the blob cannot be used" in notices.text
    assert programs.binaries(built)


def test_an_offered_binary_that_crashes_the_driver(
    programs: Programs, tmp_path: Path, notices: pytest.LogCaptureFixture
) -> None:
    bad = launch("BAD_BINARY")
    build(programs, how(tmp_path, offered={programs.key(bad.source): b"crash"}), bad, launch("good"))
    assert signal.SIGSEGV.name in notices.text
    assert len(kept(tmp_path)) == 2


def test_a_launch_that_the_device_does_not_allow_is_told_when_it_is_run(
    programs: Programs, tmp_path: Path, notices: pytest.LogCaptureFixture
) -> None:
    """The trial compiles it; running it raises the error, with the node's name."""
    wide = Launch(launch("wide").source, "add", (Buffer(64), np.int32(1)), (1 << 20,), (1 << 20,), "node", "Add")
    build(programs, how(tmp_path), wide)
    assert "was compiled but not run" in notices.text


# -- blobs ------------------------------------------------------------------------------------------------------


def exported(folder: Path) -> tuple[bytes, Any, Any]:
    small = seeded_network("mlp", small=True)
    network = Core().compile_model(small.model, "OPENCL", {"CACHE_DIR": str(folder)})
    stream = BytesIO()
    network.export_model(stream)
    return stream.getvalue(), small.inputs, network(small.inputs)


def rewritten(blob: bytes, change: Any) -> bytes:
    """A well-formed blob with other sections."""
    with BlobReader(blob) as reader:
        manifest = reader.manifest
        sections = {name: bytes(reader.section(name)) for name in reader.section_names}
    writer = BlobWriter(manifest)
    for name, data in change(sections).items():
        writer.add_section(name, data)
    stream = BytesIO()
    writer.write(stream)
    return stream.getvalue()


def answers(blob: bytes, inputs: Any, folder: Path, *, is_trusted: bool = True) -> list[Any]:
    network = Core().import_model(blob, "OPENCL", {"CACHE_DIR": str(folder), "TRUST_BLOB": is_trusted})
    return list(network(inputs).values())


def test_a_blob_brings_its_programs(tmp_path: Path, notices: pytest.LogCaptureFixture) -> None:
    blob, inputs, right = exported(tmp_path / "a")
    with BlobReader(blob) as reader:
        assert any(name.startswith("programs/") for name in reader.section_names)
    notices.clear()
    for value, expected in zip(answers(blob, inputs, tmp_path / "b"), right.values(), strict=True):
        np.testing.assert_array_equal(value, expected)
    assert "compiled again" not in notices.text
    assert not kept(tmp_path / "b")  # where other networks would find them


def test_programs_of_a_blob_that_is_not_trusted_are_not_used(tmp_path: Path) -> None:
    blob, inputs, right = exported(tmp_path / "a")
    network = Core().import_model(blob, "OPENCL", {"CACHE_DIR": str(tmp_path / "b")})
    assert network.get_config("TRUST_BLOB") is False
    for value, expected in zip(network(inputs).values(), right.values(), strict=True):
        np.testing.assert_array_equal(value, expected)
    assert [each.name for each in kept(tmp_path / "b")] == [each.name for each in kept(tmp_path / "a")]


def signed(network: Any, folder: Path) -> tuple[bytes, Core]:
    """The network's signed blob, and a core that imports only what this key has signed."""
    secret, public = make_key_files(folder / "release.key", "release", "ed25519")
    stream, core = BytesIO(), Core()
    network.export_model(stream, sign=secret)
    core.set_property({"TRUSTED_KEYS": [public], "REQUIRE_SIGNATURE": True, "CACHE_DIR": str(folder / "b")})
    return stream.getvalue(), core


@pytest.mark.parametrize("device", ["OPENCL", "HETERO:OPENCL"])
def test_programs_of_a_signed_blob_are_used(tmp_path: Path, notices: pytest.LogCaptureFixture, device: str) -> None:
    """Those of the parts of a blob, too; and nothing else is imported."""
    small = seeded_network("mlp", small=True)
    network = Core().compile_model(small.model, device)
    blob, core = signed(network, tmp_path)
    notices.clear()
    imported = core.import_model(blob)
    for value, expected in zip(imported(small.inputs).values(), network(small.inputs).values(), strict=True):
        np.testing.assert_array_equal(value, expected)
    assert "compiled programs are not used" not in notices.text
    assert not kept(tmp_path / "b"), "no program had to be compiled"
    stream = BytesIO()
    network.export_model(stream)
    with pytest.raises(BlobSignatureError, match="is not signed"):
        core.import_model(stream.getvalue())


def claiming(blob: bytes, config: dict[str, Any]) -> bytes:
    """The blob, with a configuration that its author wrote into its manifest."""
    with BlobReader(blob) as reader:
        writer = BlobWriter(replace(reader.manifest, config={**reader.manifest.config, **config}))
        for name in reader.section_names:
            writer.add_section(name, reader.section(name))
        stream = BytesIO()
        writer.write(stream)
    return stream.getvalue()


def test_a_blob_cannot_declare_itself_trusted(tmp_path: Path, notices: pytest.LogCaptureFixture) -> None:
    blob, _, _ = exported(tmp_path / "a")
    theirs = {"TRUST_BLOB": True, "CACHE_DIR": str(tmp_path / "theirs"), "KERNEL_TRIAL_SECONDS": 0.0}
    network = Core().import_model(claiming(blob, theirs), "OPENCL", {"CACHE_DIR": str(tmp_path / "b")})
    assert [network.get_config(key) for key in theirs] == [False, str(tmp_path / "b"), 120.0]
    assert "compiled programs are not used" in notices.text
    assert not (tmp_path / "theirs").exists()


def test_nor_can_it_for_its_parts(tmp_path: Path, notices: pytest.LogCaptureFixture) -> None:
    small, core, stream = seeded_network("mlp", small=True), Core(), BytesIO()
    core.set_property({"CACHE_DIR": str(tmp_path)})
    core.compile_model(small.model, "HETERO:OPENCL").export_model(stream)
    notices.clear()
    network = core.import_model(claiming(stream.getvalue(), {"DEVICE_PROPERTIES": {"OPENCL": {"TRUST_BLOB": True}}}))
    assert network.get_config("DEVICE_PROPERTIES") == {}
    assert "compiled programs are not used" in notices.text


@pytest.mark.parametrize("seconds", [0.0, 120.0])
def test_a_program_of_a_blob_is_not_given_to_other_networks(
    device: OpenclDevice, tmp_path: Path, seconds: float
) -> None:
    """Another process, or another network of this one, gets what the source says."""
    real = Programs(device)
    asked, forged = launch("asked"), launch("asked", body="x[0] = 42;")
    offered = {real.key(asked.source): next(iter(real.binaries({forged.source: real.program(forged.source)}).values()))}
    used = build(real, how(tmp_path, trial_seconds=seconds, offered=offered), asked)
    assert list(real.binaries(used).values()) == list(offered.values())
    assert not kept(tmp_path)
    for others in (real, Programs(device)):
        built = build(others, how(tmp_path, trial_seconds=seconds), asked)
        assert built[asked.source] is not used[asked.source]
        assert list(others.binaries(built).values()) != list(offered.values())


def test_a_blob_of_another_driver_is_compiled_again(tmp_path: Path, notices: pytest.LogCaptureFixture) -> None:
    blob, inputs, right = exported(tmp_path / "a")
    other = rewritten(blob, lambda sections: sections | {"compiler": b"Another GPU / 1.0"})
    for value, expected in zip(answers(other, inputs, tmp_path / "b"), right.values(), strict=True):
        np.testing.assert_array_equal(value, expected)
    assert "Another GPU / 1.0" in notices.text


def test_forged_programs_are_compiled_again(tmp_path: Path, notices: pytest.LogCaptureFixture) -> None:
    blob, inputs, right = exported(tmp_path / "a")
    forged = rewritten(
        blob,
        lambda sections: {name: os.urandom(99) if "programs/" in name else data for name, data in sections.items()},
    )
    for value, expected in zip(answers(forged, inputs, tmp_path / "b"), right.values(), strict=True):
        np.testing.assert_array_equal(value, expected)
    assert "are damaged or belong to other kernels" in notices.text


def test_programs_of_other_sources_are_compiled_again(
    tmp_path: Path, notices: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A driver does not confuse them: a kernel of the same name and arguments would give wrong results."""
    monkeypatch.setattr(bundles, "_SIZE", 1)  # several programs
    blob, inputs, right = exported(tmp_path / "a")

    def swapped(sections: dict[str, bytes]) -> dict[str, bytes]:
        names = [name for name in sections if name.startswith("programs/")]
        return sections | {name: sections[other] for name, other in zip(names, names[1:] + names[:1], strict=True)}

    for value, expected in zip(answers(rewritten(blob, swapped), inputs, tmp_path / "b"), right.values(), strict=True):
        np.testing.assert_array_equal(value, expected)
    assert "are damaged or belong to other kernels" in notices.text


def test_a_kernel_of_other_arguments_is_compiled_again(
    device: OpenclDevice, tmp_path: Path, notices: pytest.LogCaptureFixture
) -> None:
    real = Programs(device)
    asked = launch("asked")
    other = "__kernel void add(__global float* x) { x[0] = 1; }"
    offered = {real.key(asked.source): next(iter(real.binaries({other: real.program(other)}).values()))}
    build(real, how(tmp_path, offered=offered), asked)
    assert "its add takes 1 arguments, expected 2" in notices.text
