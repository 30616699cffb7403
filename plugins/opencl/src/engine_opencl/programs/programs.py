"""Compiled kernels: one program per source, shared by all users, cached on disk and in blobs."""

from __future__ import annotations

import hashlib
import logging
import os
import threading
import warnings
import weakref
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import field
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from engine.errors import DeviceError
from engine.startup import dataclass
from engine_opencl.binaries import BinaryCache, binary_cache, default_folder
from engine_opencl.children.child import has_interpreter
from engine_opencl.devices.device import OpenclDevice
from engine_opencl.plan import Argument, Buffer, Launch
from engine_opencl.programs.trial import Candidate, Trial, Tried, trial_of

_OPTIONS: Final = ("-cl-mad-enable",)
_NO_CACHE: Final[Any] = False
"""Disables pyopencl's cache, which would store each program again; its type annotations lack this value."""
_log = logging.getLogger("engine.opencl")


@dataclass(frozen=True, slots=True)
class Building:
    """A network's settings for building programs.

    Attributes:
        cache_dir: the folder of compiled programs; "" for the user's cache folder.
        trial_seconds: how long the first compilation and run of a kernel may take in a child process; 0 to compile in
            this process.
        is_shared: whether other users may change that folder, as ALLOW_SHARED_CACHE says.
        offered: the compiled programs of a trusted blob, by key. Only its network uses them, and they are not cached.
    """

    cache_dir: str = ""
    trial_seconds: float = 120.0
    offered: Mapping[str, bytes] = field(default_factory=dict)
    is_shared: bool = False

    @property
    def cache(self) -> BinaryCache:
        """The cache of compiled programs in `cache_dir`, or in the default folder."""
        folder = Path(self.cache_dir) / "opencl" if self.cache_dir else default_folder()
        return binary_cache(folder, is_shared=self.is_shared)


