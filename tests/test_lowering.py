"""The common parts of devices with kernels: a table of lowerings, checks that refuse with a reason, answers to queries.

If this fails, a plugin claims what it cannot run, or a partitioner separates what runs only together.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from onnx import TensorProto, helper

from engine import Core, ops
from engine.errors import InputError, ModelError
from engine.ir import Constant, Model, Node, Parameter, PartialShape, SequenceType, f32, f64, i64
from engine.lowering import (
    Decisions,
    Lowering,
    LoweringTable,
    Refusal,
    RefusalCause,
    answer_query,
    check_constant,
    check_types,
    first_refusal,
    fold,
    prepare,
    query,
)
from engine.lowering.binding import bind_inputs
from engine.ops.spec import OperatorSpec
from engine.passes.folding import MAX_OUTPUT_BYTES
from engine.passes.runtime_info import FUSED_NAMES, is_operation
from engine.plugin_api import Support
from engine.testing.behaviour.cases import make_model, tensor


class F32Lowering(Lowering[OperatorSpec]):
    def check(self, spec: OperatorSpec) -> Refusal | None:
        return first_refusal(check_types(spec.node.input_values[:1], {f32}), check_constant(spec.node, 1))


@pytest.fixture
def table() -> LoweringTable[F32Lowering]:
    made: LoweringTable[F32Lowering] = LoweringTable()
    made.lowers("Relu", "Reshape")(F32Lowering)
    return made


def test_an_operator_is_found_by_name_and_domain(table: LoweringTable[F32Lowering]) -> None:
    node = ops.Relu(Parameter(f32, [2], "x"))
    assert isinstance(table.decide(node).lowering, F32Lowering)
    assert table.decide(node).spec == OperatorSpec.of(node)
    other: LoweringTable[F32Lowering] = LoweringTable()
    other.lowers("Relu", domain="com.vendor")(F32Lowering)
    assert other.decide(node).refusal == Refusal(RefusalCause.OP, "Relu has no kernel on this device")


def test_an_operator_has_one_lowering(table: LoweringTable[F32Lowering]) -> None:
    with pytest.raises(ValueError, match="Relu of domain '' has two lowerings"):
        table.lowers("Relu")(F32Lowering)
    table.lowers_on_demand("engine.no_module", "Gelu")
    with pytest.raises(ValueError, match="Gelu of domain '' has two lowerings"):
        table.lowers("Tanh", "Gelu")(F32Lowering)
    assert ("", "Tanh") not in table.operators


def test_refusals_name_the_value_and_what_is_expected(table: LoweringTable[F32Lowering]) -> None:
    wide = table.decide(ops.Relu(Parameter(f64, [2], "x"))).refusal
    assert wide == Refusal(RefusalCause.ELEMENT_TYPE, "x is f64[2]; expected one of f32")
    unknown = table.decide(ops.Relu(Parameter(f32, PartialShape.dynamic(), "x"))).refusal
    assert unknown == Refusal(RefusalCause.DYNAMIC_SHAPE, "the rank of x is unknown")
    computed = table.decide(ops.Reshape(Parameter(f32, [4], "x"), Parameter(i64, [2], "shape"))).refusal
    assert computed is not None
    assert computed.cause == "constant"
    assert "input 1 (shape) is computed at run time" in computed.reason


def test_what_lengths_alone_decide_needs_no_kernel(table: LoweringTable[F32Lowering]) -> None:
    """Exporters flatten by arithmetic on shapes, for which few devices have kernels."""
    x = Parameter(f32, [-1, 3, 2], "x")
    lengths = ops.Mod(ops.Shape(x), Constant(np.array([7, 7, 7])))
    y = ops.Reshape(x, lengths)
    z = ops.Mod(x, Constant(np.float32(2)), fmod=1)
    found = dict(Decisions(table).refusals(Model([y, z], [x])))
    assert {node: why.cause for node, why in found.items()} == {z: "op"}


def test_random_numbers_are_no_constants(table: LoweringTable[F32Lowering]) -> None:
    x = Parameter(f32, [-1], "x")
    random = ops.RandomUniformLike(ops.ConstantOfShape(ops.Shape(x)))
    found = dict(Decisions(table).refusals(Model([ops.Reshape(x, ops.Shape(random))], [x])))
    assert [node.op_type for node in found] == ["RandomUniformLike"]


def test_operations_that_run_only_together_are_an_atom() -> None:
    x = Parameter(f32, [2], "x")
    a = ops.Erf(x, friendly_name="a")
    b = ops.Relu(a, friendly_name="b")
    c = ops.Exp(b, friendly_name="c")
    model = Model([ops.Neg(c, friendly_name="d")], [x])
    fused = ops.Relu(x, friendly_name="c")
    fused.rt_info[FUSED_NAMES] = ("a", "b", "c")
    graph = Model([ops.Neg(fused, friendly_name="d")], [x])

    def support(node: Node) -> Support:
        return Support.native() if node.op_type == "Relu" else Support.refused(RefusalCause.OP, "no kernel")

    answer = answer_query(model, graph, support)
    assert {name: support.level.value for name, support in answer.nodes.items()} == {
        **dict.fromkeys("abc", "native"),
        "d": "refused",
    }
    assert answer.atoms == (frozenset("abc"),)
    assert answer_query(model, graph, support, alone=lambda node: Support.native()).atoms == ()


def test_answers_are_about_nodes_without_names_too(table: LoweringTable[F32Lowering]) -> None:
    x = Parameter(f64, [2], "x")
    model = Model([ops.Exp(ops.Relu(x))], [x])
    graph = model.clone()
    reasons = dict(Decisions(table).refusals(graph))
    answer = answer_query(
        model,
        graph,
        lambda node: Support.refused(RefusalCause.OP, "no kernel") if node in reasons else Support.native(),
    )
    assert [support.level.value for support in answer.nodes.values()] == ["refused", "refused"]


def f32_graph(*results: Node, x: Parameter) -> Model:
    return Model(list(results), [x], name="case")


def test_what_follows_from_constants_is_folded_before_it_is_lowered(table: LoweringTable[F32Lowering]) -> None:
    """A query calls it native since it folds away, so the graph that is compiled must be without it."""
    x = Parameter(f32, [3], "x")
    negative = ops.Neg(Constant(np.array([3])))
    model = f32_graph(ops.Reshape(ops.Relu(x), ops.Abs(negative)), x=x)
    assert query(model, table).is_supported
    prepared = prepare(model, table)
    prepared.require_kernels("MINE")
    assert [node.op_type for node in prepared.graph.ordered_nodes() if is_operation(node)] == ["Relu", "Reshape"]
    assert [node.op_type for node in model.ordered_nodes() if is_operation(node)] == ["Relu", "Neg", "Abs", "Reshape"]


def test_what_has_no_kernel_is_folded_whatever_its_size(table: LoweringTable[F32Lowering]) -> None:
    x = Parameter(f32, [1], "x")
    large = ops.Expand(Constant(np.uint8(1)), Constant(np.array([MAX_OUTPUT_BYTES + 1])))
    model = Model([large, ops.Relu(x)], [x])
    assert query(model, table).is_supported
    prepared = prepare(model, table)
    assert prepared.refusals() == {}
    assert [node.op_type for node in prepared.graph.ordered_nodes() if is_operation(node)] == ["Relu"]


def test_indices_that_folding_finds_out_of_range_are_refused(table: LoweringTable[F32Lowering]) -> None:
    """With the node's name, by queries and compilations."""
    x = Parameter(i64, [2], "x")
    indices = ops.Add(Constant(np.array([3])), Constant(np.array([4])))
    gathered = ops.Gather(Constant(np.array([1, 2])), indices, friendly_name="culprit")
    model = Model([gathered, x], [x])
    for attempt in (query, prepare):
        with pytest.raises(ModelError, match=r"Gather `culprit`: index 7 is out of range"):
            attempt(model, table)


