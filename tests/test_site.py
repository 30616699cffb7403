"""The documentation site builds without a warning, has every public name, and needs no other server to be read.

If this fails, a reader meets a dead link, a name without a description, or a page that is blank without a network.
"""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
import zlib
from html.parser import HTMLParser
from importlib.util import find_spec
from pathlib import Path

import pytest

from engine.ir import ElementType
from engine.properties import Property, PropertySet

ROOT = Path(__file__).parent.parent
MODULES = [
    "engine", "engine.blob", "engine.core", "engine.extensions", "engine.generation", "engine.ir", "engine.lowering",
    "engine.native", "engine.onnx", "engine.ops", "engine.passes", "engine.passes.pattern", "engine.placement",
    "engine.plugin_api", "engine.preprocessing", "engine.properties", "engine_ray", "engine.runtime",
    "engine_serve", "engine.session", "engine.testing", "engine_hetero",
]  # fmt: skip
ELSEWHERE = {
    "PluginT": "a type variable",
    "__version__": "a text",
    "pattern": "has a page of its own",
    **dict.fromkeys(("REQUIREMENT", "inconsistencies", "missing_reasons", "resolve"), "of the engine"),
    **dict.fromkeys(("Callback", "GrowingArray", "GrowingForm", "GrowingSet", "StatePort"), "of devices' requests"),
    **dict.fromkeys(("ExtensionSet", "HeteroPlugin"), "made by the core"),
}
"""Public names without a description of their own."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if missing := [name for name in ("mkdocs", "material", "mkdocstrings_handlers.python") if not is_installed(name)]:
        pytest.skip(f"{missing[0]} is not installed: pip install 'engine-sdk[docs]'")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}  # an advertisement
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout + done.stderr == ""
    return folder


def is_installed(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:
        return False


class Fetched(HTMLParser):
    """Collects the addresses that a browser fetches for a page, and the classes of its elements."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.urls: list[str] = []
        self.classes: set[str] = set()
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.classes.update(given.get("class", "").split())
        self.urls += [given[name] for name in ("src", "srcset", "data", "poster") if name in given]
        if tag == "link":
            self.urls.append(given.get("href", ""))


def test_nothing_is_fetched_from_another_server(site: Path) -> None:
    pages = sorted(site.rglob("*.html"))
    assert len(pages) > 60
    for path in pages:
        page = Fetched(path.read_text(encoding="utf-8"))
        assert [url for url in page.urls if re.match(r"(\w+:)?//", url)] == [], path
        assert "mermaid" not in page.classes, f"{path}: the theme fetches a script for such diagrams"
        for url in page.urls:
            place = url.partition("#")[0].partition("?")[0]
            found = site / place.lstrip("/") if path.name == "404.html" else path.parent / place
            assert url.startswith("data:") or found.exists(), f"{path}: {url}"
    for path in site.rglob("*.css"):
        assert re.search(r"(@import|url\()\s*[\"']?(\w+:)?//", path.read_text(encoding="utf-8")) is None, path


def documented(site: Path) -> set[str]:
    """The names in the inventory that the reference publishes for links from other sites."""
    content = (site / "objects.inv").read_bytes()
    lines = zlib.decompress(content.split(b"\n", 4)[4]).decode().splitlines()
    return {line.split(" ", 1)[0] for line in lines}


def names_of(module: str) -> dict[str, set[str]]:
    """The public names of a module, each with the places where it may be described."""
    loaded = importlib.import_module(module)
    found = {}
    for name in loaded.__all__:
        value = getattr(loaded, name)
        if isinstance(value, (ElementType, Property, PropertySet)):
            continue  # described together: by `ElementType`, and on the page of properties
        home, own = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
        found[name] = {f"{module}.{name}", f"{home}.{own}"}
    return found


def test_every_public_name_is_in_the_reference(site: Path) -> None:
    there = documented(site)
    missing = {name: module for module in MODULES for name, places in names_of(module).items() if not places & there}
    assert {name: module for name, module in missing.items() if name not in ELSEWHERE} == {}
    assert set(ELSEWHERE) - set(missing) == set(), "these have a description"


def test_every_error_is_in_the_reference(site: Path) -> None:
    errors = importlib.import_module("engine.errors")
    names = {f"engine.errors.{name}" for name, value in vars(errors).items() if isinstance(value, type)}
    assert len(names) > 30
    assert {name for name in names if getattr(errors, name.rpartition(".")[2]).__module__ == errors.__name__} <= (
        documented(site)
    )


def test_what_help_shows_first_is_in_the_reference(site: Path) -> None:
    page = (site / "reference" / "networks.html").read_text(encoding="utf-8")
    assert page.count("What applications use first:") == 5


def test_dataclasses_show_their_constructors(site: Path) -> None:
    page = (site / "reference" / "networks.html").read_text(encoding="utf-8")
    text = re.sub(r"<[^>]+>", "", page)
    assert re.search(r"\bPort\(\s*name: str,\s*type: ValueType,\s*layout: str = ", text)
