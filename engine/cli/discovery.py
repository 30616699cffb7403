"""The commands: the engine's own, and those that distributions add by the entry-point group `engine.commands`.

An own command is imported when it runs. A distribution's module is imported when its command runs, and to list it in
`engine --help`, so that it says there why it cannot be used; it should import what is large in `run`.
"""

from __future__ import annotations

import argparse
import importlib
import re
from collections.abc import Mapping
from typing import Final, Protocol

from engine.errors import EngineError, MissingPartError
from engine.registry.installed import EntryPoint, InstalledEntryPoints
from engine.startup import dataclass

GROUP: Final = "engine.commands"
"""The entry-point group: each entry maps the name of a command to a `Command`, usually a module."""
OWN: Final = (
    "devices", "doctor", "query", "run", "generate", "compare", "diff", "compile", "compress", "inspect",
    "visualize", "keygen", "benchmark", "profile", "passes", "new-plugin", "conformance",
)  # fmt: skip
"""The commands of the engine, in the order in which `engine --help` lists them."""
APPS: Final = {"serve": "engine-serve"}
"""The commands of applications of this project, and their distributions."""
_NAME: Final = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
_TEXTS: Final = ("SUMMARY", "DESCRIPTION", "EXAMPLES")


class Command(Protocol):
    """The interface of a command: a module, or an object with these attributes."""

    SUMMARY: str
    """One line, for the list of commands."""
    DESCRIPTION: str
    """The text of `--help`: the command's work and output."""
    EXAMPLES: str
    """Example command lines, one per line, each with its purpose after `#`."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the arguments. `--debug` is added to every command."""

    def run(self, args: argparse.Namespace) -> int:
        """Run the command and return the exit code.

        An `EngineError` and an `OSError` are printed as one line, a `UsageError` with the command's usage.
        """


class CommandError(EngineError):
    """A command of another distribution cannot be used; `reason` says why, the message also whose it is."""

    def __init__(self, name: str, distribution: str, reason: str) -> None:
        super().__init__(f"the command of {distribution} cannot be used: {reason}")
        self.name, self.distribution, self.reason = name, distribution, reason


@dataclass(frozen=True, slots=True)
class FoundCommand:
    """A command that can be used; `distribution`, as "name version", is empty for the engine's own."""

    name: str
    command: Command
    distribution: str = ""


def find_command(name: str) -> FoundCommand | None:
    """The command of a name; None if there is none.

    Raises `MissingPartError` if the runtime leaves it out, `CommandError` if it cannot be used.
    """
    if name in OWN:
        return FoundCommand(name, own_command(name))
    claims = _claims().get(name)
    if not claims and name in APPS:
        raise CommandError(name, APPS[name], f"it is not installed: pip install {APPS[name]}")
    return _loaded(name, claims) if claims else None


def list_commands() -> tuple[list[FoundCommand], list[CommandError]]:
    """All commands that can be used, the engine's first, and why others cannot."""
    found, refused = [], []
    for name in OWN:
        try:
            found.append(FoundCommand(name, own_command(name)))
        except MissingPartError:
            continue
    for name, claims in sorted(_claims().items()):
        try:
            found.append(_loaded(name, claims))
        except CommandError as e:
            refused.append(e)
    return found, refused


def own_command(name: str) -> Command:
    """A command of the engine. Raises `MissingPartError` if the runtime leaves it out."""
    return importlib.import_module(f"engine.cli.commands.{name.replace('-', '_')}")


def add_arguments(command: Command, parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of a command, including the common ones."""
    command.add_arguments(parser)
    parser.add_argument("--debug", action="store_true", help="print the traceback of an error, with its causes")


def _claims() -> dict[str, dict[str, EntryPoint]]:
    """The entry points of each name, by distribution."""
    claims: dict[str, dict[str, EntryPoint]] = {}
    for distribution, entry_points in InstalledEntryPoints().of(GROUP):
        for entry_point in entry_points:
            claims.setdefault(entry_point.name, {})[distribution] = entry_point
    return claims


def _loaded(name: str, claims: Mapping[str, EntryPoint]) -> FoundCommand:
    distribution, *others = claims
    if _NAME.fullmatch(name) is None:
        raise CommandError(
            name, distribution, f"its name {name!r} is not lower-case words and numbers, joined by hyphens"
        )
    if name in OWN:
        raise CommandError(name, " and of ".join(claims), f"the engine has a command {name} of its own")
    if others:
        raise CommandError(
            name, " and of ".join(claims), f"they have the same name {name}; uninstall all but one of them"
        )
    try:
        command = claims[distribution].load()
        _check(command)
    except (Exception, SystemExit) as e:
        said = str(e) if isinstance(e, _ContractError) else f"{type(e).__name__}: {e}"
        remedy = f"repair or uninstall {distribution.rpartition(' ')[0]}"
        raise CommandError(name, distribution, f"{claims[distribution].value}: {said}; {remedy}") from e
    return FoundCommand(name, command, distribution)


class _ContractError(Exception):
    """An object is not a command."""


def _check(command: Command) -> None:
    for text in _TEXTS:
        if not isinstance(getattr(command, text, None), str):
            raise _ContractError(f"expected a text {text}; got {getattr(command, text, None)!r:.80}")
    if len(command.SUMMARY.splitlines()) != 1:
        raise _ContractError(f"expected one line as SUMMARY; got {command.SUMMARY!r:.80}")
    for function in ("add_arguments", "run"):
        if not callable(getattr(command, function, None)):
            raise _ContractError(f"expected a function {function}; got {getattr(command, function, None)!r:.80}")
    try:
        add_arguments(command, argparse.ArgumentParser())
    except (Exception, SystemExit) as e:
        raise _ContractError(f"add_arguments failed: {type(e).__name__}: {e}") from e
