"""Cases of RNN, GRU and LSTM: directions, layouts, optional inputs, attributes."""

from __future__ import annotations

from typing import Any, Final

from engine.ir.element_type import i32
from engine.ops.cases.case import OperatorCase, case
from engine.ops.cases.data import Data, constant, filled, real

_GATES: Final = {"RNN": 1, "GRU": 3, "LSTM": 4}
_STEPS, _BATCH, _INPUTS = 7, 3, 10
_ATTRIBUTES: Final[list[tuple[str, str, dict[str, Any]]]] = [
    ("LSTM", "clip", {"clip": 0.4}),
    ("LSTM", "input-forget", {"input_forget": 1}),
    ("LSTM", "activations-in-any-case", {"direction": "bidirectional", "activations": ["sigmoid", "TANH", "Tanh"] * 2}),
    ("GRU", "linear-before-reset", {"linear_before_reset": 1}),
    ("GRU", "all", {"linear_before_reset": 1, "clip": 0.3, "direction": "bidirectional", "layout": 1}),
    ("GRU", "clip", {"clip": 0.3}),
    ("RNN", "Relu-reverse", {"activations": ["Relu"], "direction": "reverse"}),
    ("RNN", "Sigmoid", {"activations": ["Sigmoid", "Sigmoid"], "direction": "bidirectional", "clip": 0.2}),
    ("RNN", "Relu-clip", {"activations": ["Relu"], "clip": 0.1}),
]


def _layer(what: str, hidden: int, *, full: bool, **attributes: Any) -> OperatorCase:
    """A case, with all optional inputs if `full`. The weights shrink the states in each step, so errors do not grow."""
    op_type = what.partition("/")[0]
    directions = 2 if attributes.get("direction") == "bidirectional" else 1
    gates, is_batch_first = _GATES[op_type], bool(attributes.get("layout"))
    state = (_BATCH, directions, hidden) if is_batch_first else (directions, _BATCH, hidden)
    inward, around = 1 / _INPUTS, 1 / hidden
    inputs: list[Data | None] = [
        real(*((_BATCH, _STEPS) if is_batch_first else (_STEPS, _BATCH)), _INPUTS),
        constant(real(directions, gates * hidden, _INPUTS, low=-inward, high=inward)),
        constant(real(directions, gates * hidden, hidden, low=-around, high=around)),
    ]
    if full:
        inputs += [constant(real(directions, 2 * gates * hidden)), filled((_BATCH,), (_STEPS, 0, 3), i32), real(*state)]
    if full and op_type == "LSTM":
        inputs += [real(*state), constant(real(directions, 3 * hidden))]
    return case(
        what, inputs, {"hidden_size": hidden, **attributes}, num_outputs=3 if op_type == "LSTM" else 2,
        terms=4 * (_INPUTS + hidden), factors=(),
    )  # fmt: skip


CASES: Final = [
    *(
        _layer(f"{op_type}/{direction}-layout={layout}-{hidden}{'-full' if full else ''}", hidden, full=full,
               direction=direction, layout=layout)
        for op_type in _GATES
        for direction in ("forward", "reverse", "bidirectional")
        for layout in (0, 1)
        for hidden, full in ((16, False), (21, True))
    ),
    *(
        _layer(f"{op_type}/{what}{'-full' if full else ''}", 18, full=full, **attributes)
        for op_type, what, attributes in _ATTRIBUTES
        for full in (False, True)
    ),
    *(_layer(f"{op_type}/many-units", 200, full=True) for op_type in _GATES),
]  # fmt: skip
