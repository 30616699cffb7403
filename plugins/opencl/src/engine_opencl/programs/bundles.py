"""Several kernels in one program: compilers for CPUs take a third of a second for any program, however small."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

from engine_opencl.devices.device import DeviceFacts
from engine_opencl.plan import Launch

_SIZE: Final = 8
"""Sources of a program: enough to share the time, and few enough to occupy several processes."""
_COMMENT: Final = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_MACRO: Final = re.compile(r"^[ \t]*#[ \t]*define[ \t]+(\w+)", re.MULTILINE)
_MACRO_OR_END: Final = re.compile(r"^[ \t]*#[ \t]*(define|undef)[ \t]+(\w+)", re.MULTILINE)
_DIRECTIVE: Final = re.compile(r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*", re.MULTILINE)
_ATTRIBUTE: Final = re.compile(r"__attribute__\s*\(\(.*?\)\)\)?")
_MADE_BY_MACROS: Final = re.compile(r"^// defines: (.*)$", re.MULTILINE)
_TOKEN: Final = re.compile(r"\w+|[^\w\s]")


def bundled(launches: Sequence[Launch], facts: DeviceFacts) -> tuple[Launch, ...]:
    """The launches with their sources joined in groups, where that saves time; equal launches give equal results.

    In a joined source, the names that each source defines end with the number of that source.
    """
    if facts.kind != "cpu":
        return tuple(launches)
    sources = list(dict.fromkeys(launch.source for launch in launches))
    joined: dict[str, tuple[str, int]] = {}
    for start in range(0, len(sources), _SIZE):
        group = sources[start : start + _SIZE]
        if len(group) > 1:
            text = "".join(numbered(source, number) for number, source in enumerate(group))
            joined |= {source: (text, number) for number, source in enumerate(group)}
    return tuple(_moved(launch, *joined[launch.source]) if launch.source in joined else launch for launch in launches)


def _moved(launch: Launch, source: str, number: int) -> Launch:
    return replace(launch, source=source, symbol=_numbered_name(launch.kernel, number))


def numbered(source: str, number: int) -> str:
    """A source whose definitions do not collide with other sources': macros rename them, and end with it."""
    names, macros = defined_names(source), set(_MACRO.findall(source))

    def renaming(name: str) -> str:
        return f"#define {name} {_numbered_name(name, number)}\n"

    def restored(directive: re.Match[str]) -> str:
        """A source may define a macro of the name of a function, for code that follows."""
        text, (what, name) = directive[0], directive.groups()
        if name not in names:
            return text
        return f"#undef {name}\n{text}" if what == "define" else f"{text}\n{renaming(name).rstrip()}"

    renamed, body = "".join(map(renaming, names)), _MACRO_OR_END.sub(restored, source)
    undefined = "".join(f"#undef {name}\n" for name in sorted({*names, *macros}))
    return f"{renamed}{body}\n{undefined}"


def _numbered_name(name: str, number: int) -> str:
    return f"{name}__{number}"


def defined_names(source: str) -> list[str]:
    """The functions, types and constants that a source defines; those made by macros are listed in its comments."""
    found = [name for listed in _MADE_BY_MACROS.findall(source) for name in listed.split()]
    found += _at_file_scope(_TOKEN.findall(code_of(source)))
    return list(dict.fromkeys(found))


def code_of(source: str) -> str:
    """A source without comments, attributes and lines of the preprocessor, and so with all alternatives of `#if`."""
    return _ATTRIBUTE.sub("", _DIRECTIVE.sub("", _COMMENT.sub("", source)))


def _at_file_scope(tokens: Iterable[str]) -> list[str]:
    """Names between a type and a parameter list, an array's length, an initial value, or the end of a typedef."""
    found: list[str] = []
    depth, is_typedef = 0, False
    type_, name = "", ""
    for token in tokens:
        if not depth:
            is_typedef = token == "typedef" or (is_typedef and name != ";")
            is_after_type = type_.isidentifier() or type_ in ("*", ",")
            if name.isidentifier() and (token == ";" if is_typedef else token in "([=" and is_after_type):
                found.append(name)
        depth += (token in "({[") - (token in ")}]")
        if not depth:
            type_, name = name, token
    return found
