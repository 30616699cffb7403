"""RNN, GRU and LSTM in full: directions, sequence lengths, activations, clipping, peepholes, layouts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from engine.errors import ModelError
from engine.ops.precision import widened
from engine.ops.registry import evaluates
from engine.ops.tensors import Array

Activation = Callable[[Array], Array]
Step = Callable[[Array, list[Array]], list[Array]]
"""New states, of which the first is the output, from one time step's input [B, I] and the old states [B, H]."""


def _sigmoid(x: Array) -> Array:
    return 0.5 * (1 + np.tanh(0.5 * x))


# What an activation computes from x, alpha and beta; and its defaults where the specification states them.
_ACTIVATIONS: Final[dict[str, tuple[Callable[[Array, float, float], Any], float | None, float | None]]] = {
    "sigmoid": (lambda x, a, b: _sigmoid(x), None, None),
    "tanh": (lambda x, a, b: np.tanh(x), None, None),
    "relu": (lambda x, a, b: np.maximum(x, 0), None, None),
    "affine": (lambda x, a, b: a * x + b, 1.0, 0.0),
    "leakyrelu": (lambda x, a, b: np.where(x < 0, a * x, x), 0.01, None),
    "thresholdedrelu": (lambda x, a, b: np.where(x > a, x, 0), 1.0, None),
    "scaledtanh": (lambda x, a, b: a * np.tanh(b * x), 1.0, 1.0),
    "hardsigmoid": (lambda x, a, b: np.clip(a * x + b, 0, 1), 0.2, 0.5),
    "elu": (lambda x, a, b: np.where(x < 0, a * np.expm1(np.minimum(x, 0)), x), 1.0, None),
    "softsign": (lambda x, a, b: x / (1 + np.abs(x)), None, None),
    "softplus": (lambda x, a, b: np.logaddexp(x, 0), None, None),
}


@dataclass(frozen=True, slots=True)
class _Recurrence:
    """What the three operators share: x as [S, B, I], one list of activations a direction, the attributes."""

    x: Array
    lengths: Array
    activations: list[list[Activation]]
    is_reversed: tuple[bool, ...]
    batch_first: bool
    dtype: np.dtype[Any]

    def initial(self, given: Array | None, hidden: int) -> Array:
        """An initial state as [directions, B, H]."""
        if given is None:
            return np.zeros((len(self.is_reversed), self.x.shape[1], hidden), dtype=self.x.dtype)
        return widened(np.swapaxes(given, 0, 1) if self.batch_first else given)

    def run(self, steps: Sequence[Step], states: Sequence[Array]) -> tuple[Array, ...]:
        """Y, and the last of each state, in the operator's layout; `states` are [directions, B, H]."""
        outputs, finals = [], []
        for direction, step in enumerate(steps):
            y, final = self._run_direction(step, [s[direction] for s in states], self.is_reversed[direction])
            outputs.append(y)
            finals.append(final)
        results = [np.stack(outputs, axis=1)]  # [S, directions, B, H]
        results += [np.stack([final[i] for final in finals]) for i in range(len(states))]
        if self.batch_first:
            results = [results[0].transpose(2, 0, 1, 3), *(r.swapaxes(0, 1) for r in results[1:])]
        return tuple(np.ascontiguousarray(r.astype(self.dtype, copy=False)) for r in results)

    def _run_direction(self, step: Step, states: list[Array], is_reversed: bool) -> tuple[Array, list[Array]]:
        length, batch = self.x.shape[:2]
        y = np.zeros((length, batch, states[0].shape[-1]), dtype=self.x.dtype)
        # A reversed sequence starts at its own end, so shorter ones of the batch wait until that comes.
        for t in reversed(range(length)) if is_reversed else range(length):
            is_inside = (t < self.lengths)[:, None]
            new = step(self.x[t], states)
            states = [np.where(is_inside, n, s) for n, s in zip(new, states, strict=True)]
            y[t] = np.where(is_inside, states[0], 0)
        return y, states


@evaluates("RNN")
def rnn(
    x: Array,
    w: Array,
    r: Array,
    b: Array | None = None,
    sequence_lens: Array | None = None,
    initial_h: Array | None = None,
    *,
    activations: Sequence[str] | None,
    activation_alpha: Sequence[float] | None,
    activation_beta: Sequence[float] | None,
    clip: float | None,
    direction: str,
    layout: int,
) -> tuple[Array, ...]:
    """A plain recurrent network (ONNX RNN-22): x [S, B, I], w [D, H, I], r [D, H, H], b [D, 2H]."""
    names = activations if activations != ("Tanh", "Tanh") else None
    recurrence = _prepare(
        x, sequence_lens, ("Tanh",), names, activation_alpha, activation_beta, clip, direction, layout
    )
    hidden = r.shape[-1]

    def make(w: Array, r: Array, bias: Array, f: Activation) -> Step:
        total = bias[:hidden] + bias[hidden:]
        return lambda x, states: [f(x @ w.T + states[0] @ r.T + total)]

    steps = [
        make(wd, rd, bd, *functions)
        for (wd, rd, bd), functions in zip(_weights(w, r, b, 2 * hidden), recurrence.activations, strict=True)
    ]
    return recurrence.run(steps, [recurrence.initial(initial_h, hidden)])


