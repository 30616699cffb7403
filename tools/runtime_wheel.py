"""The files of `engine-runtime`: the parts of `engine-sdk` and `engine-plugin-cpu` that importing and running a blob
needs.

A module is part of it if something in it imports the module, and importing the module loads only such modules, the
standard library, and numpy. In the place of a module that is left out is one that says what to install.
docs/adr/0029 has the reasons.
"""

from __future__ import annotations

import ast
import base64
import hashlib
import sys
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

NAME: Final = "engine-runtime"
ROOTS: Final = ("engine", "engine.__main__", "engine_cpu")
"""The modules that a user imports or runs; the rest follows."""
COMPILING: Final = frozenset({
    *("cli.benchmark", "cli.diff", "core.compilation", "core.variants", "editing", "generation", "lowering", "onnx"),
    *("ops", "passes", "preprocessing", "session", "testing", "visualize"),
})  # fmt: skip
"""The components, and parts of some, that read, change, compile or compare models, or need more than numpy."""
COMMANDS_PACKAGE: Final = "engine.cli.commands"
COMMANDS: Final = frozenset({"devices", "doctor", "inspect", "keygen", "profile", "run"})
"""The commands that need no model."""
PURPOSES: Final = {
    "engine.onnx": "reading models",
    "engine.ops": "evaluating operators",
    "engine.extensions": "operators of extensions",
    "engine.preprocessing": "adding steps of preprocessing",
    "engine.cli": "this command",
    "engine.core.compilation": "compiling models",
    "engine.core.variants": "compiling models",
    "engine_cpu": "compiling models",
}
REMEDY: Final = f"pip uninstall {NAME}, then pip install engine-sdk engine-plugin-cpu"

Files = Mapping[str, bytes]
"""The files of an installation by their paths below site-packages."""


class PartsError(Exception):
    """A part that the runtime needs cannot be in it; the message says why."""


@dataclass(frozen=True, slots=True)
class Imports:
    """The modules that a module imports: when it is imported itself, and when something in it is called."""

    first: frozenset[str]
    later: frozenset[str]


def runtime_files(files: Files, why: str = "") -> dict[str, bytes]:
    """The files of the runtime among the files of the engine and the CPU plugin, and the files that replace others.

    `why` replaces, in messages, why a module is left out. Raises `PartsError`.
    """
    modules = _Modules(files)
    commands = [name for name in modules.paths if name.startswith(f"{COMMANDS_PACKAGE}.")]
    kept, left_out, ahead = set[str](), set[str](), [*ROOTS, *commands]
    while ahead:
        name = ahead.pop()
        if name in kept or name in left_out or name not in modules.paths:
            continue
        if modules.why_refused(name):
            left_out.add(name)
            continue
        kept.add(name)
        ahead += [*modules.imports(name).first, *modules.imports(name).later, *_above(name)]
    if missing := set(ROOTS) - kept:
        raise PartsError(f"{min(missing)} imports {modules.why_refused(min(missing))}, which {NAME} does not have")
    found = {modules.paths[name]: files[modules.paths[name]] for name in kept}
    folders = {path.rpartition("/")[0] for path in found}
    found |= {path: data for path, data in files.items() if path.rpartition("/")[0] in folders and _is_data(path)}
    left_out |= {f"engine.{component}" for component in COMPILING}
    for name in left_out:
        if all(parent in kept for parent in _above(name)):
            found[modules.paths[name]] = _stub(name, why).encode()
    return found


def _is_data(path: str) -> bool:
    """Whether a file is the native core, the mark of typed packages, or read by a module beside it."""
    return path.startswith("engine/_core.") or path.endswith(("/py.typed", ".css", ".js"))


