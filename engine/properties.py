"""Typed properties: declared once; validation, listing, reading and documentation derive from that."""

from __future__ import annotations

import difflib
import enum
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Generic, TypeVar, overload

from engine.errors import PluginContractError, PropertyError

T = TypeVar("T")

_TYPE_NAMES: dict[type, str] = {
    bool: "bool",
    int: "int",
    float: "float",
    str: "str",
    tuple: "tuple of str",
    dict: "mapping",
}
_BOOL_TEXTS = {"true": True, "yes": True, "on": True, "1": True}
_BOOL_TEXTS |= {"false": False, "no": False, "off": False, "0": False}


class Mutability(enum.Enum):
    """Who determines a property's value, and when."""

    METRIC = "metric"
    """A fact that a device or network reports; nobody sets it."""
    CONFIG = "config"
    """Chosen by the user before a network is compiled or imported; readable afterwards."""


METRIC = Mutability.METRIC
CONFIG = Mutability.CONFIG


@dataclass(frozen=True, slots=True)
class Property(Generic[T]):
    """The declaration of one property.

    `type` is `bool`, `int`, `float`, `str`, `tuple` (of `str`) or `dict` (`str` keys, JSON values). A
    `CONFIG` property needs a `default`; a metric's default is what is reported unless the device answers.
    `choices` limits a `str`, and each element of a `tuple`; `minimum` and `maximum` limit a number.
    Raises `PluginContractError` where the declaration contradicts itself.
    """

    name: str
    type: type[T]
    default: T | None
    mutability: Mutability
    doc: str
    choices: tuple[str, ...] | None = None
    minimum: float | None = None
    maximum: float | None = None

    def __post_init__(self) -> None:
        if not self.name or self.name != self.name.upper() or not self.name.isidentifier():
            raise PluginContractError(f"property name {self.name!r} is not an UPPER_CASE identifier")
        if self.type not in _TYPE_NAMES:
            allowed = ", ".join(t.__name__ for t in _TYPE_NAMES)
            raise PluginContractError(f"property {self.name}: type {self.type!r} is none of {allowed}")
        if self.choices is not None and self.type not in (str, tuple):
            raise PluginContractError(f"property {self.name}: choices are for str and tuple properties")
        if (self.minimum is not None or self.maximum is not None) and self.type not in (int, float):
            raise PluginContractError(f"property {self.name}: limits are for int and float properties")
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
    def type_name(self) -> str:
        """The type, in words: "bool", "tuple of str"."""
        return _TYPE_NAMES[self.type]

    @property
    def allowed(self) -> str:
        """What a value may be, in words: "int, at least 0", "one of LATENCY, THROUGHPUT"."""
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
        """Return `value` in its stored, immutable form; `PropertyError` where it is not allowed.

        Nothing is converted but an `int` for a `float`, a list for a tuple, and any mapping for a mapping.
        """
        try:
            checked = _CHECKS[self.type](self, value)
        except (TypeError, ValueError, OverflowError, RecursionError) as e:
            reason = f" ({e})" if str(e) else ""
            shown = _shown(value)
            message = f"property {self.name} takes {self.allowed}; got {shown}{reason}"
            raise PropertyError(message) from None
        return checked  # type: ignore[no-any-return]

    def parse(self, text: str) -> T:
        """Read a value from text, as a command line gives it; `PropertyError` where it is not allowed.

        bool: true/false, yes/no, on/off, 1/0; tuple: separated by commas; mapping: JSON.
        """
        value: object = text
        try:
            if self.type is bool:
                value = _BOOL_TEXTS[text.strip().lower()]
            elif self.type in (int, float):
                value = self.type(text)  # type: ignore[call-arg]
            elif self.type is tuple:
                value = tuple(part.strip() for part in text.split(",")) if text.strip() else ()
            elif self.type is dict:
                value = json.loads(text)
        except (KeyError, ValueError, RecursionError):
            raise PropertyError(f"property {self.name} takes {self.allowed}; cannot read {text!r}") from None
        return self.validate(value)


def _shown(value: object) -> str:
    text = repr(value)
    text = text if len(text) <= 80 else text[:77] + "..."
    return f"{text} ({type(value).__name__})"


def _check_bool(declared: Property[Any], value: object) -> bool:
    if not isinstance(value, bool):
        raise TypeError
    return value


