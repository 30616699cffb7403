"""`docs/undefined.md`, from the table of cases: `python -m engine.cli.undefined_reference` prints it."""

from __future__ import annotations

from engine.ops.cases.undefined import UNDEFINED

_INTRODUCTION = """\
# What ONNX leaves undefined

Where ONNX's text is silent, or says that a result is undefined, all devices give one answer, so that a model computes
the same when it moves to another device or when a pass folds constants. Each row is a set of cases
that every plugin's tests run (`engine.ops.cases.undefined`). If `onnx.reference` departs from the text, the text
counts.

| operators | what | answer |
|---|---|---|
"""

_LIMITS = """
Not in the table: sums of real numbers may be added in any order, so that a sum whose parts overflow may be infinite or
NaN, and a maximum of -0 and 0 may be either. A key that attention masks must be finite.
"""


def undefined_reference() -> str:
    """The text of docs/undefined.md, with the table of `UNDEFINED`."""
    rows = [f"| {row.operators} | {row.what} | {row.answer} |\n" for row in UNDEFINED]
    return _INTRODUCTION + "".join(rows) + _LIMITS


if __name__ == "__main__":
    print(undefined_reference(), end="")
