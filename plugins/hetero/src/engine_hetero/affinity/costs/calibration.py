"""A file of times measured on devices; times of equal nodes apply to every model, and files can be merged."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import field
from pathlib import Path
from typing import Any, Final

import numpy as np

from engine.errors import PropertyError
from engine.files import complete_file
from engine.ir import Constant, Model, Node, Output
from engine.startup import dataclass

_FORMAT: Final = "engine.hetero.calibration"
_VERSION: Final = 1
_MAX_COUNTED: Final = 1_000_000
_MAX_SECONDS: Final = 1e9
_SMALL: Final = 64


@dataclass(frozen=True, slots=True)
class Figure:
    """A mean of measured seconds, and the number of measurements."""

    seconds: float
    count: int

    def merged(self, other: Figure) -> Figure:
        """The mean of both, weighted by the number of measurements."""
        count = self.count + other.count
        seconds = (self.seconds * self.count + other.seconds * other.count) / count
        # Old figures must not outweigh new ones forever.
        return Figure(seconds, min(count, _MAX_COUNTED))


@dataclass(frozen=True)
class Calibration:
    """Figures by device and entry.

    A device is identified by `device_key`, so that figures are used only for the same device, driver and configuration;
    an entry is the signature of an operation, or a name that starts with "@".
    """

    devices: Mapping[str, Mapping[str, Figure]] = field(default_factory=dict)

    def of(self, device: str) -> Mapping[str, Figure]:
        """The figures of a device; empty for an unknown one."""
        return self.devices.get(device, {})


def merge(a: Calibration, b: Calibration) -> Calibration:
    """All figures of both; those in both are averaged. The order does not matter."""
    devices = {device: dict(entries) for device, entries in a.devices.items()}
    for device, entries in b.devices.items():
        into = devices.setdefault(device, {})
        for name, figure in entries.items():
            into[name] = into[name].merged(figure) if name in into else figure
    return Calibration(devices)


def read_calibration(path: str | os.PathLike[str]) -> Calibration:
    """Read a calibration file; a file that does not exist is empty.

    Raises `PropertyError` with file and reason if the file cannot be read or is damaged.
    """
    where = f"calibration file {os.fspath(path)}"
    try:
        text = Path(path).read_text(encoding="utf-8")
    except FileNotFoundError:
        return Calibration()
    except (OSError, UnicodeDecodeError) as e:
        raise PropertyError(f"{where} cannot be read: {e}") from e
    try:
        return _calibration(json.loads(text))
    except (ValueError, RecursionError) as e:
        raise PropertyError(f"{where} is damaged: {e}; delete it to measure again") from e


def update_calibration(path: str | os.PathLike[str], measured: Calibration, *, is_private: bool = False) -> None:
    """Merge new figures into a calibration file, atomically; only its owner can read a private one.

    Raises `PropertyError` if it cannot be read or written.
    """
    merged = merge(read_calibration(path), measured)
    devices = {
        device: {name: [figure.seconds, figure.count] for name, figure in sorted(entries.items())}
        for device, entries in sorted(merged.devices.items())
    }
    text = json.dumps({"format": _FORMAT, "version": _VERSION, "devices": devices}, indent=1)
    target = Path(os.path.realpath(path))
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with complete_file(target, is_private=is_private) as file:
            file.write(text.encode())
            file.flush()
            os.fsync(file.fileno())
    except OSError as e:
        raise PropertyError(f"calibration file {os.fspath(path)} cannot be written: {e}") from e


def _calibration(read: Any) -> Calibration:
    """Raises `ValueError`."""
    if not isinstance(read, dict) or read.get("format") != _FORMAT:
        raise ValueError(f'it is not a calibration file: expected an object with "format": "{_FORMAT}"')
    if read.get("version") != _VERSION:
        raise ValueError(f"its version is {read.get('version')!r:.40}; this release reads version {_VERSION}")
    devices = read.get("devices")
    if not isinstance(devices, dict) or not all(isinstance(entries, dict) for entries in devices.values()):
        raise ValueError('"devices" is not an object whose values are objects')
    return Calibration(
        {
            device: {name: _figure(device, name, value) for name, value in entries.items()}
            for device, entries in devices.items()
        }
    )


def _figure(device: str, name: str, value: Any) -> Figure:
    if isinstance(value, list) and len(value) == 2 and not any(isinstance(each, bool) for each in value):
        seconds, count = value
        is_time = isinstance(seconds, (int, float)) and 0 <= seconds < _MAX_SECONDS
        if is_time and isinstance(count, int) and 1 <= count <= _MAX_COUNTED:
            return Figure(float(seconds), count)
    raise ValueError(f"{name!r} of {device!r} is {value!r:.60}; expected [seconds >= 0, count >= 1]")


# -- the names of entries -----------------------------------------------------------------------------------


def signature_of(node: Node) -> str:
    """A key of operations that take the same time: operator, types, attributes and small constants.

    `Conv(f32[1,3,8,8], const f32[4,3,3,3]) -> f32[1,4,6,6] #9f86d081884c7d65`
    """
    kind = f"{node.domain}.{node.op_type}" if node.domain else node.op_type
    inputs = ", ".join(map(_described, node.input_values))
    outputs = ", ".join(str(output.type) for output in node.outputs)
    digest = hashlib.sha256()
    for name, value in sorted(node.attributes.items()):
        _add(digest, name)
        _add(digest, value)
    for value in node.input_values:
        if value is not None and isinstance(value.node, Constant) and value.shape.size() <= _SMALL:
            # Lengths, axes and steps affect the time; the values of weights do not.
            _add(digest, value.node.data if value.element_type.is_integral else None)
    return f"{kind}({inputs}) -> {outputs} #{digest.hexdigest()[:16]}"


def _described(value: Output | None) -> str:
    if value is None:
        return "_"
    return f"const {value.type}" if isinstance(value.node, Constant) else str(value.type)


def _add(digest: Any, value: Any) -> None:
    """Hash a value with its kind and length, so that different lists of values have different input."""
    if isinstance(value, tuple):
        _add(digest, f"tuple {len(value)}")
        for each in value:
            _add(digest, each)
        return
    if isinstance(value, Model):
        content = value.to_text().encode()
    elif isinstance(value, np.ndarray):
        content = f"{value.dtype} {value.shape}".encode() + (
            repr(value.tolist()).encode() if value.dtype.hasobject else value.tobytes()
        )
    else:
        content = repr(value).encode()
    digest.update(f"{type(value).__name__} {len(content)} ".encode())
    digest.update(content)
