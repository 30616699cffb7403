"""From a transformed graph with known input shapes to a program."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from engine.errors import UnsupportedError
from engine.ir import Model, Output
from engine.passes import Manager
from engine.passes.common.constant_folding import ConstantFolding
from engine.passes.common.shape_simplification import ShapeSimplification
from engine_cpu.assignment import assign_layouts
from engine_cpu.grouping import group_nodes
from engine_cpu.host_part import HostPart
from engine_cpu.lowering import CpuDecisions, decisions
from engine_cpu.partition import GraphPart, PartKind, extract, partition
from engine_cpu.plan_cache import PlanCache
from engine_cpu.program import Array, NativePart, Part, Program, Run, Value
from engine_cpu.segment import build_segment
from engine_cpu.tuning import Tuner
from engine_cpu.weights import WeightStore

logger = logging.getLogger("engine.cpu")


@dataclass(slots=True)
class Compiler:
    """Makes programs of one network. `transform` is what follows once the shapes of a graph are known.

    `precision` is "bf16" where products may be computed in it, and "f32" where they may not. `threads` are those that
    run an inference; kernels are chosen for those of the tuner, which an imported network has from where it was made.
    """

    weights: WeightStore
    tuner: Tuner
    streams: int
    plan_cache_size: int
    transform: Callable[[Model], Model]
    precision: str
    threads: int
    allow_reference: bool

    def program(self, model: Model, decisions: CpuDecisions) -> Program:
        """A program for a model whose parameters have static shapes, with what was decided for its nodes."""
        parts = [self._part(part, decisions) for part in partition(model, decisions)]
        return Program(model, parts, self.weights.data)

    def specialized_program(self, model: Model) -> Program:
        """A program for a model whose parameters have just become static."""
        return self.program(self.transform(model), decisions())

    def _part(self, part: GraphPart, decisions: CpuDecisions) -> tuple[Part, Sequence[Output], Sequence[Output]]:
        if part.kind is PartKind.HOST:
            (node,) = part.nodes
            if not self.allow_reference:
                why = decisions.refusal(node)
                reason = why.reason if why else "its shape depends on data"
                raise UnsupportedError(f"{node}: no native kernel ({reason}), and ALLOW_REFERENCE is off")
            return HostPart(node), [v for v in node.input_values if v is not None], tuple(node.outputs)
        if part.kind is PartKind.DEFERRED:
            cache = PlanCache(extract(part), self.specialized_program, self.plan_cache_size)
            return DeferredPart(cache), part.inputs, part.outputs
        items = group_nodes(part.nodes, part.outputs, decisions)
        options = assign_layouts(items, part.outputs, self.precision)
        segment = build_segment(items, options, part.inputs, part.outputs, self.weights, self.tuner, self.precision)
        return NativePart(segment, self.threads, self.streams), part.inputs, part.outputs


class DeferredPart(Part):
    """Nodes whose shapes become known during an inference."""

    def __init__(self, cache: PlanCache) -> None:
        self.cache = cache

    def run(self, inputs: Sequence[Value], targets: Sequence[Array | None], run: Run) -> Sequence[Value]:
        """See `Part`."""
        return self.cache.program(inputs).run(inputs, run)


def fold_shapes(model: Model) -> Model:
    """Compute what follows from shapes that have become known."""
    manager = Manager()
    manager.register_pass(ShapeSimplification)
    manager.register_pass(ConstantFolding)
    manager.run_passes(model)
    return model
