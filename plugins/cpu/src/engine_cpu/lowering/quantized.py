"""QuantizedConv and QuantizedMatMul, by kernels that multiply 8-bit integers."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any, Final

import numpy as np

from engine.ir import Constant, ElementType, Node, Output
from engine.ir.element_type import f32, i8, i32, u8
from engine.lowering import Refusal, RefusalCause, first_refusal
from engine.native import Attribute, Packing, has_feature, run_packings
from engine.ops.conv import ConvSpec
from engine.ops.fused_activation import Activation
from engine.ops.internal import INTERNAL_DOMAIN, Quantized
from engine.ops.matmul import MatMulSpec
from engine.ops.spec import OperatorSpec, SpecT
from engine.startup import dataclass
from engine_cpu.layout import Layout, LayoutOption, layout_bytes, padded_channels, static_shape
from engine_cpu.lowering.checks import check_spatial_rank, check_steps
from engine_cpu.lowering.conv_geometry import ConvGeometry, conv_geometry
from engine_cpu.lowering.elementwise_instructions import Opcode
from engine_cpu.lowering.elementwise_program import ElementwiseProgram
from engine_cpu.lowering.epilogue import activation_attributes
from engine_cpu.lowering.integer_groups import computed_geometry, computed_weights
from engine_cpu.lowering.integer_limits import (
    check_integer_conv,
    check_integer_product,
    check_terms,
    check_zero_points,
)
from engine_cpu.lowering.quantized_product import add_product, check_matrices
from engine_cpu.lowering.registry import OpLowering, lowers
from engine_cpu.segment import SegmentBuilder

Array = np.ndarray[Any, np.dtype[Any]]

PLANAR_CHANNELS: Final = 4
"""Maps with up to this many channels are read PLAIN."""
_TILE_ROW: Final = 64
"""Values of depth that a step of AMX's tiles takes."""
_RESIDUAL: Final = 6
_CLIPS: Final = (None, "Relu", "Clip")
_UNSIGNED: Final = 128


class _QuantizedLowering(OpLowering[SpecT]):
    """Base: all operands but X and the residual must be constants; for f32 results of products, X's need not be."""

    def check(self, spec: SpecT) -> Refusal | None:
        operands = Quantized.of(spec.node)
        is_real = operands.y_scale is None and operands.middle_scale is None
        computed = {0, _RESIDUAL} | ({1, 2} if is_real and spec.op_type == "QuantizedMatMul" else set())
        for index, value in enumerate(spec.node.input_values):
            if value is not None and index not in computed and not isinstance(value.node, Constant):
                return Refusal(RefusalCause.CONSTANT, f"input {index} is computed; expected a constant")
        return None


@lowers("QuantizedConv", domain=INTERNAL_DOMAIN, spec=ConvSpec)
class QuantizedConvLowering(_QuantizedLowering[ConvSpec]):
    """Direct or depthwise kernels on maps in blocks of 16 channels."""

    def check(self, spec: ConvSpec) -> Refusal | None:
        x, has_zero_points = spec.node.input_value(0), Quantized.of(spec.node).weights_zero_point is not None
        return first_refusal(
            super().check(spec),
            check_spatial_rank(x),
            check_steps(spec),
            check_integer_conv(spec, spec.weights),
            check_zero_points(spec, spec.weights) if has_zero_points else None,
        )

    def layouts(self, spec: ConvSpec) -> Sequence[LayoutOption]:
        """Blocked maps; x is PLAIN if it has few channels and the windows read runs of pixels."""
        inputs = [Layout.PLAIN] * spec.node.num_inputs
        if spec.transposed or not _is_planar(spec):
            inputs[0] = Layout.BLOCKED
        if spec.node.num_inputs > _RESIDUAL:
            inputs[_RESIDUAL] = Layout.BLOCKED
        return (LayoutOption(tuple(inputs), (Layout.BLOCKED,)),)

    def lower(self, spec: ConvSpec, b: SegmentBuilder) -> None:
        node = spec.node
        given = conv_geometry(spec, b.shape(node.input_value(0)), b.shape(spec.weights))
        geometry = computed_geometry(given)
        operands = _Operands(node, Quantized.of(node), spec.activation, b, int(spec.transposed), geometry)
        layout = b.option(node).inputs[0]
        kernel = _conv_kernel(geometry, layout, b.isa, is_symmetric=not operands.has_zero_points)
        shape = geometry.attributes()
        if kernel == "conv_amx_int8":
            shape["plain"] = int(layout is Layout.PLAIN)
        attributes = {**shape, **operands.epilogue(), "x_zero_point": operands.x_zero_point}
        geometries, is_plain = (given, geometry), layout is Layout.PLAIN
        packed, pairs_fit = _packed(f"pack_{kernel}", operands.weights, shape, b, geometries, is_plain=is_plain)
        attributes |= {"pairs_fit": pairs_fit}
        inputs = [unsigned_map(spec, layout, b), packed, *operands.vectors()]
        residual = spec.input(_RESIDUAL)
        if residual is not None:
            inputs.append(b.input(residual, Layout.BLOCKED))
        if operands.has_zero_points:
            inputs.append(operands.factors())
            attributes["w_zeros"] = 1
        b.step(node, kernel, inputs, [b.output(spec.output(), Layout.BLOCKED)], **attributes)


