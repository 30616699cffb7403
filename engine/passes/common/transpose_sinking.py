"""`TransposeSinking`: removes transposes around layout-agnostic operators."""

from __future__ import annotations

from dataclasses import field

from engine import ops
from engine.ir import Constant, Model, Node, Output
from engine.limits import OverBudgetError
from engine.passes.base import ModelPass
from engine.passes.common.layout_rules import (
    Perm,
    constant_in_layout,
    data_inputs,
    follows_layout,
    in_layout,
    inverse,
)
from engine.passes.common.transpose_merge import permutation, transposed
from engine.passes.fusion import dims_of, feeds_result
from engine.passes.runtime_info import copy_runtime_info
from engine.startup import dataclass


class TransposeSinking(ModelPass):
    """Moves regions of operators into the layout before a Transpose at their border.

    A region is moved if that leaves fewer transposes: the transposes of the layout at its inputs and the inverse ones
    at its outputs are removed, and other values that cross its border get one. Constants are transposed at compile
    time.
    """

    def run_on_model(self, model: Model) -> bool:
        """One pass over the transposes; each region is examined once per layout; bodies included."""
        changed = False
        seen: set[tuple[Node, Perm]] = set()
        for node in model.ordered_nodes():
            changed |= self.run_on_bodies(node)
            perm = _moving(node)
            if perm is None or not node.is_attached or self.transformation_callback(node):
                continue
            for grows_back in (True, False):
                region = self._region(node, perm, grows_back)
                if not region.nodes or (grows_back and any((inner, perm) in seen for inner in region.nodes)):
                    continue
                seen.update((inner, perm) for inner in region.nodes)
                if region.gain() > 0 and self._move(region):
                    self.rewrites += 1
                    changed = True
                    break
        return changed

    def follows(self, node: Node, perm: Perm) -> bool:
        """True if `node` can work in another layout."""
        return follows_layout(node, perm)

    def moved(self, node: Node, inputs: list[Output | None], perm: Perm) -> Node:
        """`node` rewritten for the other layout, with `inputs` in it and its axes moved by `perm`."""
        return in_layout(node, inputs, perm)

    def inputs(self, node: Node) -> range:
        """The inputs of `node` that have a layout."""
        return data_inputs(node)

    def _region(self, start: Node, perm: Perm, grows_back: bool) -> _Region:
        region = _Region(perm, self.inputs)
        stack = [target.node for target in start.output(0).target_inputs]
        while stack:
            node = stack.pop()
            if node in region.nodes or not self.follows(node, perm):
                continue
            region.nodes[node] = None
            stack.extend(target.node for output in node.outputs for target in output.target_inputs)
            if grows_back:
                stack.extend(source.node for source in region.sources(node))
        return region

    def _move(self, region: _Region) -> bool:
        """Replace the region by one in the new layout; False if the budget has no room for its constants."""
        try:
            made = self._made(region)
        except OverBudgetError:
            return False
        self._connect(region, made)
        return True

    def _made(self, region: _Region) -> dict[Output, Output]:
        """The values of the region in the new layout, border included. Raises `OverBudgetError`."""
        made: dict[Output, Output] = {}
        back = inverse(region.perm)
        for node in region.ordered():
            around = region.border_of(node)
            inputs = node.input_values
            for index in self.inputs(node):
                source = inputs[index]
                assert source is not None
                if source not in made:
                    made[source] = _in_layout(source, region, back, node)
                inputs[index] = made[source]
            new = self.moved(node, inputs, region.perm)
            copy_runtime_info([node, *around], new)
            for index in range(node.num_outputs):
                made[node.output(index)] = new.output(index)
        return made

    def _connect(self, region: _Region, made: dict[Output, Output]) -> None:
        """Make the consumers outside the region read the new values."""
        for node in region.nodes:
            for output in node.outputs:
                new, others = made[output], []
                for target in output.target_inputs:
                    if target.node in region.nodes:
                        continue
                    order = _moving(target.node)
                    if order is None:
                        others.append(target)
                    else:
                        _replace_transpose(target.node, new, [region.perm[axis] for axis in order])
                if others:
                    turned = ops.Transpose(new, perm=region.perm)
                    turned.friendly_name = node.friendly_name
                    copy_runtime_info(node, turned)
                    for target in others:
                        target.replace_source_output(turned)
                elif not new.node.has_own_name and node.has_own_name:
                    new.node.friendly_name = node.friendly_name


