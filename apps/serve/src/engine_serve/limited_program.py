"""The programs that a `LimitedProcess` runs: a reply to each request, within limits.

Standard input and output have a JSON object a line. This module and its programs import nothing of the engine, so that
they start in a tenth of a second.
"""

from __future__ import annotations

import json
import resource
import signal
import sys
from collections.abc import Callable
from typing import Any

Reply = Callable[[dict[str, Any]], dict[str, Any]]


def run(program: Callable[[dict[str, Any]], Reply]) -> None:
    """Answer until the end of standard input.

    The arguments of the command line are the seconds of CPU time for a reply, after which SIGPROF ends the process, and
    the bytes of its memory. The first line is passed to `program`, which returns what answers each of the others; an
    answer with `error` is given where memory does not suffice.
    """
    seconds, nbytes = float(sys.argv[1]), int(sys.argv[2])
    resource.setrlimit(resource.RLIMIT_AS, (nbytes, nbytes))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    reply_to = program(json.loads(sys.stdin.buffer.readline()))
    for line in sys.stdin.buffer:
        asked = json.loads(line)
        signal.setitimer(signal.ITIMER_PROF, seconds)
        try:
            reply = reply_to(asked)
        except (MemoryError, RecursionError) as e:
            reply = {"error": f"it needs too much memory ({type(e).__name__})"}
        signal.setitimer(signal.ITIMER_PROF, 0)
        sys.stdout.buffer.write(json.dumps(reply).encode() + b"\n")
        sys.stdout.buffer.flush()
