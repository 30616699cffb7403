"""`Body`: a body of If, Loop or Scan, compiled as a program of its own."""

from __future__ import annotations

from collections.abc import Sequence

from engine.errors import GraphError
from engine.ir import Constant, Model, Node, Output, Parameter, Result, TensorType
from engine.lowering import PreparedGraph, known_shapes
from engine.native import Plan
from engine.startup import dataclass
from engine_cpu.lowering import LOWERINGS
from engine_cpu.program import Program, in_order
from engine_cpu.programs import Programs
from engine_cpu.segments.kind import SegmentCompiler
from engine_cpu.segments.segment import Inference, RunMemory, Value
from engine_cpu.transform import KNOWN_PASSES


@dataclass(frozen=True, slots=True)
class BodyGraph:
    """A body as a model of its own.

    Its parameters are the body's, and behind them one for each value of the enclosing graph that it captures, which are
    `captured`. Captured constants are constants of the model, so that they are packed, once for all trips.
    """

    model: Model
    captured: tuple[Output, ...]

    @classmethod
    def of(cls, node: Node, name: str, num_parameters: int, num_results: int) -> BodyGraph:
        """The body in an attribute of `node`. Raises `GraphError` if it has other numbers of inputs or outputs."""
        body = node.bodies.get(name)
        found = None if body is None else (len(body.parameters), len(body.results))
        if body is None or found != (num_parameters, num_results):
            raise GraphError(
                f"{node}: body {name!r} has {found or 'no'} inputs and outputs; expected {num_parameters} and "
                f"{num_results}"
            )
        copy = body.clone()
        for result in copy.results:  # passed values, such as a constant condition, are recognised by their identity
            while (source := result.input_value(0).node).op_type == "Identity" and not source.domain:
                result.input(0).replace_source_output(source.input_value(0))
        parameters, captured = list(copy.parameters), []
        for capture, value in zip(list(copy.captures), node.captured_values(name), strict=True):
            if isinstance(value.node, Constant):
                capture.output(0).replace(value.node.clone_with_new_inputs([]))
            else:
                parameters.append(capture)
                captured.append(value)
        names = f"{node.friendly_name}.{name}"
        return cls(Model(copy.results, _with_distinct_names(parameters), copy.sinks, names), tuple(captured))


def _with_distinct_names(parameters: list[Parameter]) -> list[Parameter]:
    """A capture may have the name of a parameter, which a model of its own does not allow."""
    seen: set[str] = set()
    for index, parameter in enumerate(parameters):
        if parameter.friendly_name in seen:
            parameter.friendly_name = f"{parameter.friendly_name}.{index}"
        seen.add(parameter.friendly_name)
    return parameters


@dataclass(frozen=True, slots=True)
class _Passed:
    """A result of a body that is not computed: the parameter with an index, or a constant."""

    parameter: int
    constant: Value = None

    @classmethod
    def of(cls, value: Output, model: Model) -> _Passed | None:
        if isinstance(value.node, Constant):
            return cls(-1, in_order(value.node.data))
        return cls(model.parameters.index(value.node)) if isinstance(value.node, Parameter) else None

    def value(self, inputs: Sequence[Value]) -> Value:
        return inputs[self.parameter] if self.constant is None else self.constant


class Body:
    """A compiled body: a program if all shapes are known, otherwise one for each set of shapes."""

    def __init__(self, graph: BodyGraph, compiler: SegmentCompiler) -> None:
        self.model = graph.model
        self.captured = graph.captured
        prepared = PreparedGraph.of(graph.model, LOWERINGS)
        self.program: Program | None = None
        self.programs: Programs | None = None
        self._results: list[_Passed | int] = []
        """The source of each result, if shapes are unknown: passed on, or computed by the programs."""
        if _is_known(graph.model):
            self.program = compiler.program(prepared.at(known_shapes(graph.model), KNOWN_PASSES))
        else:
            # A family has no outputs that are inputs, constants or equal, as the condition of a body often is.
            made: dict[Output, int] = {}
            for result in graph.model.results:
                value = result.input_value(0)
                self._results.append(_Passed.of(value, graph.model) or made.setdefault(value, len(made)))
            results = [Result(value, f"result_{index}") for value, index in made.items()]
            own = Model(results, graph.model.parameters, graph.model.sinks, graph.model.name)
            prepared = PreparedGraph.of(own, LOWERINGS)
            compiler.weights.keep(graph.model)
            self.programs = compiler.programs(prepared)

    def run(self, inputs: Sequence[Value], inference: Inference) -> list[Value]:
        """The results, which may share memory with inputs, constants and each other."""
        if self.program is not None:
            return self.program.run(inputs, inference)
        assert self.programs is not None
        is_computed = any(isinstance(each, int) for each in self._results)
        made = self.programs.get(inputs).run(inputs, inference) if is_computed else []
        return [made[each] if isinstance(each, int) else each.value(inputs) for each in self._results]

    def memory(self) -> RunMemory:
        """What a run of its program takes, with the results."""
        if self.program is None:
            return RunMemory(unknown=(self.model.name,))
        made = self.program.memory(len(self.model.results))
        return made.run + RunMemory(scratch=made.outputs)

    @property
    def plans(self) -> list[Plan]:
        """The plans that exist before an inference."""
        return [] if self.program is None else self.program.plans


def _is_known(model: Model) -> bool:
    return all(isinstance(each.type, TensorType) and each.type.shape.is_static for each in model.parameters)
