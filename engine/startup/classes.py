"""`dataclass`: `dataclasses.dataclass` for a program that makes hundreds of classes before its first result.

The standard library compiles six functions for each frozen class, at 0.1 ms each. Here the classes share three, and the
others are compiled when they are first called.
"""

from __future__ import annotations

import dataclasses
import inspect
import sys
from abc import update_abstractmethods
from collections.abc import Callable, Iterable
from copy import copy
from dataclasses import MISSING, Field, FrozenInstanceError
from functools import cache
from reprlib import recursive_repr
from types import FunctionType, MemberDescriptorType
from typing import TYPE_CHECKING, Any, Final

__all__ = ["dataclass"]

if TYPE_CHECKING:
    from dataclasses import dataclass
else:

    def dataclass(
        cls: type | None = None,
        /,
        *,
        frozen: bool = False,
        eq: bool = True,
        slots: bool = False,
        kw_only: bool = False,
    ) -> Any:
        """Decorate a class like `dataclasses.dataclass`, with the arguments that the engine uses; no `InitVar`."""

        def made(cls: type) -> Any:
            return _made(cls, frozen, eq, slots, kw_only)

        return made if cls is None else made(cls)


class _Factory:
    """The default of an argument whose value a function makes, as signatures show it."""

    def __repr__(self) -> str:
        return "<factory>"


_FACTORY: Final = _Factory()


def _made(cls: Any, frozen: bool, eq: bool, slots: bool, kw_only: bool) -> Any:
    own = _own_fields(cls, kw_only)
    fields: dict[str, Field[Any]] = {}
    for base in cls.__mro__[-1:0:-1]:
        if (known := getattr(base, "__dataclass_params__", None)) is not None:
            if known.frozen is not frozen:
                raise TypeError(f"{cls.__name__} and its base {base.__name__}: both are frozen, or neither is")
            fields |= base.__dataclass_fields__
    fields |= own
    defined = dict(vars(cls))
    if slots:
        cls = _with_slots(cls, fields)
    else:
        _set_defaults(cls, own)
    # For `dataclasses` and classes that it makes of this one.
    cls.__dataclass_fields__, cls.__dataclass_params__ = fields, _parameters(frozen, eq)
    listed = dataclasses.fields(cls)
    if "__init__" not in defined:
        _set_initializer(cls, listed, frozen)
    positional = tuple(each.name for each in listed if each.init and not each.kw_only)
    cls.__match_args__ = positional  # type: ignore[misc]
    if "__repr__" not in defined:
        cls.__repr__ = _repr
    if "__replace__" not in defined:
        cls.__replace__ = _replaced
    if eq:
        _set_equality(cls, listed, frozen, defined)
    if frozen:
        cls.__setattr__, cls.__delattr__ = _refuse_assignment, _refuse_deletion
        if slots:
            cls.__getstate__ = defined.get("__getstate__", _state)
            cls.__setstate__ = defined.get("__setstate__", _set_state)
    update_abstractmethods(cls)
    return cls


def _own_fields(cls: Any, kw_only: bool) -> dict[str, Field[Any]]:
    """The fields that the class adds to those of its bases."""
    own = {}
    for name, annotation in cls.__annotations__.items():
        stated = str(annotation).partition("[")[0].removeprefix("typing.").removeprefix("dataclasses.")
        if stated == "ClassVar":
            continue
        if stated in ("InitVar", "KW_ONLY"):
            raise TypeError(f"{cls.__name__}.{name}: {annotation} is not supported; use dataclasses.dataclass")
        default = getattr(cls, name, MISSING)  # it may be inherited
        if isinstance(default, MemberDescriptorType):  # the slot of a base is none
            default = MISSING
        made: Any = default if isinstance(default, Field) else dataclasses.field(default=default)
        if type(made.default).__hash__ is None:
            raise ValueError(f"{cls.__name__}.{name}: the default is mutable, so all instances would share it")
        made.name, made.type, made._field_type = name, annotation, _FIELD_TYPE
        if made.kw_only is MISSING:
            made.kw_only = kw_only
        own[name] = made
    return own