def _is_planar(spec: ConvSpec) -> bool:
    dilations = spec.window(static_shape(spec.weights)[2:]).dilations
    return static_shape(spec.node.input_value(0))[1] <= PLANAR_CHANNELS and spec.group == 1 and dilations[-1] == 1


def _conv_kernel(geometry: ConvGeometry, layout: Layout, isa: str, *, is_symmetric: bool) -> str:
    """The kernel of a convolution: on tiles if they are filled, the instruction set has them, and weights have no zero
    points.
    """
    if geometry.transposed:
        return "conv_transpose_int8"
    if geometry.is_depthwise:
        return "depthwise_int8"
    has_tiles = is_symmetric and has_feature(isa, "amx_int8") and geometry.groups == 1
    if layout is Layout.PLAIN:
        is_on_tiles = has_tiles and geometry.kernel[1] <= _TILE_ROW // PLANAR_CHANNELS
        return "conv_amx_int8" if is_on_tiles else "conv_planar_int8"
    # A row of a tile has 64 channels.
    return "conv_amx_int8" if has_tiles and geometry.in_channels >= _TILE_ROW // 2 else "conv_blocked_int8"


@lowers("QuantizedMatMul", domain=INTERNAL_DOMAIN, spec=MatMulSpec)
class QuantizedMatMulLowering(_QuantizedLowering[MatMulSpec]):
    """Products of rows with one matrix."""

    def check(self, spec: MatMulSpec) -> Refusal | None:
        return first_refusal(super().check(spec), check_integer_product(spec, spec.node.input_value(3)))

    def lower(self, spec: MatMulSpec, b: SegmentBuilder) -> None:
        node = spec.node
        x, weights = node.input_value(0), node.input_value(3)
        n, k = b.shape(weights)[:: 1 if spec.trans_b else -1]
        operands = _Operands(node, Quantized.of(node), spec.activation, b, axis=0 if spec.trans_b else 1)
        b_zeros = int(operands.has_zero_points)
        packing: dict[str, Attribute] = {"n": n, "k": k, "transposed": int(spec.trans_b), "b_zeros": b_zeros}
        packed, pairs_fit = _packed("pack_gemm_int8", [weights], packing, b)
        inputs = [b.input(x), packed, *operands.vectors()]
        if b_zeros:
            inputs.append(operands.factors())
        residual = spec.input(_RESIDUAL)
        if residual is not None:
            inputs.append(b.input(residual))
        rows = math.prod(b.shape(x)[:-1])
        attributes = operands.epilogue()
        attributes |= {"m": rows, "n": n, "k": k, "a_signed": int(x.element_type is i8), "pairs_fit": pairs_fit}
        attributes["b_zeros"] = b_zeros
        b.step(node, "gemm_int8", inputs, [b.output(spec.output())], **attributes)