@dataclass(slots=True)
class _Region:
    """The nodes that can move into the layout before a transpose by `perm`."""

    perm: Perm
    inputs: object
    nodes: dict[Node, None] = field(default_factory=dict)

    def sources(self, node: Node) -> list[Output]:
        """The sources of the inputs that have a layout."""
        found = [node.input_values[index] for index in self.inputs(node)]  # type: ignore[operator]
        return [source for source in found if source is not None]

    def ordered(self) -> list[Node]:
        """The nodes, each after the ones that it reads; ordering the whole graph for each move takes too long."""
        found: dict[Node, None] = {}
        for start in self.nodes:
            stack = [(start, iter(start.sources))]
            while stack:
                node, sources = stack[-1]
                following = next((s.node for s in sources if s and s.node in self.nodes and s.node not in found), None)
                if following is None:
                    found[node] = None
                    stack.pop()
                else:
                    stack.append((following, iter(following.sources)))
        return list(found)

    def border_of(self, node: Node) -> list[Node]:
        """The transposes around `node` that are removed when it moves."""
        before = [source.node for source in self.sources(node) if _moving(source.node) == self.perm]
        opposite = inverse(self.perm)
        after = [t.node for output in node.outputs for t in output.target_inputs if _moving(t.node) == opposite]
        return [*before, *after]

    def gain(self) -> int:
        """The number of transposes saved by moving the region."""
        entering: dict[Output, None] = {}
        gain = 0
        for node in self.nodes:
            entering.update(dict.fromkeys(s for s in self.sources(node) if s.node not in self.nodes))
            for output in node.outputs:
                outside = [t.node for t in output.target_inputs if t.node not in self.nodes]
                turned = [reader for reader in outside if reader.op_type == "Transpose" and not reader.domain]
                gain += sum(_moving(reader) == inverse(self.perm) for reader in turned)
                gain -= len(turned) < len(outside)
        for source in entering:
            gain += self._gain_at(source)
        return gain

    def _gain_at(self, source: Output) -> int:
        """1 for a removed transpose, -1 for an added one, 0 for a constant or a changed transpose."""
        if isinstance(source.node, Constant) or not dims_of(source):
            return 0
        perm = _moving(source.node)
        if perm is not None and source.node.input_value(0).node in self.nodes:
            return -1  # a transpose from the region back into it moves to the border
        only_here = all(target.node in self.nodes for target in source.target_inputs)
        if perm == self.perm:
            return 1 if only_here else 0
        return 0 if perm is not None and only_here else -1


def _moving(node: Node) -> Perm | None:
    """The permutation of a Transpose other than the identity; None for any other node."""
    if node.op_type != "Transpose" or node.domain:
        return None
    perm = permutation(node)
    return None if perm is None or perm == sorted(perm) else tuple(perm)


def _in_layout(source: Output, region: _Region, back: Perm, reader: Node) -> Output:
    """A value that enters a region, in the region's new layout."""
    if isinstance(source.node, Constant):
        return constant_in_layout(source, region.perm)
    if not dims_of(source):
        return source
    own = _moving(source.node)
    if own is None or source.node.input_value(0).node in region.nodes:
        turned = ops.Transpose(source, perm=back)
        copy_runtime_info(reader, turned)
        return turned.output(0)
    value = transposed(source.node.input_value(0), [own[axis] for axis in back])
    if value.node is not source.node.input_value(0).node:
        copy_runtime_info([source.node], value.node)
    return value


def _replace_transpose(node: Node, value: Output, perm: list[int]) -> None:
    """Replace `node`, a Transpose at the border of a region, by `value` transposed by `perm`."""
    new = transposed(value, perm)
    keeps_name = feeds_result(node.output(0))
    if new.node is value.node and keeps_name and (value.node.num_outputs > 1 or value.node.has_own_name):
        new = ops.Identity(value).output(0)
    if new.node is not value.node or keeps_name:
        new.node.friendly_name = node.friendly_name
    copy_runtime_info([new.node, node], new.node)
    node.output(0).replace(new)
