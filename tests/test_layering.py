"""Components import downwards only.

Upward imports would merge components that can be read and replaced separately; a plugin that reaches into the core
could not have been written by a third party.
"""

from __future__ import annotations

import ast
import functools
import re
import sys
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tools"))

from arrows import APP, ARROWS, PAGE, PLUGIN, PROGRAMS, allowed, page_with_table  # noqa: E402

# Distributions that are not imported under their own name.
IMPORT_NAMES = {"grpcio": "grpc", "protobuf": "google"}
# Imports that need an extra of the distribution, not its dependencies.
EXTRAS = {
    "blob": {"cryptography"}, "generation": {"tokenizers"}, "ops": {"re2"},
    # Those of kserve, and of its extras `openai` and `tracing`.
    "engine_onnxruntime": {"onnxruntime"},
    "engine_serve": {
        "fastapi", "grpc_interceptor", "jinja2", "llguidance", "opentelemetry", "orjson", "uvicorn", "uvloop",
    },
    "engine_openvino": {"openvino"},
    "testing": {"pytest", "hypothesis", "jinja2"}, "cli": {"rich"}, "values": {"PIL"},
}  # fmt: skip

# Imports for types only that close a cycle within a component, by importer. Break any other cycle by moving what both
# sides need to a lower module, or by passing the lower side only what it needs instead of the whole upper object.
BACK_REFERENCES = {
    "engine.ir.node": {"engine.ir.model"},  # the bodies of a node are models
    "engine_template.network": {"engine_template.plugin"},  # a network is generic in its plugin's type
    "engine_opencl.network": {"engine_opencl.plugin"},
    "engine_openvino.network": {"engine_openvino.plugin"},
}
# The one import upwards, when a method is called: see ADR 20.
LATE = {"engine/ir/model.py": "engine.editing"}


def violations(root: Path) -> list[str]:
    """All imports of `engine` and `plugins` that the tables forbid, and all components that they do not know."""
    found, dependencies = [], declared(root)
    for path in sorted((root / "engine").rglob("*.py")):
        parts = path.relative_to(root / "engine").parts
        component = parts[0].removesuffix(".py")
        if component not in ARROWS:
            found.append(f"{path.relative_to(root)}: component `{component}` is not in the table of this test")
            continue
        packages = dependencies | EXTRAS.get(component, set())
        found += check(path, root / "engine", component, allowed(component), packages)
    for folder in distribution_folders(root):
        package = f"engine_{folder.name}"
        known = declared(folder) | {package} | EXTRAS.get(package, set())
        components = APP if folder.parent.name == "apps" else PLUGIN
        for path in sorted((folder / "src").rglob("*.py")):
            if path.relative_to(folder / "src").parts[0] != package:
                found.append(f"{path.relative_to(root)}: expected only the package `{package}` in src")
                continue
            is_program = str(path.relative_to(folder / "src")) in PROGRAMS
            found += check(path, folder / "src" / package, package, APP if is_program else components, known)
    return found


@pytest.fixture(scope="module", autouse=True)
def trees() -> Iterator[None]:
    """Forget the trees in the end: a million objects, through which each later collection of garbage would go."""
    yield
    nodes_of.cache_clear()


def distribution_folders(root: Path) -> list[Path]:
    """The folders of the plugins and of the applications."""
    return sorted(path for kind in ("plugins", "apps") for path in (root / kind).glob("*") if path.is_dir())


@functools.cache
def nodes_of(path: Path) -> list[ast.AST]:
    """All nodes of a file's syntax tree."""
    return list(ast.walk(ast.parse(path.read_text(encoding="utf-8"), str(path))))


def check(path: Path, base: Path, component: str, components: set[str], packages: set[str]) -> Iterator[str]:
    for line, module, name in imports(path, base):
        top, *rest = module.split(".")
        where = f"{base.name}/{path.relative_to(base)}:{line}"
        if top == "engine":
            target = room_of(rest, name)
            if target not in components:
                yield f"{where}: `{component}` must not import `{target}`; it may import {sorted(components)}"
        elif top not in packages and top not in sys.stdlib_module_names:
            yield f"{where}: `{top}` is not a declared dependency; the distribution has {sorted(packages)}"


def room_of(rest: list[str], name: str | None) -> str:
    """The component of `import engine.<rest>` or of `from engine.<rest> import <name>`."""
    if rest:
        return rest[0]
    return name if name in ARROWS or name == "_core" else "__init__"


