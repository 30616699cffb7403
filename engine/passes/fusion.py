"""Shared by fusions: the pass that replaces a match by a node, and predicates on values."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Final, TypeAlias

import numpy as np

from engine.ir import Constant, Dimension, ElementType, Model, Node, Output, PartialShape, TensorType, f64
from engine.limits import current_budget
from engine.ops.tensors import Array
from engine.passes.pattern import Matcher
from engine.passes.rewrite import BackwardGraphRewrite, MatcherPass
from engine.passes.runtime_info import copy_runtime_info

Maker: TypeAlias = "Callable[[Matcher], Node | Sequence[Node] | None]"
"""Makes the replacement of a match: a node, or several; the last one replaces the root; None to skip."""
_SMALL_BYTES: Final = 1 << 16
_MOST_STEPS: Final = 16
"""The derivations that a constant is read through. In a longer chain, passes that read each one to make the next would
take quadratic time.
"""


class FusionPass(MatcherPass):
    """A matcher pass that replaces a match by the result of a function.

    Run alone, it visits nodes from the results to the parameters, so that the largest of several forms matches first: a
    normalization with bias before one without.
    """

    def register_fusion(self, root: Node, make: Maker, *, is_closed: bool = True) -> None:
        """Register the pattern and the function that makes its replacement.

        If `is_closed`, a match is skipped if a node outside it reads an inner value: the inner nodes would stay and
        duplicate the computation of the new one.
        """

        def callback(m: Matcher) -> bool:
            if self.transformation_callback(m.match_root) or (is_closed and not has_one_exit(m)):
                return False
            made = make(m)
            if made is None:
                return False
            nodes = [made] if isinstance(made, Node) else list(made)
            return replace_by(m.match_root, m.matched_nodes, nodes)

        self.register_matcher(Matcher(root, self.name), callback)

    def run_on_model(self, model: Model) -> bool:
        """Apply the pass to every node of `model`, bodies included, results first."""
        if not self.may_change(model):
            return False
        rewrite = BackwardGraphRewrite([self])
        if self.config is not None:
            rewrite.set_pass_config(self.config)
        return rewrite.run_on_model(model)


def replace_by(root: Node, matched: Iterable[Node], made: Sequence[Node]) -> bool:
    """Replace the first output of `root` by the last of `made`; name and rt_info of the matched nodes are copied.

    Returns False and changes nothing if the two types could differ or other outputs of `root` are read.
    """
    new = made[-1].output(0)
    if not fits(root.output(0), new) or any(output.num_consumers for output in root.outputs[1:]):
        return False
    new.node.friendly_name = root.friendly_name
    copy_runtime_info(matched, made)
    root.output(0).replace(new)
    return True


def fits(old: Output, new: Output) -> bool:
    """True if `new` can replace `old`: equal element types, known and equal ranks, and no different lengths."""
    a, b = old.type, new.type
    if not isinstance(a, TensorType) or not isinstance(b, TensorType) or a.element_type is not b.element_type:
        return False
    return a.shape.rank.is_static and b.shape.rank.is_static and a.shape.compatible(b.shape)


def nodes_between(values: Iterable[Output], given: Iterable[Output]) -> list[Node]:
    """The operations that compute `values` from `given`."""
    known, made, stack = {value.node for value in given}, [], [value.node for value in values]
    while stack:
        node = stack.pop()
        if node in known or isinstance(node, Constant):
            continue
        known.add(node)
        made.append(node)
        stack += [value.node for value in node.input_values if value is not None]
    return made


def has_one_exit(m: Matcher) -> bool:
    """True if no node outside the match reads its inner values."""
    nodes = set(m.matched_nodes)
    return all(
        target.node in nodes
        for node in nodes
        if node is not m.match_root and not isinstance(node, Constant)
        for output in node.outputs
        for target in output.target_inputs
    )


def feeds_result(value: Output) -> bool:
    """True for a network output, whose friendly name is visible to users."""
    return any(target.node.op_type == "Result" for target in value.target_inputs)


def operation(value: Output | None, *op_types: str) -> Node | None:
    """The node of `value` if it is an ONNX operator of one of these types; otherwise None."""
    if value is None or value.node.domain or value.node.op_type not in op_types:
        return None
    return value.node


def constant_data(value: Output | None) -> Array | None:
    """The array of a Constant; None for a value that is computed."""
    return value.node.data if value is not None and isinstance(value.node, Constant) else None


def charge(sources: Iterable[Constant], nbytes: int) -> None:
    """Count a constant of `nbytes` that a pass makes of others against the budget of the compilation.

    Sources that no other node reads leave the graph, so only the excess over them is counted, as bytes and as work:
    weights that several passes change one after the other are free, copies of one that many nodes read are not.

    Raises `OverBudgetError` if it exceeds the budget. `MatcherPass.apply` then leaves the match as it is; other passes
    catch it, and call this before they change the graph.
    """
    given = dict.fromkeys(sources)
    replaced = sum(source.byte_size for source in given if source.output(0).num_consumers <= 1)
    added = max(0, nbytes - replaced)
    current_budget().take(added, added)


def derived_constant(
    sources: Sequence[Constant],
    shape: Sequence[int],
    compute: Callable[..., Array],
    element_type: ElementType | None = None,
) -> Constant:
    """The result of `compute` on constants, in the type of the first by default; large results are computed when read.

    Weights changed by several passes in a row then occupy memory only in the form that a device packs, unless the chain
    is long. Raises `OverBudgetError`, see `charge`.
    """
    element_type = element_type or sources[0].element_type
    charge(sources, element_type.byte_size(math.prod(shape)))
    if element_type.byte_size(math.prod(shape)) <= _SMALL_BYTES:
        return Constant(compute(*[source.data for source in sources]))
    made = Constant.derived(sources, TensorType(element_type, PartialShape(shape)), compute)
    return Constant(made.data) if _steps(made) > _MOST_STEPS else made


def _steps(constant: Constant) -> int:
    """The longest chain of derivations through which `constant` is read."""
    steps, level = 0, [constant]
    while level := list(dict.fromkeys(base for each in level for base in each.bases)):
        steps += 1
    return steps


def scalar(value: Output | None) -> float | None:
    """The number in a constant of one element; None for any other value."""
    if value is None or not isinstance(value.node, Constant) or value.node.element_type.name == "string":
        return None
    if not value.shape.is_static or value.shape.size() != 1 or value.element_type.is_complex:
        return None
    return float(value.node.data.reshape(-1)[0])


def float_attribute(number: float, value: Output) -> float | None:
    """`number` as a float attribute (f32) of an operator on `value`; None if the difference shows in f64 data."""
    with np.errstate(over="ignore"):
        stored = float(np.float32(number))
    return None if value.element_type is f64 and stored != number else stored


def integers(value: Output | None) -> list[int] | None:
    """The numbers in a constant of integers, flat; None for any other value."""
    data = constant_data(value)
    if data is None or data.dtype.kind not in "iu":
        return None
    return [int(item) for item in data.reshape(-1)]


def dims_of(value: Output) -> tuple[Dimension, ...] | None:
    """The dimensions of a tensor of known rank; otherwise None."""
    value_type = value.type
    if not isinstance(value_type, TensorType) or value_type.shape.rank.is_dynamic:
        return None
    return value_type.shape.dims


def same_length(a: Dimension, b: Dimension) -> bool:
    """True if two dimensions are provably equal: both static and equal, or the same symbol of the model."""
    return (a.is_static and a == b) or (a.symbol is not None and a.symbol == b.symbol)


def same_lengths(a: Sequence[Dimension], b: Sequence[Dimension]) -> bool:
    """True if all dimensions of two shapes provably agree."""
    return len(a) == len(b) and all(map(same_length, a, b))


def trailing_axes(value: Output, axes: Output | None) -> int | None:
    """The number of axes in the constant `axes`, if they are the last axes of `value`; otherwise None."""
    dims, numbers = dims_of(value), integers(axes)
    if dims is None or not numbers:
        return None
    wanted = sorted({axis % len(dims) if -len(dims) <= axis < len(dims) else -1 for axis in numbers})
    return len(wanted) if wanted == list(range(len(dims) - len(wanted), len(dims))) else None


def as_vector(value: Output, lengths: Sequence[Dimension]) -> Output | None:
    """`value` in the shape `lengths`, if it has that shape except for leading ones; otherwise None.

    A constant is reshaped; another value with leading ones gives None.
    """
    dims = dims_of(value)
    if dims is None or any(length.is_dynamic for length in lengths):
        return None
    if same_lengths(dims, lengths):
        return value
    extra = len(dims) - len(lengths)
    data = constant_data(value)
    if data is None or extra <= 0 or any(dim != 1 for dim in dims[:extra]) or not same_lengths(dims[extra:], lengths):
        return None
    return Constant(np.ascontiguousarray(data.reshape(data.shape[extra:]))).output(0)


def reshape_target(dims: Sequence[Dimension], source: Sequence[Dimension]) -> list[int] | None:
    """A constant target with which Reshape turns a tensor of shape `source` into `dims`; None if there is none.

    An unknown length must equal the length of the same dimension of the source (0), or be the only one while all others
    are numbers (-1): with another length that may be zero, -1 is ambiguous.
    """
    target: list[int] = []
    for index, dim in enumerate(dims):
        if dim.is_static:
            target.append(dim.get_length())
        else:
            target.append(0 if index < len(source) and same_length(source[index], dim) else -1)
    if any(dim == 0 for dim in dims) or target.count(-1) > 1 or (-1 in target and 0 in target):
        return None
    return target
