"""`ChoiceSegment`: an If, both branches of which are compiled."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from engine.errors import InputError, ModelError
from engine.ir import Constant, Node, Output
from engine.native import Plan
from engine_cpu.segments.bodies import Body, BodyGraph
from engine_cpu.segments.body_profile import profiled_body
from engine_cpu.segments.kind import SegmentCompiler
from engine_cpu.segments.node_segment import NodeSegment
from engine_cpu.segments.routine_draft import RoutineDraft
from engine_cpu.segments.routines import CompiledRoutine, same_bytes
from engine_cpu.segments.segment import Array, Inference, RunMemory, Value

_BRANCHES = ("else_branch", "then_branch")


class ChoiceSegment(NodeSegment):
    """Reads the condition, and what the branches capture: first the captures of the branch for false.

    A branch that does not fit the shapes of its inputs is an error only if it is taken: models choose by shapes.
    """

    def __init__(self, node: Node, compiler: SegmentCompiler) -> None:
        super().__init__(node)
        condition = node.input_value(0).node
        known = _is_true(compiler.weights.data(condition)) if isinstance(condition, Constant) else None
        self._branches: list[Body | ModelError | InputError | None] = []
        self._reads: list[Output] = [node.input_value(0)]
        self._parts: list[slice] = []
        for index, name in enumerate(_BRANCHES):
            branch: Body | ModelError | InputError | None = None
            if known in (None, bool(index)):
                branch = _compiled(node, name, compiler)
            self._branches.append(branch)
            first = len(self._reads)
            self._reads += branch.captured if isinstance(branch, Body) else ()
            self._parts.append(slice(first, len(self._reads)))

    @property
    def reads(self) -> list[Output]:
        """The values that the segment reads: the condition, and those that the branches capture."""
        return self._reads

    def memory(self) -> RunMemory:
        """Contexts of both branches are kept."""
        return sum((branch.memory() for branch in self._branches if isinstance(branch, Body)), RunMemory())

    @property
    def plans(self) -> list[Plan]:
        """The plans of both branches, as far as they could be compiled."""
        return [plan for branch in self._branches if isinstance(branch, Body) for plan in branch.plans]

    def run(self, inputs: Sequence[Value], targets: Sequence[Array | None], inference: Inference) -> Sequence[Value]:
        condition = _is_true(inputs[0])
        branch = self._branches[condition]
        if not isinstance(branch, Body):
            raise InputError(f"{self.op_type} `{self.name}`, {_BRANCHES[condition]}: {branch}") from branch
        with profiled_body(self.name, self.op_type, inference) as inner:
            return branch.run(inputs[self._parts[condition]], inner)

    def add_to(self, draft: RoutineDraft, reads: Sequence[int]) -> Sequence[int] | None:
        known = draft.constant(reads[0])
        taken = range(len(_BRANCHES)) if known is None else [int(_is_true(known))] * len(_BRANCHES)
        routines = [
            CompiledRoutine.of(branch.program, branch.model)
            for branch in (self._branches[index] for index in taken)
            if isinstance(branch, Body) and branch.program is not None
        ]
        made = [routine for routine in routines if routine is not None]
        if len(made) != len(_BRANCHES) or not same_bytes(made[0].results, made[1].results):
            return None
        otherwise, then = made
        for routine in (then, otherwise):
            draft.step_nodes += [[(f"{self.name}/{node}", kind) for node, kind in each] for each in routine.step_nodes]
        else_reads, then_reads = (reads[self._parts[index]] for index in taken)
        return draft.builder.add_choice(reads[0], then.routine, then_reads, otherwise.routine, else_reads)


def _compiled(node: Node, name: str, compiler: SegmentCompiler) -> Body | ModelError | InputError:
    graph = BodyGraph.of(node, name, 0, node.num_outputs)
    try:
        return Body(graph, compiler)
    except (ModelError, InputError) as e:
        return e


def _is_true(value: Value) -> bool:
    return bool(np.asarray(value).reshape(-1)[0])
