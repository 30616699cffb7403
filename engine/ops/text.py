"""String operators: the type of StringNormalizer, and evaluations."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from engine.errors import UnsupportedError
from engine.ir import Node, PartialShape, TensorType, ValueType, as_dimension, string
from engine.ops.interruption import current_check
from engine.ops.registry import Evaluator, compiles, evaluates, get_op, infers
from engine.ops.result_size import REFERENCE, Measure, measures, size_of_broadcast, text_bytes
from engine.ops.rules import check_inputs, fail, tensor_type
from engine.ops.spec import OperatorSpec, check_choice, evaluates_with_spec, refuse, specifies
from engine.ops.tensors import Array, encode_text
from engine.startup import dataclass


@infers("StringNormalizer")
def _infer_string_normalizer(node: Node) -> Sequence[ValueType]:
    """[C] or [1, C], some removed as stop words; ONNX rejects an unknown first dimension."""
    check_inputs(node, get_op("StringNormalizer"))
    shape = tensor_type(node, 0).shape
    if shape.rank.is_dynamic:
        return (TensorType(string, shape),)
    if len(shape) not in (1, 2) or (len(shape) == 2 and not shape[0].accepts(1)):
        fail(node, f"X must have shape [C] or [1, C], got {shape}")
    # If every string is a stop word, one empty string remains.
    rest = as_dimension("1..") if node.attributes.get("stopwords") else shape[-1]
    return (TensorType(string, PartialShape([rest] if len(shape) == 1 else [1, rest])),)


@evaluates("StringConcat")
def string_concat(x: Array, y: Array) -> Array:
    """Each string of x followed by the string of y (ONNX StringConcat-20).

    Arrays of numpy's own text would give every element the memory of the longest.
    """
    return np.asarray(np.add(x.astype(object), y.astype(object)), object)


@specifies("StringNormalizer")
@dataclass(frozen=True, slots=True, kw_only=True)
class StringNormalizerSpec(OperatorSpec):
    """Strings without stop words, in another case (ONNX StringNormalizer-10)."""

    case_change_action: str
    is_case_sensitive: bool
    locale: str | None
    stopwords: tuple[str, ...] | None

    @classmethod
    def resolve(cls, node: Node, given: dict[str, Any]) -> None:
        check_choice(node, "case_change_action", given["case_change_action"], ("LOWER", "UPPER", "NONE"))


@evaluates_with_spec("StringNormalizer")
def string_normalizer(spec: StringNormalizerSpec, x: Array) -> Array:
    """The strings of x [C] or [1, C] that are not stop words; an empty one if none remains.

    ONNX's reference keeps stop words in another case, drops empty strings, and sets the locale of the process. Cases
    here are Unicode's, whatever the locale.
    """
    fold: Callable[[str], str] = str if spec.is_case_sensitive else str.casefold
    stops = {fold(word) for word in spec.stopwords or ()}
    changes: dict[str, Callable[[str], str]] = {"LOWER": str.lower, "UPPER": str.upper, "NONE": str}
    change = changes[spec.case_change_action]
    kept = [change(text) for text in map(str, x.reshape(-1).tolist()) if fold(text) not in stops]
    found = np.array(kept or [""] * bool(stops), object)
    return found if x.ndim == 1 else found.reshape(1, -1)


@evaluates("StringSplit")
def string_split(x: Array, *, delimiter: str | None, maxsplit: int | None) -> tuple[Array, Array]:
    """The parts of each string along a new last axis, filled up with empty ones, and their numbers (StringSplit-20)."""
    most = -1 if maxsplit is None else maxsplit
    parts = [str(text).split(delimiter or None, most) for text in x.reshape(-1).tolist()]
    counts = np.array([len(each) for each in parts], np.int64)
    found = np.full((len(parts), int(counts.max(initial=0))), "", object)
    for row, each in zip(found, parts, strict=True):
        row[: len(each)] = each
    return found.reshape(*x.shape, found.shape[1]), counts.reshape(x.shape)


@specifies("RegexFullMatch")
@dataclass(frozen=True, slots=True, kw_only=True)
class RegexFullMatchSpec(OperatorSpec):
    """RegexFullMatch (ONNX RegexFullMatch-20). `pattern` is one of RE2, checked wherever RE2 is installed."""

    pattern: str | bytes | None

    @classmethod
    def resolve(cls, node: Node, given: dict[str, Any]) -> None:
        if given["pattern"] is None:
            refuse(node, "pattern", None, "a pattern of RE2")
        check_pattern(node, "pattern", given["pattern"])


def check_pattern(node: Node, name: str, pattern: str | bytes) -> None:
    """Refuse the value of an attribute that is not a valid pattern of RE2, wherever that is installed."""
    if importlib.util.find_spec("re2") is not None:
        _compiled(node, name, pattern, is_longest=False)


def compiled_pattern(node: Node, name: str, pattern: str | bytes, *, is_longest: bool = False) -> Any:
    """A pattern of RE2 for bytes, which matches in time linear in their number; `is_longest`: the longest match counts.

    Python's own `re` cannot replace it: it knows other classes, such as the digits of all scripts, and needs
    exponential time for some patterns. Raises `UnsupportedError` if RE2 is not installed.
    """
    try:
        return _compiled(node, name, pattern, is_longest=is_longest)
    except ImportError as e:
        raise UnsupportedError(
            f"{node}: {node.op_type} needs the package google-re2, which is not installed: "
            "pip install 'engine-sdk[regex]'"
        ) from e


def _compiled(node: Node, name: str, pattern: str | bytes, *, is_longest: bool) -> Any:
    import re2

    options = re2.Options()
    options.log_errors = False  # of the C++ library, to the process's stderr
    options.longest_match = is_longest
    try:
        return re2.compile(encode_text(pattern), options)
    except re2.error as e:
        reason = e.args[0].decode("utf-8", "replace") if isinstance(e.args[0], bytes) else str(e)
        allowed = f"the syntax of RE2, which has no backreferences and no lookaround ({reason})"
        refuse(node, name, pattern, allowed, e)


@compiles("RegexFullMatch")
def _compile_regex_full_match(node: Node) -> Evaluator:
    """Whether each text as a whole matches the pattern. Raises `UnsupportedError` if RE2 is not installed."""
    spec = RegexFullMatchSpec.of(node)
    assert spec.pattern is not None
    matches: Callable[[bytes], object] = compiled_pattern(node, "pattern", spec.pattern).fullmatch

    def run(inputs: Sequence[Any]) -> tuple[Any, ...]:
        texts: Array = inputs[0]
        check = current_check()
        found = np.empty(texts.size, dtype=np.bool_)
        for place, text in enumerate(texts.reshape(-1).tolist()):
            if check is not None:
                check()
            found[place] = matches(encode_text(text)) is not None
        return (found.reshape(texts.shape),)

    return run


# -- sizes ------------------------------------------------------------------------------------------------


@measures("StringConcat")
def _size_of_joined(node: Node) -> Measure:
    def measure(inputs: Sequence[Any]) -> int:
        count = size_of_broadcast([value.shape for value in inputs])
        return sum(count // max(1, value.size) * text_bytes(value) for value in inputs)

    return measure


@measures("StringSplit")
def _size_of_split(node: Node) -> Measure:
    separator, most = node.attributes.get("delimiter") or None, node.attributes.get("maxsplit")

    def measure(inputs: Sequence[Any]) -> int:
        texts = inputs[0].reshape(-1).tolist()
        parts = max((len(text.split(separator, -1 if most is None else most)) for text in texts), default=0)
        return text_bytes(inputs[0]) + REFERENCE * len(texts) * parts

    return measure
