"""The findings of `engine inspect`, as a page."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from engine.drawing.html import plain_table
from engine.drawing.page import page, paragraph, section
from engine.drawing.table import byte_count, printable

_STYLE = """\
.bar { display: inline-block; height: .7em; background: var(--accent); vertical-align: baseline; }
.shares td:last-child { min-width: 12rem; }
"""


def inspection_page(described: Mapping[str, Any], file: str) -> str:
    """The page of a model or a blob, as `engine inspect --json` describes it."""
    sections = _of_model(described) if described["kind"] == "model" else _of_blob(described)
    return page(f"{printable(described.get('name') or file)} ({file})", sections, style=_STYLE)


def _of_model(described: Mapping[str, Any]) -> Iterable[str]:
    facts = [
        ("ONNX IR version", described["ir_version"]),
        ("opsets", ", ".join(f"{domain or 'ai.onnx'} {version}" for domain, version in described["opsets"].items())),
        ("producer", described["producer"] or "-"),
        ("constants", f"{described['constants']['count']}, {byte_count(described['constants']['bytes'])}"),
        *described["metadata"].items(),
    ]
    yield section("Model", plain_table(("", ""), facts))
    yield from _ports(described)
    operators = sorted(described["operators"].items(), key=lambda entry: -entry[1])
    yield section(f"{sum(described['operators'].values())} operations", _shares("operator", operators, str))


def _of_blob(described: Mapping[str, Any]) -> Iterable[str]:
    loads = described["loads_here"]
    advised = "It would load here; recompile it to be faster." if described["advice"] else "It would load here."
    verdict = paragraph(advised if loads else "It would NOT load here.", "good" if loads else "bad")
    reasons = (paragraph(reason, "bad") for reason in described["reasons"])
    yield section("Verdict", verdict, *reasons, *map(paragraph, described["advice"] if loads else ()))
    if "device" not in described:
        return
    signature = described["signature"]
    signed = "none"
    if signature is not None:
        trusted = "verified" if signature["trusted"] else "not verified"
        signed = f"by key {signature['key']} ({signature['algorithm']}), {trusted}"
    facts: list[tuple[str, object]] = [
        ("device", described["device"]),
        ("plugin", described["plugin"]),
        ("engine", described["engine"]),
        ("plugin API", described["plugin_api"]),
        ("signature", signed),
        ("release", described["release"] or "-"),
        ("stored by", described["transform"] or "-"),
        ("weights", "its own" if described["bound"] is None else f"in the file {described['bound']['file']}"),
        *((f"config {key}", value) for key, value in described["config"].items()),
        *(
            (f"requires {key}", value if isinstance(value, str) else ", ".join(value))
            for key, value in described["requirements"].items()
        ),
        *((f"part {p['name']}", _part(p)) for p in described["parts"] if "variants" not in described),
    ]
    yield section("Blob", plain_table(("", ""), facts))
    if variants := described.get("variants"):
        rows = [(each["name"], _variant(each, described["variant"]), _sizes(each)) for each in variants]
        yield section("Variants", plain_table(("name", "here", "bytes"), rows))
    yield from _ports(described)
    sizes = [(each["name"], each["bytes"]) for each in described["sections"]]
    yield section(f"{len(sizes)} sections", _shares("section", sizes, byte_count))
    verdicts = {True: "sound", False: "DAMAGED", None: "not checked"}
    hashes = [(each["name"], each["sha256"], verdicts[each.get("sound")]) for each in described["sections"]]
    yield section("Hashes", plain_table(("section", "SHA-256", "checked"), hashes))


def _variant(variant: Mapping[str, Any], chosen: str) -> str:
    """Whether a variant of a package is imported here, or why it is not."""
    state = "imported" if variant["name"] == chosen else "can be imported"
    state = f"not here: {'; '.join(variant['reasons'])}" if variant["reasons"] else state
    return state if variant.get("sound", True) else f"DAMAGED; {state}"


def _sizes(variant: Mapping[str, Any]) -> str:
    """The bytes of a variant's own sections, and of those that others also have; of an encrypted one, nothing."""
    if "own_bytes" not in variant:
        return "-"
    return f"{byte_count(variant['own_bytes'])}, and {byte_count(variant['shared_bytes'])} shared"


def _part(part: Mapping[str, Any]) -> str:
    needs = [f"{k} {v if isinstance(v, str) else ', '.join(v)}" for k, v in part["requirements"].items()]
    return "; ".join([f"for {part['device'] or 'an unknown device'}", *(f"requires {need}" for need in needs)])


def _ports(described: Mapping[str, Any]) -> Iterable[str]:
    for what in ("inputs", "outputs"):
        rows = [(port["name"], port["type"], port.get("layout", "")) for port in described[what]]
        yield section(what.capitalize(), plain_table(("name", "type", "layout"), rows))
    if described["variables"]:
        rows = [
            (each["name"], each["type"], ", ".join(f"{k} {v}" for k, v in each.items() if k not in ("name", "type")))
            for each in described["variables"]
        ]
        yield section("Variables, which requests keep between inferences", plain_table(("name", "type", ""), rows))


def _shares(what: str, rows: Sequence[tuple[str, int]], shown: Any) -> str:
    """A table of amounts, with a bar for each amount's share of the largest."""
    largest = max((amount for _, amount in rows), default=0) or 1
    cells = "".join(
        f'<tr><td>{escape(name)}</td><td class="number">{escape(shown(amount))}</td>'
        f'<td><span class="bar" style="width: {100 * amount / largest:.1f}%"></span></td></tr>'
        for name, amount in rows
    )
    head = f'<tr><th>{escape(what)}</th><th class="number">amount</th><th>share of the largest</th></tr>'
    return f'<table class="shares"><thead>{head}</thead><tbody>{cells}</tbody></table>'
