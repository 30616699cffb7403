#!/usr/bin/env python3
"""Writes the pages of the documentation that declarations in the code determine: `tools/pages.py`.

tests/cli/test_reference_pages.py checks that the committed pages are current. Needs engine-serve, one of the commands.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from importlib import import_module
from pathlib import Path
from typing import Final

import engine.ops  # noqa: F401  (registers the specs)
from engine.cli.discovery import OWN, Command, add_arguments, own_command
from engine.cli.main import DESCRIPTION, EXIT_CODES
from engine.core import CORE_PROPERTIES
from engine.ops.cases.undefined import UNDEFINED
from engine.ops.registry import INTERNAL_DOMAIN
from engine.ops.spec import spec_classes
from engine.properties import (
    CONFIG,
    CONFIG_PROPERTIES,
    DEVICE_CONFIGS,
    DEVICE_PRIORITIES,
    DEVICE_PROPERTIES,
    EXECUTOR_PROPERTIES,
    MEMORY_BUDGET,
    METRIC,
    NETWORK_METRICS,
    OWN_TARGET,
    TARGET,
    TARGETS,
    PropertySet,
    describe,
)

DOCS: Final = Path(__file__).resolve().parent.parent / "docs"
_COMMAND_LINE = f"""\
# Command line

{DESCRIPTION}
`python -m engine` is the same command; `--help` prints the contents of this page. Packages can
[add commands](add-a-command.md).

Results are printed to standard output, errors to standard error. `--json` prints one JSON object instead of text, for
programs; text may change between versions.
"""
_PROPERTIES = """\
# Properties

Every property is declared once, with its type, default, allowed values and meaning; this page, the validation of
configurations, `SUPPORTED_METRICS`, `SUPPORTED_CONFIG_KEYS` and the command line derive from the declarations. A device
may have more properties and allow fewer values than listed here: `engine devices DEVICE` lists a device's properties.

- A *metric* is a fact that a device or a network reports: `core.get_property("CPU", "FULL_DEVICE_NAME")`,
  `network.get_metric("NETWORK_NAME")`.
- A *config key* is set before a network is compiled or imported, and readable afterwards:
  `core.compile_model(model, "CPU", {"NUM_STREAMS": 2})`, `network.get_config("NUM_STREAMS")`.

Values passed to `compile_model` take precedence over the defaults for a device, set by
`core.set_property("CPU", {...})`, and these over the defaults for all devices, set by `core.set_property({...})`;
`core.stated_defaults("CPU")` tells which of them are set. A blob stores the values that it was compiled with; values
passed to `import_model` override them. Types are not converted, except that the command line parses text:
`-c PERF_COUNT=true`, lists separated by commas, mappings as JSON.
"""
_SPECS = """\
# Specs

