"""Parameters of requests: both protocols' parameters as Python values, and the refusal of unsupported ones.

An ignored parameter could silently change the answer, so every unknown one is refused by its name.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final

from google.protobuf.unknown_fields import UnknownFieldSet

from engine.errors import InputError

REQUEST: Final = frozenset({"timeout", "binary_data_output", "priority"})
"""The parameters of a request, whatever its model."""
SEQUENCE: Final = frozenset({"sequence_id", "sequence_start", "sequence_end"})
INPUT: Final = frozenset({"binary_data_size", "binary_data"})
"""The parameters of an input."""
_OUTPUT: Final = frozenset({"binary_data", "classification"})
_DOUBLE, _UNSIGNED = 4, 5
"""Fields of Triton's message for a parameter that KServe's lacks, in which they would be lost."""


def from_message(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters of a message of gRPC. Raises `InputError` for one without a value."""
    return {name: _value(name, each) for name, each in parameters.items()}


def _value(name: str, parameter: Any) -> Any:
    kind = parameter.WhichOneof("parameter_choice")
    if kind is not None:
        return getattr(parameter, kind)
    for unknown in UnknownFieldSet(parameter):
        if unknown.field_number == _DOUBLE and unknown.wire_type == 1:
            return struct.unpack("<d", struct.pack("<Q", unknown.data))[0]
        if unknown.field_number == _UNSIGNED and unknown.wire_type == 0:
            return int(unknown.data)
    raise InputError(f"the parameter {name!r:.80} has no value, or one of an unknown kind")


def require_known(given: Iterable[str], known: Collection[str], where: str) -> None:
    """Raise `InputError` for a name that is not known; `where` is "of the request", and the like."""
    for name in sorted(given):  # a message of gRPC has them in any order
        if name not in known:
            listed = ", ".join(sorted(known)) or "none"
            raise InputError(f"the parameter {name!r:.80} {where} is not supported; leave it out (supported: {listed})")


def check_request(request: Any, also: Collection[str] = ()) -> dict[str, Any]:
    """The parameters of a request of the protocol, after its tensors' parameters are checked.

    `also` are names that its model knows beside the ones of every request. Raises `InputError` for a parameter that is
    not supported, and for an output that is named twice: otherwise, a client could make an answer of any length.
    """
    parameters = dict(request.parameters or {})
    require_known(parameters, REQUEST | set(also), "of the request")
    if parameters.get("priority", 0) != 0:
        raise InputError("the parameter 'priority' of the request is not supported: requests run in their order")
    if type(parameters.get("binary_data_output", False)) is not bool:
        raise InputError("the parameter 'binary_data_output' of the request must be true or false")
    for tensor in request.inputs:
        require_known(tensor.parameters or (), INPUT, f"of input {tensor.name!r:.80}")
    names: set[str] = set()
    for output in request.request_outputs or ():
        where = f"of output {output.name!r:.80}"
        if output.name in names:
            raise InputError(f"output {output.name!r:.80} is asked for twice; name it once")
        names.add(output.name)
        found = output.parameters or {}
        require_known(found, _OUTPUT, where)
        if found.get("classification", 0) != 0:
            raise InputError(f"the parameter 'classification' {where} is not supported: take the classes of the answer")
        if type(found.get("binary_data", False)) is not bool:
            raise InputError(f"the parameter 'binary_data' {where} must be true or false")
    return parameters
