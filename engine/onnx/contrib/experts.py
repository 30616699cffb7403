"""Mixtures of experts, `MoE` and `QMoE`: a router chooses experts for each token, and only their products are computed.

What onnxruntime's documentation leaves open is as its CPU kernels have it: of equal router values, the experts with the
larger index are chosen; `gelu` is the approximation by tanh; `QMoE` has no softmax over all experts, whatever
`normalize_routing_weights` says; and `use_sparse_mixer` changes no result.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final, NoReturn

import numpy as np

from engine.ir import Constant, Output, PartialShape, TensorType, u8
from engine.onnx.contrib.call import FLOATS, ContribCall, contrib
from engine.onnx.contrib.packed_elements import Array, constant_of, is_constant, unpacked
from engine.onnx.upgrades.emit import emit, i64_scalar, i64s, rank_of, reshape_like, scalar_like
from engine.ops.internal import NO_EXPERT, ExpertMatMul
from engine.startup import dataclass

_BITS: Final = (2, 4, 8)
_MIN_BLOCK: Final = 16
_ACTIVATIONS: Final = {"relu": "Relu", "silu": "Swish"}
_FUSIONS: Final = (0, 1, 2)
_INTERLEAVED: Final = 1
_ROUTING: Final = (
    "k activation_type activation_alpha activation_beta swiglu_fusion swiglu_limit swiglu_limit_after_activation "
    "normalize_routing_weights use_sparse_mixer"
)


@contrib(
    "MoE",
    "input router_probs fc1_experts_weights fc1_experts_bias? fc2_experts_weights fc2_experts_bias? "
    "fc3_experts_weights? fc3_experts_bias?",
    _ROUTING,
)
def _moe(call: ContribCall) -> list[Output]:
    experts = _experts(call)
    layers = [_Layer.of_numbers(call, index, experts) for index in (2, 4, 6) if call.has_input(index)]
    choice = _routing(call, experts, normalizes=bool(call.choice("normalize_routing_weights", 0, (0, 1))))
    return [_mixture(call, layers, choice)]


@contrib(
    "QMoE",
    "input router_probs fc1_experts_weights fc1_scales? fc1_experts_bias? fc2_experts_weights fc2_scales? "
    "fc2_experts_bias? fc3_experts_weights? fc3_scales? fc3_experts_bias? fc1_zero_points? fc2_zero_points? "
    "fc3_zero_points? router_weights? fc1_global_scale? fc2_global_scale? fc1_act_scale? fc2_act_scale? "
    "fc1_act_block_scale? fc2_act_block_scale?",
    f"{_ROUTING} expert_weight_bits fc1_expert_weight_bits fc2_expert_weight_bits fc3_expert_weight_bits block_size "
    "quant_type accuracy_level weights_prepacked",
)
def _quantized_moe(call: ContribCall) -> list[Output]:
    call.without_attributes(quant_type="int")
    call.without_inputs(
        "fc1_global_scale", "fc2_global_scale", "fc1_act_scale", "fc2_act_scale", "fc1_act_block_scale",
        "fc2_act_block_scale",
    )  # fmt: skip
    if call.integer("weights_prepacked", -1) not in (-1, 0):
        call.unsupported(
            f"attribute `weights_prepacked` is {call.integer('weights_prepacked')}: the weights have a layout for one "
            "kind of device",
            "write the model without prepacked weights",
        )
    experts = _experts(call)
    layers = []
    for number, index in enumerate((2, 5, 8)):
        if call.has_input(index):
            layers.append(_Layer.of_codes(call, number, index, experts))
    call.choice("normalize_routing_weights", 0, (0, 1))
    choice = _routing(call, experts, normalizes=True, has_weights=call.has_input(14))
    if call.has_input(14):
        choice = replace(choice, weights=_given_weights(call, choice.indices))
    return [_mixture(call, layers, choice)]


def _experts(call: ContribCall) -> int:
    """The number of experts. Raises `ModelError` if the router has another one."""
    call.ranked(2, 3)
    count, router = call.length(2, 0), call.ranked(1, 2)
    if rank_of(router) is not None and not router.shape[1].accepts(count):
        call.invalid(f"{call.described(1)} has shape {router.shape}; expected {count} columns, as {call.described(2)}")
    return count


# -- the router --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Choice:
    """The experts of each token, each [T, k].

    Attributes:
        indices: within the range, also for tokens with NaN.
        checked: the indices; `NO_EXPERT` for values that are NaN or have no softmax, which fails the inference.
    """

    weights: Output
    indices: Output
    checked: Output


def _routing(call: ContribCall, experts: int, *, normalizes: bool, has_weights: bool = False) -> _Choice:
    """The chosen experts and their weights, which an input replaces with `has_weights`.

    Of equal values, TopK chooses the first ones, and onnxruntime the last ones: so experts are counted from the end.
    """
    probabilities = call.ranked(1, 2)
    call.typed(1, FLOATS if call.input(0).element_type not in FLOATS else {call.input(0).element_type})
    count = call.integer("k", 1)
    if not 1 <= count <= experts:
        call.invalid(f"attribute `k` is {count}; expected 1..{experts}, as there are {experts} experts")
    if call.choice("use_sparse_mixer", 0, (0, 1)) and count != 2:
        call.invalid(f"attribute `k` is {count}; expected 2 with `use_sparse_mixer`")
    backwards = emit("Slice", probabilities, i64s([-1]), i64s([-(experts + 1)]), i64s([1]), i64s([-1]))
    largest = _emit_two("TopK", backwards, i64s([count]), axis=-1)
    chosen = emit("Sub", i64_scalar(experts - 1), largest[1])
    if normalizes:
        weights = emit("Softmax", largest[0], axis=-1)
    else:
        weights = emit("GatherElements", emit("Softmax", probabilities, axis=-1), chosen, axis=1)
    # TopK counts NaN as the largest value, so that it is among the chosen ones. Weights are also NaN if a value is
    # infinite, or if all are minus infinity.
    unsure = emit("IsNaN", largest[0] if has_weights else weights)
    return _Choice(weights, chosen, emit("Where", unsure, i64_scalar(NO_EXPERT), chosen))


def _given_weights(call: ContribCall, chosen: Output) -> Output:
    """Input `router_weights` at the chosen experts, divided by their sum with `normalize_routing_weights`."""
    call.typed(14, {call.input(0).element_type} & FLOATS or FLOATS)
    given, router = call.ranked(14, 2), call.input(1).shape
    if not given.shape.compatible(router):
        call.invalid(f"{call.described(14)} has shape {given.shape}; expected {router}, as the router's")
    weights = emit("GatherElements", given, chosen, axis=1)
    if not call.integer("normalize_routing_weights", 0):
        return weights
    total = emit("ReduceSum", weights, i64s([1]), keepdims=1)
    none = scalar_like(0.0, total)
    return emit("Div", weights, emit("Where", emit("Equal", total, none), scalar_like(1.0, total), total))


def _emit_two(op_type: str, *inputs: Output, **attributes: int) -> tuple[Output, Output]:
    """Both outputs of a new node."""
    node = emit(op_type, *inputs, **attributes).node
    return node.output(0), node.output(1)


# -- the experts -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Layer:
    """The matrices [experts, rows, columns] of a fully connected layer, one for each expert.

    Attributes:
        bits: of a code; 0 if `weights` are numbers.
        index: of the weights among the inputs.
    """

    index: int
    weights: Output
    scale: Output | None
    zero_point: Output | None
    bias: Output | None
    rows: int
    columns: int
    bits: int = 0
    block: int = 0
    accuracy_level: int = 0

    @classmethod
    def of_numbers(cls, call: ContribCall, index: int, experts: int) -> _Layer:
        """Input `index` of MoE and the bias behind it. Raises `ModelError`."""
        call.typed(index, {call.input(0).element_type} & FLOATS or FLOATS)
        rows, columns = _matrix(call, index, experts)
        return cls(index, call.input(index), None, None, _bias(call, index + 1, experts, rows), rows, columns)

    @classmethod
    def of_codes(cls, call: ContribCall, number: int, index: int, experts: int) -> _Layer:
        """Input `index` of QMoE, with its scales, bias and zero points. Raises `ModelError`."""
        bits = call.integer(f"fc{number + 1}_expert_weight_bits", call.integer("expert_weight_bits", 4))
        if bits == 3:
            call.unsupported("codes of 3 bits have no form here", "write the model with 2, 4 or 8 bits")
        if bits not in _BITS:
            call.invalid(f"attribute `expert_weight_bits` is {bits}; expected 2, 4 or 8")
        if not call.has_input(index + 1):
            call.invalid(f"input {index + 1} (fc{number + 1}_scales) is missing")
        call.typed(index, {u8})
        rows, width = _matrix(call, index, experts)
        columns = width * 8 // bits
        block = call.integer("block_size", 0)
        if "block_size" in call.attributes and (block < _MIN_BLOCK or block & (block - 1)):
            call.invalid(f"attribute `block_size` is {block}; expected a power of 2 of at least {_MIN_BLOCK}")
        if block and columns % block:
            call.invalid(f"{call.described(index)} has rows of {columns} codes; expected a multiple of {block}")
        blocks = columns // block if block else 1
        zero_index = 11 + number
        scale = _by_blocks(call, index + 1, experts, rows, blocks, is_blocked=bool(block))
        zero_point = None
        if call.has_input(zero_index):
            zero_point = _zero_points(call, zero_index, experts, rows, blocks, bits, is_blocked=bool(block))
        weights = call.input(index)
        if bits == 2:
            weights, zero_point = _widened(call, index, blocks, columns, zero_point)
        level = call.integer("accuracy_level", 0)
        return cls(
            index, weights, scale, zero_point, _bias(call, index + 2, experts, rows), rows, columns, max(bits, 4),
            block, level if level == 4 else 0,
        )  # fmt: skip

    def product(self, x: Output, chosen: Output) -> Output:
        """[T, k, rows] of x, [T, k or 1, columns]."""
        node = ExpertMatMul(
            x, chosen, self.weights, self.scale, self.zero_point, self.bias,
            bits=self.bits, block_size=self.block, accuracy_level=self.accuracy_level,
        )  # fmt: skip
        return node.output(0)


def _matrix(call: ContribCall, index: int, experts: int) -> tuple[int, int]:
    """The lengths of one expert's matrix. Raises `ModelError` and `UnsupportedError`."""
    call.ranked(index, 3)
    if (found := call.length(index, 0)) != experts:
        call.invalid(
            f"{call.described(index)} has matrices for {found} experts; expected {experts}, as {call.described(2)}"
        )
    return call.length(index, 1), call.length(index, 2)


