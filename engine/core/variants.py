"""Packages: the networks of one model for several machines, compiled and written to one file."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from engine.blob import BlobRelease, SectionTransform, SigningKey, read_signing_key, transform_of
from engine.blob.package import PackagedSize, package_writer, section_of_variant, variant_sizes
from engine.core.build import Check
from engine.core.core import Core
from engine.errors import BlobSignatureError, TargetError, UnsupportedError
from engine.files import complete_file
from engine.plugin_api import ExecutableNetwork
from engine.runtime.comparison import Comparison, compare_results
from engine.startup import dataclass

if TYPE_CHECKING:
    from engine.ir import Model
    from engine.limits import Progress
    from engine.properties import CpuTarget


@dataclass(frozen=True, slots=True)
class Variant:
    """A variant that was compiled: its name, the network, and how long compiling took."""

    name: str
    network: ExecutableNetwork
    seconds: float


def compile_variants(
    core: Core,
    model: Model,
    targets: Sequence[CpuTarget | str],
    device: str,
    config: Mapping[str, Any] | None = None,
    *,
    progress: Progress | None = None,
) -> tuple[Variant, ...]:
    """Compile a model for each of several targets, for `export_variants`. The targets are the names of the variants.

    Raises `TargetError` for no target, one that is given twice, or one that does not exist, before anything is compiled
    for a later one; and the errors of `Core.compile_model`.
    """
    names = [str(target) for target in targets]
    if not names or "" in names or len(set(names)) < len(names):
        raise TargetError(f"variants: expected targets that differ from each other, got {', '.join(names) or 'none'}")
    variants = []
    for name in names:
        start = time.perf_counter()
        network = core.compile_model(model, device, config, target=name, progress=progress)
        variants.append(Variant(name, network, time.perf_counter() - start))
    return tuple(variants)


def export_variants(
    variants: Mapping[str, ExecutableNetwork],
    target: str | os.PathLike[str] | BinaryIO,
    *,
    sign: SigningKey | str | os.PathLike[str] | None = None,
    transform: SectionTransform | str | os.PathLike[str] | None = None,
    release: BlobRelease | str | None = None,
) -> None:
    """Write a package of networks of one model, each compiled for another machine, by the names of variants.

    `Core.import_model` imports the one that requires the most of what its machine has; of several, the first. Sections
    of 1 KiB or more that are equal are stored once. The other arguments are those of `export_model`, and apply to the
    whole file.

    Raises `BlobError` if they are not networks of one model for one device; `UnsupportedError` for a device that runs
    on others, whose needs the package could not tell; and the errors of `export_model`.
    """
    stated = None if release is None else BlobRelease.parse(release)
    key = read_signing_key(sign) if isinstance(sign, (str, os.PathLike)) else sign
    if stated is not None and key is None:
        raise BlobSignatureError(f"release {stated}: only a signed blob states one; pass `sign`")
    cipher = transform_of(transform)
    for name, network in variants.items():
        if network.parts():
            raise UnsupportedError(
                f"variant {name!r}: {network.plugin.name} runs on other devices, and a package has networks of one "
                "device; compile for that device"
            )
    blobs = {name: network.blob_writer() for name, network in variants.items()}
    writer = package_writer(blobs, {} if stated is None else stated.to_metadata())
    if cipher is not None:
        writer = writer.transformed(cipher)
    if isinstance(target, (str, os.PathLike)):
        writer.write_file(target, sign=key)
    else:
        writer.write(target, sign=key)


@dataclass(frozen=True, slots=True)
class WrittenPackage:
    """A package that was written, or would have been.

    `comparisons` has the outputs of the variants that this machine runs, by name, compared with those of the first.
    """

    variants: tuple[Variant, ...]
    byte_size: int
    sizes: Mapping[str, PackagedSize]
    comparisons: Mapping[str, tuple[Comparison, ...]]

    @property
    def is_close(self) -> bool:
        """Whether all outputs are within the tolerance."""
        return all(each.is_close for found in self.comparisons.values() for each in found)


def write_package(
    core: Core,
    variants: Sequence[Variant],
    path: Path,
    *,
    sign: str | None = None,
    transform: str | None = None,
    release: str | None = None,
    check: Check | None = None,
) -> WrittenPackage:
    """Write variants to a file as `export_variants` does, which gets its name only when it is complete.

    With `check`, each variant that this machine can run is imported from the file, and its outputs are compared with
    those of the first one before its export; if they differ, no file is created or changed. Raises `TargetError` if
    this machine runs none.
    """
    networks = {each.name: each.network for each in variants}
    with suppress(_DifferentError), complete_file(os.path.realpath(path)) as file:
        export_variants(networks, file, sign=sign, transform=transform, release=release)
        file.flush()
        os.fsync(file.fileno())
        found = core.check_blob(file.name, transform=transform)
        assert found.manifest is not None
        parts = {part.name: part.manifest for part in found.parts if part.manifest is not None}
        sizes = variant_sizes(found.manifest, {name: parts[section_of_variant(name)] for name in networks})
        able = [name for name, why in found.variants.items() if not why]
        comparisons = {} if check is None else _compared(core, networks, able, file.name, transform, check)
        written = WrittenPackage(tuple(variants), os.path.getsize(file.name), sizes, comparisons)
        if not written.is_close:
            raise _DifferentError  # so that no file is kept
    return written


def _compared(
    core: Core,
    networks: Mapping[str, ExecutableNetwork],
    able: Sequence[str],
    file: str,
    transform: str | None,
    check: Check,
) -> dict[str, tuple[Comparison, ...]]:
    """The outputs of the variants that this machine is `able` to run, imported, against those of the first of them."""
    if not able:
        raise TargetError(f"this machine runs none of the variants {', '.join(networks)}, so that none can be checked")
    expected = networks[able[0]](check.inputs)
    found = {}
    for name in able:
        result = core.import_model(file, transform=transform, variant=name)(check.inputs)
        found[name] = tuple(compare_results(result, expected, rtol=check.rtol, atol=check.atol))
    return found


class _DifferentError(Exception):
    """A variant computes other results than the first."""
