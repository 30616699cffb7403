"""How long a node is expected to take, which decides whether it is folded while compiling."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from engine import Core, ops
from engine.errors import PassError
from engine.ir import Constant, Model, Node, Parameter, f32, i64
from engine.limits import Limits, compilation
from engine.ops import Traits, select
from engine.ops.cost import evaluation_time
from engine.ops.extension import Operator, define
from engine.passes import folding
from engine.passes.folding import constant_fold

ML = "ai.onnx.ml"


@pytest.mark.parametrize("left", [(64, 256), (1, 64, 256), (64, 1, 256), (4, 16, 256)])
def test_a_product_counts_the_terms_of_each_sum(left: tuple[int, ...]) -> None:
    """The same products in other shapes take the same time."""
    b = Parameter(f32, [256, 512], "b")
    assert evaluation_time(ops.MatMul(Parameter(f32, list(left), "a"), b)) == evaluation_time(
        ops.Gemm(Parameter(f32, [256, 64], "a"), b, transA=1)
    )


def test_a_product_takes_as_long_as_its_sums_are() -> None:
    work = [
        evaluation_time(ops.MatMul(Parameter(f32, [512, n], "a"), Parameter(f32, [n, 512], "b"))) for n in (512, 4096)
    ]
    assert 6 < work[1] / work[0] < 8


def weights(*shape: int) -> Constant:
    return Constant(np.zeros(shape, np.float32))


def boxes(n: int) -> Node:
    return ops.NonMaxSuppression(weights(1, n, 4), weights(1, 1, n), Constant(np.int64(n)))


def attention(n: int) -> Node:
    return ops.Attention(*(weights(1, 1, n, 8) for _ in range(3)))


def attention_of_three_dimensions(n: int) -> Node:
    return ops.Attention(*(weights(1, n, 16) for _ in range(3)), q_num_heads=2, kv_num_heads=2)


def machine(n: int) -> Node:
    attributes: dict[str, Any] = {
        "n_supports": n,
        "support_vectors": [0.5] * 3 * n,
        "coefficients": [0.1] * n,
        "rho": [0.0],
    }
    attributes.update(kernel_type="RBF", kernel_params=[0.1, 0.0, 0.0])
    return ops.create("SVMRegressor", [weights(n, 3)], attributes, domain=ML)


def n_grams(n: int) -> Node:
    return ops.TfIdfVectorizer(
        Constant(np.zeros((1, n), np.int64)), mode="TF", min_gram_length=1, max_gram_length=2, max_skip_count=n,
        ngram_counts=[0, 1], ngram_indexes=[0, 1], pool_int64s=[1, 1, 2],
    )  # fmt: skip


def regions(n: int) -> Node:
    return ops.RoiAlign(weights(1, 1, 8, 8), weights(1, 4), Constant(np.array([0])), sampling_ratio=n)


QUADRATIC = {
    "boxes": (boxes, 4000),
    "queries and keys": (attention, 4000),
    "queries and keys of three dimensions": (attention_of_three_dimensions, 4000),
    "positions and a window": (lambda n: ops.MaxPool(weights(1, 1, 1, 2 * n), kernel_shape=[1, n]), 20_000),
    "means over a window": (lambda n: ops.AveragePool(weights(1, 1, 1, 2 * n), kernel_shape=[1, n]), 20_000),
    "channels": (lambda n: ops.LRN(weights(1, n, 1, 1), size=n), 20_000),
    "rows and support vectors": (machine, 8000),
    "samples of a cell": (regions, 128),
    "places and distances": (n_grams, 8000),
    "a state and its weights": (
        lambda n: ops.LSTM(weights(64, 1, n), weights(1, 4 * n, n), weights(1, 4 * n, n), hidden_size=n), 512
    ),
}  # fmt: skip


@pytest.mark.parametrize(("make", "size"), QUADRATIC.values(), ids=QUADRATIC)
def test_work_on_pairs_is_quadratic(make: Callable[[int], Node], size: int) -> None:
    """For two sizes, both factors of which double."""
    assert 3 < evaluation_time(make(2 * size)) / evaluation_time(make(size)) <= 4.1


def test_determinants_are_cubic() -> None:
    assert (
        7 < evaluation_time(ops.Det(weights(1, 16000, 16000))) / evaluation_time(ops.Det(weights(1, 8000, 8000))) <= 8
    )


def test_boxes_are_compared_with_those_that_are_kept() -> None:
    few = ops.NonMaxSuppression(weights(1, 8000, 4), weights(1, 1, 8000), Constant(np.int64(10)))
    assert evaluation_time(few) < evaluation_time(boxes(8000)) / 50


@pytest.mark.parametrize(
    "node",
    [
        boxes(30_000),
        attention(6000),
        ops.LRN(weights(1, 10_000, 5, 5), size=9999),
        ops.MaxPool(weights(1, 1, 600, 600), kernel_shape=[300, 300]),
        machine(30_000),
    ],
    ids=lambda node: node.op_type,
)
def test_what_takes_long_is_not_folded(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """Models of a few hundred kilobytes took up to minutes to compile."""
    evaluated: list[Node] = []
    monkeypatch.setattr(folding, "evaluate", lambda node, *_: evaluated.append(node))
    nbytes = sum(source.node.byte_size for source in node.sources if source is not None)  # type: ignore[attr-defined]
    with compilation(Limits(), lambda: nbytes):
        assert constant_fold(node) is None
    assert not evaluated


def test_pointwise_operators_cost_a_few_passes_over_their_elements() -> None:
    by_element = {"Swish": ops.Swish, "Shrink": ops.Shrink, "ThresholdedRelu": ops.ThresholdedRelu, "Relu": ops.Relu}
    assert {name: evaluation_time(make(weights(1000))) for name, make in by_element.items()} == dict.fromkeys(
        by_element, 16000
    )


def test_an_operator_of_an_extension_folds_if_it_is_declared_pointwise() -> None:
    """Without that, its evaluation may loop over the elements, which takes longer than a compilation may."""

    def operator(name: str, **facts: Any) -> Operator:
        return Operator(
            name=name, domain="test.cost", inputs=["x"], infer=lambda types, _: types[0], evaluate=np.negative, **facts
        )

    define([operator("Fast", traits=Traits(pointwise=True)), operator("Unknown")], "cost 1")
    fast, unknown = (ops.create(name, [weights(10_000_000)], domain="test.cost") for name in ("Fast", "Unknown"))
    with compilation(Limits(), lambda: 40_000_000):
        assert constant_fold(fast) is not None
        assert constant_fold(unknown) is None


class Alarm(Exception):
    """Of a caller."""


@pytest.mark.skipif(not hasattr(signal, "SIGALRM"), reason="signals of POSIX")
@pytest.mark.parametrize("kind", [TimeoutError, Alarm])
def test_an_alarm_ends_a_compilation(kind: type[Exception], monkeypatch: pytest.MonkeyPatch) -> None:
    def ring(*_: object) -> None:
        raise kind("the time is over")

    def check() -> None:
        if threading.current_thread() is threading.main_thread():  # others may compile beside, and go on afterwards
            signal.raise_signal(signal.SIGALRM)

    before = signal.signal(signal.SIGALRM, ring)
    x = Parameter(i64, [1], "x")
    model = Model([ops.Add(boxes(4), x)], [x])
    try:
        with monkeypatch.context() as patch:
            patch.setattr(select, "current_check", lambda: check)
            with pytest.raises(TimeoutError if kind is TimeoutError else PassError, match="the time is over"):
                Core().compile_model(model, "TEMPLATE")
    finally:
        signal.signal(signal.SIGALRM, before)
