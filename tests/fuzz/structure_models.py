"""Random models whose difficulty is their structure: names, scopes, functions, bodies and what they capture."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import AttributeProto, TensorProto, helper, numpy_helper

from .rounding import Array

SHAPE = (2, 3)
F, I64, B = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
_A = AttributeProto


@dataclass
class Scope:
    """A graph or a function that is being written: the values of type f32[2,3] and booleans that its nodes may read."""

    visible: list[str] = field(default_factory=list)
    truths: list[str] = field(default_factory=list)
    taken: set[str] = field(default_factory=set)
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    constants: dict[str, Array] = field(default_factory=dict)
    is_function: bool = False
    opset: int = 18
    floats: list[str] = field(default_factory=list)
    graphs: list[str] = field(default_factory=list)
    is_distinct: bool = False

    def inner(self) -> Scope:
        """A body in this graph, whose names differ from those that are visible now, or from all."""
        taken = self.taken if self.is_distinct else {*self.taken}
        made = Scope([*self.visible], [*self.truths], taken, is_function=self.is_function, opset=self.opset)
        made.floats, made.graphs, made.is_distinct = self.floats, self.graphs, self.is_distinct
        return made


@dataclass(frozen=True)
class Signature:
    """A function that may be called."""

    proto: onnx.FunctionProto
    required: tuple[str, ...]
    optional: tuple[str, ...]
    graphs: tuple[str, ...]


class Writer:
    """Writes the model of a seed."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(f"structure {seed}")
        self.functions: list[Signature] = []
        self.departs = False
        """Whether it has a Loop without a condition, which onnxruntime and onnx.reference treat differently."""

    def model(self) -> tuple[onnx.ModelProto, dict[str, Array]]:
        """The model and its inputs."""
        r = self.random
        opset = r.choice((13, 17, 18, 21))
        for index in range(r.choice((0, 1, 2, 4))):
            self.functions.append(self.function(index))
        scope = Scope(["x", "y"], ["p"], {"x", "y", "p"}, opset=opset, is_distinct=r.random() < 0.6)
        infos = [info("x"), info("y"), info("p", B, ())]
        r.shuffle(infos)
        feeds = {name: self.array() for name in "xy"} | {"p": np.array(r.random() < 0.5)}
        self.fill(scope, r.randint(2, 6), 0)
        outputs = self.outputs(scope, r.randint(1, 4))
        for name in [*scope.constants]:
            if name in scope.visible and r.random() < 0.3:
                infos.append(info(name))
                if r.random() < 0.6:
                    feeds[name] = self.array()
        graph = helper.make_graph(
            self.named(scope.nodes), r.choice(("g", "x", "")) or "g", infos, [info(name) for name in outputs],
            [numpy_helper.from_array(value, name) for name, value in scope.constants.items()],
        )  # fmt: skip
        imports = [helper.make_opsetid("", opset), helper.make_opsetid("local", 1)]
        protos = [each.proto for each in self.functions]
        r.shuffle(protos)
        return helper.make_model(graph, functions=protos, opset_imports=imports, ir_version=10), feeds

    def array(self) -> Array:
        """Values that are exact in f32, also once they are added."""
        return np.array([[self.random.randint(-8, 8) / 4 for _ in range(3)] for _ in range(2)], np.float32)

    # -- scopes -------------------------------------------------------------------------------------------

    def fill(self, scope: Scope, count: int, depth: int) -> None:
        """Write nodes."""
        for _ in range(count):
            writers = [self.simple] * 4 + [self.constant, self.condition]
            writers += [self.call] * 3 if self.functions else []
            writers += [self.branches, self.loop, self.scan] if depth < 2 else []
            self.random.choice(writers)(scope, depth)

    def name(self, scope: Scope) -> str:
        """A new name of few, so that scopes, functions and bodies share them."""
        while True:
            end = (
                f"_{len(scope.taken)}"
                if len(scope.taken) > 40
                else self.random.choice(("", "", "0", "_1", "/y", "__1"))
            )
            name = self.random.choice("abtuvwxyz") + end
            if name not in scope.taken:
                scope.taken.add(name)
                return name

    def add(self, scope: Scope, op_type: str, inputs: Sequence[str], count: int = 1, **attributes: Any) -> list[str]:
        """A node whose outputs may be read; returns their names."""
        names = [self.name(scope) for _ in range(count)]
        domain = "local" if op_type.startswith("f_") else ""
        scope.nodes.append(helper.make_node(op_type, inputs, names, domain=domain, **attributes))
        return names

    def pick(self, scope: Scope) -> str:
        if not scope.visible or self.random.random() < 0.05:
            self.constant(scope, 0)
        return self.random.choice(scope.visible[-6:] if self.random.random() < 0.7 else scope.visible)

    def outputs(self, scope: Scope, count: int, *, own: bool = False) -> list[str]:
        """Values to be outputs: perhaps inputs, constants, or the same one twice."""
        names = [self.pick(scope) for _ in range(count)]
        defined = {name for node in scope.nodes for name in node.output} | {*scope.constants}
        # Runtimes want the outputs of a body to be its own, mostly.
        return [n if not own or n in defined or self.random.random() < 0.1 else self.copied(scope, n) for n in names]

    def copied(self, scope: Scope, name: str) -> str:
        return self.add(scope, "Identity", [name])[0]

    def named(self, nodes: list[onnx.NodeProto]) -> list[onnx.NodeProto]:
        """Nodes without names, with equal names, or with names of values."""
        for node in nodes:
            node.name = self.random.choice(("", "", "n", "x", node.output[0] if node.output else "", "n/1"))
        return nodes

    # -- nodes --------------------------------------------------------------------------------------------

    def simple(self, scope: Scope, depth: int) -> None:
        r = self.random
        kind = r.choice(
            ("Neg", "Abs", "Identity", "Add", "Sub", "Max", "LeakyRelu", "ThresholdedRelu", "Softmax", "Clip", "Sum")
        )
        x = self.pick(scope)
        match kind:
            case "Add" | "Sub" | "Max":
                made = self.add(scope, kind, [x, self.pick(scope)])
            case "LeakyRelu" | "ThresholdedRelu":
                made = self.add(scope, kind, [x])
                if scope.floats and r.random() < 0.7:
                    scope.nodes[-1].attribute.append(reference("alpha", r.choice(scope.floats), _A.FLOAT))
                elif r.random() < 0.5:
                    scope.nodes[-1].attribute.append(helper.make_attribute("alpha", r.choice((0.5, 0.25, 2.0))))
            case "Clip":
                bound = self.add(scope, "Constant", [], value=numpy_helper.from_array(np.array(0.5, np.float32)))[0]
                made = self.add(scope, kind, [x, *r.choice(([], [""], [bound], ["", bound], ["", ""]))])
            case "Sum":
                if scope.opset < 13:
                    made = self.add(scope, "ReduceSum", [x], axes=[1])
                else:
                    axes = self.add(scope, "Constant", [], value=numpy_helper.from_array(np.array([1])))[0]
                    made = self.add(scope, "ReduceSum", [x, axes])
                made = self.add(scope, "Add", [x, made[0]])
            case _:
                made = self.add(scope, kind, [x])
        scope.visible += made

    def constant(self, scope: Scope, depth: int) -> None:
        if scope.floats and self.random.random() < 0.3:
            value = self.add(scope, "Constant", [])[0]
            scope.nodes[-1].attribute.append(reference("value_float", self.random.choice(scope.floats), _A.FLOAT))
            zeros = self.add(scope, "Constant", [], value=numpy_helper.from_array(np.zeros(SHAPE, np.float32)))[0]
            scope.visible += self.add(scope, "Add", [zeros, value])
        elif scope.is_function or self.random.random() < 0.4:
            scope.visible += self.add(scope, "Constant", [], value=numpy_helper.from_array(self.array()))
        else:
            name = self.name(scope)
            scope.constants[name] = self.array()
            scope.visible.append(name)

    def condition(self, scope: Scope, depth: int) -> None:
        r = self.random
        if r.random() < 0.3 or not scope.visible:
            scope.truths += self.add(scope, "Constant", [], value=numpy_helper.from_array(np.array(r.random() < 0.5)))
            return
        total = self.add(scope, "ReduceSum", [self.pick(scope)], keepdims=0)[0]
        limit = self.add(scope, "Constant", [], value=numpy_helper.from_array(np.array(r.randint(-3, 3), np.float32)))[
            0
        ]
        scope.truths += self.add(scope, r.choice(("Less", "Greater")), [total, limit])

    def truth(self, scope: Scope) -> str:
        if not scope.truths:
            self.condition(scope, 0)
        return self.random.choice(scope.truths)

    def body(self, scope: Scope, depth: int, inputs: Sequence[str] = ()) -> tuple[Scope, list[str]]:
        """A body with these inputs of the usual type, and its scope; the names are its own."""
        inner = scope.inner()
        names = [self.name(inner) for _ in inputs]
        inner.visible += names
        return inner, names

    def graph(
        self, inner: Scope, inputs: Sequence[onnx.ValueInfoProto], outputs: Sequence[onnx.ValueInfoProto]
    ) -> onnx.GraphProto:
        constants = [numpy_helper.from_array(value, name) for name, value in inner.constants.items()]
        return helper.make_graph(
            self.named(inner.nodes), self.random.choice(("b", "g", "x")), inputs, outputs, constants
        )

    def branch(self, scope: Scope, depth: int, count: int) -> onnx.GraphProto:
        inner, _ = self.body(scope, depth)
        self.fill(inner, self.random.randint(0, 2), depth + 1)
        return self.graph(inner, [], [info(name) for name in self.outputs(inner, count, own=True)])

    def branches(self, scope: Scope, depth: int) -> None:
        """An If; in a function, a branch may be an attribute of the function."""
        count = self.random.randint(1, 2)
        given: dict[str, onnx.GraphProto] = {}
        referred = ""
        if scope.graphs and self.random.random() < 0.7:
            count, referred = 1, self.random.choice(("then_branch", "else_branch"))
        for name in ("then_branch", "else_branch"):
            if name != referred:
                given[name] = self.branch(scope, depth, count)
        truth = self.truth(scope)
        made = self.add(scope, "If", [truth], count, **given)
        if referred:
            scope.nodes[-1].attribute.append(reference(referred, self.random.choice(scope.graphs), _A.GRAPH))
        scope.visible += made

    def loop(self, scope: Scope, depth: int) -> None:
        r = self.random
        carried, stacked = r.choice(((0, 1), (1, 0), (1, 1), (2, 0), (0, 2)))
        starts = [self.pick(scope) for _ in range(carried)]
        trips = r.randint(1 if stacked else 0, 3)
        count = self.add(scope, "Constant", [], value=numpy_helper.from_array(np.array(trips)))[0]
        condition = (
            ""
            if r.random() < 0.5
            else self.add(scope, "Constant", [], value=numpy_helper.from_array(np.array(True)))[0]
        )
        inner, names = self.body(scope, depth, starts)
        trip, goes_on = self.name(inner), self.name(inner)
        self.fill(inner, r.randint(0, 2), depth + 1)
        kind = r.choice(("same", "same", "constant", "computed"))
        if kind == "same":
            still = self.add(inner, "Identity", [goes_on])[0]
        elif kind == "constant":
            inner.truths, still = (
                [*inner.truths],
                self.add(inner, "Constant", [], value=numpy_helper.from_array(np.array(True)))[0],
            )
        else:
            self.departs |= not condition
            limit = self.add(inner, "Constant", [], value=numpy_helper.from_array(np.array(r.randint(0, 2))))[0]
            still = self.add(inner, "Less", [trip, limit])[0]
        results = self.outputs(inner, carried + stacked, own=True)
        if carried + stacked > 1 and r.random() < 0.3:
            results[1] = results[0]
        body = self.graph(
            inner, [info(trip, I64, ()), info(goes_on, B, ()), *map(info, names)],
            [info(still, B, ()), *map(info, results)],
        )  # fmt: skip
        made = self.add(scope, "Loop", [count, condition, *starts], carried + stacked, body=body)
        self.use(scope, made, carried)

    def scan(self, scope: Scope, depth: int) -> None:
        """Over a stack of two values."""
        r = self.random
        states = r.randint(0, 1)
        first = [self.pick(scope) for _ in range(states)]
        stack = self.add(
            scope, "Constant", [], value=numpy_helper.from_array(np.stack([self.array() for _ in range(2)]))
        )[0]
        inner, names = self.body(scope, depth, [*first, stack])
        self.fill(inner, r.randint(0, 2), depth + 1)
        results = self.outputs(inner, states + 1, own=True)
        body = self.graph(inner, [*map(info, names)], [*map(info, results)])
        made = self.add(scope, "Scan", [*first, stack], states + 1, body=body, num_scan_inputs=1)
        self.use(scope, made, states)

    def use(self, scope: Scope, made: list[str], carried: int) -> None:
        """Convert the results of a loop to values of the usual type."""
        scope.visible += made[:carried]
        for name in made[carried:]:
            if scope.opset < 13:
                scope.visible += self.add(scope, "ReduceSum", [name], axes=[0], keepdims=0)
            else:
                axes = self.add(scope, "Constant", [], value=numpy_helper.from_array(np.array([0])))[0]
                scope.visible += self.add(scope, "ReduceSum", [name, axes], keepdims=0)

    # -- functions ----------------------------------------------------------------------------------------

    def function(self, index: int) -> Signature:
        r = self.random
        scope = Scope(is_function=True, opset=r.choice((12, 13, 18, 18)))
        inputs = [self.name(scope) for _ in range(r.randint(0, 2))]
        scope.visible += inputs
        truth = self.name(scope)
        scope.truths.append(truth)
        required = tuple(r.sample(("a", "alpha", "x"), r.randint(0, 1)))
        free = [name for name in ("a", "alpha", "b") if name not in required]
        optional = tuple(r.sample(free, r.randint(0, 2)))
        graphs = ("g",) if r.random() < 0.3 else ()
        scope.floats, scope.graphs = [*required, *optional], [*graphs]
        defaults = [helper.make_attribute(name, r.choice((0.5, 0.25, 4.0))) for name in optional]
        for name in graphs:
            constant = helper.make_node("Constant", [], ["k"], value=numpy_helper.from_array(self.array()))
            defaults.append(helper.make_attribute(name, helper.make_graph([constant], "d", [], [info("k")])))
        self.fill(scope, r.randint(0, 4), 1)
        outputs = self.outputs(scope, r.randint(1, 2))
        if r.random() < 0.8:  # onnxruntime refuses functions with inputs that nothing reads
            self.add(scope, "Not", [truth])
            for name in inputs:
                self.add(scope, "Neg", [name])
        name = f"f_{r.choice('fgh')}"
        overload = "" if all(each.proto.name != name for each in self.functions) else f"o{index}"
        imports = [helper.make_opsetid("", scope.opset), helper.make_opsetid("local", 1)]
        proto = helper.make_function(
            "local", name, [truth, *inputs], outputs, self.named(scope.nodes), imports, required, defaults,
            overload=overload,
        )  # fmt: skip
        return Signature(proto, required, optional, graphs)

    def call(self, scope: Scope, depth: int) -> None:
        r = self.random
        callee = r.choice(self.functions)
        proto = callee.proto
        attributes: dict[str, object] = {}
        references: list[AttributeProto] = []
        for name in (*callee.required, *callee.optional):
            if name in callee.optional and r.random() < 0.5:
                continue
            if scope.floats and r.random() < 0.5:
                references.append(reference(name, r.choice(scope.floats), _A.FLOAT))
            else:
                attributes[name] = r.choice((0.5, 2.0, 0.125))
        for name in callee.graphs:
            if r.random() < 0.6:
                attributes[name] = self.branch(scope, 2, 1)
        inputs = [self.truth(scope), *(self.pick(scope) for _ in proto.input[1:])]
        made = self.add(scope, proto.name, inputs, len(proto.output), **attributes)
        node = scope.nodes[-1]
        node.overload = proto.overload
        node.attribute.extend(references)
        if len(made) > 1 and r.random() < 0.3:
            node.output[r.randrange(2)] = ""
        scope.visible += [name for name in node.output if name]


def info(name: str, kind: int = F, shape: Sequence[int] | None = None) -> onnx.ValueInfoProto:
    """The description of a value, without a shape unless given, so that stacks and states have any."""
    return helper.make_tensor_value_info(name, kind, SHAPE if shape is None else shape)


def reference(name: str, to: str, kind: int) -> AttributeProto:
    """An attribute that takes the value of a function's attribute."""
    return AttributeProto(name=name, ref_attr_name=to, type=kind)  # type: ignore[arg-type]
