"""The manifest of a blob: its fields and its canonical JSON encoding."""

from __future__ import annotations

import json
import math
import re
import reprlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import field, fields
from itertools import accumulate
from typing import Any

from engine.blob.requirements import check_window, is_window
from engine.errors import BlobError, BlobFormatError
from engine.startup import dataclass

MAX_DEPTH = 64
"""The most levels of JSON objects and arrays; the manifest itself is the first."""

MAX_SIZE = 2**63 - 1
"""The largest offset or size in bytes: the limit of a file offset."""

GENERATION = 2
"""The generation of the format that networks are exported in. The first one has no preferences and no windows."""

_MIN_INTEGER, _MAX_INTEGER = -(2**63), 2**64 - 1
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class BlobSection:
    """The position and the hash of one section.

    `offset` is in bytes from the start of the data area, `size` in bytes; `sha256` is lower-case hex.
    """

    name: str
    offset: int
    size: int
    sha256: str


@dataclass(frozen=True, slots=True)
class BlobManifest:
    """A blob's description of itself.

    `requirements` maps a name to the value, or the list of all values, that the host must have
    (`{"isa": ["avx2", "fma"], "driver": "3.1"}`), or to a window of versions (`">=3.1,<4"`); `preferences` are what it
    must have for the network to be as fast as one that is compiled there; see `check_manifest`. `inputs` and `outputs`
    hold one JSON object per port, in port order; they, `config` and `metadata` are not interpreted here.
    `generation` is that of the blob's format, which the header states: a blob of the first one has no preferences, and
    its requirements are no windows.

    The constructor copies every container, so later changes to the arguments have no effect; treat
    the fields as read-only. Mapping order is not kept: the canonical form sorts keys. Integers must be in
    -2**63..2**64-1 and floats must be finite. `BlobWriter` sets `sections`, replacing any given value.

    Raises `BlobError` with the field's name for a value that JSON cannot represent.
    """

    device: str
    plugin_name: str
    plugin_version: str
    engine_version: str
    api_version: str
    requirements: Mapping[str, str | Sequence[str]]
    config: Mapping[str, Any]
    inputs: Sequence[Mapping[str, Any]]
    outputs: Sequence[Mapping[str, Any]]
    metadata: Mapping[str, Any]
    sections: tuple[BlobSection, ...] = ()
    preferences: Mapping[str, str | Sequence[str]] = field(default_factory=dict)
    generation: int = GENERATION

    def __post_init__(self) -> None:
        if type(self.generation) is not int or not 1 <= self.generation <= GENERATION:
            raise BlobError(f"manifest.generation: expected 1..{GENERATION}, got {reprlib.repr(self.generation)}")
        for name in ("device", "plugin_name", "plugin_version", "engine_version", "api_version"):
            value = getattr(self, name)
            if not isinstance(value, str) or not value:
                raise BlobError(f"manifest.{name}: expected a non-empty string, got {reprlib.repr(value)}")
            object.__setattr__(self, name, checked_text(value, f"manifest.{name}"))
        for name in ("requirements", "preferences", "config", "metadata"):
            object.__setattr__(self, name, _plain_object(getattr(self, name), f"manifest.{name}"))
        for name in ("inputs", "outputs"):
            object.__setattr__(self, name, _plain_ports(getattr(self, name), f"manifest.{name}"))
        for name in ("requirements", "preferences"):
            _check_requirements(getattr(self, name), f"manifest.{name}", has_windows=self.generation > 1)
        if not (isinstance(self.sections, tuple) and all(isinstance(s, BlobSection) for s in self.sections)):
            raise BlobError("manifest.sections: expected a tuple of BlobSection")

    def to_dict(self) -> dict[str, Any]:
        """The manifest as the JSON object that is stored; sections are objects too.

        Raises `BlobError` for preferences, which a blob of the first generation cannot have.
        """
        if self.generation == 1 and self.preferences:
            raise BlobError("manifest.preferences: a blob of the first generation has none")
        value = {name: getattr(self, name) for name in _stored_fields(self.generation)}
        value["sections"] = [
            {"name": s.name, "offset": s.offset, "size": s.size, "sha256": s.sha256} for s in self.sections
        ]
        return value