@lowers("MatMulInteger")
class MatMulIntegerLowering(OpLowering[OperatorSpec]):
    """Sums of i32: products with one constant matrix, or of any two matrices."""

    def check(self, spec: OperatorSpec) -> Refusal | None:
        return None if _why_unpacked(spec) is None else _why_no_product(spec)

    def lower(self, spec: OperatorSpec, b: SegmentBuilder) -> None:
        if _why_unpacked(spec) is None:
            # Only kernels that pack B during the inference use tiles if it has zero points.
            has_tiles = has_feature(b.isa, "amx_int8") and _why_no_product(spec) is None
            if not (has_tiles and _has_zero_points(spec)):
                self._lower_packed(spec, b)
                return
        node, zeros = spec.node, []
        attributes: dict[str, Attribute] = {"y": "i32"}
        for name, index in (("a_zeros", 2), ("b_zeros", 3)):
            value, factor = spec.input(index), node.input_value(index - 2)
            zeros.append(b.constant(np.zeros(1, factor.element_type.numpy)) if value is None else b.input(value))
            attributes[name] = int(value is not None and value.shape.size() != 1)
        add_product(node, (node.input_value(0), node.input_value(1)), zeros, attributes, b)

    def _lower_packed(self, spec: OperatorSpec, b: SegmentBuilder) -> None:
        node = spec.node
        x, weights = node.input_value(0), node.input_value(1)
        k, n = b.shape(weights)
        b_zero, has_zero_points = spec.input(3), _has_zero_points(spec)
        sources = [weights] if b_zero is None or not has_zero_points else [weights, b_zero]
        packing: dict[str, Attribute] = {"n": n, "k": k, "b_zeros": int(has_zero_points)}

        def signed(data: Array) -> Array:
            return data if data.dtype == np.int8 else (data.astype(np.int16) - _UNSIGNED).astype(np.int8)

        def points() -> Array:
            given = np.zeros((), weights.element_type.numpy) if b_zero is None else b.value(b_zero)
            return np.broadcast_to(signed(given).reshape(-1), (n,)).astype(np.int32)

        def packed() -> Packing:
            return Packing("pack_gemm_int8", [np.ascontiguousarray(signed(b.value(weights)))], packing, isa=b.isa)

        def sums() -> Array:
            total = signed(b.value(weights)).sum(axis=0, dtype=np.int32)
            return in_blocks((k * points() if has_zero_points else 0) - total, np.int32)

        zero = spec.input(2)
        zero_point = b.constant(np.zeros(1, x.element_type.numpy)) if zero is None else b.input(zero)
        start = computed_start(node, b, x.element_type, zero_point, b.weights(sources, "integer sums", sums), n)
        ones = b.constant(np.ones(padded_channels(n), np.float32))  # not used by results of i32
        recipe = f"integer {n}x{k}{' without tiles' if has_zero_points else ''}"
        buffer, pairs_fit = packed_and_fit([weights], recipe, packed, b)
        inputs = [b.input(x), buffer, start, ones]
        if has_zero_points:
            inputs.append(b.weights(sources, f"factors {n}", lambda: in_blocks(-points(), np.int32)))
        attributes: dict[str, Attribute] = {**packing, "m": math.prod(b.shape(x)[:-1]), "y": "i32"}
        attributes |= {"a_signed": int(x.element_type is i8), "pairs_fit": pairs_fit}
        b.step(node, "gemm_int8", inputs, [b.output(spec.output())], **attributes)


def _why_unpacked(spec: OperatorSpec) -> Refusal | None:
    """Why the weights of a MatMulInteger cannot be packed when the model is compiled."""
    a, weights, a_zero, b_zero = (spec.input(index) for index in range(4))
    assert a is not None
    assert weights is not None
    if not isinstance(weights.node, Constant) or not isinstance(b_zero.node if b_zero else weights.node, Constant):
        return Refusal(RefusalCause.CONSTANT, "B or its zero point is computed; expected constants")
    if a.shape.rank.is_dynamic or a.shape.rank.min < 2 or len(weights.shape) != 2:
        return Refusal(RefusalCause.RANK, f"A is {a.shape}, B is {weights.shape}; expected rows and a matrix")
    if a_zero is not None and (not a_zero.shape.is_static or a_zero.shape.size() != 1):
        return Refusal(RefusalCause.SHAPE, f"the zero point of A is {a_zero.shape}; expected one number")
    k, n = weights.shape.get_shape()
    if b_zero is not None and b_zero.shape.size() not in (1, n):
        return Refusal(RefusalCause.SHAPE, f"the zero point of B is {b_zero.shape}; expected one, or {n}")
    return check_terms(k)


def _has_zero_points(spec: OperatorSpec) -> bool:
    """Whether constant weights have zero points other than 0 as i8, or 128 as u8."""
    weights, zero = spec.node.input_value(1), spec.input(3)
    points = np.zeros(()) if zero is None else zero.node.data  # type: ignore[attr-defined]
    return bool((points != (_UNSIGNED if weights.element_type is u8 else 0)).any())


