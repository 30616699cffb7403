"""Convolutions of one, two or three axes: grouped, dilated, transposed, with epilogues."""

from __future__ import annotations

import math

from engine.ir import Output
from engine.lowering import Refusal, RefusalCause
from engine.ops.conv import ConvSpec
from engine.ops.internal import INTERNAL_DOMAIN
from engine.ops.windows import WindowGeometry
from engine_opencl.lowering.conv.block_convolution import block_convolution, is_block_convolution
from engine_opencl.lowering.conv.depthwise_rows import depthwise_rows, is_depthwise_rows
from engine_opencl.lowering.conv.gpu_convolution import launch_convolution
from engine_opencl.lowering.conv.parts import is_pointwise
from engine_opencl.lowering.conv.problem import Convolution
from engine_opencl.lowering.matmul.matmul import launch_product
from engine_opencl.lowering.matmul.product import Epilogue, Product
from engine_opencl.lowering.registry import OpLowering, check_types, lowers
from engine_opencl.plan_builder import LaunchPlanBuilder


def check_spatial_rank(value: Output) -> Refusal | None:
    """A refusal unless a value has one to three spatial dimensions."""
    axes = len(value.shape) - 2
    if not 1 <= axes <= 3:
        return Refusal(RefusalCause.RANK, f"{value.name} has {axes} spatial dimensions; expected 1 to 3")
    return None


@lowers("Conv", "ConvTranspose", spec=ConvSpec)
@lowers("FusedConv", domain=INTERNAL_DOMAIN, spec=ConvSpec)
class ConvLowering(OpLowering[ConvSpec]):
    """Convolutions, also transposed, and with a residual and an activation."""

    def check(self, spec: ConvSpec) -> Refusal | None:
        node = spec.node
        return check_types((*node.input_values, *node.outputs)) or check_spatial_rank(node.input_value(0))

    def lower(self, spec: ConvSpec, b: LaunchPlanBuilder) -> None:
        x, y, weights = spec.node.input_value(0), spec.output(), spec.weights
        bias, residual = spec.input(2), spec.input(3)
        shape, result = b.shape(x), b.shape(y)
        if 0 in result:
            b.output(y)
            return
        g, groups = spec.at(shape, b.shape(weights)), spec.group
        epilogue = Epilogue(
            bias=None if bias is None else (1, 0), has_residual=residual is not None, activation=spec.activation
        )
        filters = b.input(weights)
        c = Convolution(
            shape[0], groups, shape[1] // groups, result[1] // groups, g.with_axes(3), spec.transposed, x.element_type,
            b.input(x), filters, None if bias is None else b.input(bias),
            None if residual is None else b.input(residual), b.output(y), epilogue.code(),
            b.weights.get(filters.weight),
        )  # fmt: skip
        launch_conv(b, c, epilogue)


def launch_conv(b: LaunchPlanBuilder, c: Convolution, epilogue: Epilogue) -> None:
    """Launch the kernel for the kind of device."""
    is_cpu = b.facts.kind == "cpu"
    if c.groups == 1 and not c.is_transposed and _is_product(c.geometry, 1 if is_cpu else c.images):
        _pointwise(b, c, epilogue)
    elif is_cpu and is_depthwise_rows(c):
        depthwise_rows(b, c, epilogue)
    elif is_cpu and is_block_convolution(c):
        block_convolution(b, c, epilogue)
    else:
        launch_convolution(b, c)


def _is_product(g: WindowGeometry, images: int) -> bool:
    """Whether it is a product per image, with enough positions that tiles need not span several images."""
    places = math.prod(g.outputs)
    return is_pointwise(g) and set(g.strides) == {1} and (images == 1 or places >= 256 or places % 64 == 0)


def _pointwise(b: LaunchPlanBuilder, c: Convolution, epilogue: Epilogue) -> None:
    """A pointwise convolution is a product: [M, C] by [C, pixels] for each image."""
    m, k, pixels = c.outputs, c.channels, c.map_size
    product = Product(m, pixels, k, (c.images,), (0,), (k * pixels,), (k, 1), (pixels, 1), c.element_type)
    launch_product(b, product, epilogue, c.weights, c.x, c.result, c.bias, c.residual)
