"""KServe's data plane over a `Repository`: versions, readiness as it is, and binary tensors without a copy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import orjson
from kserve import InferInput, InferRequest
from kserve.protocol.dataplane import DataPlane as KServeDataPlane
from kserve.protocol.infer_type import RequestedOutput

from engine import __version__
from engine.errors import EngineError, InputError, NotServedError
from engine_serve.parameters import INPUT, require_known
from engine_serve.refusals import Refused
from engine_serve.repository import Repository
from engine_serve.served_model import ServedModel
from engine_serve.shared_memory import Regions
from engine_serve.shared_tensors import REGION, SHARED, take_shared
from engine_serve.triton_config import triton_config

HEADER_LENGTH: Final = "inference-header-content-length"
"""The header with the length of the JSON before binary tensors."""
_EXTENSIONS: Final = ("binary_tensor_data", "model_configuration", "model_repository", "sequence", "statistics")
_REQUEST: Final = frozenset({"id", "inputs", "outputs", "parameters", "model_name"})
_INPUT: Final = frozenset({"name", "datatype", "shape", "parameters", "data"})
_OUTPUT: Final = frozenset({"name", "parameters"})


class DataPlane(KServeDataPlane):  # type: ignore[misc]
    """The interface that both protocols call."""

    def __init__(
        self,
        repository: Repository,
        is_ready: Callable[[], bool],
        is_live: Callable[[], bool],
        regions: Regions | None,
        max_shared_bytes: int,
    ) -> None:
        super().__init__(repository)
        self._repository, self._is_ready, self._is_live = repository, is_ready, is_live
        self.regions, self._max_shared_bytes = regions, max_shared_bytes
        """The shared memory of clients; None if they may not use any."""

    def metadata(self) -> dict[str, Any]:
        """Name, version and extensions of the server."""
        extensions = [*_EXTENSIONS, *(() if self.regions is None else ("system_shared_memory",))]
        return {"name": "engine", "version": __version__, "extensions": extensions}

    async def live(self) -> dict[str, str]:
        """{"status": "alive"}, or "stuck" if `is_live` is false: a probe may then restart the process."""
        return {"status": "alive" if self._is_live() else "stuck"}

    async def ready(self) -> bool:
        """Whether requests should be sent here."""
        return self._is_ready()

    async def model_ready(self, model_name: str, disable_predictor_health_check: bool = False) -> bool:
        """Whether requests to a model can be answered.

        Raises `Refused` for an unknown name; and, before an inference, which sets the flag, also with the reason why
        the model is not ready.
        """
        if disable_predictor_health_check:
            self.get_model_from_registry(model_name)
        try:
            return await self._repository.is_model_ready(model_name)
        except NotServedError as e:
            raise Refused(e) from e

    def get_model_from_registry(self, name: str) -> ServedModel:
        """The model of a name, or of a name and a version. Raises `Refused`."""
        try:
            return self._repository.require(name)
        except EngineError as e:
            raise Refused(e) from e

    async def awake(self, name: str) -> None:
        """Load a model that was unloaded to make room, before a request to it. Raises `Refused` if there is no room."""
        try:
            await self._repository.awake(name)
        except EngineError as e:
            raise Refused(e) from e

    async def get_model(self, name: str) -> ServedModel:
        """Like `get_model_from_registry`: a request does not load a model that is not ready. Raises `Refused`."""
        return self.get_model_from_registry(name)

    async def model_metadata(self, model_name: str) -> dict[str, Any]:
        """Name, versions, inputs and outputs of a model. Raises `Refused`."""
        await self.awake(model_name)
        model = self.get_model_from_registry(model_name)
        return {
            "name": model.name,
            "versions": self._repository.versions(model.name) or [model.version],
            "platform": "engine",
            "inputs": model.get_input_types(),
            "outputs": model.get_output_types(),
        }

    def model_statistics(self, model_name: str) -> dict[str, Any]:
        """The statistics of a model's versions that are loaded, or of one version; of all models for the name "".

        Raises `Refused`.
        """
        name, _, version = model_name.partition("/")
        if model_name:
            found = self.get_model_from_registry(model_name)  # an unknown name, and one without a version
            if version:
                return {"model_stats": [found.statistics()]}
        models = [s.model for known, _, s in self._repository.states() if not name or known == name]
        return {"model_stats": [model.statistics() for model in models if model is not None]}

    async def model_configuration(self, model_name: str) -> dict[str, Any]:
        """The configuration of a model, in the form of Triton's. Raises `Refused`."""
        await self.awake(model_name)
        return triton_config(self.get_model_from_registry(model_name))

    async def take_shared(self, request: InferRequest) -> None:
        """Read the inputs in shared memory, and find the regions of outputs. Raises `Refused`."""
        try:
            await take_shared(request, self.regions, self._max_shared_bytes)
        except EngineError as e:
            raise Refused(e) from e

    def decode_inference_request(self, body: Any, headers: Mapping[str, str], model_name: str) -> InferRequest:
        """A request whose tensors follow the JSON text, as views of the body. Raises `Refused` if it is malformed."""
        if not isinstance(body, bytes):
            return super().decode_inference_request(body, headers, model_name)
        try:
            return _decoded(body, headers.get(HEADER_LENGTH, str(len(body))), model_name)
        except InputError as e:
            raise Refused(e) from e


