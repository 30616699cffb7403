"""Comparing two models node by node; `equivalence` compares the values that they compute."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from typing import Any

import numpy as np

from engine.ir import Constant, Model, Node, Output, Result
from engine.ops import find_op
from engine.passes.runtime_info import ORIGINS
from engine.startup import dataclass

_MAX = 20


def compare_models(
    a: Model,
    b: Model,
    *,
    attributes: bool = True,
    constants: bool = True,
    names: bool = True,
    rt_info: bool = True,
    types: bool = True,
) -> list[str]:
    """The differences between two models, as text; an empty list if they are equal.

    Compares inputs, outputs and, from the outputs up, operators and edges; and, as enabled: attributes (bodies
    included; an omitted one counts as its operator's default), constants (bit by bit, NaN equal to NaN), friendly names
    that are set in both, rt_info, and types. A constant that several nodes share equals several constants with its
    value. At most 20 differences are listed.
    """
    comparison = ModelComparison(attributes, constants, names, rt_info, types)
    comparison.models(a, b)
    return comparison.found[:_MAX]


@dataclass(slots=True)
class ModelComparison:
    """A comparison in progress; `exact` also distinguishes set and generated names, shared and equal constants."""

    attributes: bool = True
    constants: bool = True
    names: bool = True
    rt_info: bool = True
    types: bool = True
    exact: bool = False
    found: list[str] = field(default_factory=list)
    pairs: dict[Node, Node] = field(default_factory=dict)
    partners: dict[Node, Node] = field(default_factory=dict)

    def models(self, a: Model, b: Model) -> None:
        """Compare the inputs and outputs of two models, and everything between."""
        if self.exact:
            self.facts(a, b)
        for what, left, right in (
            ("inputs", a.parameters, b.parameters),
            ("captures", a.captures, b.captures),
            ("sinks", a.sinks, b.sinks),
            ("outputs", a.results, b.results),
        ):
            if len(left) != len(right):
                self.found.append(f"{what}: {_names(left)} against {_names(right)}")
                return
            for x, y in zip(left, right, strict=True):
                self.nodes(x, y)

    def facts(self, a: Model, b: Model) -> None:
        """Compare the properties of the models themselves."""
        for what in ("name", "metadata", "opset_imports", "rt_info"):
            x, y = getattr(a, what), getattr(b, what)
            if not _equal_attributes(x, y):
                self.found.append(f"{what} of the model: {x!r} against {y!r}")
        left, right = ([variable.to_json() for variable in model.variables] for model in (a, b))
        if left != right:
            self.found.append(f"variables of the model: {left!r} against {right!r}")

    def nodes(self, a: Node, b: Node) -> None:
        """Compare two nodes and, without recursion, everything above them."""
        stack = [(a, b)]
        while stack and len(self.found) < _MAX:
            x, y = stack.pop()
            if self.pairs.get(x) is y:
                continue
            if self.exact or not isinstance(x, Constant):
                known, partner = self.pairs.get(x), self.partners.get(y)
                if known is not None or partner is not None:
                    shared, single, several = (x, known, y) if known is not None else (y, partner, x)
                    self.found.append(f"{shared} corresponds to both {single} and {several}")
                    continue
            self.pairs[x], self.partners[y] = y, x
            if self.node(x, y):
                stack.extend(
                    (s.node, t.node)
                    for s, t in zip(x.sources, y.sources, strict=True)
                    if s is not None and t is not None
                )

    def node(self, a: Node, b: Node) -> bool:
        """Compare two nodes without their inputs; True if their inputs can be compared one by one."""
        if (a.domain, a.op_type) != (b.domain, b.op_type):
            self.found.append(f"{a} against {b}")
            return False
        if self.names:
            self.node_names(a, b)
        if self.rt_info and not _equal_attributes(a.annotations, b.annotations):
            x, y = _shown(a), _shown(b)
            self.found.append(f"rt_info of {a}: " + ("it was not carried" if x == y else f"{x} against {y}"))
        if self.types and list(a.output_types) != list(b.output_types):
            self.found.append(f"types of {a}: {_texts(a.output_types)} against {_texts(b.output_types)}")
        if isinstance(a, Constant) and isinstance(b, Constant):
            if self.constants:
                self.constant(a, b)
            return True
        if self.attributes:
            self.attribute_maps(a, b)
        if len(a.sources) != len(b.sources):
            self.found.append(f"{a} has {len(a.sources)} inputs against {len(b.sources)} of {b}")
            return False
        for position, (s, t) in enumerate(zip(a.sources, b.sources, strict=True)):
            if (s is None) != (t is None) or (s is not None and t is not None and s.index != t.index):
                self.found.append(f"input {position} of {a} reads {_source(s)} against {_source(t)}")
        return True

    def node_names(self, a: Node, b: Node) -> None:
        """Compare names that are set; if exact, also whether they are set, and the tensor names."""
        given = [not n.has_made_name if isinstance(n, Result) else n.has_own_name for n in (a, b)]
        if (all(given) and a.friendly_name != b.friendly_name) or (self.exact and given[0] != given[1]):
            self.found.append(f"friendly name: {a} against {b}")
        if self.exact and list(a.output_names or ()) != list(b.output_names or ()):
            self.found.append(f"output names of {a}: {a.output_names} against {b.output_names}")

    def constant(self, a: Constant, b: Constant) -> None:
        """Compare two constants bit by bit, unless they share their data."""
        if a.shares_data(b):
            return
        x, y = a.data, b.data
        if x.dtype != y.dtype or x.shape != y.shape:
            self.found.append(f"{a}: {x.dtype}{list(x.shape)} against {y.dtype}{list(y.shape)}")
        elif not _equal_arrays(x, y):
            different = int(np.sum(x != y))
            self.found.append(f"values of {a}: {different} of {x.size} elements differ")

    def attribute_maps(self, a: Node, b: Node) -> None:
        """Compare the attributes of two nodes of one operator, and their bodies."""
        for name in sorted({*a.attributes, *b.attributes}):
            x, y = (n.attributes.get(name) if self.exact else _attribute(n, name) for n in (a, b))
            if isinstance(x, Model) and isinstance(y, Model):
                before = len(self.found)
                self.models(x, y)
                self.found[before:] = [f"{name} of {a}: {text}" for text in self.found[before:]]
            elif not _equal_attributes(x, y):
                self.found.append(f"attribute {name} of {a}: {x!r} against {y!r}")


def _attribute(node: Node, name: str) -> Any:
    """The value of an attribute, otherwise the operator's default, otherwise None."""
    op = find_op(node.op_type, node.domain)
    definition = None if op is None else op.attributes.get(name)
    return node.attributes.get(name, None if definition is None else definition.default)


def _equal_attributes(x: Any, y: Any) -> bool:
    if isinstance(x, np.ndarray) and isinstance(y, np.ndarray):
        return x.dtype == y.dtype and x.shape == y.shape and _equal_arrays(x, y)
    if isinstance(x, dict) and isinstance(y, dict):
        return x.keys() == y.keys() and all(_equal_attributes(x[key], y[key]) for key in x)
    if isinstance(x, (tuple, list)) and isinstance(y, (tuple, list)):
        return len(x) == len(y) and all(map(_equal_attributes, x, y))
    return type(x) is type(y) and bool(x == y or (x != x and y != y))


def _equal_arrays(x: np.ndarray[Any, Any], y: np.ndarray[Any, Any]) -> bool:
    if x.dtype == object:
        return bool(np.array_equal(x, y))
    return np.ascontiguousarray(x).tobytes() == np.ascontiguousarray(y).tobytes()


def _names(nodes: Sequence[Node]) -> str:
    return "[" + ", ".join(node.friendly_name for node in nodes) + "]"


def _texts(types: Sequence[Any]) -> str:
    return "[" + ", ".join(map(str, types)) + "]"


def _shown(node: Node) -> dict[str, Any]:
    """The rt_info of a node, without the entries of `Manager(checked=True)`."""
    return {key: value for key, value in node.annotations.items() if key != ORIGINS}


def _source(source: Output | None) -> str:
    return "nothing" if source is None else str(source)