def encode_manifest(manifest: BlobManifest) -> bytes:
    """Encode `manifest` as canonical JSON: equal manifests give equal bytes, which can be signed."""
    return _canonical(manifest.to_dict())


def decode_manifest(data: bytes, generation: int) -> BlobManifest:
    """The manifest that `data` encodes in the form of a generation of the format; raises `BlobFormatError` unless
    `data` is canonical.
    """
    _check_depth(data)
    try:
        value = json.loads(
            data.decode("utf-8"),
            object_pairs_hook=_object_without_duplicates,
            parse_int=_bounded_int,
            parse_constant=_refuse_constant,
        )
        if not isinstance(value, dict):
            raise BlobError(f"manifest: expected a JSON object, got {type(value).__name__}")
        _check_keys(value, set(_stored_fields(generation)), "manifest")
        manifest = BlobManifest(**{**value, "sections": _sections(value["sections"]), "generation": generation})
        is_canonical = _canonical(value) == data
    except BlobError as e:
        raise BlobFormatError(str(e)) from e
    except (ValueError, RecursionError) as e:
        raise BlobFormatError(f"manifest: not valid JSON: {e}") from e
    if not is_canonical:
        raise BlobFormatError(
            "manifest: not in canonical form (UTF-8, sorted keys, no spaces, shortest numbers and escapes)"
        )
    return manifest


def checked_text(value: str, where: str) -> str:
    """`value` as a plain `str`; raises `BlobError` if UTF-8 cannot encode it."""
    try:
        value.encode("utf-8")
    except UnicodeEncodeError as e:
        raise BlobError(f"{where}: {reprlib.repr(value)} holds a lone surrogate; use valid Unicode") from e
    return str.__str__(value)


def _canonical(value: Mapping[str, Any]) -> bytes:
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return text.encode("utf-8")