def _why_no_product(spec: OperatorSpec) -> Refusal | None:
    """Why there is no kernel for a MatMulInteger of any two matrices."""
    a, second = spec.node.input_value(0), spec.node.input_value(1)
    for index, length in ((2, -2), (3, -1)):
        zero, factor = spec.input(index), (a, second)[index - 2]
        if zero is None or (zero.shape.is_static and zero.shape.size() == 1):
            continue
        if zero.shape.rank != 1 or factor.shape.rank.is_dynamic or zero.shape[0].is_dynamic:
            return Refusal(RefusalCause.SHAPE, f"zero point {index - 2} is {zero.shape}; expected a number or a vector")
        if len(factor.shape) < 2 or not zero.shape[0].compatible(factor.shape[length]):
            return Refusal(RefusalCause.SHAPE, f"zero point {index - 2} is {zero.shape}, its factor {factor.shape}")
    return check_matrices(a, second)


def computed_start(node: Node, b: SegmentBuilder, x_type: ElementType, zero_point: int, sums: int, columns: int) -> int:
    """The buffer of the initial values of sums: a zero point, as u8, times the negative sums of the weights."""
    program = ElementwiseProgram()
    zero = program.cast(program.input(x_type), i32)
    if x_type is i8:
        zero = program.op(Opcode.ADD, zero, program.constant(_UNSIGNED, i32))
    result = program.op(Opcode.MUL, zero, program.input(i32))
    count = padded_channels(columns)
    start = b.temporary(4 * count)
    attributes = program.attributes([result])
    b.step(node, "elementwise", [zero_point, sums], [start], dims=[count], input_strides=[0, 1], **attributes)
    return start


