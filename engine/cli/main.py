"""The command line `engine`: command dispatch and error handling."""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import re
import shutil
import signal
import sys
import textwrap
import traceback
import warnings
from argparse import ArgumentParser
from collections.abc import Iterator, Sequence
from typing import Any, Final

from engine.cli.discovery import CommandError, FoundCommand, add_arguments, find_command, list_commands
from engine.cli.options import UsageError
from engine.cli.output import say
from engine.drawing.table import escaped
from engine.errors import EngineError, EngineWarning, MissingPartError

DESCRIPTION: Final = (
    "Run ONNX models on the devices that are installed as plugins, compile them to blobs, and inspect both."
)

EXAMPLES: Final = """\
engine devices                         # the available devices
engine doctor                          # what is wrong here, and how to fix it
engine query model.onnx -d TEMPLATE    # which of a model's nodes a device supports
engine run model.onnx -d TEMPLATE      # run it once, on random inputs
engine generate decoder.onnx -d CPU --prompt-ids 1,2  # continue tokens with a language model
engine compile model.onnx -d TEMPLATE  # write model.blob
engine compress model.onnx             # write model.int4.onnx, with weights of 4 bits
engine inspect model.blob              # its content, and whether it loads here
engine visualize model.onnx -o graph.html  # its graph, as a page to look around in
engine keygen release-2026             # a key, with which `engine compile --sign` signs blobs
engine benchmark model.blob            # latency and throughput
engine profile model.blob               # which nodes take the time
engine diff model.onnx -d CPU -d TEMPLATE  # the first node where two devices part
engine new-plugin ACME                 # write the package of a plugin for a new device
engine conformance ACME                # score a device
"""

EXIT_CODES: Final = {
    0: "done, and every check passed",
    1: "a difference was found, a node is not supported, a blob is damaged or does not load here, or a "
    "device does not work",
    2: "the command line is wrong",
    3: "the engine, a device or the system refused; the reason is on standard error",
    4: "an internal error, which is a bug; the traceback is on standard error",
    130: "interrupted (Ctrl-C)",
    141: "the reader of the output closed the pipe",
}


