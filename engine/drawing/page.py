"""The frame of all reports as HTML: one file that fetches nothing, with one style for light and dark screens.

A report is made of sections. A section is a heading and HTML of its own: a table of `plain_table`, an SVG picture, a
paragraph. Whoever makes a section escapes its text. A picture with light colours of its own stands in an element of the
class `paper`, which is also light on dark screens.
"""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:; "
    "base-uri 'none'; form-action 'none'"
)
"""The page's permissions in a browser: show itself and run its own script. It cannot send anything anywhere."""
_STYLE = """\
:root { color-scheme: light dark; --text: #1c2430; --faint: #5b6675; --ground: #fff; --raised: #f5f7f9;
  --line: #d5dbe2; --accent: #1764ab; --good: #1c7c3c; --bad: #b00020; }
@media (prefers-color-scheme: dark) { :root { --text: #e4e8ee; --faint: #9aa5b3; --ground: #14181e; --raised: #1d232b;
  --line: #38414d; --accent: #7ab8f5; --good: #6fcf8b; --bad: #ff8a80; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1.5rem; max-width: 90rem; color: var(--text); background: var(--ground);
  font: 15px/1.5 system-ui, sans-serif; overflow-wrap: anywhere; }
h1 { font-size: 1.5rem; margin: 0 0 1rem; } h2 { font-size: 1.15rem; margin: 2rem 0 .6rem; }
a { color: var(--accent); } code, pre { font-family: ui-monospace, monospace; font-size: .9em; }
pre { background: var(--raised); padding: .8rem; overflow-x: auto; overflow-wrap: normal; }
.scroll { overflow-x: auto; } .faint { color: var(--faint); } .good { color: var(--good); } .bad { color: var(--bad); }
table { border-collapse: collapse; font-size: .92em; } th, td { padding: .25rem .7rem; text-align: left;
  border-bottom: 1px solid var(--line); vertical-align: top; overflow-wrap: normal; }
th { background: var(--raised); position: sticky; top: 0; } .number { text-align: right;
  font-variant-numeric: tabular-nums; white-space: nowrap; }
svg text:not([fill]) { fill: currentColor; } .paper { background: #fff; color: #1c2430; }
"""


def page(title: str, sections: Iterable[str], *, style: str = "", script: str = "") -> str:
    """A complete HTML document. `style` and `script` are added to the page's own; `title` is escaped."""
    name = escape(title)
    code = f"<script>\n{script}</script>\n" if script else ""
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{name}</title>\n<style>\n{_STYLE}{style}</style>\n</head>\n<body>\n<h1>{name}</h1>\n"
        + "\n".join(sections)
        + f"\n{code}</body>\n</html>\n"
    )


def section(heading: str, *parts: str) -> str:
    """A section: its heading, which is escaped, and parts of HTML, each of which scrolls if it is too wide."""
    body = "\n".join(f'<div class="scroll">{part}</div>' for part in parts)
    return f"<section>\n<h2>{escape(heading)}</h2>\n{body}\n</section>"


def paragraph(line: str, kind: str = "") -> str:
    """A paragraph of text, which is escaped; `kind` is "", "faint", "good" or "bad"."""
    return f'<p class="{kind}">{escape(line)}</p>' if kind else f"<p>{escape(line)}</p>"


def script_data(text: str) -> str:
    """JSON as it may stand within a page's script: no text in it ends the script or begins a comment."""
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")