def imports(path: Path, base: Path) -> Iterator[tuple[int, str, str | None]]:
    """Yield (line, absolute module, imported name) of all imports, in functions and for types included."""
    for node in nodes_of(path):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name, None) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = absolute(path, base, node)
            yield from ((node.lineno, module, alias.name) for alias in node.names)
        elif (
            isinstance(node, ast.Call)
            and (module := dynamic_import(node))
            and LATE.get(f"{base.name}/{path.relative_to(base)}") != module
        ):
            yield node.lineno, module, None


def absolute(path: Path, base: Path, node: ast.ImportFrom) -> str:
    if node.level == 0:
        assert node.module is not None
        return node.module
    parts = (base.name, *path.relative_to(base).parts)
    return ".".join((*parts[: -node.level], *((node.module,) if node.module else ())))


def dynamic_import(node: ast.Call) -> str | None:
    """The module that `import_module("...")` or `__import__("...")` names, if it is written out."""
    function = node.func
    name = (
        function.id if isinstance(function, ast.Name) else function.attr if isinstance(function, ast.Attribute) else ""
    )
    if name not in ("import_module", "__import__") or not node.args:
        return None
    argument = node.args[0]
    return argument.value if isinstance(argument, ast.Constant) and isinstance(argument.value, str) else None


def declared(folder: Path) -> set[str]:
    """The names of a distribution's dependencies as they are imported."""
    project = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    names = {re.match(r"[\w.-]+", requirement)[0] for requirement in project["dependencies"]}  # type: ignore[index]
    return {IMPORT_NAMES.get(name, name.replace("-", "_").lower()) for name in names}


def packages(root: Path) -> dict[str, Path]:
    """The folders of `engine` and of the packages of plugins and applications, by name."""
    others = [path for folder in distribution_folders(root) for path in (folder / "src").glob("engine_*")]
    return {"engine": root / "engine"} | {path.name: path for path in others if path.is_dir()}


def modules(root: Path) -> dict[str, tuple[Path, Path]]:
    """The files of all modules and the folders of their packages, by dotted name."""
    found = {}
    for package, base in packages(root).items():
        for path in sorted(base.rglob("*.py")):
            parts = (package, *path.relative_to(base).with_suffix("").parts)
            found[".".join(parts).removesuffix(".__init__")] = path, base
    return found


def imported_modules(root: Path) -> dict[str, set[str]]:
    """The imports of each module, including imports for types and within functions."""
    known = modules(root)
    graph = {}
    for name, (path, base) in known.items():
        targets = {
            next((each for each in (f"{module}.{imported}", module) if each in known), name)
            for _, module, imported in imports(path, base)
        }
        graph[name] = targets - {name}
    return graph


def circles(root: Path) -> list[str]:
    """Circles of imports between modules."""
    graph = {name: targets - BACK_REFERENCES.get(name, set()) for name, targets in imported_modules(root).items()}
    found = []
    while True:
        try:
            TopologicalSorter(graph).prepare()
        except CycleError as error:
            path = error.args[1][::-1]
            found.append(" imports ".join(path))
            graph[path[0]] -= {path[1]}
        else:
            return found


def private_uses(root: Path) -> list[str]:
    """Uses of private names that another component or plugin defines, and the importing one does not."""
    defined, used = defaultdict(set), []
    for path, base in modules(root).values():
        parts = path.relative_to(base).parts
        component = parts[0].removesuffix(".py") if base.name == "engine" else base.name
        where = f"{base.name}/{path.relative_to(base)}"
        for node in nodes_of(path):
            defined[component] |= private_definitions(node)
            if isinstance(node, ast.Attribute) and is_private(node.attr):
                used.append((component, node.attr, f"{where}:{node.lineno}"))
            elif isinstance(node, ast.ImportFrom):
                used += [
                    (component, alias.name, f"{where}:{node.lineno}") for alias in node.names if is_private(alias.name)
                ]
    return [
        f"{where}: `{name}` is private to {', '.join(sorted(owners))}; give it a public name there"
        for component, name, where in used
        if name not in defined[component] and (owners := {other for other in defined if name in defined[other]})
    ]


_OF_NAMED_TUPLES = frozenset({"_asdict", "_fields", "_make", "_replace"})  # public, but named so that fields may not be


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name not in _OF_NAMED_TUPLES


