"""Operators that are defined by an expression: one declaration, and every device runs them as its own.

If this fails, an operator of a user is slow, or refused, on a device that has kernels for all that it consists of.
"""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest

from engine import Core, Extension, Operator, ops
from engine.errors import ExtensionError, ModelError, TypeInferenceError
from engine.ir import Constant, ElementType, Model, Parameter, PartialShape, bf16, f32, f64
from engine.ops.traits import Traits
from engine.passes import Manager
from engine.passes.common.common_optimizations import CommonOptimizations
from engine.plugin_api import SupportLevel
from engine.testing.facts import check_facts

DOMAIN = "test.expressions"
DEVICES = ("TEMPLATE", "CPU", "HETERO:CPU,TEMPLATE", pytest.param("OPENCL", marks=pytest.mark.opencl))
X = np.random.default_rng(1).normal(size=(2, 3, 8)).astype(np.float32)


def bump(x: Any, width: float) -> Any:
    return ops.Exp(ops.Neg(ops.Mul(ops.Mul(x, x), Constant(width, x.element_type))))


BUMP = Operator(
    name="Bump",
    domain=DOMAIN,
    inputs=["x"],
    attributes={"width": 1.0},
    expression=bump,
    traits=Traits(pointwise=True, range=(0.0, 1.0)),
)
MIX = Operator(
    name="Mix",
    domain=DOMAIN,
    inputs=["x", "w?"],
    outputs=["sum", "difference"],
    expression=lambda x, w: (x, ops.Neg(x)) if w is None else (ops.Add(x, w), ops.Sub(x, w)),
)


def broken(x: Any) -> Any:
    raise LookupError("no such thing")


BROKEN = Operator(name="Broken", domain=DOMAIN, inputs=["x"], expression=broken)
SHORT = Operator(name="Short", domain=DOMAIN, inputs=["x"], outputs=["a", "b"], expression=lambda x: ops.Neg(x))
NUMBER = Operator(name="Number", domain=DOMAIN, inputs=["x"], expression=lambda x: 3.0)


@pytest.fixture(scope="module")
def core() -> Core:
    made = Core()
    made.add_extension(Extension("expressions", "1.0", [BUMP, MIX, BROKEN, SHORT, NUMBER]))
    return made


def bumped(x: Any, width: float = 2.0, name: str = "bump") -> Any:
    return ops.create("Bump", [x], {"width": width}, domain=DOMAIN, friendly_name=name)


@pytest.mark.parametrize("device", DEVICES)
def test_an_invented_operator_runs_natively_and_from_a_blob(core: Core, device: str) -> None:
    x = Parameter(f32, ["N", 3, 8], "x")
    model = Model([ops.Add(bumped(ops.Relu(x)), Constant(1.0), friendly_name="y")], [x])
    assert core.query_model(model, device)["bump"].level is SupportLevel.NATIVE
    network = core.compile_model(model, device)
    result = network({"x": X})[0]
    np.testing.assert_allclose(result, np.exp(-2 * np.maximum(X, 0) ** 2) + 1, rtol=1e-6)
    stream = io.BytesIO()
    network.export_model(stream)
    np.testing.assert_array_equal(core.import_model(stream.getvalue(), device)({"x": X})[0], result)


@pytest.mark.parametrize("device", ["CPU", pytest.param("OPENCL", marks=pytest.mark.opencl)])
def test_it_is_computed_together_with_what_stands_around_it(core: Core, device: str) -> None:
    x = Parameter(f32, [2, 3, 8], "x")
    network = core.compile_model(Model([ops.Sqrt(bumped(x))], [x]), device, {"PERF_COUNT": True})
    request = network.create_infer_request()
    request.infer({"x": X})
    assert [(each.op_type, each.kernel) for each in request.profiling_info.nodes] == [("Sqrt", "elementwise")]


@pytest.mark.parametrize("element_type", [f32, f64, bf16], ids=str)
def test_types_follow_from_the_expression(core: Core, element_type: ElementType) -> None:
    node = bumped(Parameter(element_type, ["N", 4], "x"))
    assert str(node.output(0).type) == f"{element_type}[N,4]"
    assert bumped(Parameter(element_type, PartialShape.dynamic(), "x")).output(0).element_type is element_type


def test_it_is_folded_and_a_transpose_moves_past_it(core: Core) -> None:
    x = Parameter(f32, [2, 3, 8], "x")
    moved = ops.Transpose(bumped(ops.Transpose(x, perm=[0, 2, 1])), perm=[0, 2, 1])
    model = Model([ops.Add(moved, bumped(Constant(X), name="constant"))], [x])
    manager = Manager()
    manager.register_pass(CommonOptimizations)
    manager.run_passes(model)
    kinds = sorted(node.op_type for node in model.ordered_nodes())
    assert kinds == ["Add", "Bump", "Constant", "Parameter", "Result"]


def test_its_promises_are_checked_like_those_of_others(core: Core) -> None:
    assert {"pointwise", "range"} <= set(check_facts(bumped(Parameter(f32, [2, 3, 8], "x")), [X]))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("has_weights", [False, True])
def test_several_outputs_and_an_input_that_is_left_out(core: Core, device: str, has_weights: bool) -> None:
    x, w = Parameter(f32, [2, 3, 8], "x"), Parameter(f32, [8], "w")
    node = ops.create("Mix", [ops.Abs(x), w if has_weights else None], domain=DOMAIN, num_outputs=2)
    model = Model(node.outputs, [x, w] if has_weights else [x])
    weights = np.arange(8, dtype=np.float32)
    inputs = {"x": X, "w": weights} if has_weights else {"x": X}
    found = core.compile_model(model, device)(inputs)
    wanted = (abs(X) + weights, abs(X) - weights) if has_weights else (abs(X), -abs(X))
    for index, each in enumerate(wanted):
        np.testing.assert_array_equal(found[index], each)


@pytest.mark.parametrize(
    ("name", "error", "text"),
    [
        ("Broken", TypeInferenceError, "the type rule of expressions 1.0 refuses it: LookupError: no such thing"),
        ("Short", TypeInferenceError, "its expression returns .*; expected 2 nodes or values"),
        ("Number", TypeInferenceError, r"its expression returns 3\.0; expected 1 nodes or values"),
    ],
)
def test_an_expression_that_is_wrong_is_an_error_that_names_the_node(
    core: Core, name: str, error: type[ModelError], text: str
) -> None:
    with pytest.raises(error, match=text):
        ops.create(name, [Parameter(f32, [2], "x")], domain=DOMAIN)


def test_what_follows_from_an_expression_is_not_declared_again() -> None:
    with pytest.raises(ExtensionError, match="infer and evaluate follow from its expression"):
        Operator(name="Both", domain=DOMAIN, inputs=["x"], expression=bump, evaluate=np.negative)
    with pytest.raises(ExtensionError, match="expression must be a function; got 3"):
        Operator(name="Both", domain=DOMAIN, inputs=["x"], expression=3)  # type: ignore[arg-type]
    with pytest.raises(ExtensionError, match="infer must be a function; got None"):
        Operator(name="Both", domain=DOMAIN, inputs=["x"], evaluate=np.negative)