@dataclasses.dataclass(init=False, repr=False, eq=False, match_args=False)
class _Plain:
    """A class that `dataclasses` makes: it tells what fields and classes need for `dataclasses.fields` and others."""

    field: int


_FIELD_TYPE: Final = _Plain.__dataclass_fields__["field"]._field_type  # type: ignore[attr-defined]


@cache
def _parameters(frozen: bool, eq: bool) -> Any:
    """The arguments of the decorator, for `dataclasses` and classes that it makes of the engine's."""
    made = copy(_Plain.__dataclass_params__)  # type: ignore[attr-defined]
    made.frozen, made.eq = frozen, eq
    return made


def _with_slots(cls: Any, fields: Iterable[str]) -> Any:
    """The class with slots for its fields, which a class can have only from the beginning."""
    inherited = {name for base in cls.__mro__[1:-1] for name in getattr(base, "__slots__", ())}
    body = {name: value for name, value in vars(cls).items() if name not in ("__dict__", "__weakref__", *fields)}
    body["__slots__"] = tuple(name for name in fields if name not in inherited)
    made = type(cls)(cls.__name__, cls.__bases__, body)
    made.__qualname__ = cls.__qualname__
    _redirect_super(body.values(), made)
    return made


def _redirect_super(members: Iterable[Any], cls: type) -> None:
    """Make `super()` and `__class__`, in the methods of a class that was made twice, refer to the second one."""
    for member in members:
        function: Any = member.fget if isinstance(member, property) else getattr(member, "__func__", member)
        names = function.__code__.co_freevars if isinstance(function, FunctionType) else ()
        if "__class__" in names:
            function.__closure__[names.index("__class__")].cell_contents = cls
            return  # all methods have the same cell


def _set_defaults(cls: type, own: dict[str, Field[Any]]) -> None:
    for name, each in own.items():
        if each.default is not MISSING:
            setattr(cls, name, each.default)
        elif name in vars(cls):
            delattr(cls, name)


class _Signature:
    """The signature of a class whose `__init__` is not compiled yet, for `inspect`, which asks the class for it."""

    def __init__(self, cls: type, compiled: Callable[[], Callable[..., Any]]) -> None:
        self._cls, self._compiled = cls, compiled

    def __get__(self, instance: object, owner: Any) -> inspect.Signature | None:
        if owner.__init__ is not vars(self._cls)["__init__"]:
            return None  # a class that derives from it, and has its own
        whole = inspect.signature(self._compiled())
        return whole.replace(parameters=list(whole.parameters.values())[1:])


def _set_initializer(cls: Any, fields: tuple[Field[Any], ...], frozen: bool) -> None:
    annotations = {each.name: each.type for each in fields if each.init} | {"return": None}

    def make() -> Any:
        made = _initializer(cls, fields, frozen)
        made.__annotations__ = annotations
        return made

    compiled = _set_later(cls, "__init__", make)
    cls.__init__.__annotations__ = annotations
    cls.__signature__ = _Signature(cls, compiled)


def _set_later(cls: Any, name: str, make: Callable[[], Any]) -> Callable[[], Any]:
    """Give the class a method that is made when it is first called: most classes of a process never need it."""

    def made() -> Any:
        method = make()
        if vars(cls).get(name) is stub:  # a program may have wrapped it
            setattr(cls, name, method)
        return method

    def first(self: Any, *args: Any, **kwargs: Any) -> Any:
        return made()(self, *args, **kwargs)

    # With the globals of the class's module, in which annotations are names.
    stub = FunctionType(first.__code__, _globals(cls), name, None, first.__closure__)
    setattr(cls, name, stub)
    return made


