"""Products on the CPU device against numpy in f64: shapes, constants, sums, activations, unknown lengths."""

from __future__ import annotations

import functools
import io
import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from engine_cpu.lowering import decisions
from engine_cpu.lowering.einsum import find_roles
from engine_cpu.lowering.product import BatchDim, batch_dims, merged
from engine_cpu.transform import prepare_model

from engine import Core, ops
from engine.ir import Constant, Model, Node, Parameter, PartialShape, f32
from engine.ops.einsum import EinsumSpec
from engine.ops.evaluator import ModelEvaluator
from engine.ops.internal import Activation, FusedMatMul
from engine.plugin_api import SupportLevel
from engine.testing.values import values as random_values

Array = np.ndarray[Any, np.dtype[np.float32]]


values = functools.partial(random_values, is_uniform=True)


def close(actual: Array, expected: Array, length: int) -> None:
    """Within the rounding error of a sum of this many products of numbers below 1."""
    np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-6 * (2 + math.sqrt(length)))


def parameter(name: str, shape: Sequence[int | None]) -> Parameter:
    return Parameter(f32, PartialShape(list(shape)), name)


def run(node: Node, parameters: Sequence[Parameter], *inputs: Array) -> Array:
    """The device's results, without reference steps."""
    network = Core().compile_model(Model([node], list(parameters)), "CPU", {"ALLOW_REFERENCE": False})
    return np.array(next(iter(network(list(inputs)).values())))


def test_one_packed_matrix_serves_all_lengths() -> None:
    a, weights = parameter("a", [None, None, 24]), Constant(values(24, 50, seed=1))
    network = Core().compile_model(Model([ops.MatMul(a, weights)], [a]), "CPU", {"ALLOW_REFERENCE": False})
    for shape in ((1, 1, 24), (2, 9, 24), (1, 40, 24), (0, 3, 24)):
        data = values(*shape)
        close(np.array(next(iter(network([data]).values()))), np.matmul(data, weights.data), 24)


