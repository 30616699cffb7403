"""Packages: one file with a network compiled for several machines, its variants. Equal sections are stored once.

A package is a blob. `variants` in its manifest's metadata lists the variants: for each its name, and what it requires
of a machine. A variant is a blob in the section `variant/NAME`. Its sections of 1 KiB or more are sections of the
package, `shared/SHA256`, to which the variant is bound by their hashes (`engine.blob.bound`). The package requires the
feature `variants`, which no device has, so that engines which do not know packages refuse it.
"""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from engine.blob.bound import Bound, WeightsFile, hash_of
from engine.blob.check import PACKAGE, is_package
from engine.blob.manifest import BlobManifest
from engine.blob.reader import BlobReader
from engine.blob.transform import Transformed
from engine.blob.writer import BlobWriter
from engine.errors import BlobError, BlobFormatError
from engine.startup import dataclass

_KEY: Final = "variants"
_VARIANT: Final = "variant/"
_SHARED: Final = "shared/"
_EQUAL: Final = ("device", "plugin_name", "plugin_version", "engine_version", "api_version", "inputs", "outputs")
"""The fields of manifests in which all variants of a package agree."""
_INTERFACE: Final = ("network_name", "variables", "model_identity", "overridable")
"""The entries of their metadata in which they agree, and which the package repeats."""


@dataclass(frozen=True, slots=True)
class PackagedVariant:
    """A variant of a package: its name, and what a machine needs to import it, as `BlobManifest.requirements`."""

    name: str
    requirements: Mapping[str, Any]


def variants_of(manifest: BlobManifest) -> tuple[PackagedVariant, ...]:
    """The variants of a package, in the order of the file; none of another blob. Raises `BlobFormatError`."""
    if not is_package(manifest):
        return ()
    listed: Any = manifest.metadata.get(_KEY)
    sections = {section.name for section in manifest.sections}
    found = []
    for each in listed if isinstance(listed, list) else [listed]:
        if (
            not isinstance(each, Mapping)
            or set(each) != {"name", "requirements"}
            or not isinstance(each["name"], str)
            or section_of_variant(each["name"]) not in sections
        ):
            raise BlobFormatError(f"the manifest's metadata has an invalid variant: {each!r:.80}")
        try:
            checked = replace(manifest, requirements=each["requirements"]).requirements
        except BlobError as e:
            raise BlobFormatError(f"the manifest's metadata has an invalid variant: {e}") from e
        found.append(PackagedVariant(each["name"], checked))
    if not found or len({each.name for each in found}) < len(found):
        raise BlobFormatError("the manifest's metadata has no variants, or two of one name")
    return tuple(found)


def package_writer(variants: Mapping[str, BlobWriter], metadata: Mapping[str, Any] | None = None) -> BlobWriter:
    """The package of the blobs of networks, by the names of variants, with additional metadata in its manifest.

    Raises `BlobError` if they are not networks of one model for one device.
    """
    if not variants:
        raise BlobError("a package has at least one variant; got none")
    first, *others = variants
    manifest = variants[first].manifest
    for name in others:
        if field := _difference(manifest, variants[name].manifest):
            raise BlobError(
                f"variants {first!r} and {name!r} have different {field}: a package has networks of one model for one "
                "device"
            )
    listed = [{"name": name, "requirements": dict(each.manifest.requirements)} for name, each in variants.items()]
    common = {key: manifest.metadata[key] for key in _INTERFACE if key in manifest.metadata}
    package = BlobWriter(
        replace(
            manifest,
            requirements={PACKAGE: "1"},
            preferences={},
            config={},
            metadata={**common, **(metadata or {}), _KEY: listed},
        )
    )
    shared = _Shared(package)
    for name, writer in variants.items():
        stored = io.BytesIO()
        writer.bound_to(shared, is_required=False).write(stored)
        package.add_section(section_of_variant(name), stored.getvalue())
    return package


