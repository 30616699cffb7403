"""`Property`: the declaration of one property, which validates its values."""

from __future__ import annotations

import enum
import json
import math
import os
import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final, Generic, TypeVar

from engine.errors import PluginContractError, PropertyError
from engine.startup import dataclass

T = TypeVar("T")

_TYPE_NAMES: dict[type, str] = {
    bool: "bool",
    int: "int",
    float: "float",
    str: "str",
    tuple: "tuple of str",
    dict: "mapping",
}
NO_LIMIT: Final = 1 << 62
"""The value of a number of bytes that limits nothing."""
_UNITS: Final = {
    "": 1,
    "b": 1,
    **{f"{prefix}b": 1000**power for power, prefix in enumerate("kmgt", start=1)},
    **{f"{prefix}ib": 1024**power for power, prefix in enumerate("kmgt", start=1)},
}
_BYTES: Final = re.compile(r"([0-9]{1,30}(?:\.[0-9]{1,6})?) *([a-z]*)", re.IGNORECASE)
_BOOL_TEXTS = {"true": True, "yes": True, "on": True, "1": True}
_BOOL_TEXTS |= {"false": False, "no": False, "off": False, "0": False}


class Mutability(enum.Enum):
    """When a property's value can be set, and whether by the user or by the plugin."""

    METRIC = "metric"
    """Reported by a device or network; cannot be set."""
    CONFIG = "config"
    """Chosen by the user before a network is compiled or imported; readable afterwards."""


METRIC = Mutability.METRIC
CONFIG = Mutability.CONFIG


@dataclass(frozen=True, slots=True)
class Property(Generic[T]):
    """The declaration of one property.

    `type` is `bool`, `int`, `float`, `str`, `tuple` (of `str`) or `dict` (`str` keys, JSON values). A
    `CONFIG` property needs a `default`; a metric's default is reported unless the device returns a value.
    `choices` limits a `str`, and each element of a `tuple`; `minimum` and `maximum` limit a number.
    `is_file` means that a `str` is the path of a file, or empty, and that the file's content affects compilation.
    `is_bytes` means that an `int` is a number of bytes, which may be given as text with a unit: "512MiB", "1.5 GB".
    `is_local` means that only the application may state a value: it is not written into blobs, and a blob's value is
    ignored. Set it for what names folders and files or decides on trust; `is_file` implies it.
    Raises `PluginContractError` if the declaration contradicts itself.
    """

    name: str
    type: type[T]
    default: T | None
    mutability: Mutability
    doc: str
    choices: tuple[str, ...] | None = None
    minimum: float | None = None
    maximum: float | None = None
    is_file: bool = False
    is_local: bool = False
    is_bytes: bool = False

    def __post_init__(self) -> None:
        if not self.name or self.name != self.name.upper() or not self.name.isidentifier():
            raise PluginContractError(f"property name {self.name!r} is not an UPPER_CASE identifier")
        if self.type not in _TYPE_NAMES:
            allowed = ", ".join(t.__name__ for t in _TYPE_NAMES)
            raise PluginContractError(f"property {self.name}: type {self.type!r} is not one of {allowed}")
        if self.choices is not None and self.type not in (str, tuple):
            raise PluginContractError(f"property {self.name}: choices are for str and tuple properties")
        if (self.minimum is not None or self.maximum is not None) and self.type not in (int, float):
            raise PluginContractError(f"property {self.name}: limits are for int and float properties")
        if self.is_bytes and self.type is not int:
            raise PluginContractError(f"property {self.name}: only an int property can be a number of bytes")
        if self.is_file and self.type is not str:
            raise PluginContractError(f"property {self.name}: only a str property can be a file's path")
        if not self.doc:
            raise PluginContractError(f"property {self.name} has no doc")
        if self.default is None:
            if self.mutability is CONFIG:
                raise PluginContractError(f"property {self.name}: a config property needs a default")
            return
        try:
            object.__setattr__(self, "default", self.validate(self.default))
        except PropertyError as e:
            raise PluginContractError(f"the declared default is not allowed: {e}") from e

    @property
    def is_portable(self) -> bool:
        """Whether a blob may state a value."""
        return not (self.is_local or self.is_file)

    @property
    def type_name(self) -> str:
        """The type, in words: "bool", "tuple of str"."""
        return _TYPE_NAMES[self.type]

    @property
    def allowed(self) -> str:
        """The allowed values, in words: "int, at least 0", "one of LATENCY, THROUGHPUT"."""
        if self.is_bytes:
            least = "" if self.minimum is None else f", at least {self.minimum}"
            return f"int of bytes{least}, or text with a unit such as 512MiB or 1.5GB"
        if self.choices is not None:
            listed = ", ".join(self.choices)
            return f"one of {listed}" if self.type is str else f"tuple of any of {listed}"
        if self.minimum is not None and self.maximum is not None:
            return f"{self.type_name}, {self.minimum} to {self.maximum}"
        if self.minimum is not None:
            return f"{self.type_name}, at least {self.minimum}"
        if self.maximum is not None:
            return f"{self.type_name}, at most {self.maximum}"
        return self.type_name

    def validate(self, value: object) -> T:
        """Return `value` in its stored, immutable form. Raises `PropertyError` if it is not allowed.

        Conversions: numpy's scalars, and enumeration members, to the value that they stand for; int to float, lists to
        tuples, mappings to read-only ones; a path object to text; and a choice in other case to its declared spelling.
        """
        try:
            checked = _CHECKS[self.type](self, _plain(value))
        except (TypeError, ValueError, OverflowError, RecursionError) as e:
            reason = f" ({e})" if str(e) else ""
            message = f"property {self.name} takes {self.allowed}; got {shown(value)}{reason}"
            raise PropertyError(message) from None
        return checked  # type: ignore[no-any-return]

    def parse(self, text: str) -> T:
        """Parse a value from a command line's text. Raises `PropertyError` if it is not allowed.

        bool: true/false, yes/no, on/off, 1/0; tuple: separated by commas; mapping: JSON.
        """
        value: object = text
        try:
            if self.type is bool:
                value = _BOOL_TEXTS[text.strip().lower()]
            elif self.type in (int, float):
                value = text if self.is_bytes else self.type(text)  # type: ignore[call-arg]
            elif self.type is tuple:
                value = tuple(part.strip() for part in text.split(",")) if text.strip() else ()
            elif self.type is dict:
                value = json.loads(text)
        except (KeyError, ValueError, RecursionError):
            raise PropertyError(f"property {self.name} takes {self.allowed}; cannot read {text!r}") from None
        return self.validate(value)


