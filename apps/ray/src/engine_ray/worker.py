"""`Predictor`: the class that Ray Data creates in each of its worker processes, and calls with batches."""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final

from engine.errors import UnsupportedError
from engine_ray.batches import Array, fixed_rows, infer_batch
from engine_ray.failed_rows import infer_rows
from engine_ray.job import Job, this_worker
from engine_ray.nodes import NodeFit, fit_nodes, pool_size, raise_if_none, refused_selector, slots_of
from engine_ray.progress import Progress
from engine_ray.required import ray_package

if TYPE_CHECKING:
    from ray.data import Dataset

_log = logging.getLogger("engine.ray")

DEFAULT_BATCH: Final = 32
"""Rows of a batch, if the network takes any number."""
_NAMED: Final = 5


class Predictor:
    """A class for `Dataset.map_batches`, made by `predictor`; its objects are the workers.

        Scorer = predictor("model.onnx", "CPU")
        results = Scorer.predict(dataset)                                # in order, retried, typed errors
        results = dataset.map_batches(Scorer, **Scorer.arguments())      # the same placement, otherwise Ray's defaults
        Scorer.progress().items_per_second

    A batch is a mapping of columns to arrays, as `batch_format="numpy"` has it; the columns that are named as the
    network's inputs are these inputs, with rows along axis 0. The result has a column for each output, and the columns
    of `keep`. Rows must not depend on each other.
    """

    job: ClassVar[Job]
    rows: ClassVar[int | None]
    _run: ClassVar[str] = ""
    """The dataset that a worker computes; "" for all that were made without `predict`."""
    _last_run: ClassVar[str] = ""
    """The messages of `progress`."""
    _fits: ClassVar[Sequence[NodeFit]] = ()

    # -- in a worker --------------------------------------------------------------------------------------------

    def __init__(self) -> None:
        ray, job = ray_package(), type(self).job
        self._network, why_compiled = job.open_network()
        self._rows = fixed_rows(job.name, self._network.inputs)
        self._node = ray.get_runtime_context().get_node_id()
        host, self._process = this_worker()
        job.journal.join.remote(self._run, host, self._process, self._node, "compiled" if why_compiled else "imported")
        if why_compiled:
            _say_once(job, [self._node], f"{host} compiles the model, since the blob does not fit: {why_compiled}")

    def __call__(self, batch: Mapping[str, Array]) -> dict[str, Array]:
        """The results of a batch. Raises `InputError` for one that does not fit, and the device's errors."""
        job, start, failed = type(self).job, time.perf_counter(), 0
        if job.error_column:
            results, failed = infer_rows(self._network, self._rows, batch, job.keep, job.error_column)
        else:
            results = infer_batch(self._network, self._rows, batch, job.keep)
        rows = len(next(iter(results.values())))
        job.journal.add.remote(self._run, self._process, self._node, rows, failed, time.perf_counter() - start)
        return results

    # -- in the driver ------------------------------------------------------------------------------------------

    @classmethod
    def predict(
        cls, dataset: Dataset, *, workers: int | None = None, batch_size: int | None = None, **options: Any
    ) -> Dataset:
        """The dataset of results, in the order of `dataset`; computed when it is consumed, as all datasets of Ray are.

        `workers`: how many processes; by default from 1 to all slots of the cluster, as Ray finds work for them. If
        they would take all CPUs, as many start as leave 1 for the tasks that read the dataset, and the others after.
        `batch_size`: rows of an inference, by default the network's, or 32 if it takes any number. `options`: further
        arguments of `map_batches`.

        Sets the order and what becomes of errors in the dataset's `context`, which it has in common with `dataset`.
        Ray repeats the blocks of lost workers. An error in a batch ends the job with this error, unless `predictor`
        got an `error_column`, which has the reasons of failed rows, or the dataset's `context.max_errored_blocks`
        permits to leave the block out. Raises the errors of `arguments`.
        """
        arguments = cls.arguments(workers=workers, batch_size=batch_size)
        cls._last_run = uuid.uuid4().hex
        # Ray takes the class when the dataset is consumed: by then, this one may belong to another run.
        counted = type(cls.__name__, (cls,), {"_run": cls._last_run, "__doc__": cls.__doc__})
        result = dataset.map_batches(counted, **{**arguments, **options})
        context = result.context
        context.execution_options.preserve_order = True
        context.raise_original_map_exception = True
        # Nodes that join later are not checked: each slot may fail before the job does.
        if 0 <= context.max_consecutive_actor_init_deaths < cls.slots():
            context.max_consecutive_actor_init_deaths = cls.slots()
        return result

    @classmethod
    def arguments(cls, *, workers: int | None = None, batch_size: int | None = None) -> dict[str, Any]:
        """The arguments of `map_batches`: the pool of workers, what each takes of a node, and nodes to avoid.

        Asks each node first whether a worker could run there; those that could not are logged and avoided.
        Raises `UnsupportedError` if Ray has no resources for a worker, and a node's error if none could run one.
        """
        ray = ray_package()
        fits = cls.check()
        raise_if_none(cls.job, fits)
        if workers is not None and workers < 1:
            raise UnsupportedError(f"workers is {workers}; expected at least 1")
        each, cpus = cls.job.slot.get("num_cpus", 0), ray.cluster_resources().get("CPU", 0)
        slots = slots_of(cls.job, fits)
        least = 1 if workers is None else pool_size(workers, slots, each, cpus)
        if cpus - least * each < 1:
            _log.warning(
                "%s: a worker takes %g of the cluster's %g CPUs; tasks of the dataset, such as those that read it, "
                "need 1 and would wait forever: pass a smaller slot to predictor, or start Ray with more CPUs",
                cls.job.name, each, cpus,
            )  # fmt: skip
        pool = ray.data.ActorPoolStrategy(min_size=least, max_size=slots if workers is None else workers)
        rows = batch_size or cls.rows or DEFAULT_BATCH
        found = {"compute": pool, "batch_size": rows, "batch_format": "numpy", **cls.job.slot}
        return {**found, **refused_selector(fits)}

    @classmethod
    def check(cls) -> Sequence[NodeFit]:
        """Whether a worker could run on each node that is in the cluster now and has the resources.

        Asks each node once, so that later calls ask only those that have joined.

        What nodes lack is logged as a warning to "engine.ray", once for all nodes with the same reason.
        """
        cls._fits = fit_nodes(cls.job, cls._fits)
        groups: dict[str, list[NodeFit]] = {}
        for fit in cls._fits:
            if fit.error is not None:
                groups.setdefault(f"get no worker: {fit.error}", []).append(fit)
            elif fit.why_compiled:
                text = f"compile the model, since the blob does not fit: {fit.why_compiled}"
                groups.setdefault(text, []).append(fit)
        for text, found in groups.items():
            hosts = ", ".join(fit.host for fit in found[:_NAMED]) + (", ..." if len(found) > _NAMED else "")
            _say_once(cls.job, [fit.node for fit in found], f"{len(found)} nodes ({hosts}) {text}")
        return cls._fits

    @classmethod
    def slots(cls) -> int:
        """How many workers the cluster has room for."""
        return slots_of(cls.job, cls.check())

    @classmethod
    def progress(cls) -> Progress:
        """The progress of the workers so far; may be called while they work, from any thread.

        Those of the dataset of this class's last `predict`; or, if there was none, of all datasets that were made by
        `map_batches` with this class.
        """
        progress: Progress = ray_package().get(cls.job.journal.progress.remote(cls._last_run))
        return progress


def _say_once(job: Job, nodes: Sequence[str], text: str) -> None:
    """Log a warning about nodes, unless some process of this job has logged one about each of them."""
    text, ray = f"{job.name}: {text}", ray_package()
    try:
        is_new = ray.get(job.journal.note.remote(nodes, text))
    except ray.exceptions.RayActorError:
        is_new = True  # without the actor, a repeated warning is better than none
    if is_new:
        _log.warning("%s", text)
