"""Progress of the workers of each dataset: an actor collects it, and the messages that are logged once."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class WorkerProgress:
    """The progress of one worker process.

    Attributes:
        host, process: the host's name and the process id.
        node: Ray's id of the node.
        how: how it got the network: "imported" or "compiled".
        items, batches: computed rows and calls, also of results that were lost afterwards.
        failed: how many of the items failed and were set aside; see `error_column` of `predictor`.
        busy_seconds: the time of its inferences.
    """

    host: str
    process: int
    node: str
    how: str
    items: int = 0
    batches: int = 0
    busy_seconds: float = 0.0
    failed: int = 0


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of all workers of a dataset of results so far.

    Attributes:
        workers: every process that has imported the network, also those that have ended.
        seconds: from the beginning of the first batch to the end of the last one so far.
        notes: what was logged about nodes, once for each node, for all datasets of the class together.
    """

    workers: tuple[WorkerProgress, ...]
    seconds: float
    notes: tuple[str, ...]

    @property
    def items(self) -> int:
        """Computed rows. If a worker was lost, those that were computed again count twice."""
        return sum(worker.items for worker in self.workers)

    @property
    def failed(self) -> int:
        """How many of the items failed and were set aside."""
        return sum(worker.failed for worker in self.workers)

    @property
    def items_per_second(self) -> float:
        """The throughput of all workers together; 0 before the first batch."""
        return self.items / self.seconds if self.seconds else 0.0

    def __str__(self) -> str:
        failed = f" ({self.failed} failed)" if self.failed else ""
        return f"{self.items} items{failed} by {len(self.workers)} workers, {self.items_per_second:.1f} items/s"


@dataclass(slots=True)
class _Worker:
    host: str
    node: str
    how: str
    items: int = 0
    batches: int = 0
    busy_seconds: float = 0.0
    failed: int = 0


@dataclass(slots=True)
class _Run:
    """The workers of one dataset, by node and process."""

    workers: dict[tuple[str, int], _Worker] = field(default_factory=dict)
    begin: float | None = None
    end: float = 0.0


@dataclass(slots=True)
class Journal:
    """The actor. Times are taken by its own clock, since the nodes' clocks differ. `run` names a dataset of results."""

    runs: defaultdict[str, _Run] = field(default_factory=lambda: defaultdict(_Run))
    notes: list[str] = field(default_factory=list)
    noted: set[str] = field(default_factory=set)

    def note(self, nodes: Sequence[str], text: str) -> bool:
        """Whether to log a note about nodes: nothing was logged about one of them yet."""
        if self.noted.issuperset(nodes):
            return False
        self.noted.update(nodes)
        self.notes.append(text)
        return True

    def join(self, run: str, host: str, process: int, node: str, how: str) -> None:
        """Record that the worker in process `process` on node `node` has its network."""
        self.runs[run].workers[node, process] = _Worker(host, node, how)

    def add(self, run: str, process: int, node: str, items: int, failed: int, seconds: float) -> None:
        """A worker has computed a batch in this time; `failed` of its items were set aside."""
        found = self.runs[run]
        found.end = time.monotonic()
        if found.begin is None:
            found.begin = found.end - seconds
        worker = found.workers[node, process]
        worker.items += items
        worker.failed += failed
        worker.batches += 1
        worker.busy_seconds += seconds

    def progress(self, run: str) -> Progress:
        """The workers, seconds and notes of `run` so far; no workers if none has begun."""
        found = self.runs.get(run, _Run())
        workers = (
            WorkerProgress(w.host, process, w.node, w.how, w.items, w.batches, w.busy_seconds, w.failed)
            for (_, process), w in found.workers.items()
        )
        return Progress(tuple(workers), 0.0 if found.begin is None else found.end - found.begin, tuple(self.notes))