@dataclass(frozen=True)
class _Operands:
    """The numbers of a step's epilogue, as `requantize.hpp` defines them."""

    node: Node
    given: Quantized
    activation: Activation | None
    b: SegmentBuilder
    axis: int = 0
    geometry: ConvGeometry | None = None

    def number(self, value: Any) -> float:
        return float(self.b.value(value).item())

    @property
    def is_quantized(self) -> bool:
        return self.given.y_scale is not None

    @property
    def unit(self) -> float:
        """The factor from real values to the units of the sum before the activation."""
        return 1 / self.number(self.given.y_scale) if self.is_quantized and self._commutes else 1.0

    @property
    def _commutes(self) -> bool:
        return (self.activation.name if self.activation else None) in _CLIPS

    @property
    def has_zero_points(self) -> bool:
        """Whether the weights have zero points."""
        return self.given.weights_zero_point is not None

    @property
    def weights(self) -> list[Output]:
        """The weights, and their zero points if they have any."""
        given = self.given
        return [_output(v) for v in (given.weights, given.weights_zero_point) if v is not None]

    def _sums(self) -> Array:
        """The sum of the weights less their zero points, for each output channel or column."""
        data = self.b.value(self.weights[0])
        sums: Array = data.sum(axis=tuple(axis for axis in range(data.ndim) if axis != self.axis), dtype=np.int64)
        if self.has_zero_points:
            sums -= data.size // max(1, len(sums)) * self.b.value(self.weights[1]).astype(np.int64)
        return sums

    def factors(self) -> int:
        """The buffer of what sums of x are multiplied with: the negative zero points of the weights."""
        count = self.b.shape(self.weights[0])[self.axis]

        def made() -> Array:
            points = self.b.value(self.weights[1]).astype(np.int32)
            return in_blocks(-np.broadcast_to(points, (count,)), np.int32)

        return self.b.weights([self.weights[1]], f"factors {count}", made)

    @property
    def x_zero_point(self) -> int:
        """The zero point of x as u8."""
        zero = int(self.number(self.given.x_zero_point))
        return zero + _UNSIGNED if _output(self.given.x).element_type is i8 else zero

    def epilogue(self) -> dict[str, Attribute]:
        """The attributes of the epilogue."""
        given = self.given
        made: dict[str, Attribute] = {}
        epilogue = activation_attributes(self.activation)
        if self._commutes:
            made |= {name: v * self.unit if isinstance(v, float) else v for name, v in epilogue.items()}
        else:
            made |= epilogue
            if self.is_quantized:
                made["factor"] = 1 / self.number(given.y_scale)
        if given.bias is not None:
            made["bias"] = 1
        if given.middle_bias is not None:
            made["middle_bias"] = 1
        if given.residual is not None:
            made |= {
                "residual": 1,
                "residual_type": _output(given.residual).element_type.name,
                "residual_scale": self.unit,
            }
        if given.residual_scale is not None:
            made["residual_scale"] = self.number(given.residual_scale) * self.unit
            made["residual_zero_point"] = int(self.number(given.residual_zero_point))
        if given.middle_scale is not None:
            zero, scale = self.number(given.middle_zero_point), self.number(given.middle_scale)
            limits = np.iinfo(_output(given.middle_zero_point).element_type.numpy)
            made["middle"] = [limits.min - zero, limits.max - zero, scale * self.unit]
        made["y"] = "f32"
        if self.is_quantized:
            made["y"] = _output(given.y_zero_point).element_type.name
            made["zero_point"] = int(self.number(given.y_zero_point))
        return made

    def vectors(self) -> list[int]:
        """The buffers of start, scale, and the biases if present; a value for each output channel or column."""
        given = self.given
        weights, weights_scale = _output(given.weights), _output(given.weights_scale)
        if not self.b.is_constant(_output(given.x_scale)) or not self.b.is_constant(_output(given.x_zero_point)):
            return self._computed_vectors()
        units = [given.x_scale, given.middle_scale if given.middle_scale is not None else given.y_scale]
        sources = [*self.weights, weights_scale, _output(given.x_zero_point)]
        sources += [_output(v) for v in units if v is not None]
        key = f"axis {self.axis} {self._first_unit != 1.0} {_output(given.x).element_type.name}"
        if self.geometry is not None and self.geometry.transposed:
            key += f" transposed {self.geometry.strides} {self.geometry.dilations}"

        def start() -> Array:
            if self.geometry is not None and self.geometry.transposed:
                return np.concatenate([in_blocks(-self.x_zero_point * s, np.int32) for s in self._sums_of_residues()])
            return in_blocks(-self.x_zero_point * self._sums(), np.int32)

        def scale() -> Array:
            geometry = self.geometry
            is_transposed = geometry is not None and geometry.transposed
            count = geometry.out_channels if geometry and is_transposed else self.b.shape(weights)[self.axis]
            scales = np.broadcast_to(self.b.value(weights_scale).astype(np.float64), (count,))
            return in_blocks(scales * self.number(given.x_scale) * self._first_unit, np.float32)

        def bias() -> Array:
            return in_blocks(self.b.value(_output(given.bias)).astype(np.float64) * self._first_unit, np.float32)

        made = [self.b.weights(sources, f"start {key}", start), self.b.weights(sources, f"scale {key}", scale)]
        if given.bias is not None:
            made.append(self.b.weights([*sources, _output(given.bias)], f"bias {key}", bias))
        if given.middle_bias is not None:
            late = _output(given.middle_bias)
            known = [late] if given.y_scale is None else [late, _output(given.y_scale)]
            made.append(
                self.b.weights(
                    known,
                    f"middle bias {self.unit != 1.0}",
                    lambda: in_blocks(self.b.value(late).astype(np.float64) * self.unit, np.float32),
                )
            )
        return made

    def _sums_of_residues(self) -> Iterator[Array]:
        """The sums of the weights of each output channel that meet the outputs of one residue modulo the strides."""
        assert self.geometry is not None
        shape, weights = self.geometry, self.b.value(_output(self.given.weights))
        groups = shape.out_channels // weights.shape[1]
        weights = weights.reshape(groups, -1, weights.shape[1], *shape.kernel)
        rows, columns = (
            np.arange(size) * dilation % stride
            for size, dilation, stride in zip(shape.kernel, shape.dilations, shape.strides, strict=True)
        )
        for row in range(shape.strides[0]):
            for column in range(shape.strides[1]):
                met = weights[:, :, :, rows == row][..., columns == column]
                yield met.sum(axis=(1, 3, 4), dtype=np.int64).reshape(-1)

    def _computed_vectors(self) -> list[int]:
        """The same if the scale or the zero point of x is computed: two steps of a value for each column."""
        given, b = self.given, self.b
        weights, weights_scale = _output(given.weights), _output(given.weights_scale)
        x_scale, x_zero_point = _output(given.x_scale), _output(given.x_zero_point)
        count = b.shape(weights)[self.axis]

        def sums() -> Array:
            return in_blocks(-self._sums(), np.int32)

        def scales() -> Array:
            return in_blocks(np.broadcast_to(b.value(weights_scale), (count,)), np.float32)

        x_type, constant = x_zero_point.element_type, b.weights(self.weights, f"sums {self.axis}", sums)
        made = [computed_start(self.node, b, x_type, b.input(x_zero_point), constant, count)]
        program = ElementwiseProgram()
        attributes = program.attributes([program.op(Opcode.MUL, program.input(f32), program.input(f32))])
        factors = b.weights([weights, weights_scale], f"scales {self.axis}", scales)
        scale, length = b.temporary(4 * padded_channels(count)), padded_channels(count)
        b.step(
            self.node, "elementwise", [b.input(x_scale), factors], [scale], dims=[length], input_strides=[0, 1],
            **attributes,
        )  # fmt: skip
        made.append(scale)
        if given.bias is not None:
            bias = _output(given.bias)
            made.append(b.weights([bias], "bias", lambda: in_blocks(b.value(bias), np.float32)))
        return made

    @property
    def _first_unit(self) -> float:
        """The factor from real values to the units of the sum with the bias."""
        if self.given.middle_scale is not None:
            return 1 / self.number(self.given.middle_scale)
        return self.unit


