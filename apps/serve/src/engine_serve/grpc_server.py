"""The server of gRPC: KServe's service with versions, loading, deadlines and limits."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import grpc
from google.protobuf.json_format import ParseDict  # type: ignore[import-untyped]
from google.protobuf.unknown_fields import UnknownFieldSet
from grpc import aio
from kserve import InferRequest
from kserve.protocol.grpc import grpc_predict_v2_pb2 as pb
from kserve.protocol.grpc.grpc_predict_v2_pb2_grpc import add_GRPCInferenceServiceServicer_to_server
from kserve.protocol.grpc.servicer import InferenceServicer
from kserve.utils.utils import to_headers

from engine.errors import Busy, EngineError, InputError, NotServedError, UnsupportedError
from engine_serve.data_plane import DataPlane
from engine_serve.deadlines import CALL_SECONDS, seconds_left
from engine_serve.generative_model import GenerativeModel
from engine_serve.grpc_calls import Ending, Interceptor
from engine_serve.guard import Admission
from engine_serve.options import ServerOptions
from engine_serve.parameters import from_message
from engine_serve.refusals import Refused
from engine_serve.repository import NO_PARAMETERS, RepositoryExtension
from engine_serve.shared_memory_routes import shared_memory_methods
from engine_serve.shared_tensors import REGION
from engine_serve.tokens import Tokens
from engine_serve.triton_messages import CONFIGURATION, NAMED_MODEL, STATISTICS

_SERVICE: Final = "inference.GRPCInferenceService"
_EMPTY_FINAL: Final = "triton_enable_empty_final_response"
_FINAL: Final = "triton_final_response"
"""Triton's parameters of a request and a response, by which clients of streams learn the end of each answer."""
_HELD_SECONDS: Final = 0.25
"""Longer than messages in transit take to arrive."""
_TOLD_SECONDS: Final = 0.05
"""The time for gRPC's core to tell every client that the server ends."""
_CANCELLING_SECONDS: Final = 5.0
"""The time for cancelled calls to end; gRPC's core ends the others."""


