"""Einsum as operators that devices have. If it fails, networks that say Einsum get wrong numbers, or lose speed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine import ops
from engine.errors import EngineError, TypeInferenceError
from engine.ir import Constant, Dimension, ElementType, Model, Parameter, bf16, f16, f32
from engine.onnx import model_to_proto
from engine.ops import evaluate_model
from engine.ops.einsum import Equation, parse_equation
from engine.passes.common.einsum_decomposition import EinsumDecomposition
from engine.testing.onnx_suite import CASES
from engine.testing.passes import check_pass

ORACLE_TYPES = (np.float32, np.float64, np.int32, np.int64)
"""The element types for which onnxruntime has an Einsum."""


def model_of(equation: str, *shapes: Any, element_type: ElementType = f32) -> Model:
    parameters = [Parameter(element_type, shape, f"x{i}") for i, shape in enumerate(shapes)]
    return Model([ops.Einsum(*parameters, equation=equation, friendly_name="product")], parameters)


def operators(model: Model) -> list[str]:
    leaves = ("Parameter", "Constant", "Result")
    return [node.op_type for node in model.ordered_nodes() if node.op_type not in leaves]


@st.composite
def equations(draw: st.DrawFn) -> tuple[str, list[list[int]]]:
    """An equation that numpy takes, with its shapes: diagonals, '...', lengths of zero, and of one, which repeat."""
    letters = draw(st.sampled_from(["ab", "cba", "abcde", "aXbY"]))
    lengths = {letter: draw(st.sampled_from([0, 1, 2, 3, 4])) for letter in letters}
    hidden = draw(st.lists(st.sampled_from([0, 1, 2, 3]), max_size=2))
    has_dots = draw(st.booleans())
    terms, shapes = [], []
    for _ in range(draw(st.integers(1, 4))):
        letters_of_term = draw(st.lists(st.sampled_from(letters), max_size=4))
        may_repeat = Counter(letters_of_term)
        own = {x: 1 if may_repeat[x] == 1 and draw(st.integers(0, 7)) == 0 else lengths[x] for x in letters_of_term}
        shape, place = [own[x] for x in letters_of_term], draw(st.integers(0, len(letters_of_term)))
        term = "".join(letters_of_term)
        if has_dots:
            around = [draw(st.sampled_from([1, length])) for length in hidden]
            term, shape = f"{term[:place]}...{term[place:]}", [*shape[:place], *around, *shape[place:]]
        terms.append(term)
        shapes.append(shape)
    equation = draw(st.sampled_from([",", " , "])).join(terms)
    if draw(st.integers(0, 3)):
        present = sorted({x for term in terms for x in term} - {"."})
        result = draw(st.permutations([x for x in present if draw(st.booleans())]))
        if has_dots:
            result.insert(draw(st.integers(0, len(result))), "...")
        equation += "->" + "".join(result)
    return equation, shapes


@settings(max_examples=120, deadline=None)
@given(
    equations(), st.sampled_from(["static", "symbols", "unknown"]), st.sampled_from([*ORACLE_TYPES, np.int8]), st.data()
)
def test_any_equation_computes_what_numpy_and_onnxruntime_do(
    case: tuple[str, list[list[int]]], kind: str, dtype: type[Any], data: st.DataObject
) -> None:
    """Exactly: the numbers are small and whole. Lengths may be known, named, or unknown."""
    equation, shapes = case
    random = np.random.default_rng(data.draw(st.integers(0, 99)))
    feed = {f"x{i}": random.integers(-3, 4, shape).astype(dtype) for i, shape in enumerate(shapes)}
    element_type = ElementType.from_numpy(np.dtype(dtype))
    model = model_of(equation, *[[dim_of(n, kind) for n in shape] for shape in shapes], element_type=element_type)
    expected = np.einsum(equation, *feed.values())
    before = model_to_proto(model).SerializeToString()
    check_pass(EinsumDecomposition, model, equivalent=False)
    assert "Einsum" not in operators(model)
    assert model.node("product").op_type == operators(model)[-1]
    found = evaluate_model(model, feed)[0]
    assert found.dtype == expected.dtype
    np.testing.assert_array_equal(found, expected)
    # onnxruntime divides by a length of zero, and knows no capital letters in some of the places where they may stand.
    if dtype in ORACLE_TYPES and not any(0 in shape for shape in shapes) and equation == equation.lower():
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        oracle = onnxruntime.InferenceSession(before, options, providers=["CPUExecutionProvider"])
        np.testing.assert_array_equal(oracle.run(None, feed)[0], expected)


def dim_of(length: int, kind: str) -> Dimension | int | str:
    """A length as a model may state it. Labels that are summed over have to be of one length unless it is known."""
    if kind == "static" or length == 1:
        return length
    return f"n{length}" if kind == "symbols" else Dimension()


@pytest.mark.parametrize("name", sorted(name for name in CASES if name.startswith("test_einsum")))
def test_the_cases_of_onnx(name: str) -> None:
    from engine.onnx import read_model

    case = CASES[name]
    assert case.model is not None
    assert case.data_sets is not None
    model = read_model(case.model)
    check_pass(EinsumDecomposition, model, equivalent=False)
    for inputs, (expected,) in case.data_sets:
        names = [parameter.friendly_name for parameter in model.parameters]
        found = evaluate_model(model, dict(zip(names, inputs, strict=True)))[0]
        # A dozen roundings of f32: the suite's sums have up to five terms.
        np.testing.assert_allclose(found.astype(np.float64), np.asarray(expected, np.float64), rtol=1e-6)


@pytest.mark.parametrize(
    ("equation", "shapes", "expected"),
    [
        ("ij,jk->ik", [[2, 3], [3, 4]], ["MatMul"]),
        ("ij,jk->ik", [["N", "K"], ["K", "M"]], ["MatMul"]),
        ("abc,cd->abd", [["N", "M", "K"], ["K", 4]], ["MatMul"]),
        ("ij,jk->ki", [[2, 3], [3, 4]], ["MatMul", "Transpose"]),
        ("bhqd,bhkd->bhqk", [["B", 2, "Q", 8], ["B", 2, "K", 8]], ["Transpose", "MatMul"]),
        ("bhqk,bhkd->bhqd", [["B", 2, "Q", "K"], ["B", 2, "K", 8]], ["MatMul"]),
        ("...qd,...dk->...qk", [[2, 3, 4, 5], [2, 1, 5, 6]], ["Squeeze", "Reshape", "MatMul", "Reshape"]),
        ("bhqk,bhkd->bhqd", [[1, 2, 3, 4], [1, 2, 4, 8]], ["MatMul"]),
        ("bij,bj->bi", [[2, 3, 4], [2, 4]], ["Unsqueeze", "MatMul", "Squeeze"]),
        ("bchw,hkc->bkhw", [[2, 4, 5, 3], [5, 6, 4]], None),
        ("i,j->ij", [[3], [4]], ["Unsqueeze", "Mul"]),
        ("i,i->", [[3], [3]], ["Mul", "ReduceSum"]),
        ("ij->", [[3, 4]], ["ReduceSum"]),
        ("ij->ji", [[3, 4]], ["Transpose"]),
        ("ij->ij", [[3, 4]], ["Identity"]),
        ("ii->i", [[3, 3]], ["Reshape", "Slice"]),
        ("ii->", [["N", "N"]], ["Shape", "Add", "Reshape", "Slice", "ReduceSum"]),
        ("ab,bc,cd->ad", [[2, 2], [2, 1000], [1000, 3]], ["MatMul", "MatMul"]),
    ],
)
def test_what_becomes_of_an_equation(equation: str, shapes: list[list[Any]], expected: list[str] | None) -> None:
    """No transposes, copies or sums more than it takes."""
    model = model_of(equation, *shapes)
    check_pass(EinsumDecomposition, model, dims={"N": 3, "K": 4, "M": 2, "B": 2, "Q": 3})
    if expected is not None:
        assert sorted(operators(model)) == sorted(expected)


def test_the_order_of_several_operands_is_the_cheapest() -> None:
    """A chain of matrices whose last is a vector is a chain of vectors: 10^6 products, not 10^9."""
    model = model_of("ab,bc,cd->ad", [1000, 1000], [1000, 1000], [1000, 1])
    check_pass(EinsumDecomposition, model, equivalent=False)
    shapes = [node.output(0).shape for node in model.ordered_nodes() if node.op_type == "MatMul"]
    assert shapes == [[1000, 1], [1000, 1]]


def test_weights_are_rearranged_when_the_model_is_built() -> None:
    """Not at each inference, whichever operand they are and in any order of their axes."""
    weights = Constant(np.arange(24, dtype=np.float32).reshape(4, 3, 2))  # [head, size, width]
    for equation, order in (("btm,hdm->bthd", 0), ("hdm,btm->bthd", 1)):
        x = Parameter(f32, ["B", "T", 2], "x")
        operands = (x, weights) if order == 0 else (weights, x)
        model = Model([ops.Einsum(*operands, equation=equation)], [x])
        check_pass(EinsumDecomposition, model)
        assert "Transpose" not in operators(model)
        assert operators(model).count("MatMul") == 1


def test_a_diagonal_of_no_square_fails_when_it_runs() -> None:
    """If the lengths are not known before; every fourth of six elements is not a diagonal."""
    model = model_of("ii->i", [Dimension(), Dimension()])
    assert EinsumDecomposition().run_on_model(model)
    with pytest.raises(EngineError, match="Reshape"):
        evaluate_model(model, {"x0": np.ones((3, 2), np.float32)})


@pytest.mark.parametrize("element_type", [f16, bf16])
def test_sums_of_products_are_rounded_once(element_type: ElementType) -> None:
    """As numpy and the products of matrices do: products that would overflow f16 cancel."""
    model = model_of("i,i->", [3], [3], element_type=element_type)
    big = np.array([300, 300, 1]).astype(element_type.numpy)
    check_pass(EinsumDecomposition, model, equivalent=False)
    found = evaluate_model(model, {"x0": big, "x1": big * np.array([1, -1, 1]).astype(element_type.numpy)})[0]
    assert found.dtype == big.dtype
    assert found == 1


@pytest.mark.parametrize("make", [lambda: Constant(np.ones((2, 2), np.float32)), lambda: Parameter(f32, None, "x")])
def test_constants_and_unknown_ranks_are_left_alone(make: Callable[[], Constant | Parameter]) -> None:
    operand = make()
    parameters = [operand] if isinstance(operand, Parameter) else []
    model = Model([ops.Einsum(operand, equation="ij->ji")], parameters)
    assert not EinsumDecomposition().run_on_model(model)


@pytest.mark.parametrize(
    ("equation", "shapes", "reason"),
    [
        ("ij,jk->ik", [[2, 3], [4, 5]], "label j has lengths 3 and 4; expected equal lengths or 1"),
        ("ii->i", [[1, 3]], "label i has lengths 1 and 3 in one operand; expected one length"),
    ],
)
def test_lengths_that_contradict_each_other_are_told_by_label(equation: str, shapes: Any, reason: str) -> None:
    with pytest.raises(TypeInferenceError, match=reason):
        model_of(equation, *shapes)


@pytest.mark.parametrize(
    ("equation", "ranks", "expected"),
    [
        ("ij,jk->ik", (2, 2), Equation((("i", "j"), ("j", "k")), ("i", "k"))),
        ("b a", (2,), Equation((("b", "a"),), ("a", "b"))),
        ("aB,Bc", (2, 2), Equation((("a", "B"), ("B", "c")), ("a", "c"))),
        ("a...b,...", (4, 2), Equation((("a", "1", "0", "b"), ("1", "0")), ("1", "0", "a", "b"))),
        ("i...->...", (1,), Equation((("i",),), ())),
        ("i->...i", (1,), Equation((("i",),), ("i",))),
        ("ij->i", (3,), None),
        ("ij->i", (1,), None),
        ("i...->i", (2,), None),
        ("i->ii", (1,), None),
        ("i->j", (1,), None),
        ("i,j", (1,), None),
        ("i...,...->...", (2, 2), None),
        ("i-", (1,), None),
    ],
)
def test_what_an_equation_says(equation: str, ranks: tuple[int, ...], expected: Equation | None) -> None:
    assert parse_equation(equation, ranks) == expected
