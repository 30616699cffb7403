"""What the code that compiles is: the files of the engine and of plugins, and the versions of libraries."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Iterator
from typing import Any, Final

import numpy as np

from engine.core.cache import LOADED_NS
from engine.files.digest import sha256
from engine.plugin_api import Plugin

_ENGINE_FOLDER: Final = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_WITHOUT_CODE: Final = "__pycache__"
_INSTALLED: Final = ("site-packages", "dist-packages")


class CodeReader:
    """Reads the state of the files of packages: their names, sizes and times of change.

    A version tells releases apart, but not the states of a package that someone works on.

    Args:
        is_installed_too: whether packages that are installed count, whose version else suffices. Takes some
            milliseconds: the status of each file is read.

    Attributes:
        is_known: whether all code that was asked for is in files.
        is_loaded: whether this process has loaded what these files have now.
    """

    def __init__(self, *, is_installed_too: bool) -> None:
        self.is_known = self.is_loaded = True
        self._is_installed_too = is_installed_too
        self._digests: dict[str, str] = {}

    def digest(self, plugin: Plugin) -> str:
        """A hash of the state of the engine and of the packages, or modules, of a plugin's classes."""
        places = {_ENGINE_FOLDER}.union(*map(_places, type(plugin).__mro__))
        return ":".join(sorted(filter(None, map(self._digest, places))))

    def _digest(self, place: str) -> str:
        if place not in self._digests:
            self._digests[place] = self._read(place)
        return self._digests[place]

    def _read(self, place: str) -> str:
        if not place or (_is_installed(place) and not self._is_installed_too):
            self.is_known = self.is_known and bool(place)
            return ""
        try:
            entries = sorted(_files(place))
        except OSError:  # it is in no file, or one was deleted meanwhile
            self.is_known = False
            return ""
        if max(changed for _, _, changed in entries) >= LOADED_NS:
            self.is_loaded = False
        return sha256(repr(entries).encode()).hexdigest()


def library_versions() -> dict[str, str]:
    """The versions of the libraries that compute parts of a compilation. onnx is not imported."""
    versions = {"numpy": np.__version__, "onnx": ""}
    spec = importlib.util.find_spec("onnx")
    for folder in (spec and spec.submodule_search_locations) or ():
        try:
            with open(os.path.join(folder, "version.py"), "rb") as file:
                versions["onnx"] = sha256(file.read()).hexdigest()
        except OSError:  # it does not say; its plugin's version or the engine's has to
            continue
    return versions


def _places(kind: type[Any]) -> set[str]:
    """The folder of the outermost package that a class is from, or the files of its methods if it is from none.

    Methods that were put into a class from elsewhere are in no known place: "".
    """
    names = kind.__module__.split(".")
    for length in range(1, len(names) + 1):
        module = sys.modules.get(".".join(names[:length]))
        folders = getattr(module, "__path__", None)
        if folders is not None and getattr(module, "__file__", None):  # no namespace package
            return set(folders)
    functions = (getattr(each, "__func__", each) for each in vars(kind).values())
    own = [each for each in functions if hasattr(each, "__code__")]
    return {each.__code__.co_filename if each.__module__ == kind.__module__ else "" for each in own}


def _is_installed(place: str) -> bool:
    return any(name in _INSTALLED for name in os.path.abspath(place).split(os.sep))


def _files(place: str) -> Iterator[tuple[str, int, int]]:
    """Name, size and time of the last change, in ns, of each file in a folder."""
    if not os.path.isdir(place):
        status = os.stat(place)
        yield "", status.st_size, status.st_mtime_ns
        return
    ahead = [(place, "")]
    while ahead:
        folder, within = ahead.pop()
        with os.scandir(folder) as entries:
            for entry in entries:
                name = f"{within}/{entry.name}"
                if entry.is_dir(follow_symlinks=False):
                    if entry.name != _WITHOUT_CODE:
                        ahead.append((entry.path, name))
                else:
                    status = entry.stat()
                    yield name, status.st_size, status.st_mtime_ns
