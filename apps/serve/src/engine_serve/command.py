"""`engine serve`: the models of a folder over the Open Inference Protocol."""

from __future__ import annotations

import argparse
import logging
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from engine.cli.options import UsageError, add_extension, amount, count, positive
from engine.cli.output import say
from engine.errors import BlobSignatureError

if TYPE_CHECKING:
    from engine.blob import BlobRelease

SUMMARY = "serve the models of a folder over HTTP and gRPC"
DESCRIPTION = """\
Serve a model repository over the Open Inference Protocol, version 2, with HTTP and gRPC, until SIGTERM or Ctrl-C;
accepted requests are still answered then. The repository is a folder with a folder for each model: a file `model.onnx`
or `model.blob`, or folders of versions, `1`, `2`, with such a file, and perhaps a file `config.toml` that says device,
batches, queue and limits. A model that cannot be loaded is reported as not ready, with the reason; the others are
served.
"""
EXAMPLES = """\
engine serve models/                                     # HTTP at port 8080, gRPC at 8081, of this machine only
engine serve models/ --host 0.0.0.0 --port 8000 --grpc-port 8001  # of all networks
engine serve models/ --port 0 --no-grpc                  # at a free port, which is printed
engine serve models/ --host 0.0.0.0 --no-loading --token-file tokens  # only clients that send one of these tokens
engine serve models/ --trusted-key team.key.pub --release resnet=resnet50:7  # no older blob, and no other
engine serve models/ --max-body 8 --max-requests 256     # bodies of at most 8 MiB; at most 256 requests at once
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `engine serve`."""
    parser.add_argument("repository", metavar="FOLDER", help="the model repository")
    parser.add_argument(
        "--host", metavar="ADDRESS", default="127.0.0.1", help="the address to listen at (default: 127.0.0.1)"
    )
    parser.add_argument("--port", metavar="N", type=_port, default=8080, help="of HTTP; 0: a free one (default: 8080)")
    parser.add_argument(
        "--grpc-port", metavar="N", type=_port, default=8081, help="of gRPC; 0: a free one (default: 8081)"
    )
    parser.add_argument("--no-grpc", action="store_true", help="serve HTTP only")
    parser.add_argument(
        "--max-body", metavar="MIB", type=positive, default=64, help="the longest body of a request (default: 64 MiB)"
    )
    parser.add_argument(
        "--max-answer",
        metavar="MIB",
        type=positive,
        default=256,
        help="the longest answer of an inference, estimated before it is written (default: 256 MiB)",
    )
    parser.add_argument(
        "--memory-limit",
        metavar="MIB",
        type=positive,
        help="how much memory all models may take: the least recently used ones are unloaded when another one is "
        "loaded, and loaded again by the next request (default: no limit)",
    )
    parser.add_argument(
        "--max-requests",
        metavar="N",
        type=positive,
        default=1024,
        help="the most requests in memory; further ones get 503 or RESOURCE_EXHAUSTED (default: 1024)",
    )
    parser.add_argument(
        "--body-timeout",
        metavar="SECONDS",
        type=amount,
        default=30.0,
        help="how long a client may take to send a body, or to read nothing of an answer (default: 30)",
    )
    parser.add_argument(
        "--grace",
        metavar="SECONDS",
        type=count,
        default=30,
        help="how long accepted requests may take after SIGTERM (default: 30)",
    )
    parser.add_argument(
        "--drain",
        metavar="SECONDS",
        type=amount,
        default=0.0,
        help="how long requests are still accepted after SIGTERM, while the server is not ready (default: 0)",
    )
    parser.add_argument(
        "--stuck-after",
        metavar="SECONDS",
        type=amount,
        default=600.0,
        help="if an inference takes longer, the server reports that it is not alive (default: 600)",
    )
    parser.add_argument(
        "--log-format", choices=("text", "json"), default="text", help="of the log on standard error (default: text)"
    )
    parser.add_argument(
        "--traces",
        action="store_true",
        help="send traces over OTLP, configured by OpenTelemetry's variables such as OTEL_EXPORTER_OTLP_ENDPOINT "
        '(needs pip install "engine-serve[tracing]")',
    )
    parser.add_argument(
        "--no-loading", action="store_true", help="refuse requests to load, reload or unload a model (403)"
    )
    parser.add_argument(
        "--shared-memory",
        action="store_true",
        help="let clients of this machine, whom you trust as the server's user, send and take tensors by shared memory",
    )
    parser.add_argument(
        "--tls-cert", metavar="FILE", help="encrypt both protocols: the certificate, with its chain (PEM)"
    )
    parser.add_argument(
        "--tls-key", metavar="FILE", help="its private key (PEM), which others must not be able to read"
    )
    parser.add_argument(
        "--token-file",
        metavar="FILE",
        help="serve only clients with one of the tokens in this file, one per line, as `authorization: Bearer TOKEN`",
    )
    parser.add_argument("--trusted-key", metavar="FILE", action="append", default=[], help="a key that signs blobs")
    parser.add_argument("--require-signature", action="store_true", help="refuse blobs that no trusted key has signed")
    parser.add_argument(
        "--release",
        metavar="MODEL=NAME:VERSION",
        action="append",
        default=[],
        help="refuse this model unless it is a blob that a trusted key has signed as this version of the name, or a "
        "later one; may be given for several models",
    )
    parser.add_argument("--decrypt", metavar="FILE", help="the key with which the blobs were encrypted")
    add_extension(parser)


