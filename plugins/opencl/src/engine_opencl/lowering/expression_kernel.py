"""The kernel that computes an expression for every element of a result."""

from __future__ import annotations

from typing import Final

from engine.ir import ElementType, Output
from engine_opencl.conversions import memory_type, read_code, register_type, write_code
from engine_opencl.elements import C_BYTES
from engine_opencl.expressions import HELPERS, Computed, Expression, Operation, Read, functions_for
from engine_opencl.plan import Buffer
from engine_opencl.plan_builder import LaunchPlanBuilder
from engine_opencl.source import collapsed, index_code, strides_of

_MAX_OPERANDS: Final = 3
_MAX_OPERATIONS: Final = 128
"""The maximum number of operations of a kernel: compile time grows faster than linearly, and beside so many operations,
storing a value costs nothing.
"""


def emit(result: Output, expression: Expression, b: LaunchPlanBuilder) -> None:
    """Launch the kernel of an expression: one work item an element.

    An expression that reads more tensors than a kernel takes arguments, or is very long, is computed in parts.
    """
    whole = _divided(expression, result, b)
    _launch(result, whole, b.output(result), result.element_type, b)


def _launch(
    result: Output, expression: Expression, to: Buffer, stored: ElementType | str, b: LaunchPlanBuilder
) -> None:
    """`stored`: the element type of the result, or that in registers of a part of it."""
    shape = b.shape(result)
    reads = _reads(expression)
    strides = [
        strides_of(shape) if isinstance(each, Computed) else _broadcast(b.shape(each.value), shape) for each in reads
    ]
    lengths, steps = collapsed(shape, *strides)
    names = [f"i{number}" for number in range(len(reads))]
    lines: list[str] = []
    code = _code(expression, {each: f"v{number}" for number, each in enumerate(reads)}, lines)
    inputs = [f"__global const {_stored(each)}* p{n}" for n, each in enumerate(reads)]
    loads = [f"const {_type(each)} v{n} = {_load(each, f'p{n}', f'i{n}')};" for n, each in enumerate(reads)]
    if isinstance(stored, str):
        target, store = stored, f"out[i] = {code};"
    else:
        target, store = memory_type(stored), write_code(stored, "out", "i", code)
    body = "\n  ".join([index_code(lengths, steps, names), *loads, *lines, store])
    source = (
        f"{HELPERS}{functions_for(body)}"
        f"__kernel void elementwise({', '.join([*inputs, f'__global {target}* out'])}) {{\n"
        f"  const ulong i = get_global_id(0);\n  {body}\n}}\n"
    )
    buffers = [each.buffer if isinstance(each, Computed) else b.input(each.value) for each in reads]
    b.launch(source, "elementwise", [*buffers, to], (result.shape.size(),))


def _divided(expression: Expression, result: Output, b: LaunchPlanBuilder) -> Expression:
    """The expression as one kernel computes it, over tensors and parts of it, which are launched here."""
    most = max(b.facts.argument_bytes // (b.facts.address_bits // 8) - 1, _MAX_OPERANDS)
    done: dict[int, tuple[Expression, int, frozenset[Read]]] = {}
    for each in _operands_first(expression):
        if not isinstance(each, Operation):
            done[id(each)] = each, 0, frozenset([each])
            continue
        operands = [done[id(operand)] for operand in each.operands]
        while True:
            length = 1 + sum(length for _, length, _ in operands)
            reads = frozenset[Read]().union(*(reads for _, _, reads in operands))
            if length <= _MAX_OPERATIONS and len(reads) <= most:
                break
            longest = max(range(len(operands)), key=lambda number: operands[number][1])
            part = _computed(operands[longest][0], result, b)
            operands[longest] = part, 0, frozenset([part])
        done[id(each)] = Operation(each.code, tuple(operand for operand, _, _ in operands), each.type), length, reads
    return done[id(expression)][0]


def _computed(expression: Expression, result: Output, b: LaunchPlanBuilder) -> Computed:
    assert isinstance(expression, Operation), expression
    part = Computed(b.temporary(C_BYTES[expression.type] * result.shape.size()), expression.type)
    _launch(result, expression, part.buffer, part.type, b)
    return part


def _reads(expression: Expression) -> list[Read]:
    return list(dict.fromkeys(each for each in _operands_first(expression) if not isinstance(each, Operation)))


def _operands_first(expression: Expression) -> list[Expression]:
    """All subexpressions of an expression, each after its operands, which are in order."""
    found: list[Expression] = []
    stack: list[Expression] = [expression]
    while stack:
        each = stack.pop()
        found.append(each)
        if isinstance(each, Operation):
            stack.extend(each.operands)
    return found[::-1]


def _type(read: Read) -> str:
    return read.type if isinstance(read, Computed) else register_type(read.value.element_type)


def _stored(read: Read) -> str:
    return read.type if isinstance(read, Computed) else memory_type(read.value.element_type)


def _load(read: Read, pointer: str, index: str) -> str:
    return f"{pointer}[{index}]" if isinstance(read, Computed) else read_code(read.value.element_type, pointer, index)


def _code(expression: Expression, names: dict[Read, str], lines: list[str]) -> str:
    """The name of the expression's value; its code is appended to `lines`, operands first."""
    done: dict[int, str] = {}
    for each in _operands_first(expression):
        if not isinstance(each, Operation):
            done[id(each)] = names[each]
            continue
        code = each.code
        for number, operand in enumerate(each.operands):
            code = code.replace(f"{{{number}}}", done[id(operand)])
        done[id(each)] = name = f"t{len(lines)}"
        lines.append(f"const {each.type} {name} = ({each.type})({code});")
    return done[id(expression)]


def _broadcast(shape: tuple[int, ...], target: tuple[int, ...]) -> tuple[int, ...]:
    """The strides of a tensor of `shape` along the axes of `target`: 0 where it is repeated."""
    own = strides_of(shape)
    missing = len(target) - len(shape)
    return (0,) * missing + tuple(0 if n == 1 else s for n, s in zip(shape, own, strict=True))
