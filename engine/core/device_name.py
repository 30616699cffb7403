"""Device strings: a plugin, optionally with the id of one of its devices and the devices that it runs on."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from engine.errors import DeviceNotFoundError
from engine.registry.plugins import is_device_name
from engine.startup import dataclass

_ID = re.compile(r"[A-Za-z0-9_-]+")
_ARGUMENT = re.compile(r"(?P<device>[^()]*)\((?P<argument>[A-Za-z0-9_-]+)\)")
_GPUS: Final = frozenset({"GPU", "CUDA", "ROCM", "DIRECTML", "DML", "METAL", "IGPU", "DGPU", "CL"})
"""Other products' names for devices on GPUs."""
_GPU_DEVICE: Final = "OPENCL"
_SIMILAR: Final = 0.7
_FORMS = '"CPU", "OPENCL.1" or "HETERO:OPENCL.1,CPU"'


@dataclass(frozen=True, slots=True)
class DeviceName:
    """The parts of a device string: `NAME`, `NAME.ID`, `NAME:TARGETS` or `NAME.ID:TARGETS`.

    `TARGETS` are separated by commas, each `NAME`, `NAME.ID` or, with an argument for the device that runs on it,
    `NAME(ARGUMENT)` or `NAME.ID(ARGUMENT)`. `device_id` and `argument` are "" and `targets` empty if there are none.
    """

    name: str
    device_id: str = ""
    targets: tuple[DeviceName, ...] = ()
    argument: str = ""

    def __str__(self) -> str:
        text = f"{self.name}.{self.device_id}" if self.device_id else self.name
        text = f"{text}({self.argument})" if self.argument else text
        return f"{text}:{self.priorities}" if self.targets else text

    @property
    def priorities(self) -> str:
        """The targets as they were written: "OPENCL.1,CPU"."""
        return ",".join(map(str, self.targets))


def parse_device(text: object, known: Iterable[str] = ()) -> DeviceName:
    """Parse a device string; `known` are the names for suggestions.

    Raises `DeviceNotFoundError` for a malformed string. Whether the device exists is not checked.
    """
    if not isinstance(text, str):
        raise DeviceNotFoundError(f"a device is a string such as {_FORMS}; got {text!r} ({type(text).__name__})")
    head, colon, tail = text.partition(":")
    names = tuple(known)
    device = _parse_single(head, text, names)
    if not colon:
        return device
    parts = tail.split(",")
    if ":" in tail or not all(parts):
        raise DeviceNotFoundError(
            f"device {text!r}: expected a list of devices, separated by single commas, after the colon, "
            f"such as {_FORMS}"
        )
    targets = tuple(_parse_target(part, text, names) for part in parts)
    devices = [(target.name, target.device_id) for target in targets]
    if len(set(devices)) < len(devices):
        twice = ".".join(filter(None, next(each for each in devices if devices.count(each) > 1)))
        raise DeviceNotFoundError(f"device {text!r}: {twice} is listed twice; list each device once")
    return DeviceName(device.name, device.device_id, targets)


def suggestion(name: str, known: Iterable[str]) -> str:
    """The names similar to one that no plugin has, as a part of a message; "" if there are none."""
    wanted, names = name.strip().upper(), list(known)
    if wanted in _GPUS and _GPU_DEVICE in names:
        return f"; {_GPU_DEVICE} runs models on GPUs"
    import difflib  # for this message alone

    close = difflib.get_close_matches(wanted, names, n=1, cutoff=_SIMILAR)
    return f"; did you mean {close[0]!r}?" if close else ""


def is_device_id(text: str) -> bool:
    """Whether `text` may follow the dot of a device string, as "1" in "GPU.1"."""
    return _ID.fullmatch(text) is not None


def _parse_target(part: str, whole: str, known: tuple[str, ...]) -> DeviceName:
    if "(" not in part and ")" not in part:
        return _parse_single(part, whole, known)
    found = _ARGUMENT.fullmatch(part)
    if found is None:
        raise DeviceNotFoundError(
            f"device {whole!r}, part {part!r}: expected an argument of letters, digits, - and _ in parentheses at the "
            'end, such as "BATCH:CPU(16)"'
        )
    return replace(_parse_single(found["device"], whole, known), argument=found["argument"])


def _parse_single(part: str, whole: str, known: tuple[str, ...]) -> DeviceName:
    name, dot, device_id = part.partition(".")
    where = f"device {whole!r}" if part == whole else f"device {whole!r}, part {part!r}"
    if not name:
        raise DeviceNotFoundError(f"{where}: the device's name is missing; expected a string such as {_FORMS}")
    if _ARGUMENT.fullmatch(part):
        raise DeviceNotFoundError(
            f"{where}: an argument in parentheses is for a device that runs on this one and takes it, such as "
            f'"BATCH:CPU(16)"; use {part.partition("(")[0]!r}'
        )
    if not is_device_name(name):
        hint = suggestion(name, known)
        raise DeviceNotFoundError(
            f"{where}: a device's name is an upper-case letter followed by upper-case letters, digits and "
            f"underscores, such as {_FORMS}{hint}"
        )
    if dot and not is_device_id(device_id):
        raise DeviceNotFoundError(
            f"{where}: expected a device id of letters, digits, - and _ after the dot, such as {_FORMS}; "
            f"got {device_id!r}"
        )
    return DeviceName(name, device_id)
