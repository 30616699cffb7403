"""Several instructions of an elementwise program that one computes with the same results."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

from engine.ir.element_type import f32, u8
from engine_cpu.lowering.elementwise_instructions import Instruction, Opcode, Value


def fused(instructions: list[Instruction], outputs: list[Value]) -> list[Instruction]:
    """Fuse a product whose only consumer is an f32 sum into it, and the steps of a rounding to codes."""
    instructions = _with_codes(_with_dynamic_codes(instructions, outputs), outputs)
    reads = Counter(source for each in instructions for source in each.sources)
    reads.update(outputs)
    products = {
        each.result: each
        for each in instructions
        if each.opcode == Opcode.MUL and each.element_type is f32 and reads[each.result] == 1
    }
    fused, gone = [], set()
    for each in instructions:
        if each.opcode == Opcode.ADD:
            for product, other in (each.sources, each.sources[::-1]):
                if product in products:
                    gone.add(product)
                    sources = (*products[product].sources, other)
                    each = replace(each, opcode=Opcode.MUL_ADD, sources=sources)
                    break
        fused.append(each)
    return [each for each in fused if each.result not in gone]


def _with_codes(instructions: list[Instruction], outputs: list[Value]) -> list[Instruction]:
    """Make one instruction of `where(isnan(v), 0, v)` with v = min(max(round(x), low), high), in f32."""
    made = {each.result: each for each in instructions}
    reads = Counter(source for each in instructions for source in each.sources)
    reads.update(outputs)
    replaced: dict[Value, Instruction] = {}
    gone: set[Value] = set()
    for each in instructions:
        if each.opcode is not Opcode.WHERE or each.element_type is not f32:
            continue
        condition, zero, below = each.sources
        is_nan, least = made.get(condition), made.get(below)
        most = None if least is None else made.get(least.sources[0])
        rounded = None if most is None else made.get(most.sources[0])
        if is_nan is None or least is None or most is None or rounded is None:
            continue
        opcodes = (is_nan.opcode, least.opcode, most.opcode, rounded.opcode)
        if opcodes != (Opcode.IS_NAN, Opcode.MIN, Opcode.MAX, Opcode.ROUND) or is_nan.sources != (below,):
            continue
        counts = [reads[value] for value in (condition, below, most.result, rounded.result)]
        if zero.number != 0 or counts != [1, 2, 1, 1]:
            continue
        gone |= {condition, below, most.result, rounded.result}
        sources = (rounded.sources[0], most.sources[1], least.sources[1])
        replaced[each.result] = replace(each, opcode=Opcode.ROUND_CLIP, sources=sources)
    return [replaced.get(each.result, each) for each in instructions if each.result not in gone]


def _with_dynamic_codes(instructions: list[Instruction], outputs: list[Value]) -> list[Instruction]:
    """Make one instruction of `where(isnan(s), 0, min(max(s, 0), 255))` as u8, with s = round(x / scale) + start."""
    made = {each.result: each for each in instructions}
    reads = Counter(source for each in instructions for source in each.sources)
    reads.update(outputs)
    replaced: dict[Value, Instruction] = {}
    gone: set[Value] = set()
    for each in instructions:
        inner = _dynamic_codes(each, made)
        if inner is None:
            continue
        quotient, sums, start, others = inner
        counts = [reads[value] for value in (quotient.result, *others)]
        if reads[sums] != 2 or counts != [1] * len(counts):
            continue
        gone |= {quotient.result, sums, *others}
        sources = (*quotient.sources, start)
        replaced[each.result] = replace(each, opcode=Opcode.QUANTIZE_DYNAMIC, sources=sources)
    return [replaced.get(each.result, each) for each in instructions if each.result not in gone]


def _dynamic_codes(
    cast: Instruction, made: Mapping[Value, Instruction]
) -> tuple[Instruction, Value, Value, tuple[Value, ...]] | None:
    """The quotient, the sum, the start, and the results between them of the cast of a dynamic quantization."""

    def sources_of(value: Value, opcode: Opcode, *numbers: float) -> tuple[Value, ...]:
        """The sources of an f32 instruction, without those that must be these numbers and come last."""
        found = made.get(value)
        if found is None or found.opcode != opcode or found.element_type is not f32:
            return ()
        rest = len(found.sources) - len(numbers)
        return found.sources[:rest] if tuple(each.number for each in found.sources[rest:]) == numbers else ()

    if cast.opcode is not Opcode.CAST or cast.result.element_type is not u8 or cast.element_type is not f32:
        return None
    match sources_of(cast.sources[0], Opcode.WHERE):
        case (is_nan, Value(number=0), least):
            pass
        case _:
            return None
    for most in sources_of(least, Opcode.MIN, 255):
        for sums in sources_of(most, Opcode.MAX, 0):
            if sources_of(is_nan, Opcode.IS_NAN) != (sums,):
                continue
            terms = sources_of(sums, Opcode.ADD)
            for rounded, start in (terms, terms[::-1]) if terms else ():
                for quotient in sources_of(rounded, Opcode.ROUND):
                    if sources_of(quotient, Opcode.DIV):
                        return made[quotient], sums, start, (cast.sources[0], is_nan, least, most, rounded)
    return None
