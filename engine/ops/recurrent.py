"""RNN, GRU and LSTM: their spec and evaluation; ONNX infers their types.

The evaluation supports directions, lengths of sequences, activations, clipping, peepholes and layouts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import numpy as np

from engine.errors import OperatorSpecError
from engine.ir import Node, Output, PartialShape, TensorType, ValueType, as_dimension
from engine.ops.axes import Axes, maps_axes
from engine.ops.cost import CALL, lengths_of, more_time, operations, size_of
from engine.ops.precision import widened
from engine.ops.registry import attribute, get_op, infers
from engine.ops.rules import check_inputs, tensor_type
from engine.ops.spec import OperatorSpec, check_choice, check_rank, evaluates_with_spec, refuse, specifies
from engine.ops.suspect_values import Suspicion, given, is_outside, suspects
from engine.ops.tensors import Array
from engine.ops.traits import declare
from engine.startup import dataclass

_RANKS: Final = (3, 3, 3, 2, 1, 3, 3, 2)
"""The ranks of X, W, R, B, sequence_lens, initial_h, initial_c and P."""
_GATES: Final = {"RNN": ("i",), "GRU": ("z", "r", "h"), "LSTM": ("i", "o", "f", "c")}
_DEFAULTS: Final = {"RNN": ("tanh",), "GRU": ("sigmoid", "tanh"), "LSTM": ("sigmoid", "tanh", "tanh")}
_DIRECTIONS: Final = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}
# The defaults of alpha and beta; None if the activation does not have the parameter.
_PARAMETERS: Final[dict[str, tuple[float | None, float | None]]] = {
    "sigmoid": (None, None),
    "tanh": (None, None),
    "relu": (None, None),
    "affine": (1.0, 0.0),
    "leakyrelu": (0.01, None),
    "thresholdedrelu": (1.0, None),
    "scaledtanh": (1.0, 1.0),
    "hardsigmoid": (0.2, 0.5),
    "elu": (1.0, None),
    "softsign": (None, None),
    "softplus": (None, None),
}


@dataclass(frozen=True, slots=True)
class RecurrentActivation:
    """An activation of a recurrent layer.

    Attributes:
        name: its name in ONNX, in lower case.
        alpha: its first parameter; 0 if it has none.
        beta: its second parameter; 0 if it has none.
        clip: its input is limited to -clip..clip; None if it is not limited.
    """

    name: str
    alpha: float = 0.0
    beta: float = 0.0
    clip: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RecurrentLengths:
    """The lengths of a recurrent layer; `batch_first` is its layout."""

    steps: int
    batch: int
    inputs: int
    directions: int
    gates: int
    hidden: int
    batch_first: bool

    @property
    def state_strides(self) -> tuple[int, int, int]:
        """The strides along direction, batch and unit of a state in the operator's inputs and outputs."""
        if self.batch_first:
            return self.hidden, self.directions * self.hidden, 1
        return self.batch * self.hidden, self.hidden, 1


declare("GRU", "LSTM", "RNN", accumulates=True, addresses=4)