def computed_lengths(x: Parameter) -> Node:
    """A Reshape whose lengths follow from another Reshape's, which follow from x's."""
    rows = ops.Reshape(ops.Relu(x), ops.Mod(ops.Shape(x), Constant(np.array([100, 7, 7]))))
    lengths = ops.Mod(ops.Shape(rows), Constant(np.array([100, 7, 7])))
    return ops.Reshape(rows, ops.Concat(lengths, Constant(np.array([1])), axis=0), friendly_name="y")


def test_lengths_are_folded_until_nothing_more_follows(table: LoweringTable[F32Lowering]) -> None:
    x = Parameter(f32, [-1, 3, 2], "x")
    model = f32_graph(computed_lengths(x), x=x)
    assert query(model, table).is_supported
    prepared = prepare(model, table)
    assert not prepared.is_static
    for rows in (1, 5):
        bound = prepared.at(((rows, 3, 2),))
        assert bound.is_static
        assert bound.refusals() == {}
        operations = [node for node in bound.graph.ordered_nodes() if is_operation(node)]
        assert [node.op_type for node in operations] == ["Relu", "Reshape", "Reshape"]
        assert operations[-1].output(0).shape == PartialShape([rows, 3, 2, 1])
        assert all(isinstance(node.input_value(1).node, Constant) for node in operations[1:])
        assert fold(bound.graph, table)[operations[-1]].refusal is None
    assert prepared.graph.parameters[0].output(0).shape.is_dynamic, "what was bound is a copy"