@pytest.mark.parametrize("precision", ["f32", "bf16"])
@pytest.mark.parametrize("form", ["MatMul", "Gemm", "Gemm transB"])
def test_a_blob_of_unknown_lengths_has_the_packed_matrix_only(
    form: str, precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise each process that imports the blob would pack a matrix of its own, and share none."""
    # Also on a CPU without bf16, by slower kernels.
    monkeypatch.setattr("engine_cpu.network.precision_of", lambda config, isa, **_: config["INFERENCE_PRECISION_HINT"])
    core, a, data = Core(), parameter("a", [None, 256]), values(512, 256) / 16
    if form == "Gemm transB":
        node = ops.Gemm(a, Constant(data), transB=1)
    else:
        node = getattr(ops, form)(a, Constant(np.ascontiguousarray(data.T)))
    network = core.compile_model(Model([node], [a]), "CPU", {"INFERENCE_PRECISION_HINT": precision})
    blob = io.BytesIO()
    network.export_model(blob)
    assert len(blob.getvalue()) < 1.5 * data.nbytes

    def fail(*_: object, **__: object) -> None:
        raise AssertionError("packed again")

    monkeypatch.setattr("engine_cpu.lowering.factor.Packing", fail)
    imported = core.import_model(blob.getvalue())
    for rows in (1, 5, 6, 7):
        (actual,), (expected,) = imported([values(rows, 256)]).values(), network([values(rows, 256)]).values()
        np.testing.assert_array_equal(actual, expected)


@pytest.mark.parametrize("right", ["computed", "a stack"])
def test_what_cannot_be_packed_ahead_is_multiplied_with_unknown_lengths(right: str) -> None:
    """Neither a matrix that is an input, nor a stack of constant ones, can be packed before lengths are known."""
    b = values(64, 96) if right == "computed" else values(2, 64, 96)
    a = parameter("a", [None, 64])
    factor = parameter("b", list(b.shape)) if right == "computed" else Constant(b)
    inputs = [a, factor] if right == "computed" else [a]
    network = Core().compile_model(Model([ops.MatMul(a, factor)], inputs), "CPU")
    for rows in (1, 5):
        given = [values(rows, 64), b][: len(inputs)]
        (actual,) = network(given).values()
        close(np.array(actual), given[0] @ b, 64)


def test_the_factor_of_what_is_computed_from_lengths_is_kept() -> None:
    """Such a product is computed when lengths are known, from the plain matrix, as a table of positions is."""
    a, weights = parameter("a", [None, 3]), Constant(values(64, 96) / 8)
    length = ops.Cast(ops.Slice(ops.Shape(a), Constant(np.array([0])), Constant(np.array([1]))), to=f32.onnx)
    table = ops.MatMul(ops.Mul(ops.Reshape(length, Constant(np.array([1, 1]))), Constant(values(1, 64))), weights)
    core = Core()
    network = core.compile_model(Model([ops.Add(ops.ReduceSum(a), table)], [a]), "CPU")
    blob = io.BytesIO()
    network.export_model(blob)
    for compiled in (network, core.import_model(blob.getvalue())):
        for rows in (2, 3, 5):
            given = values(rows, 3)
            (actual,) = compiled([given]).values()
            expected = given.sum() + rows * values(1, 64) @ weights.data
            np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("has_other_product", [False, True])
def test_a_network_that_has_counted_rows_can_be_exported_again(has_other_product: bool) -> None:
    """Lengths that follow from data are known in an inference, whose plans also read the packed matrix."""
    a, weights = parameter("a", [None, 64]), Constant(values(64, 96) / 8)
    positive = ops.Greater(ops.ReduceSum(a, Constant(np.array([1])), keepdims=0), Constant(np.float32(0)))
    results = [ops.MatMul(ops.Compress(a, positive, axis=0), weights)]
    if has_other_product:
        results.append(ops.MatMul(a, weights))
    core, given = Core(), values(7, 64)
    network = core.compile_model(Model(results, [a]), "CPU")
    expected = [given[given.sum(1) > 0] @ weights.data, given @ weights.data]
    for _ in range(3):
        for actual, wanted in zip(network([given]).values(), expected, strict=False):
            close(np.array(actual), wanted, 64)
        blob = io.BytesIO()
        network.export_model(blob)
        assert len(blob.getvalue()) < 1.5 * weights.byte_size
        network = core.import_model(blob.getvalue())


@pytest.mark.parametrize("trans_b", [False, True])
@pytest.mark.parametrize("rows", [1, 3, 30])
@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize("activation", [None, Activation("Relu"), Activation("Gelu"), Activation("Clip", (-0.5, 0.25))])
@pytest.mark.parametrize("is_constant", [False, True])
def test_fused_products(
    rows: int, residual: bool, activation: Activation | None, trans_b: bool, is_constant: bool
) -> None:
    a, b, bias = values(2, rows, 20), values(*((37, 20) if trans_b else (20, 37)), seed=1), values(37, seed=2)
    added = values(2, rows, 37, seed=3)
    parameters = [parameter(str(index), array.shape) for index, array in enumerate((a, b, bias, added))]
    node = FusedMatMul(
        parameters[0],
        Constant(b) if is_constant else parameters[1],
        Constant(bias) if is_constant else parameters[2],
        parameters[3] if residual else None,
        activation=activation,
        trans_b=trans_b,
    )
    used = [(p, x) for p, x in zip(parameters, (a, b, bias, added), strict=True) if p.output(0).num_consumers]
    expected = ModelEvaluator(Model([node], [p for p, _ in used])).run([x for _, x in used])[0]
    close(run(node, [p for p, _ in used], *(x for _, x in used)), expected, 20)


@pytest.mark.parametrize("columns", [1, 3, 4, 5, 9, 15, 17])
@pytest.mark.parametrize("activation", [None, Activation("Relu"), Activation("Gelu")])
def test_many_rows_and_few_columns(columns: int, activation: Activation | None) -> None:
    """Columns are taken out of a packed tile, or whole vectors are written over the rows that follow."""
    for rows, depth in itertools.product((31, 32, 33, 100), (0, 1, 17, 64, 127)):
        a, b, bias = values(rows, depth), values(depth, columns, seed=1), values(columns, seed=2)
        added = values(rows, columns, seed=3)
        x, residual = parameter("a", a.shape), parameter("r", added.shape)
        has_residual = depth == 17
        node = FusedMatMul(x, Constant(b), Constant(bias), residual if has_residual else None, activation=activation)
        given, used = ([a, added], [x, residual]) if has_residual else ([a], [x])
        expected = ModelEvaluator(Model([node], used)).run(given)[0]
        close(run(node, used, *given), expected, depth)


@pytest.mark.parametrize("is_constant", [False, True])
def test_what_is_transposed_first(is_constant: bool) -> None:
    a, b = values(9, 4, seed=1), values(9, 11)
    left, x = parameter("a", a.shape), parameter("x", b.shape)
    if is_constant:
        close(run(ops.Gemm(Constant(a), x, transA=1), [x], b), a.T @ b, 9)
    else:
        close(run(ops.Gemm(left, x, transA=1), [left, x], a, b), a.T @ b, 9)


def test_what_no_kernel_computes_is_refused() -> None:
    a, c = parameter("a", [4, 5]), parameter("c", [4, 1])
    weights = Constant(values(5, 6))
    assert "C is" in str(decisions().refusal(ops.Gemm(a, weights, c)))
    assert "beta" in str(decisions().refusal(ops.Gemm(a, weights, parameter("d", [6]), beta=2.0)))
    wide = ops.MatMul(parameter("e", [1, 2, 1, 2, 1, 2, 1, 4, 5]), parameter("f", [2, 5, 6]))
    assert "batch dimensions" in str(decisions().refusal(wide))
    assert decisions().refusal(ops.Gemm(a, weights, parameter("g", [6]))) is None


def test_dimensions_of_a_batch_that_go_on_evenly_are_one() -> None:
    assert merged(batch_dims([2, 3, 4], [2, 3, 4], 10, 20, 30)) == (BatchDim(24, 10, 20, 30),)
    assert merged(batch_dims([2, 3, 4], [4], 10, 20, 30)) == (BatchDim(6, 40, 0, 120), BatchDim(4, 10, 20, 30))
    assert merged(batch_dims([1, 3], [1, 1], 10, 20, 30)) == (BatchDim(3, 10, 0, 30),)


EQUATIONS = [
    "ij,jk->ik", "ij,kj->ik", "ij,jk->ki", "bhqd,bhkd->bhqk", "bqhd,bkhd->bhqk", "bhqk,bkhd->bqhd", "bqhd,hdm->bqm",
    "bchw,hkc->bkhw", "abc,cd->abd", "ab,bc->ca", "i,j->ij", "i,i->", "bi,bi->b", "bi,bj->bij", "nchw,nc->nhw",
    "ab,a->b",
]  # fmt: skip
# The rows of the result would be columns.
REFUSED = {"ij,jk->ki", "ab,bc->ca"}
LENGTHS = dict(zip("abcdhijkmnqw", (2, 3, 4, 5, 6, 7, 8, 9, 10, 3, 11, 5), strict=True))


@pytest.mark.parametrize("equation", EQUATIONS)
@pytest.mark.parametrize("is_constant", [False, True])
def test_einsum_is_a_product_or_is_refused(equation: str, is_constant: bool) -> None:
    terms = equation.partition("->")[0].split(",")
    a, b = (values(*(LENGTHS[label] for label in term), seed=len(term)) for term in terms)
    parameters = [parameter("a", a.shape), parameter("b", b.shape)]
    node = ops.Einsum(parameters[0], Constant(b) if is_constant else parameters[1], equation=equation)
    if equation in REFUSED:
        assert "not a matrix product" in str(decisions().refusal(node))
        return
    given = [a] if is_constant else [a, b]
    result = run(node, parameters[: len(given)], *given)
    close(result, np.einsum(equation, a.astype(np.float64), b), 60)


@pytest.mark.parametrize(
    ("equation", "shapes"),
    [
        ("ij,jk->ki", [[2, 3], [3, 4]]),
        ("...ij,...jk->...ik", [["B", 2, 3], ["B", 3, 4]]),
        ("ij,jk,kl->il", [[2, 3], [3, 4], [4, 5]]),
        ("iij,jk->ik", [[3, 3, 2], [2, 4]]),
        ("ij,jk->ik", [[3, 1], [4, 5]]),
        ("abxcd,xbecf->xaefd", [[2, 3, 2, 3, 4], [2, 3, 5, 3, 2]]),
    ],
)
def test_what_is_no_product_as_it_lies_is_several_native_operators(
    equation: str, shapes: list[list[int | str]]
) -> None:
    """Nothing runs on the reference evaluator."""
    parameters = [Parameter(f32, shape, f"x{i}") for i, shape in enumerate(shapes)]
    model = Model([ops.Einsum(*parameters, equation=equation, friendly_name="product")], parameters)
    assert Core().query_model(model, "CPU")["product"].level is SupportLevel.NATIVE
    given = [values(*[2 if isinstance(n, str) else n for n in shape], seed=i) for i, shape in enumerate(shapes)]
    found = Core().compile_model(model, "CPU", {"ALLOW_REFERENCE": False})(given)[0]
    close(np.array(found), np.einsum(equation, *[x.astype(np.float64) for x in given]), 60)


def einsum(equation: str, *operands: Node) -> Node:
    return ops.Einsum(*operands, equation=equation)


def transformed(result: Node, *parameters: Parameter) -> list[str]:
    """The operators that the device runs."""
    graph = prepare_model(Model([result], list(parameters))).graph
    return [n.op_type for n in graph.ordered_nodes() if n.op_type not in ("Parameter", "Constant", "Result")]


def test_an_attention_by_einsum_is_one_operator() -> None:
    """A third faster than two products and a Softmax, for any batch."""
    q, k, v = (parameter(name, [1, 6, 2, 8]) for name in "qkv")
    scores = ops.Mul(einsum("bqhd,bkhd->bhqk", q, k), Constant(np.float32(0.5)))
    found = transformed(einsum("bhqk,bkhd->bqhd", ops.Softmax(scores, axis=-1), v), q, k, v)
    assert "Einsum" not in found
    assert "Softmax" not in found


def test_weights_take_a_bias_and_other_products_stay_as_they_lie() -> None:
    x, y = parameter("x", [2, 6, 8]), parameter("y", [2, 6, 8])
    weights, bias = Constant(values(8, 3, 4)), Constant(values(3, 4))
    linear = ops.Add(einsum("bsw,whd->bshd", x, weights), bias)
    assert "Einsum" not in transformed(linear, x)
    assert "Transpose" not in transformed(linear, x)
    assert transformed(einsum("bsw,btw->bst", x, y), x, y) == ["Einsum"]
    assert transformed(einsum("bsw,sw->bs", x, Constant(values(6, 8))), x) == ["Einsum"]


@pytest.mark.parametrize("equation", ["ij,jk", "iij,jk->ik", "ij,jk,kl->il", "...ij,jk->ik", "ij,jk->i", "ji,jk->ik"])
def test_other_equations_are_left_to_the_reference(equation: str) -> None:
    operands = [
        parameter(f"x{i}", [3] * len(term.strip("."))) for i, term in enumerate(equation.partition("->")[0].split(","))
    ]
    assert find_roles(EinsumSpec.of(einsum(equation, *operands))) is None


def test_an_einsum_that_broadcasts_a_length_is_refused() -> None:
    node = ops.Einsum(parameter("a", [3, 1]), parameter("b", [4, 5]), equation="ij,jk->ik")
    assert "expected equal lengths" in str(decisions().refusal(node))
