"""`Server`: both protocols, the repository, and how they begin and end."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import ipaddress
import logging
import signal
import socket
from collections.abc import Callable
from functools import partial
from pathlib import Path

from engine.core import Core
from engine_serve.collector import ServerCollector
from engine_serve.data_plane import DataPlane
from engine_serve.grpc_server import GrpcServer
from engine_serve.guard import Admission
from engine_serve.loading import BlobOptions
from engine_serve.options import ServerOptions
from engine_serve.repository import Repository, RepositoryExtension
from engine_serve.rest import RestServer
from engine_serve.shared_memory import Regions
from engine_serve.tokens import check_tls, read_tokens

_log = logging.getLogger("engine.serving")


class Server:
    """Serves the models of a folder. One for each process: KServe's application is the process's.

    It listens at once, and is alive; it is ready when it has tried to load every model and can use at least one, and is
    no longer ready after the signal to end. After SIGTERM or SIGINT, it still serves for the time to drain, while load
    balancers notice that it is not ready; then it accepts no more requests, and answers the accepted ones, for at most
    the grace period. A compilation is not waited for: see `is_compiling`.
    """

    def __init__(self, root: Path, core: Core, options: ServerOptions, blobs: BlobOptions | None = None) -> None:
        self._options = options
        self._repository = Repository(
            root, core, blobs or BlobOptions(), options.max_answer_bytes, options.memory_limit
        )
        self._has_loaded = self._is_ending = False
        extension = RepositoryExtension(self._repository, options.allows_loading)
        regions = Regions() if options.shares_memory else None
        data_plane = DataPlane(self._repository, self.is_ready, self.is_live, regions, options.max_body_bytes)
        admission = Admission(options.max_requests)
        tls = None
        if options.certificate is not None and options.private_key is not None:
            tls = check_tls(options.certificate, options.private_key)
        self._is_encrypted = tls is not None
        tokens = None if options.tokens is None else read_tokens(options.tokens)
        self._rest = RestServer(data_plane, extension, options, admission, tokens)
        self._make_grpc = partial(GrpcServer, data_plane, extension, options, admission, tokens, tls)
        ServerCollector(self._repository)

    def is_ready(self) -> bool:
        """Whether requests should be sent here."""
        return (
            self._has_loaded
            and not self._is_ending
            and any(state.problem is None for _, _, state in self._repository.states())
        )

    def is_live(self) -> bool:
        """Whether no inference runs for longer than `stuck_seconds`: a device that hangs needs a restart."""
        runs = (s.model.queue.longest_run for _, _, s in self._repository.states() if s.model is not None)
        return max(runs, default=0.0) < self._options.stuck_seconds

    def is_compiling(self) -> bool:
        """Whether a model is read or compiled. Nothing ends that; at its end, a program must not wait for it."""
        return self._repository.is_compiling()

    def run(self, announce: Callable[[str], object]) -> None:
        """Serve until a signal to end. `announce` gets a line with the addresses, when both protocols listen.

        Raises `RepositoryError` if the repository is not a folder, and `OSError` if a port cannot be used.
        """
        names = self._repository.announce()
        with (
            _listener(self._options.host, self._options.http_port, self._options.body_seconds) as listener,
            asyncio.Runner(loop_factory=_loop_factory()) as runner,
        ):
            runner.run(self._serve(listener, names, announce))

    async def _serve(self, listener: socket.socket, names: list[str], announce: Callable[[str], object]) -> None:
        ending = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, ending.set)
        self._rest.create_application()
        gc.collect()
        gc.freeze()  # later collections, which block the event loop, need not scan what was imported
        grpc = None if self._options.grpc_port is None else self._make_grpc()
        grpc_port = None if grpc is None else await grpc.start()
        serving = asyncio.ensure_future(self._rest.serve(listener))
        while not self._rest.is_serving and not serving.done():
            await asyncio.sleep(0.005)
        host = f"[{self._options.host}]" if ":" in self._options.host else self._options.host
        secure = "s" if self._is_encrypted else ""
        where = f"http{secure}://{host}:{listener.getsockname()[1]}"
        announce(where if grpc_port is None else f"{where} and grpc{secure}://{host}:{grpc_port}")
        if self._options.tokens is None and not _is_loopback(self._options.host):
            _log.warning(
                "whoever reaches %s may use the server: it was started without --token-file%s%s",
                self._options.host,
                ", and clients may load and unload models" if self._options.allows_loading else "",
                ", and read and write shared memory of the server's user" if self._options.shares_memory else "",
            )
        loading = asyncio.ensure_future(self._load(names))
        await asyncio.wait((serving, asyncio.ensure_future(ending.wait())), return_when=asyncio.FIRST_COMPLETED)
        _log.info("ending: requests that were accepted are answered")
        self._is_ending = True
        loading.cancel()
        await asyncio.sleep(self._options.drain_seconds)
        self._rest.stop()
        tally = self._repository.tally
        loop.call_later(self._options.grace_seconds, setattr, tally, "is_over", True)
        await asyncio.gather(serving, *(() if grpc is None else (grpc.stop(),)))
        with contextlib.suppress(asyncio.CancelledError):
            await loading
        _log.info(
            "ended: %d requests were answered, %d were cut off; the clients of %d went away before their answers",
            tally.answered,
            tally.cut_off,
            tally.gone,
        )

    async def _load(self, names: list[str]) -> None:
        await self._repository.load_all(names)
        self._has_loaded = True
        ready = sum(state.problem is None for _, _, state in self._repository.states())
        _log.info("%d models are loaded, %d of them can be used", len(names), ready)


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop's event loop where it is installed, since it costs less CPU time for each request; or asyncio's."""
    try:
        import uvloop
    except ImportError:  # it has no packages for some systems
        return None
    return uvloop.new_event_loop  # type: ignore[no-any-return]


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _listener(host: str, port: int, read_seconds: float) -> socket.socket:
    """A socket that is bound. Raises `OSError`.

    The system ends connections whose client takes nothing of an answer for `read_seconds`: it would keep the answer,
    and its place among the requests in memory, for as long as it likes.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # With its protocol stated: only then does asyncio turn off Nagle's algorithm, which would hold answers for 40 ms.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if hasattr(socket, "TCP_USER_TIMEOUT"):  # Linux; connections inherit it
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(read_seconds * 1000))
        listener.bind((host, port))
        listener.setblocking(False)
    except OSError as e:
        listener.close()
        raise OSError(f"HTTP cannot listen at {host}, port {port}: {e}") from e
    return listener
