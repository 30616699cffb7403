"""Blobs of one model for several devices and configurations, with the check that they compute the same."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import field
from pathlib import Path
from typing import Any, BinaryIO

from engine.blob import BlobRelease, SectionTransform, SigningKey, WeightsFile
from engine.core.core import Core
from engine.errors import BlobError
from engine.files import complete_file
from engine.ir import Model
from engine.limits import Progress
from engine.plugin_api import ExecutableNetwork
from engine.runtime.comparison import Comparison, compare_results
from engine.startup import dataclass


@dataclass(frozen=True, slots=True)
class Build:
    """A blob to be made: for which device, with which configuration, and in which file.

    `target` is another machine than this one, as of `Core.compile_model`; None for this one.
    """

    device: str
    path: Path
    config: Mapping[str, Any] = field(default_factory=dict)
    target: str | None = None


@dataclass(frozen=True, slots=True)
class Packaging:
    """How networks are exported: the options of `ExecutableNetwork.export_model`."""

    sign: SigningKey | None = None
    transform: SectionTransform | None = None
    weights: WeightsFile | None = None
    release: BlobRelease | None = None


@dataclass(frozen=True, slots=True)
class Check:
    """How blobs are checked: each is imported, and its outputs are compared with the first device's.

    Attributes:
        inputs: the value of each input.
        rtol, atol: the tolerance, as of `compare_results`.
    """

    inputs: Mapping[str, Any]
    rtol: float = 1e-3
    atol: float = 1e-5


@dataclass(frozen=True, slots=True)
class Built:
    """A blob that was made, or would have been: `comparisons` has one entry for each output that was compared."""

    build: Build
    compile_seconds: float
    byte_size: int
    comparisons: tuple[Comparison, ...] = ()

    @property
    def is_close(self) -> bool:
        """Whether all outputs are within the tolerance."""
        return all(comparison.is_close for comparison in self.comparisons)


@dataclass(frozen=True, slots=True)
class CompiledBuild:
    """A network that is compiled and not yet exported."""

    build: Build
    network: ExecutableNetwork
    seconds: float


def compile_builds(
    core: Core, model: Model, builds: Sequence[Build], progress: Progress | None = None
) -> list[CompiledBuild]:
    """Compile the model for each build, in order; writes no file. Raises the errors of `Core.compile_model`."""
    compiled = []
    for build in builds:
        start = time.perf_counter()
        network = core.compile_model(model, build.device, build.config, target=build.target, progress=progress)
        compiled.append(CompiledBuild(build, network, time.perf_counter() - start))
    return compiled


def export_builds(
    core: Core, compiled: Sequence[CompiledBuild], packaging: Packaging | None = None, *, check: Check | None = None
) -> list[Built]:
    """Write the blob of each network; files get their names only when all of them are complete.

    With `check`, the blobs are written only if all outputs of all blobs, imported from their files, are as close as it
    demands to the outputs of the first network before its export; otherwise no file is created or changed.

    Raises `BlobError` if a file cannot be written, `UnsupportedError` if a device cannot export, and, with `check`, the
    errors of importing and inferring.
    """
    packaging = packaging or Packaging()
    for each in compiled:
        if each.build.path.is_dir():
            raise BlobError(f"cannot write blob {each.build.path}: it is a folder; add a file name")
    if check is None and len(compiled) == 1:
        for each in compiled:
            _export(each.network, each.build.path, packaging)
        return [Built(each.build, each.seconds, each.build.path.stat().st_size) for each in compiled]
    built: list[Built] = []
    try:
        with ExitStack() as files:
            expected = {} if check is None else compiled[0].network(check.inputs)
            for each in compiled:
                file = files.enter_context(complete_file(os.path.realpath(each.build.path)))
                built.append(_export_and_check(core, each, file, packaging, check, expected))
            if not all(each.is_close for each in built):
                raise _Different  # so that no file is kept
    except _Different:
        pass
    return built


class _Different(Exception):
    """A blob computes other results than its network."""


def _export_and_check(
    core: Core,
    each: CompiledBuild,
    file: BinaryIO,
    packaging: Packaging,
    check: Check | None,
    expected: Mapping[str, Any],
) -> Built:
    _export(each.network, file, packaging)
    file.flush()
    os.fsync(file.fileno())
    if check is None:
        return Built(each.build, each.seconds, os.path.getsize(file.name))
    weights = None if packaging.weights is None else packaging.weights.path
    imported = core.import_model(file.name, transform=packaging.transform, weights=weights)
    result = imported(check.inputs)
    comparisons = compare_results(result, expected, rtol=check.rtol, atol=check.atol)
    return Built(each.build, each.seconds, os.path.getsize(file.name), tuple(comparisons))


def _export(network: ExecutableNetwork, target: Path | BinaryIO, packaging: Packaging) -> None:
    network.export_model(
        target,
        sign=packaging.sign,
        transform=packaging.transform,
        weights=packaging.weights,
        release=packaging.release,
    )