The attributes of each operator, typed and complete: defaults are filled in, axes are counted from the front, values
that the operator does not allow are refused. Fields have the names of ONNX's attributes. `ops.spec_of(node)` returns
the spec of a node; [read attributes](../quick-start.md#read-attributes) shows it in use. Operators without attributes
have `OperatorSpec`.
"""
_UNDEFINED = """\
# What ONNX leaves undefined

Where ONNX's text is silent, or says that a result is undefined, all devices give one answer, so that a model computes
the same when it moves to another device or when a pass folds constants. Each row is a set of cases
that every plugin's tests run (`engine.ops.cases.undefined`). If `onnx.reference` departs from the text, the text
counts.

| operators | what | answer |
|---|---|---|
"""

_LIMITS = """
Not in the table: sums of real numbers may be added in any order, so that a sum whose parts overflow may be infinite or
NaN, and a maximum of -0 and 0 may be either. A key that attention masks must be finite.
"""


def command_line_reference() -> str:
    """Return the reference of the engine's commands, and of the server's, as Markdown."""
    codes = "\n".join(f"| {code} | {meaning} |" for code, meaning in EXIT_CODES.items())
    commands = {**{name: own_command(name) for name in OWN}, "serve": import_module("engine_serve.command")}
    sections = [_command_section(name, command) for name, command in commands.items()]
    return "\n".join([_COMMAND_LINE, "| exit code | meaning |\n|---|---|\n" + codes + "\n", *sections])


def _command_section(name: str, command: Command) -> str:
    parser = argparse.ArgumentParser(add_help=False)
    add_arguments(command, parser)
    # This list is the only access to the arguments; formatted help depends on the Python version and the terminal.
    actions = parser._actions
    positional = [_placeholder(action) for action in actions if not action.option_strings]
    rows = "\n".join(f"| {_spelling(action)} | {_meaning(action)} |" for action in actions)
    usage = " ".join(["engine", name, "[OPTIONS]", *positional])
    return (
        f"## engine {name}\n\n```\n{usage}\n```\n\n{command.DESCRIPTION}\n"
        f"| argument | meaning |\n|---|---|\n{rows}\n\n"
        f"```console\n{command.EXAMPLES}```\n"
    )


def _placeholder(action: argparse.Action) -> str:
    return f"[{action.metavar}]" if action.nargs == "?" else str(action.metavar)


def _spelling(action: argparse.Action) -> str:
    if not action.option_strings:
        return f"`{action.metavar}`"
    value = f" {action.metavar}" if action.metavar else ""
    return ", ".join(f"`{option}{value}`" for option in action.option_strings)


def _meaning(action: argparse.Action) -> str:
    return str(action.help).replace("%%", "%").replace("|", "\\|")


def properties_reference() -> str:
    """Return the reference of all properties as Markdown."""
    own = [p for p in CONFIG_PROPERTIES if p.name not in EXECUTOR_PROPERTIES]
    core_only = [p for p in CORE_PROPERTIES if p.name not in DEVICE_PROPERTIES]
    sections = {
        "Config keys of every device": PropertySet(*own),
        "Config keys of the executors, on which requests run": EXECUTOR_PROPERTIES,
        "Config keys of devices with memory of a known size": PropertySet(MEMORY_BUDGET),
        "Config keys of devices that run on others": PropertySet(DEVICE_PRIORITIES, DEVICE_CONFIGS),
        "Of devices that compile for other machines": PropertySet(TARGET, TARGETS, OWN_TARGET),
        "Config keys of the core only": PropertySet(*core_only).of(CONFIG),
        "Metrics of every device": DEVICE_PROPERTIES.of(METRIC),
        "Metrics of every network": NETWORK_METRICS,
    }
    return _PROPERTIES + "".join(f"\n## {title}\n\n{describe(listed)}" for title, listed in sections.items())


def specs_reference() -> str:
    """Return the reference of all specs of ONNX's operators as Markdown, with directives for mkdocstrings."""
    rows, modules = [], defaultdict(set)
    for operator, cls in sorted(spec_classes().items()):
        if not cls.__module__.startswith("engine.ops.") or operator.startswith(INTERNAL_DOMAIN):
            continue
        place = f"{cls.__module__}.{cls.__name__}"
        rows.append(f"| {operator} | [`{cls.__name__}`](#{place}) |")
        for base in cls.__mro__[:-1]:
            if base.__module__.startswith("engine.ops.") and not base.__name__.startswith("_"):
                modules[base.__module__].add(base.__name__)
    del modules["engine.ops.spec"]
    sections = (_spec_section(module, sorted(modules[module])) for module in sorted(modules))
    return "\n".join([_SPECS, "| operator | spec |\n|---|---|", *rows, "", *sections])


def _spec_section(module: str, members: list[str]) -> str:
    return (
        f"::: {module}\n    options:\n      members: [{', '.join(members)}]\n"
        '      filters: ["!^_", "!^resolve$"]\n      show_root_full_path: true\n'
    )


def undefined_reference() -> str:
    """Return the table as Markdown."""
    rows = [f"| {row.operators} | {row.what} | {row.answer} |\n" for row in UNDEFINED]
    return _UNDEFINED + "".join(rows) + _LIMITS


PAGES: Final = {
    "command-line.md": command_line_reference,
    "properties.md": properties_reference,
    "reference/specs.md": specs_reference,
    "undefined.md": undefined_reference,
}

if __name__ == "__main__":
    for page, make in PAGES.items():
        (DOCS / page).write_text(make(), encoding="utf-8")
