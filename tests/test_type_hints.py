"""The type hints of public classes and functions can be resolved at run time, as documentation and other tools do."""

from __future__ import annotations

import ast
import importlib
import inspect
import sys
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


def for_type_checkers(module: str) -> dict[str, Any]:
    """The names that a module imports for type checkers alone, which tools import likewise to resolve its hints."""
    found = {}
    for node in ast.walk(ast.parse(inspect.getsource(sys.modules[module]))):
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            for each in node.body:
                if isinstance(each, ast.ImportFrom) and (each.module or "").startswith("engine"):
                    home = importlib.import_module(each.module or "")
                    found |= {alias.asname or alias.name: getattr(home, alias.name) for alias in each.names}
    return found


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
    unresolved, names = {}, dict[str, dict[str, Any]]()
    for name, function in functions():
        module = function.__module__
        if module not in names:
            names[module] = for_type_checkers(module)
        try:
            typing.get_type_hints(function, localns=names[module])
        except NameError as e:
            unresolved[name] = str(e)
    assert unresolved == {}
