"""The version of an operator in a model's opset, and the canonical version in the IR."""

from __future__ import annotations

import functools

from engine.errors import UnknownOperatorError, UnsupportedError
from engine.ops.registry import CANONICAL_VERSIONS, KEPT_DEPRECATED
from engine.startup.onnx_library import onnx


@functools.cache
def resolve_version(op_type: str, domain: str, opset: int) -> int:
    """The since_version of an operator in a model of `opset`. About 100 ns when repeated.

    `domain` is one of `CANONICAL_VERSIONS`; versions of other domains are unknown.

    Raises:
        UnknownOperatorError: the opset does not have the operator, or no longer has it.
        UnsupportedError: the domain is unknown, or the opset or the operator's version is too new.
    """
    domain_opset = _canonical_opset(domain)
    newest = newest_opset(domain)
    if opset > newest:
        raise UnsupportedError(
            f"opset {opset} of domain {domain!r} is newer than {newest}, the newest that the installed onnx package "
            "knows; install a newer onnx package, or write the model at an older opset"
        )
    schema = _schema(op_type, domain, opset)
    if schema is None:
        raise UnknownOperatorError(
            f"{op_type} is not an operator of domain {domain!r} at opset {opset}; {_introduced(op_type, domain)}"
        )
    version: int = schema.since_version
    if schema.deprecated and (domain, op_type) not in KEPT_DEPRECATED and _is_last(schema, domain_opset):
        raise UnknownOperatorError(
            f"{op_type} is not an operator of domain {domain!r} since opset {version}, which deprecated it"
        )
    if version > domain_opset:
        raise UnsupportedError(
            f"{op_type}-{version} of domain {domain!r} is newer than opset {domain_opset}, the newest that is "
            "supported; write the model at an older opset"
        )
    return version


def canonical_version(op_type: str, domain: str) -> int:
    """The since_version of the operator at the canonical opset. Raises the errors of `resolve_version`."""
    return resolve_version(op_type, domain, _canonical_opset(domain))


def version_in(op_type: str, domain: str, opset: int) -> int | None:
    """The since_version of an operator in an opset, supported or not; None if the onnx package does not have it."""
    schema = _schema(op_type, domain, opset)
    return None if schema is None else int(schema.since_version)


def _canonical_opset(domain: str) -> int:
    try:
        return CANONICAL_VERSIONS[domain]
    except KeyError:
        known = ", ".join(map(repr, CANONICAL_VERSIONS))
        raise UnsupportedError(f"operator domain {domain!r} has no known versions; known domains are {known}") from None


@functools.cache
def newest_opset(domain: str) -> int:
    """The newest opset of one of ONNX's domains in the installed onnx package."""
    newest: int = onnx.defs.C.schema_version_map()[domain][1]
    return newest


def _schema(op_type: str, domain: str, opset: int) -> onnx.defs.OpSchema | None:
    try:
        return onnx.defs.get_schema(op_type, opset, domain)
    except onnx.defs.SchemaError:
        return None


def _is_last(schema: onnx.defs.OpSchema, opset: int) -> bool:
    last = _schema(schema.name, schema.domain, opset)
    return last is not None and last.since_version == schema.since_version


def _introduced(op_type: str, domain: str) -> str:
    """The hint for an operator that an opset does not have."""
    versions = [
        schema.since_version
        for schema in onnx.defs.get_all_schemas_with_history()
        if schema.name == op_type and schema.domain == domain
    ]
    if not versions:
        return "check its name and domain"
    return f"it was introduced in opset {min(versions)}; import that opset or a later one"
