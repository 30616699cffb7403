"""The folding budget is shared by a compilation, counted by results, and part of what a cached network depends on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper

from engine import Core, ops
from engine.errors import OutOfMemoryError
from engine.ir import Constant, Model, Parameter, f32, stored_bytes
from engine.limits import (
    FoldingBudget,
    Limits,
    available_memory,
    check_bytes,
    compilation,
    current_budget,
    total_memory,
)
from engine.onnx import read_model
from engine.ops import evaluate_model
from engine.passes.base import Pass
from engine.passes.common.constant_folding import ConstantFolding
from engine.passes.common.conv_batch_norm_fusion import ConvBatchNormFusion
from engine.passes.common.conv_bias_fusion import ConvMultiplyFusion
from engine.passes.common.conv_input_fusion import ConvInputFusion
from engine.passes.common.einsum_decomposition import EinsumDecomposition
from engine.passes.common.qkv_projection_fusion import QKVProjectionFusion
from engine.passes.common.quantization_decomposition import DequantizedConstantFolding
from engine.passes.common.transpose_sinking import TransposeSinking
from engine.passes.folding import bytes_allowed
from engine.passes.manager import Manager


def folded(model: Model, limits: Limits) -> int:
    """How many nodes of `model` are folded within `limits`."""
    manager = Manager()
    manager.register_pass(ConstantFolding)
    with compilation(limits, lambda: stored_bytes(model)):
        manager.run_passes(model)
    return manager.rewrite_counts()["ConstantFolding"]


def separate_expands(count: int) -> Model:
    """`count` Expands of a constant to 1000 f32, each read by the model's output."""
    x = Parameter(f32, [1000], "x")
    shape, one = Constant(np.array([1000])), Constant(np.float32(1))
    value: Any = x
    for _ in range(count):
        value = ops.Add(ops.Expand(one, shape), value)
    return Model([value], [x])


def test_results_of_all_nodes_share_one_budget_of_bytes() -> None:
    assert folded(separate_expands(8), Limits(folded_bytes=20_000)) == 5
    assert folded(separate_expands(8), Limits(folded_bytes=32_000)) == 8


def test_results_that_only_folded_operations_read_are_not_kept_and_do_not_count() -> None:
    x = Parameter(f32, [1000], "x")
    value: Any = ops.Expand(Constant(np.float32(1)), Constant(np.array([1000])))
    for _ in range(20):
        value = ops.Neg(value)
    assert folded(Model([ops.Add(value, x)], [x]), Limits(folded_bytes=9_000)) == 21


def test_the_work_of_all_nodes_shares_one_budget() -> None:
    with compilation(Limits()) as whole:
        folded(separate_expands(8), Limits())
    assert whole.used_work > 0
    assert folded(separate_expands(8), Limits(folded_work=whole.used_work // 2)) == 4


def test_constants_of_the_model_allow_more_bytes_but_shared_bytes_count_once() -> None:
    data = np.ones(1000, np.float32)
    x = Parameter(f32, [1000], "x")
    value: Any = ops.Add(x, Constant(data))
    for part in (data[:500], data[250:750], data):
        value = ops.Concat(value, Constant(part), axis=0)
    assert stored_bytes(Model([value], [x])) == data.nbytes
    budget = FoldingBudget(Limits(folded_bytes=10), 100)
    assert budget.allows(800, 0)
    assert not budget.allows(801, 0)


def test_an_input_that_is_read_twice_counts_once() -> None:
    constant = Constant(np.ones(1000, np.float32))
    assert bytes_allowed(ops.Concat(constant, constant, axis=0), 10) == 4000


def test_a_nested_compilation_shares_the_outer_budget() -> None:
    with compilation(Limits(folded_bytes=7)) as outer, compilation(Limits(folded_bytes=70)):
        assert current_budget() is outer


def sparse_model(count: int, side: int) -> bytes:
    """The sum of `count` constants [side, side] of one element 3 each, and of x."""
    nodes = []
    for index in range(count):
        sparse = helper.make_sparse_tensor(
            helper.make_tensor("values", TensorProto.FLOAT, [1], [3.0]),
            helper.make_tensor("indices", TensorProto.INT64, [1], [5]),
            [side, side],
        )
        nodes.append(helper.make_node("Constant", [], [f"k{index}"], sparse_value=sparse))
    nodes += [helper.make_node("Sum", [f"k{index}" for index in range(count)], ["s"])]
    nodes += [helper.make_node("Reshape", ["s", "flat"], ["r"]), helper.make_node("Add", ["x", "r"], ["y"])]
    port = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [side * side]) for name in "xy"]
    flat = helper.make_tensor("flat", TensorProto.INT64, [1], [-1])
    graph = helper.make_graph(nodes, "g", port[:1], port[1:], [flat])
    return bytes(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)]).SerializeToString())