def run(args: argparse.Namespace) -> int:
    """Serve the repository until a signal ends the server."""
    from engine_serve.packages import require_packages

    if not os.path.isdir(args.repository):
        raise UsageError(f"{args.repository} is not a folder; expected a model repository")
    if (args.tls_cert is None) != (args.tls_key is None):
        raise UsageError("--tls-cert and --tls-key belong together; give both or neither")
    releases = _releases(args)
    require_packages()
    from engine.cli.networks import make_core
    from engine_serve.loading import BlobOptions
    from engine_serve.logs import configure_logs
    from engine_serve.options import ServerOptions
    from engine_serve.server import Server
    from engine_serve.shared_memory import require_folder
    from engine_serve.tracing import configure_tracing, flush_traces

    if args.shared_memory:
        require_folder()
    configure_logs(args.log_format)
    if args.traces:
        configure_tracing()
    options = ServerOptions(
        host=args.host,
        http_port=args.port,
        grpc_port=None if args.no_grpc else args.grpc_port,
        max_body_bytes=args.max_body << 20,
        max_requests=args.max_requests,
        body_seconds=args.body_timeout,
        grace_seconds=args.grace,
        drain_seconds=args.drain,
        stuck_seconds=args.stuck_after,
        allows_loading=not args.no_loading,
        shares_memory=args.shared_memory,
        memory_limit=None if args.memory_limit is None else args.memory_limit << 20,
        max_answer_bytes=args.max_answer << 20,
        certificate=_path(args.tls_cert),
        private_key=_path(args.tls_key),
        tokens=_path(args.token_file),
    )
    server = Server(Path(args.repository), make_core(args), options, BlobOptions(args.decrypt, releases))
    try:
        server.run(lambda where: say(f"serving {args.repository} at {where}", flush=True))
    finally:
        flush_traces()
    if server.is_compiling():
        _leave()
    return 0


def _releases(args: argparse.Namespace) -> dict[str, BlobRelease]:
    """The releases that `--release` requires, by model. A wrong model name would protect nothing."""
    from engine.blob import BlobRelease

    found: dict[str, BlobRelease] = {}
    known = os.listdir(args.repository) if args.release else []
    for given in args.release:
        model, _, release = given.partition("=")
        if model in found or model not in known:
            why = "is given twice" if model in found else f"is not a folder of {args.repository}"
            raise UsageError(f"--release {given}: model {model!r:.80} {why}; expected MODEL=NAME:VERSION")
        try:
            found[model] = BlobRelease.parse(release)
        except BlobSignatureError as e:
            raise UsageError(f"--release {given}: {e}") from e
    return found


def _path(given: str | None) -> Path | None:
    return None if given is None else Path(given)


def _leave() -> NoReturn:
    """End the process while a thread compiles: a normal exit would wait for it, or disturb it."""
    logging.shutdown()
    sys.stdout.flush()
    os._exit(0)


def _port(text: str) -> int:
    number = int(text) if text.isascii() and text.isdecimal() else -1
    if not 0 <= number < 65536:
        raise argparse.ArgumentTypeError(f"expected a port from 0 to 65535, got {text!r}")
    return number
