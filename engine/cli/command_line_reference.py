"""`docs/command-line.md`, from the declarations of the commands.

`python -m engine.cli.command_line_reference serve=engine_serve.command` prints it, with the command of an application.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from importlib import import_module
from types import MappingProxyType

from engine.cli.discovery import OWN, Command, add_arguments, own_command
from engine.cli.main import DESCRIPTION, EXIT_CODES

_INTRODUCTION = f"""\
# Command line

{DESCRIPTION}
`python -m engine` is the same command; `--help` prints the contents of this page. Packages can
[add commands](add-a-command.md).

Results are printed to standard output, errors to standard error. `--json` prints one JSON object instead of text, for
programs; text may change between versions.
"""


def command_line_reference(others: Mapping[str, Command] = MappingProxyType({})) -> str:
    """Return the reference of the engine's commands, and of others, as Markdown."""
    codes = "\n".join(f"| {code} | {meaning} |" for code, meaning in EXIT_CODES.items())
    commands = {**{name: own_command(name) for name in OWN}, **others}
    sections = [_section(name, command) for name, command in commands.items()]
    return "\n".join([_INTRODUCTION, "| exit code | meaning |\n|---|---|\n" + codes + "\n", *sections])


def _section(name: str, command: Command) -> str:
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


if __name__ == "__main__":
    named = [argument.split("=") for argument in sys.argv[1:]]
    print(command_line_reference({name: import_module(module) for name, module in named}), end="")
