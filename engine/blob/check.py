"""Checks from its header and manifest alone whether a blob would load on this host."""

from __future__ import annotations

import enum
from collections.abc import Collection, Mapping
from dataclasses import field, replace

from engine.blob.bound import WeightsFile
from engine.blob.container import read_prologue
from engine.blob.manifest import BlobManifest
from engine.blob.parts import BlobPart, read_parts
from engine.blob.requirements import as_set, missing_of
from engine.blob.signature import BlobSignature
from engine.blob.source import BlobInput, open_source
from engine.blob.transform import SectionTransform
from engine.errors import BlobIncompatibleError
from engine.startup import dataclass

PACKAGE = "variants"
"""The requirement that tells a package."""
_EXPORT_AGAIN = "compile the model again and export it"


class BlobAnswer(enum.StrEnum):
    """Whether a blob loads on this host."""

    RUNS = "runs"
    RECOMPILE = "runs; recompile to be faster"
    """It loads, and computes the same; `BlobCheck.advice` says what compiling again would make faster."""
    NO = "no"


@dataclass(frozen=True, slots=True)
class BlobCheck:
    """The result of `check_blob`: why a blob would not load on this host, one sentence per reason.

    `manifest` is None only if the blob has another format version. `signature` is what the blob states, and
    `is_trusted` whether a trusted key has made it, which only `Core.check_blob` verifies. `parts` are the blobs in the
    blob, of a device that runs on others, with those in them; only `Core.check_blob` looks for them. Of a package,
    `variant` is the one that would be imported, and `variants` has the reasons against each, by name.
    """

    reasons: tuple[str, ...]
    manifest: BlobManifest | None
    signature: BlobSignature | None = None
    is_trusted: bool = False
    parts: tuple[BlobPart, ...] = ()
    advice: tuple[str, ...] = ()
    """What would be faster if the model was compiled again on this host: one sentence each."""
    variant: str = ""
    variants: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def answer(self) -> BlobAnswer:
        """The result in short."""
        if self.reasons:
            return BlobAnswer.NO
        return BlobAnswer.RECOMPILE if self.advice else BlobAnswer.RUNS

    @property
    def compatible(self) -> bool:
        """Whether the blob can be loaded."""
        return not self.reasons

    def require(self) -> None:
        """Raise `BlobIncompatibleError` with all reasons unless the blob is compatible."""
        if self.reasons:
            raise BlobIncompatibleError("; ".join(self.reasons))


def check_blob(
    source: BlobInput,
    *,
    device: str | None = None,
    plugin_name: str | None = None,
    plugin_version: str | None = None,
    engine_version: str | None = None,
    api_version: str | None = None,
    available: Mapping[str, str | Collection[str]] | None = None,
) -> BlobCheck:
    """Check whether the blob would load on this host. Sections are neither read nor hashed.

    See `check_manifest` for the rules. The blob's sizes are checked against the size of the file, of
    the buffer, or of a seekable stream, whose position is then restored; any other stream is read up to the
    end of the manifest.

    Another format version is returned as a reason. Raises `BlobFormatError` if the data is damaged or not a blob,
    `BlobError` if it cannot be read.
    """
    with open_source(source) as opened:
        try:
            prologue = read_prologue(opened)
        except BlobIncompatibleError as e:
            return BlobCheck((str(e),), None)
        finally:
            opened.rewind()
    check = check_manifest(
        prologue.manifest,
        device=device,
        plugin_name=plugin_name,
        plugin_version=plugin_version,
        engine_version=engine_version,
        api_version=api_version,
        available=available,
    )
    return replace(check, signature=prologue.signature)


def is_package(manifest: BlobManifest) -> bool:
    """Whether a blob has variants of a network for several machines; see `engine.blob.package`."""
    return PACKAGE in manifest.requirements


def read_manifests(source: BlobInput, transform: SectionTransform | None, weights: WeightsFile | None) -> BlobCheck:
    """The manifests of a blob and of the blobs in it, without a check. Raises the errors of `check_blob`.

    Sections are skipped where the source can seek, and read where it cannot; with `transform`, they are restored.
    """
    with open_source(source) as opened:
        try:
            prologue = read_prologue(opened)
            parts = read_parts(opened, prologue, transform, weights)
        except BlobIncompatibleError as e:
            return BlobCheck((str(e),), None)
        finally:
            opened.rewind()
    return BlobCheck((), prologue.manifest, prologue.signature, parts=parts)


