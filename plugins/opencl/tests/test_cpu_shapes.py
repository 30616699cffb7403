"""Shapes of products and convolutions on CPUs: all compute the same, and what was chosen travels with a network.

If this fails, `COMPILE_EFFORT` makes some layer of a user's network wrong on CPUs, is without effect there, or an
exported network is measured again, or believed, wherever it is taken.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from engine_opencl.devices.device import device_of
from engine_opencl.lowering.conv import block_convolution
from engine_opencl.lowering.conv.winograd import Winograd
from engine_opencl.lowering.matmul import block_shapes, blocks
from engine_opencl.lowering.matmul.block_product import BlockProduct
from engine_opencl.lowering.matmul.block_shapes import Block, block_of, blocks_of
from engine_opencl.lowering.matmul.packing import Matrices
from engine_opencl.lowering.matmul.product import Epilogue
from engine_opencl.plan import Buffer, Launch
from engine_opencl.tuning.stopwatch import Stopwatch
from numpy.typing import NDArray

from engine import Core, ops
from engine.blob import BlobReader, BlobWriter
from engine.ir import Constant, Model, Node, Parameter, Result, f32
from engine.lowering.tuning import write_choices
from engine.plugin_api import ExecutableNetwork


@pytest.fixture(autouse=True)
def cpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A device of another kind poses as a CPU; small layers have choices, too, and nothing was measured before."""
    device = device_of("0")
    monkeypatch.setattr(device, "facts", replace(device.facts, kind="cpu"))
    monkeypatch.setattr(block_shapes, "_MIN_WORK", 0)
    monkeypatch.setattr(block_convolution, "_MIN_CHANNELS", 1)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def values_of(*shapes: Sequence[int]) -> list[NDArray[np.float32]]:
    random = np.random.default_rng(0)
    return [random.standard_normal(shape, np.float32) for shape in shapes]


def product(m: int, k: int, n: int, constant: str = "") -> tuple[Model, list[NDArray[np.float32]]]:
    values = values_of((m, k), (k, n))
    given = [Parameter(f32, value.shape) for value in values]
    factors: list[Any] = [
        Constant(v) if name in constant else g for name, v, g in zip("AB", values, given, strict=True)
    ]
    free = [number for number, name in enumerate("AB") if name not in constant]
    model = Model([Result(ops.Relu(ops.create("MatMul", factors, {})))], [given[i] for i in free], name="product")
    return model, [values[i] for i in free]


def convolution(
    x: Sequence[int], w: Sequence[int], op: str = "Conv", **attributes: Any
) -> tuple[Model, list[NDArray[np.float32]]]:
    data, weights = values_of(x, w)
    bias = values_of((w[0] if op == "Conv" else w[1],))[0]
    given = Parameter(f32, x)
    node: Node = ops.Relu(ops.create(op, [given, Constant(weights), Constant(bias)], attributes))
    return Model([Result(node)], [given], name="convolution"), [data]


CASES: dict[str, Callable[[], tuple[Model, list[NDArray[np.float32]]]]] = {
    "both factors given": lambda: product(37, 300, 100),
    "the right one constant": lambda: product(20, 70, 75, "B"),
    "the left one constant": lambda: product(21, 70, 75, "A"),
    "3x3": lambda: convolution((2, 5, 11, 13), (19, 5, 3, 3), pads=[1, 1, 1, 1]),
    "strides": lambda: convolution((1, 40, 21, 23), (9, 40, 1, 1), strides=[2, 2]),
    "groups": lambda: convolution((1, 12, 9, 20), (18, 4, 3, 3), group=3, pads=[0, 1, 1, 0]),
    "transposed": lambda: convolution((1, 6, 9, 33), (6, 7, 2, 1), op="ConvTranspose", strides=[2, 1]),
}


def compiled(model: Model, effort: str = "none") -> ExecutableNetwork:
    return Core().compile_model(model, "OPENCL", {"COMPILE_EFFORT": effort})


def answer(network: ExecutableNetwork, inputs: Sequence[NDArray[np.float32]]) -> NDArray[np.float32]:
    (found,) = network(list(inputs)).values()
    return found


def check(found: NDArray[np.float32], expected: NDArray[np.float32]) -> None:
    # As in test_products.py: some 300 roundings of f32, of the largest result.
    np.testing.assert_allclose(found, expected, rtol=0, atol=2e-5 * float(np.max(np.abs(expected))))


def choices_of(network: ExecutableNetwork) -> dict[str, str]:
    tuner: Any = network.tuner  # type: ignore[attr-defined]
    return dict(tuner.choices)


def preferring(monkeypatch: pytest.MonkeyPatch, is_preferred: Callable[[Launch], bool]) -> list[Launch]:
    """Candidates run, but the preferred one seems fast. Returns the first launch of each timed candidate."""
    bind = Stopwatch.bind
    timed: list[Launch] = []

    def bound(self: Stopwatch, launches: Sequence[Launch], weights: Any) -> Callable[[], int]:
        run = bind(self, launches, weights)
        timed.append(launches[0])
        return lambda: min(run(), 0) + (1 if is_preferred(launches[0]) else 100)

    monkeypatch.setattr(Stopwatch, "bind", bound)
    return timed


