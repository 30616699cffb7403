"""`ValuesSegment`: a native operation whose plan is made for values that are computed during the inference."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

import numpy as np

from engine.errors import InputError, ModelError
from engine.ir import Constant, Model, Node, Output, Parameter, Result
from engine.limits import compilation, current_limits
from engine.lowering import PlanCache, PreparedGraph
from engine.lowering.checks import is_omitted
from engine.runtime.lifecycle import ForkSafeLock
from engine.startup import paused_collector
from engine_cpu.lowering import LOWERINGS, CpuDecisions
from engine_cpu.program import Program
from engine_cpu.segments.graph_segment import GraphSegment
from engine_cpu.segments.host import HostSegment
from engine_cpu.segments.kind import ConnectedSegment, Making, SegmentKind
from engine_cpu.segments.node_segment import NodeSegment
from engine_cpu.segments.segment import Array, Inference, Segment, Value

_Key: TypeAlias = "tuple[tuple[tuple[int, ...], bytes], ...]"
"""The shape and the bytes of each value."""

_TRIED: Final = 8
_LITTLE: Final = 1 << 16
"""Bytes of data that any evaluation reads in less time than a plan is built."""


class ValuesSegment(NodeSegment):
    """One node, such as a reduction over computed axes; the inputs are the node's without omitted ones.

    A plan is built when values are new, as for new shapes, and the last `size` plans are kept. Building one takes
    0.2 ms: where the values of each run were new, as for a slice at a position that advances, little data is evaluated
    instead.
    """

    def __init__(
        self,
        node: Node,
        late: Sequence[int],
        build: Callable[[Model], Program],
        size: int,
        building: ForkSafeLock,
        otherwise: Segment | None,
    ) -> None:
        """Make the segment of `node`; `late` are the inputs with values, and `build` compiles a model of one node.

        `otherwise` evaluates the node; None if it must be native.
        """
        super().__init__(node)
        self._otherwise = otherwise
        self._new = 0
        """How many runs in a row had values without a plan."""
        self._last: _Key = ()
        self._node, self._late, self._build = _detached(node), frozenset(late), build
        present = [(index, value) for index, value in enumerate(node.input_values) if value is not None]
        self._values = [place for place, (index, _) in enumerate(present) if index in self._late]
        self._data = [
            place
            for place, (index, value) in enumerate(present)
            if index not in self._late and not isinstance(value.node, Constant)
        ]
        self._written = [index for index, value in enumerate(node.outputs) if not is_omitted(value)]
        self._programs: PlanCache[_Key, Program] = PlanCache(self._built, size, building=building)

    def run(self, inputs: Sequence[Value], targets: Sequence[Array | None], inference: Inference) -> Sequence[Value]:
        key = tuple((inputs[place].shape, inputs[place].tobytes()) for place in self._values)
        program = self._programs.cached(key)
        if program is not None:
            self._new = 0
        elif self._otherwise is not None and self._prefers_evaluation(key, inputs):
            return self._otherwise.run(inputs, targets, inference)
        else:
            program = self._programs.get(key)
        results = program.run([inputs[place] for place in self._data], inference)
        outputs: list[Value] = [None] * self._node.num_outputs
        for index, value in zip(self._written, results, strict=True):
            outputs[index] = value
        return outputs

    def _prefers_evaluation(self, key: _Key, inputs: Sequence[Value]) -> bool:
        """Whether these values will probably not occur again, and evaluation takes less time than building a plan."""
        is_repeated = key == self._last
        self._new, self._last = self._new + 1, key
        if is_repeated or self._new <= _TRIED:
            return False
        nbytes: int = sum(inputs[place].nbytes for place in self._data)
        return nbytes <= _LITTLE

    def _built(self, key: _Key) -> Program:
        given = iter(key)
        sources: list[Node | None] = []
        for index, value in enumerate(self._node.input_values):
            if value is None:
                sources.append(None)
            elif index in self._late:
                shape, data = next(given)
                sources.append(Constant(np.frombuffer(data, value.element_type.numpy).reshape(shape)))
            else:
                sources.append(_copied(value))
        try:
            copy = self._node.clone_with_new_inputs(sources)
            copy.forget_inferred_types()  # those from before the values were known
            copy.infer_types()
        except ModelError as e:
            raise InputError(f"{self._node}: its inputs have values that it cannot take: {e}") from e
        parameters = [each for each in sources if isinstance(each, Parameter)]
        return self._build(Model([Result(copy.output(index)) for index in self._written], parameters))


def _detached(node: Node) -> Node:
    """A copy of a node alone, so that the graph is not kept."""
    copy = node.clone_with_new_inputs([None if value is None else _copied(value) for value in node.input_values])
    copy.friendly_name = node.friendly_name
    return copy


def _copied(value: Output) -> Node:
    """A constant, or a parameter of the same type."""
    if isinstance(value.node, Constant):
        return value.node.clone_with_new_inputs([])
    return Parameter(value.type)


def late_values(node: Node, decisions: CpuDecisions) -> tuple[int, ...]:
    """The inputs for whose values a plan of `node` is made, and which only an inference knows."""
    decision = decisions[node]
    return decision.lowering.late_values(decision.spec)


def _made(segment: GraphSegment, making: Making) -> ConnectedSegment:
    (node,) = segment.nodes
    compiler = making.compiler

    limits = current_limits()

    def alone(model: Model) -> Program:
        with paused_collector(), compilation(limits):  # built during an inference
            return compiler.program(PreparedGraph.of(model, LOWERINGS))

    late, evaluated = late_values(node, making.decisions), HostSegment(node) if compiler.allow_reference else None
    bound = ValuesSegment(node, late, alone, compiler.plan_cache_size, compiler.building, evaluated)
    return ConnectedSegment.of_node(bound, node)


VALUES: Final = SegmentKind("values", _made, "is planned for values that only an inference knows")
