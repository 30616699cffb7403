"""The nodes of a cluster that could run workers, and how many workers each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from engine.errors import EngineError, PluginError, UnsupportedError
from engine_ray.job import Job
from engine_ray.required import ray_package

_ANSWER_SECONDS: Final = 300.0
RESOURCES: Final = {"num_cpus": "CPU", "num_gpus": "GPU"}
"""The resources of a worker, by the argument of `map_batches`, and Ray's name for each."""
_NODE_ID: Final = "ray.io/node-id"


@dataclass(frozen=True, slots=True)
class NodeFit:
    """Whether a worker could run on a node.

    Attributes:
        node, host: Ray's id of the node, and its address or name.
        slots: how many workers it has room for.
        error: why no worker could run there; None if one could.
        why_compiled: why workers would compile the model there; empty if they import the blob.
    """

    node: str
    host: str
    slots: int
    error: EngineError | None
    why_compiled: str = ""


def fit_nodes(job: Job, known: Sequence[NodeFit] = ()) -> Sequence[NodeFit]:
    """Ask each node that has the resources for a worker, all at once, by a task there that takes no resources.

    `known`: what was asked before; nodes in it that are still there are not asked again.
    """
    ray = ray_package()
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    rooms = {node["NodeID"]: (node["NodeManagerHostname"], _slots(job.slot, node)) for node in ray.nodes()}
    rooms = {node: room for node, room in rooms.items() if room[1]}
    kept = [fit for fit in known if fit.node in rooms]
    check = ray.remote(num_cpus=0, max_retries=0)(_check)
    asked = {
        node: check.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False)).remote(job)
        for node in rooms
        if node not in {fit.node for fit in kept}
    }
    ray.wait(list(asked.values()), num_returns=len(asked), timeout=_ANSWER_SECONDS)
    return [*kept, *(NodeFit(node, *rooms[node], *_answer(ray, answer)) for node, answer in asked.items())]


def slots_of(job: Job, fits: Sequence[NodeFit]) -> int:
    """How many workers the nodes have room for."""
    return sum(fit.slots for fit in fits if fit.error is None)


def pool_size(workers: int, slots: int, cpus_each: float, cpus: float) -> int:
    """How many of the workers start at once, so that one CPU of the cluster is left for tasks; at least 1.

    If workers had all CPUs before a dataset was read, the tasks that read it would wait for them, and they for data.
    """
    most = int((cpus - 1) // cpus_each) if cpus_each else workers
    return max(1, min(workers, slots, most))


def raise_if_none(job: Job, fits: Sequence[NodeFit]) -> None:
    """Raise an error if no node could run a worker."""
    if not fits:
        raise UnsupportedError(
            f"{job.name}: no node of the cluster has what a worker takes, {dict(job.slot)}; start nodes that have it, "
            "or pass another slot to predictor"
        )
    errors = [(fit.host, fit.error) for fit in fits if fit.error is not None]
    if len(errors) == len(fits):
        host, error = errors[0]
        raise type(error)(f"no worker could run on any of {len(fits)} nodes; on {host}: {error}") from error


def refused_selector(fits: Sequence[NodeFit]) -> dict[str, Any]:
    """The argument of `map_batches` that keeps workers from nodes that could not run them."""
    refused = [fit.node for fit in fits if fit.error is not None]
    return {"label_selector": {_NODE_ID: f"!in({','.join(refused)})"}} if refused else {}


def _slots(slot: Mapping[str, float], node: Mapping[str, Any]) -> int:
    if not node["Alive"]:
        return 0
    wanted = {RESOURCES[name]: amount for name, amount in slot.items() if amount}
    return min((int(node["Resources"].get(name, 0) // amount) for name, amount in wanted.items()), default=1)


def _check(job: Job) -> tuple[EngineError | None, str]:
    return job.check()


def _answer(ray: Any, answer: Any) -> tuple[EngineError | None, str]:
    try:
        found: tuple[EngineError | None, str] = ray.get(answer, timeout=0)
    except Exception as e:  # the node was lost, has no engine, or its process failed; the others go on
        return PluginError(f"the node could not be asked: {e}"), ""
    return found
