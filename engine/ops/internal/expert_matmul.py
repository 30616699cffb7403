"""`ExpertMatMul`: the products of rows with the matrices of the experts that are chosen for each of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from engine.errors import ModelError
from engine.ir import Constant, Dimension, Node, Output, OutputLike, PartialShape, TensorType, ValueType, f32, u8
from engine.ir.element_type import bf16, f16
from engine.ops.cost import operations, size_of
from engine.ops.create import create
from engine.ops.internal.definition import define, padded
from engine.ops.registry import INTERNAL_DOMAIN, Evaluator, compiles
from engine.ops.rules import fail
from engine.ops.spec import OperatorSpec, check_rank, refuse, specifies
from engine.startup import dataclass

Array = NDArray[Any]

_WEIGHTS: Final = [f"tensor({name})" for name in ("float", "float16", "bfloat16", "double", "uint8")]
_SCALES: Final = ["tensor(float)", "tensor(float16)", "tensor(bfloat16)"]
_INDICES: Final = ["tensor(int64)", "tensor(int32)"]

NARROW: Final = frozenset({f16, bf16})
"""The types of weights that are widened as they are read."""
NO_EXPERT: Final = -(1 << 63)
"""The index of an expert that was not chosen, as the router's values are NaN; kNoExpert in csrc is the same."""


def ExpertMatMul(  # noqa: N802 - constructors of operators are called as the operators are
    x: OutputLike,
    experts: OutputLike,
    weights: OutputLike,
    scale: OutputLike | None = None,
    zero_point: OutputLike | None = None,
    bias: OutputLike | None = None,
    *,
    bits: int = 0,
    block_size: int = 0,
    accuracy_level: int = 0,
) -> Node:
    """`y[t, j] = weights[experts[t, j]] @ x[t, j] + bias[experts[t, j]]`: only the chosen matrices are read.

    Args:
        x: [T, k, K], or [T, 1, K] for the same row for all experts of a token.
        experts: [T, k], indices of experts, i64 or i32; negative ones count from the end. `NO_EXPERT` fails the
            inference, with an error that names the node and the row: a router's values are NaN.
        weights: [E, N, K] of the type of x, or of f16 or bf16 for x of f32; or, with `bits`, u8 [E, N, K * bits / 8],
            in which each row has its codes one after another, the first in the low bits.
        scale: [E, N, blocks], for weights that are codes; converted to the type of x.
        zero_point: u8 [E, N, ceil(blocks * bits / 8)], packed as the weights are; the middle of the range if omitted.
        bias: [E, N].
        bits: of a code, 4 or 8; 0 for weights that are numbers.
        block_size: how many codes of a row share a scale; the last block may be shorter. 0: all of them.
        accuracy_level: the least precise type to which a device may round x, as for `CompressedMatMul`.
    """
    own = {"bits": bits, "block_size": block_size, "accuracy_level": accuracy_level}
    return create("ExpertMatMul", [x, experts, weights, scale, zero_point, bias], own, domain=INTERNAL_DOMAIN)