def _check_int(declared: Property[Any], value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError
    number = int(value)
    _require_within(declared, number)
    return number


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
    # str.__str__ also turns members of a str enumeration into plain strings.
    text = str.__str__(value)
    text.encode()  # lone surrogates could not be written to a blob
    if declared.choices is not None and text not in declared.choices:
        raise ValueError
    return text


def _check_tuple(declared: Property[Any], value: object) -> tuple[str, ...]:
    if not isinstance(value, (tuple, list)):
        raise TypeError
    return tuple(_check_str(declared, element) for element in value)


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


def _plain_json(value: object) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain_json(element) for key, element in value.items()}
    if isinstance(value, tuple):
        return [_plain_json(element) for element in value]
    return value


_CHECKS: dict[type, Any] = {
    bool: _check_bool,
    int: _check_int,
    float: _check_float,
    str: _check_str,
    tuple: _check_tuple,
    dict: _check_mapping,
}


class PropertySet:
    """Property declarations in order, by name. Immutable."""

    __slots__ = ("_by_name",)

    def __init__(self, *properties: Property[Any]) -> None:
        self._by_name: dict[str, Property[Any]] = {}
        for declared in properties:
            if declared.name in self._by_name:
                raise PluginContractError(f"property {declared.name} is declared twice")
            self._by_name[declared.name] = declared

    def combined(self, others: Iterable[Property[Any]]) -> PropertySet:
        """Return these and `others`; one of a name already here refines it and must keep its type and use."""
        merged = dict(self._by_name)
        for other in PropertySet(*others):
            known = merged.get(other.name, other)
            if (known.type, known.mutability) != (other.type, other.mutability):
                raise PluginContractError(
                    f"property {other.name} is declared as a {other.mutability.value} of {other.type_name}, "
                    f"and elsewhere as a {known.mutability.value} of {known.type_name}; rename one of them"
                )
            merged[other.name] = other
        return PropertySet(*merged.values())

    def of(self, mutability: Mutability) -> PropertySet:
        """Return those of one mutability."""
        return PropertySet(*(p for p in self if p.mutability is mutability))

    @property
    def names(self) -> tuple[str, ...]:
        """The names, in order of declaration."""
        return tuple(self._by_name)

    def require(self, name: str, mutability: Mutability | None = None, *, where: str = "") -> Property[Any]:
        """Return the property `name`; `PropertyError` with the allowed names where it is no such one."""
        prefix = f"{where}: " if where else ""
        known = self._by_name.get(name) if isinstance(name, str) else None
        if known is not None and mutability in (None, known.mutability):
            return known
        if known is not None and known.mutability is METRIC:
            raise PropertyError(f"{prefix}{name} is a read-only metric and cannot be configured")
        names = self.of(mutability).names if mutability else self.names
        if known is not None:
            raise PropertyError(f"{prefix}{name} is a config key, not a metric; metrics: {', '.join(names)}")
        close = difflib.get_close_matches(str(name).upper(), names, n=1)
        hint = f" did you mean {close[0]}?" if close else ""
        kind = mutability.value if mutability else "property"
        raise PropertyError(f"{prefix}unknown {kind} {name!r};{hint} allowed: {', '.join(names) or 'none'}")

    def __iter__(self) -> Iterator[Property[Any]]:
        return iter(self._by_name.values())

    def __len__(self) -> int:
        return len(self._by_name)

    def __contains__(self, name: object) -> bool:
        return name in self._by_name or (isinstance(name, Property) and name.name in self._by_name)

    def __getitem__(self, name: str) -> Property[Any]:
        return self.require(name)

    def __repr__(self) -> str:
        return f"PropertySet({', '.join(self._by_name)})"


