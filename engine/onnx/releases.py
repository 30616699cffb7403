"""Additions of later releases of ONNX, which this version does not know: a file with one is refused by name.

The onnx package may be newer than this version, or older than the file; protobuf reads fields that it does not know as
fields without a name. The features that they request must not be ignored.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from google.protobuf.unknown_fields import UnknownFieldSet

from engine.errors import UnsupportedError
from engine.ir.element_type import ALL
from engine.onnx.functions import callee_of, functions_by_key, onnx_domain, walk_nodes
from engine.onnx.opsets import newest_opset, version_in
from engine.ops import CANONICAL_VERSIONS
from engine.startup.onnx_library import onnx

NEWEST_IR: Final = 14
"""The version of ONNX's file format whose fields are known."""

# fmt: off
KNOWN_FIELDS: Final[Mapping[str, frozenset[int]]] = {name: frozenset(numbers) for name, numbers in {
    "AttributeProto": (*range(1, 12), 13, 14, 15, *range(20, 24)),
    "DeviceConfigurationProto": range(1, 4),
    "FunctionProto": (1, *range(4, 15)),
    "GraphProto": (1, 2, 5, *range(10, 17)),
    "IntIntListEntryProto": range(1, 3),
    "ModelProto": (*range(1, 9), 14, 20, 25, 26),
    "NodeDeviceConfigurationProto": range(1, 4),
    "NodeProto": range(1, 11),
    "OperatorSetIdProto": range(1, 3),
    "ShardedDimProto": range(1, 3),
    "ShardingSpecProto": range(1, 5),
    "SimpleShardedDimProto": range(1, 4),
    "SparseTensorProto": range(1, 4),
    "StringStringEntryProto": range(1, 3),
    "TensorAnnotation": range(1, 3),
    "TensorProto": (*range(1, 15), 16),
    "TensorProto.Segment": range(1, 3),
    "TensorShapeProto": range(1, 2),
    "TensorShapeProto.Dimension": range(1, 4),
    "TrainingInfoProto": range(1, 5),
    "TypeProto": (1, *range(4, 10)),
    "TypeProto.Map": range(1, 3),
    "TypeProto.Opaque": range(1, 3),
    "TypeProto.Optional": range(1, 2),
    "TypeProto.Sequence": range(1, 2),
    "TypeProto.SparseTensor": range(1, 3),
    "TypeProto.Tensor": range(1, 3),
    "ValueInfoProto": range(1, 5),
}.items()}
"""The numbers of the fields of each message in the file format."""
# fmt: on


def check_release(label: str, proto: onnx.ModelProto, opsets: Mapping[str, int]) -> None:
    """Raise `UnsupportedError` if the file uses fields or operators of ONNX that are newer than those known here.

    Takes time only for a file that states a newer version.
    """
    if proto.ir_version > NEWEST_IR and (found := sorted(set(_later_fields(proto)))):
        raise UnsupportedError(
            f"{label} uses {', '.join(found)} of ONNX's file format, newer than version {NEWEST_IR}, the newest "
            f"supported one; install a newer engine, or write the model with IR version {NEWEST_IR}"
        )
    functions = functions_by_key(proto.functions)
    calls: dict[str, list[str]] = {}
    bodies = [(proto.graph.node, opsets)]
    bodies += [(f.node, {onnx_domain(e.domain): e.version for e in f.opset_import}) for f in functions.values()]
    for nodes, versions in bodies:
        later = {d for d, newest in CANONICAL_VERSIONS.items() if newest < versions.get(d, 0) <= newest_opset(d)}
        for node in walk_nodes(nodes) if later else ():
            domain = onnx_domain(node.domain)
            if domain in later and callee_of(node, functions) is None:
                version = version_in(node.op_type, domain, versions[domain])
                if version is not None and version > CANONICAL_VERSIONS[domain]:
                    name = node.name or next(iter(node.output), "")
                    calls.setdefault(_name(node.op_type, domain, version), []).append(name)
    if calls:
        used = ", ".join(f"{operator} ({_listed(names)})" for operator, names in sorted(calls.items()))
        newest = ", ".join(f"{domain or 'ai.onnx'} {version}" for domain, version in CANONICAL_VERSIONS.items())
        raise UnsupportedError(
            f"{label} uses operators newer than the supported opsets ({newest}): {used}; install a newer engine, or "
            "write the model at an older opset"
        )


def additions() -> list[str]:
    """The additions of the installed onnx package that this version does not know, sorted.

    Operators as `Relu-14`, element types as `type FLOAT16`, and fields of the file format as `field NodeProto.name`.
    """
    found = {
        _name(schema.name, schema.domain, schema.since_version)
        for schema in onnx.defs.get_all_schemas_with_history()
        if schema.since_version > CANONICAL_VERSIONS.get(schema.domain, 0) and schema.domain in _onnx_domains()
    }
    known = {element_type.onnx for element_type in ALL}
    found |= {f"type {name}" for name, number in onnx.TensorProto.DataType.items() if number not in known}
    file: Any = onnx.ModelProto.DESCRIPTOR.file
    for message in _messages(file.message_types_by_name.values()):
        numbers = KNOWN_FIELDS.get(_short(message), frozenset())
        found |= {f"field {_short(message)}.{f.name}" for f in message.fields if f.number not in numbers}
    return sorted(found)


def _onnx_domains() -> list[str]:
    """Domains of ONNX, without the domains of extensions, which also register schemas."""
    return [
        domain
        for domain in onnx.defs.C.schema_version_map()
        if domain in CANONICAL_VERSIONS or domain[:8] == "ai.onnx."
    ]


def _messages(descriptors: Iterable[Any]) -> Iterator[Any]:
    for descriptor in descriptors:
        yield descriptor
        yield from _messages(descriptor.nested_types)


def _later_fields(message: Any) -> Iterator[str]:
    name = _short(message.DESCRIPTOR)
    known = KNOWN_FIELDS.get(name, frozenset())
    for unknown in UnknownFieldSet(message):
        if unknown.field_number not in known:
            yield f"field {unknown.field_number} of {name}"
    for field, value in message.ListFields():
        if field.number not in known:
            yield f"field {name}.{field.name}"
        elif field.message_type is not None:
            for each in [value] if hasattr(value, "ListFields") else value:
                yield from _later_fields(each)


def _short(descriptor: Any) -> str:
    return str(descriptor.full_name).removeprefix("onnx.")


def _name(op_type: str, domain: str, version: int) -> str:
    return f"{domain}{'.' * bool(domain)}{op_type}-{version}"


def _listed(names: list[str]) -> str:
    return f"`{names[0]}`" if len(names) == 1 else f"{len(names)} nodes, first `{names[0]}`"