_DEFINING = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Name, ast.Attribute, ast.Assign)


def private_definitions(node: ast.AST) -> set[str]:
    """The private names that a statement or expression defines: functions, classes, variables, attributes, slots."""
    if not isinstance(node, _DEFINING):
        return set()
    match node:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            names = {name}
        case ast.Name(id=name, ctx=ast.Store()):
            names = {name}
        case ast.Attribute(value=ast.Name(id="self" | "cls"), attr=name, ctx=ast.Store()):
            names = {name}
        case ast.Assign(targets=[ast.Name(id="__slots__")], value=value):
            names = {each.value for each in ast.walk(value) if isinstance(each, ast.Constant)}
        case _:
            return set()
    return {name for name in names if is_private(name)}


def test_imports_point_downwards() -> None:
    assert violations(ROOT) == []


def test_there_are_no_circles_of_imports() -> None:
    assert circles(ROOT) == []
    imported = imported_modules(ROOT)
    assert {
        name: targets - imported[name] for name, targets in BACK_REFERENCES.items() if targets - imported[name]
    } == {}


def test_nothing_private_is_used_across_rooms() -> None:
    assert private_uses(ROOT) == []


def test_every_arrow_leads_to_a_room() -> None:
    assert {target for targets in ARROWS.values() for target in targets} - set(ARROWS) == {"_core"}
    assert set(ARROWS) >= PLUGIN | APP
    cyclic = {component for component in ARROWS for target in ARROWS[component] if component in allowed(target)}
    assert cyclic == set()


def test_the_page_has_the_current_table() -> None:
    assert page_with_table() == PAGE.read_text(encoding="utf-8"), "run: python tools/arrows.py --write"


def test_only_the_command_line_imports_what_is_built_on_the_library() -> None:
    """`cli`, `testing` and `generation` can be left out, or be distributions of their own, like `apps/*`."""
    tops = {"cli", "testing", "generation"}
    importers = {each for each in ARROWS if (allowed(each) - {each}) & tops}
    assert importers == {"__main__", "cli"}
    assert not PLUGIN & tops


def test_there_are_few_components() -> None:
    assert len(ARROWS) <= 32, "is it a component, or a part of one?"


def write_tree(root: Path, files: dict[str, str]) -> None:
    for folder in (root, root / "plugins" / "one", root / "apps" / "two"):
        (folder / "src").mkdir(parents=True)
        (folder / "pyproject.toml").write_text('[project]\ndependencies = ["engine-sdk>=0.1", "numpy>=1"]\n')
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


@pytest.mark.parametrize(
    ("path", "text"),
    [
        (
            "engine/core.py",
            "import os\nimport numpy\nfrom engine.registry import x\nfrom .ir.node import Node\n",
        ),
        (
            "engine/ir/deep/node.py",
            "from ...errors import EngineError\nfrom .. import types\nfrom . import other\n",
        ),
        ("engine/native/extension.py", "from engine import _core\n"),
        ("engine/testing/suite.py", "import pytest\nfrom engine import Core\n"),
        (
            "plugins/one/src/engine_one/__init__.py",
            "from engine.plugin_api import Plugin\nfrom .parts import x\n",
        ),
        ("plugins/one/src/engine_one/deep/a.py", "from .b import c\nfrom engine import ops\n"),
        ("apps/two/src/engine_two/a.py", "from engine import Core\nfrom engine.cli.options import count\n"),
    ],
)
def test_allowed_imports_pass(tmp_path: Path, path: str, text: str) -> None:
    write_tree(tmp_path, {path: text})
    assert violations(tmp_path) == []