@specifies("RNN", "GRU", "LSTM")
@dataclass(frozen=True, slots=True, kw_only=True)
class RecurrentSpec(OperatorSpec):
    """The attributes of RNN, GRU and LSTM.

    Attributes:
        activation_alpha: as in the model; `activations` assigns each value to its activation.
        activation_beta: as in the model; `activations` assigns each value to its activation.
        activations: for each direction, f of RNN; f and g of GRU; f, g and h of LSTM.
        clip: the limit of the activations' inputs; None if they are not limited.
        input_forget: for LSTM, whether the forget gate is 1 - i.
        layout: 0 for X [S, B, I] and states [D, B, H], 1 for X [B, S, I] and states [B, D, H].
        linear_before_reset: for GRU, whether the reset gate is applied after the product with R.
    """

    activation_alpha: tuple[float, ...]
    activation_beta: tuple[float, ...]
    activations: tuple[tuple[RecurrentActivation, ...], ...]
    clip: float | None
    direction: str
    hidden_size: int | None
    input_forget: bool = False
    layout: int
    linear_before_reset: bool = False

    @classmethod
    def resolve(cls, node: Node, given: dict[str, Any]) -> None:
        for index, rank in enumerate(_RANKS):
            check_rank(node, index, rank)
        check_choice(node, "direction", given["direction"], _DIRECTIONS)
        if given["layout"] not in (0, 1):
            refuse(node, "layout", given["layout"], "0 or 1")
        for name, least in (("clip", 0), ("hidden_size", 1)):
            if given[name] is not None and not given[name] >= least:
                refuse(node, name, given[name], f"{least} or more")
        given["clip"] = given["clip"] or None
        for name in ("activation_alpha", "activation_beta"):
            given[name] = tuple(map(float, given[name] or ()))
        given["activations"] = _activations(node, given)

    @property
    def gates(self) -> tuple[str, ...]:
        """The gates in the order of W, R and B."""
        return _GATES[self.op_type]

    @property
    def is_reversed(self) -> tuple[bool, ...]:
        """For each direction, whether it processes the steps from the last to the first."""
        return _DIRECTIONS[self.direction]

    @property
    def batch_first(self) -> bool:
        """Whether the batch is the first axis of X, Y and the states."""
        return self.layout == 1

    @property
    def x(self) -> Output:
        """The steps: [S, B, I], or [B, S, I] if the batch is first."""
        return self.node.input_value(0)

    @property
    def w(self) -> Output:
        """The weights of the inputs: [D, gates * H, I]."""
        return self.node.input_value(1)

    @property
    def r(self) -> Output:
        """The recurrent weights: [D, gates * H, H]."""
        return self.node.input_value(2)

    @property
    def b(self) -> Output | None:
        """The biases of W, then the biases of R: [D, 2 * gates * H]."""
        return self.input(3)

    @property
    def sequence_lens(self) -> Output | None:
        """The number of steps of each batch: [B]."""
        return self.input(4)

    @property
    def initial_h(self) -> Output | None:
        """The hidden state before the first step; None if omitted, which means zeros."""
        return self.input(5)

    @property
    def initial_c(self) -> Output | None:
        """The initial cell state of LSTM."""
        return self.input(6)

    @property
    def p(self) -> Output | None:
        """The peepholes of LSTM, in the order i, o, f: [D, 3 * H]."""
        return self.input(7)

    def at(self, shapes: Sequence[Sequence[int] | None]) -> RecurrentLengths:
        """The lengths for these input shapes. Raises `OperatorSpecError` if the shapes do not fit."""
        x, w, r = (tuple(shape or ()) for shape in shapes[:3])
        directions, gates, inputs, hidden = len(self.is_reversed), len(self.gates), x[2], r[2]
        expected = (directions, gates * hidden, inputs), (directions, gates * hidden, hidden)
        if (w, r) != expected or self.hidden_size not in (None, hidden):
            raise OperatorSpecError(
                f"{self.node}: W and R have shapes {w} and {r}; allowed with X {x}, hidden_size {self.hidden_size} and "
                f"direction {self.direction}: [{directions}, {gates} * H, {inputs}] and [{directions}, {gates} * H, H]"
            )
        steps, batch = (x[1], x[0]) if self.batch_first else x[:2]
        return RecurrentLengths(
            steps=steps, batch=batch, inputs=inputs, directions=directions, gates=gates, hidden=hidden,
            batch_first=self.batch_first,
        )  # fmt: skip


@infers("RNN", "GRU", "LSTM")
def _infer_recurrent(node: Node) -> Sequence[ValueType]:
    """ONNX takes the length of the states from hidden_size only, which may be omitted: R also has it."""
    check_inputs(node, get_op(node.op_type))
    spec, x, r = RecurrentSpec.of(node), tensor_type(node, 0), tensor_type(node, 2).shape
    unknown = as_dimension(None)
    steps, batch = (x.shape[0], x.shape[1]) if x.shape.rank.is_static else (unknown, unknown)
    hidden = as_dimension(spec.hidden_size) if spec.hidden_size is not None else unknown
    if r.rank.is_static:
        hidden = hidden.merge(r[2]) if hidden.compatible(r[2]) else hidden  # `compares` reports the contradiction
    directions = as_dimension(len(spec.is_reversed))
    y, state = [steps, directions, batch, hidden], [directions, batch, hidden]
    if spec.batch_first:  # `steps` is the batch then, and the other way round
        y, state = [steps, batch, directions, hidden], [steps, directions, hidden]
    shapes = [y, state, state][: node.num_outputs]
    return [TensorType(x.element_type, PartialShape(shape)) for shape in shapes]


