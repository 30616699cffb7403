"""`ExtensionSet`: the extensions of one core: added to it, or found in installed packages."""

from __future__ import annotations

import logging
from collections.abc import Collection
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Final

from engine.blob import BlobManifest
from engine.errors import EngineError, ExtensionConflictError, ExtensionError, MissingExtensionError
from engine.registry.installed import InstalledEntryPoints
from engine.startup import dataclass

if TYPE_CHECKING:
    from engine.extensions.extension import Extension
    from engine.extensions.sources import ExtensionSource
    from engine.ir import Model

GROUP: Final = "engine.ops"
"""The entry-point group: each entry names an `Extension`, or a module that has one."""
REQUIREMENT: Final = "extensions"
"""The requirement of a blob that lists the extensions whose operators its model uses, each as "name version"."""

_WAYS: Final = (
    "call core.add_extension with it, pass --extension to the command, or install a package that registers it as an "
    f"entry point of {GROUP}"
)
_log = logging.getLogger("engine.extensions")


@dataclass(frozen=True, slots=True)
class ExtensionInfo:
    """An extension of a core: its name and version, its operators as "domain.name", and where it comes from.

    `native` are the operators that have a native kernel.
    """

    name: str
    version: str
    operators: tuple[str, ...]
    native: tuple[str, ...]
    origin: str

    def __str__(self) -> str:
        return f"{self.name} {self.version}"


class ExtensionSet:
    """The extensions of a core. Thread-safe.

    Those of installed packages are loaded when a model or a blob is first read; one that cannot be loaded is in
    `failures`, and affects no other.

    Args:
        installed: the entry points of the environment.
        lock: a reentrant lock.
    """

    def __init__(self, installed: InstalledEntryPoints, lock: AbstractContextManager[object]) -> None:
        self._installed = installed
        self._added: dict[str, ExtensionInfo] = {}
        self._sources: dict[str, str] = {}
        self._failures: dict[str, EngineError] = {}
        self._is_searched = self._is_searching = False
        self._lock = lock

    @property
    def infos(self) -> tuple[ExtensionInfo, ...]:
        """The extensions that can be used, sorted by name. Loads the installed ones first."""
        self.load_installed()
        return tuple(info for _, info in sorted(self._added.items()))

    @property
    def failures(self) -> dict[str, EngineError]:
        """Why extensions of installed packages cannot be used, by the name of the entry point."""
        self.load_installed()
        return dict(self._failures)

    @property
    def names(self) -> frozenset[str]:
        """All usable extensions, each as "name version"."""
        self.load_installed()
        return frozenset(map(str, self._added.values()))

    @property
    def sources(self) -> dict[str, str]:
        """What `add` was given for each extension, as "name version": the name of a module, or an absolute path.

        It is empty for objects that another process cannot find by a name.
        """
        return dict(self._sources)

    def add(self, source: ExtensionSource) -> ExtensionInfo:
        """Add an extension, all of its operators or none. Adding it again has no effect.

        Raises `ExtensionError`, and `ExtensionConflictError` if it defines an operator that is defined already.
        """
        from engine.extensions.sources import name_of, resolve

        self.load_installed()
        origin = source if isinstance(source, str) else getattr(source, "__name__", type(source).__name__)
        info = self._add(resolve(source), str(origin))
        self._sources.setdefault(str(info), name_of(source))
        return info

    def check(self, model: Model) -> tuple[str, ...]:
        """The extensions whose operators the model uses, each as "name version", sorted.

        Raises `MissingExtensionError`, naming a node, for one that this core does not have, though another has it.
        """
        from engine.ir.walk import all_nodes
        from engine.ops.origin import extension_of

        needed: dict[str, None] = {}
        for node in all_nodes(model):
            name = extension_of(node) if node.domain else ""
            if not name or name in needed:
                continue
            if name not in self.names:
                raise MissingExtensionError(
                    f"{node}: operator {node.domain}.{node.op_type} is of extension {name}, which this core "
                    f"does not have; {_WAYS}"
                )
            needed[name] = None
        return tuple(sorted(needed))

    def load_installed(self) -> None:
        """Load the extensions of installed packages, at the first call."""
        if self._is_searched:
            return
        with self._lock:
            if self._is_searched or self._is_searching:  # an extension asks for the others while it is loaded
                return
            self._is_searching = True
            try:
                for distribution, entries in self._installed.of(GROUP):
                    for entry in entries:
                        self._load(entry.name, entry.value, distribution)
                self._is_searched = True
            finally:  # also after Ctrl-C, which leaves the rest to the next call
                self._is_searching = False

    def _load(self, name: str, target: str, distribution: str) -> None:
        from engine.extensions.sources import resolve
        from engine.ops.extension import error_text

        origin = f"{target} of {distribution}"
        try:
            self._add(resolve(target), origin)
        except (Exception, SystemExit) as e:
            self._failures[name] = ExtensionError(f"extension {name} ({origin}) cannot be loaded: {error_text(e)}")
            self._failures[name].__cause__ = e
            _log.warning("%s", self._failures[name])

    def _add(self, extension: Extension, origin: str) -> ExtensionInfo:
        from engine.ops.extension import define

        with self._lock:
            known = self._added.get(extension.name)
            if known is not None and known.version != extension.version:
                raise ExtensionConflictError(
                    f"extension {extension}: this core has version {known.version}, from {known.origin}"
                )
            operators = extension.loaded()
            define(operators, str(extension))
            if known is None:
                native = tuple(str(each) for each in operators if each.kernel is not None)
                known = ExtensionInfo(extension.name, extension.version, tuple(map(str, operators)), native, origin)
                self._added[extension.name] = known
            return known


def missing_reasons(manifest: BlobManifest, available: Collection[str]) -> tuple[str, ...]:
    """Why a blob does not load with these extensions, one sentence for each that it needs and that is not there."""
    required = manifest.requirements.get(REQUIREMENT, ())
    needed = [required] if isinstance(required, str) else list(required)
    versions = {name: version for name, _, version in (each.rpartition(" ") for each in available)}
    reasons = []
    for each in needed:
        if each in available:
            continue
        name = each.rpartition(" ")[0]
        other = f"; this core has version {versions[name]} of it" if name in versions else ""
        reasons.append(
            f"the blob needs extension {each}, which this core does not have{other}: {_WAYS}. The blob itself cannot "
            "load it"
        )
    return tuple(reasons)