@specifies("ExpertMatMul", domain=INTERNAL_DOMAIN)
@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertMatMulSpec(OperatorSpec):
    """The operands and attributes of `ExpertMatMul`, which documents them."""

    accuracy_level: int
    bits: int
    block_size: int

    @classmethod
    def resolve(cls, node: Node, given: dict[str, Any]) -> None:
        if given["bits"] not in (0, 4, 8):
            refuse(node, "bits", given["bits"], "0, 4 or 8")
        if given["block_size"] < 0:
            refuse(node, "block_size", given["block_size"], "0 or more")
        if not 0 <= given["accuracy_level"] <= 4:
            refuse(node, "accuracy_level", given["accuracy_level"], "0..4")
        for index, rank in ((0, 3), (1, 2), (2, 3), (3, 3), (4, 3), (5, 2)):
            check_rank(node, index, rank)

    @property
    def x(self) -> Output:
        """The rows, [T, k, K] or [T, 1, K]."""
        return self.node.input_value(0)

    @property
    def experts(self) -> Output:
        """The experts of each token, [T, k]."""
        return self.node.input_value(1)

    @property
    def weights(self) -> Output:
        """The matrices, [E, N, K], or their codes in bytes."""
        return self.node.input_value(2)

    @property
    def scale(self) -> Output | None:
        """[E, N, blocks]; None for weights that are numbers."""
        return self.input(3)

    @property
    def zero_point(self) -> Output | None:
        """u8 [E, N, ceil(blocks * bits / 8)]; None for the middle of the range."""
        return self.input(4)

    @property
    def bias(self) -> Output | None:
        """[E, N]; None if omitted."""
        return self.input(5)

    @property
    def columns(self) -> Dimension:
        """K, the length of the rows of x, and of the weights if these do not say it."""
        given = self.x.shape[2]
        if given.is_static:
            return given
        stored = self.weights.shape[2]
        if stored.is_dynamic:
            return stored
        return Dimension(stored.get_length() * 8 // self.bits) if self.bits else stored

    def block(self, columns: int) -> int:
        """The codes that share a scale, in rows of `columns`."""
        return _block(self.block_size, columns)


def _block(block_size: int, columns: int) -> int:
    return min(block_size or columns, columns) or 1


def _infer(node: Node) -> Sequence[ValueType] | None:
    """[T, k, N]. Raises `TypeInferenceError` for operands that contradict each other."""
    spec = ExpertMatMulSpec.of(node)
    types = [value and value.type for value in (spec.x, spec.experts, spec.weights)]
    if not all(isinstance(each, TensorType) and each.shape.rank.is_static for each in types):
        return None
    _check_operands(spec)
    tokens = spec.experts.shape[0] if spec.experts.shape[0].is_static else spec.x.shape[0]
    return [TensorType(spec.x.element_type, PartialShape([tokens, spec.experts.shape[1], spec.weights.shape[1]]))]


def _check_operands(spec: ExpertMatMulSpec) -> None:
    node, weights, bits = spec.node, spec.weights, spec.bits
    numbers = {spec.x.element_type} | (NARROW if spec.x.element_type is f32 else set())
    if weights.element_type not in ({u8} if bits else numbers):
        expected = "u8" if bits else " or ".join(sorted(map(str, numbers)))
        fail(node, f"the weights are {weights.element_type}; expected {expected} with bits = {bits}")
    if bool(bits) != (spec.scale is not None) or (not bits and spec.zero_point is not None):
        fail(node, f"bits is {bits}; expected 4 or 8 with a scale, and 0 without a scale and a zero point")
    x, experts = spec.x.shape, spec.experts.shape
    if not x[0].compatible(experts[0]) or not (x[1].compatible(experts[1]) or x[1].compatible(Dimension(1))):
        fail(node, f"x is {x} and the experts are {experts}; expected [T, k, K] or [T, 1, K], and [T, k]")
    columns = spec.columns
    shapes: list[tuple[str, Output | None, list[Any]]] = [("bias", spec.bias, [weights.shape[0], weights.shape[1]])]
    if columns.is_static:
        count = columns.get_length()
        if bits and count * bits % 8:
            fail(node, f"rows of {count} codes of {bits} bits do not fill bytes; expected an even number")
        blocks = -(-count // spec.block(count))
        shapes += [
            ("weights", weights, [weights.shape[0], weights.shape[1], count * bits // 8 if bits else count]),
            ("scale", spec.scale, [weights.shape[0], weights.shape[1], blocks]),
            ("zero point", spec.zero_point, [weights.shape[0], weights.shape[1], -(-blocks * bits // 8)]),
        ]
    for name, value, wanted in shapes:
        if value is not None and not value.shape.compatible(PartialShape(wanted)):
            fail(node, f"the {name} has shape {value.shape}; expected {PartialShape(wanted)} for x of {x}")


def _decompose(node: Node, inputs: Sequence[Output | None]) -> list[Output]:
    """Copies of the chosen matrices, times the rows as columns."""
    x, experts, weights, scale, zero_point, bias = padded(inputs, 6)
    assert x is not None
    assert experts is not None
    assert weights is not None
    spec = ExpertMatMulSpec.of(node)

    def chosen(value: Output) -> Output:
        return create("Gather", [value, experts], {"axis": 0}).output(0)

    matrix = chosen(weights)
    if spec.bits:
        assert scale is not None
        matrix = _dequantized(spec, x, matrix, chosen(scale), zero_point and chosen(zero_point))
    elif weights.element_type != x.element_type:
        matrix = create("CastLike", [matrix, x]).output(0)
    columns = create("Unsqueeze", [x, _i64s(-1)]).output(0)
    value = create("Squeeze", [create("MatMul", [matrix, columns]).output(0), _i64s(-1)]).output(0)
    return [value if bias is None else create("Add", [value, chosen(bias)]).output(0)]


def _dequantized(spec: ExpertMatMulSpec, x: Output, codes: Output, scale: Output, zero_point: Output | None) -> Output:
    """[T, k, N, K] in the type of x."""
    columns = spec.columns
    if columns.is_dynamic:
        fail(
            spec.node, f"x has shape {spec.x.shape} and the weights {spec.weights.shape}; expected a known last length"
        )
    count = columns.get_length()
    block = spec.block(count)
    blocks = -(-count // block)
    value = create("CastLike", [_unpacked(codes, spec.bits), x]).output(0)
    if zero_point is None:
        offsets = create("CastLike", [Constant(np.float32(1 << (spec.bits - 1))).output(0), x]).output(0)
    else:
        packed = create("CastLike", [_unpacked(zero_point, spec.bits), x]).output(0)
        offsets = _repeated(create("Slice", [packed, _i64s(0), _i64s(blocks), _i64s(-1)]).output(0), block, count)
    factors = _repeated(create("CastLike", [scale, x]).output(0), block, count)
    return create("Mul", [create("Sub", [value, offsets]).output(0), factors]).output(0)


def _unpacked(packed: Output, bits: int) -> Output:
    """[..., n] bytes as [..., 2 n] codes of 4 bits, or as they are."""
    if bits == 8:
        return packed
    low = create("BitwiseAnd", [packed, Constant(np.uint8(15)).output(0)]).output(0)
    high = create("BitShift", [packed, Constant(np.uint8(4)).output(0)], {"direction": "RIGHT"}).output(0)
    pairs = [create("Unsqueeze", [half, _i64s(-1)]).output(0) for half in (low, high)]
    return create("Reshape", [create("Concat", pairs, {"axis": -1}).output(0), _i64s(0, 0, 0, -1)]).output(0)


def _repeated(value: Output, block: int, count: int) -> Output:
    """[T, k, N, blocks] as [T, k, N, K]: each element `block` times; the last one less often if K ends before."""
    blocks = -(-count // block)
    wide = create("Unsqueeze", [value, _i64s(-1)]).output(0)
    wide = create("Expand", [wide, _i64s(1, 1, 1, blocks, block)]).output(0)
    wide = create("Reshape", [wide, _i64s(0, 0, 0, blocks * block)]).output(0)
    return wide if blocks * block == count else create("Slice", [wide, _i64s(0), _i64s(count), _i64s(-1)]).output(0)


def _i64s(*values: int) -> Output:
    return Constant(np.array(values, np.int64)).output(0)


define(
    "ExpertMatMul",
    [("X", False), ("experts", False), ("W", False), ("scale", True), ("zero_point", True), ("bias", True)],
    {"bits": 0, "block_size": 0, "accuracy_level": 0},
    _decompose,
    "Y[t, j] = W[experts[t, j]] * X[t, j] + bias[experts[t, j]], with W as numbers or as codes of 4 or 8 bits.",
    {"experts": _INDICES, "W": _WEIGHTS, "scale": _SCALES, "zero_point": ["tensor(uint8)"]},
    rule=_infer,
)


@compiles("ExpertMatMul", domain=INTERNAL_DOMAIN)
def _compile(node: Node) -> Evaluator:
    """One product for each expert that is chosen, with all of its rows, in f32 at least."""
    spec = ExpertMatMulSpec.of(node)
    bits, block_size = spec.bits, spec.block_size

    def run(inputs: Sequence[Any]) -> tuple[Any, ...]:
        given: list[Any] = [*inputs, *[None] * (6 - len(inputs))]
        x, experts, weights, scale, zero_point, bias = given
        tokens, ways = experts.shape
        if x.shape[0] != tokens or x.shape[1] not in (1, ways):
            raise ModelError(f"x is {x.shape} and the experts are {experts.shape}; expected equal tokens")
        if (experts == NO_EXPERT).any():
            row = int(np.argwhere(experts == NO_EXPERT)[0][0])
            raise ModelError(
                f"row {row} has no experts, as the router's values for it are NaN or infinite; expected finite numbers"
            )
        wrong = experts[(experts < -len(weights)) | (experts >= len(weights))]
        if wrong.size:
            raise ModelError(f"expert {wrong.flat[0]} is out of range; expected 0..{len(weights) - 1}")
        wide = np.float64 if x.dtype == np.float64 else np.float32
        rows = np.broadcast_to(x, (tokens, ways, x.shape[2]))
        result = np.empty((tokens, ways, weights.shape[1]), wide)
        for expert in np.unique(experts):
            if bits:
                offsets = None if zero_point is None else zero_point[expert]
                count = x.shape[2]
                matrix = _numbers(weights[expert], scale[expert], offsets, bits, _block(block_size, count), count)
            else:
                matrix = weights[expert].astype(wide, copy=False)
            place = experts == expert
            value = rows[place].astype(wide, copy=False) @ matrix.T
            result[place] = value if bias is None else value + bias[expert].astype(wide)
        return (result.astype(x.dtype),)

    return run


def _numbers(codes: Array, scale: Array, zero_point: Array | None, bits: int, block: int, count: int) -> Array:
    """The matrix [N, K] of f32."""

    def unpacked(packed: Array) -> Array:
        return packed if bits == 8 else np.stack([packed & 15, packed >> 4], -1).reshape(len(packed), -1)

    def repeated(value: Array) -> Array:
        return np.repeat(value, block, axis=-1)[:, :count]

    blocks = scale.shape[-1]
    middle = np.float32(1 << (bits - 1))
    offsets = middle if zero_point is None else repeated(unpacked(zero_point)[:, :blocks].astype(np.float32))
    found: Array = (unpacked(codes).astype(np.float32) - offsets) * repeated(scale.astype(np.float32))
    return found


@operations("ExpertMatMul", domain=INTERNAL_DOMAIN)
def _operations(node: Node) -> float:
    lengths = ExpertMatMulSpec.of(node).columns
    return 2.0 * size_of(node.output(0)) * (lengths.get_length() if lengths.is_static else 1)