def _activations(node: Node, given: dict[str, Any]) -> tuple[tuple[RecurrentActivation, ...], ...]:
    defaults, directions = _DEFAULTS[node.op_type], len(_DIRECTIONS[given["direction"]])
    stated = given["activations"]
    if not stated or (node.op_type == "RNN" and stated == ("Tanh", "Tanh")):
        stated = defaults * directions  # the schema's default for RNN is for two directions
    unknown = [name for name in stated if not isinstance(name, str) or name.lower() not in _PARAMETERS]
    if unknown:
        refuse(node, "activations", stated, f"{', '.join(_PARAMETERS)}, in any case")
    if len(stated) != len(defaults) * directions:
        refuse(node, "activations", stated, f"{len(defaults)} for each of {directions} directions")
    # The activations that have parameters take them in order.
    alphas, betas = iter(given["activation_alpha"]), iter(given["activation_beta"])
    found = []
    for position, name in enumerate(stated):
        alpha, beta = _PARAMETERS[name.lower()]
        # The input of LSTM's activation h is not clipped, as in onnxruntime and OpenVINO.
        clip = None if position % len(defaults) == 2 else given["clip"]
        alpha = 0.0 if alpha is None else next(alphas, alpha)
        beta = 0.0 if beta is None else next(betas, beta)
        found.append(RecurrentActivation(name.lower(), alpha, beta, clip))
    return tuple(tuple(found[i : i + len(defaults)]) for i in range(0, len(found), len(defaults)))


# -- evaluation -------------------------------------------------------------------------------------------

Function = Callable[[Array], Array]
TimeStep = Callable[[Array, list[Array]], list[Array]]
"""Computes the new states, the first of which is the output, from a time step's input [B, I] and the states [B, H]."""


def _sigmoid(x: Array) -> Array:
    # exp of -|x| neither overflows nor cancels: a gate that is nearly closed is also exact to the last bits.
    small = np.exp(-np.abs(x))
    result: Array = np.where(x < 0, small, 1) / (1 + small)
    return result


_FUNCTIONS: Final[dict[str, Callable[[Array, float, float], Any]]] = {
    "sigmoid": lambda x, a, b: _sigmoid(x),
    "tanh": lambda x, a, b: np.tanh(x),
    "relu": lambda x, a, b: np.maximum(x, 0),
    "affine": lambda x, a, b: a * x + b,
    "leakyrelu": lambda x, a, b: np.where(x < 0, a * x, x),
    "thresholdedrelu": lambda x, a, b: np.where(x > a, x, 0),
    "scaledtanh": lambda x, a, b: a * np.tanh(b * x),
    "hardsigmoid": lambda x, a, b: np.clip(a * x + b, 0, 1),
    "elu": lambda x, a, b: np.where(x < 0, a * np.expm1(np.minimum(x, 0)), x),
    "softsign": lambda x, a, b: x / (1 + np.abs(x)),
    "softplus": lambda x, a, b: np.logaddexp(x, 0),
}


@evaluates_with_spec("RNN")
def rnn(
    spec: RecurrentSpec,
    x: Array,
    w: Array,
    r: Array,
    b: Array | None = None,
    sequence_lens: Array | None = None,
    initial_h: Array | None = None,
) -> tuple[Array, ...]:
    """A plain recurrent network (ONNX RNN-22)."""
    layer = _Layer.of(spec, x, w, r, sequence_lens)
    hidden = layer.lengths.hidden

    def make(w: Array, r: Array, bias: Array, f: Function) -> TimeStep:
        total = bias[:hidden] + bias[hidden:]
        return lambda x, states: [f(x @ w.T + states[0] @ r.T + total)]

    return layer.run(make, (w, r, b), [initial_h])


