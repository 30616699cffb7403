"""Graphs to partition, and the devices of their nodes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

Integers = npt.NDArray[np.int64]

EDGES_A_NODE = 1.7
WIDTH = 50
BLOCK = 100

AFFINITIES: dict[str, Callable[[int, int], Integers]] = {
    "alternating": lambda nodes, devices: np.arange(nodes) % devices,
    "blocky": lambda nodes, devices: np.arange(nodes) // BLOCK % devices,
    "random": lambda nodes, devices: np.random.default_rng(7).integers(0, devices, nodes),
}


def layered(nodes: int, seed: int = 0) -> Integers:
    """Layers of 50 nodes; each node reads from a node of the previous layer, and some from one of the previous five."""
    rng = np.random.default_rng(seed)
    own = np.arange(WIDTH, nodes)
    first = np.stack([own // WIDTH * WIDTH - 1 - rng.integers(0, WIDTH, own.size), own], 1)
    more = rng.choice(own, int(EDGES_A_NODE * nodes) - own.size)
    source = more // WIDTH * WIDTH - 1 - rng.integers(0, 5 * WIDTH, more.size)
    second = np.stack([np.maximum(0, source), more], 1)
    return np.concatenate([first, second])


def transfer_sizes(edges: Integers) -> Integers:
    """Bytes of each edge: typical sizes of activations, over three orders of magnitude."""
    rng = np.random.default_rng(1)
    return np.asarray(4 * 10 ** rng.uniform(2, 5, len(edges)), np.int64)
