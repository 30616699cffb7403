"""The catalog of passes: what exists, where it is written, and what it does, so that none is written twice."""

from __future__ import annotations

import difflib
import importlib
import inspect
import logging
import pkgutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from types import ModuleType

from engine.errors import PassError
from engine.passes.base import Pass
from engine.passes.manager import Manager
from engine.passes.rewrite import BackwardGraphRewrite, GraphRewrite, MatcherPass

_log = logging.getLogger("engine.passes")


@dataclass(frozen=True, slots=True)
class PassInfo:
    """One pass: its name, its kind, what it does in one line, its class, and the file and line of that."""

    name: str
    kind: str
    doc: str
    cls: type[Pass]
    file: str
    line: int


def list_passes(packages: Iterable[str] = ()) -> list[PassInfo]:
    """Every pass of the engine and of other `packages` (a plugin's, say), sorted by name.

    Imports all of their modules; one that cannot be imported here is logged and left out. Raises `PassError` where
    two passes have one name, since PassConfig and region files could not tell them apart.
    """
    found: dict[str, PassInfo] = {}
    for module in _modules(["engine.passes.common", *packages]):
        for item in vars(module).values():
            if not _is_pass_of(item, module):
                continue
            info = _describe(item)
            known = found.setdefault(info.name, info)
            if known.cls is not info.cls:
                raise PassError(
                    f"two passes are called {info.name!r}: {known.file}:{known.line} and {info.file}:{info.line}; "
                    "give one of them another `name`"
                )
    return sorted(found.values(), key=lambda info: info.name)


def find_pass(name: str, packages: Iterable[str] = ()) -> PassInfo:
    """The pass of that name. Raises `PassError` naming close matches."""
    passes = {info.name: info for info in list_passes(packages)}
    if name not in passes:
        close = difflib.get_close_matches(name, list(passes), n=3)
        hint = f"did you mean {', '.join(close)}?" if close else f"there are {', '.join(passes)}"
        raise PassError(f"no pass is called {name!r}; {hint}")
    return passes[name]


def _modules(packages: Iterable[str]) -> Iterator[ModuleType]:
    for name in dict.fromkeys(packages):
        package = importlib.import_module(name)
        yield package
        for info in pkgutil.walk_packages(getattr(package, "__path__", ()), f"{name}.", onerror=_left_out):
            try:
                yield importlib.import_module(info.name)
            except Exception as e:
                _left_out(info.name, e)


def _left_out(name: str, error: Exception | None = None) -> None:
    _log.warning("module %s is left out of the catalog of passes: %s", name, error or "it cannot be imported")


def _is_pass_of(item: object, module: ModuleType) -> bool:
    return (
        isinstance(item, type)
        and issubclass(item, Pass)
        and item.__module__ == module.__name__
        and not inspect.isabstract(item)
        and not item.__name__.startswith("_")
    )


def _describe(cls: type[Pass]) -> PassInfo:
    _, line = inspect.getsourcelines(cls)
    doc = inspect.cleandoc(cls.__doc__ or "").split("\n\n")[0].replace("\n", " ")
    return PassInfo(cls.name, kind_of(cls), doc, cls, inspect.getsourcefile(cls) or "", line)


def kind_of(cls: type[Pass]) -> str:
    """The kind of a pass, as its users know it: the framework's class that it derives from."""
    for kind in (MatcherPass, BackwardGraphRewrite, GraphRewrite, Manager):
        if issubclass(cls, kind):
            return kind.__name__
    return "ModelPass"