def _difference(one: BlobManifest, other: BlobManifest) -> str:
    """A field in which the manifests of two variants must not differ, and do; empty if there is none."""
    for field in _EQUAL:
        if getattr(one, field) != getattr(other, field):
            return field
    return next((key for key in _INTERFACE if one.metadata.get(key) != other.metadata.get(key)), "")


def open_variant(package: BlobReader, name: str) -> BlobReader:
    """A variant, read in place; decisions on the package also apply to it. Raises the errors of `BlobReader.nested`."""
    return package.nested(section_of_variant(name), weights=_PackageWeights(package))


def section_of_variant(name: str) -> str:
    """The section of a package that is the blob of a variant."""
    return _VARIANT + name


def sections_of_variant(name: str, manifest: BlobManifest) -> tuple[str, ...]:
    """The sections of a package that a variant with this manifest consists of. Raises `BlobFormatError`."""
    bound = Bound.of(manifest)
    shared = () if bound is None else (_SHARED + each.sha256 for each in bound.sections)
    return (section_of_variant(name), *dict.fromkeys(shared))


@dataclass(frozen=True, slots=True)
class PackagedSize:
    """The bytes of a variant's sections in a package: those of no other variant, and those that others also have."""

    own: int
    shared: int


def variant_sizes(manifest: BlobManifest, variants: Mapping[str, BlobManifest]) -> dict[str, PackagedSize]:
    """The sizes of variants in the package with this manifest, by name, from the variants' own manifests.

    Raises `BlobFormatError`.
    """
    sizes = {section.name: section.size for section in manifest.sections}
    used = {name: sections_of_variant(name, each) for name, each in variants.items()}
    count = Counter(section for sections in used.values() for section in sections)
    return {
        name: PackagedSize(
            sum(sizes.get(each, 0) for each in sections if count[each] == 1),
            sum(sizes.get(each, 0) for each in sections if count[each] > 1),
        )
        for name, sections in used.items()
    }


class _Shared(WeightsFile):
    """The sections that a package has so far; those that are looked for are added."""

    path = "the package"

    def __init__(self, package: BlobWriter) -> None:
        self._package = package
        self._names: set[str] = set()

    def find(self, sha256: str, size: int) -> Mapping[str, Any] | None:
        """Nothing but hash and size, if there is such a section."""
        return {} if sha256 in self._names else None

    def place_of(self, buffers: Sequence[memoryview]) -> tuple[str, Mapping[str, Any]]:
        """The hash, which is the name of the section."""
        digest = hash_of(buffers)
        if digest not in self._names:
            self._names.add(digest)
            self._package.add_section(_SHARED + digest, buffers)
        return digest, {}

    def read(self, place: Mapping[str, Any], size: int) -> memoryview:
        """Fail: a writer is not read."""
        raise BlobError("the package is being written")


class _PackageWeights(WeightsFile):
    """The sections that the variants of a package share."""

    def __init__(self, package: BlobReader) -> None:
        self.path = package.where
        self._package = package
        # The package's manifest then has the hash of the stored form.
        self.is_verified = Transformed.of(package.manifest) is None
        wrong = [
            section.name
            for section in package.manifest.sections
            if section.name.startswith(_SHARED) and section.name != _SHARED + section.sha256
        ]
        if self.is_verified and wrong:
            raise BlobFormatError(f"{package.where}: section {wrong[0]!r} is not named by its hash")

    def find(self, sha256: str, size: int) -> Mapping[str, Any] | None:
        """Nothing but hash and size, if there is such a section."""
        return {} if _SHARED + sha256 in self._package.section_names else None

    def read(self, place: Mapping[str, Any], size: int) -> memoryview:
        """The section with the hash of `place`, which is verified. Raises the errors of `BlobReader.section`."""
        view = self._package.section(f"{_SHARED}{place['sha256']}")
        if len(view) != size:
            raise BlobFormatError(f"{self.path}: a variant expects {size} bytes, and the section has {len(view)}")
        return view
