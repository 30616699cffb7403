"""The submodule of graph algorithms. Use `engine.native.graph`, which documents it."""

from typing import TypedDict

from engine.native.graph import Integers, Reals

class PartitionResult(TypedDict):
    subgraph: Integers
    run: Integers
    order: Integers
    device: Integers
    lower_bound: int
    crossing_bytes: int
    splits: int
    statistics: dict[str, float]
    trace: list[tuple[str, int, int, str, tuple[int, ...]]]

def set_error_types(*, graph: type[Exception], partition: type[Exception]) -> None: ...
def strategies() -> list[str]: ...
def partition(
    edges: Integers,
    affinity: Integers,
    *,
    strategy: str,
    mode: str,
    bytes: Integers | None = None,
    atoms: Integers | None = None,
    node_seconds: Reals | None = None,
    edge_seconds: Reals | None = None,
    overhead_seconds: float | None = None,
    closure_bytes: int,
    threads: int,
    trace: bool,
) -> PartitionResult: ...
def check_partition(edges: Integers, subgraph: Integers) -> Integers: ...
def verify_runs(edges: Integers, subgraph: Integers, run: Integers) -> None: ...
def lower_bound(edges: Integers, affinity: Integers) -> int: ...
def min_cut(
    edges: Integers, first: Integers, second: Integers, forward: Integers, backward: Integers
) -> tuple[Integers, int]: ...

class Closure:
    def __init__(self, edges: Integers, nodes: int, max_bytes: int, threads: int) -> None: ...
    def reaches(self, source: int, target: int) -> bool: ...
    def path_nodes(self, source: int, target: int) -> Integers: ...
    @property
    def bytes(self) -> int: ...
    @property
    def is_dense(self) -> bool: ...
