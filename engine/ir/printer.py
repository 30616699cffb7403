"""The readable text form of a model."""

from __future__ import annotations

from typing import Any

import numpy as np

from engine.ir.leaves import Constant
from engine.ir.node import Node, Subgraph
from engine.ir.single_floats import FIRST_SHOWN, MAX_SHOWN, shown_attribute

_SHOWN_ELEMENTS = 8


def model_to_text(model: Subgraph, indent: str = "") -> str:
    """One line per node: `%3: f32[1,8] = Relu(%2)  # name`; bodies are indented below their node."""
    names: dict[Node, str] = {}
    lines = [f'{indent}model "{model.name}" {{']
    inner = indent + "  "
    for node in model.ordered_nodes():
        if node.op_type == "Result" and not node.num_outputs:
            continue
        names[node] = f"%{len(names)}"
        lines.append(inner + _node_to_text(node, names, model, inner))
    for result in model.results:
        source = result.input_value(0)
        lines.append(f'{inner}result "{result.friendly_name}" = {_value(names, source.node, source.index)}')
    for variable in model.variables:
        grows = "" if variable.axis is None else f", grows along axis {variable.axis}"
        if variable.written_axis is not None:
            grows = f", written along axis {variable.written_axis}"
        lines.append(f'{inner}variable "{variable.name}" = "{variable.parameter}" <- "{variable.result}"{grows}')
    lines.append(f"{indent}}}")
    return "\n".join(lines)


def _node_to_text(node: Node, names: dict[Node, str], model: Subgraph, indent: str) -> str:
    types = ", ".join(str(t) for t in node._types)
    kind = f"{node.domain}.{node.op_type}" if node.domain else node.op_type
    if node.op_type == "Parameter" and node in model.captures:
        kind = "Capture"
    arguments = ", ".join("_" if s is None else _value(names, s.node, s.index) for s in node._sources)
    if isinstance(node, Constant):
        arguments = _constant_to_text(node)
    text = f"{names[node]}: {types} = {kind}({arguments})"
    attributes = {k: v for k, v in sorted(node.attributes.items()) if not isinstance(v, Subgraph)}
    if attributes:
        text += " {" + ", ".join(f"{k}={_attribute_to_text(v)}" for k, v in attributes.items()) + "}"
    if node.has_own_name:
        text += f"  # {node.friendly_name}"
    for name, body in node.bodies.items():
        text += f"\n{indent}  {name}:\n{model_to_text(body, indent + '    ')}"
    return text


def _value(names: dict[Node, str], node: Node, index: int) -> str:
    base = names.get(node, f"<{node}>")
    return base if node.num_outputs == 1 else f"{base}:{index}"


def _constant_to_text(node: Constant) -> str:
    size = node.output(0).shape.size()
    if size > _SHOWN_ELEMENTS:
        return f"{size} elements"
    return np.array2string(node.data, separator=", ").replace("\n", "")


def _attribute_to_text(value: Any) -> str:
    if isinstance(value, np.ndarray):
        if value.size > _SHOWN_ELEMENTS:
            return f"<{value.dtype} {list(value.shape)}>"
        return f"<{value.dtype} {np.array2string(value, separator=', ')}>".replace("\n", "")
    if isinstance(value, tuple):
        if len(value) > MAX_SHOWN:
            return "[" + ", ".join(map(_attribute_to_text, value[:FIRST_SHOWN])) + f", ...; {len(value)} values]"
        return "[" + ", ".join(map(_attribute_to_text, value)) + "]"
    return str(shown_attribute(value)) if not isinstance(value, str) else repr(value)
