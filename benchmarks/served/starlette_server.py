"""The least that a server in Python does: Starlette's request and answer around onnxruntime, in the event loop.

    python starlette_server.py FOLDER PORT

It checks nothing and has no queue, deadlines, metrics or health.
"""

from __future__ import annotations

import sys

import orjson
import uvicorn
from peer_sessions import binary_answer, binary_inputs, json_answer, json_inputs, open_sessions
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

SESSIONS = open_sessions(sys.argv[1])


async def infer(request: Request) -> Response:
    session = SESSIONS[request.path_params["name"]]
    body = await request.body()
    stated = request.headers.get("inference-header-content-length")
    if stated is None:
        outputs = session.run(None, json_inputs(orjson.loads(body)))
        return Response(orjson.dumps(json_answer(session, outputs)), media_type="application/json")
    outputs = session.run(None, binary_inputs(orjson.loads(body[: int(stated)]), body, int(stated)))
    head, data = binary_answer(session, outputs)
    return Response(head + data, headers={"inference-header-content-length": str(len(head))})


app = Starlette(routes=[Route("/v2/models/{name}/infer", infer, methods=["POST"])])

if __name__ == "__main__":
    uvicorn.run(app, port=int(sys.argv[2]), log_level="warning", access_log=False)