@evaluates_with_spec("GRU")
def gru(
    spec: RecurrentSpec,
    x: Array,
    w: Array,
    r: Array,
    b: Array | None = None,
    sequence_lens: Array | None = None,
    initial_h: Array | None = None,
) -> tuple[Array, ...]:
    """Run a layer of gated recurrent units, in one or both directions (ONNX GRU-22)."""
    layer = _Layer.of(spec, x, w, r, sequence_lens)
    hidden, linear_before_reset = layer.lengths.hidden, spec.linear_before_reset

    def make(w: Array, r: Array, bias: Array, f: Function, g: Function) -> TimeStep:
        input_bias, recurrent_bias = bias[: 3 * hidden], bias[3 * hidden :]
        gates = 2 * hidden

        def step(x: Array, states: list[Array]) -> list[Array]:
            (h,) = states
            given = x @ w.T + input_bias
            zr = f(given[:, :gates] + h @ r[:gates].T + recurrent_bias[:gates])
            z, reset = zr[:, :hidden], zr[:, hidden:]
            if linear_before_reset:
                candidate = g(given[:, gates:] + reset * (h @ r[gates:].T + recurrent_bias[gates:]))
            else:
                candidate = g(given[:, gates:] + (reset * h) @ r[gates:].T + recurrent_bias[gates:])
            return [(1 - z) * candidate + z * h]

        return step

    return layer.run(make, (w, r, b), [initial_h])


@evaluates_with_spec("LSTM")
def lstm(
    spec: RecurrentSpec,
    x: Array,
    w: Array,
    r: Array,
    b: Array | None = None,
    sequence_lens: Array | None = None,
    initial_h: Array | None = None,
    initial_c: Array | None = None,
    p: Array | None = None,
) -> tuple[Array, ...]:
    """Run a layer of long short-term memory, in one or both directions (ONNX LSTM-22)."""
    layer = _Layer.of(spec, x, w, r, sequence_lens)
    hidden, input_forget = layer.lengths.hidden, spec.input_forget
    peepholes = iter(np.zeros((w.shape[0], 3 * hidden), dtype=layer.x.dtype) if p is None else widened(p))

    def make(w: Array, r: Array, bias: Array, f: Function, g: Function, h: Function) -> TimeStep:
        total = bias[: 4 * hidden] + bias[4 * hidden :]
        p_i, p_o, p_f = next(peepholes).reshape(3, hidden)

        def step(x: Array, states: list[Array]) -> list[Array]:
            before, cell = states
            gates = x @ w.T + before @ r.T + total
            i, o, forget, c = (gates[:, k * hidden : (k + 1) * hidden] for k in range(4))
            i = f(i + p_i * cell)
            forget = 1 - i if input_forget else f(forget + p_f * cell)
            cell = forget * cell + i * g(c)
            return [f(o + p_o * cell) * h(cell), cell]

        return step

    return layer.run(make, (w, r, b), [initial_h, initial_c])