def _plain(value: object, where: str, depth: int) -> Any:
    """`value` copied into plain JSON types; `depth` is the nesting level of `value` if it is a container."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return checked_text(value, where)
    if isinstance(value, int):
        # The message must not contain the number: formatting more than 4,300 digits raises ValueError.
        if not _MIN_INTEGER <= value <= _MAX_INTEGER:
            raise BlobError(f"{where}: an integer outside -2**63..2**64-1; store it as a string")
        return int(value)
    if isinstance(value, float):
        if not math.isfinite(value):
            raise BlobError(f"{where}: JSON cannot represent {value}; store it as a string")
        return float(value)
    if depth > MAX_DEPTH:
        raise BlobError(f"{where[:200]}: nested deeper than {MAX_DEPTH} levels, or contains itself")
    if isinstance(value, Mapping):
        return {_key(k, where): _plain(v, f"{where}[{reprlib.repr(k)}]", depth + 1) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(v, f"{where}[{i}]", depth + 1) for i, v in enumerate(value)]
    raise BlobError(
        f"{where}: {type(value).__name__} is not a JSON type; expected None, bool, int, float, str, list or dict"
    )


def _key(key: object, where: str) -> str:
    if not isinstance(key, str):
        raise BlobError(f"{where}: expected string keys, got {reprlib.repr(key)}")
    return checked_text(key, f"{where} key")


def _plain_object(value: object, where: str) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise BlobError(f"{where}: expected a mapping, got {type(value).__name__}")
    plain: dict[str, Any] = _plain(value, where, depth=2)
    return plain


def _plain_ports(value: object, where: str) -> tuple[dict[str, Any], ...]:
    if not isinstance(value, (list, tuple)) or not all(isinstance(port, Mapping) for port in value):
        raise BlobError(f"{where}: expected a list of mappings, one per port")
    return tuple(_plain(value, where, depth=2))


def _check_requirements(requirements: Mapping[str, object], where: str, *, has_windows: bool) -> None:
    for key, value in requirements.items():
        values = value if isinstance(value, list) else [value]
        texts = [each for each in values if isinstance(each, str)]
        if len(texts) < len(values):
            raise BlobError(
                f"{where}[{reprlib.repr(key)}]: expected a string or a list of strings, got {reprlib.repr(value)}"
            )
        for each in texts:
            if has_windows and is_window(each):
                check_window(each, f"{where}[{reprlib.repr(key)}]")


def _stored_fields(generation: int) -> list[str]:
    """The fields that the manifest of a blob has."""
    left_out = {"generation"} if generation > 1 else {"generation", "preferences"}
    return [each.name for each in fields(BlobManifest) if each.name not in left_out]


def _sections(value: object) -> tuple[BlobSection, ...]:
    if not isinstance(value, list):
        raise BlobError(f"manifest.sections: expected a list, got {type(value).__name__}")
    sections = tuple(_section(item, f"manifest.sections[{i}]") for i, item in enumerate(value))
    seen: set[str] = set()
    for section in sections:
        if section.name in seen:
            raise BlobError(f"manifest.sections: two sections are named {reprlib.repr(section.name)}")
        seen.add(section.name)
    return sections


def _section(item: object, where: str) -> BlobSection:
    if not isinstance(item, dict):
        raise BlobError(f"{where}: expected an object, got {type(item).__name__}")
    _check_keys(item, {each.name for each in fields(BlobSection)}, where)
    name, sha256 = item["name"], item["sha256"]
    if not isinstance(name, str) or not name:
        raise BlobError(f"{where}.name: expected a non-empty string, got {reprlib.repr(name)}")
    if not isinstance(sha256, str) or not _SHA256.fullmatch(sha256):
        raise BlobError(f"{where}.sha256: expected 64 lower-case hex digits, got {reprlib.repr(sha256)}")
    for key in ("offset", "size"):
        number = item[key]
        if type(number) is not int or not 0 <= number <= MAX_SIZE:  # a bool is an int to isinstance
            raise BlobError(f"{where}.{key}: expected an integer in 0..2**63-1, got {reprlib.repr(number)}")
    return BlobSection(name, item["offset"], item["size"], sha256)


def _check_keys(value: Mapping[str, object], expected: set[str], where: str) -> None:
    if missing := sorted(expected - value.keys()):
        raise BlobError(f"{where}: missing {', '.join(missing)}")
    if unknown := sorted(value.keys() - expected):
        raise BlobError(f"{where}: unknown key {reprlib.repr(unknown[0])}")


def _check_depth(data: bytes) -> None:
    """Reject deep nesting before the parser recurses, independently of the process's recursion limit."""
    outside_strings = re.sub(rb'"(?:[^"\\]++|\\.)*+"?', b"", data, flags=re.DOTALL)
    steps = (1 if bracket in b"[{" else -1 for bracket in re.sub(rb"[^][{}]+", b"", outside_strings))
    if any(depth > MAX_DEPTH for depth in accumulate(steps)):
        raise BlobFormatError(f"manifest: nested deeper than {MAX_DEPTH} levels")


def _object_without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        [(twice, _)] = Counter(key for key, _ in pairs).most_common(1)
        raise BlobError(f"manifest: key {reprlib.repr(twice)} appears twice in one object")
    return value


def _bounded_int(digits: str) -> int:
    # 20 characters suffice for every allowed integer; parsing takes time quadratic in their number.
    if len(digits) > 20 or not _MIN_INTEGER <= int(digits) <= _MAX_INTEGER:
        raise BlobError(f"manifest: integer {digits[:24]} is outside -2**63..2**64-1")
    return int(digits)


def _refuse_constant(name: str) -> Any:
    raise BlobError(f"manifest: {name} is not valid JSON")
