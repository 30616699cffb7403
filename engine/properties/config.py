"""`PropertySet`, a set of declarations; `Config`, validated values; and their documentation."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, overload

from engine.errors import PluginContractError, PropertyError
from engine.properties.declaration import CONFIG, METRIC, NO_LIMIT, Mutability, Property, T, shown

_OF_DEVICES: Final = "DEVICE_PROPERTIES"


class PropertySet:
    """Property declarations in order, by name. Immutable."""

    __slots__ = ("_by_name",)

    def __init__(self, *properties: Property[Any]) -> None:
        self._by_name: dict[str, Property[Any]] = {}
        for declared in properties:
            if not isinstance(declared, Property):
                raise PluginContractError(f"a property must be declared as Property(name, type, ...); got {declared!r}")
            if declared.name in self._by_name:
                raise PluginContractError(f"property {declared.name} is declared twice")
            self._by_name[declared.name] = declared

    def combined(self, others: Iterable[Property[Any]]) -> PropertySet:
        """Return these and `others`, which override the same names, but must keep their type and mutability."""
        if isinstance(others, Property) or not isinstance(others, Iterable):
            raise PluginContractError(f"properties must be a tuple of Property, even for a single one; got {others!r}")
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
        """Return the subset of the properties with this mutability."""
        return PropertySet(*(p for p in self if p.mutability is mutability))

    @property
    def names(self) -> tuple[str, ...]:
        """The names, in order of declaration."""
        return tuple(self._by_name)

    def require(self, name: str, mutability: Mutability | None = None, *, where: str = "") -> Property[Any]:
        """Return the property `name`. Raises `PropertyError` with the allowed names if there is none."""
        prefix = f"{where}: " if where else ""
        known = self._by_name.get(name) if isinstance(name, str) else None
        if known is not None and mutability in (None, known.mutability):
            return known
        if known is not None and known.mutability is METRIC:
            raise PropertyError(f"{prefix}{name} is a read-only metric and cannot be configured")
        names = self.of(mutability).names if mutability else self.names
        if known is not None:
            raise PropertyError(f"{prefix}{name} is a config key, not a metric; metrics: {', '.join(names)}")
        close = _similar(str(name).upper(), names)
        hint = f" did you mean {close}?" if close else ""
        kind = mutability.value if mutability else "property"
        rest = f"; a key of a device that it runs on is given in {_OF_DEVICES}" if _OF_DEVICES in names else ""
        raise PropertyError(f"{prefix}unknown {kind} {name!r};{hint} allowed: {', '.join(names) or 'none'}{rest}")

    def __iter__(self) -> Iterator[Property[Any]]:
        return iter(self._by_name.values())

    def __len__(self) -> int:
        return len(self._by_name)

    def __contains__(self, name: object) -> bool:
        key = name.name if isinstance(name, Property) else name
        return isinstance(key, str) and key in self._by_name

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
            raise PropertyError(f"a configuration must be a mapping of names to values; got {shown(values)}")
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
        """The declarations of all keys that the config may have."""
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
            raise PropertyError(f"a configuration must be a mapping of names to values; got {shown(given)}")
        return Config(self._properties, {**self._explicit, **given}, where=self._where)

    def portable(self) -> Config:
        """Return the explicit values that a blob may state."""
        kept = {name: value for name, value in self._explicit.items() if self._keys[name].is_portable}
        return Config(self._properties, kept, where=self._where)

    def to_json(self) -> dict[str, Any]:
        """Return the explicit values as plain JSON values, for a manifest or a cache key."""
        return {name: _plain_json(value) for name, value in self._explicit.items()}

    @classmethod
    def from_json(cls, properties: PropertySet, values: object, *, where: str = "") -> Config:
        """Read the result of `to_json`, validated like a user's values."""
        if not isinstance(values, Mapping):
            raise PropertyError(f"a configuration must be a mapping of names to values; got {shown(values)}")
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
        """Return the value of `key`, or `default` if the key does not exist."""
        if key not in self:
            return default
        return self[key]

    def __contains__(self, key: object) -> bool:
        return key in self._keys

    def __iter__(self) -> Iterator[str]:
        return iter(self._keys.names)

    def __len__(self) -> int:
        return len(self._keys)

    def _repr_html_(self) -> str:
        from engine.drawing.html import html_table

        rows = [(name, self[name], "given" if name in self._explicit else "default") for name in self]
        return html_table(f"Config of {self._where}" if self._where else "Config", ("Key", "Value", ""), rows)

    def __repr__(self) -> str:
        given = ", ".join(f"{name}={value!r}" for name, value in self._explicit.items())
        return f"Config({given})"


def _similar(name: str, names: Sequence[str]) -> str:
    """The name that was probably meant: the shortest that contains all words of `name`, else a close one, else "".

    Words are the same in the singular and the plural.
    """

    def words(text: str) -> set[str]:
        return {word.removesuffix("S") for word in text.split("_")} - {""}

    containing = [each for each in names if words(name) and words(name) <= words(each)]
    if containing:
        return min(containing, key=len)
    import difflib  # for messages of errors alone

    return next(iter(difflib.get_close_matches(name, names, n=1)), "")


def describe(properties: Iterable[Property[Any]]) -> str:
    """Return the declarations as a Markdown table, for the documentation and the command line."""
    rows = ["| Name | Allowed | Default | Meaning |", "|---|---|---|---|"]
    for declared in properties:
        default = "" if declared.default is None else f"`{json.dumps(_plain_json(declared.default))}`"
        if declared.is_bytes and declared.default == NO_LIMIT:
            default = "no limit"
        meaning = declared.doc.replace("|", "\\|")
        rows.append(f"| `{declared.name}` | {declared.allowed} | {default} | {meaning} |")
    return "\n".join(rows) + "\n"


def _plain_json(value: object) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain_json(element) for key, element in value.items()}
    if isinstance(value, tuple):
        return [_plain_json(element) for element in value]
    return value