class _Modules:
    """The modules among files; each is parsed when its imports are first asked for."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self.paths = {_module(path): path for path in files if path.endswith(".py")}
        self._imports: dict[str, Imports] = {}
        self._refused: dict[str, str] = {}

    def imports(self, name: str) -> Imports:
        """The imports of a module."""
        if name not in self._imports:
            self._imports[name] = _imports_of(name, self._files[self.paths[name]], self.paths)
        return self._imports[name]

    def why_refused(self, name: str) -> str:
        """A module that importing loads and the runtime lacks; "" if there is none."""
        if name not in self._refused:
            seen, ahead, why = {name}, [name], ""
            while ahead and not why:
                each = ahead.pop()
                why = self._refused.get(each, "") or ("" if each in self._refused else self._why_not(each))
                if not why and each not in self._refused and each in self.paths:
                    following = {*self.imports(each).first, *_above(each)} - seen
                    seen |= following
                    ahead += sorted(following)
            self._refused[name] = why
            if not why:
                self._refused |= dict.fromkeys(seen, "")
        return self._refused[name]

    def _why_not(self, name: str) -> str:
        top, *below = name.split(".")
        if name not in self.paths:
            is_known = top in sys.stdlib_module_names or top == "numpy" or name == "engine._core"
            return "" if is_known else name
        parts = {".".join(below[:count]) for count in (1, 2)} if top == "engine" else set()
        is_command = name.startswith(f"{COMMANDS_PACKAGE}.")
        return name if parts & COMPILING or (is_command and below[-1] not in COMMANDS) else ""


def _stub(name: str, why: str) -> str:
    purpose = next((PURPOSES[each] for each in (name, *_above(name)) if each in PURPOSES), "what was asked for")
    said = why or f"{NAME} only runs compiled blobs"
    text = f"{said}, and only runs compiled blobs" if why else said
    text += f": {purpose} needs the module {name}, which it leaves out; {REMEDY}"
    return (
        f'"""Left out of {NAME}."""\n\nfrom engine.errors import MissingPartError\n\nraise MissingPartError({text!r})\n'
    )


def _above(name: str) -> list[str]:
    parts = name.split(".")
    return [".".join(parts[:count]) for count in range(len(parts) - 1, 0, -1)]


def _module(path: str) -> str:
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def _imports_of(name: str, source: bytes, modules: Mapping[str, str]) -> Imports:
    package = name if modules[name].endswith("/__init__.py") else name.rpartition(".")[0]
    first, later = set[str](), set[str]()
    for node, is_later in _nodes(ast.parse(source), False):
        for target in _targets(node, package, modules):
            (later if is_later or isinstance(node, ast.Constant) else first).add(target)
    return Imports(frozenset(first), frozenset(later))


def _nodes(node: ast.AST, is_later: bool) -> Iterator[tuple[ast.AST, bool]]:
    """All nodes but those for type checkers only, and whether they are in a function."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and isinstance(child.test, ast.Name) and child.test.id == "TYPE_CHECKING":
            for other in child.orelse:
                yield other, is_later
                yield from _nodes(other, is_later)
            continue
        inside = is_later or isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
        yield child, inside
        yield from _nodes(child, inside)


def _targets(node: ast.AST, package: str, modules: Mapping[str, str]) -> Iterable[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.Constant):  # a module that is imported by its name, as the public names of `engine` are
        return [node.value] if isinstance(node.value, str) and node.value.startswith("engine.") and (
            node.value in modules) else []  # fmt: skip
    if not isinstance(node, ast.ImportFrom):
        return []
    base = node.module or ""
    if node.level:
        above = package.split(".")
        base = ".".join(above[: len(above) - node.level + 1] + ([base] if base else []))
    below = [f"{base}.{alias.name}" for alias in node.names]
    return [base, *(each for each in below if each in modules)]


def write_wheel(folder: Path, files: Files, version: str, tag: str, requires_python: str, licence: bytes) -> Path:
    """Write the wheel of the runtime; `tag` is the extension module's."""
    info = f"{NAME.replace('-', '_')}-{version}.dist-info"
    whole = dict(files)
    whole[f"{info}/METADATA"] = (
        "Metadata-Version: 2.4\n"
        f"Name: {NAME}\nVersion: {version}\n"
        "Summary: Runs networks that engine-sdk has compiled for CPU. Needs numpy.\n"
        f"License-Expression: Apache-2.0\nLicense-File: LICENSE\nRequires-Python: {requires_python}\n"
        "Requires-Dist: numpy>=1.26\n"
        "Provides-Extra: types\nRequires-Dist: ml_dtypes>=0.5; extra == 'types'\n"
        "Provides-Extra: sign\nRequires-Dist: cryptography>=44; extra == 'sign'\n"
    ).encode()
    whole[f"{info}/licenses/LICENSE"] = licence
    whole[f"{info}/WHEEL"] = (
        f"Wheel-Version: 1.0\nGenerator: tools/wheels\nRoot-Is-Purelib: false\n"
        f"{''.join(f'Tag: {each}{chr(10)}' for each in _tags(tag))}"
    ).encode()
    whole[f"{info}/entry_points.txt"] = (
        b"[console_scripts]\nengine = engine.cli.main:main\n\n[engine.plugins]\nCPU = engine_cpu:CpuPlugin\n"
    )
    record = [f"{path},sha256={_hash(data)},{len(data)}" for path, data in sorted(whole.items())]
    whole[f"{info}/RECORD"] = "".join(f"{line}\n" for line in (*record, f"{info}/RECORD,,")).encode()
    target = folder / f"{NAME.replace('-', '_')}-{version}-{tag}.whl"
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, data in sorted(whole.items()):
            entry = zipfile.ZipInfo(path)  # of 1980, so that equal files make an equal wheel
            entry.external_attr = (0o755 if path.endswith(".so") else 0o644) << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, data)
    return target


def _tags(tag: str) -> list[str]:
    python, abi, platforms = tag.split("-")
    return [f"{python}-{abi}-{platform}" for platform in platforms.split(".")]


def _hash(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


def files_of_wheel(wheel: Path) -> dict[str, bytes]:
    """The files that a wheel installs, without its metadata."""
    with zipfile.ZipFile(wheel) as archive:
        return {
            name: archive.read(name) for name in archive.namelist() if ".dist-info/" not in name and name[-1] != "/"
        }


def files_of_checkout(root: Path) -> dict[str, bytes]:
    """The files of the engine and the CPU plugin that a checkout with a compiled core would install."""
    found = {}
    for base, package in ((root, "engine"), (root / "plugins" / "cpu" / "src", "engine_cpu")):
        for path in sorted((base / package).rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                found[path.relative_to(base).as_posix()] = path.read_bytes()
    return found