def check_manifest(
    manifest: BlobManifest,
    *,
    device: str | None = None,
    plugin_name: str | None = None,
    plugin_version: str | None = None,
    engine_version: str | None = None,
    api_version: str | None = None,
    available: Mapping[str, str | Collection[str]] | None = None,
    oldest_version: str = "",
) -> BlobCheck:
    """Check whether a blob with `manifest` would load on this host. Arguments of None are not checked.

    Rules: device and plugin name are equal; the plugin API of the blob is that of this host or the one before; the
    engine version has the major number of this host's, and its minor number or the one before; so has the plugin
    version, or it is at least `oldest_version`, if that is given, and equal minor numbers are required if not; each
    requirement is a key of `available`, and all its values are available; the requirements of a blob for another device
    are not compared. Preferences are compared in the same way, and give advice. `available` maps a key to the value, or
    the collection of values, that this host has. Pass `{}` for a host without features.
    """
    other_device = _unequal("device", manifest.device, device)
    reasons = [
        *other_device,
        *_unequal("plugin", manifest.plugin_name, plugin_name),
        *_older("plugin", manifest.plugin_version, plugin_version, oldest_version),
        *_older("engine", manifest.engine_version, engine_version, _release_before(engine_version)),
        *_outside("plugin API version", manifest.api_version, api_version),
    ]
    advice: list[str] = []
    if available is not None and not other_device:
        has_windows = manifest.generation > 1
        for key, required in manifest.requirements.items():
            if (unmet := _unmet(required, available.get(key), has_windows=has_windows)) is not None:
                reasons.append(f"requirement {key!r}: the blob needs {unmet}; {_EXPORT_AGAIN} on this host")
        for key, preferred in manifest.preferences.items():
            if (unmet := _unmet(preferred, available.get(key), has_windows=has_windows)) is not None:
                advice.append(f"{key}: the blob was made for {unmet}; compiled again here, it is faster")
    return BlobCheck(tuple(reasons), manifest, advice=tuple(advice))


def _unequal(what: str, of_blob: str, here: str | None) -> list[str]:
    if here is None or of_blob == here:
        return []
    return [f"{what}: the blob was compiled for {of_blob!r}, this host has {here!r}; {_EXPORT_AGAIN} for {here!r}"]


def _outside(what: str, of_blob: str, here: str | None) -> list[str]:
    """The number is neither that of this host nor the one before."""
    if here is None or of_blob == here:
        return []
    before = str(int(here) - 1) if here.isdecimal() else here
    if of_blob == before:
        return []
    return [f"{what}: the blob has {of_blob}, this host loads {before} and {here}; {_EXPORT_AGAIN} with API {here}"]


def _older(what: str, of_blob: str, here: str | None, oldest: str) -> list[str]:
    """The version is of a newer minor release than this host's, of an older one than `oldest`, or of another major."""
    if here is None:
        return []
    found, own = _release(of_blob), _release(here)
    lowest = _release(oldest) if oldest else own
    if lowest[0] != own[0]:
        lowest = own
    if found == own or (found[0] == own[0] and lowest[1] <= found[1] <= own[1]):
        return []
    releases = " to ".join(dict.fromkeys(".".join(map(str, release)) for release in (lowest, own)))
    return [
        f"{what} version: the blob has {of_blob}, this host has {here}, which loads blobs of {releases}: "
        f"{_EXPORT_AGAIN} with {here}"
    ]


def _release(version: str) -> tuple[int | str, int]:
    """The major and the minor number; a version without numbers is of its own kind."""
    major, minor = (*version.partition("+")[0].split("."), "0")[:2]
    return (int(major), int(minor)) if major.isdecimal() and minor.isdecimal() else (version, 0)


def _release_before(version: str | None) -> str:
    """The minor release before that of a version; of the first one of a major number, itself."""
    major, minor = _release(version or "0")
    return f"{major}.{max(0, minor - 1)}"


def _unmet(required: str | Collection[str], here: str | Collection[str] | None, *, has_windows: bool) -> str | None:
    """What a blob asks for and this host does not have, as a clause; None if it has all."""
    available = frozenset[str]() if here is None else as_set(here)
    missing = missing_of(as_set(required), available, has_windows=has_windows)
    if here is not None and not missing:
        return None
    has = "no such feature" if here is None else ", ".join(sorted(available)) or "none"
    return f"{', '.join(missing) or 'it'}, this host has {has}"
