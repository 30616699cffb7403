"""REPEATABLE: the bits of a result depend on its own inputs. If this fails, a client's answer depends on others."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine import Core, ops
from engine.errors import PropertyError, UnsupportedError
from engine.generation import Generator, Scheduler
from engine.ir import Constant, Model, Output, Parameter, Result, f32
from engine.passes import MakeStateful

Array = np.ndarray[Any, np.dtype[Any]]
ON = {"REPEATABLE": True}
RANDOM = np.random.default_rng(0)
DECODERS = Path(__file__).parents[3] / "tests" / "fixtures" / "decoders"
ROWS = (1, 2, 3, 4, 5, 8, 9, 16, 33)


def normal(*shape: int) -> Array:
    return RANDOM.standard_normal(shape).astype(np.float32)


def matmul(x: Output, k: int, n: int) -> Output:
    return ops.MatMul(x, Constant(normal(k, n))).output(0)


def gemm(x: Output, k: int, n: int) -> Output:
    return ops.Gemm(x, Constant(normal(n, k)), Constant(normal(n)), transB=1).output(0)


def blocks(x: Output, bits: int) -> Output:
    """A product with weights of few bits, as a DequantizeLinear before it."""
    scale = Constant(np.abs(normal(4, 24)) / 100)
    codes = RANDOM.integers(0, 1 << bits, (128, 24)).astype(np.uint8)
    given = ops.DequantizeLinear(Constant(codes), scale, Constant(np.full((4, 24), 1 << bits - 1, np.uint8)),
                                 axis=0, block_size=32)  # fmt: skip
    return ops.MatMul(x, given).output(0)


def computed_factor(x: Output) -> Output:
    """The second factor is computed: its packing is a part of each run."""
    return ops.MatMul(x, ops.Transpose(ops.Tanh(Constant(normal(6, 40))), perm=[1, 0])).output(0)


def conv(x: Output, inputs: int, outputs: int, **attributes: Any) -> Output:
    group = attributes.get("group", 1)
    return ops.Conv(x, Constant(normal(outputs, inputs // group, 3, 3)), pads=[1] * 4, **attributes).output(0)


def mobile(x: Output) -> Output:
    """1x1, depthwise, 1x1: one step for strips of rows, if it is worth that."""
    wide = ops.Relu(ops.Conv(x, Constant(normal(96, 16, 1, 1)))).output(0)
    deep = ops.Relu(conv(wide, 96, 96, group=96)).output(0)
    return ops.Conv(deep, Constant(normal(16, 96, 1, 1))).output(0)


def lstm(x: Output) -> Output:
    w, r, b = normal(1, 4 * 20, 12), normal(1, 4 * 20, 20) / 4, normal(1, 8 * 20)
    steps = ops.Transpose(x, perm=[1, 0, 2])
    made = ops.LSTM(steps, Constant(w), Constant(r), Constant(b), hidden_size=20)
    return ops.Transpose(made.output(0), perm=[2, 0, 1, 3]).output(0)


def norm(x: Output, length: int) -> Output:
    return ops.LayerNormalization(x, Constant(normal(length)), Constant(normal(length)), axis=-1).output(0)


CASES: dict[str, tuple[tuple[int, ...], Callable[[Output], Output]]] = {
    "one column": ((777,), lambda x: matmul(x, 777, 1)),
    "few columns": ((1024,), lambda x: matmul(x, 1024, 3)),
    "odd": ((100,), lambda x: matmul(x, 100, 37)),
    "long": ((2048,), lambda x: matmul(x, 2048, 256)),
    "transposed": ((256,), lambda x: gemm(x, 256, 300)),
    "computed": ((40,), computed_factor),
    "4 bits": ((128,), lambda x: blocks(x, 4)),
    "8 bits": ((128,), lambda x: blocks(x, 8)),
    "3x3": ((16, 14, 14), lambda x: conv(x, 16, 32)),
    "winograd": ((64, 14, 14), lambda x: conv(x, 64, 64)),
    "groups": ((32, 14, 14), lambda x: conv(x, 32, 32, group=4)),
    "depthwise": ((32, 14, 14), lambda x: conv(x, 32, 32, group=32)),
    "few channels": ((3, 32, 32), lambda x: conv(x, 3, 16, strides=[2, 2])),
    "chain": ((16, 40, 40), mobile),
    "softmax": ((70_000,), lambda x: ops.Softmax(x).output(0)),
    "norm": ((70_000,), lambda x: norm(x, 70_000)),
    "means of maps": ((4, 160, 160), lambda x: ops.ReduceMean(x, Constant(np.array([2, 3]))).output(0)),
    "groups of channels": (
        (4, 160, 160),
        lambda x: ops.GroupNormalization(x, Constant(normal(4)), Constant(normal(4)), num_groups=2).output(0),
    ),
    "sum": ((70_000,), lambda x: ops.ReduceSum(x, Constant(np.array([1]))).output(0)),
    "lstm": ((7, 12), lstm),
}


@pytest.mark.parametrize("name", CASES)
def test_rows_do_not_depend_on_other_rows_and_threads(name: str) -> None:
    """The same image, or row, alone and at the first, a middle and the last place of batches."""
    shape, make = CASES[name]
    x = Parameter(f32, ["N", *shape], "x")
    model = Model([Result(make(x.output(0)), "y")], [x])
    wanted, given = None, normal(*shape)
    for threads in (1, 2):
        network = Core().compile_model(model, "CPU", ON | {"INFERENCE_NUM_THREADS": threads})
        for rows in ROWS if given.size < 10_000 else (1, 2, 9):
            for place in {0, rows // 2, rows - 1}:
                batch = normal(rows, *shape)
                batch[place] = given
                found = np.asarray(network({"x": batch})["y"])[place].tobytes()
                wanted = wanted or found
                assert found == wanted, f"{rows} rows, place {place}, {threads} threads"


def _last(make: Callable[[Output], Output], *shape: int) -> Model:
    """A model whose last axis is open."""
    x = Parameter(f32, [*shape, "N"], "x")
    return Model([Result(make(x.output(0)), "y")], [x])


@pytest.mark.parametrize(
    "model",
    [
        _last(lambda x: ops.Softmax(x, axis=1).output(0), 3, 40),
        _last(lambda x: ops.ReduceMean(x, Constant(np.array([1]))).output(0), 3, 40),
    ],
    ids=["Softmax", "ReduceMean"],
)
def test_columns_do_not_depend_on_their_number(model: Model) -> None:
    """A single column is a row of its own in memory."""
    network, column = Core().compile_model(model, "CPU", ON), normal(3, 40, 1)
    alone = np.asarray(network({"x": column})["y"])
    for count in (2, 7, 20):
        columns = normal(3, 40, count)
        columns[..., count // 2] = column[..., 0]
        found = np.asarray(network({"x": columns})["y"])[..., count // 2]
        assert found.tobytes() == alone[..., 0].tobytes()


def test_the_property_is_needed() -> None:
    """Without it, sums of one row have another order, or the tests above test nothing."""
    x = Parameter(f32, ["N", 777], "x")
    network = Core().compile_model(Model([Result(matmul(x.output(0), 777, 40), "y")], [x]), "CPU")
    batch = normal(64, 777)
    alone = [np.asarray(network({"x": batch[[row]]})["y"])[0] for row in range(64)]
    assert np.asarray(network({"x": batch})["y"]).tobytes() != np.stack(alone).tobytes()


def decoder(name: str, **config: Any) -> Any:
    core = Core()
    model = core.read_model(DECODERS / f"{name}.onnx")
    MakeStateful().run_on_model(model)
    return core.compile_model(model, "CPU", ON | config)


@pytest.mark.parametrize("name", ["llama.dynamo23", "llama.dynamo20"])
def test_logits_do_not_depend_on_the_parts_of_a_prompt(name: str) -> None:
    """In one run, in parts of any lengths, and after other runs of the same request, with any number of threads."""
    prompt = [int(token) for token in RANDOM.integers(1, 30, 150)]
    found = set()
    for threads in (1, 2):
        network = decoder(name, INFERENCE_NUM_THREADS=threads)
        for parts in ([150], [1] * 9 + [141], [64, 64, 22], [149, 1], [3, 70, 77]):
            generator, at = Generator(network), 0
            for count in parts:
                generator.append(prompt[at : at + count])
                logits = generator.logits()
                at += count
            found.add(np.asarray(logits).tobytes())
    assert len(found) == 1


def test_tokens_do_not_depend_on_sequences_beside() -> None:
    network = decoder("llama.dynamo23")
    prompts = [[int(token) for token in RANDOM.integers(1, 30, count)] for count in (4, 31, 9, 77)]
    alone = []
    for prompt in prompts:
        with Scheduler(network, 1) as scheduler:
            alone.append(log_probabilities(scheduler.submit(prompt, 8, log_probabilities=2)))
    with Scheduler(network, 4, prompt_chunk=5) as scheduler:
        streams = [scheduler.submit(prompt, 8, log_probabilities=2) for prompt in prompts]
        assert [log_probabilities(stream) for stream in streams] == alone


def log_probabilities(stream: Any) -> Any:
    tokens = stream.result()
    return tokens, [each.chosen for each in stream.log_probabilities]


def test_what_rules_it_out() -> None:
    x = Parameter(f32, ["N", 8], "x")
    product = Model([Result(matmul(x.output(0), 8, 8), "y")], [x])
    for name, value, why in (
        ("COMPILE_EFFORT", "full", "chooses kernels by measured times"),
        ("KV_CACHE_PRECISION", "int8", "rounds keys for later runs only"),
    ):
        with pytest.raises(PropertyError, match=f"{name} is {value}, which {why}"):
            Core().compile_model(product, "CPU", ON | {name: value})
    given = Parameter(f32, ["N", 4, 4], "x")
    model = Model([Result(ops.Det(given), "y")], [given])
    with pytest.raises(UnsupportedError, match=r"CPU cannot guarantee it for 1 operations: Det .* reference"):
        Core().compile_model(model, "CPU", ON)


@pytest.mark.parametrize("length", ["N", 3])
def test_a_blob_is_repeatable_if_it_was_compiled_so(tmp_path: Path, length: str | int) -> None:
    """With open lengths it has a graph, and with fixed ones, plans."""
    x = Parameter(f32, [length, 300], "x")
    model = Model([Result(matmul(x.output(0), 300, 40), "y")], [x])
    core, batch = Core(), normal(3, 300)
    core.compile_model(model, "CPU", ON).export_model(tmp_path / "on.blob")
    core.compile_model(model, "CPU").export_model(tmp_path / "off.blob")
    wanted = np.asarray(core.compile_model(model, "CPU", ON)({"x": batch})["y"]).tobytes()
    for config in (ON, {}):
        network = core.import_model(tmp_path / "on.blob", "CPU", config)
        assert np.asarray(network({"x": batch})["y"]).tobytes() == wanted
    with pytest.raises(UnsupportedError, match="REPEATABLE is on, but the blob was compiled without"):
        core.import_model(tmp_path / "off.blob", "CPU", ON)
