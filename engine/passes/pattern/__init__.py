"""Patterns: small graphs that describe what a matcher looks for.

Ordinary operations, parameters and constants are patterns too: `ops.Multiply(any_input(), Constant(0.5))` matches
any multiplication of something by some constant; only operator types count, never attributes, shapes or values.
"""

from engine.passes.pattern.matcher import Explanation, Matcher
from engine.passes.pattern.nodes import any_input, any_of, block, optional, wrap_const, wrap_type
from engine.passes.pattern.predicates import (
    Predicate,
    attrs_match,
    consumers_count,
    has_static_dim,
    has_static_rank,
    has_static_shape,
    output_index_matches,
    rank_equals,
    shape_matches,
    type_matches,
    value_matches,
)

__all__ = [
    "Explanation",
    "Matcher",
    "Predicate",
    "any_input",
    "any_of",
    "attrs_match",
    "block",
    "consumers_count",
    "has_static_dim",
    "has_static_rank",
    "has_static_shape",
    "optional",
    "output_index_matches",
    "rank_equals",
    "shape_matches",
    "type_matches",
    "value_matches",
    "wrap_const",
    "wrap_type",
]
