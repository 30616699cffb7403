"""A server of this engine on free ports: python server.py FOLDER."""

from __future__ import annotations

import sys
from pathlib import Path

from engine_serve.packages import require_packages

from engine import Core

if __name__ == "__main__":
    require_packages()
    from engine_serve.logs import configure_logs
    from engine_serve.options import ServerOptions
    from engine_serve.server import Server

    configure_logs("text")
    options = ServerOptions(http_port=0, grpc_port=0)
    Server(Path(sys.argv[1]), Core(), options).run(lambda where: print(where, flush=True))
