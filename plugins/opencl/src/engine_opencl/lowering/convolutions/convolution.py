"""Convolutions of one, two or three axes: grouped, dilated, transposed, with what they end with."""

from __future__ import annotations

import math
from collections.abc import Sequence

from engine.ir import Node, Output
from engine.lowering import Refusal, RefusalCause
from engine.ops.internal import INTERNAL_DOMAIN
from engine.ops.registry import attribute
from engine.ops.spec import OperatorSpec
from engine_opencl.lowering.convolutions.block_convolution import block_convolution, is_block_convolution
from engine_opencl.lowering.convolutions.depthwise_rows import depthwise_rows, is_depthwise_rows
from engine_opencl.lowering.convolutions.geometry import Geometry
from engine_opencl.lowering.convolutions.gpu_convolution import launch_convolution
from engine_opencl.lowering.convolutions.windows import Convolution
from engine_opencl.lowering.products.matmul import Epilogue, Product, activation_attribute, launch_product
from engine_opencl.lowering.registry import OpLowering, check_types, lowers
from engine_opencl.plan import PlanBuilder


def geometry_of(
    node: Node, kernel: Sequence[int], x: Sequence[int], y: Sequence[int], *, transposed: bool = False
) -> Geometry:
    """The geometry of a convolution or pooling from [N, C, ...] of lengths `x` to `y`."""
    rank = len(x) - 2
    strides = tuple(node.attributes.get("strides") or (1,) * rank)
    dilations = tuple(node.attributes.get("dilations") or (1,) * rank)
    reach = [d * (k - 1) + 1 for k, d in zip(kernel, dilations, strict=True)]
    auto = node.attributes.get("auto_pad", "NOTSET")
    pads = tuple(node.attributes.get("pads") or (0,) * (2 * rank))[:rank]
    if auto in ("SAME_UPPER", "SAME_LOWER"):
        if transposed:
            more = node.attributes.get("output_padding") or (0,) * rank
            sizes = [s * (n - 1) + e + m for s, n, e, m in zip(strides, x[2:], reach, more, strict=True)]
            total = [max(size - o, 0) for size, o in zip(sizes, y[2:], strict=True)]
        else:
            total = [max(s * (o - 1) + e - n, 0) for s, n, e, o in zip(strides, x[2:], reach, y[2:], strict=True)]
        upper = auto == "SAME_UPPER"
        pads = tuple(each // 2 if upper else each - each // 2 for each in total)
    elif transposed and node.attributes.get("output_shape"):
        extra = tuple(node.attributes.get("output_padding") or (0,) * rank)
        grown = [s * (n - 1) + e + more for s, n, e, more in zip(strides, x[2:], reach, extra, strict=True)]
        pads = tuple(-(-max(whole - o, 0) // 2) for whole, o in zip(grown, y[2:], strict=True))
    elif auto == "VALID":
        pads = (0,) * rank
    return Geometry(tuple(x[2:]), tuple(y[2:]), tuple(kernel), strides, dilations, tuple(pads))


class ConvolutionBase(OpLowering[OperatorSpec]):
    """What Conv, ConvTranspose and the fused one share."""

    def check(self, spec: OperatorSpec) -> Refusal | None:
        node = spec.node
        if (refused := check_types((*node.input_values, *node.outputs))) is not None:
            return refused
        rank = len(node.input_value(0).shape) - 2
        if not 1 <= rank <= 3:
            return Refusal(RefusalCause.ATTRIBUTE, f"{rank} axes of space; expected 1 to 3")
        return None

    def is_transposed(self, node: Node) -> bool:
        """Whether it is a ConvTranspose."""
        return node.op_type == "ConvTranspose"

    def lower(self, spec: OperatorSpec, b: PlanBuilder) -> None:
        node = spec.node
        x, weights = node.input_value(0), node.input_value(1)
        bias = node.input_value(2) if node.has_input(2) else None
        residual = node.input_value(3) if node.num_inputs > 3 and node.has_input(3) else None
        shape, result = b.shape(x), b.shape(node.output(0))
        if 0 in result:
            b.output(node.output(0))
            return
        kernel = b.shape(weights)[2:]
        transposed = self.is_transposed(node)
        g = geometry_of(node, kernel, shape, result, transposed=transposed)
        groups = int(node.attributes.get("group", 1))
        epilogue = Epilogue(
            bias=None if bias is None else (1, 0),
            has_residual=residual is not None,
            activation=activation_attribute(node) if node.domain else None,
        )
        is_cpu = b.facts.kind == "cpu"
        if groups == 1 and not transposed and _is_product(g, 1 if is_cpu else shape[0]):
            _pointwise(b, node, epilogue, x, weights, bias, residual)
            return
        c = Convolution(
            shape[0], groups, shape[1] // groups, result[1] // groups, g.padded(), transposed, x.element_type,
            b.input(x), b.input(weights), None if bias is None else b.input(bias),
            None if residual is None else b.input(residual), b.output(node.output(0)), epilogue.code(),
        )  # fmt: skip
        if is_cpu and is_depthwise_rows(c):
            depthwise_rows(b, c, epilogue)
        elif is_cpu and is_block_convolution(c):
            block_convolution(b, c, epilogue)
        else:
            launch_convolution(b, c)


def _is_product(g: Geometry, images: int) -> bool:
    """Whether it is a product for each image, with places enough that a tile need not have those of several images."""
    places = math.prod(g.outputs)
    return g.is_pointwise and set(g.strides) == {1} and (images == 1 or places >= 256 or places % 64 == 0)


@lowers("Conv", "ConvTranspose")
class ConvolutionLowering(ConvolutionBase):
    """The operators of ONNX."""


@lowers("FusedConv", domain=INTERNAL_DOMAIN)
class FusedConvolutionLowering(ConvolutionBase):
    """A convolution with residual and activation."""

    def is_transposed(self, node: Node) -> bool:
        return bool(attribute(node, "transposed"))


def _pointwise(
    b: PlanBuilder,
    node: Node,
    epilogue: Epilogue,
    x: Output,
    weights: Output,
    bias: Output | None,
    residual: Output | None,
) -> None:
    """A kernel of one element is a product: [M, C] by [C, pixels] for each image."""
    n, c, *space = b.shape(x)
    m, pixels = b.shape(weights)[0], math.prod(space)
    product = Product(m, pixels, c, (n,), (0,), (c * pixels,), (c, 1), (pixels, 1), x.element_type)
    added = [None if value is None else b.input(value) for value in (bias, residual)]
    launch_product(b, product, epilogue, b.input(weights), b.input(x), b.output(node.output(0)), *added)
