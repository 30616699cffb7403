"""Winograd's F(2x2, 3x3) for CPUs: the transforms by whole maps, in vectors of neighbouring tiles."""

from __future__ import annotations

from engine_opencl.expressions import HELPERS
from engine_opencl.lowering.conv.problem import Convolution
from engine_opencl.lowering.conv.winograd import launch_repair, places_of, product_of, transformed
from engine_opencl.lowering.matmul.block_shapes import best_lanes
from engine_opencl.lowering.matmul.matmul import launch_product
from engine_opencl.lowering.matmul.product import Epilogue
from engine_opencl.plan_builder import LaunchPlanBuilder
from engine_opencl.source import ending, kernel_source, lanes_source


def winograd_rows(b: LaunchPlanBuilder, c: Convolution, epilogue: Epilogue) -> None:
    """Launch the transforms, and the products between them, of a convolution that `is_winograd`."""
    g, places, name = c.geometry, places_of(c), c.weights.weight
    channels, outputs = c.groups * c.channels, c.groups * c.outputs
    wide, high = -(-g.outputs[2] // 2), -(-g.outputs[1] // 2)
    lanes = best_lanes(b.facts.vector_width, wide)
    make = b.weights[name]
    u = b.weight(("winograd", name, c.groups), lambda: transformed(make(), c))
    v = b.temporary(4 * 16 * channels * places)
    # Padded, so that the vectors of the last tiles are whole.
    s = b.temporary(4 * (16 * outputs * places + lanes))
    defines: dict[str, object] = {
        "C": channels, "M": outputs, "IH": g.inputs[1], "IW": g.inputs[2], "OH": g.outputs[1], "OW": g.outputs[2],
        "PH": g.pads_begin[1], "PW": g.pads_begin[2], "PLACES": places, "PLACES_H": high, "PLACES_W": wide,
    }  # fmt: skip
    lines = lanes_source(c.element_type, lanes)
    read = -(-(2 * -(-wide // lanes) * lanes + 2) // lanes) * lanes
    source = HELPERS + lines + kernel_source(
        "winograd_input_rows", c.element_type, **defines, STEP=f"{channels * places}ul", READ_WIDTH=read,
        SIZE=f"{c.images * channels * c.map_size}l",
    )  # fmt: skip
    b.launch(source, "winograd_input_rows", [c.x, v], (c.images * channels,), (1,))
    launch_product(b, product_of(c), Epilogue(), u, v, s)
    source = HELPERS + lines + kernel_source(
        "winograd_output_rows", c.element_type, **defines, STEP=f"{outputs * places}ul", C_STEP=1,
        **ending(epilogue.lanes_code(), c.bias, c.residual),
    )  # fmt: skip
    b.launch(source, "winograd_output_rows", [s, *c.added, c.result], (c.images * outputs,), (1,))
    launch_repair(b, c)