def _output(value: Any) -> Output:
    assert isinstance(value, Output)
    return value


def in_blocks(values: Array, dtype: Any) -> Array:
    """Values padded to whole blocks of channels."""
    return np.pad(values, (0, padded_channels(len(values)) - len(values))).astype(dtype)


def _packed(
    kernel: str,
    sources: list[Output],
    attributes: dict[str, Attribute],
    b: SegmentBuilder,
    geometries: tuple[ConvGeometry, ConvGeometry] | None = None,
    *,
    is_plain: bool = False,
) -> tuple[int, int]:
    """The buffer of packed weights, and the attribute `pairs_fit`.

    Args:
        sources: the weights, and their zero points if they have any.
        geometries: of a convolution: its own, and that of the kernel, whose weights these become.
        is_plain: of a convolution with a PLAIN x.
    """
    weights = sources[0]
    is_other = geometries is not None and geometries[0] != geometries[1]
    shape = "x".join(map(str, b.shape(weights)))
    groups = attributes.get("groups", 1)
    recipe = f"{kernel} {shape} {groups}{' transposed' if attributes.get('transposed') else ''}"
    if is_other:
        assert geometries is not None
        recipe += f" of {geometries[0].groups} {geometries[0].dilations}"
    if attributes.get("b_zeros"):
        recipe += " without tiles"
    if kernel == "pack_conv_transpose_int8":
        recipe += f" {attributes['strides']} {attributes['dilations']}"

    def packing() -> Packing:
        data = b.value(weights)
        if is_other:
            assert geometries is not None
            zero = b.value(sources[1]) if len(sources) > 1 else np.zeros((), np.int8)
            data = computed_weights(data, zero, *geometries)
        if is_plain:
            data = np.moveaxis(data.reshape(*data.shape[:2], -1, data.shape[-1]), 1, -1)
            data = np.pad(data, [(0, 0)] * 3 + [(0, PLANAR_CHANNELS - data.shape[-1])])
        return Packing(kernel, [np.ascontiguousarray(data)], attributes, isa=b.isa)

    return packed_and_fit(sources if is_other else [weights], recipe, packing, b)


def packed_and_fit(
    sources: Sequence[Output], recipe: str, packing: Callable[[], Packing], b: SegmentBuilder
) -> tuple[int, int]:
    """The buffer of packed weights, and 1 if two adjacent products with any u8 fit into 16 bits, and kernels ask."""
    if has_feature(b.isa, "vnni") or has_feature(b.isa, "avxvnni") or not has_feature(b.isa, "avx2"):
        return b.weights(sources, recipe, packing), 0

    @cache
    def packed() -> Array:
        made = packing()
        run_packings([made])
        return made.packed

    def fit() -> Array:
        pairs = packed().view(np.int8).reshape(-1, 2).astype(np.int16)
        above, below = np.maximum(pairs, 0).sum(axis=1), np.minimum(pairs, 0).sum(axis=1)
        return np.array([255 * int(above.max(initial=0)) < 2**15 and 255 * int(below.min(initial=0)) >= -(2**15)])

    buffer = b.weights(sources, recipe, packed)
    key = b.store.key(sources, f"{recipe} pairs fit")
    return buffer, int(b.store.get(key, sources, fit).reshape(-1)[0])


def unsigned_map(spec: ConvSpec, layout: Layout, b: SegmentBuilder) -> int:
    """The buffer of x as u8: i8 plus 128."""
    x = spec.node.input_value(0)
    source = b.input(x, layout)
    if x.element_type is not i8:
        return source
    count = layout_bytes(b.shape(x), i8, layout)
    flipped = b.temporary(count)
    program = ElementwiseProgram()
    value = program.input(i8)
    result = program.op(Opcode.BIT_XOR, value, program.constant(-_UNSIGNED, i8))
    b.step(
        spec.node, "elementwise", [source], [flipped], dims=[count], input_strides=[1], **program.attributes([result])
    )
    return flipped