def _bias(call: ContribCall, index: int, experts: int, rows: int) -> Output | None:
    if not call.has_input(index):
        return None
    call.typed(index, {call.input(0).element_type} & FLOATS or FLOATS)
    _expect(call, index, [experts, rows])
    return call.input(index)


def _by_blocks(call: ContribCall, index: int, experts: int, rows: int, blocks: int, *, is_blocked: bool) -> Output:
    """Scales as [experts, rows, blocks]; without blocks, the file has [experts, rows]."""
    scale = call.typed(index, FLOATS)
    _expect(call, index, [experts, rows, blocks] if is_blocked else [experts, rows])
    return scale if is_blocked else emit("Unsqueeze", scale, i64s([-1]))


def _zero_points(
    call: ContribCall, index: int, experts: int, rows: int, blocks: int, bits: int, *, is_blocked: bool
) -> Output:
    """Packed zero points, [experts, rows, bytes]; without blocks, those of several rows share a byte in the file."""
    call.typed(index, {u8})
    wanted = [experts, rows, -(-blocks * bits // 8)] if is_blocked else [experts, -(-rows * bits // 8)]
    _expect(call, index, wanted)
    value = call.input(index)
    if is_blocked:
        return value
    if bits == 8:
        return emit("Unsqueeze", value, i64s([-1]))
    if not is_constant(value):
        call.unsupported(f"{call.described(index)} is computed", "write it as an initializer, or with a block_size")
    value_type = TensorType(u8, PartialShape([experts, rows, 1]))
    stored = constant_of(value)
    return Constant.derived([stored], value_type, lambda data: unpacked(data, bits)[:, :rows, None].copy()).output(0)


def _widened(
    call: ContribCall, index: int, blocks: int, columns: int, zero_point: Output | None
) -> tuple[Output, Output]:
    """Codes and zero points of 2 bits as codes of 4 bits."""
    given = call.input(index)
    for value in (given, zero_point):
        if value is not None and not is_constant(value):
            call.unsupported(f"{value.name}, codes of 2 bits, is computed", "write it as an initializer")
    experts, rows = given.shape[0].get_length(), given.shape[1].get_length()
    width = -(-blocks // 2)
    if zero_point is None:
        zeros: Constant = Constant(np.full((experts, rows, width), 0x22, np.uint8))
    else:
        shape = PartialShape([experts, rows, width])
        zeros = Constant.derived(
            [constant_of(zero_point)], TensorType(u8, shape), lambda data: _in_four_bits(data)[..., :width].copy()
        )
    wide = TensorType(u8, PartialShape([experts, rows, columns // 2]))
    return Constant.derived([constant_of(given)], wide, _in_four_bits).output(0), zeros.output(0)


def _in_four_bits(packed: Array) -> Array:
    codes = unpacked(packed, 2)
    found: Array = codes[..., ::2] | codes[..., 1::2] << np.uint8(4)
    return found


def _expect(call: ContribCall, index: int, wanted: list[int]) -> None:
    shape = call.input(index).shape
    if not shape.compatible(PartialShape(wanted)):
        call.invalid(f"{call.described(index)} has shape {shape}; expected {wanted}")


# -- the mixture -------------------------------------------------------------------------------------------------


def _mixture(call: ContribCall, layers: list[_Layer], choice: _Choice) -> Output:
    """The sum of the chosen experts' results, times their weights, in the shape of the input."""
    x = call.typed(0, FLOATS)
    if rank_of(call.ranked(0, 2, 3)) is None:
        call.unsupported(f"{call.described(0)} has an unknown rank", "state its shape in the model")
    first, second = layers[0], layers[1]
    _check_lengths(call, layers)
    rows = x if rank_of(x) == 2 else emit("Reshape", x, i64s([-1, first.columns]))
    _check_tokens(call, rows)
    value = _activated(call, layers, emit("Unsqueeze", rows, i64s([1])), choice.checked)
    value = second.product(value, choice.checked)
    # As a product of a row with a matrix: the sum over the experts without a tensor of the weighted results.
    value = emit("MatMul", emit("Unsqueeze", choice.weights, i64s([1])), value)
    value = emit("Squeeze", value, i64s([1]))
    return value if rank_of(x) == 2 else reshape_like(value, x)


def _check_lengths(call: ContribCall, layers: list[_Layer]) -> None:
    first, second = layers[0], layers[1]
    is_fused = call.text("activation_type", "relu") == "swiglu" and call.choice("swiglu_fusion", 0, _FUSIONS) != 0
    inner = second.columns * (2 if is_fused else 1)
    last = call.input(0).shape[-1]
    for layer, wanted in ((first, (inner, first.columns)), *((layer, (inner, first.columns)) for layer in layers[2:])):
        if (layer.rows, layer.columns) != wanted:
            call.invalid(
                f"{call.described(layer.index)} has matrices of [{layer.rows}, {layer.columns}]; expected "
                f"{list(wanted)} for {call.described(second.index)} with [{second.rows}, {second.columns}]"
            )
    if not last.accepts(first.columns) or second.rows != first.columns:
        call.invalid(
            f"{call.described(0)} has rows of {last}, and the experts take {first.columns} and give {second.rows}; "
            "expected equal lengths"
        )


def _check_tokens(call: ContribCall, rows: Output) -> None:
    if not rows.shape[0].compatible(call.input(1).shape[0]):
        call.invalid(
            f"{call.described(1)} has shape {call.input(1).shape}; expected a row for each of the {rows.shape[0]} "
            f"tokens of {call.described(0)}"
        )


def _activated(call: ContribCall, layers: list[_Layer], x: Output, chosen: Output) -> Output:
    """The activation of the first layer's results, [T, k, columns of the second]."""
    kind, fusion = call.text("activation_type", "relu"), call.choice("swiglu_fusion", 0, _FUSIONS)
    if call.integer("swiglu_limit_after_activation", 0):
        call.unsupported("attribute `swiglu_limit_after_activation` is 1", "onnxruntime has it on CUDA only")
    first = layers[0].product(x, chosen)
    if kind == "swiglu":
        return _swiglu(call, first, layers, x, chosen, fusion)
    if len(layers) > 2:
        call.unsupported(
            f"{call.described(layers[2].index)} is given with `activation_type` {kind!r}, for which onnxruntime does "
            "not say what it is",
            "write the model with 'swiglu'",
        )
    if kind == "gelu":
        return emit("Gelu", first, approximate="tanh")
    if kind in _ACTIVATIONS:
        return emit(_ACTIVATIONS[kind], first)
    if kind != "identity":
        known = ", ".join(sorted([*_ACTIVATIONS, "gelu", "identity", "swiglu"]))
        call.unsupported(f"attribute `activation_type` is {kind!r}", f"known ones are {known}")
    return first


def _swiglu(call: ContribCall, value: Output, layers: list[_Layer], x: Output, chosen: Output, fusion: int) -> Output:
    """`G sigmoid(alpha G) (L + beta)`, with both halves limited."""
    inner = layers[1].columns
    if not fusion:
        if len(layers) < 3:
            call.invalid("`swiglu_fusion` is 0 without fc3_experts_weights; expected it, or fused weights with 1 or 2")
        gate, linear = value, layers[2].product(x, chosen)
    elif len(layers) > 2:
        _refuse_third(call, layers[2], fusion)
    elif fusion == _INTERLEAVED:
        gate, linear = (
            emit("Slice", value, i64s([start]), i64s([2 * inner]), i64s([2]), i64s([2])) for start in (0, 1)
        )
    else:
        gate, linear = (emit("Slice", value, i64s([start]), i64s([start + inner]), i64s([2])) for start in (0, inner))
    if "swiglu_limit" in call.attributes:
        limit = call.number("swiglu_limit")
        if not limit >= 0:
            call.invalid(f"attribute `swiglu_limit` is {limit}; expected 0 or more")
        gate = emit("Clip", gate, None, scalar_like(limit, gate))
        linear = emit("Clip", linear, scalar_like(-limit, linear), scalar_like(limit, linear))
    beta = call.number("activation_beta", 0.0)
    if beta:
        linear = emit("Add", linear, scalar_like(beta, linear))
    return emit("Mul", emit("Swish", gate, alpha=call.number("activation_alpha", 1.0)), linear)


def _refuse_third(call: ContribCall, layer: _Layer, fusion: int) -> NoReturn:
    call.invalid(f"{call.described(layer.index)} is given with `swiglu_fusion` {fusion}; expected none, as it is fused")
