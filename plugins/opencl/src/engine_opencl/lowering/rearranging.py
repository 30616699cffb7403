"""Operators that repeat elements, cut triangles out, or move between space and channels."""

from __future__ import annotations

from engine.lowering import Refusal, check_constant
from engine.ops.registry import attribute
from engine.ops.spec import OperatorSpec
from engine_opencl.elements import STORED
from engine_opencl.lowering.movement import numbers_of, strided_copy
from engine_opencl.lowering.registry import OpLowering, check_types, lowers
from engine_opencl.plan import PlanBuilder
from engine_opencl.source import strides_of


@lowers("Tile")
class TileLowering(OpLowering[OperatorSpec]):
    """Repetitions along axes."""

    def check(self, spec: OperatorSpec) -> Refusal | None:
        node = spec.node
        return check_types((node.input_value(0),), STORED) or check_constant(node, 1)

    def lower(self, spec: OperatorSpec, b: PlanBuilder) -> None:
        node = spec.node
        x, y = node.input_value(0), node.output(0)
        own = b.shape(x)
        shape = [n for pair in zip(numbers_of(b, node.input_value(1)), own, strict=True) for n in pair]
        strides = [s for step in strides_of(own) for s in (0, step)]
        strided_copy(b, x, b.input(x), b.output(y), shape, strides, 0, strides_of(shape), 0)


@lowers("SpaceToDepth")
class SpaceToDepthLowering(OpLowering[OperatorSpec]):
    """Blocks of pixels become blocks of channels."""

    def check(self, spec: OperatorSpec) -> Refusal | None:
        node = spec.node
        return check_types(node.input_values, STORED)

    def lower(self, spec: OperatorSpec, b: PlanBuilder) -> None:
        node = spec.node
        x = node.input_value(0)
        n, c, h, w = b.shape(x)
        size = int(attribute(node, "blocksize"))
        shape, read = (n, size, size, c, h // size, w // size), (c * h * w, w, 1, h * w, size * w, size)
        if attribute(node, "mode") == "CRD":
            shape, read = (n, c, size, size, *shape[4:]), (c * h * w, h * w, w, 1, size * w, size)
        strided_copy(b, x, b.input(x), b.output(node.output(0)), shape, read, 0, strides_of(shape), 0)


@lowers("DepthToSpace")
class DepthToSpaceLowering(OpLowering[OperatorSpec]):
    """Blocks of channels become blocks of pixels."""

    def check(self, spec: OperatorSpec) -> Refusal | None:
        node = spec.node
        return check_types(node.input_values, STORED)

    def lower(self, spec: OperatorSpec, b: PlanBuilder) -> None:
        node = spec.node
        n, c, h, w = b.shape(node.input_value(0))
        size = int(attribute(node, "blocksize"))
        kept = c // size**2
        if attribute(node, "mode") == "CRD":
            inner, order = (n, kept, size, size, h, w), (0, 1, 4, 2, 5, 3)
        else:
            inner, order = (n, size, size, kept, h, w), (0, 3, 4, 1, 5, 2)
        steps = strides_of(inner)
        shape = [inner[axis] for axis in order]
        source, result = b.input(node.input_value(0)), b.output(node.output(0))
        strided_copy(b, node.input_value(0), source, result, shape, [steps[a] for a in order], 0, strides_of(shape), 0)
