"""`PartActors`: the actors of a model's parts, which are started again when they are lost."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, Final

from engine.errors import DeviceError, EngineError
from engine_ray.part_actor import Array, Call, PartActor, PartProcess, Reply
from engine_ray.part_folder import PartFolder
from engine_ray.required import ray_package

_log = logging.getLogger("engine.ray")

_POLL_SECONDS: Final = 0.2


class PartActors:
    """One actor for each part. Thread-safe.

    Attributes:
        epoch: grows whenever actors were started again: sequences of an earlier one must be replayed.
    """

    def __init__(
        self,
        folder: PartFolder,
        config: Mapping[str, Any],
        slot: Mapping[str, float],
        start_seconds: float,
    ) -> None:
        self._folder, self._config, self._slot = folder, dict(config), dict(slot)
        self._start_seconds = start_seconds
        self._ray = ray_package()
        self._lock = threading.Lock()
        self._is_closed = False
        self._forgotten: list[int] = []
        self.epoch = 0
        self._actors: list[Any] = []
        try:
            self._actors = [self._created(number) for number in range(len(folder.parts))]
            self._open(range(len(folder.parts)))
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End the processes."""
        self._is_closed = True
        for actor in self._actors:
            self._ray.kill(actor)

    def forget(self, sequence: int) -> None:
        """Let the parts drop a sequence with the next step; may be called by a garbage collection."""
        self._forgotten.append(sequence)

    # -- steps ------------------------------------------------------------------------------------------------

    def start(self, call: Call) -> Any:
        """Start a step; returns what `reply` waits for. Steps of one sequence run in the order of these calls."""
        if self._is_closed:
            raise DeviceError(f"{self._folder.name}: the parts were closed; open them again: engine_ray.open_parts")
        forgotten = []
        while self._forgotten:
            forgotten.append(self._forgotten.pop())
        if forgotten:
            call = replace(call, forgotten=forgotten)
        return self._actors[0].step.remote(call)

    def reply(self, reference: Any, check_cancelled: Callable[[], None] | None = None) -> Reply | None:
        """The reply to a step; None if an actor was lost. `check_cancelled` may raise while the step runs."""
        while True:
            try:
                found = self._ray.get(reference, timeout=None if check_cancelled is None else _POLL_SECONDS)
            except self._ray.exceptions.GetTimeoutError:
                if check_cancelled is not None:
                    check_cancelled()
                continue
            except self._ray.exceptions.RayError as e:
                _log.info("%s: a step was lost: %s", self._folder.name, _first_line(e))
                return None
            if isinstance(found, Reply):
                return found
            (reference,) = found

    def value(self, part: int, sequence: int, name: str) -> Array | None:
        """The value of a variable of a part; None if it was lost."""
        try:
            found: Array | None = self._ray.get(self._actors[part].value.remote(sequence, name))
        except self._ray.exceptions.RayError:
            return None
        return found

    def processes(self) -> tuple[PartProcess, ...]:
        """The processes of the parts. Raises `DeviceError` if one cannot be asked."""
        try:
            return tuple(self._ray.get([actor.process.remote() for actor in self._actors]))
        except self._ray.exceptions.RayError as e:
            raise DeviceError(f"{self._folder.name}: a part cannot be asked: {_first_line(e)}") from e

    # -- starting ---------------------------------------------------------------------------------------------

    def heal(self, epoch: int) -> None:
        """Start lost actors again, unless another thread has done so since `epoch`.

        Raises `DeviceError` if one cannot start, and the errors of importing its blob.
        """
        with self._lock:
            if self.epoch != epoch or self._is_closed:
                return
            lost = [number for number, actor in enumerate(self._actors) if not self._is_alive(actor)]
            for number in lost:
                _log.warning("%s: part %d was lost; it is started again", self._folder.name, number)
                self._actors[number] = self._created(number)
            self._open(lost)
            self.epoch += bool(lost)

    def _is_alive(self, actor: Any) -> bool:
        try:
            self._ray.get(actor.process.remote())
        except self._ray.exceptions.RayError:
            return False
        return True

    def _created(self, number: int) -> Any:
        folder = self._folder
        part = folder.parts[number]
        kept = {port.name for port in folder.outputs}
        kept.update(name for later in folder.parts[number + 1 :] for name in later.inputs)
        # The sequences of an actor that Ray started again would be lost silently; here, they are replayed.
        options = {"max_restarts": 0, "max_task_retries": 0, "scheduling_strategy": "SPREAD", **self._slot}
        path, is_last = f"{folder.path}/{part.file}", number == len(folder.parts) - 1
        made = self._ray.remote(PartActor).options(**options)
        return made.remote(number, part, path, frozenset(kept), is_last=is_last)

    def _open(self, numbers: Sequence[int]) -> None:
        """Let actors import their blobs. Those that cannot are ended, so that they count as lost."""
        asked = {number: self._actors[number].open.remote(self._folder.device, self._config) for number in numbers}
        errors = {number: self._why_not_open(number, answer) for number, answer in asked.items()}
        failed = {number: error for number, error in errors.items() if error is not None}
        for number in failed:
            self._ray.kill(self._actors[number])
        for error in failed.values():
            raise error
        # Once, since handles take time to travel. One of an actor that is lost meanwhile leads to a lost step.
        linked = [actor.precede.remote(following) for actor, following in pairwise(self._actors)]
        if linked:
            self._ray.wait(linked, num_returns=len(linked))

    def _why_not_open(self, number: int, answer: Any) -> EngineError | None:
        try:
            error: EngineError | None = self._ray.get(answer, timeout=self._start_seconds)
        except self._ray.exceptions.GetTimeoutError:
            return DeviceError(
                f"{self._folder.name}: part {number} has not started within {self._start_seconds:g} s; the cluster "
                f"needs a free node with {self._slot}"
            )
        except self._ray.exceptions.RayError as e:
            return DeviceError(f"{self._folder.name}: part {number} cannot start: {_first_line(e)}")
        return error


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]
