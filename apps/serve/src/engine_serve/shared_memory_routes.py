"""Triton's extension for shared memory of the system: its routes of HTTP, and its calls of gRPC.

Clients such as perf_analyzer also list and unregister regions of CUDA, of which there are none.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import grpc
from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response
from google.protobuf.json_format import ParseDict  # type: ignore[import-untyped]

from engine.errors import EngineError, InputError, UnsupportedError
from engine_serve.json_objects import object_of
from engine_serve.refusals import Refused
from engine_serve.shared_memory import Regions, turned_off
from engine_serve.triton_messages import EMPTY, REGION, REGIONS

_REGISTER: Final = ("key", "offset", "byte_size")
_NO_CUDA: Final = "memory of CUDA cannot be registered; use shared memory of the system"


def _in(regions: Regions | None, call: Callable[[Regions], Any]) -> Any:
    """What `call` returns. Raises `Refused` from its errors, and where shared memory is not turned on."""
    try:
        if regions is None:
            raise turned_off()
        return call(regions)
    except EngineError as e:
        raise Refused(e) from e


def shared_memory_router(regions: Regions | None) -> APIRouter:
    """The routes, which refuse everything if `regions` is None."""
    router = APIRouter()

    async def status(name: str = "") -> Any:
        return JSONResponse(_in(regions, lambda found: found.described(name)))

    async def register(name: str, request: Request) -> Any:
        body = await object_of(request)
        for key in body:
            if key not in _REGISTER:
                refused = InputError(f"the request has the unknown key {key!r:.80}; expected {', '.join(_REGISTER)}")
                raise Refused(refused)
        given = body.get("key"), body.get("byte_size"), body.get("offset", 0)
        _in(regions, lambda found: found.register(name, *given))
        return Response()

    async def unregister(name: str = "") -> Any:
        _in(regions, lambda found: found.unregister(name))
        return Response()

    async def cuda_status() -> Any:
        return JSONResponse(_in(regions, lambda _: []))

    async def register_cuda() -> Any:
        _in(regions, _refuse_cuda)

    async def unregister_cuda() -> Any:
        _in(regions, lambda _: None)
        return Response()

    for prefix, calls in (
        ("/v2/systemsharedmemory", (status, register, unregister)),
        ("/v2/cudasharedmemory", (cuda_status, register_cuda, unregister_cuda)),
    ):
        for place in ("", "/region/{name}"):
            router.add_api_route(f"{prefix}{place}/status", calls[0], methods=["GET"])
            router.add_api_route(f"{prefix}{place}/unregister", calls[2], methods=["POST"])
        router.add_api_route(f"{prefix}/region/{{name}}/register", calls[1], methods=["POST"])
    return router


def _refuse_cuda(_: Regions) -> None:
    raise UnsupportedError(_NO_CUDA)


def shared_memory_methods(regions: Regions | None) -> dict[str, Any]:
    """The methods of gRPC by name, which refuse everything if `regions` is None."""

    async def status(request: Any, context: Any) -> Any:
        found = _in(regions, lambda found: found.described(request.name))
        return ParseDict({"regions": [{"key": each["name"], "value": each} for each in found]}, REGIONS())

    async def register(request: Any, context: Any) -> Any:
        given = request.name, request.key, request.byte_size, request.offset
        _in(regions, lambda found: found.register(*given))
        return EMPTY()

    async def unregister(request: Any, context: Any) -> Any:
        _in(regions, lambda found: found.unregister(request.name))
        return EMPTY()

    async def nothing(request: Any, context: Any) -> Any:
        _in(regions, lambda _: None)
        return EMPTY()  # also a status without regions

    async def register_cuda(request: Any, context: Any) -> Any:
        _in(regions, _refuse_cuda)

    return {
        "CudaSharedMemoryStatus": _method(nothing, EMPTY),
        "CudaSharedMemoryRegister": _method(register_cuda, EMPTY),
        "CudaSharedMemoryUnregister": _method(nothing, EMPTY),
        "SystemSharedMemoryStatus": _method(status, REGIONS),
        "SystemSharedMemoryRegister": _method(register, EMPTY),
        "SystemSharedMemoryUnregister": _method(unregister, EMPTY),
    }


def _method(call: Any, answer: Any) -> Any:
    return grpc.unary_unary_rpc_method_handler(call, REGION.FromString, answer.SerializeToString)
