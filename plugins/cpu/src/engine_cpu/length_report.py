"""`describe_lengths`: which unknown lengths of a network's inputs one plan serves, found by trying some of them."""

from __future__ import annotations

from collections.abc import Collection
from itertools import combinations
from typing import Final

from engine.errors import EngineError
from engine.lowering import LengthPattern, LengthVector, Relation, pattern_between
from engine_cpu.family_builder import NoFamily
from engine_cpu.programs import Programs

_TRIED: Final = (8, 16, 32, 64, 128, 224)
"""A model may need images of a minimum size, or lengths that are multiples of a number."""
_EACH: Final = "a plan for each value"
_MAX_GROUPS: Final = 8
_MAX_PAIRS: Final = 3
_MAX_OTHERS: Final = 6
"""With at most this many lengths, any two others are tried as lengths that have to vary together with one."""


def describe_lengths(programs: Programs) -> tuple[str, ...]:
    """A line for each unknown length, and for lengths that vary together; see `VARYING_LENGTHS`.

    Each is tried with plans for some lengths, which takes as long as the first inferences of these lengths.
    """
    lengths = programs.lengths
    groups = [group for group in range(lengths.count) if group or lengths.has_past]
    every = ", ".join(lengths.names[group] for group in groups)
    if not lengths.is_complete:
        return ("the rank of an input is unknown: a plan for each combination of shapes",)
    if programs.why_none:
        return (f"{every}: {_EACH}: {programs.why_none}",)
    base = _accepted(programs)
    if base is None:
        return (f"{every}: not tried: the model takes no inputs of equal lengths of {', '.join(map(str, _TRIED))}",)
    lines, alone = [], []
    for group in groups[:_MAX_GROUPS]:
        changed = _changed(programs, base, group)
        name = lengths.names[group]
        if changed is None:
            lines.append(f"{name}: not tried: the model does not take another value of it than {base[group]}")
            continue
        varying, vector = changed
        name = " and ".join(lengths.names[each] for each in varying)
        line, is_one = _line(programs, _pattern(programs, base, vector, varying[:1]), vector, name)
        if line not in lines:
            lines.append(line)
        if is_one and len(varying) == 1:
            alone.append(group)
    for pair in list(combinations(alone, 2))[:_MAX_PAIRS]:
        name, vector = " and ".join(lengths.names[each] for each in pair), _greater(base, pair, 1)
        lines.append(_line(programs, _pattern(programs, base, vector, pair), vector, f"{name}, independently")[0])
    if len(groups) > _MAX_GROUPS:
        lines.append(f"{len(groups) - _MAX_GROUPS} more lengths: not tried")
    return tuple(lines)


def _pattern(
    programs: Programs, base: LengthVector, vector: LengthVector, leads: tuple[int, ...]
) -> LengthPattern | None:
    """The pattern in which these groups lead, and others that differ between two vectors follow the first of them."""
    if programs.lengths.has_past:
        return pattern_between(base, vector)
    relations = [
        Relation(0, (leads.index(group),))
        if group in leads
        else Relation(low)
        if low == high
        else Relation(low - base[leads[0]], (0,))
        for group, (low, high) in enumerate(zip(base, vector, strict=True))
    ]
    return LengthPattern(leads, tuple(relations)) if all(each.constant >= 0 for each in relations) else None


def _line(programs: Programs, pattern: LengthPattern | None, vector: LengthVector, name: str) -> tuple[str, bool]:
    """The line for the lengths of a pattern, and whether one plan serves them."""
    if pattern is None:
        return f"{name}: {_EACH}: the lengths do not follow from one or two of them", False
    made = programs.family(pattern, vector)
    if isinstance(made, NoFamily):
        return f"{name}: {_EACH}: {made}", False
    ranges = " and ".join(f"{low} to {high}" for low, high in zip(made.least, made.most, strict=True))
    return f"{name}: one plan ({ranges} were tried)", True


def _accepted(programs: Programs) -> LengthVector | None:
    """Lengths that the model takes: all equal, or one of them the sum of two others."""
    first = 0 if programs.lengths.has_past else 1
    count = programs.lengths.count
    for length in _TRIED:
        equal = tuple(length if group >= first else 0 for group in range(count))
        for vector in (equal, *(_greater(equal, (group,), length) for group in range(first, count))):
            if _fits(programs, vector):
                return vector
    return None


def _changed(programs: Programs, base: LengthVector, group: int) -> tuple[tuple[int, ...], LengthVector] | None:
    """Groups and lengths, the one of `group` being greater, with other groups' if the model needs that.

    The group with the smallest length comes first. None if the model does not take such lengths.
    """
    first = 0 if programs.lengths.has_past else 1
    others = [each for each in range(first, programs.lengths.count) if each != group]
    most = 2 if len(others) < _MAX_OTHERS else 1
    # A length may have to be a multiple of something; one that is twice as long may fit only by chance.
    for step in (1, min(length for length in base if length)):
        for size in range(most + 1):
            for chosen in combinations(others, size):
                varying = sorted((group, *chosen), key=lambda each: (base[each], each))
                vector = _greater(base, varying, step)
                if _fits(programs, vector):
                    return tuple(varying), vector
    return None


def _greater(base: LengthVector, varying: Collection[int], step: int) -> LengthVector:
    return tuple(length + step if group in varying else length for group, length in enumerate(base))


def _fits(programs: Programs, vector: LengthVector) -> bool:
    try:
        programs.check(vector)
    except EngineError:
        return False
    return True