def shown(value: object) -> str:
    """Return a value and its type for a message, shortened."""
    text = repr(value)
    text = text if len(text) <= 80 else text[:77] + "..."
    return f"{text} ({type(value).__name__})"


def _plain(value: object) -> object:
    """The plain value of an enumeration member, a numpy scalar or a path object."""
    if isinstance(value, enum.Enum) and not isinstance(value, (str, int)):
        value = value.value
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    # numpy is not imported for this check; its float64 and str_ are floats and strs already.
    if type(value).__module__ == "numpy" and hasattr(value, "item") and getattr(value, "ndim", None) == 0:
        return value.item()
    return value


def _check_bool(declared: Property[Any], value: object) -> bool:
    if not isinstance(value, bool):
        raise TypeError
    return value


def _check_int(declared: Property[Any], value: object) -> int:
    if declared.is_bytes and isinstance(value, str):
        value = _bytes_of(value)
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError
    number = int(value)
    _require_within(declared, number)
    return number


def _bytes_of(text: str) -> int:
    """The number of bytes that a text states."""
    match = _BYTES.fullmatch(text.strip())
    unit = None if match is None else _UNITS.get(match[2].lower())
    if match is None or unit is None:
        raise ValueError("it is not a number of bytes, kB, MB, GB, TB, KiB, MiB, GiB or TiB")
    number: str = match[1]
    return int(number) * unit if "." not in number else int(float(number) * unit + 0.5)


def _check_float(declared: Property[Any], value: object) -> float:
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        raise TypeError
    if not math.isfinite(number := float(value)):
        raise ValueError("it is not finite")
    _require_within(declared, number)
    return number


def _require_within(declared: Property[Any], value: float) -> None:
    below = declared.minimum is not None and value < declared.minimum
    above = declared.maximum is not None and value > declared.maximum
    if below or above:
        raise ValueError


def _check_str(declared: Property[Any], value: object) -> str:
    if not isinstance(value, str):
        raise TypeError
    # str.__str__ also converts members of a str enumeration to plain strings.
    text = str.__str__(value)
    text.encode()  # lone surrogates could not be written to a blob
    if declared.choices is None or text in declared.choices:
        return text
    spelled = [choice for choice in declared.choices if choice.lower() == text.lower()]
    if len(spelled) != 1:
        raise ValueError
    return spelled[0]


def _check_tuple(declared: Property[Any], value: object) -> tuple[str, ...]:
    if not isinstance(value, (tuple, list)):
        raise TypeError
    return tuple(_check_str(declared, _plain(element)) for element in value)


def _check_mapping(declared: Property[Any], value: object) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise TypeError
    frozen: Mapping[str, Any] = _frozen_json(value)
    return frozen


def _frozen_json(value: object) -> Any:
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, (int, float)):
        if not math.isfinite(value):
            raise ValueError("a number in it is not finite")
        return value
    if isinstance(value, (list, tuple)):
        return tuple(_frozen_json(element) for element in value)
    if isinstance(value, Mapping):
        if not all(isinstance(key, str) for key in value):
            raise TypeError("its keys must be str")
        return MappingProxyType({key: _frozen_json(element) for key, element in value.items()})
    raise TypeError(f"{type(value).__name__} has no JSON form")


_CHECKS: dict[type, Any] = {
    bool: _check_bool,
    int: _check_int,
    float: _check_float,
    str: _check_str,
    tuple: _check_tuple,
    dict: _check_mapping,
}
