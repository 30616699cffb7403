"""Lowers the reductions along constant axes, such as ReduceSum and ReduceMax."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Final

from engine.ir import ElementType
from engine.ir.element_type import boolean, f64, i8, i16, i32, i64, u8, u16, u32, u64
from engine.lowering import Refusal, check_constant
from engine.ops.reduce import ReduceSpec
from engine.startup import dataclass
from engine_opencl.devices.device import DeviceFacts
from engine_opencl.elements import C_BYTES, REALS, c_type
from engine_opencl.expressions import for_type
from engine_opencl.lowering.registry import OpLowering, check_types, lowers
from engine_opencl.lowering.rows import Rows, rows_of
from engine_opencl.lowering.strided import numbers_of
from engine_opencl.plan import Buffer
from engine_opencl.plan_builder import LaunchPlanBuilder
from engine_opencl.source import collapsed, element_access, index_code, strides_of


@dataclass(frozen=True, slots=True)
class Fold:
    """OpenCL C code of a reduction.

    Attributes:
        start: the initial accumulator `s`.
        step: a statement that adds element `v` to `s`.
        end: the result, from `s` and the number of elements `n`.
        join: a statement that adds the accumulator `v` of later elements to `s`; "" if equal to `step`.
        accumulator: the type of the accumulator, "T" for the elements' type.
    """

    start: str
    step: str
    end: str = "s"
    join: str = ""
    accumulator: str = "T"

    def in_double(self) -> Fold:
        """The same for elements of f64."""
        accumulator = {"float2": "double2"}.get(self.accumulator, self.accumulator)
        start = for_type(self.start, "double").replace("float2", "double2")
        return replace(self, start=start, accumulator=accumulator)


_ADD: Final = "s += v"
_LARGEST: Final = Fold("-INFINITY", "s = isnan(v) || v > s ? v : s")
_SMALLEST: Final = Fold("INFINITY", "s = isnan(v) || v < s ? v : s")
_SQUARES: Final = Fold("0", "s += v * v", join=_ADD)
INTEGER_FOLDS: Final = {
    "ReduceSum": Fold("0", _ADD),
    "ReduceMax": Fold("LEAST", "s = max(s, v)"),
    "ReduceMin": Fold("MOST", "s = min(s, v)"),
    "ReduceProd": Fold("1", "s *= v"),
    "ReduceSumSquare": _SQUARES,
    "ReduceL1": Fold("0", "s += v < 0 ? -v : v", join=_ADD),
}
FOLDS: Final = {
    # The largest finite element so far, and the sum of exponentials of the differences from it.
    "ReduceLogSumExp": Fold(
        "(float2)(-INFINITY, 0.0f)", "s = added(s, v)", "finite(s.x) + log(s.y)", "s = joined(s, v)", "float2",
    ),
    "ReduceSum": Fold("0", _ADD),
    "ReduceMean": Fold("0", _ADD, "s / n"),
    "ReduceMax": _LARGEST,
    "ReduceMin": _SMALLEST,
    "ReduceProd": Fold("1", "s *= v"),
    "ReduceSumSquare": _SQUARES,
    "ReduceL1": Fold("0", "s += fabs(v)", join=_ADD),
    "ReduceL2": Fold("0", "s += v * v", "sqrt(s)", _ADD),
    "ReduceLogSum": Fold("0", _ADD, "log(s)"),
}  # fmt: skip
_POWERS: Final = """
inline float finite(float x) { return isfinite(x) ? x : 0.0f; }
inline float scaled(float2 s, float top) { return s.x == top ? s.y : s.y * exp(s.x - top); }
inline float2 added(float2 s, float v) {
  const float top = fmax(s.x, v);
  return (float2)(top, scaled(s, top) + exp(v - finite(top)));
}
inline float2 joined(float2 s, float2 v) {
  const float top = fmax(s.x, v.x);
  return (float2)(top, scaled(s, top) + scaled(v, top));
}
"""
_LIMITS: Final = {
    i8: ("CHAR_MIN", "CHAR_MAX"), i16: ("SHRT_MIN", "SHRT_MAX"), i32: ("INT_MIN", "INT_MAX"),
    i64: ("LONG_MIN", "LONG_MAX"), u8: ("0", "UCHAR_MAX"), u16: ("0", "USHRT_MAX"), u32: ("0", "UINT_MAX"),
    u64: ("0", "ULONG_MAX"), boolean: ("0", "1"),
}  # fmt: skip
_SHORT: Final = 64
"""Elements that one CPU item reduces in less time than several items need to join their accumulators."""
_PARTS: Final = 1024
"""Maximum number of parts, which one group joins."""


@lowers(*FOLDS, spec=ReduceSpec)
class ReductionLowering(OpLowering[ReduceSpec]):
    """Folds the elements along the axes, in one or several kernels; the axes must be constant."""

    values = (1,)

    def check(self, spec: ReduceSpec) -> Refusal | None:
        is_comparing = spec.op_type in ("ReduceMax", "ReduceMin")
        integers = _LIMITS.keys() if is_comparing else {i32, i64, u32, u64} if spec.op_type in INTEGER_FOLDS else set()
        return check_types((spec.data,), {*REALS, *integers}) or check_constant(spec.node, *self.values)

    def lower(self, spec: ReduceSpec, b: LaunchPlanBuilder) -> None:
        x, named = spec.data, spec.input(1)
        shape = b.shape(x)
        axes = spec.at(len(shape), None if named is None else numbers_of(b, named))
        reduce_axes(b, spec.op_type, x.element_type, b.input(x), b.output(spec.output()), shape, axes)


def reduce_axes(
    b: LaunchPlanBuilder,
    op_type: str,
    element_type: ElementType,
    x: Buffer,
    y: Buffer,
    shape: Sequence[int],
    axes: Collection[int],
) -> None:
    """Launch a reduction of a tensor of `shape` along `axes`, in two steps for few long rows."""
    fold = (FOLDS if element_type in REALS else INTEGER_FOLDS)[op_type]
    if element_type is f64:
        fold = fold.in_double()
    strides = strides_of(shape)
    kept = [axis for axis in range(len(shape)) if axis not in axes]
    reduced = sorted(axes)
    outer, (outer_steps,) = collapsed([shape[a] for a in kept], [strides[a] for a in kept])
    inner, (inner_steps,) = collapsed([shape[a] for a in reduced], [strides[a] for a in reduced])
    count, length = (math.prod(shape[axis] for axis in some) for some in (kept, reduced))
    if not count:
        return
    is_across = bool(outer) and (not inner or outer_steps[-1] < inner_steps[-1])
    rows = rows_of(b.facts, count, length, outer[-1] if is_across else 1, is_across=is_across)
    if b.facts.kind == "cpu" and length <= _SHORT:
        rows = replace(rows, lanes=1, per_group=rows.group)
    parts = _parts_of(b.facts, rows)
    index = "uint" if math.prod(shape) < 2**31 else "ulong"
    places = (
        f"inline {index} kept_at(const {index} i) {{\n  {index_code(outer, [outer_steps], ['a'], of=index)}\n"
        "  return a;\n}\n"
        f"inline {index} reduced_at(const {index} i) {{\n  {index_code(inner, [inner_steps], ['a'], of=index)}\n"
        "  return a;\n}\n"
    )
    reduction = _ReductionLaunch(fold, element_type, index, length)
    if parts == 1:
        reduction.launch(b, rows, places, x, y)
        return
    type_ = c_type(element_type) if fold.accumulator == "T" else fold.accumulator
    partial = b.temporary(count * parts * C_BYTES[type_])
    reduction.launch(b, rows, places, x, partial, parts=parts)
    places = (
        f"inline {index} kept_at(const {index} i) {{ return i * {parts}; }}\n"
        f"inline {index} reduced_at(const {index} i) {{ return i; }}\n"
    )
    reduction.launch(b, rows_of(b.facts, count, parts), places, partial, y, is_joining=True)


def _parts_of(facts: DeviceFacts, rows: Rows) -> int:
    """The number of parts that a row is cut into so that the whole device is busy.

    Each item of a part reduces enough elements to make a second launch worthwhile.
    """
    enough = rows.lanes * (1024 if facts.kind == "cpu" else 16)
    wanted = min(4 * facts.compute_units // max(rows.groups, 1), rows.length // enough, _PARTS)
    return max(wanted, 1)


@dataclass(frozen=True, slots=True)
class _ReductionLaunch:
    """One launch of a reduction: from elements to results or to parts' accumulators, or from these to results."""

    fold: Fold
    element_type: ElementType
    index: str
    elements: int

    def launch(
        self,
        b: LaunchPlanBuilder,
        rows: Rows,
        places: str,
        x: Buffer,
        y: Buffer,
        *,
        parts: int = 1,
        is_joining: bool = False,
    ) -> None:
        fold, u = self.fold, "ul" if self.index == "ulong" else "u"
        join = fold.join or fold.step
        least, most = _LIMITS.get(self.element_type, ("0", "0"))
        powers = "" if fold.accumulator == "T" else _POWERS
        if self.element_type is f64:
            powers = for_type(powers, "double").replace("float2", "double2")
        prefix = (
            f"{element_access(self.element_type)}#define ACCUMULATOR {fold.accumulator}\n"
            f"#define LEAST {least}\n#define MOST {most}\n{powers}"
            f"inline ACCUMULATOR with(ACCUMULATOR s, const {'ACCUMULATOR' if is_joining else 'T'} v) {{\n"
            f"  {join if is_joining else fold.step};\n  return s;\n}}\n"
            f"inline ACCUMULATOR joined_with(ACCUMULATOR s, const ACCUMULATOR v) {{\n  {join};\n  return s;\n}}\n"
            f"{places}"
        )
        is_partial, count = parts > 1, "double" if self.element_type is f64 else "float"
        source = rows.source(
            "reduce", prefix=prefix, INDEX=self.index, START=f"({fold.start})",
            ELEMENTS=for_type(f"{self.elements}.0f", count), COUNT_TYPE=count,
            FROM="ACCUMULATOR" if is_joining else "stored_T", TO="ACCUMULATOR" if is_partial else "stored_T",
            END="s" if is_partial else f"({fold.end})", PARTS=parts, PER_PART=f"{-(-rows.length // parts)}{u}",
            **{
                "LOAD(p, i)": "(p)[i]" if is_joining else "load_T(p, i)",
                "STORE(p, i, v)": "(p)[i] = (v)" if is_partial else "store_T(p, i, v)",
            },
        )  # fmt: skip
        size = (rows.groups * rows.group, parts)
        accumulator = c_type(self.element_type) if fold.accumulator == "T" else fold.accumulator
        b.launch(source, "reduce", [x, y], size, (rows.group, 1), rows.local_bytes(C_BYTES[accumulator]))
