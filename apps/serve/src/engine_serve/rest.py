"""The server of HTTP: KServe's application with the routes that it lacks, and inference beside it, behind a `Guard`."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from typing import Any, Final

import kserve.model_server
import uvicorn
from fastapi import APIRouter, FastAPI, Request
from fastapi.responses import JSONResponse
from kserve.constants.constants import FASTAPI_APP_IMPORT_STRING, V2_ROUTE_PREFIX
from kserve.protocol.rest.server import RESTServer
from kserve.protocol.rest.v2_endpoints import V2Endpoints

from engine.errors import UnsupportedError
from engine_serve.data_plane import DataPlane
from engine_serve.encoder_routes import encoder_router
from engine_serve.error_answers import HANDLERS
from engine_serve.generation_routes import generation_router
from engine_serve.guard import Admission, Guard
from engine_serve.infer_route import InferRoute
from engine_serve.json_objects import object_of
from engine_serve.openai_routes import openai_router
from engine_serve.options import ServerOptions
from engine_serve.refusals import Refused
from engine_serve.repository import NO_PARAMETERS, RepositoryExtension
from engine_serve.shared_memory_routes import shared_memory_router
from engine_serve.tokens import Tokens

_VERSION: Final = "/models/{model_name}/versions/{model_version}"


class RestServer(RESTServer):  # type: ignore[misc]
    """KServe's server of HTTP, on a socket that is bound already, ended by `stop` rather than by signals."""

    def __init__(
        self,
        data_plane: DataPlane,
        extension: RepositoryExtension,
        options: ServerOptions,
        admission: Admission,
        tokens: Tokens | None,
    ) -> None:
        super().__init__(
            FASTAPI_APP_IMPORT_STRING, data_plane, extension, options.http_port, grace_period=options.grace_seconds
        )
        self._options, self._data_plane, self._extension = options, data_plane, extension
        app: FastAPI = kserve.model_server.app
        guarded = Guard(
            app,
            options.max_body_bytes,
            options.body_seconds,
            admission,
            self._is_ending,
            tokens,
            InferRoute(data_plane).find,
        )
        self._uvicorn = _Server(
            uvicorn.Config(
                guarded,
                log_config=None,
                access_log=False,
                lifespan="off",
                timeout_graceful_shutdown=options.grace_seconds,
                timeout_keep_alive=self.config.timeout_keep_alive,
                ssl_certfile=options.certificate,
                ssl_keyfile=options.private_key,
            )
        )
        self._app = app

    def create_application(self) -> None:
        """Add our routes, which are found first, and what KServe's server has."""
        self._app.include_router(_router(self._data_plane, self._extension))
        self._app.include_router(generation_router(self._data_plane))
        self._app.include_router(encoder_router(self._data_plane))
        self._app.include_router(openai_router(self._data_plane, self._extension.repository))
        self._app.include_router(shared_memory_router(self._data_plane.regions))
        super().create_application()
        for kind, handler in HANDLERS.items():
            self._app.add_exception_handler(kind, handler)

    async def serve(self, listener: socket.socket) -> None:
        """Serve until `stop` is called, and all requests have been answered, or the grace period has passed."""
        await self._uvicorn.serve(sockets=[listener])

    @property
    def is_serving(self) -> bool:
        """Whether the server has started and accepts connections."""
        return bool(self._uvicorn.started)

    def stop(self) -> None:
        """Accept no more connections, and end those without a request."""
        self._uvicorn.should_exit = True

    def _is_ending(self) -> bool:
        return bool(self._uvicorn.should_exit)


class _Server(uvicorn.Server):  # type: ignore[misc]
    """Leaves signals to the application: both protocols must end together."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave the signals to the application, which shuts the server down."""
        yield


def _router(data_plane: DataPlane, extension: RepositoryExtension) -> APIRouter:
    """The routes of versions, which KServe's server refuses, and those of the repository."""
    endpoints = V2Endpoints(data_plane, extension)
    router = APIRouter(prefix=V2_ROUTE_PREFIX)

    async def metadata(model_name: str, model_version: str) -> Any:
        return await endpoints.model_metadata(f"{model_name}/{model_version}")

    async def ready(model_name: str, model_version: str) -> Any:
        return await endpoints.model_ready(f"{model_name}/{model_version}")

    async def index(request: Request) -> Any:
        return JSONResponse(await extension.index(bool((await object_of(request)).get("ready"))))

    async def load(model_name: str, request: Request) -> Any:
        if (await object_of(request)).get("parameters"):
            raise Refused(UnsupportedError(NO_PARAMETERS), is_loading=True)
        return await endpoints.load(model_name)

    async def statistics(model_name: str = "", model_version: str = "") -> Any:
        return JSONResponse(data_plane.model_statistics(_key(model_name, model_version)))

    async def configuration(model_name: str, model_version: str = "") -> Any:
        return JSONResponse(await data_plane.model_configuration(_key(model_name, model_version)))

    router.add_api_route("/models/stats", statistics, methods=["GET"])
    for path in ("/models/{model_name}", _VERSION):
        router.add_api_route(f"{path}/stats", statistics, methods=["GET"])
        router.add_api_route(f"{path}/config", configuration, methods=["GET"])
    router.add_api_route(_VERSION, metadata, methods=["GET"])
    router.add_api_route(f"{_VERSION}/ready", ready, methods=["GET"])
    router.add_api_route("/repository/index", index, methods=["POST"])
    router.add_api_route("/repository/models/{model_name}/load", load, methods=["POST"])
    return router


def _key(name: str, version: str) -> str:
    return f"{name}/{version}" if version else name