@pytest.mark.parametrize(
    ("path", "text", "expected"),
    [
        ("engine/ir/node.py", "import engine.core\n", "`ir` must not import `core`"),
        ("engine/ir/node.py", "from ..ops import create\n", "`ir` must not import `ops`"),
        ("engine/ir/node.py", "from .. import ops\n", "`ir` must not import `ops`"),
        ("engine/ops/relu.py", "def f():\n    from engine import Core\n", "`ops` must not import `__init__`"),
        ("engine/blob.py", "import engine\n", "`blob` must not import `__init__`"),
        ("engine/core.py", "from engine import _core\n", "`core` must not import `_core`"),
        ("engine/core.py", "import engine.passes\n", "`core` must not import `passes`"),
        (
            "engine/runtime/a.py",
            "if TYPE_CHECKING:\n    from engine.core import Core\n",
            "must not import `core`",
        ),
        ("engine/onnx/a.py", "importlib.import_module('engine.core')\n", "must not import `core`"),
        ("engine/onnx/a.py", "import onnxruntime\n", "`onnxruntime` is not a declared dependency"),
        ("engine/helpers.py", "", "component `helpers` is not in the table"),
        ("engine/helpers/a.py", "", "component `helpers` is not in the table"),
        ("plugins/one/src/engine_one/a.py", "from engine.core import Core\n", "must not import `core`"),
        ("plugins/one/src/engine_one/a.py", "from engine import Core\n", "must not import `__init__`"),
        ("plugins/one/src/other/a.py", "", "expected only the package `engine_one`"),
        ("engine/core.py", "from engine.cli.main import main\n", "`core` must not import `cli`"),
        ("engine/passes/a.py", "from engine import testing\n", "`passes` must not import `testing`"),
        ("apps/two/src/engine_two/a.py", "import engine.testing\n", "`engine_two` must not import `testing`"),
        ("apps/two/src/engine_two/a.py", "import engine_one\n", "`engine_one` is not a declared dependency"),
        ("apps/two/src/engine_two/a.py", "import kserve\n", "`kserve` is not a declared dependency"),
        ("plugins/one/src/engine_one/a.py", "import engine_two\n", "`engine_two` is not a declared dependency"),
    ],
)
def test_forbidden_imports_are_found(tmp_path: Path, path: str, text: str, expected: str) -> None:
    write_tree(tmp_path, {path: text})
    (message,) = violations(tmp_path)
    assert message.split(":")[0] in path
    assert expected in message


def test_circles_are_found(tmp_path: Path) -> None:
    files = {
        "engine/ir/__init__.py": "from engine.ir.a import A\nfrom engine.ir.node import Node\n",
        "engine/ir/a.py": "from engine.ir import b\n",
        "engine/ir/b.py": "if TYPE_CHECKING:\n    from .c import C\n",
        "engine/ir/c.py": "def f():\n    import engine.ir.a\n",
        "engine/ir/node.py": "from engine.ir.a import A\nif TYPE_CHECKING:\n    from engine.ir.model import Model\n",
        "engine/ir/model.py": "from engine.ir.node import Node\n",  # in the list of this file
    }
    write_tree(tmp_path, files)
    (circle,) = circles(tmp_path)
    assert set(circle.split(" imports ")) == {"engine.ir.a", "engine.ir.b", "engine.ir.c"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("def f(node):\n    return node._types\n", "`_types` is private to ir"),
        ("from engine.ir.node import _link\n", "`_link` is private to ir"),
        ("class P(Node):\n    def f(self):\n        return self._types\n", "`_types` is private to ir"),
        ("def f(other):\n    return other._mine, parser._actions, x.__dict__\n_mine = 1\n", None),
        ("class Q:\n    def __init__(self, q):\n        self._types = q._types\n", None),
    ],
)
def test_private_names_of_other_rooms_are_found(tmp_path: Path, text: str, expected: str | None) -> None:
    node = (
        "class Node:\n    __slots__ = ('_types',)\n    def f(self):\n        return self._types\ndef _link(node): ...\n"
    )
    write_tree(tmp_path, {"engine/ir/node.py": node, "engine/passes/a.py": text})
    found = private_uses(tmp_path)
    assert len(found) == (expected is not None)
    assert all(expected is not None and expected in each for each in found)


# What the folders of the native core include.
NATIVE = {
    "simd": set[str](),
    "kernels": {"simd"},
    "executor": {"kernels"},
    "blob": {"executor", "kernels"},
    "graph": set[str](),
    "bindings": {"blob", "executor", "graph", "kernels"},
    "runtime": {"blob", "executor"},
}


def test_the_native_core_includes_downwards_only() -> None:
    for folder, below in NATIVE.items():
        for path in sorted((ROOT / "csrc" / folder).rglob("*.?pp")):
            included = re.findall(r'^#include "(\w+)/', path.read_text(encoding="utf-8"), re.MULTILINE)
            assert set(included) <= below | {folder}, path
            uses_python = re.search(r"^#include <(pybind11/|Python\.h)", path.read_text(encoding="utf-8"), re.MULTILINE)
            assert uses_python is None or folder == "bindings", path