class Programs:
    """The programs of one device in this process, each while it is referenced. Thread-safe."""

    def __init__(self, device: OpenclDevice, trial: Trial | None = None) -> None:
        self.device = device
        self._trial = trial or trial_of(device)
        self._built: weakref.WeakValueDictionary[str, Any] = weakref.WeakValueDictionary()
        self._lock = threading.RLock()

    @property
    def options(self) -> tuple[str, ...]:
        """The options of every build; integer dot products are part of a language version, not of the default one."""
        return (*_OPTIONS, "-cl-std=CL3.0") if self.device.facts.multiplies_integers else _OPTIONS

    def key(self, source: str) -> str:
        """The key of a program: a hash of its source, the options, the device and the driver."""
        added = os.environ.get("PYOPENCL_BUILD_OPTIONS", "")  # pyopencl appends them to every build
        parts = (self.device.identity, *self.options, *([added] if added else []), source)
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()

    def build(
        self,
        launches: Iterable[Launch],
        weights: Mapping[Hashable, Callable[[], NDArray[Any]]],
        how: Building,
        *,
        skips_failures: bool = False,
    ) -> dict[str, Any]:
        """The programs of launches, by source; new ones are first tried in child processes, several at a time.

        The caller must keep references: an unreferenced program is freed, and only its binary remains on disk.

        Raises `DeviceError` with the compiler's log and the source, or with the kernel that crashed the child; with
        `skips_failures`, such programs are left out instead, as far as they are tried in child processes.
        """
        with self._lock:
            held: dict[str, Any] = {}
            new: dict[str, dict[str, Launch]] = {}
            for launch in launches:
                program = held.get(launch.source) or self._built.get(launch.source)
                if program is not None:
                    held[launch.source] = program
                else:
                    new.setdefault(launch.source, {}).setdefault(launch.entry, launch)
            cache, unknown = how.cache, []
            for source, kernels in new.items():
                key = self.key(source)
                kept = cache.get(key)
                loaded = self._load(source, kept, "from the cache") if kept is not None else None
                if loaded is not None:
                    held[source] = loaded
                elif self.has_trials(how):
                    unknown.append(_candidate(key, source, kernels, weights, how.offered.get(key, b"")))
                else:
                    held[source] = self._compile_here(source, how.offered.get(key, b""))
            if unknown:
                held |= self._try(unknown, how, cache, skips_failures)
            return held

    def has_trials(self, how: Building) -> bool:
        """Whether new programs are tried in child processes."""
        return bool(how.trial_seconds) and has_interpreter()

    def program(self, source: str) -> Any:
        """The program of a source, compiled in this process unless `build` has built it."""
        with self._lock:
            built = self._built.get(source)
            return built if built is not None else self._compile_here(source)

    def binaries(self, built: Mapping[str, Any]) -> dict[str, bytes]:
        """The binaries of programs, given by source, by key; without those that the driver does not provide."""
        import pyopencl as cl

        made = {self.key(source): program.get_info(cl.program_info.BINARIES)[0] for source, program in built.items()}
        return {key: bytes(binary) for key, binary in made.items() if binary}

    # -- building -----------------------------------------------------------------------------------------

    def _try(self, unknown: list[Candidate], how: Building, cache: BinaryCache, skips_failures: bool) -> dict[str, Any]:
        """Try candidates in children, and load those that succeed."""
        held: dict[str, Any] = {}
        waiting = unknown
        while waiting:
            done = 0
            retry: list[Candidate] = []
            for result in self._trial.run(waiting, self.options, how.trial_seconds):
                done += 1
                if result.crashed and result.candidate.binary:
                    _notice(self.device, "from the blob", f"the process that tried it {result.crashed}")
                    retry.append(_without_binary(result.candidate))
                elif not (skips_failures and (result.crashed or result.failed)):
                    held[result.candidate.source] = self._taken(result, cache)
            # If one binary crashes the child, the others of the blob are not trusted either: each crash costs seconds.
            waiting = [*retry, *(map(_without_binary, waiting[done:]) if retry else waiting[done:])]
        return held

    def _taken(self, tried: Tried, cache: BinaryCache) -> Any:
        source = tried.candidate.source
        if tried.crashed:
            raise _error(
                source,
                f"the driver of {self.device.identity} fails on kernel {tried.candidate.kernels}: the process that "
                f"tried it {tried.crashed}; use another device or driver, or place the operation on another device by "
                "HETERO",
            )
        if tried.refused:
            _notice(self.device, "from the blob", tried.refused)
        if tried.failed:
            raise self._build_error(source, tried.failed)
        if tried.note:
            _log.info("OPENCL: %s", tried.note)
        is_offered = bool(tried.candidate.binary) and not tried.refused
        if tried.binary and not is_offered:
            cache.put(tried.candidate.key, tried.binary)
        loaded = self._load(source, tried.binary, "from a child process", is_shared=not is_offered)
        return loaded if loaded is not None else self._compile_here(source)

    def _load(self, source: str, binary: bytes, which: str, *, is_shared: bool = True) -> Any | None:
        """The program of a binary, also for other networks if it is shared; None if no binary works."""
        import pyopencl as cl

        if not binary:
            return None
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", cl.CompilerWarning)
                program = cl.Program(self.device.context, [self.device.handle], [binary]).build(list(self.options))
        except cl.Error as e:
            _notice(self.device, which, str(e))
            return None
        if is_shared:
            self._built[source] = program
        return program

    def _compile_here(self, source: str, offered: bytes = b"") -> Any:
        import pyopencl as cl

        loaded = self._load(source, offered, "from the blob", is_shared=False)
        if loaded is not None:
            return loaded
        try:
            with warnings.catch_warnings():
                # pyopencl reports compiler output as a warning, even on success.
                warnings.simplefilter("ignore", cl.CompilerWarning)
                program = cl.Program(self.device.context, source).build(list(self.options), cache_dir=_NO_CACHE)
        except cl.Error as e:
            raise self._build_error(source, str(e)) from e
        self._built[source] = program
        return program

    def _build_error(self, source: str, log: str) -> DeviceError:
        options = " ".join(self.options)
        return _error(source, f"{self.device.facts.name} cannot compile a kernel with options {options}: {log}")


def _candidate(
    key: str,
    source: str,
    kernels: Mapping[str, Launch],
    weights: Mapping[Hashable, Callable[[], NDArray[Any]]],
    binary: bytes,
) -> Candidate:
    def size(argument: Argument) -> int | np.generic:
        if not isinstance(argument, Buffer):
            return argument
        return argument.byte_size if argument.weight is None else weights[argument.weight]().nbytes

    launches = tuple(kernels.values())
    sizes = tuple(tuple(size(argument) for argument in launch.arguments) for launch in launches)
    return Candidate(key, source, launches, sizes, binary)


def _without_binary(candidate: Candidate) -> Candidate:
    return Candidate(candidate.key, candidate.source, candidate.launches, candidate.sizes)


def _notice(device: OpenclDevice, which: str, why: str) -> None:
    _log.warning(
        "OPENCL: a compiled program %s cannot be used on %s and is compiled again from source: %s",
        which,
        device.identity,
        why,
    )


def _error(source: str, message: str) -> DeviceError:
    """An error whose traceback shows the source, which is longer than a message may be."""
    error = DeviceError(f"OPENCL: {message}")
    error.add_note(_numbered(source))
    return error


def _numbered(source: str) -> str:
    return "\n".join(f"{number:4d} {line}" for number, line in enumerate(source.splitlines(), 1))
