"""Query answers for the user's model, derived from the decisions for the transformed one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final, Generic

from engine.ir import Constant, Model, Node, Output, TensorType
from engine.lowering.decisions import Decisions
from engine.lowering.prepare import prepare
from engine.lowering.refusal import Refusal
from engine.lowering.table import LoweringT, LoweringTable
from engine.ops.registry import INTERNAL_DOMAIN
from engine.ops.traits import traits_of
from engine.passes import PassPipeline
from engine.passes.runtime_info import FUSED_NAMES, is_operation
from engine.plugin_api import QueryResult, Support, SupportLevel

_CODES: Final = frozenset({"u8", "i8"})
_REALS: Final = frozenset({"f64", "f32", "f16", "bf16"})


def query(
    model: Model,
    table: LoweringTable[LoweringT],
    passes: PassPipeline | None = None,
    without_kernel: Callable[[Node, Refusal], Support] | None = None,
) -> QueryResult:
    """The support of the operations of `model`, as `prepare(model, table, passes)` decides it.

    `without_kernel` gives the support of an operation without a kernel; by default it is refused. Each answer names the
    precision of the operation, and for products of quantized values that are not computed on integers, the reason.
    """
    prepared, alone = prepare(model, table, passes, keep_names=True), _Alone(table, passes)
    refusals, answer = prepared.refusals(), without_kernel or _refused

    def support(node: Node, why: Refusal | None) -> Support:
        given = Support.native() if why is None else answer(node, why)
        if given.level is SupportLevel.REFUSED:
            return given
        precision = precision_of(node)
        return replace(given, precision=precision, precision_reason=why_real(node) if precision in _REALS else "")

    return answer_query(
        model,
        prepared.graph,
        lambda node: support(node, refusals.get(node)),
        lambda node: support(node, alone.refusal(node)),
    )


def _refused(node: Node, why: Refusal) -> Support:
    return Support.refused(why.cause, why.reason)


class _Alone(Generic[LoweringT]):
    """How single operations of a model would run, each as a model of its own."""

    def __init__(self, table: LoweringTable[LoweringT], passes: PassPipeline | None) -> None:
        self._table, self._passes = table, passes
        self._decisions = Decisions(table)
        self._known: dict[object, Refusal | None] = {}

    def refusal(self, node: Node) -> Refusal | None:
        """Why the device has a kernel neither for `node` nor for the nodes that replace it; None if it has one."""
        why = self._decisions.refusal(node)
        if why is None or self._passes is None or node.bodies:
            return why
        values = [value for value in node.input_values if value is not None]
        if any(not isinstance(value.type, TensorType) for value in values):
            return why
        read = tuple(output.num_consumers > 0 for output in node.outputs)
        key = node.domain, node.op_type, repr(node.attributes), read, tuple(map(_key_of, node.input_values))
        if key not in self._known:
            from engine.lowering.single_node import single_node_model  # most queries need none

            refusals = prepare(single_node_model(node), self._table, self._passes).refusals()
            self._known[key] = next(iter(refusals.values()), None)
        return self._known[key]


def _key_of(value: Output | None) -> object:
    return None if value is None else (value.type, isinstance(value.node, Constant))


def answer_query(
    model: Model, graph: Model, support: Callable[[Node], Support], alone: Callable[[Node], Support] | None = None
) -> QueryResult:
    """The support of the operations of `model`; `graph` is its copy, transformed by the device's passes.

    `support` gives the support of an operation of `graph`, and `alone` (default: `support`) the support of a single
    operation of `model`. An operation has the support of the one that it was fused into; folded operations count as
    native. Operations that were fused into one are an atom if some of them would run worse alone: those fused only for
    speed may be separated.
    """
    named = {node.friendly_name: node for node in model.ordered_nodes() if is_operation(node)}
    answers: dict[str, Support] = {}
    atoms = []
    for node in graph.ordered_nodes():
        if not is_operation(node):
            continue
        names = {*node.rt_info.get(FUSED_NAMES, ()), node.friendly_name} & named.keys()
        together = support(node)
        answers |= {name: _joined(answers.get(name), together, named[name]) for name in names}
        if len(names) > 1 and any(_is_worse((alone or support)(named[name]), together) for name in names):
            atoms.append(names)
    nodes = {name: _with_reason(node, answers.get(name, Support.native())) for name, node in named.items()}
    return QueryResult(nodes, _disjoint(atoms))


def _joined(first: Support | None, support: Support, node: Node) -> Support:
    """The support of an operation of the model that several of the graph replace: the worst of them.

    The precision is the one of products.
    """
    if first is not None and _is_worse(first, support):
        return first
    if first is not None and _is_worse(support, first):
        return support
    if not _is_product(node):
        support = replace(support, precision_reason="")
    if first is None or support.precision in _CODES:
        return support
    if first.precision in _CODES or first.precision_reason:
        return replace(support, precision=first.precision, precision_reason=first.precision_reason)
    return support


def _with_reason(node: Node, support: Support) -> Support:
    """`support` of an operation of the model, with a reason if the operation is quantized and computed on reals."""
    if support.precision not in _REALS or support.precision_reason or _only_moves(node):
        return support
    sources = [value.node for value in node.input_values if value is not None]
    is_quantized = any(source.op_type == "DequantizeLinear" and not _is_constant(source) for source in sources)
    if not is_quantized and not node.op_type.startswith("QLinear"):
        return support
    return replace(support, precision_reason=f"the device has no kernel that computes {node.op_type} on integers here")


def _is_product(node: Node) -> bool:
    return traits_of(node).product is not None or node.op_type == "Attention" or bool(node.domain)


def _only_moves(node: Node) -> bool:
    """Whether a node computes nothing for which a device could have a kernel on integers."""
    from engine.passes.common.qdq_propagation import MOVERS  # compilations do without it

    traits = traits_of(node)
    return node.op_type in MOVERS or (traits.quantizes and traits.product is None)


def _is_on_codes(node: Node) -> bool:
    """Whether a node multiplies codes."""
    is_internal = node.domain == INTERNAL_DOMAIN and node.op_type.startswith("Quantized")
    is_product = traits_of(node).product is not None
    return is_internal or (is_product and node.input_value(0).element_type.name in _CODES)


def _is_constant(dequantize: Node) -> bool:
    return isinstance(dequantize.input_value(0).node, Constant)


def precision_of(node: Node) -> str:
    """The element type in which a node of a prepared graph is computed, by name; empty if it computes no numbers."""
    if _is_on_codes(node):
        return node.input_value(0).element_type.name
    kinds = [value.type for value in node.outputs]
    if node.op_type == "QuantizeLinear":
        kinds = [node.input_value(1).type]
    first = kinds[0] if kinds else None
    return first.element_type.name if isinstance(first, TensorType) else ""


def why_real(node: Node) -> str:
    """Why a node of a prepared graph, a product of quantized values, is computed on reals; empty if it is not."""
    from engine.passes.common.quantized_operands import WHY_REAL, RealReason

    reason = node.annotations.get(WHY_REAL)
    return reason.text if isinstance(reason, RealReason) else ""


def _is_worse(alone: Support, together: Support) -> bool:
    rank = {SupportLevel.NATIVE: 2, SupportLevel.REFERENCE: 1, SupportLevel.REFUSED: 0}
    return rank[alone.level] < rank[together.level]


def _disjoint(atoms: list[set[str]]) -> tuple[frozenset[str], ...]:
    """Merge sets that share a name."""
    joined: list[set[str]] = []
    for atom in atoms:
        apart = [group for group in joined if not group & atom]
        joined = [*apart, atom.union(*(group for group in joined if group & atom))]
    return tuple(frozenset(group) for group in joined)
