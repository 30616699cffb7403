"""Opens a page in a real browser without a window: what it shows, what its script reported, whether its layout fits."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from dataclasses import dataclass
from html import unescape
from pathlib import Path

import pytest

_CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
needs_browser = pytest.mark.skipif(_CHROMIUM is None, reason="chromium is not installed")
_LIMIT = 120.0
_FIRST = """<script>window.__errors = [];
addEventListener("error", (event) => __errors.push(String(event.message)));
addEventListener("unhandledrejection", (event) => __errors.push(String(event.reason)));
addEventListener("securitypolicyviolation", (event) => __errors.push("blocked: " + event.blockedURI));</script>"""
_LAST = """<script>addEventListener("load", () => setTimeout(() => {
  let value = null;
  try { value = (() => { %s })(); } catch (error) { __errors.push(String(error)); }
  const found = document.createElement("pre");
  found.id = "found-by-test";
  found.textContent = JSON.stringify({ errors: __errors, value: value === undefined ? null : value,
    width: document.documentElement.scrollWidth, window: innerWidth });
  document.body.append(found);
}, 200));</script>"""
_FOUND = re.compile(r'<pre id="found-by-test">(.*?)</pre>', re.DOTALL)


@dataclass(frozen=True)
class Opened:
    """A page as a browser shows it."""

    dom: str
    """The document after its script has run."""
    value: object
    """The value that the test's script returned."""


def open_page(page: str, folder: Path, *, script: str = "", width: int = 1280, picture: Path | None = None) -> Opened:
    """Open an HTML document in a window of `width` pixels; `script` is the body of a function that runs after loading.

    Fails if the page's script raised an error, if the page asked for anything from outside, or if it is wider than the
    window. With `picture`, a PNG file of the page is written there.
    """
    assert _CHROMIUM is not None, "use the mark `needs_browser`"
    file = folder / "opened.html"
    file.write_text(page.replace("<head>", f"<head>{_FIRST}", 1).replace("</body>", f"{_LAST % script}</body>", 1))
    command = [_CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", f"--user-data-dir={folder / 'profile'}"]
    command += [f"--window-size={width},1000", "--virtual-time-budget=20000", "--disable-dev-shm-usage"]
    if picture is not None:
        _run([*command, f"--screenshot={picture}", file.as_uri()])
    dom = _run([*command, "--dump-dom", file.as_uri()])
    match = _FOUND.search(dom)
    assert match is not None, f"the page never finished loading:\n{dom[:2000]}"
    found = json.loads(unescape(match[1]))
    assert not found["errors"], found["errors"]
    assert found["width"] <= found["window"], f"the page is {found['width']} pixels wide in {found['window']}"
    return Opened(dom, found["value"])


def _run(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=_LIMIT, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout
