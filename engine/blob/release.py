"""The name and the version that a signed blob states, so that neither an older one nor another takes its place.

The manifest's metadata then has `release`: `{"name": ..., "version": ...}`. It is meaningful only together with the
signature.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from engine.blob.manifest import MAX_SIZE, BlobManifest
from engine.errors import BlobFormatError, BlobSignatureError
from engine.startup import dataclass

_KEY: Final = "release"
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,127}")
_VERSION: Final = re.compile(r"[0-9]{1,19}")


@dataclass(frozen=True, slots=True)
class BlobRelease:
    """The name of a network, and a version that grows with each release of it; as text `NAME:VERSION`.

    Attributes:
        name: 1 to 128 letters, digits, `.`, `_`, `-` and `/`, the first one a letter or digit.
        version: 0 to 2**63-1.

    Raises `BlobSignatureError` for other values.
    """

    name: str
    version: int

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not _NAME.fullmatch(self.name):
            raise BlobSignatureError(
                f"the name of a release is {self.name!r:.80}; expected 1 to 128 letters, digits, '.', '_', '-' and "
                "'/', the first one a letter or digit"
            )
        if type(self.version) is not int or not 0 <= self.version <= MAX_SIZE:
            raise BlobSignatureError(
                f"release {self.name}: the version is {self.version!r:.80}; expected an integer in 0..2**63-1"
            )

    @classmethod
    def parse(cls, given: BlobRelease | str) -> BlobRelease:
        """A release, or the one that a text names. Raises `BlobSignatureError`."""
        if isinstance(given, BlobRelease):
            return given
        name, colon, version = given.rpartition(":") if isinstance(given, str) else ("", "", "")
        if not colon or not _VERSION.fullmatch(version):
            raise BlobSignatureError(f"{given!r:.80} is not a release; expected NAME:VERSION, such as resnet50:7")
        return cls(name, int(version))

    @classmethod
    def of(cls, manifest: BlobManifest) -> BlobRelease | None:
        """The release that a manifest states; None if it states none. Raises `BlobFormatError`."""
        entry: Any = manifest.metadata.get(_KEY)
        if entry is None:
            return None
        try:
            if isinstance(entry, Mapping) and set(entry) == {"name", "version"}:
                return cls(entry["name"], entry["version"])
        except BlobSignatureError as e:
            raise BlobFormatError(f"the manifest's metadata has an invalid {_KEY!r}: {e}") from e
        raise BlobFormatError(f"the manifest's metadata has an invalid {_KEY!r}: {entry!r:.80}")

    def to_metadata(self) -> dict[str, Any]:
        """The entry of the manifest's metadata."""
        return {_KEY: {"name": self.name, "version": self.version}}

    def why_not(self, manifest: BlobManifest) -> str | None:
        """Why a blob with `manifest` is not this release or a later one, as a sentence; None if it is."""
        found = BlobRelease.of(manifest)
        if found is not None and found.name == self.name and found.version >= self.version:
            return None
        has = "states no release" if found is None else f"is release {found}"
        return f"the blob {has}; expected {self.name} of version {self.version} or later"

    def __str__(self) -> str:
        return f"{self.name}:{self.version}"
