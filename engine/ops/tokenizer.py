"""com.microsoft.Tokenizer, which skl2onnx writes for the words of texts: no operators of ONNX express it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

from engine.errors import ModelError
from engine.ir import Node, PartialShape, TensorType, ValueType, string
from engine.limits import check_bytes, current_limits
from engine.ops.interruption import current_check
from engine.ops.registry import Evaluator, OpDef, compiles, get_op, infers, register_op
from engine.ops.rules import check_inputs, tensor_type
from engine.ops.spec import OperatorSpec, check_rank, refuse, specifies
from engine.ops.tensors import Array, decode_text, encode_text
from engine.ops.text import check_pattern, compiled_pattern
from engine.startup import dataclass
from engine.startup.onnx_library import onnx

_DOMAIN: Final = "com.microsoft"
_START: Final = chr(2)
_END: Final = chr(3)
_REFERENCE: Final = 8
"""Bytes of an element of text, in addition to its characters."""
_A: Final = onnx.defs.OpSchema.AttrType


def _schema() -> onnx.defs.OpSchema:
    schema, port = onnx.defs.OpSchema, onnx.defs.OpSchema.FormalParameter
    required = (("mark", _A.INT), ("mincharnum", _A.INT), ("pad_value", _A.STRING))
    return schema(
        "Tokenizer",
        _DOMAIN,
        1,
        "The tokens of texts.",
        inputs=[port("X", "T")],
        outputs=[port("Y", "T")],
        type_constraints=[("T", ["tensor(string)"], "texts")],
        attributes=[
            *(schema.Attribute(name, kind, required=True) for name, kind in required),
            schema.Attribute("separators", _A.STRINGS, required=False),
            schema.Attribute("tokenexp", _A.STRING, required=False),
        ],
    )


register_op(OpDef(_schema()))


@specifies("Tokenizer", domain=_DOMAIN)
@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizerSpec(OperatorSpec):
    """Texts [C] or [N, C] as rows of tokens, filled up to the longest.

    Attributes:
        mark: whether each row begins with the character 2 and ends with the character 3.
        mincharnum: shorter tokens are left out.
        pad_value: the value that fills rows up.
        separators: what is between tokens, patterns of RE2 that are applied one after another to what is left; or one
            empty text: then each character is a token.
        tokenexp: a pattern of RE2 for tokens, in place of separators.
    """

    mark: bool
    mincharnum: int
    pad_value: str
    separators: tuple[str, ...] | None
    tokenexp: str | None

    @classmethod
    def resolve(cls, node: Node, given: dict[str, Any]) -> None:
        separators, pattern = given["separators"] or None, given["tokenexp"] or None
        if (separators is None) is (pattern is None):
            found = "neither" if pattern is None else "both"
            refuse(node, "separators", found, "either separators or tokenexp")
        least = given["mincharnum"]
        if least < 1 or (separators == ("",) and least > 1):
            refuse(node, "mincharnum", least, "1" if separators == ("",) else "1 or more")
        for each in () if separators == ("",) else separators or (pattern,):
            if not each:
                refuse(node, "separators", separators, "patterns that are not empty, or one empty text")
            check_pattern(node, "tokenexp" if pattern else "separators", each)
        check_rank(node, 0, 1, 2)
        given |= {"separators": separators, "tokenexp": pattern}


@infers("Tokenizer", domain=_DOMAIN)
def _infer_tokenizer(node: Node) -> Sequence[ValueType]:
    check_inputs(node, get_op("Tokenizer", _DOMAIN))
    TokenizerSpec.of(node)
    shape = tensor_type(node, 0).shape
    if shape.rank.is_dynamic:
        return (TensorType(string, PartialShape.dynamic()),)
    return (TensorType(string, PartialShape([*shape.dims, None])),)


@compiles("Tokenizer", domain=_DOMAIN)
def _compile_tokenizer(node: Node) -> Evaluator:
    """As onnxruntime has it: of several matches at a place the longest counts; rows without any token are empty.

    Raises `UnsupportedError` if RE2 is not installed.
    """
    spec = TokenizerSpec.of(node)
    tokens_of, title, limit = _splitter(node, spec), str(node), current_limits().tensor_bytes

    def run(inputs: Sequence[Any]) -> tuple[Any, ...]:
        texts: Array = inputs[0]
        check, rows = current_check(), []
        for text in texts.reshape(-1).tolist():
            if check is not None:
                check()
            rows.append([token for token in tokens_of(text) if len(token) >= spec.mincharnum])
        width = max(map(len, rows), default=0)
        marks = 2 * spec.mark if width else 0
        check_bytes(_REFERENCE * len(rows) * (width + marks), title, limit)
        found = np.full((len(rows), width + marks), spec.pad_value, object)
        for row, tokens in zip(found, rows, strict=True):
            row[: len(tokens) + marks] = [_START, *tokens, _END] if marks else tokens
        return (found.reshape(*texts.shape, width + marks),)

    return run


def _splitter(node: Node, spec: TokenizerSpec) -> Callable[[str], Sequence[str]]:
    """The tokens of a text, including those that are too short."""
    if spec.separators == ("",):
        return list
    if spec.tokenexp is not None:
        pattern = compiled_pattern(node, "tokenexp", spec.tokenexp, is_longest=True)
        return lambda text: [decode_text(match.group()) for match in pattern.finditer(encode_text(text))]
    patterns = []
    for separator in spec.separators or ():
        patterns.append(compiled_pattern(node, "separators", separator, is_longest=True))
        if patterns[-1].match(b"") is not None:
            refuse(node, "separators", separator, "patterns that match at least one character")

    def split(text: str) -> list[str]:
        pieces = [encode_text(text)]
        for pattern in patterns:
            pieces = [part for piece in pieces for part in _parts(pattern, piece)]
        return list(map(decode_text, pieces))

    return split


def _parts(pattern: Any, piece: bytes) -> list[bytes]:
    """The parts before, between and after the matches."""
    parts, start = [], 0
    for match in pattern.finditer(piece):
        if match.end() == match.start():
            raise ModelError(
                f"the separator {decode_text(pattern.pattern)!r} matches no character at byte {match.end()}"
            )
        parts.append(piece[start : match.start()])
        start = match.end()
    return [*parts, piece[start:]]