class Config(Mapping[str, Any]):
    """Validated values of config properties: explicit ones over the declared defaults. Immutable.

    `config["NUM_STREAMS"]` reads by name; `config[NUM_STREAMS]`, by declaration, is also typed. Iterates over
    every config key. `where` names the device in messages. Raises `PropertyError` on unknown keys and
    values that a declaration does not allow.
    """

    __slots__ = ("_explicit", "_keys", "_properties", "_where")

    def __init__(self, properties: PropertySet, values: Mapping[str, object] | None = None, *, where: str = "") -> None:
        if values is not None and not isinstance(values, Mapping):
            raise PropertyError(f"a configuration is a mapping of names to values; got {_shown(values)}")
        self._properties = properties
        self._keys = properties.of(CONFIG)
        self._where = where
        self._explicit = MappingProxyType(
            {name: self._validated(name, value) for name, value in (values or {}).items()}
        )

    def _validated(self, name: str, value: object) -> object:
        declared = self._properties.require(name, CONFIG, where=self._where)
        try:
            return declared.validate(value)
        except PropertyError as e:
            raise PropertyError(f"{self._where}: {e}" if self._where else str(e)) from None

    @property
    def properties(self) -> PropertySet:
        """The declarations of every key."""
        return self._keys

    @property
    def explicit(self) -> Mapping[str, Any]:
        """The values that were given, without the defaults."""
        return self._explicit

    def merged(self, overrides: Mapping[str, object] | None) -> Config:
        """Return these values overridden by `overrides`; of a `Config`, only its explicit values override."""
        if not overrides:
            return self
        given = overrides.explicit if isinstance(overrides, Config) else overrides
        if not isinstance(given, Mapping):
            raise PropertyError(f"a configuration is a mapping of names to values; got {_shown(given)}")
        return Config(self._properties, {**self._explicit, **given}, where=self._where)

    def to_json(self) -> dict[str, Any]:
        """Return the explicit values as plain JSON values, for a manifest or a cache key."""
        return {name: _plain_json(value) for name, value in self._explicit.items()}

    @classmethod
    def from_json(cls, properties: PropertySet, values: object, *, where: str = "") -> Config:
        """Read what `to_json` returned; it is validated like any user's values."""
        if not isinstance(values, Mapping):
            raise PropertyError(f"a configuration is a mapping of names to values; got {_shown(values)}")
        return cls(properties, values, where=where)

    @overload
    def __getitem__(self, key: Property[T]) -> T: ...
    @overload
    def __getitem__(self, key: str) -> Any: ...
    def __getitem__(self, key: Property[Any] | str) -> Any:
        name = key.name if isinstance(key, Property) else key
        declared = self._properties.require(name, CONFIG, where=self._where)
        return self._explicit.get(name, declared.default)

    def get(self, key: Any, default: Any = None) -> Any:
        """Return the value of `key`, or `default` where there is no such key."""
        if key not in self:
            return default
        return self[key]

    def __contains__(self, key: object) -> bool:
        return key in self._keys

    def __iter__(self) -> Iterator[str]:
        return iter(self._keys.names)

    def __len__(self) -> int:
        return len(self._keys)

    def __repr__(self) -> str:
        given = ", ".join(f"{name}={value!r}" for name, value in self._explicit.items())
        return f"Config({given})"


def describe(properties: Iterable[Property[Any]]) -> str:
    """Return the declarations as a Markdown table, for the documentation and the command line."""
    rows = ["| Name | Allowed | Default | Meaning |", "|---|---|---|---|"]
    for declared in properties:
        default = "" if declared.default is None else f"`{json.dumps(_plain_json(declared.default))}`"
        meaning = declared.doc.replace("|", "\\|")
        rows.append(f"| `{declared.name}` | {declared.allowed} | {default} | {meaning} |")
    return "\n".join(rows) + "\n"


# -- metrics of devices and of networks ---------------------------------------------------------------------