_WORDS: Final = re.compile(r"""(?:'[^']*'|"[^"]*"|[^\s'"])+""")
"""The words of a command line, those in quotes whole."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code, one of `EXIT_CODES`."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        # Node names may contain any Unicode characters, but a terminal's encoding may be ASCII.
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        try:
            return _run(arguments)
        finally:
            if arguments is None and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
                # While the interpreter exits, Ctrl-C ends the process without a traceback.
                signal.signal(signal.SIGINT, signal.SIG_DFL)
            if sys.stdout is not None:  # None if the caller has closed it
                sys.stdout.flush()
    except OSError as e:
        # The interpreter flushes again at exit, which must not fail on the closed pipe or full disk.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(e, BrokenPipeError):
            return 141
        print(f"engine: error: cannot write to standard output: {e}", file=sys.stderr)
        return 3


def make_parser(commands: Sequence[FoundCommand] | None = None) -> ArgumentParser:
    """Return the parser of commands, by default of all that can be used."""
    commands = list_commands()[0] if commands is None else commands
    parser, group = _empty_parser(commands)
    for each in commands:
        sub = group.add_parser(
            each.name,
            help=_summary(each),
            description=_paragraphs(each.command.DESCRIPTION),
            epilog=_epilog(each.command.EXAMPLES),
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        add_arguments(each.command, sub)
        sub.set_defaults(run=each.command.run, parser=sub, distribution=each.distribution)
    return parser


def make_overview() -> ArgumentParser:
    """Return a parser that knows the names of all commands, not their arguments: for `engine --help`."""
    commands, refused = list_commands()
    parser, group = _empty_parser(commands, refused)
    for each in commands:
        group.add_parser(each.name, help=_summary(each), add_help=False)
    return parser


def _empty_parser(
    commands: Sequence[FoundCommand], refused: Sequence[CommandError] = ()
) -> tuple[ArgumentParser, argparse._SubParsersAction[ArgumentParser]]:
    """A parser that has no command yet, and the object that adds commands to it."""
    names = {each.name for each in commands}
    examples = [each for each in EXAMPLES.splitlines() if each.split()[1] in names]
    parser = ArgumentParser(
        "engine",
        description=_paragraphs(DESCRIPTION),
        epilog=_refusals(refused) + _epilog("\n".join(examples)),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="store_true", help="print the version and exit")
    return parser, parser.add_subparsers(title="commands", metavar="COMMAND", dest="command")


def _summary(found: FoundCommand) -> str:
    return escaped(found.command.SUMMARY).replace("%", "%%")


def _refusals(refused: Sequence[CommandError]) -> str:
    """The commands that cannot be used, and why."""
    if not refused:
        return ""
    rows = [
        textwrap.fill(
            escaped(f"{each.name} of {each.distribution}: {each.reason}"),
            _width(),
            initial_indent="  ",
            subsequent_indent="    ",
            break_on_hyphens=False,
        )
        for each in refused
    ]
    return "\n".join(["commands that cannot be used:", *rows, "", ""])


def _paragraphs(text: str) -> str:
    """Paragraphs, filled to the width of the terminal."""
    return "\n\n".join(textwrap.fill(" ".join(each.split()), _width()) for each in text.split("\n\n"))


def _epilog(examples: str) -> str:
    shown = "\n".join(_example(line) for line in examples.splitlines())
    codes = "\n".join(
        textwrap.fill(meaning, _width(), initial_indent=f"  {code:<3}  ", subsequent_indent=" " * 7)
        for code, meaning in EXIT_CODES.items()
    )
    return f"examples:\n{shown}\n\nexit codes:\n{codes}"


def _example(line: str) -> str:
    """An example; if it is too wide, its purpose is printed above it, and the command continues after backslashes."""
    if len(line) + 2 <= _width():
        return f"  {line}"
    command, _, purpose = line.partition(" # ")
    rows = [""]
    for word in _WORDS.findall(command):
        if rows[-1] and len(rows[-1]) + len(word) + 5 > _width():
            rows.append("")
        rows[-1] += f" {word}" if rows[-1] else word
    return f"  # {purpose.strip()}\n  " + " \\\n    ".join(rows)


def _width() -> int:
    return max(40, shutil.get_terminal_size().columns - 2)


def _run(arguments: Sequence[str] | None) -> int:
    given = [str(each) for each in (sys.argv[1:] if arguments is None else arguments)]
    try:
        # Only the command that runs is imported; without a command, or for an unknown one, all are listed.
        found = find_command(given[0]) if given and not given[0].startswith("-") else None
    except (CommandError, MissingPartError) as e:
        _report(given[0], e, is_debugging="--debug" in given)
        return 3
    parser = make_parser([found]) if found else make_overview()
    args, others = (parser.parse_args(given), []) if found else parser.parse_known_args(given)
    if args.version:
        from engine import __version__

        print(f"engine {__version__}")
        return 0
    if not found and (others or args.command):  # an option stands before the command
        args = make_parser().parse_args(given)
    args.arguments = given
    if args.command is None:
        parser.error("a command is missing; `engine --help` lists them")
    try:
        with _warnings_as_lines(args.command):
            code: int = args.run(args)
        return code
    except BrokenPipeError:
        raise
    except UsageError as e:
        command_parser: argparse.ArgumentParser = args.parser
        command_parser.error(str(e))
    except KeyboardInterrupt:
        print(f"engine {args.command}: interrupted", file=sys.stderr)
        return 130
    except (EngineError, OSError) as e:
        _report(args.command, e, is_debugging=args.debug)
        return 3
    except MemoryError as e:
        said = f"not enough memory: {e}" if str(e) else "not enough memory"
        _report(args.command, EngineError(said), is_debugging=args.debug)
        return 3
    except Exception:
        traceback.print_exc()
        whose = f"internal error of {args.distribution}" if args.distribution else "internal error"
        print(f"engine {args.command}: {whose}; this is a bug, please report it", file=sys.stderr)
        return 4


@contextlib.contextmanager
def _warnings_as_lines(command: str) -> Iterator[None]:
    """Print an `EngineWarning` without the place in the source of a command."""
    with warnings.catch_warnings():
        shown = warnings.showwarning

        def show(message: Any, category: type[Warning], *others: Any, **more: Any) -> None:
            if issubclass(category, EngineWarning):
                say(f"engine {command}: warning: {message}", to_stderr=True)
            else:
                shown(message, category, *others, **more)

        warnings.showwarning = show
        yield


def _report(command: str, error: Exception, *, is_debugging: bool) -> None:
    if is_debugging:
        traceback.print_exception(error)
    notes = "".join(f"\n{note}" for note in getattr(error, "__notes__", ()))
    # Continuation lines are indented, so that a name with a newline cannot forge an output line.
    said = f"{error}{notes}".replace("\n", "\n  ")
    say(f"engine {command}: error: {said}", lines=True, to_stderr=True)


if __name__ == "__main__":
    sys.exit(main())