@pytest.mark.parametrize("device", ["TEMPLATE", "CPU"])
def test_sparse_constants_in_dense_form_are_within_the_budget(device: str) -> None:
    """4 KB of a file could take any number of gigabytes."""
    side = 64
    x, nbytes = np.zeros(side * side, np.float32), side * side * 4
    with pytest.raises(
        OutOfMemoryError, match=r"sparse constant `k\d` \[64, 64\] takes 16384 bytes .* MAX_FOLDED_BYTES"
    ):
        Core().compile_model(sparse_model(5, side), device, {"MAX_FOLDED_BYTES": 2 * nbytes})({"x": x})
    network = Core().compile_model(sparse_model(5, side), device, {"MAX_FOLDED_BYTES": 20 * nbytes})
    assert np.flatnonzero(network({"x": x})["y"]).tolist() == [5]


def test_dense_forms_that_are_released_no_longer_count() -> None:
    with compilation(Limits(folded_bytes=20_000)) as budget:
        model = read_model(sparse_model(3, 64))
        constants = [node for node in model.ordered_nodes() if isinstance(node, Constant) and node.shape == (64, 64)]
        for _ in range(3):
            for constant in constants:
                assert constant.data[0, 5] == 3
                constant.release()
        assert budget.used_bytes == 0


def _norm() -> list[Constant]:
    """Scale, bias, mean and variance."""
    return [Constant(np.full(SIDE, value, np.float32)) for value in (0.5, 0.0, 0.0, 1.0)]


def _channels_last(x: Any, w: Constant) -> Any:
    return ops.Transpose(ops.Add(ops.Relu(ops.Transpose(x, perm=[0, 2, 3, 1])), w), perm=[0, 3, 1, 2])


SIDE = 48
KERNEL, IMAGE, MATRIX = [SIDE, SIDE, 3, 3], [1, SIDE, 5, 5], [SIDE, SIDE]
PADS = {"pads": [1, 1, 1, 1]}
SHARED: list[tuple[type[Pass], list[int], list[int], Callable[[Any, Constant], Any]]] = [
    (ConvBatchNormFusion, KERNEL, IMAGE, lambda x, w: ops.BatchNormalization(ops.Conv(x, w, **PADS), *_norm())),
    (ConvMultiplyFusion, KERNEL, IMAGE, lambda x, w: ops.Mul(ops.Conv(x, w, **PADS), Constant(np.float32(0.5)))),
    (ConvInputFusion, KERNEL, IMAGE, lambda x, w: ops.Conv(ops.Mul(x, Constant(np.float32(0.5))), w, **PADS)),
    (EinsumDecomposition, MATRIX, MATRIX, lambda x, w: ops.Einsum(x, w, equation="ij,kj->ik")),
    (QKVProjectionFusion, MATRIX, MATRIX, lambda x, w: ops.Sum(*(ops.MatMul(x, w) for _ in range(3)))),
    (TransposeSinking, [5, 1, SIDE], IMAGE, _channels_last),
    (
        DequantizedConstantFolding,
        MATRIX,
        MATRIX,
        lambda x, w: ops.Add(x, ops.DequantizeLinear(Constant(w.data.astype(np.int8)), Constant(np.float32(0.25)))),
    ),
]
"""A pass, the shapes of weights that many nodes read and of x, and one of these nodes."""


@pytest.mark.parametrize(("kind", "shape", "x_shape", "make"), SHARED)
def test_copies_of_shared_weights_are_within_the_budget(
    kind: type[Pass], shape: list[int], x_shape: list[int], make: Callable[[Any, Constant], Any]
) -> None:
    """One weight that many nodes read, each with another scale, could take any number of gigabytes."""
    rng = np.random.default_rng(0)
    weights, data = (rng.standard_normal(each).astype(np.float32) / 16 for each in (shape, x_shape))

    def optimized(most: int) -> tuple[Model, float]:
        x, w = Parameter(f32, x_shape, "x"), Constant(weights)
        value: Any = x
        for _ in range(12):
            value = ops.Tanh(make(value, w))
        manager, model = Manager(), Model([value], [x])
        manager.pass_config.enable(kind)
        manager.register_pass(kind)
        with compilation(Limits(folded_bytes=most * weights.nbytes)) as budget:
            manager.run_passes(model)
        assert budget.used_bytes <= most * weights.nbytes
        constants = [node for node in model.ordered_nodes() if isinstance(node, Constant) and node.shape]
        return model, sum(node.byte_size for node in constants) / weights.nbytes

    (plain, given), (whole, most), (bounded, held) = optimized(0), optimized(100), optimized(3)
    assert held < given + 4 < most, (given, held, most)
    for model in (whole, bounded):
        found, expected = (evaluate_model(each, [data])[0] for each in (model, plain))
        np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-6)


