"""Renders chat templates, as the program of a `LimitedProcess`: a template may loop for ever or fill the memory.

The first line is {"templates": {NAME: SOURCE}}; requests are {"name": NAME, "values": {...}}, and replies {"text": ...}
or {"error": ..., "is_refused": ...}, where a template has refused the values by `raise_exception`.

What templates can use is what `transformers` gives them: jinja2's immutable sandbox, loop controls, `tojson`,
`strftime_now`, `raise_exception`, and blocks of `generation`.
"""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any, Final

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
import jinja2.sandbox
import jinja2.utils

from engine_serve.limited_program import Reply, run

_MAX_CHARACTERS: Final = 8 << 20


def program(begin: dict[str, Any]) -> Reply:
    """What renders the templates of the first line."""
    environment, sources = _environment(), begin["templates"]
    compiled: dict[str, jinja2.Template] = {}
    return lambda asked: _reply(environment, sources, compiled, asked)


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


class Dict:
    """What templates call `dict`, since the class itself has attributes that lead elsewhere."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        """As of the class."""
        return dict(*args, **kwargs)

    def fromkeys(self, *args: Any) -> dict[Any, Any]:
        """As of the class."""
        return dict.fromkeys(*args)


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
        "dict": Dict(),
    }
    return made


def _reply(
    environment: jinja2.Environment,
    sources: dict[str, str],
    compiled: dict[str, jinja2.Template],
    asked: dict[str, Any],
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
    if len(text) > _MAX_CHARACTERS:
        return {"error": f"it wrote {len(text)} characters; expected {_MAX_CHARACTERS} at most", "is_refused": False}
    return {"text": text}


if __name__ == "__main__":
    run(program)
