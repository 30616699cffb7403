"""Tools of a chat: which ones its answer may or must call, and what such an answer must match."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from engine.errors import InputError, UnsupportedError
from engine_serve.openai_requests import Structure

_NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_MAX_TOOLS: Final = 128
"""As many as OpenAI's API takes."""
_VALUES: Final = frozenset({"const", "enum", "default", "examples"})
"""Keys of a schema whose values are not schemas."""
_NO_PARAMETERS: Final = {"type": "object", "properties": {}, "additionalProperties": False}


@dataclass(frozen=True, slots=True)
class ToolChoice:
    """What an answer does with tools.

    Attributes:
        kind: "none", "auto" (it may call some), "required" (it calls one or more), or "named".
        name: that of the function for "named".
        tools: what the chat template receives.
        structure: what the text of the answer must match.
    """

    kind: str = "none"
    name: str = ""
    tools: list[Mapping[str, Any]] = field(default_factory=list)
    structure: Structure | None = None


def tool_choice(given: Mapping[str, Any]) -> ToolChoice:
    """The choice in the body of a chat. Raises `InputError` and `UnsupportedError`."""
    functions = _functions(given.get("tools", []))
    choice = given.get("tool_choice", "auto" if functions else "none")
    is_parallel = given.get("parallel_tool_calls", True)
    if not isinstance(is_parallel, bool):
        raise InputError(f"`parallel_tool_calls` is {is_parallel!r:.40}; expected true or false")
    if choice == "none" or (choice == "auto" and not functions):
        return ToolChoice()
    if not functions:
        raise InputError("`tool_choice` is given without `tools`; add them, or leave it out")
    tools = list(given["tools"])
    if choice == "auto":
        return ToolChoice("auto", "", tools)
    if choice == "required":
        return ToolChoice("required", "", tools, Structure(_calls_schema(functions, is_parallel), "`tools`"))
    function = choice.get("function") if isinstance(choice, dict) and choice.get("type") == "function" else None
    name = function.get("name") if isinstance(function, dict) else None
    if name is None and isinstance(choice, dict) and isinstance(choice.get("type"), str):
        raise UnsupportedError(f"`tool_choice` of type {choice['type']!r:.40} is not supported; name a function")
    if not isinstance(name, str):
        raise InputError(
            f'`tool_choice` is {choice!r:.80}; expected "none", "auto", "required", or '
            '{"type": "function", "function": {"name": "..."}}'
        )
    if name not in functions:
        raise InputError(f"`tool_choice` names {name!r:.80}; the tools are {', '.join(functions)}")
    return ToolChoice("named", name, tools, Structure(functions[name], f"`tools`: the parameters of {name}"))


def _functions(tools: Any) -> dict[str, Mapping[str, Any]]:
    """The schemas of the parameters of functions, by their names."""
    if not isinstance(tools, list) or len(tools) > _MAX_TOOLS:
        raise InputError(f"`tools` must be a list of {_MAX_TOOLS} tools at most")
    found: dict[str, Mapping[str, Any]] = {}
    for place, tool in enumerate(tools):
        where = f"tools[{place}]"
        if isinstance(tool, dict) and isinstance(tool.get("type"), str) and tool["type"] != "function":
            raise UnsupportedError(f"`{where}` is of type {tool['type']!r:.40}; the models here call functions only")
        function = tool.get("function") if isinstance(tool, dict) and tool.get("type") == "function" else None
        if not isinstance(function, dict):
            raise InputError(f'`{where}` is {tool!r:.80}; expected {{"type": "function", "function": {{...}}}}')
        name, parameters = function.get("name"), function.get("parameters")
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise InputError(f"`{where}.function.name` is {name!r:.80}; expected 1 to 64 letters, digits, or ._-")
        if name in found:
            raise InputError(f"`tools` has {name} twice; expected each name once")
        parameters = _NO_PARAMETERS if parameters in (None, {}) else parameters
        if not isinstance(parameters, dict) or parameters.get("type") != "object":
            raise InputError(
                f"`{where}.function.parameters` is {parameters!r:.80}; expected a JSON schema of type object"
            )
        found[name] = parameters
    return found


def _calls_schema(functions: Mapping[str, Mapping[str, Any]], is_parallel: bool) -> dict[str, Any]:
    """What a list of calls must match. References within a schema of parameters are of its root, which has moved."""
    calls, moved = [], {}
    for place, (name, parameters) in enumerate(functions.items()):
        root = f"#/$defs/tool{place}"
        moved[f"tool{place}"] = _moved(parameters, root)
        call = {"name": {"const": name}, "parameters": {"$ref": root}}
        calls.append({"type": "object", "properties": call, "required": [*call], "additionalProperties": False})
    most = {} if is_parallel else {"maxItems": 1}
    return {"type": "array", "items": {"anyOf": calls}, "minItems": 1, **most, "$defs": moved}


def _moved(schema: Any, root: str) -> Any:
    if isinstance(schema, list):
        return [_moved(each, root) for each in schema]
    if not isinstance(schema, dict):
        return schema
    found = {key: value if key in _VALUES else _moved(value, root) for key, value in schema.items()}
    if isinstance(reference := schema.get("$ref"), str) and reference.startswith("#"):
        found["$ref"] = root + reference[1:]
    return found
