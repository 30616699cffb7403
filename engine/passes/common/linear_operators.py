"""Passes that reorder linear operators where that needs fewer multiply-adds and moves fewer bytes.

Let P be a product over channels, y[m] = sum over c of W[m, c] x[c] + b[m] at each position (`ChannelProduct`: a 1x1
convolution, or a product with a constant matrix), and D an operator that computes positions of each channel from
positions of the same channel by fixed weights (`Movement`: Resize, average pooling, means and sums over positions,
Slice, Gather, Pad, Transpose, Reshape). Sums over c and over positions can be exchanged:

    D(W x) = W D(x)                     so P(D(x)) = D(P(x)), with a bias only if the weights of D add to 1
    W [x1; x2] = W1 x1 + W2 x2          so P(Concat(x1, x2)) = P1(x1) + P2(x2), with the bias in one of them
    W2 (W1 x + b1) + b2 = (W2 W1) x + (W2 b1 + b2)

All are exact but for rounding, and for overflow close to the limits of f32: sums are added in another order, and the
product of two matrices is computed in double precision and rounded once. In f16 and bf16, where these limits are near,
matrices are not multiplied, nor sums moved, only averages, copies and interpolations. Each pass compares the cost of
the nodes before and after, multiply-adds and bytes, nodes that stay for other consumers included, and rewrites only if
the new cost is clearly lower. Unknown lengths that D does not change, such as a batch, do not matter; if D changes
them, nothing is rewritten. Two matrices are multiplied only if that pays off: a product of large matrices takes
longer than what it saves for few positions in many inferences.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Final, TypeAlias

from engine import ops
from engine.ir import Node, Output
from engine.limits import current_budget
from engine.ops import attribute
from engine.passes.common.channel_products import BYTE_COST, PRODUCTS, ChannelProduct, product_cost
from engine.passes.common.movements import MOVEMENTS, Movement
from engine.passes.fusion import FusionPass, dims_of, replace_by
from engine.passes.pattern import Matcher, wrap_type
from engine.startup import dataclass

_Exchange: TypeAlias = "tuple[list[Node], list[Node]]"
"""The nodes that are replaced, and those that replace them."""
_MIN_SUMMED: Final = 4
"""The bytes of an element whose range and precision permit other sums: f32, not f16 or bf16."""
_WORTHWHILE: Final = 0.9
"""The share of the cost before a rewrite that the cost after it may be."""
_INFERENCES: Final = 16
"""The product of two matrices is computed if this many inferences save its cost."""
_DOUBLE: Final = 2
"""The cost of a multiply-add in f64, in which it is computed, beside one in f32."""
_PRODUCTS_PER_UNIT: Final = 8
"""Multiply-adds in f64 per unit of the work of a compilation, which is about one nanosecond."""


class _LinearPass(FusionPass):
    """A pass that replaces nodes with one result, the root's."""

    def _register(
        self, kinds: Sequence[str], sources: Collection[str], make: Callable[[Node], _Exchange | None]
    ) -> None:
        """Register the function for roots of these kinds whose input 0 is computed by one of `sources`.

        An Add may be the bias of a product, and the node that computes the product's input is not examined here.
        """

        def callback(m: Matcher) -> bool:
            node = m.match_root
            if node.op_type != "Add" and node.input_value(0).node.op_type not in sources:
                return False
            made = None if self.transformation_callback(node) else make(node)
            if made is None or not replace_by(node, *made):
                return False
            for node in made[1]:
                self.register_new_node(node)  # a product may pass several movements
            return True

        self.register_matcher(Matcher(wrap_type(list(kinds)), self.name), callback)


class LinearHoisting(_LinearPass):
    """Turns P(D(x)) into D(P(x)) where P is cheaper before D: upsampling, or pooling of more channels than P returns.

    P is a 1x1 convolution or a product with a constant matrix, D for example a Resize.
    """

    def __init__(self) -> None:
        super().__init__()
        self._register(PRODUCTS, MOVEMENTS, _hoisted)


class LinearSinking(_LinearPass):
    """Turns D(P(x)) into P(D(x)) where P is cheaper after D: pooling, or a slice of the positions.

    P is a 1x1 convolution or a product with a constant matrix, D for example an AveragePool.
    """

    def __init__(self) -> None:
        super().__init__()
        self._register(MOVEMENTS, PRODUCTS, _sunk)