@evaluates("GRU")
def gru(
    x: Array,
    w: Array,
    r: Array,
    b: Array | None = None,
    sequence_lens: Array | None = None,
    initial_h: Array | None = None,
    *,
    activations: Sequence[str] | None,
    activation_alpha: Sequence[float] | None,
    activation_beta: Sequence[float] | None,
    clip: float | None,
    direction: str,
    layout: int,
    linear_before_reset: int,
) -> tuple[Array, ...]:
    """Gated recurrent units, gates in the order z, r, h (ONNX GRU-22): w [D, 3H, I], r [D, 3H, H], b [D, 6H]."""
    recurrence = _prepare(
        x, sequence_lens, ("Sigmoid", "Tanh"), activations, activation_alpha, activation_beta, clip, direction, layout
    )
    hidden = r.shape[-1]

    def make(w: Array, r: Array, bias: Array, f: Activation, g: Activation) -> Step:
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

    steps = [
        make(wd, rd, bd, *functions)
        for (wd, rd, bd), functions in zip(_weights(w, r, b, 6 * hidden), recurrence.activations, strict=True)
    ]
    return recurrence.run(steps, [recurrence.initial(initial_h, hidden)])


@evaluates("LSTM")
def lstm(
    x: Array,
    w: Array,
    r: Array,
    b: Array | None = None,
    sequence_lens: Array | None = None,
    initial_h: Array | None = None,
    initial_c: Array | None = None,
    p: Array | None = None,
    *,
    activations: Sequence[str] | None,
    activation_alpha: Sequence[float] | None,
    activation_beta: Sequence[float] | None,
    clip: float | None,
    direction: str,
    layout: int,
    input_forget: int,
) -> tuple[Array, ...]:
    """Long short-term memory, gates in the order i, o, f, c (ONNX LSTM-22): w [D, 4H, I], r [D, 4H, H], b [D, 8H],
    peepholes p [D, 3H] in the order i, o, f."""
    recurrence = _prepare(
        x, sequence_lens, ("Sigmoid", "Tanh", "Tanh"), activations, activation_alpha, activation_beta, clip,
        direction, layout,
    )  # fmt: skip
    hidden = r.shape[-1]
    peepholes = np.zeros((w.shape[0], 3 * hidden), dtype=recurrence.x.dtype) if p is None else widened(p)

    def make(w: Array, r: Array, bias: Array, p: Array, f: Activation, g: Activation, h: Activation) -> Step:
        total = bias[: 4 * hidden] + bias[4 * hidden :]
        p_i, p_o, p_f = p[:hidden], p[hidden : 2 * hidden], p[2 * hidden :]

        def step(x: Array, states: list[Array]) -> list[Array]:
            before, cell = states
            gates = x @ w.T + before @ r.T + total
            i, o, forget, c = (gates[:, k * hidden : (k + 1) * hidden] for k in range(4))
            i = f(i + p_i * cell)
            forget = 1 - i if input_forget else f(forget + p_f * cell)
            cell = forget * cell + i * g(c)
            return [f(o + p_o * cell) * h(cell), cell]

        return step

    steps = [
        make(wd, rd, bd, pd, *functions)
        for (wd, rd, bd), pd, functions in zip(
            _weights(w, r, b, 8 * hidden), peepholes, recurrence.activations, strict=True
        )
    ]
    return recurrence.run(steps, [recurrence.initial(initial_h, hidden), recurrence.initial(initial_c, hidden)])


def _prepare(
    x: Array,
    sequence_lens: Array | None,
    defaults: tuple[str, ...],
    names: Sequence[str] | None,
    alphas: Sequence[float] | None,
    betas: Sequence[float] | None,
    clip: float | None,
    direction: str,
    layout: int,
) -> _Recurrence:
    directions = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}.get(direction)
    if directions is None:
        raise ModelError(f"direction {direction!r} must be forward, reverse or bidirectional")
    chosen = list(names) if names else list(defaults) * len(directions)
    if len(chosen) != len(defaults) * len(directions):
        raise ModelError(f"activations {chosen} must be {len(defaults)} a direction, {len(directions)} directions")
    alpha, beta = iter(alphas or ()), iter(betas or ())
    # The cell passes its last function unclipped, in onnxruntime and OpenVINO alike: h of LSTM, the third.
    clips = [None if position % len(defaults) == 2 else clip for position in range(len(chosen))]
    functions = [_activation(name, alpha, beta, limit) for name, limit in zip(chosen, clips, strict=True)]
    data = widened(np.swapaxes(x, 0, 1) if layout else x)
    lengths = np.full(data.shape[1], data.shape[0]) if sequence_lens is None else sequence_lens
    grouped = [functions[i : i + len(defaults)] for i in range(0, len(functions), len(defaults))]
    return _Recurrence(data, lengths, grouped, directions, bool(layout), x.dtype)


def _activation(name: str, alphas: Iterator[float], betas: Iterator[float], clip: float | None) -> Activation:
    """The function of that name; alpha and beta are consumed by those functions that have them, in order."""
    found = _ACTIVATIONS.get(name.lower())
    if found is None:
        raise ModelError(f"activation {name!r} is unknown; known: {', '.join(sorted(_ACTIVATIONS))}")
    function, alpha, beta = found
    a = 0.0 if alpha is None else next(alphas, alpha)
    b = 0.0 if beta is None else next(betas, beta)
    if not clip:
        return lambda x: function(x, a, b)
    return lambda x: function(np.clip(x, -clip, clip), a, b)


def _weights(w: Array, r: Array, b: Array | None, size: int) -> Iterator[tuple[Array, Array, Array]]:
    for direction in range(w.shape[0]):
        bias = np.zeros(size, dtype=widened(w).dtype) if b is None else widened(b[direction])
        yield widened(w[direction]), widened(r[direction]), bias