def _initializer(cls: type, fields: tuple[Field[Any], ...], frozen: bool) -> Any:
    values: dict[str, Any] = {"_set": object.__setattr__, "_FACTORY": _FACTORY}
    lines = []
    for each in fields:
        name, value = each.name, each.name
        if each.default_factory is not MISSING:
            values[f"_make_{name}"] = each.default_factory
            value = f"_make_{name}()" + (f" if {name} is _FACTORY else {name}" if each.init else "")
        elif not each.init and each.default is MISSING:
            continue
        elif not each.init:
            value = f"_default_{name}"
        if each.default is not MISSING:
            values[f"_default_{name}"] = each.default
        lines.append(f"_set(self, {name!r}, {value})" if frozen else f"self.{name} = {value}")
    if hasattr(cls, "__post_init__"):
        lines.append("self.__post_init__()")
    given = [each for each in fields if each.init]
    positional = [_argument(each) for each in given if not each.kw_only]
    named = [_argument(each) for each in given if each.kw_only]
    arguments = ["self", *positional, *(["*", *named] if named else [])]
    return _compiled(cls, "__init__", arguments, lines or ["pass"], values)


def _argument(field: Field[Any]) -> str:
    if field.default_factory is not MISSING:
        return f"{field.name}=_FACTORY"
    return field.name if field.default is MISSING else f"{field.name}=_default_{field.name}"


def _set_equality(cls: Any, fields: tuple[Field[Any], ...], frozen: bool, defined: dict[str, Any]) -> None:
    compared = [each.name for each in fields if each.compare]
    hashed = [each.name for each in fields if (each.compare if each.hash is None else each.hash)]
    is_equal = f"return {_tuple('self', compared)} == {_tuple('other', compared)}"
    if "__eq__" not in defined:
        lines = ["if other.__class__ is self.__class__:", f"  {is_equal}", "return NotImplemented"]
        _set_later(cls, "__eq__", lambda: _compiled(cls, "__eq__", ["self", "other"], lines, {}))
    # Python gives a class that defines `__eq__` a `__hash__` of None.
    if defined.get("__hash__") is not None:
        return
    cls.__hash__ = None
    if frozen:
        body = [f"return hash({_tuple('self', hashed)})"]
        _set_later(cls, "__hash__", lambda: _compiled(cls, "__hash__", ["self"], body, {}))


def _tuple(of: str, names: list[str]) -> str:
    return f"({''.join(f'{of}.{name}, ' for name in names)})"


def _compiled(cls: type, name: str, arguments: list[str], lines: list[str], values: dict[str, Any]) -> Any:
    """A method, by the lines of its body, in which `values` are names."""
    body = "\n  ".join(lines)
    text = f"def make({', '.join(values)}):\n def {name}({', '.join(arguments)}):\n  {body}\n return {name}"
    space: dict[str, Any] = {}
    exec(text, _globals(cls), space)
    made = space["make"](**values)
    made.__qualname__ = f"{cls.__qualname__}.{name}"
    return made


def _globals(cls: type) -> dict[str, Any]:
    return sys.modules[cls.__module__].__dict__


# -- methods of all classes ------------------------------------------------------------------------------------


@recursive_repr()
def _repr(self: Any) -> str:
    shown = (f"{each.name}={getattr(self, each.name)!r}" for each in dataclasses.fields(self) if each.repr)
    return f"{type(self).__qualname__}({', '.join(shown)})"


def _replaced(self: Any, /, **changes: Any) -> Any:
    """For `copy.replace`, of Python 3.13."""
    return dataclasses.replace(self, **changes)


def _refuse_assignment(self: Any, name: str, value: object) -> None:
    if _is_closed(self, name):
        raise FrozenInstanceError(f"cannot assign to field {name!r}")
    object.__setattr__(self, name, value)


def _refuse_deletion(self: Any, name: str) -> None:
    if _is_closed(self, name):
        raise FrozenInstanceError(f"cannot delete field {name!r}")
    object.__delattr__(self, name)


def _is_closed(self: Any, name: str) -> bool:
    """Whether an attribute is constant: any of a frozen dataclass, the fields alone of a class that derives from it."""
    return "__dataclass_fields__" in vars(type(self)) or name in type(self).__dataclass_fields__


def _state(self: Any) -> list[Any]:
    return [getattr(self, each.name) for each in dataclasses.fields(self)]


def _set_state(self: Any, state: list[Any]) -> None:
    for each, value in zip(dataclasses.fields(self), state, strict=True):
        object.__setattr__(self, each.name, value)