def added_rows(x: Parameter) -> Node:
    return ops.Add(x, Constant(np.zeros((4, 3, 2), np.float32)))


@pytest.mark.parametrize("build", [added_rows, computed_lengths], ids=["in the graph", "by what is folded"])
def test_lengths_that_do_not_fit_are_the_inputs_error(
    table: LoweringTable[F32Lowering], build: Callable[[Parameter], Node]
) -> None:
    x = Parameter(f32, [-1, 3, 2], "x")
    prepared = prepare(f32_graph(ops.Relu(build(x)), x=x), table)
    with pytest.raises(InputError, match=r"model `case` cannot take inputs x \[150, 3, 2\]"):
        prepared.at(((150, 3, 2),))


def test_a_branch_that_is_never_taken_may_not_fit(table: LoweringTable[F32Lowering]) -> None:
    """As an exporter writes it for other lengths: folding what follows from lengths must not refuse it."""
    then = helper.make_graph([helper.make_node("Add", ["x", "four"], ["sum"])], "then", [], [tensor("sum", None)])
    other = helper.make_graph([helper.make_node("Neg", ["x"], ["negative"])], "other", [], [tensor("negative", None)])
    nodes = [
        helper.make_node("Shape", ["x"], ["lengths"]),
        helper.make_node("Mod", ["lengths", "seven"], ["target"]),
        helper.make_node("Reshape", ["x", "target"], ["rows"]),
        helper.make_node("If", ["condition"], ["chosen"], then_branch=then, else_branch=other),
    ]
    proto = make_model(
        nodes,
        [tensor("condition", [], TensorProto.BOOL), tensor("x", ["N"])],
        [tensor("rows", ["M"]), tensor("chosen", None)],
        {"four": np.zeros(4, np.float32), "seven": np.array([7])},
    )
    bound = prepare(Core().read_model(proto), table).at(((), (3,)))
    assert [node.op_type for node in bound.refusals()] == ["If"]
    assert bound.graph.results[0].input_value(0).shape == PartialShape([3])


@pytest.mark.parametrize("order", [("Erf", "Relu"), ("Relu", "Erf")])
def test_an_operation_runs_as_badly_as_the_worst_of_those_that_replace_it(order: tuple[str, str]) -> None:
    x = Parameter(f32, [2], "x")
    model = Model([ops.Gelu(x, friendly_name="a")], [x])
    inner = ops.create(order[0], [x])
    outer = ops.create(order[1], [inner], friendly_name="a")
    for node in (inner, outer):
        node.rt_info[FUSED_NAMES] = ("a",)

    def support(node: Node) -> Support:
        return Support.native() if node.op_type == "Relu" else Support.refused(RefusalCause.OP, "no kernel")

    assert answer_query(model, Model([outer], [x]), support)["a"].level.value == "refused"


@pytest.mark.parametrize(
    ("value", "cause"),
    [
        (Parameter(f32, [2]), None),
        (Parameter(f64, [2]), RefusalCause.ELEMENT_TYPE),
        (Parameter(SequenceType()), RefusalCause.ELEMENT_TYPE),
        (Parameter(f32, PartialShape.dynamic()), RefusalCause.DYNAMIC_SHAPE),
    ],
    ids=["right", "wider", "sequence", "unknown rank"],
)
def test_types_are_checked_after_an_input_that_is_omitted(value: Parameter, cause: RefusalCause | None) -> None:
    refused = check_types([Parameter(f32, [3]).output(0), None, value.output(0)], {f32})
    assert (refused and refused.cause) == cause


class ShapedLowering(F32Lowering):
    values = (1,)


@pytest.mark.parametrize(
    ("make", "bound"),
    [
        (lambda k: k, (1,)),
        (lambda k: ops.Add(k, Constant(np.array([1]))), (1,)),
        (lambda k: ops.Concat(ops.Neg(k), ops.Neg(ops.Neg(k)), axis=0), (1,)),
        (lambda k: Constant(np.array([4])), ()),
        (lambda k: ops.Add(k, ops.Cast(ops.RandomUniformLike(k, dtype=TensorProto.FLOAT), to=TensorProto.INT64)), ()),
    ],
    ids=["input", "computed", "computed twice", "constant", "random"],
)
def test_a_plan_is_made_for_the_inputs_that_lengths_are_computed_from(
    make: Callable[[Node], Node], bound: tuple[int, ...]
) -> None:
    made: LoweringTable[ShapedLowering] = LoweringTable()
    made.lowers("Reshape")(ShapedLowering)
    x, k = Parameter(f32, [4], "x"), Parameter(i64, [1], "k")
    assert bind_inputs(Model([ops.Reshape(x, make(k))], [x, k]), made) == bound