def is_wide(launch: Launch) -> bool:
    return "#define VECTORS 4\n" in launch.source


def is_winograd_rows(launch: Launch) -> bool:
    return launch.kernel == "winograd_input_rows"


@pytest.mark.parametrize("case", CASES)
def test_all_shapes_compute_the_same(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, inputs = CASES[case]()
    (expected,) = Core().compile_model(model, "CPU")(inputs).values()
    tried = []
    for number in range(1, 4):

        def one(facts: Any, p: BlockProduct, number: int = number) -> list[Block]:
            offered = blocks_of(facts, p)
            tried.append(offered[number % len(offered)])
            return tried[-1:]

        # Not by Winograd's algorithm, which has tests of its own.
        monkeypatch.setattr(block_convolution, "_MIN_CHANNELS", 1 << 20)
        monkeypatch.setattr(blocks, "blocks_of", one)
        check(answer(compiled(model), inputs), expected)
    assert len(set(tried)) > 1


def test_what_is_measured_on_this_device_is_among_the_shapes() -> None:
    """With real times; does not check which shape wins."""
    model, inputs = CASES["3x3"]()
    expected = answer(compiled(model), inputs)
    network = compiled(model, "full")
    assert choices_of(network)
    assert all(text.startswith(("block ", str(Winograd()))) for text in choices_of(network).values())
    assert all(" us" in line for line in network.get_metric("KERNEL_CHOICES"))
    check(answer(network, inputs), expected)


@pytest.mark.parametrize(
    ("case", "is_preferred"),
    [("the right one constant", is_wide), ("strides", is_wide), ("3x3", is_winograd_rows)],
    ids=["product", "convolution", "winograd"],
)
def test_a_blob_keeps_the_shape(
    case: str,
    is_preferred: Callable[[Launch], bool],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It is used without a measurement, even if nothing else is known; a forged one is not used.

    None is used where no effort was asked for.
    """
    model, inputs = CASES[case]()
    expected = answer(compiled(model), inputs)
    timed = preferring(monkeypatch, is_preferred)
    network = compiled(model, "full")
    assert timed
    assert is_preferred(first_launch(network, inputs))
    check(answer(network, inputs), expected)
    blob = exported(network)

    timed.clear()
    assert not is_preferred(first_launch(compiled(model), inputs))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "another user"))
    again = Core().import_model(blob, "OPENCL", {"COMPILE_EFFORT": "full"})
    assert not timed
    assert choices_of(again) == choices_of(network)
    assert is_preferred(first_launch(again, inputs))
    check(answer(again, inputs), expected)

    forged = dict.fromkeys(choices_of(network), "block 4x400 of 16, 0 panels, runs of 16")
    with caplog.at_level(logging.WARNING, "engine.opencl"):
        default = Core().import_model(with_choices(blob, forged), "OPENCL", {"COMPILE_EFFORT": "none"})
    assert "is not a candidate for" in caplog.text
    assert not is_preferred(first_launch(default, inputs))
    check(answer(default, inputs), expected)


def exported(network: ExecutableNetwork) -> bytes:
    stream = BytesIO()
    network.export_model(stream)
    return stream.getvalue()


def with_choices(blob: bytes, choices: dict[str, str]) -> bytes:
    with BlobReader(blob) as reader:
        writer = BlobWriter(reader.manifest)
        for name in reader.section_names:
            writer.add_section(name, write_choices(choices) if name == "choices" else bytes(reader.section(name)))
    stream = BytesIO()
    writer.write(stream)
    return stream.getvalue()


def first_launch(network: Any, inputs: Sequence[NDArray[np.float32]]) -> Launch:
    context = network.pool.take(list(inputs))
    network.pool.put(context)
    first: Launch = context.plan.launches[0]
    return first


def offered(m: int, n: int, k: int) -> list[Block]:
    """The candidates for a product with a constant right operand."""
    left, right = Matrices(Buffer(0), m, k, k, 1), Matrices(Buffer(0, weight="w"), n, k, 1, n)
    facts = replace(device_of("0").facts, vector_width=16)
    return blocks_of(facts, BlockProduct(left, right, Buffer(0), n, Epilogue()))


def test_where_there_is_no_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few rows are bound by memory, small products by the launch; large constants would be stored several times."""
    monkeypatch.undo()
    assert len(offered(128, 768, 768)) == 3
    assert [len(offered(*lengths)) for lengths in ((3, 4096, 4096), (32, 32, 32), (128, 8192, 4096))] == [1, 1, 1]


def test_a_large_left_operand_is_read_once() -> None:
    """Otherwise the weights of convolutions over 7x7 maps would be read from memory twice."""
    facts = replace(device_of("0").facts, vector_width=16)
    for rows, runs, k in ((512, (7, 7), 4608), (512, (1, 49), 2048)):
        block = block_of(facts, rows, runs, k, 1)
        assert (block.rows, block.vectors, block.tiles(runs)) == (4, 4, 1)
    assert block_of(facts, 256, (1, 49), 256, 16).vectors == 2
