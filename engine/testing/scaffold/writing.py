"""Writes a plugin's files from the templates, all of them or none."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib import resources
from importlib.metadata import entry_points
from importlib.resources.abc import Traversable
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from engine.errors import PluginError
from engine.hosting import API_VERSION, engine_version
from engine.registry.plugins import GROUP
from engine.testing.scaffold.families import ELEMENTWISE, FAMILIES, REFERENCE, divided, example_of
from engine.testing.scaffold.plan import PluginPlan

if TYPE_CHECKING:
    import jinja2

_SUFFIX: Final = ".jinja"
_PACKAGE: Final = "package"
"""The folder among the templates that gets the package's name."""
_RUNTIME: Final = "runtime/"
"""The folder of the templates for plugins of runtimes, which have only the other files outside `src` and `tests`."""
_HIDDEN: Final = "dot-"
"""The beginning of the templates of hidden files, which packaging would leave out under their own names."""


def new_plugin(plan: PluginPlan, folder: str | os.PathLike[str]) -> Path:
    """Write the package of a plugin into `folder`, which must be missing or empty; returns its path.

    Raises `PluginError` if the device's name or its package's is taken, if the folder has files in it, or without
    Jinja, and `OSError` if the folder cannot be written. After an error, no files remain.
    """
    target = Path(folder).absolute()
    _check_names(plan)
    if target.exists() and not target.is_dir():
        raise PluginError(f"{target} is a file; expected a folder that is empty or does not exist")
    if target.is_dir() and (found := next(target.iterdir(), None)) is not None:
        raise PluginError(f"{target} is not empty: it has {found.name!r}; choose another folder for the plugin")
    rendered = dict(render(plan))
    with _left_as_it_was(target, rendered):
        for name, text in rendered.items():
            path = target / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
    return target


@contextmanager
def _left_as_it_was(folder: Path, written: Iterable[str]) -> Iterator[None]:
    """Remove these files and folders that did not exist before, if writing fails or is interrupted."""
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        yield
    except BaseException:
        for name in dict.fromkeys(name.partition("/")[0] for name in written):
            path = folder / name
            shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)
        for path in missing:
            with suppress(OSError):
                path.rmdir()
        raise


def render(plan: PluginPlan) -> Iterator[tuple[str, str]]:
    """The path and text of each file of the plugin."""
    environment, values = _environment(), _values(plan)
    for name, template in _templates(resources.files("engine.testing.scaffold") / "files"):
        if _is_wanted(name, plan, values):
            path = name.removeprefix(_RUNTIME).replace(f"/{_PACKAGE}/", f"/{plan.package}/")
            path = f".{path.removeprefix(_HIDDEN)}" if path.startswith(_HIDDEN) else path
            yield path, environment.from_string(template.read_text(encoding="utf-8")).render(values)


def _check_names(plan: PluginPlan) -> None:
    for entry in entry_points(group=GROUP, name=plan.device):
        origin = f"{entry.value} of {entry.dist.name}" if entry.dist is not None else entry.value
        raise PluginError(f"a plugin for {plan.device} is installed already: {origin}; choose another name")
    found = find_spec(plan.package)
    if found is not None and found.origin is not None:
        raise PluginError(
            f"a package {plan.package} is installed already, in {found.origin}; choose another name than {plan.device}"
        )


def _values(plan: PluginPlan) -> dict[str, Any]:
    chosen = divided(plan.operators)
    major, minor = engine_version().split(".")[:2]
    return {
        "device": plan.device,
        "package": plan.package,
        "distribution": plan.distribution,
        "prefix": plan.prefix,
        "operators": sorted(set(plan.operators)),
        "families": list(chosen),
        "chosen": {**dict.fromkeys(FAMILIES, ()), **chosen},
        "elementwise": ELEMENTWISE,
        "example": example_of(plan.operators),
        "reference_operators": chosen.get(REFERENCE, ()),
        "uses_windows": bool({"AveragePool", "Conv", "MaxPool"} & set(plan.operators)),
        "uses_reduce": bool({"Max", "Min", "Sum"} & set(plan.operators)),
        "is_async": plan.is_async,
        "has_export": plan.has_export,
        "is_native": plan.is_native,
        "api_version": API_VERSION,
        "engine_version": f"{major}.{minor}",
    }


def _is_wanted(name: str, plan: PluginPlan, values: Mapping[str, Any]) -> bool:
    stem = name.rpartition("/")[2].partition(".")[0]
    if name.startswith(_RUNTIME):
        return plan.is_runtime
    if plan.is_runtime:
        return not name.startswith(("src/", "tests/", "README", "setup"))
    if "/lowering/" in name:
        return stem in ("__init__", "table") or stem in values["families"]
    if stem in ("_kernels", "setup"):
        return plan.is_native
    example = values["example"]
    if stem == "test_export":
        return plan.has_export and example is not None and bool(example.weights)
    return stem != "test_beside_others" or example is not None


def _templates(folder: Traversable, prefix: str = "") -> Iterator[tuple[str, Traversable]]:
    """The templates below `folder`, by the path of the file that each makes."""
    for item in sorted(folder.iterdir(), key=lambda each: each.name):
        if item.is_dir():
            yield from _templates(item, f"{prefix}{item.name}/")
        elif item.name.endswith(_SUFFIX):
            yield prefix + item.name.removesuffix(_SUFFIX), item


def _environment() -> jinja2.Environment:
    try:
        import jinja2
    except ImportError as e:
        raise PluginError(
            'writing a plugin needs Jinja, which the extra `plugin` installs: pip install "engine-sdk[plugin]"'
        ) from e
    return jinja2.Environment(
        undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True
    )
