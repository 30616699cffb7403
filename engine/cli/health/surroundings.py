"""Environment variables that the engine reads, and folders in which it caches."""

from __future__ import annotations

import difflib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from engine.cli.health.findings import Finding, Level
from engine.core.cache import CompileCache, user_cache
from engine.files import CacheFolder, user_cache_folder
from engine.startup import dataclass

VARIABLES: Final = {
    "ENGINE_BUILD_JOBS": "how many files are compiled at once when the native core is built",
    "ENGINE_BUILD_OBJECTS": "where object files are kept when the native core is built",
    "ENGINE_CACHE_DIR": "the folder that caches networks of models in files; if empty, these are not cached",
    "ENGINE_CONFORMANCE_FOLDER": "a run of the conformance kit has set it",
    "ENGINE_EMULATE_AMX": "tiles of AMX are emulated, which is slow",
    "ENGINE_ENABLE_VISUALIZE_TRACING": "models are written after each pass, which is slow",
    "ENGINE_ISAS": "the instruction sets of the kernels when the native core is built: native, all, or names",
    "ENGINE_KERNELS": "the rows of kernels of a native core that only runs plans, when it is built",
    "ENGINE_KERNEL_CXX": "the compiler of kernels when the native core is built, if it is not CXX",
    "ENGINE_MAX_ISA": "kernels use no instruction set above this one",
    "ENGINE_PASSES_ONLY": "only the passes in this file run",
    "ENGINE_PASSES_RECORD": "passes that change a model are recorded in this file",
    "ENGINE_PASSES_WITHOUT": "these passes do not run",
    "ENGINE_PROFILE_PASS_ENABLE": "the time of each pass is logged",
    "ENGINE_VISUALIZE_TREE_OUTPUT_SHAPES": "whether pictures of models have shapes",
    "ENGINE_VISUALIZE_TREE_OUTPUT_TYPES": "whether pictures of models have element types",
    "ENGINE_WERROR": "warnings are errors when the native core is built",
}
"""Every variable that the engine reads, and what it does."""
_PREFIX: Final = "ENGINE_"
_CACHES: Final = "engine-*"
_LITTLE_SPACE: Final = 64 << 20


@dataclass(frozen=True, slots=True)
class Cache:
    """A folder in which a part of the engine caches: its files' number and size in bytes, and compiled networks."""

    path: str
    files: int
    byte_size: int
    networks: int = 0


def examine_variables() -> list[Finding]:
    """Findings about the variables that are set."""
    return [_of_variable(name, value) for name, value in sorted(os.environ.items()) if name.startswith(_PREFIX)]


def _of_variable(name: str, value: str) -> Finding:
    if name in VARIABLES:
        return Finding(Level.NOTE, name, f"it is set to {value!r}: {VARIABLES[name]}", "unset it if that is not wanted")
    close = difflib.get_close_matches(name, VARIABLES, n=1)
    hint = f"did you mean {close[0]}?" if close else f"the engine reads {', '.join(VARIABLES)}"
    return Finding(Level.NOTE, name, "it is set, but the engine does not read it", hint)


def examine_caches() -> tuple[list[Cache], list[Finding]]:
    """The folders of caches in the user's cache folder, and where ENGINE_CACHE_DIR says, with findings."""
    home = user_cache_folder("")
    folders = sorted(home.glob(_CACHES)) if home.is_dir() else []
    stated = user_cache()
    if stated and Path(stated) not in folders and os.path.isdir(stated):
        folders.append(Path(stated))
    findings = [finding for folder in folders for finding in _of_folder(folder)]
    if home.is_dir() and (free := shutil.disk_usage(home).free) < _LITTLE_SPACE:
        findings.append(Finding(
            Level.PROBLEM, str(home), f"its disk has {free >> 20} MiB of free space; caches are not written",
            "free some space, or set XDG_CACHE_HOME to a folder on another disk",
        ))  # fmt: skip
    return [_cache(folder) for folder in folders], findings


def _of_folder(folder: Path) -> Iterator[Finding]:
    if (why := CacheFolder(folder).refusal()) is not None:
        yield Finding(Level.PROBLEM, str(folder), f"it is not used: {why}", f"delete it, or chmod -R go-w {folder}")
    elif not os.access(folder, os.W_OK | os.X_OK):
        yield Finding(Level.PROBLEM, str(folder), "it cannot be written", f"chmod u+rwx {folder}")


def _cache(folder: Path) -> Cache:
    sizes = []
    for path, _, names in os.walk(folder):  # which skips what cannot be read
        for name in names:
            try:
                sizes.append(os.lstat(os.path.join(path, name)).st_size)
            except OSError:  # deleted meanwhile
                continue
    return Cache(str(folder), len(sizes), sum(sizes), CompileCache(str(folder)).contents().networks)