class Servicer(InferenceServicer):  # type: ignore[misc]
    """KServe's servicer; a version is a part of the name that the data plane gets, as in `resnet/2`."""

    def __init__(self, data_plane: DataPlane, extension: RepositoryExtension, admission: Admission) -> None:
        super().__init__(data_plane, extension)
        self._extension, self._admission = extension, admission

    async def ModelReady(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Whether a model, or a version of it, is ready."""
        is_ready = await self._data_plane.model_ready(_key(request.name, request.version))
        return pb.ModelReadyResponse(ready=is_ready)

    async def ModelMetadata(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Return the model's name, versions, inputs and outputs."""
        return pb.ModelMetadataResponse(**await self._data_plane.model_metadata(_key(request.name, request.version)))

    async def model_statistics(self, request: Any, context: Any) -> Any:
        """Triton's statistics of a model, of a version, or of all models. KServe's service has no such method."""
        return ParseDict(self._data_plane.model_statistics(_key(request.name, request.version)), STATISTICS())

    async def model_configuration(self, request: Any, context: Any) -> Any:
        """Triton's configuration of a model. KServe's service has no such method."""
        found = await self._data_plane.model_configuration(_key(request.name, request.version))
        return ParseDict({"config": found}, CONFIGURATION())

    async def RepositoryModelLoad(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Load a model, or load it again. Triton's parameters are refused."""
        name = _repository_name(request)
        if any(unknown.field_number == 3 for unknown in UnknownFieldSet(request)):  # Triton's parameters
            raise Refused(UnsupportedError(NO_PARAMETERS), is_loading=True)
        with self._admitted():
            await self._extension.load(name)
        return pb.RepositoryModelLoadResponse(model_name=name, isLoaded=True)

    async def RepositoryModelUnload(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Unload a model; requests for it are refused from then on."""
        name = _repository_name(request)
        with self._admitted():
            await self._extension.unload(name)
        return pb.RepositoryModelUnloadResponse(model_name=name, isUnloaded=True)

    async def model_stream_infer(self, requests: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:
        """Answer each request: with a response for each token if the model generates tokens, otherwise with one.

        A refused request gets a message, and the stream continues, as Triton's clients expect.
        """
        async for request in requests:
            try:
                with self._admitted():
                    async with contextlib.aclosing(self._responses(request, context)) as responses:
                        async for response in responses:
                            yield stream_message(response, "")
            except Refused as e:
                e.log("")
                yield stream_message(None, e.details)

    async def _responses(self, request: Any, context: Any) -> AsyncGenerator[Any, None]:
        name = _key(request.model_name, request.model_version)
        await self._data_plane.awake(name)
        model = self._data_plane.get_model_from_registry(name)
        marks_final = _take_flag(request.parameters, _EMPTY_FINAL)
        if not isinstance(model, GenerativeModel):
            yield _marked(await self._inferred(request, context), is_final=True, marks_final=marks_final)
            return
        try:
            payload = _payload(request)
            await self._data_plane.take_shared(payload)
            prompt = model.prompt_of(payload)
            headers = to_headers(context)
            deadline = seconds_left(headers, payload.parameters, model.config.timeout_ms)
        except EngineError as e:
            raise Refused(e) from e
        async with contextlib.aclosing(model.stream(prompt, deadline, headers)) as pieces:
            async for piece in pieces:
                if piece.token is not None:
                    response = model.response(payload, [piece.token]).to_grpc()
                    yield _marked(response, is_final=False, marks_final=marks_final)
        if marks_final:
            response = pb.ModelInferResponse(model_name=model.name, model_version=model.version, id=request.id)
            yield _marked(response, is_final=True, marks_final=True)

    async def ModelInfer(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Run one request, within the client's deadline."""
        with self._admitted():
            CALL_SECONDS.set(context.time_remaining())
            marks_final = _take_flag(request.parameters, _EMPTY_FINAL)
            return _marked(await self._inferred(request, context), is_final=True, marks_final=marks_final)

    async def _inferred(self, request: Any, context: Any) -> Any:
        name = _key(request.model_name, request.model_version)
        await self._data_plane.awake(name)
        self._data_plane.get_model_from_registry(name)
        try:
            payload = _payload(request)
        except EngineError as e:
            raise Refused(e) from e
        await self._data_plane.take_shared(payload)
        response, _ = await self._data_plane.infer(name, payload, to_headers(context))
        return response.to_grpc()

    @contextlib.contextmanager
    def _admitted(self) -> Iterator[None]:
        if not self._admission.enter():
            raise Refused(Busy(f"{self._admission.most} requests are in progress; try again later"))
        try:
            yield
        finally:
            self._admission.leave()


def _payload(request: Any) -> InferRequest:
    """Convert a message to a request of the protocol. Raises `InputError` for invalid tensors or parameters."""
    _add_empty_contents(request)
    try:
        InferenceServicer.validate_grpc_request(request)
        payload = InferRequest.from_grpc(request)
    except ValueError as e:
        raise InputError(str(e)) from e
    payload.parameters = from_message(request.parameters)
    for tensor, given in zip(payload.inputs, request.inputs, strict=True):
        tensor.parameters = from_message(given.parameters)
    for output, asked in zip(payload.request_outputs or (), request.outputs, strict=True):
        output.parameters = from_message(asked.parameters)
    return payload


def _take_flag(parameters: Any, name: str) -> bool:
    """A parameter of a message that is true or false, which is removed. Raises `Refused` for another value."""
    if name not in parameters:
        return False
    kind = parameters[name].WhichOneof("parameter_choice")
    if kind != "bool_param":
        raise Refused(InputError(f"the parameter {name!r} must be true or false"))
    found = bool(parameters[name].bool_param)
    del parameters[name]
    return found


def _marked(response: Any, *, is_final: bool, marks_final: bool) -> Any:
    """A response that says whether further ones of its request follow, if the client wants to know."""
    if marks_final:
        response.parameters[_FINAL].bool_param = is_final
    return response


def _add_empty_contents(request: Any) -> None:
    """Give each input in shared memory an entry of the raw contents, in which Triton's clients leave it out."""
    is_shared = [REGION in tensor.parameters for tensor in request.inputs]
    raw = request.raw_input_contents
    if raw and any(is_shared) and len(raw) + sum(is_shared) == len(is_shared):
        given = iter(list(raw))
        del raw[:]
        raw.extend(b"" if shared else next(given) for shared in is_shared)


def _repository_name(request: Any) -> str:
    """The model to load or unload: in KServe's messages field 1, in Triton's field 2."""
    for unknown in UnknownFieldSet(request):
        if unknown.field_number == 2 and isinstance(unknown.data, bytes):
            return unknown.data.decode("utf-8", "replace")
    return str(request.model_name)


def _key(name: str, version: str) -> str:
    if "/" in name:
        raise Refused(NotServedError(f"there is no model {name!r:.80}: names have no path separators"))
    return f"{name}/{version}" if version else name


def stream_message(response: Any | None, error: str) -> bytes:
    """Triton's `ModelStreamInferResponse`: an error, or a response. KServe's service has no message for streams."""
    if response is None:
        return _field(1, error.encode())
    return _field(2, response.SerializeToString())


def _field(number: int, content: bytes) -> bytes:
    """A field of a message of protobuf: its number and kind, the length of its content, and the content."""
    length, rest = bytearray(), len(content)
    while rest > 127:
        length.append(rest & 127 | 128)
        rest >>= 7
    return bytes([number << 3 | 2]) + bytes(length) + bytes([rest]) + content


class GrpcServer:
    """A server of `grpc.aio` with KServe's service."""

    def __init__(
        self,
        data_plane: DataPlane,
        extension: RepositoryExtension,
        options: ServerOptions,
        admission: Admission,
        tokens: Tokens | None,
        tls: tuple[bytes, bytes] | None,
    ) -> None:
        self._options, self._tls = options, tls
        self._threads = ThreadPoolExecutor(1, "engine-grpc")
        self._ending = Ending()
        self._server = aio.server(
            self._threads,
            interceptors=(Interceptor(self._ending, tokens),),
            options=[
                ("grpc.max_receive_message_length", options.max_body_bytes),
                ("grpc.max_send_message_length", -1),
                ("grpc.so_reuseport", 0),
            ],
        )
        servicer = Servicer(data_plane, extension, admission)
        add_GRPCInferenceServiceServicer_to_server(servicer, self._server)
        stream = grpc.stream_stream_rpc_method_handler(
            servicer.model_stream_infer, pb.ModelInferRequest.FromString, lambda message: message
        )
        statistics = grpc.unary_unary_rpc_method_handler(
            servicer.model_statistics, NAMED_MODEL.FromString, STATISTICS.SerializeToString
        )
        configuration = grpc.unary_unary_rpc_method_handler(
            servicer.model_configuration, NAMED_MODEL.FromString, CONFIGURATION.SerializeToString
        )
        own = {"ModelStreamInfer": stream, "ModelStatistics": statistics, "ModelConfig": configuration}
        own |= shared_memory_methods(data_plane.regions)
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(_SERVICE, own),))

    async def start(self) -> int:
        """Listen; returns the port. Raises `OSError` if the port cannot be used."""
        host, port = self._options.host, self._options.grpc_port
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        try:
            if self._tls is None:
                found: int = self._server.add_insecure_port(address)
            else:
                chain, key = self._tls
                found = self._server.add_secure_port(address, grpc.ssl_server_credentials([(key, chain)]))
        except RuntimeError as e:
            raise OSError(f"gRPC cannot listen at {host}, port {port}: {e}") from e
        await self._server.start()
        return found

    async def stop(self) -> None:
        """Accept no more calls, and wait for those in progress; after the grace period they end with UNAVAILABLE."""
        grace = self._options.grace_seconds
        held = min(_HELD_SECONDS, grace / 2)
        self._ending.hold()
        await asyncio.sleep(held)
        stopping = asyncio.ensure_future(self._server.stop(grace + _CANCELLING_SECONDS))
        await asyncio.sleep(_TOLD_SECONDS)
        self._ending.release()
        await asyncio.wait((stopping,), timeout=max(0.0, grace - held))
        self._ending.is_over.set()
        await stopping
        self._threads.shutdown(wait=False)