class LinearMerging(_LinearPass):
    """Turns P2(D(P1(x))) into P(D(x)) with the product of both matrices, where that needs fewer operations.

    D is any number of movements, such as Reshape and Transpose. Does nothing to products through few channels, nor to
    those whose product would overflow, or lose digits as denormal numbers.
    """

    def __init__(self) -> None:
        super().__init__()
        self._register(PRODUCTS, (*PRODUCTS, *MOVEMENTS), _merged)


class LinearConcatSplitting(_LinearPass):
    """Turns P(Concat(D1(x1), x2, ..)) into D1(P1(x1)) + P2(x2) + .. where products before movements are cheaper.

    Decoders of segmentation and detection networks join resized maps in this way. Inputs for which nothing is gained
    stay in a Concat with one product.
    """

    makes = frozenset({"Add"})

    def __init__(self) -> None:
        super().__init__()
        self._register(PRODUCTS, ("Concat",), _split)


def _hoisted(node: Node) -> _Exchange | None:
    product = ChannelProduct.of(node)
    movement = None if product is None else Movement.to(product.x, product.axis)
    if product is None or movement is None or not _commute(product, movement):
        return None
    before = movement.cost(product.inputs, product.item) + product.cost(movement.positions)
    stays = before - product.cost(movement.positions) if product.x.num_consumers > 1 else 0.0
    # An operation after the product, such as an activation, can then not be computed with it.
    epilogue = BYTE_COST * product.item * 2 * product.outputs * movement.positions
    after = stays + product.cost(movement.sources) + movement.cost(product.outputs, product.item) + epilogue
    if after > _WORTHWHILE * before:
        return None
    made = product.on(movement.x)
    moved = movement.on(made[-1].output(0), product.outputs)
    return None if moved is None else ([movement.node, *product.nodes], [*made, moved])


def _sunk(node: Node) -> _Exchange | None:
    source = node.input_value(0)
    product = ChannelProduct.of(source.node)
    movement = None if product is None else Movement.of(node, product.axis)
    if product is None or movement is None or source.num_consumers > 1 or not _commute(product, movement):
        return None
    before = product.cost(movement.sources) + movement.cost(product.outputs, product.item)
    after = movement.cost(product.inputs, product.item) + product.cost(movement.positions)
    if after > _WORTHWHILE * before:
        return None
    moved = movement.on(product.x, product.inputs)
    return None if moved is None else ([*product.nodes, node], [moved, *product.on(moved.output(0))])


def _commute(product: ChannelProduct, movement: Movement) -> bool:
    """True if the product can be computed on either side of the movement, by the same operator."""
    # Sums over positions may overflow f16 before a product makes them small.
    is_sum = movement.taps > 0 and product.item < _MIN_SUMMED
    if not movement.keeps_constants and (product.bias is not None or is_sum):
        return False
    if product.is_convolution:
        return movement.source_axis == movement.axis == 1 and _rank(movement.x) == _rank(movement.node.output(0))
    last = movement.axis == _rank(movement.node.output(0)) - 1
    return last and movement.source_axis == _rank(movement.x) - 1 and min(movement.axis, movement.source_axis) > 0


def _rank(value: Output) -> int:
    return len(dims_of(value) or ())


def _merged(node: Node) -> _Exchange | None:
    outer = ChannelProduct.of(node)
    if outer is None or outer.item < _MIN_SUMMED:
        return None
    movements: list[Movement] = []
    value, axis = outer.x, outer.axis
    while (inner := ChannelProduct.of(value.node)) is None:
        movement = Movement.to(value, axis)
        if movement is None or value.num_consumers > 1:
            return None
        movements.append(movement)
        value, axis = movement.x, movement.source_axis
    keeps = inner.bias is None or all(movement.keeps_constants for movement in movements)
    if value.num_consumers > 1 or inner.axis != axis or not keeps or not outer.fits_after(inner):
        return None
    before, after = inner.cost(inner.positions), 0.0
    for movement in movements:
        before += movement.cost(inner.outputs, inner.item)
        after += movement.cost(inner.inputs, inner.item)
    before += outer.cost(outer.positions)
    after += product_cost(outer.positions, inner.inputs, outer.outputs, outer.item)
    if after > _WORTHWHILE * before or not _pays_off(outer, inner, before - after):
        return None
    x, made = inner.x, list[Node]()
    for movement in reversed(movements):
        moved = movement.on(x, inner.inputs)
        if moved is None:
            return None
        made.append(moved)
        x = moved.output(0)
    matched = [*inner.nodes, *(movement.node for movement in movements), *outer.nodes]
    return matched, [*made, *outer.with_matrix(x, *outer.after(inner))]


