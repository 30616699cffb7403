"""The documentation site's additions to MkDocs: pages from files outside of `docs`, and links to them.

Documents link to each other by their places in the repository, so that links also work in a checkout.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any, Final

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

DOCS: Final = Path(__file__).parent
ROOT: Final = DOCS.parent
PAGES: Final = {
    "CHANGELOG.md": "changes.md",
    "CONTRIBUTING.md": "contributing.md",
    **{f"apps/{name}/README.md": f"applications/{name}.md" for name in ("ray", "serve")},
    **{
        f"plugins/{name}/README.md": f"devices/{name}.md"
        for name in ("auto", "batch", "cpu", "hetero", "opencl", "openvino", "template")
    },
}
"""Files of the repository that are pages of the site."""
INSTEAD: Final = {"README.md": "index.md", "engine/plugin_api.py": "reference/plugin-api.md"}
"""Where links to other files of the repository lead."""
LAST: Final = ("reference/native.md", "reference/specs.md")
"""Long pages for few readers, which a search lists after others."""
_LINK: Final = re.compile(r"(?<=\]\()(?!\w+:)([^)#\s]+)(?=[)#])")
_FENCE: Final = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """List the pages of each folder that the navigation names."""
    config.nav = _listed(config.nav)
    return config


def _listed(entry: Any) -> Any:
    if isinstance(entry, list):
        return [_listed(each) for each in entry]
    if isinstance(entry, dict):
        return {title: _listed(each) for title, each in entry.items()}
    return sorted(f"{entry}{path.name}" for path in (DOCS / entry).glob("*.md")) if entry.endswith("/") else entry


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages."""
    for path, page in PAGES.items():
        files.append(File.generated(config, page, content=(ROOT / path).read_text(encoding="utf-8")))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Rewrite links between places in the repository to links between pages; code blocks stay."""
    uri = page.file.src_uri
    if uri in LAST:
        page.meta["search"] = {"boost": 0.2}
    origin = next((path for path, generated in PAGES.items() if generated == uri), f"docs/{uri}")
    parts, end = [], 0
    for block in _FENCE.finditer(markdown):
        parts += [_linked(markdown[end : block.start()], origin, uri), block[0]]
        end = block.end()
    return "".join([*parts, _linked(markdown[end:], origin, uri)])


def _linked(text: str, origin: str, uri: str) -> str:
    def link(m: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join(posixpath.dirname(origin), m[1]))
        target = PAGES.get(path) or INSTEAD.get(path) or path.removeprefix("docs/")
        if target == path:
            return m[1]  # MkDocs warns of it
        return posixpath.relpath(target, posixpath.dirname(uri))

    return _LINK.sub(link, text)
