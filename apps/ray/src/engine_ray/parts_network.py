"""`open_parts`: a model whose parts are in several processes, as one network."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import groupby, islice
from types import TracebackType
from typing import Any, ClassVar, Final, Self

import numpy as np

from engine.core import Core
from engine.errors import InputError, PropertyError, UnsupportedError
from engine.generation import Generator, Sampling
from engine.generation.roles import LOGITS, MASK, RANKS, checked_names, is_replaced
from engine.plugin_api import (
    API_VERSION,
    BlobManifest,
    ExecutableNetwork,
    Model,
    Pipeline,
    Plugin,
    QueryResult,
    SyncInferRequest,
    ThreadExecutor,
    engine_version,
)
from engine.properties import INFERENCE_NUM_THREADS, Config
from engine_ray.nodes import RESOURCES
from engine_ray.part_actor import PartProcess
from engine_ray.part_actors import PartActors
from engine_ray.part_folder import PartFolder, read_parts
from engine_ray.part_states import PartStates

_THREADS: Final = INFERENCE_NUM_THREADS.name
_REQUESTS_AT_ONCE: Final = 64
"""Threads of requests that run in the background; they wait for the parts."""


def open_parts(
    folder: str | os.PathLike[str],
    config: Mapping[str, object] | None = None,
    *,
    slot: Mapping[str, float] | None = None,
    max_restarts: int = 3,
    start_seconds: float = 600.0,
) -> PartsNetwork:
    """Start a process for each part of a model that `export_parts` wrote, on the nodes of Ray's cluster.

    Args:
        folder: of `export_parts`; every node reads the blob of its part from it.
        config: as for `Core.import_model`, of each part.
        slot: what a process takes of Ray's resources, `num_cpus` and `num_gpus`; by default, as many CPUs as
            INFERENCE_NUM_THREADS, or 1. Ray spreads the processes over the nodes where they have room.
        max_restarts: how many times a step is tried again after processes were lost.
        start_seconds: how long a process may take to start and to import its blob.

    Starts Ray if it does not run. Raises `BlobError`, or one of its kinds, for a folder or a blob that is missing,
    damaged, or of another export than the others; `PropertyError` for a wrong configuration or slot; `DeviceError` if
    a process cannot start; `UnsupportedError` if Ray is not installed.
    """
    if isinstance(max_restarts, bool) or not isinstance(max_restarts, int) or max_restarts < 0:
        raise PropertyError(f"max_restarts is {max_restarts!r}; expected 0 or more")
    read = read_parts(folder)
    declared = Core().supported_properties(read.device)
    settings = dict(Config(declared, config or {}, where=read.device).explicit)
    if _THREADS in declared and not settings.get(_THREADS):
        settings[_THREADS] = 1
    threads = settings.get(_THREADS)
    taken = {"num_cpus": threads if isinstance(threads, int) else 1} if slot is None else dict(slot)
    if wrong := [name for name in taken if name not in RESOURCES]:
        raise PropertyError(f"slot has {wrong[0]!r}; expected amounts of {' and '.join(RESOURCES)}")
    actors = PartActors(read, settings, taken, float(start_seconds))
    return PartsNetwork.opened(read, actors, max_restarts)


class PartsNetwork(ExecutableNetwork):
    """A model whose parts are in several processes, made by `open_parts`.

        with open_parts("folder") as network:
            Generator(network).generate(prompt)            # as of a model in one process
            network.generate([first, second, third])       # all parts work at the same time

    Its requests are those of any network. Each sequence, or batch, keeps its variables in the processes of the parts;
    tensors between two parts go from one process to the next. The driver keeps the inputs of each sequence: if a
    process is lost, it is started again, and the sequences are computed again from their inputs, step by step, so that
    their tokens are the same.

    Variables that do not keep their past values return to checkpoints (`AsyncInferRequest.keep_checkpoints`) likewise,
    which takes time, but no memory. Not supported: batches that exchange sequences, as those of a `Scheduler`.
    """

    folder: PartFolder

    @classmethod
    def opened(cls, folder: PartFolder, actors: PartActors, max_restarts: int) -> Self:
        """The network of processes that have been started."""
        plugin = _RayPlugin()
        network = cls(plugin, plugin.config, _manifest(folder))
        network.folder, network._actors, network._max_restarts = folder, actors, max_restarts
        network._executor = ThreadExecutor(f"{plugin.name}:{folder.name}", _REQUESTS_AT_ONCE)
        return network

    _actors: PartActors
    _max_restarts: int
    _executor: ThreadExecutor

    def create_infer_request_impl(self) -> SyncInferRequest:
        """A request whose variables are in the processes."""
        return _PartsRequest(self)

    def pipeline(self, request: SyncInferRequest) -> Pipeline:
        """One stage, which waits for the processes; many requests wait at the same time."""
        return [(self._executor, request.start_pipeline)]

    def new_states(self) -> PartStates:
        """The variables of a new request."""
        return PartStates(self.folder, self._actors, self.signature.network, self._max_restarts)

    @property
    def restarts(self) -> int:
        """How many times lost processes were started again."""
        return self._actors.epoch

    def processes(self) -> tuple[PartProcess, ...]:
        """The processes of the parts, with their memory. Raises `DeviceError` if one cannot be asked."""
        return self._actors.processes()

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        max_tokens: int = 256,
        *,
        micro_batches: int | None = None,
        sampling: Sampling | None = None,
        stop_tokens: Collection[int] = (),
        names: Mapping[str, str] | None = None,
    ) -> list[list[int]]:
        """The next tokens of each prompt, up to a stop token, at most `max_tokens`.

        The prompts are divided into micro-batches, each of which is at another part, so that all parts work at the same
        time. By default, there is one more micro-batch than there are parts, if there are so many prompts. Prompts of
        similar lengths are put together; if the model takes no padding, because it has no mask, only the logits of the
        last position (`LastPosition`), or states that padding would change, only prompts of the same length are, in as
        many more micro-batches. Numbers of `sampling` are drawn with another seed for each micro-batch.

        Raises the errors of `Generator`.
        """
        listed = [list(prompt) for prompt in prompts]
        count = len(self.folder.parts) + 1 if micro_batches is None else micro_batches
        if isinstance(count, bool) or not isinstance(count, int) or count < 1:
            raise InputError(f"micro_batches is {micro_batches!r}; expected 1 or more")
        if isinstance(max_tokens, bool) or not isinstance(max_tokens, int) or max_tokens < 1:
            raise InputError(f"max_tokens is {max_tokens!r}; expected 1 or more")
        if not listed:
            raise InputError("prompts is empty; expected a list of prompts, each a list of tokens")
        groups = _groups([len(prompt) for prompt in listed], count, can_pad=self._can_pad(names or {}))
        generators = [
            Generator(self, _own_seed(sampling, number), stop_tokens=stop_tokens, names=names)
            for number in range(len(groups))
        ]

        for generator, group in zip(generators, groups, strict=True):  # before any of them computes
            generator.append([listed[index] for index in group])
        found: list[list[int]] = [[] for _ in listed]

        def run(number: int) -> None:
            generator, group = generators[number], groups[number]
            for _ in range(max_tokens):
                if generator.is_done:
                    break
                for index, token in zip(group, generator.step(), strict=True):
                    if token is not None:
                        found[index].append(token)

        with ThreadPoolExecutor(len(groups)) as pool:
            try:
                deque(pool.map(run, range(len(groups))), maxlen=0)
            except BaseException:  # the pool waits for the others
                for generator in generators:
                    generator.request.cancel()
                raise
        return found

    def _can_pad(self, names: Mapping[str, str]) -> bool:
        """Whether a batch may have prompts of different lengths."""
        found = checked_names(self.signature, names, tuple(RANKS))
        shape = self.output(found[LOGITS]).shape
        has_all = shape.rank.is_dynamic or (len(shape) == 3 and shape[1].max not in (0, 1))
        changed = any(is_replaced(variable) and not variable.is_placed for variable in self.variables)
        return MASK in found and has_all and not changed

    def close(self) -> None:
        """End the processes; requests of this network cannot be used any more."""
        self._actors.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


class _PartsRequest(SyncInferRequest):
    """An inference through all parts."""

    def __init__(self, network: PartsNetwork) -> None:
        super().__init__(network)
        self._parts = network.new_states()
        if self.signature.states:
            self.states = self._parts

    def start_pipeline(self) -> None:
        """Send the inputs to the first part, and wait for the outputs of the last one."""
        count = len(self.signature.inputs)
        inputs = {port.name: value for port, value in zip(self.signature.inputs, self.inputs, strict=False)}
        found = self._parts.infer(inputs, self.inputs[count:], self.check_cancelled)
        if self.states is None:
            self._parts.commit(())
        outputs = [
            check.admit(np.array(found[port.name]))
            for port, check in zip(self.signature.outputs, self.signature.result_checks, strict=False)
        ]
        self.store_outputs([*outputs, *[None] * len(self.signature.states)], are_known=True)


class _RayPlugin(Plugin):
    """Gives a `PartsNetwork` its configuration. It is not registered: a model is opened by `open_parts`."""

    name = "RAY"
    version = "0.1.0"
    api_version = API_VERSION
    properties: ClassVar[Sequence[Any]] = ()

    def __init__(self) -> None:
        super().__init__(Core())

    def compile_model(self, model: Model, config: Config) -> ExecutableNetwork:
        """Raises `UnsupportedError`."""
        raise UnsupportedError("a model is divided by engine_ray.export_parts, and opened by engine_ray.open_parts")

    def query_model(self, model: Model, config: Config) -> QueryResult:
        """Raises `UnsupportedError`."""
        raise UnsupportedError("a model is divided by engine_ray.export_parts, and opened by engine_ray.open_parts")


def _manifest(folder: PartFolder) -> BlobManifest:
    """The interface of the whole model, in the form of which networks are made."""
    return BlobManifest(
        device=_RayPlugin.name,
        plugin_name=_RayPlugin.name,
        plugin_version=_RayPlugin.version,
        engine_version=engine_version(),
        api_version=str(API_VERSION),
        requirements={},
        config={},
        inputs=[port.to_json() for port in folder.inputs],
        outputs=[port.to_json() for port in folder.outputs],
        metadata={
            "network_name": folder.name,
            "variables": [state.to_json() for state in folder.states],
            "model_identity": folder.identity,
        },
    )


def _groups(lengths: Sequence[int], count: int, *, can_pad: bool) -> list[list[int]]:
    """The indices of the prompts of each micro-batch: about equally many, of lengths that are close to each other."""
    order = iter(sorted(range(len(lengths)), key=lengths.__getitem__))
    count = min(count, len(lengths))
    small, larger = divmod(len(lengths), count)
    groups = [list(islice(order, small + (number < larger))) for number in range(count)]
    if can_pad:
        return groups
    return [list(equal) for group in groups for _, equal in groupby(group, lengths.__getitem__)]


def _own_seed(sampling: Sampling | None, number: int) -> Sampling | None:
    """The options of a micro-batch, which draws other numbers than the others do."""
    if sampling is None or sampling.seed is None:
        return sampling
    return replace(sampling, seed=sampling.seed + number)
