"""The catalog of passes: name, source location and purpose of each."""

from __future__ import annotations

import difflib
import importlib
import inspect
import logging
import pkgutil
from collections.abc import Iterable, Iterator
from types import ModuleType

from engine.errors import PassError
from engine.passes.base import Pass
from engine.passes.manager import Manager
from engine.passes.rewrite import BackwardGraphRewrite, GraphRewrite, MatcherPass
from engine.startup import dataclass

_log = logging.getLogger("engine.passes")


@dataclass(frozen=True, slots=True)
class PassInfo:
    """One pass: its name, kind, one-line summary, class, and the file and line of the class."""

    name: str
    kind: str
    doc: str
    cls: type[Pass]
    file: str
    line: int


def list_passes(packages: Iterable[str] = ()) -> list[PassInfo]:
    """Every pass of the engine and of other `packages` (a plugin's, say), sorted by name.

    Imports all of their modules; a module that cannot be imported is logged and skipped. Raises `PassError` if two
    passes have the same name, since PassConfig and region files could not distinguish them.
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
                    f"two passes are named {info.name!r}: {known.file}:{known.line} and {info.file}:{info.line}; "
                    "give one of them another `name`"
                )
    return sorted(found.values(), key=lambda info: info.name)


def find_pass(name: str, packages: Iterable[str] = ()) -> PassInfo:
    """The pass named `name`. Raises `PassError` naming close matches."""
    passes = {info.name: info for info in list_passes(packages)}
    if name not in passes:
        close = difflib.get_close_matches(name, list(passes), n=3)
        hint = f"did you mean {', '.join(close)}?" if close else f"available: {', '.join(passes)}"
        raise PassError(f"no pass is named {name!r}; {hint}")
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
    _log.warning("module %s is skipped in the pass catalog: %s", name, error or "it cannot be imported")


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
    """The kind of a pass: the framework class that it derives from."""
    for kind in (MatcherPass, BackwardGraphRewrite, GraphRewrite, Manager):
        if issubclass(cls, kind):
            return kind.__name__
    return "ModelPass"