def model_bytes() -> bytes:
    shape = helper.make_tensor("s", TensorProto.INT64, [1], [1000])
    one = helper.make_tensor("c", TensorProto.FLOAT, [1], [1.0])
    nodes = [helper.make_node("Expand", ["c", "s"], ["e"], "expand"), helper.make_node("Add", ["e", "x"], ["y"], "add")]
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [1000]) for name in "xy")
    made = helper.make_model(
        helper.make_graph(nodes, "g", [x], [y], [shape, one]), opset_imports=[helper.make_opsetid("", 21)]
    )
    return bytes(made.SerializeToString())


@pytest.mark.parametrize("device", ["TEMPLATE", "CPU"])
def test_the_answer_does_not_depend_on_the_budget(device: str) -> None:
    x = np.arange(1000, dtype=np.float32)
    for limit in (0, 1 << 20):
        network = Core().compile_model(model_bytes(), device, {"MAX_FOLDED_BYTES": limit, "MAX_FOLDED_WORK": limit})
        np.testing.assert_array_equal(network({"x": x})["y"], x + 1)


def test_a_cached_network_is_used_for_the_same_budget_only(tmp_path: Path) -> None:
    core, config = Core(), {"CACHE_DIR": str(tmp_path)}

    def compiled(**more: int) -> bool:
        return bool(core.compile_model(model_bytes(), "TEMPLATE", {**config, **more}).get_metric("LOADED_FROM_CACHE"))

    assert not compiled()
    assert compiled()
    assert not compiled(MAX_FOLDED_BYTES=100)
    assert not compiled(MAX_FOLDED_WORK=100)
    assert compiled(MAX_TENSOR_BYTES=5000), "it changes no program"


@pytest.mark.parametrize("device", ["TEMPLATE", "CPU", "HETERO:TEMPLATE", "HETERO:CPU"])
def test_a_result_above_the_largest_allowed_tensor_is_an_error_with_its_node(device: str) -> None:
    x = np.ones(1000, np.float32)
    with pytest.raises(OutOfMemoryError, match=r"`(add|expand)`.*4000 bytes.*MAX_TENSOR_BYTES"):
        Core().compile_model(model_bytes(), device, {"MAX_TENSOR_BYTES": 3999, "MAX_FOLDED_BYTES": 0})({"x": x})
    network = Core().compile_model(model_bytes(), device, {"MAX_TENSOR_BYTES": 4000, "MAX_FOLDED_BYTES": 0})
    np.testing.assert_array_equal(network({"x": x})["y"], x + 1)


def test_memory_is_compared_before_it_is_allocated() -> None:
    assert 0 < available_memory() <= total_memory()
    with pytest.raises(OutOfMemoryError, match="the node: its result takes"):
        check_bytes(2 * total_memory(), "the node")
    check_bytes(1 << 20, "the node")


@pytest.mark.parametrize("mode", ["TF", "IDF", "TFIDF"])
@pytest.mark.parametrize("lengths", [(1, 1), (1, 2), (2, 3), (1, 3)])
@pytest.mark.parametrize("skips", [0, 1, 3, 1 << 33])
@pytest.mark.parametrize("shape", [(9,), (2, 9)])
def test_ngrams_are_counted_as_by_onnxruntime(
    mode: str, lengths: tuple[int, int], skips: int, shape: tuple[int, ...]
) -> None:
    def proto(skips: int) -> bytes:
        node = helper.make_node(
            "TfIdfVectorizer", ["x"], ["y"], mode=mode, min_gram_length=lengths[0], max_gram_length=lengths[1],
            max_skip_count=skips, ngram_counts=[0, 3, 9], ngram_indexes=[4, 1, 0, 2, 3, 5, 7, 6],
            pool_int64s=[1, 2, 3, 1, 2, 2, 3, 3, 3, 1, 2, 3, 3, 2, 1], weights=[1 + i / 4 for i in range(8)],
        )  # fmt: skip
        x = helper.make_tensor_value_info("x", TensorProto.INT64, shape)
        y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
        made = helper.make_model(
            helper.make_graph([node], "g", [x], [y]), opset_imports=[helper.make_opsetid("", 17)], ir_version=8
        )
        return bytes(made.SerializeToString())

    x = np.random.default_rng(0).integers(1, 4, shape)
    expected = ort.InferenceSession(proto(min(skips, x.shape[-1]))).run(None, {"x": x})[0]
    (found,) = evaluate_model(Core().read_model(proto(skips)), [x])
    np.testing.assert_array_equal(found, expected)
