"""Checks JSON schemas, as the program of a `LimitedProcess`: for some, llguidance takes a time that doubles with each
part, such as an `allOf` of many patterns, and it cannot be interrupted.

The first line is {"options": {...}}, those of llguidance; requests are {"schema": {...}}, and replies {} for a schema
that an answer can match, otherwise {"error": ...}.
"""

from __future__ import annotations

from typing import Any

import llguidance

from engine_serve.limited_program import Reply, run


def program(begin: dict[str, Any]) -> Reply:
    """What checks schemas."""
    limits = llguidance.LLParserLimits(verbose_errors=False)

    def reply(asked: dict[str, Any]) -> dict[str, Any]:
        try:
            grammar = llguidance.LLMatcher.grammar_from_json_schema(asked["schema"], overrides=begin["options"])
        except ValueError as e:
            return {"error": str(e)}
        is_error, reasons = llguidance.LLMatcher.validate_grammar_with_warnings(grammar, limits=limits)
        return {"error": reasons[0]} if is_error else {}

    return reply


if __name__ == "__main__":
    run(program)