SUPPORTED_METRICS: Property[tuple[str, ...]] = Property(
    "SUPPORTED_METRICS", tuple, (), METRIC, "The names of all metrics that can be asked for here."
)
SUPPORTED_CONFIG_KEYS: Property[tuple[str, ...]] = Property(
    "SUPPORTED_CONFIG_KEYS", tuple, (), METRIC, "The names of all config keys, those of the executors included."
)
AVAILABLE_DEVICES: Property[tuple[str, ...]] = Property(
    "AVAILABLE_DEVICES", tuple, None, METRIC, "The ids of the plugin's devices; the first one is the default."
)
FULL_DEVICE_NAME = Property("FULL_DEVICE_NAME", str, None, METRIC, "The device's name in full, for people.")
OPTIMIZATION_CAPABILITIES: Property[tuple[str, ...]] = Property(
    "OPTIMIZATION_CAPABILITIES",
    tuple,
    (),
    METRIC,
    "What the device computes natively: element types (f32, bf16, i8) and capabilities of its own.",
)
IMPORT_EXPORT_SUPPORT = Property(
    "IMPORT_EXPORT_SUPPORT", bool, False, METRIC, "Whether compiled networks can be exported and imported."
)
NETWORK_NAME = Property("NETWORK_NAME", str, "", METRIC, "The name of the model that was compiled.")
OPTIMAL_NUMBER_OF_INFER_REQUESTS = Property(
    "OPTIMAL_NUMBER_OF_INFER_REQUESTS",
    int,
    1,
    METRIC,
    "How many concurrent requests keep the device busy; what AsyncInferQueue takes by default.",
    minimum=1,
)
EXECUTION_DEVICES: Property[tuple[str, ...]] = Property(
    "EXECUTION_DEVICES", tuple, None, METRIC, "The devices on which the network runs."
)
LOADED_FROM_CACHE = Property(
    "LOADED_FROM_CACHE", bool, False, METRIC, "Whether the network came from CACHE_DIR instead of being compiled."
)

# -- configuration ------------------------------------------------------------------------------------------

NUM_STREAMS = Property(
    "NUM_STREAMS",
    int,
    0,
    CONFIG,
    "How many inferences of a network run at once; 0 lets the device choose.",
    minimum=0,
    maximum=1024,
)
INFERENCE_NUM_THREADS = Property(
    "INFERENCE_NUM_THREADS",
    int,
    0,
    CONFIG,
    "How many host threads a network may compute on; 0 lets the device choose.",
    minimum=0,
    maximum=4096,
)
EXCLUSIVE_ASYNC_REQUESTS = Property(
    "EXCLUSIVE_ASYNC_REQUESTS",
    bool,
    False,
    CONFIG,
    "Background inferences of all networks with this setting run one after the other on the device.",
)
DEVICE_ID = Property("DEVICE_ID", str, "", CONFIG, "Which of the plugin's devices to use; empty is the first.")
PERF_COUNT = Property("PERF_COUNT", bool, False, CONFIG, "Record when each stage and node of an inference runs.")
PERFORMANCE_HINT = Property(
    "PERFORMANCE_HINT",
    str,
    "LATENCY",
    CONFIG,
    "What the device optimises for where other settings leave it the choice.",
    choices=("LATENCY", "THROUGHPUT"),
)
CACHE_DIR = Property(
    "CACHE_DIR", str, "", CONFIG, "The folder in which compiled networks are kept and found again; empty is none."
)
ENABLE_MMAP = Property(
    "ENABLE_MMAP",
    bool,
    False,
    CONFIG,
    "Map a blob's file instead of reading it. Quick, but if another process truncates the file while the "
    "network lives, this process is killed.",
)
DEVICE_PRIORITIES = Property(
    "DEVICE_PRIORITIES",
    str,
    "",
    CONFIG,
    'For a device that runs on others: their names, best first, as after the colon of "HETERO:OPENCL,CPU".',
)

EXECUTOR_PROPERTIES = PropertySet(NUM_STREAMS, INFERENCE_NUM_THREADS, EXCLUSIVE_ASYNC_REQUESTS)
"""The config keys of the executors on which requests run."""

CONFIG_PROPERTIES = PropertySet(DEVICE_ID, PERF_COUNT, PERFORMANCE_HINT, *EXECUTOR_PROPERTIES, CACHE_DIR, ENABLE_MMAP)
"""The config keys that every device takes."""

DEVICE_PROPERTIES = PropertySet(
    SUPPORTED_METRICS,
    SUPPORTED_CONFIG_KEYS,
    AVAILABLE_DEVICES,
    FULL_DEVICE_NAME,
    OPTIMIZATION_CAPABILITIES,
    IMPORT_EXPORT_SUPPORT,
    *CONFIG_PROPERTIES,
)
"""What can be asked of every device."""

NETWORK_METRICS = PropertySet(
    SUPPORTED_METRICS,
    SUPPORTED_CONFIG_KEYS,
    NETWORK_NAME,
    OPTIMAL_NUMBER_OF_INFER_REQUESTS,
    EXECUTION_DEVICES,
    LOADED_FROM_CACHE,
)
"""The metrics of every compiled network."""
