"""Renders chat templates: a program that runs in a process of its own, since a template may loop for ever or fill the
memory, and only the end of a process ends all of it. `chat_template` starts it.

Standard input has a JSON object a line: first {"templates": {NAME: SOURCE}}, then {"name": NAME, "values": {...}} for
each rendering. Standard output has a JSON object for each: {"text": ...}, or {"error": ..., "is_refused": ...}, where a
template has refused the values by `raise_exception`.

What templates can use is what `transformers` gives them: jinja2's immutable sandbox, loop controls, `tojson`,
`strftime_now`, `raise_exception`, and blocks of `generation`.
"""

from __future__ import annotations

import json
import resource
import signal
import sys
from datetime import datetime
from typing import Any

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
import jinja2.sandbox
import jinja2.utils


def main(cpu_seconds: float, memory_bytes: int, most_characters: int) -> None:
    """Answer until the end of standard input. More than `cpu_seconds` for a rendering end the process by SIGPROF."""
    resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    environment, sources = _environment(), json.loads(sys.stdin.buffer.readline())["templates"]
    compiled: dict[str, jinja2.Template] = {}
    for line in sys.stdin.buffer:
        asked = json.loads(line)
        signal.setitimer(signal.ITIMER_PROF, cpu_seconds)
        try:
            reply = _reply(environment, sources, compiled, asked, most_characters)
        except (MemoryError, RecursionError) as e:
            reply = {"error": f"it needs too much memory: {type(e).__name__}", "is_refused": False}
        signal.setitimer(signal.ITIMER_PROF, 0)
        sys.stdout.buffer.write(json.dumps(reply).encode() + b"\n")
        sys.stdout.buffer.flush()


class Refusal(jinja2.TemplateError):
    """Raised by a template itself, by `raise_exception`."""


class Generation(jinja2.ext.Extension):
    """Blocks of `generation`, by which training finds the answers in a chat, are their contents."""

    tags = {"generation"}

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        """The statements in the block."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class Namespace(jinja2.utils.Namespace):
    """Refuses names that begin with an underscore, which would reach Python's own attributes."""

    def __init__(*args: Any, **kwargs: Any) -> None:
        self, *rest = args
        values = dict(*rest, **kwargs)
        for name in values:
            _check_name(name)
        jinja2.utils.Namespace.__init__(self, values)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        super().__setitem__(name, value)


def _check_name(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise jinja2.exceptions.SecurityError(f"a namespace must not have the attribute {name!r}")


def _environment() -> jinja2.Environment:
    made = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols]
    )

    def tojson(value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None,
               sort_keys: bool = False) -> str:  # fmt: skip
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    def raise_exception(message: object) -> None:
        raise Refusal(str(message))

    made.filters["tojson"] = tojson
    made.globals |= {
        "raise_exception": raise_exception,
        "strftime_now": lambda form: datetime.now().strftime(form),
        "namespace": Namespace,
        "dict": lambda *args, **kwargs: dict(*args, **kwargs),  # the class has attributes that lead elsewhere
    }
    return made


def _reply(
    environment: jinja2.Environment,
    sources: dict[str, str],
    compiled: dict[str, jinja2.Template],
    asked: dict[str, Any],
    most_characters: int,
) -> dict[str, Any]:
    try:
        name = asked["name"]
        if name not in compiled:
            compiled[name] = environment.from_string(sources[name])
        text = compiled[name].render(**asked["values"])
        text.encode()
    except Refusal as e:
        return {"error": f"{e}"[:1000], "is_refused": True}
    except (MemoryError, RecursionError):
        raise
    except Exception as e:
        return {"error": f"{type(e).__name__}: {e}"[:1000], "is_refused": False}
    if len(text) > most_characters:
        return {"error": f"it wrote {len(text)} characters; expected {most_characters} at most", "is_refused": False}
    return {"text": text}


if __name__ == "__main__":
    main(float(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
