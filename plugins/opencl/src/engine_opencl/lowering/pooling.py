"""Pooling over windows and over whole maps."""

from __future__ import annotations

import math

from engine.ir import Node
from engine.ir.element_type import f32, i8, u8
from engine.lowering import Refusal, RefusalCause
from engine.ops.registry import attribute
from engine.ops.spec import OperatorSpec
from engine_opencl.elements import FLOATS
from engine_opencl.lowering.convolutions.convolution import geometry_of
from engine_opencl.lowering.convolutions.geometry import Geometry
from engine_opencl.lowering.elementwise import literal
from engine_opencl.lowering.reduce import reduce_axes
from engine_opencl.lowering.registry import OpLowering, check_types, lowers
from engine_opencl.plan import Given, PlanBuilder
from engine_opencl.source import element_access, kernel_source


@lowers("GlobalMaxPool", "GlobalAveragePool", "GlobalLpPool")
class GlobalPoolLowering(OpLowering[OperatorSpec]):
    """The largest element, the mean, or the p-norm of each map."""

    def check(self, spec: OperatorSpec) -> Refusal | None:
        node = spec.node
        if node.op_type == "GlobalLpPool" and attribute(node, "p") not in (1, 2):
            return Refusal(RefusalCause.ATTRIBUTE, f"p is {attribute(node, 'p')}; expected 1 or 2")
        return check_types(node.input_values)

    def lower(self, spec: OperatorSpec, b: PlanBuilder) -> None:
        node = spec.node
        x, y = node.input_value(0), node.output(0)
        op_type = {"GlobalAveragePool": "ReduceMean", "GlobalMaxPool": "ReduceMax"}.get(node.op_type)
        op_type = op_type or f"ReduceL{attribute(node, 'p')}"
        shape = b.shape(x)
        reduce_axes(b, op_type, x.element_type, b.input(x), b.output(y), shape, range(2, len(shape)))


@lowers("MaxPool", "AveragePool", "LpPool")
class PoolLowering(OpLowering[OperatorSpec]):
    """The largest element, the mean, or the p-norm of each window."""

    def check(self, spec: OperatorSpec) -> Refusal | None:
        node = spec.node
        allowed = {*FLOATS, u8, i8} if node.op_type == "MaxPool" else FLOATS
        if (refused := check_types((node.input_value(0),), allowed)) is not None:
            return refused
        rank = len(node.input_value(0).shape) - 2
        if not 1 <= rank <= 3:
            return Refusal(RefusalCause.ATTRIBUTE, f"{rank} axes of space; expected 1 to 3")
        if rank != 2 and node.attributes.get("storage_order") and _is_index_read(node):
            return Refusal(RefusalCause.ATTRIBUTE, f"storage_order is 1 for {rank} axes of space; expected 2")
        return None

    def lower(self, spec: OperatorSpec, b: PlanBuilder) -> None:
        node = spec.node
        x, y = b.shape(node.input_value(0)), b.shape(node.output(0))
        g = geometry_of(node, node.attributes["kernel_shape"], x, y)
        after = _after(node, g)
        g, after = g.padded(), (0,) * (3 - len(after)) + after
        defines: dict[str, object] = {
            **_accumulation(node),
            "COUNT_PADS": int(bool(node.attributes.get("count_include_pad", 0))),
        }
        for axis, name in enumerate(("D", "H", "W")):
            defines |= {
                f"I{name}": g.inputs[axis], f"O{name}": g.outputs[axis], f"K{name}": g.kernel[axis],
                f"S{name}": g.strides[axis], f"L{name}": g.dilations[axis], f"P{name}": g.before[axis],
                f"E{name}": g.inputs[axis] + after[axis],
            }  # fmt: skip
        element_type, size = node.output(0).element_type, (math.prod(g.outputs), x[0] * x[1])
        arguments = [b.input(node.input_value(0)), b.output(node.output(0))]
        if element_type in FLOATS and not _is_index_read(node):
            b.launch(kernel_source("pool", element_type, **defines), "pool", arguments, size)
            return
        defines |= {
            "INDICES": int(_is_index_read(node)), "BY_COLUMNS": int(bool(node.attributes.get("storage_order", 0))),
            "LOWEST": {u8: "0", i8: "-128"}.get(element_type, "-INFINITY"),
        }  # fmt: skip
        arguments += [b.output(node.output(1))] if _is_index_read(node) else []
        source = element_access(element_type) + kernel_source("max_pool", f32, **defines)
        b.launch(source, "max_pool", arguments, size)


def _accumulation(node: Node) -> dict[str, object]:
    """What is summed up in a window, and what becomes of the sum; nothing is for the largest element."""
    if node.op_type == "AveragePool":
        return {"IS_SUM": 1, "TERM(e)": "(e)", "RESULT(sum, count)": "((sum) / (count))"}
    if node.op_type == "MaxPool":
        return {"IS_SUM": 0, "TERM(e)": "(e)", "RESULT(value, count)": "(value)"}
    p = int(attribute(node, "p"))
    terms = {1: ("fabs(e)", "(sum)"), 2: ("((e) * (e))", "sqrt(sum)")}
    term, result = terms.get(p, (f"pow(fabs(e), {p}.0f)", f"pow((sum), {literal(1 / p)})"))
    return {"IS_SUM": 1, "TERM(e)": term, "RESULT(sum, count)": result}


def _is_index_read(node: Node) -> bool:
    return node.num_outputs > 1 and bool(node.output(1).target_inputs)


def _after(node: Node, g: Geometry) -> tuple[int, ...]:
    """The padding behind the input along each axis; a window that `ceil_mode` adds may reach beyond it."""
    auto, rank = node.attributes.get("auto_pad", "NOTSET"), len(g.inputs)
    if auto in ("SAME_UPPER", "SAME_LOWER"):
        return _same_after(g)
    return (0,) * rank if auto == "VALID" else tuple(node.attributes.get("pads") or (0,) * (2 * rank))[rank:]


def _same_after(g: Geometry) -> tuple[int, ...]:
    """What is added behind the input so that windows fit."""
    ends = [
        (o - 1) * s + d * (k - 1) + 1 for o, s, d, k in zip(g.outputs, g.strides, g.dilations, g.kernel, strict=True)
    ]
    return tuple(max(end - before - n, 0) for end, before, n in zip(ends, g.before, g.inputs, strict=True))


@lowers("LRN")
class LrnLowering(OpLowering[OperatorSpec]):
    """Local response normalization over channels."""

    def check(self, spec: OperatorSpec) -> Refusal | None:
        node = spec.node
        return check_types(node.input_values)

    def lower(self, spec: OperatorSpec, b: PlanBuilder) -> None:
        node = spec.node
        n, c, *space = b.shape(node.input_value(0))
        size = int(attribute(node, "size"))
        source = kernel_source(
            "lrn", node.output(0).element_type, C=c, PIXELS=math.prod(space), BEFORE=(size - 1) // 2, AFTER=size // 2
        )
        numbers = [
            float(attribute(node, "alpha")) / size,
            float(attribute(node, "beta")),
            float(attribute(node, "bias")),
        ]
        arguments: list[Given] = [b.input(node.input_value(0)), b.output(node.output(0)), *numbers]
        b.launch(source, "lrn", arguments, (math.prod(space), c, n))
