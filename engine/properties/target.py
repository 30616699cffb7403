"""`CpuTarget`: the description of a CPU that a network is compiled for, in place of this machine's."""

from __future__ import annotations

import re
from typing import Final

from engine.errors import TargetError
from engine.startup import dataclass

SOURCE: Final = "source"
"""The target of networks that are lowered where they are imported, for whatever CPU that machine has."""

_FEATURE: Final = re.compile(r"[a-z0-9_]+")
_SIZE: Final = re.compile(r"([1-9]\d{0,11})(|KiB|MiB|GiB)")
_UNITS: Final = {"": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
_MAX_CORES: Final = 4096
_CACHES: Final = ("l1d", "l2", "l3")
_FORM: Final = 'expected such as "x86-64:avx2", "x86-64:avx512,cores=8,l2=2MiB" or "aarch64:neon"'


@dataclass(frozen=True, slots=True)
class CpuTarget:
    """A CPU, described by its features, cores and caches.

    The text form, which the property TARGET takes, is `ARCHITECTURE:FEATURES[,cores=N][,l1d=SIZE][,l2=SIZE][,l3=SIZE]`:
    "x86-64:avx512,cores=8,l2=2MiB". Raises `TargetError` for a value that no CPU has.

    Attributes:
        architecture: "x86-64" or "aarch64".
        features: names of instruction sets, each with all its features, or of single features; in the text, joined by
            `+`: "avx2", "avx2+fma+f16c+avxvnni". The metric TARGETS of a device has the names of instruction sets.
        cores: how many cores networks may use there; None if it is not known, which is taken as this machine's number.
        l1d_bytes, l2_bytes, l3_bytes: the sizes of the caches, the first two of one core; None if they are not known.
    """

    architecture: str
    features: tuple[str, ...]
    cores: int | None = None
    l1d_bytes: int | None = None
    l2_bytes: int | None = None
    l3_bytes: int | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.architecture, str) or not re.fullmatch(r"[a-z0-9_-]+", self.architecture):
            raise TargetError(f"target: {self.architecture!r} is no name of an architecture; {_FORM}")
        if isinstance(self.features, str) or not self.features:
            raise TargetError(f"target: features are a tuple of names; got {self.features!r}; {_FORM}")
        object.__setattr__(self, "features", tuple(self.features))
        for feature in self.features:
            if not isinstance(feature, str) or not _FEATURE.fullmatch(feature):
                raise TargetError(f"target: {feature!r} is no name of a feature; {_FORM}")
        if self.cores is not None and (type(self.cores) is not int or not 1 <= self.cores <= _MAX_CORES):
            raise TargetError(f"target: cores={self.cores!r}; expected 1 to {_MAX_CORES}, or omit it")
        for name in _CACHES:
            size = getattr(self, f"{name}_bytes")
            if size is not None and (type(size) is not int or size < 1):
                raise TargetError(f"target: {name}={size!r}; expected a size in bytes of at least 1, or omit it")

    @classmethod
    def parse(cls, text: str, architecture: str = "") -> CpuTarget:
        """The target of a text. `architecture` is that of a text without one, such as "avx2".

        Raises `TargetError`.
        """
        head, *settings = text.split(",")
        named, colon, features = head.partition(":")
        if not colon:
            named, features = architecture, head
        values: dict[str, int] = {}
        for setting in settings:
            key, equals, value = setting.partition("=")
            if not equals or key not in ("cores", *_CACHES) or key in values:
                raise TargetError(f"target {text!r}: got {setting!r}; {_FORM}")
            values[key] = _number(text, key, value)
        cores = values.pop("cores", None)
        return cls(named, tuple(features.split("+")), cores, **{f"{name}_bytes": size for name, size in values.items()})

    def __str__(self) -> str:
        given = [f"{self.architecture}:{'+'.join(self.features)}"]
        given += [f"cores={self.cores}"] if self.cores is not None else []
        for name in _CACHES:
            size = getattr(self, f"{name}_bytes")
            given += [f"{name}={_shown(size)}"] if size is not None else []
        return ",".join(given)


def _number(text: str, key: str, value: str) -> int:
    if key == "cores":
        if value.isascii() and value.isdecimal() and len(value) < 7:
            return int(value)  # the range is checked with the others
        raise TargetError(f"target {text!r}: cores={value}; expected 1 to {_MAX_CORES}")
    found = _SIZE.fullmatch(value)
    if found is None:
        raise TargetError(f"target {text!r}: {key}={value}; expected a size such as 512KiB or 2MiB")
    return int(found[1]) * _UNITS[found[2]]


def _shown(size: int) -> str:
    unit = next((name for name in ("GiB", "MiB", "KiB") if size % _UNITS[name] == 0), "")
    return f"{size // _UNITS[unit]}{unit}"
