"""Gates of linear attention, and of what is added to it: LinearAttentionGate, GatedRMSNorm and GatedAdd.

The first two compute in f32, and round their results once.
"""

from __future__ import annotations

from typing import Final

from engine.ir import Output, f32
from engine.onnx.contrib.call import FLOATS, ContribCall, contrib
from engine.onnx.upgrades.emit import cast, emit, i64s, rank_of

_EPSILON: Final = 1e-5


@contrib("LinearAttentionGate", "a dt_bias decay_scale b?", outputs="decay beta")
def _gates(call: ContribCall) -> list[Output | None]:
    """How much of the state each token keeps, as a logarithm, and how much of the correction it writes."""
    a = call.typed(0, FLOATS)
    summands = [_per_head(call, index) for index in (1, 2)]
    if not call.has_input(3):
        if call.num_outputs > 1:
            call.invalid("input 3 (b) is missing; expected it, as output 1 (beta) is not omitted")
        return [_decay(a, *summands), None]
    b = call.real(3)
    _check_shape(call, 3)
    return [_decay(a, *summands), _narrowed(emit("Sigmoid", _widened(b)), b)]


def _decay(a: Output, bias: Output, scale: Output) -> Output:
    return _narrowed(emit("Mul", emit("Softplus", emit("Add", _widened(a), bias)), scale), a)


def _per_head(call: ContribCall, index: int) -> Output:
    """Input `index`, of f32, with a number for each position of the last axis of input 0."""
    given, shape = call.typed(index, {f32}), call.input(0).shape
    call.ranked(index, 1)
    if given.shape.is_static and shape.rank.is_static and not shape[-1].accepts(given.shape.size()):
        call.invalid(f"{call.described(index)} has shape {given.shape}; expected [{shape[-1]}], one for each head")
    return given


@contrib("GatedRMSNorm", "X scale gate", "activation epsilon", outputs="Y")
def _gated_norm(call: ContribCall) -> list[Output]:
    """Groups of the last axis, each as long as the scale, normalized, and multiplied with activated gates."""
    x, gate = call.typed(0, FLOATS), call.real(2)
    call.ranked(1, 1)
    size, width = call.length(1, 0), call.length(0, -1)
    activation = call.text("activation", "silu")
    if activation not in ("silu", "swish", "sigmoid"):
        call.invalid(f"attribute `activation` is {activation!r}; expected 'silu' or 'swish' or 'sigmoid'")
    if not size or width % size:
        call.invalid(f"{call.described(0)} has shape {x.shape}; expected rows of groups of {size}, as the scale has")
    _check_shape(call, 2)
    rank = rank_of(x)
    assert rank is not None  # as the length of an axis is known
    wide, by = _widened(x), _widened(gate)
    if size != width:
        wide = emit("Reshape", wide, i64s([*[0] * (rank - 1), width // size, size]))
    attributes = {"axis": -1, "epsilon": call.number("epsilon", _EPSILON)}
    y = emit("RMSNormalization", wide, _widened(call.real(1)), **attributes)
    if size != width:
        y = emit("Reshape", y, i64s([*[0] * (rank - 1), width]))
    return [_narrowed(emit("Mul", y, emit("Sigmoid" if activation == "sigmoid" else "Swish", by)), x)]


@contrib("GatedAdd", "X Y gate gate_weight?")
def _gated_add(call: ContribCall) -> list[Output]:
    """The second input, times a number for each row, is added to the first one."""
    call.without_inputs("gate_weight")
    x, y, gate = call.typed(0, FLOATS), call.real(1), call.real(2)
    _check_shape(call, 1)
    if x.shape.rank.is_static and gate.shape.rank.is_static:
        rows = zip(x.shape.dims[:-1], gate.shape.dims[:-1], strict=False)
        if len(gate.shape) != len(x.shape) or not all(a.compatible(b) for a, b in rows) or gate.shape[-1] != 1:
            call.invalid(f"{call.described(2)} has shape {gate.shape}; expected one number for each row of {x.shape}")
    return [emit("Add", x, emit("Mul", y, gate))]


def _check_shape(call: ContribCall, index: int) -> None:
    """Raise `ModelError` if input `index` is known to have another shape than input 0."""
    found, expected = call.input(index).shape, call.input(0).shape
    if not found.compatible(expected):
        call.invalid(f"{call.described(index)} has shape {found}; expected {expected}, as {call.described(0)} has")


def _widened(value: Output) -> Output:
    return value if value.element_type is f32 else cast(value, f32)


def _narrowed(value: Output, like: Output) -> Output:
    return value if like.element_type is f32 else emit("CastLike", value, like)