def _decoded(body: bytes, stated: str, model_name: str) -> InferRequest:
    length = int(stated) if stated.isascii() and stated.isdecimal() and len(stated) < 16 else -1
    if not 0 <= length <= len(body):
        raise InputError(f"the header {HEADER_LENGTH} is {stated!r:.40}; expected at most the body's {len(body)} bytes")
    try:
        head = orjson.loads(body[:length])
    except orjson.JSONDecodeError as e:
        raise InputError(f"the request is not valid JSON: {e}") from e
    if not isinstance(head, dict) or not isinstance(head.get("inputs"), list):
        raise InputError("the request has no list `inputs`")
    _require_keys(head, _REQUEST, "the request")
    if head.get("model_name") not in (None, model_name.partition("/")[0]):  # which KServe's clients send
        raise InputError(f"`model_name` is {head['model_name']!r:.80}, but the request is sent to model `{model_name}`")
    inputs = _inputs(head["inputs"], memoryview(body)[length:])
    parameters, identity = head.get("parameters"), head.get("id")
    if not isinstance(parameters, dict | None) or not isinstance(identity, str | None):
        raise InputError("`parameters` of the request must be an object, and `id` a text")
    return InferRequest(
        model_name=model_name,
        request_id=identity,
        parameters=parameters,
        infer_inputs=inputs,
        request_outputs=_outputs(head.get("outputs")),
    )


def _inputs(given: list[Any], rest: memoryview) -> list[InferInput]:
    """The tensors of a request; the data of binary ones are in `rest`, one after the other."""
    inputs, start = [], 0
    for position, each in enumerate(given):
        tensor = _tensor(each, position)
        require_known(tensor.parameters or (), INPUT | SHARED, f"of input {tensor.name!r:.80}")
        is_shared = REGION in (tensor.parameters or ())
        size = (tensor.parameters or {}).get("binary_data_size")
        if tensor.data is not None and size is not None:
            raise InputError(f"input {tensor.name!r:.80} has both `data` and a `binary_data_size`; leave one out")
        if is_shared and (tensor.data is not None or size is not None):
            raise InputError(f"input {tensor.name!r:.80} has both data and a `{REGION}`; leave one out")
        if tensor.data is None and not is_shared:
            if type(size) is not int or not 0 <= size <= len(rest) - start:
                raise InputError(
                    f"input {tensor.name!r:.80} has neither `data` nor a `binary_data_size` of at most the "
                    f"{len(rest) - start} bytes that follow"
                )
            tensor._raw_data = rest[start : start + size]
            start += size
        inputs.append(tensor)
    if start != len(rest):
        raise InputError(f"{len(rest) - start} bytes follow the tensors of the request")
    return inputs


def _tensor(given: Any, position: int) -> InferInput:
    where = f"input {position} of the request"
    if not isinstance(given, dict):
        raise InputError(f"{where} is not an object")
    _require_keys(given, _INPUT, where)
    name, datatype, shape = given.get("name"), given.get("datatype"), given.get("shape")
    parameters, data = given.get("parameters"), given.get("data")
    if not isinstance(name, str) or not isinstance(datatype, str) or not isinstance(shape, list):
        raise InputError(f"{where} must have a `name` and a `datatype`, which are texts, and a `shape`, a list")
    if not isinstance(parameters, dict | None) or not isinstance(data, list | None):
        raise InputError(f"{where}: `parameters` must be an object, and `data` a list")
    return InferInput(name=name, shape=shape, datatype=datatype, data=data, parameters=parameters)


def _require_keys(given: dict[str, Any], known: frozenset[str], where: str) -> None:
    for key in given:
        if key not in known:
            raise InputError(f"{where} has the unknown key {key!r:.80}; expected {', '.join(sorted(known))}")


def _outputs(given: Any) -> list[RequestedOutput] | None:
    if given is None:
        return None
    if not isinstance(given, list) or not all(isinstance(o, dict) and isinstance(o.get("name"), str) for o in given):
        raise InputError("`outputs` of the request must be a list of objects with a `name`")
    for output in given:
        _require_keys(output, _OUTPUT, f"output {output['name']!r:.80}")
        if not isinstance(output.get("parameters"), dict | None):
            raise InputError(f"output {output['name']!r:.80}: `parameters` must be an object")
    return [RequestedOutput(name=output["name"], parameters=output.get("parameters")) for output in given]
