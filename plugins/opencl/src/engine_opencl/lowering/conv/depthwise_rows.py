"""Convolutions whose groups have one channel each, for CPUs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from engine.ops.windows import WindowGeometry
from engine_opencl.expressions import HELPERS
from engine_opencl.lowering.conv.parts import window_defines
from engine_opencl.lowering.conv.problem import Convolution
from engine_opencl.lowering.matmul.block_shapes import best_lanes
from engine_opencl.plan_builder import LaunchPlanBuilder
from engine_opencl.source import ending, kernel_source, lanes_source

if TYPE_CHECKING:
    from engine_opencl.lowering.matmul.product import Epilogue

_MAX_READ: Final = 4096
"""The number of elements that an item copies at once, which stay in the first-level cache."""
_ITEMS: Final = 32
"""Work items per compute unit; fewer than maps, since starting one takes time."""


def is_depthwise_rows(c: Convolution) -> bool:
    """Whether `depthwise_rows` supports `c`: depthwise, with at most two spatial axes and a small window."""
    g = c.geometry
    is_flat = g.inputs[0] == g.outputs[0] == g.kernel[0] == 1 and g.pads_begin[0] == 0
    return c.channels == 1 and not c.is_transposed and is_flat and _read(g, 1) <= _MAX_READ and c.taps <= 49


def depthwise_rows(b: LaunchPlanBuilder, c: Convolution, epilogue: Epilogue) -> None:
    """Launch a depthwise convolution in pieces of some rows of a map."""
    g, maps = c.geometry, c.images * c.groups * c.outputs
    if 0 in g.outputs:
        return
    rows = next(n for n in range(g.outputs[1], 0, -1) if _read(g, n) <= _MAX_READ)
    rows = -(-g.outputs[1] // -(-g.outputs[1] // rows))
    map_pieces = -(-g.outputs[1] // rows)
    pieces = -(-maps * map_pieces // (_ITEMS * b.facts.compute_units))
    lanes = best_lanes(b.facts.vector_width, g.outputs[2])
    width = _read_width(g, lanes)
    defines: dict[str, object] = {
        "C": c.groups, "M": c.groups * c.outputs, "GM": c.outputs, "ROWS": rows, "MAP_PIECES": map_pieces,
        "PIECES": pieces, "ALL_PIECES": maps * map_pieces, "READ_WIDTH": width, "C_STEP": 1,
        "USED": min(g.inputs[2], width - g.pads_begin[2]),
    }  # fmt: skip
    defines |= window_defines(g, "HW") | ending(epilogue.lanes_code(), c.bias, c.residual)
    source = HELPERS + lanes_source(c.element_type, lanes) + kernel_source("depthwise_rows", c.element_type, **defines)
    items = -(-maps * map_pieces // pieces)
    b.launch(source, "depthwise_rows", [c.x, c.weights, *c.added, c.result], (items,), (1,))


def _read(g: WindowGeometry, rows: int) -> int:
    """The number of elements read for `rows` rows of the result, with vectors of 16."""
    return ((rows - 1) * g.strides[1] + (g.kernel[1] - 1) * g.dilations[1] + 1) * _read_width(g, 16)


def _read_width(g: WindowGeometry, lanes: int) -> int:
    return -(-g.outputs[2] // lanes) * lanes * g.strides[2] + (g.kernel[2] - 1) * g.dilations[2]
