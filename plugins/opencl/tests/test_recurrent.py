"""RNN, GRU and LSTM: all steps in one work group, and a launch for each step, by the kernels of CPUs and of GPUs.

If a case fails here, recurrent networks give wrong answers on devices that choose or measure this way to be the faster.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from engine_opencl.compiler import build_plan
from engine_opencl.devices.device import DeviceFacts, device_of
from engine_opencl.lowering import recurrent
from engine_opencl.transform import prepare_model

from engine import Core, ops
from engine.ir import Constant, Model, Node, Output, Parameter, f32, i32

STEPS, BATCH, INPUTS, HIDDEN = 6, 5, 3, 20  # neither sequences nor units fill their last item
LAYERS: dict[str, dict[str, Any]] = {
    "LSTM": {"direction": "bidirectional", "input_forget": 0},
    "LSTM of lengths": {"direction": "reverse", "clip": 0.5},
    "LSTM without forgetting": {"direction": "forward", "input_forget": 1, "layout": 1},
    "GRU": {"direction": "bidirectional", "linear_before_reset": 0},
    "GRU reset after": {"direction": "forward", "linear_before_reset": 1},
    "RNN": {"direction": "bidirectional", "activations": ["Softsign", "Relu"]},
}
GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
GPU = DeviceFacts("a GPU", "1.0", "gpu", False, 64, 1024, 48 << 10, 2**32, 2**34, 132)
CPU = replace(GPU, kind="cpu", compute_units=2, vector_width=8)


def layer(name: str, *, is_constant: bool) -> tuple[Model, list[np.ndarray]]:
    """A recurrent layer with everything that it can be given, and its inputs."""
    op, attributes = name.partition(" ")[0], LAYERS[name]
    directions = 2 if attributes["direction"] == "bidirectional" else 1
    generator = np.random.default_rng(len(name))
    is_batch_first = attributes.get("layout")
    given: list[np.ndarray] = []
    parameters: list[Node] = []

    def operand(*shape: int, is_input: bool = True) -> Output:
        data = generator.standard_normal(shape, np.float32) / 4
        if not is_input:
            return Constant(data).output(0)
        given.append(data)
        parameters.append(Parameter(f32, shape))
        return parameters[-1].output(0)

    x = operand(*((BATCH, STEPS) if is_batch_first else (STEPS, BATCH)), INPUTS)
    rows, state = GATES[op] * HIDDEN, (BATCH, directions) if is_batch_first else (directions, BATCH)
    inputs: list[Output | None] = [
        x,
        operand(directions, rows, INPUTS, is_input=False),
        operand(directions, rows, HIDDEN, is_input=not is_constant),
        operand(directions, 2 * rows, is_input=False),
        None,
        operand(*state, HIDDEN),
    ]
    if "lengths" in name:
        parameters.append(Parameter(i32, [BATCH]))
        given.append(np.array([6, 1, 4, 6, 2], np.int32))
        inputs[4] = parameters[-1].output(0)
    if op == "LSTM":
        inputs += [operand(*state, HIDDEN), operand(directions, 3 * HIDDEN, is_input=False)]
    node = getattr(ops, op)(*inputs, hidden_size=HIDDEN, num_outputs=3 if op == "LSTM" else 2, **attributes)
    return Model(node.outputs, parameters), given


@pytest.mark.parametrize("kind", ["cpu", "gpu"])
@pytest.mark.parametrize("is_sequence", [True, False], ids=["sequence", "steps"])
@pytest.mark.parametrize("name", LAYERS)
def test_a_layer(name: str, is_sequence: bool, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The CPU device is the oracle. States are below 1, and a step adds 20 products: errors stay near its rounding."""
    device, all_candidates = device_of("0"), recurrent._candidates
    monkeypatch.setattr(device, "facts", replace(device.facts, kind=kind))
    monkeypatch.setattr(
        recurrent,
        "_candidates",
        lambda *args: sorted(all_candidates(*args), key=lambda c: bool(c.group) != is_sequence),
    )
    for is_constant in (True, False):
        model, inputs = layer(name, is_constant=is_constant)
        core = Core()
        expected = core.compile_model(model, "CPU")(inputs)
        found = core.compile_model(model, "OPENCL", {"KERNEL_TRIAL_SECONDS": 0})(inputs)
        for one, other in zip(found.values(), expected.values(), strict=True):
            np.testing.assert_allclose(one, other, rtol=0, atol=2e-6)


@pytest.mark.parametrize(
    "activation",
    ["Affine", "Elu", "HardSigmoid", "LeakyRelu", "Relu", "ScaledTanh", "Sigmoid", "Softplus", "Softsign", "Tanh",
     "ThresholdedRelu"],
)  # fmt: skip
def test_every_activation(activation: str) -> None:
    """The default parameters; several units in a vector."""
    generator = np.random.default_rng(len(activation))
    x = Parameter(f32, [STEPS, BATCH, INPUTS])
    weights = [Constant(generator.standard_normal((1, 16, size), np.float32) / 4) for size in (INPUTS, 16)]
    model = Model(ops.RNN(x, *weights, hidden_size=16, activations=[activation], num_outputs=1).outputs, [x])
    given = generator.standard_normal((STEPS, BATCH, INPUTS), np.float32)
    (expected,) = Core().compile_model(model, "CPU")([given]).values()
    (found,) = Core().compile_model(model, "OPENCL", {"KERNEL_TRIAL_SECONDS": 0})([given]).values()
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize(
    ("facts", "hidden", "batch", "is_sequence"),
    [
        (CPU, 256, 1, True),  # 1 MiB of weights
        (CPU, 1024, 1, False),
        (CPU, 1024, 64, True),  # enough sequences for all cores
        (GPU, 256, 1, True),
        (GPU, 1024, 1, False),
        (GPU, 1024, 64, False),
    ],
)
def test_one_launch_for_all_steps_where_one_work_group_is_as_fast(
    facts: DeviceFacts, hidden: int, batch: int, is_sequence: bool
) -> None:
    """A step of larger weights is faster by all compute units, unless all of them have a sequence of their own."""
    x = Parameter(f32, [STEPS, batch, 8])
    weights = [Constant(np.ones((1, 4 * hidden, length), np.float32)) for length in (8, hidden)]
    node = ops.LSTM(x, *weights, hidden_size=hidden, num_outputs=1)
    launches = build_plan(prepare_model(Model([node.output(0)], [x]), facts), facts).launches
    names = [launch.kernel for launch in launches if launch.kernel.startswith("recurrent")]
    assert names == (["recurrent_sequence"] if is_sequence else ["recurrent_step"] * STEPS)