def _pays_off(outer: ChannelProduct, inner: ChannelProduct, saved: float) -> bool:
    """Whether computing the product of two matrices takes no longer than it saves in a few inferences.

    If it does, it is counted against the budget of the compilation, within which it must fit.
    """
    count = outer.outputs * outer.inputs * inner.inputs
    budget, nbytes, work = current_budget(), outer.item * outer.outputs * inner.inputs, count // _PRODUCTS_PER_UNIT
    if _DOUBLE * count > _INFERENCES * saved or not budget.allows(nbytes, work):
        return False
    budget.spend(nbytes, work)
    return True


@dataclass(frozen=True, slots=True)
class _Part:
    """An input of a Concat over channels.

    Attributes:
        value: the input.
        first: its first channel in the result.
        count: the number of its channels.
        movement: the operator that computes it, if a product can be computed before that.
    """

    value: Output
    first: int
    count: int
    movement: Movement | None

    def cost_moved(self, product: ChannelProduct) -> float:
        """The cost of its product before the movement, of the movement, and of adding the result."""
        assert self.movement is not None
        moved = self.movement.cost(product.outputs, product.item)
        added = BYTE_COST * product.item * product.outputs * product.positions
        return moved + added + product_cost(self.movement.sources, self.count, product.outputs, product.item)

    def cost_joined(self, product: ChannelProduct) -> float:
        """The cost of the movement, of a copy into the result of the Concat, and of its share of the product."""
        moved = 0.0 if self.movement is None else self.movement.cost(self.count, product.item)
        joined = product.positions * self.count * (product.outputs + BYTE_COST * product.item * 3)
        return moved + joined


def _split(node: Node) -> _Exchange | None:
    product = ChannelProduct.of(node)
    parts = [] if product is None else _parts(product)
    if product is None or not parts:
        return None
    early = [part for part in parts if part.movement and part.cost_moved(product) < part.cost_joined(product)]
    late = [part for part in parts if part not in early]
    # Every form writes its result once; a sum of several early parts is written before a late product adds it.
    written = BYTE_COST * product.item * product.outputs * product.positions
    before = sum(part.cost_joined(product) for part in parts) + written
    after = sum(part.cost_moved(product) for part in early) + sum(part.cost_joined(product) for part in late)
    after += written * (2 if late and len(early) > 1 else 1)
    if not early or after > _WORTHWHILE * before:
        return None
    return _sum_of_products(product, early, late)


def _parts(product: ChannelProduct) -> list[_Part]:
    """The inputs of the Concat whose only consumer is the product; empty if there is none."""
    node = product.x.node
    if node.op_type != "Concat" or node.domain or product.x.num_consumers > 1:
        return []
    rank = _rank(product.x)
    if int(attribute(node, "axis")) % rank != product.axis:
        return []
    parts, first = [], 0
    for value in node.input_values:
        dims = None if value is None else dims_of(value)
        if value is None or dims is None or dims[product.axis].is_dynamic:
            return []
        movement = Movement.to(value, product.axis) if value.num_consumers == 1 else None
        if movement is not None and (movement.is_free or not _commute(product, movement)):
            movement = None
        count = dims[product.axis].get_length()
        parts.append(_Part(value, first, count, movement))
        first += count
    return parts


def _sum_of_products(product: ChannelProduct, early: Sequence[_Part], late: Sequence[_Part]) -> _Exchange | None:
    """The late product, if there is one, is added last, so that devices fuse it into that product."""
    matched = [product.x.node, *product.nodes]
    made: list[Node] = []
    total: Node | None = None
    for part in early:
        movement = part.movement
        assert movement is not None
        bias = None if total is not None or late else product.bias
        made += product.with_matrix(movement.x, product.matrix((part.first, part.count)), bias)
        moved = movement.on(made[-1].output(0), product.outputs)
        if moved is None:
            return None
        made.append(moved)
        matched.append(movement.node)
        if total is not None:
            made.append(ops.Add(total, moved))
        total = made[-1]
    if late:
        values = [part.value for part in late]
        if len(values) > 1:
            made.append(product.x.node.clone_with_new_inputs(values))
        x = made[-1].output(0) if len(values) > 1 else values[0]
        matrix = product.matrix(*((part.first, part.count) for part in late))
        made += product.with_matrix(x, matrix, product.bias)
        assert total is not None
        made.append(ops.Add(made[-1], total))
    return matched, made
