"""A worker process: gets a network from a blob, runs it, and waits.

`python -m sharing.worker BLOB LENGTH MMAP` prints "ready" and waits for the end of its input.
"""

from __future__ import annotations

import os
import sys
from multiprocessing.queues import SimpleQueue
from multiprocessing.synchronize import Event

import numpy as np

from engine import Core
from engine.plugin_api import ExecutableNetwork

INPUTS = ("input_ids", "attention_mask", "token_type_ids")


def run(network: ExecutableNetwork, length: int) -> None:
    for _ in range(3):
        network({name: np.ones((1, length), np.int64) for name in INPUTS})


def wait_forked(length: int, ready: SimpleQueue[tuple[int, int]], end: Event) -> None:
    """Run the fork server's network, and send the process ids of this worker and of the server."""
    from sharing.preload import network

    run(network, length)
    ready.put((os.getpid(), os.getppid()))
    end.wait()


def main() -> None:
    blob, length, is_mapped = sys.argv[1:]
    network = Core().import_model(blob, config={"ENABLE_MMAP": is_mapped == "True"})
    run(network, int(length))
    print("ready", flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
