"""`add_steps`: steps written as text, such as `x=input(u8, NHWC).resize([224, 224]).scale(255)`."""

from __future__ import annotations

import ast
import re
import warnings
from typing import Any, Final, TypeAlias

from engine.errors import PreprocessingError
from engine.preprocessing.processor import PrePostProcessor
from engine.startup import dataclass

_TEXT: Final = re.compile(r"(?P<name>.+?)=(?P<head>input|output)\((?P<rest>.*)", re.DOTALL)
_MAX_CHARACTERS: Final = 10_000
_NOT_STEPS: Final = ("input", "output", "build")
_Call: TypeAlias = "tuple[str, list[Any], dict[str, Any]]"


@dataclass(frozen=True, slots=True)
class StepsText:
    """The request of a text: `kind` is input or output, `calls` are the names and arguments of the calls, in order."""

    text: str
    name: str
    kind: str
    calls: tuple[_Call, ...]

    def add_to(self, processor: PrePostProcessor) -> None:
        """Add the steps. Raises `PreprocessingError` if they do not fit; `GraphError` if the model has no such name."""
        (_, arguments, named), *steps = self.calls
        start: Any = processor.input if self.kind == "input" else processor.output
        chain = self._call(start, self.kind, [self.name, *arguments], named)
        for name, arguments, named in steps:
            method = None if name in _NOT_STEPS or name.startswith("_") else getattr(chain, name, None)
            if method is None:
                known = ", ".join(each for each in dir(chain) if not each.startswith("_") and each not in _NOT_STEPS)
                raise PreprocessingError(f"{self.kind} `{self.name}` has no step {name}; it has {known}")
            self._call(method, name, arguments, named)

    def _call(self, method: Any, name: str, arguments: list[Any], named: dict[str, Any]) -> Any:
        try:
            return method(*arguments, **named)
        except TypeError as e:
            problem = str(e).rpartition("() ")[2]
            raise PreprocessingError(f"{name} in {self.text!r}: {problem}") from e


def parse_steps(text: str) -> StepsText:
    """Parse `NAME=input(..).STEP(..)..` or `NAME=output(..).STEP(..)..`.

    The calls have Python's form, with numbers, lists and names, which need no quotes: `x=input(u8, NHWC).scale(255)` is
    `processor.input("x", "u8", "NHWC").scale(255)`. Nothing of the text is evaluated. Raises `PreprocessingError` for a
    text of another form.
    """
    found = _TEXT.fullmatch(text)
    if found is None or len(text) > _MAX_CHARACTERS:
        raise _malformed(text)
    return StepsText(text, found["name"], found["head"], tuple(_calls(text, f"{found['head']}({found['rest']}")))


def add_steps(processor: PrePostProcessor, text: str) -> None:
    """Add the steps of a text: see `parse_steps`. Raises `PreprocessingError`."""
    parse_steps(text).add_to(processor)


def _calls(text: str, expression: str) -> list[_Call]:
    """The calls of a chain, the first one first."""
    calls: list[_Call] = []
    try:
        with warnings.catch_warnings(action="ignore"):  # of escape sequences, which do not concern the user
            node = ast.parse(expression, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as e:
        raise _malformed(text) from e
    while isinstance(node, ast.Call):
        arguments = [_value(text, each) for each in node.args]
        named = {each.arg: _value(text, each.value) for each in node.keywords if each.arg is not None}
        if len(named) < len(node.keywords):
            raise _malformed(text)
        target = node.func
        calls.append((target.attr if isinstance(target, ast.Attribute) else "", arguments, named))
        if isinstance(target, ast.Name):
            return calls[::-1]
        if not isinstance(target, ast.Attribute):
            break
        node = target.value
    raise _malformed(text)


def _value(text: str, node: ast.expr) -> Any:
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, (ast.List, ast.Tuple)):
        return [_value(text, each) for each in node.elts]
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, RecursionError, MemoryError) as e:
        raise _malformed(text) from e


def _malformed(text: str) -> PreprocessingError:
    return PreprocessingError(
        f"expected NAME=input(..) or NAME=output(..) with steps such as .resize([224, 224]).scale(255), got {text:.200}"
    )
