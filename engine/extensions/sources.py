"""The arguments of `Core.add_extension`: an extension, operators, a module, a Python file, or a shared library."""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, Final, TypeAlias

from engine.errors import ExtensionError
from engine.extensions.extension import Extension, extension_of_library
from engine.ops.extension import Operator, error_text

ExtensionSource: TypeAlias = Extension | Operator | Sequence[Operator] | ModuleType | str | os.PathLike[str]
"""A str is a path if it has a folder or ends in .py, .so, .dylib or .dll, and otherwise a "module" or "module:name"."""

NAME: Final = "EXTENSION"
"""The name of a module's extension, unless another one is given."""
_TARGET: Final = re.compile(r"([A-Za-z_][\w.]*)(?::([A-Za-z_][\w.]*))?")
_FILES: Final = frozenset({".py", ".so", ".dylib", ".dll"})


def resolve(source: ExtensionSource) -> Extension:
    """The extension that `source` is or names; imports the module, or loads the library.

    Operators without an extension get one of version 0: a single one of its own name, with the domain; several of the
    name of their domain. Raises `ExtensionError`.
    """
    if isinstance(source, Extension):
        return source
    if isinstance(source, Operator):
        return Extension(str(source), "0", [source])
    if isinstance(source, ModuleType):
        return _found(source, NAME, f"module {source.__name__}")
    if isinstance(source, os.PathLike) or (isinstance(source, str) and _is_path(source)):
        return _of_file(Path(source))
    if isinstance(source, str):
        return _of_module(source)
    if isinstance(source, Sequence) and source:
        operators = [each for each in source if isinstance(each, Operator)]
        if len(operators) == len(source):
            return _of_operators(operators)
    raise ExtensionError(
        "an extension is an engine.Extension, one or more engine.Operator, a module or its name, or the path of a .py "
        f"file or of a shared library; got {source!r:.200}"
    )


def name_of(source: ExtensionSource) -> str:
    """What another process can pass to `resolve` for the same: a module's name, or an absolute path; "" if nothing."""
    if isinstance(source, ModuleType):
        return source.__name__
    if isinstance(source, os.PathLike) or (isinstance(source, str) and _is_path(source)):
        return os.path.abspath(source)
    return source if isinstance(source, str) else ""


def _of_operators(operators: Sequence[Operator]) -> Extension:
    domains = sorted({operator.domain for operator in operators})
    if len(domains) > 1:
        raise ExtensionError(
            f"operators of several domains ({', '.join(domains)}) need a name and a version: Extension(name, version, "
            "operators)"
        )
    return Extension(domains[0], "0", operators)


def _is_path(text: str) -> bool:
    return os.path.sep in text or (os.path.altsep or os.path.sep) in text or Path(text).suffix in _FILES


def _of_file(path: Path) -> Extension:
    if path.suffix != ".py":
        return extension_of_library(path)
    return _found(_run_file(path), NAME, f"file {path}")


_files: Final[dict[str, ModuleType]] = {}
_lock: Final = threading.RLock()


def _run_file(path: Path) -> ModuleType:
    """The module of a Python file, which runs once in a process."""
    real = os.path.realpath(path)
    with _lock:
        module = _files.get(real)
        if module is not None:
            return module
        name = f"engine_extension_{len(_files)}_{re.sub(r'[^A-Za-z0-9]', '_', path.stem)}"
        spec = importlib.util.spec_from_file_location(name, real)
        if spec is None or spec.loader is None or not os.path.isfile(real):
            raise ExtensionError(f"extension {path}: the file does not exist")
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module  # as dataclasses expect
        try:
            spec.loader.exec_module(module)
        except (Exception, SystemExit) as e:
            del sys.modules[name]
            raise ExtensionError(f"extension {path}: running it failed: {error_text(e)}") from e
        _files[real] = module
        return module


def _of_module(text: str) -> Extension:
    match = _TARGET.fullmatch(text)
    if match is None:
        raise ExtensionError(f'extension {text!r}: expected a path, or "module" or "module:name"')
    name, attribute = match.groups()
    try:
        module = importlib.import_module(name)
    except (Exception, SystemExit) as e:
        raise ExtensionError(f"extension {text}: importing module {name} failed: {error_text(e)}") from e
    return _found(module, attribute or NAME, f"module {name}")


def _found(module: ModuleType, name: str, where: str) -> Extension:
    found: Any = module
    for part in name.split("."):
        found = getattr(found, part, None)
    if found is None or isinstance(found, ModuleType):
        raise ExtensionError(f"{where} has no {name}, which must be an engine.Extension or a list of engine.Operator")
    return resolve(found)
