"""Random blocks: the same for all who name a seed and an index, valid, of every class; or figures mean nothing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest

BENCHMARKS = Path(__file__).parent.parent.parent / "benchmarks"
sys.path.append(str(BENCHMARKS))

from comparison.measure import EngineResult, ModelResult  # noqa: E402
from drawn.block import KINDS, Block, Cost, draw_block, kind_of  # noqa: E402
from drawn.report import Measured, class_table, entries_of, loser_table, summary  # noqa: E402
from drawn.tolerance import block_tolerance  # noqa: E402

from engine import Core  # noqa: E402
from engine.testing.networks import SeededNetwork  # noqa: E402

ALL = range(len(KINDS))


def test_each_class_appears_as_often_as_another() -> None:
    for seed in (1, 2):
        for lap in (0, 3):
            assert sorted(kind_of(seed, lap * len(KINDS) + place) for place in ALL) == sorted(KINDS)
    assert [kind_of(1, index) for index in ALL] != [kind_of(2, index) for index in ALL]


@pytest.mark.parametrize("index", [5, 38, 44, 67])
def test_a_block_depends_on_its_seed_and_index_alone(index: int) -> None:
    first, second = draw_block(1, index), draw_block(1, index)
    assert first.description == second.description
    assert first.network.model.SerializeToString() == second.network.model.SerializeToString()
    assert all(np.array_equal(first.network.inputs[name], second.network.inputs[name]) for name in first.network.inputs)
    assert draw_block(3, index).network.model != first.network.model


def test_every_class_gives_valid_models_of_bounded_cost() -> None:
    for index in ALL:
        block = draw_block(1, index)
        onnx.checker.check_model(block.network.model)
        assert block.description
        assert block.cost.operations < 3e9
        assert 1e4 < block.cost.bytes < 5e8
        assert {info.name for info in block.network.model.graph.input} == set(block.network.inputs)
        assert 1e-7 < block_tolerance(block.network.model) < 1e-3


def test_saved_blocks_are_models_with_inputs(tmp_path: Path) -> None:
    command = [sys.executable, str(BENCHMARKS / "blocks.py"), "--only", "24,41", "--save", str(tmp_path)]
    subprocess.run(command, check=True, capture_output=True)
    models = sorted(tmp_path.glob("*.onnx"))
    assert [path.stem for path in models] == [draw_block(1, index).name for index in (24, 41)]
    for path in models:
        with np.load(path.with_suffix(".npz")) as inputs:
            results = Core().compile_model(str(path), "CPU")(dict(inputs))
        assert all(np.isfinite(value).all() for value in results.values())


def measured(index: int, kind: str, ours: list[float], *peers: list[float], agrees: bool = True) -> Measured:
    results = {"engine": EngineResult(milliseconds=sorted(ours)[len(ours) // 2], rounds=ours, agrees=agrees)}
    for name, rounds in zip(("onnxruntime", "openvino"), peers, strict=False):
        results[name] = EngineResult(milliseconds=sorted(rounds)[len(rounds) // 2], rounds=rounds, agrees=True)
    block = Block(index, kind, f"block {index}", Cost(200_000_000, 4_000_000), SeededNetwork(onnx.ModelProto(), {}))
    return Measured(block, ModelResult(block.name, block.cost.operations, 1e-5, results))


def test_a_block_is_judged_by_the_rounds_against_the_faster_peer() -> None:
    found = measured(0, "pooling", [2.0] * 6, [4.0] * 6, [3.0] * 5 + [2.0])
    assert found.entry is not None
    assert (found.ratio, found.entry.low, found.entry.high) == (1.5, 1.0, 1.5)
    assert measured(0, "pooling", [2.0] * 6, [4.0] * 6, agrees=False).ratio is None
    assert measured(0, "pooling", [2.0] * 6).ratio is None


def test_the_limit_is_what_binds() -> None:
    by_bytes, by_operations = (measured(0, "pooling", [4.0] * 6, [4.0] * 6) for _ in range(2))
    by_bytes.set_limit(1000.0, lambda size: 2.0)  # 2 ms for the bytes, 0.2 for the operations
    by_operations.set_limit(100.0, lambda size: 4.0)  # 1 ms and 2
    assert by_bytes.share == pytest.approx(0.5)
    assert by_operations.share == pytest.approx(0.5)


def test_classes_that_lose_are_listed_with_their_lowest_block() -> None:
    found = [
        measured(0, "pooling", [2.0] * 6, [1.8] * 6),
        measured(1, "pooling", [2.0] * 6, [1.0] * 6),
        measured(2, "products", [2.0] * 6, [3.0] * 6),
    ]
    for each in found:
        each.set_limit(100.0, lambda size: 100.0)
    (row,) = class_table(found).splitlines()[2:]
    assert [cell.strip() for cell in row.split("|")[1:6]] == ["pooling", "2 of 2", "0.67x", "0.50x", "100%"]
    assert "1: block 1" in row
    assert [line.split("|")[1].strip() for line in loser_table(found).splitlines()[2:]] == ["1", "0"]
    assert "geometric mean 0.88x" in summary(found)
    assert "33.3% at 1.0x or better, 66.7% at 0.8x or better; the lowest 0.50x" in summary(found)


def test_the_record_has_the_mean_of_each_class_by_rounds() -> None:
    found = [measured(0, "pooling", [1.0] * 6, [4.0, 1.0] * 3), measured(1, "pooling", [2.0] * 6, [2.0] * 6),
             measured(2, "products", [1.0] * 6, [1.0] * 6, agrees=False)]  # fmt: skip
    entries = entries_of(found, "3 of seed 1")
    assert set(entries) == {"3 of seed 1: all", "3 of seed 1: pooling", "3 of seed 1: products"}
    pooling = entries["3 of seed 1: pooling"]
    assert pooling is not None
    assert (pooling.ratio, pooling.low, pooling.high) == (1.5, 1.0, 2.0)  # the means of the rounds are 2, 1, 2, ..
    assert pooling.note == "2 of 2 at 1.0x or better, lowest 1.00x"
    assert entries["3 of seed 1: all"] is entries["3 of seed 1: products"] is None


@pytest.mark.slow
def test_blocks_are_compared(tmp_path: Path) -> None:
    file = tmp_path / "figures.json"
    command = [
        sys.executable, str(BENCHMARKS / "blocks.py"), "--only", "24,41", "--engines", "engine,onnxruntime", "--rounds",
        "1", "--second-rounds", "1", "--rest", "0", "--block-seconds", "0.02", "--json", str(file),
    ]  # fmt: skip
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    assert "2 blocks: geometric mean" in done.stdout
    assert file.exists()