@dataclass(frozen=True, slots=True)
class _Layer:
    """The common part of the three operators: x as [S, B, I], and the number of steps of each batch."""

    spec: RecurrentSpec
    lengths: RecurrentLengths
    x: Array
    counts: Array
    dtype: np.dtype[Any]

    @classmethod
    def of(cls, spec: RecurrentSpec, x: Array, w: Array, r: Array, sequence_lens: Array | None) -> _Layer:
        lengths = spec.at([x.shape, w.shape, r.shape])
        counts = np.full(lengths.batch, lengths.steps) if sequence_lens is None else sequence_lens
        return cls(spec, lengths, widened(np.swapaxes(x, 0, 1) if spec.batch_first else x), counts, x.dtype)

    def run(
        self, make: Callable[..., TimeStep], weights: tuple[Array, Array, Array | None], given: Sequence[Array | None]
    ) -> tuple[Array, ...]:
        """Y and the final states, in the operator's layout; `given` are the initial states."""
        states = [self._initial(each) for each in given]
        outputs, finals = [], []
        for direction, (w, r, bias) in enumerate(self._weights(*weights)):
            step = make(w, r, bias, *map(_function, self.spec.activations[direction]))
            is_reversed = self.spec.is_reversed[direction]
            y, final = self._run_direction(step, [state[direction] for state in states], is_reversed)
            outputs.append(y)
            finals.append(final)
        results = [np.stack(outputs, axis=1)]  # [S, directions, B, H]
        results += [np.stack([final[i] for final in finals]) for i in range(len(states))]
        if self.spec.batch_first:
            results = [results[0].transpose(2, 0, 1, 3), *(result.swapaxes(0, 1) for result in results[1:])]
        return tuple(np.ascontiguousarray(result.astype(self.dtype, copy=False)) for result in results)

    def _initial(self, given: Array | None) -> Array:
        """An initial state as [directions, B, H]."""
        if given is None:
            lengths = self.lengths
            return np.zeros((lengths.directions, lengths.batch, lengths.hidden), dtype=self.x.dtype)
        return widened(np.swapaxes(given, 0, 1) if self.spec.batch_first else given)

    def _weights(self, w: Array, r: Array, b: Array | None) -> Iterator[tuple[Array, Array, Array]]:
        for direction in range(self.lengths.directions):
            size = 2 * self.lengths.gates * self.lengths.hidden
            bias = np.zeros(size, dtype=widened(w).dtype) if b is None else widened(b[direction])
            yield widened(w[direction]), widened(r[direction]), bias

    def _run_direction(self, step: TimeStep, states: list[Array], is_reversed: bool) -> tuple[Array, list[Array]]:
        length, batch = self.x.shape[:2]
        y = np.zeros((length, batch, states[0].shape[-1]), dtype=self.x.dtype)
        # A reversed sequence starts at its own end, so shorter ones of the batch start later.
        for t in reversed(range(length)) if is_reversed else range(length):
            is_inside = (t < self.counts)[:, None]
            new = step(self.x[t], states)
            states = [np.where(is_inside, n, s) for n, s in zip(new, states, strict=True)]
            y[t] = np.where(is_inside, states[0], 0)
        return y, states


def _function(activation: RecurrentActivation) -> Function:
    function, a, b, clip = _FUNCTIONS[activation.name], activation.alpha, activation.beta, activation.clip
    if clip is None:
        return lambda x: function(x, a, b)
    return lambda x: function(np.clip(x, -clip, clip), a, b)


# -- cost -------------------------------------------------------------------------------------------------


@operations("GRU", "LSTM", "RNN")
def _operations(node: Node) -> float:
    """X: [S, B, I] or [B, S, I], W: [directions, gates * H, I], R: [directions, gates * H, H]."""
    steps = math.prod(lengths_of(node.input_value(0))[:2])
    return 2.0 * steps * (size_of(node.input_value(1)) + size_of(node.input_value(2)))


@more_time("GRU", "LSTM", "RNN")
def _time(node: Node) -> float:
    """The products, and some calls for each time step."""
    lengths, directions = lengths_of(node.input_value(0)), sum(lengths_of(node.input_value(1))[:1])
    steps = sum(lengths[1:2] if node.attributes.get("layout") else lengths[:1])
    return _operations(node) / 2 + 4 * CALL * directions * steps


_INPUTS: Final = {
    "RNN": "D H I, D H H, D 2*H, B",
    "GRU": "D 3*H I, D 3*H H, D 6*H, B",
    "LSTM": "D 4*H I, D 4*H H, D 8*H, B",
}
"""The axes of weights and biases, and of the lengths of sequences."""


@maps_axes(*_INPUTS)
def _axes(node: Node) -> Axes:
    """Steps depend on each other, and one of two directions begins at the end."""
    if node.attributes.get("layout"):
        return f"B S I, {_INPUTS[node.op_type]}, B D H, B D H, D 3*H -> B S' D' H', B D' H', B D' H'"
    return f"S B I, {_INPUTS[node.op_type]}, D B H, D B H, D 3*H -> S' D' B H', D' B H', D' B H'"


@suspects("GRU", "LSTM", "RNN")
def _suspicion_of_lengths(node: Node) -> Suspicion:
    axis = 1 if attribute(node, "layout") else 0

    def is_suspect(inputs: Sequence[Any]) -> bool:
        counts = given(inputs, 4)
        return counts is not None and is_outside(counts, 0, inputs[0].shape[axis])

    return is_suspect
