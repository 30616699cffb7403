"""Small models that are compiled and timed."""

from __future__ import annotations

import statistics
import time
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

from engine import ops
from engine.errors import EngineError, UnsupportedError
from engine.ir import Constant, Model, Node, Output, Parameter, Result, TensorType, f32
from engine.plugin_api import CoreHandle, ExecutableNetwork, Port
from engine.runtime import AsyncInferRequest
from engine.runtime.random_inputs import Ranges, random_inputs
from engine.runtime.records import SUBGRAPH
from engine.startup import dataclass

_MIN_ROUNDS: Final = 7
_MAX_ROUNDS: Final = 50
_STEADY_SECONDS: Final = 0.02
"""Short inferences, whose times vary most, are repeated for these seconds, up to the limit."""


@dataclass(frozen=True, slots=True)
class Deadline:
    """The time at which measuring stops."""

    moment: float

    @classmethod
    def after(cls, seconds: float) -> Deadline:
        """The deadline in `seconds` from now."""
        return cls(time.monotonic() + seconds)

    def left(self) -> float:
        """Remaining seconds; 0 if it has passed."""
        return max(0.0, self.moment - time.monotonic())

    def has_passed(self) -> bool:
        """Whether no time is left for measuring."""
        return time.monotonic() >= self.moment


@dataclass(frozen=True)
class Timing:
    """Median seconds over several inferences: in total, and of each reported node, by name."""

    seconds: float
    nodes: Mapping[str, float]


def border_probe(values: int, length: int) -> Model:
    """A model that takes and returns `count` f32 values of a length with almost no computation."""
    inputs = [Parameter(f32, [length], f"input{number}") for number in range(values)]
    return Model([Result(ops.Relu(each), f"output{n}") for n, each in enumerate(inputs)], inputs, name="border probe")


def nodes_probe(nodes: Sequence[Node], floating: Collection[Node] = ()) -> Model:
    """A model of copies of nodes, with their names; values of other nodes become network inputs.

    Args:
        nodes: producers before consumers. Other nodes may lie between them in the graph.
        floating: shape arithmetic, which is copied where it is needed.
    """
    copy = _Copy(nodes, floating)
    return Model(copy.results(), copy.inputs.values(), copy.sinks(), name=f"probe of {len(nodes)} nodes")


class _Copy:
    """Copies of nodes, and the inputs that they read."""

    def __init__(self, nodes: Sequence[Node], floating: Collection[Node]) -> None:
        self.nodes = nodes
        self.inside = set(nodes)
        self.inputs: dict[Output, Parameter] = {}
        self.values: dict[Output, Output] = {}
        self.copies: dict[Node, Node] = {}
        for node in nodes:
            stack = [node]
            while stack:
                sources = [value.node for value in stack[-1].input_values if value is not None]
                if missing := [each for each in sources if each in floating and each not in self.copies]:
                    stack.append(missing[0])
                else:
                    self._copy(stack.pop())

    def _copy(self, node: Node) -> None:
        copy = node.clone_with_new_inputs([None if v is None else self._read(v) for v in node.input_values])
        copy.friendly_name = node.friendly_name  # generated names are generated again
        self.copies[node] = copy
        self.values.update(zip(node.outputs, copy.outputs, strict=True))

    def _read(self, value: Output) -> Output:
        if value not in self.values:
            if isinstance(value.node, Constant):
                self.values[value] = value.node.clone_with_new_inputs([]).output(0)
            else:
                self.inputs[value] = Parameter(value.type, friendly_name=f"input{len(self.inputs)}")
                self.values[value] = self.inputs[value].output(0)
        return self.values[value]

    def results(self) -> list[Result]:
        """The values that are read outside, and one value of each node without consumers here."""
        read = [self.values[output] for node in self.nodes for output in node.outputs if self._is_given(output)]
        kept = {value.node for value in read}
        unread = [c for n in self.nodes if (c := self.copies[n]) not in kept and c.num_outputs and not _is_read(c)]
        values = [*read, *(copy.output(0) for copy in unread)]
        return [Result(value, f"output{number}") for number, value in enumerate(values)]

    def sinks(self) -> list[Node]:
        """The nodes without outputs."""
        return [self.copies[node] for node in self.nodes if not node.num_outputs]

    def _is_given(self, output: Output) -> bool:
        return any(target.node not in self.inside and target.node not in self.copies for target in output.target_inputs)


def _is_read(node: Node) -> bool:
    return any(output.num_consumers for output in node.outputs)


def run_probe(
    core: CoreHandle, model: Model, device: str, config: Mapping[str, Any], deadline: Deadline
) -> Timing | None:
    """Compile and time a model on generated inputs, with minimal dynamic lengths; None if no time is left.

    Raises the errors of compilation and inference, and `UnsupportedError` for inputs that cannot be generated.
    """
    if deadline.has_passed():
        return None
    network = core.compile_model(model, device, config)
    request = network.create_infer_request()
    inputs = _warmed_up(network, request)
    walls: list[float] = []
    nodes: dict[str, list[float]] = {}
    while len(walls) < _MAX_ROUNDS and not (walls and deadline.has_passed()):
        if len(walls) >= _MIN_ROUNDS and sum(walls) >= _STEADY_SECONDS:
            break
        start = time.perf_counter()
        request.infer(inputs)
        walls.append(time.perf_counter() - start)
        for name, seconds in _node_seconds(request).items():
            nodes.setdefault(name, []).append(seconds)
    return Timing(statistics.median(walls), {name: statistics.median(each) for name, each in nodes.items()})


def _node_seconds(request: AsyncInferRequest) -> dict[str, float]:
    """The seconds by node name; the times of several steps of a node are added.

    A subgraph that ran as one counts as not reported: its time includes that of starting it, and is of no node.
    """
    total: dict[str, float] = {}
    for node in request.profiling_info.nodes:
        if node.op_type != SUBGRAPH:
            total[node.name] = total.get(node.name, 0.0) + node.duration_ns * 1e-9
    return total


def _warmed_up(network: ExecutableNetwork, request: AsyncInferRequest) -> dict[str, Any]:
    """Inputs with which the network runs, after a first inference; integers are mostly indices, counts or flags.

    Reals are positive, so that roots and logarithms are defined.
    """
    failure: EngineError | None = None
    shapes = {port.name: _shortest(port) for port in network.inputs}
    for integer in (1, 0):
        ranges = Ranges(reals=(0.25, 1.0), integers=(integer, integer))
        inputs = random_inputs(network.inputs, shapes=shapes, ranges=ranges)
        try:
            request.infer(inputs)
        except EngineError as e:
            failure = e
        else:
            return inputs
    assert failure is not None
    raise failure


def _shortest(port: Port) -> tuple[int, ...]:
    if not isinstance(port.type, TensorType) or port.type.shape.rank.is_dynamic:
        raise UnsupportedError(f"cannot generate a value of type {port.type} for input `{port.name}`")
    return tuple(dim.get_length() if dim.is_static else max(1, dim.min) for dim in port.type.shape)
