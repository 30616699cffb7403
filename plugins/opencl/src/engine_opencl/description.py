"""The description of a device as text, from which models are compiled for it on machines that do not have it."""

from __future__ import annotations

import json
from dataclasses import asdict, fields
from typing import Any, Final

from engine.errors import TargetError
from engine_opencl.devices.device import EMULATED, PTX, DeviceFacts

_OF_COMPILATIONS: Final = frozenset({"is_accurate"})
"""Fields that a compilation decides, not the device."""
_CHOICES: Final = {"kind": ("gpu", "cpu", "accelerator"), "matrix_unit": ("", PTX, EMULATED)}
_FORM: Final = "expected the JSON object that `engine devices OPENCL --describe` prints on the machine with the device"


def describe(facts: DeviceFacts) -> str:
    """A device's facts as a JSON object in one line."""
    return json.dumps({name: value for name, value in asdict(facts).items() if name not in _OF_COMPILATIONS})


def described_facts(text: str) -> DeviceFacts:
    """The facts that a text of `describe` has. Raises `TargetError` for another text."""
    try:
        read = json.loads(text)
    except (ValueError, RecursionError) as e:
        raise TargetError(f"OPENCL: target {text!r:.80} is not JSON ({e}); {_FORM}") from e
    if not isinstance(read, dict):
        raise TargetError(f"OPENCL: target {text!r:.80} is no JSON object; {_FORM}")
    declared = {field.name: str(field.type) for field in fields(DeviceFacts) if field.name not in _OF_COMPILATIONS}
    if wrong := sorted(read.keys() ^ declared.keys()):
        problem = "is missing" if wrong[0] in declared else "is unknown"
        raise TargetError(f"OPENCL: the target's field {wrong[0]!r:.80} {problem}; {_FORM}")
    return DeviceFacts(**{name: _checked(name, read[name], kind) for name, kind in declared.items()})


def _checked(name: str, value: Any, kind: str) -> Any:
    """The value of a field, which is as the field is declared."""
    wrong = TargetError(f"OPENCL: the target's field {name!r} is {value!r:.80}, no {kind} that a device has; {_FORM}")
    if name in _CHOICES:
        if value not in _CHOICES[name]:
            raise wrong
        return value
    match kind:
        case "str":
            is_valid = isinstance(value, str) and bool(value)
        case "bool":
            is_valid = isinstance(value, bool)
        case "int":
            is_valid = _is_size(value)
        case _:  # the sizes of work groups along each dimension
            is_valid = isinstance(value, list) and bool(value) and all(map(_is_size, value))
    if not is_valid:
        raise wrong
    return tuple(value) if isinstance(value, list) else value


def _is_size(value: object) -> bool:
    return type(value) is int and 1 <= value < 1 << 63
