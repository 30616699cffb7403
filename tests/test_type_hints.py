"""The type hints of public classes and functions can be resolved at run time, as documentation and other tools do."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Iterator
from typing import Any

import engine
import engine.blob
import engine.errors
import engine.ir
import engine.passes
import engine.plugin_api
import engine.properties
import engine.runtime

MODULES = [
    engine, engine.blob, engine.errors, engine.ir, engine.passes, engine.plugin_api, engine.properties, engine.runtime,
]  # fmt: skip
# Their modules are not imported where the hint stands: a circle, and what is loaded late, since few processes need it.
UNRESOLVED = {"Node.bodies", "Core.add_extension", "HostedNetwork.shadow", "HostedNetwork.submit"}


def functions() -> Iterator[tuple[str, Callable[..., Any]]]:
    classes: dict[type, None] = {}
    for module in MODULES:
        for name in getattr(module, "__all__", dir(module)):
            value = getattr(module, name)
            if inspect.isclass(value):
                classes |= dict.fromkeys(kind for kind in value.__mro__ if kind.__module__.startswith("engine"))
            elif inspect.isfunction(value):
                yield name, value
    for kind in classes:
        for name, member in vars(kind).items():
            if name.startswith("_") and name not in ("__init__", "__call__"):
                continue
            function = member.fget if isinstance(member, property) else getattr(member, "__func__", member)
            if inspect.isfunction(function):
                yield f"{kind.__name__}.{name}", function


def test_hints_can_be_resolved() -> None:
    unresolved = {}
    for name, function in functions():
        try:
            typing.get_type_hints(function)
        except NameError as e:
            unresolved[name] = str(e)
    assert unresolved.keys() == UNRESOLVED, unresolved
