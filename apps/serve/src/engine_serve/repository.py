"""`Repository`: the models that the server has, loaded from a folder, replaced while requests run."""

from __future__ import annotations

import asyncio
import gc
import logging
import time
from collections.abc import Iterator
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kserve import ModelRepository
from kserve.protocol.model_repository_extension import ModelRepositoryExtension

from engine.core import Core
from engine.errors import Busy, EngineError, NotAllowedError, NotReadyError, NotServedError, RepositoryError
from engine.generation.roles import LOGITS, vocabulary_of
from engine_serve.chat_template import find_chat_template
from engine_serve.daemon_threads import DaemonThreads
from engine_serve.encoder_model import EncoderModel
from engine_serve.ended_sequences import EndedTables
from engine_serve.folders import ModelFolder, list_names, read_folder
from engine_serve.generative_model import GenerativeModel
from engine_serve.loading import BlobOptions, file_identity, load_adapters, load_draft, load_network, size_of
from engine_serve.metrics import DeviceClock, Tally
from engine_serve.model_config import ModelConfig
from engine_serve.model_text import find_text
from engine_serve.named_locks import NamedLocks
from engine_serve.options import MAX_ANSWER_BYTES
from engine_serve.refusals import Refused
from engine_serve.served_model import ServedModel
from engine_serve.warming import warm_up

_log = logging.getLogger("engine.serving")
_LOADING = "it is being loaded"
_COLLECTING_SECONDS = 2.0
"""The delay after a model was replaced; most of its requests have ended by then."""
NO_PARAMETERS = (
    "models are loaded from the repository: parameters of the request, such as another configuration or files, are not "
    "supported; change the model's folder instead"
)


@dataclass(frozen=True, slots=True)
class VersionState:
    """A version: its model, or why it has none, and the identity of its files, by which changes are found."""

    model: ServedModel | None
    reason: str = ""
    identity: tuple[Any, ...] = ()
    is_parked: bool = False
    """Whether it was unloaded to make room, and the next request loads it."""
    parked_names: tuple[str, ...] = ()
    """By which clients of OpenAI's routes asked for it before."""

    @property
    def problem(self) -> str | None:
        """Why it cannot be used; None if it can."""
        if self.is_parked:
            return None
        if self.model is None:
            return self.reason
        return f"{self.model.problem}; load it again" if self.model.problem else None


class Repository(ModelRepository):  # type: ignore[misc]
    """The models of a folder, by their names: `resnet`, or `resnet/2` for a version.

    Used by one event loop; networks are compiled on threads. A model that cannot be loaded is listed with the reason,
    and does not affect the others. A reload replaces the model when the new one is ready: requests that were accepted
    before end on the old one, which stays if the reload fails.
    """

    def __init__(
        self,
        root: Path,
        core: Core,
        blobs: BlobOptions,
        most_answer_bytes: int = MAX_ANSWER_BYTES,
        memory_limit: int | None = None,
    ) -> None:
        super().__init__(str(root))
        self._most_answer_bytes = most_answer_bytes
        self._root, self._core, self._blobs = root, core, blobs
        self.clock, self.tally = DeviceClock(), Tally()
        self._entries: dict[str, dict[int, VersionState]] = {}
        self._problems: dict[str, str] = {}
        """Names without any version, and why."""
        self._ended = EndedTables()
        self._memory_limit = memory_limit
        self._loading = asyncio.Lock()
        """If there is a limit, models are loaded one after another, since each counts what the others take."""
        self._used: dict[str, float] = {}
        """When each model was last asked for, if there is a limit."""
        self._locks, self._threads = NamedLocks(), DaemonThreads("engine-loading")
        self._next_loads: dict[str, asyncio.Task[bool]] = {}
        """The loadings that have not begun."""

    # -- what KServe asks for -------------------------------------------------------------------------------------

    def get_model(self, name: str) -> ServedModel | None:
        """The model of a name, in its latest version that is ready; or of a name and a version."""
        try:
            return self.require(name)
        except (NotServedError, NotReadyError):
            return None

    def get_models(self) -> dict[str, ServedModel | None]:
        """All names, with the model that requests without a version get."""
        return {name: self.get_model(name) for name in sorted({*self._entries, *self._problems})}

    def openai_names(self) -> list[str]:
        """The names of models for OpenAI's routes that are ready, in their order."""
        found: list[str] = []
        for name in sorted(self._entries):
            with suppress(NotReadyError):
                state = self._state(name)
                if state.problem is None:
                    found += state.parked_names if state.model is None else state.model.openai_names
        return found

    async def is_model_ready(self, name: str) -> bool:
        """Whether requests of this name can be answered. Raises `NotServedError`."""
        try:
            return self._state(name).problem is None
        except NotReadyError:
            return False

    def require(self, name: str) -> ServedModel:
        """Like `get_model`. Raises `NotServedError` for an unknown name or version, `NotReadyError` with the reason."""
        state = self._state(name)
        if state.model is None or state.problem is not None:
            why = state.reason if state.model is None else state.problem
            raise NotReadyError(f"model `{name.partition('/')[0]}` is not ready: {why}")
        return state.model

    def _state(self, name: str) -> VersionState:
        name, _, version = name.partition("/")
        if name in self._problems:
            raise NotReadyError(f"model `{name}` is not ready: {self._problems[name]}")
        if name not in self._entries:
            raise NotServedError(f"there is no model {name!r:.80}; the index of the repository lists the names")
        states = self._entries[name]
        if not version:
            ready = [number for number, state in states.items() if state.problem is None]
            return states[max(ready or states)]
        if version.isascii() and version.isdecimal() and int(version[:10]) in states:
            return states[int(version[:10])]
        raise NotServedError(f"model `{name}` has no version {version!r:.20}; served are {', '.join(map(str, states))}")

    async def awake(self, name: str) -> None:
        """Load a model again that was unloaded to make room; call it before `require`, for requests that need a model.

        Raises `Busy` if there is no room, since the other models are in use. After another error, the model is not
        ready, with the reason.
        """
        if self._memory_limit is None:
            return
        states = self._entries.get(name := name.partition("/")[0])
        if states is None:
            return
        self._used[name] = time.monotonic()
        if any(state.is_parked for state in states.values()):
            try:
                await self.load(name)
            except Busy:
                raise
            except EngineError:
                return

    def versions(self, name: str) -> list[str]:
        """The versions of a model that are ready."""
        return [str(number) for number, state in self._entries.get(name, {}).items() if state.problem is None]

    def states(self) -> Iterator[tuple[str, str, VersionState]]:
        """Name, version and state of everything that the repository knows; the version is "" if there is none."""
        for name, reason in list(self._problems.items()):
            yield name, "", VersionState(None, reason)
        for name, states in list(self._entries.items()):
            for number, state in list(states.items()):
                yield name, str(number), state

    def is_compiling(self) -> bool:
        """Whether a thread reads or compiles a model, including one for which no request waits any more."""
        return self._threads.count > 0

    # -- loading --------------------------------------------------------------------------------------------------

    def announce(self) -> list[str]:
        """The names on disk, which are not ready from now on until they are loaded. Raises `RepositoryError`."""
        names = list_names(self._root)
        self._problems = dict.fromkeys(names, _LOADING)
        return names

    async def load_all(self, names: list[str]) -> None:
        """Load models one after the other. A model that fails is logged, and listed as not ready."""
        for name in names:
            try:
                await self.load(name)
            except EngineError:
                continue

    async def load(self, name: str) -> bool:
        """Load a model, or reload the versions that have changed on disk, with its configuration.

        A task that is cancelled does not end the loading, and the next loading waits for it: for each model, at most
        one loading runs, and one more waits, which all later requests share.

        Raises `RepositoryError` for the folder, and the first error of a version; versions that were served before
        are still served then.
        """
        task = self._next_loads.get(name)
        if task is None:
            task = self._next_loads[name] = asyncio.create_task(self._load(name))
            task.add_done_callback(_seen)
        return await asyncio.shield(task)

    async def _load(self, name: str) -> bool:
        async with self._locks.hold(name), self._loading if self._memory_limit is not None else nullcontext():
            self._next_loads.pop(name, None)
            try:
                folder = await self._threads.run(read_folder, self._root, name)
            except EngineError as e:
                self._note_failure(name, e)
                raise
            before = self._entries.get(name, {})
            states: dict[int, VersionState] = {}
            errors = []
            for number, path in folder.files.items():
                try:
                    own = sum(state.model.memory_bytes for state in states.values() if state.model is not None)
                    states[number] = await self._load_version(folder, number, path, before.get(number), own)
                except EngineError as e:
                    errors.append(e)
                    old = before.get(number)
                    if old is not None and old.model is not None:
                        states[number] = old
                    else:
                        states[number] = VersionState(None, str(e), is_parked=isinstance(e, Busy))
                    if old is None or not states[number].is_parked:
                        self._log_failure(name, e, number)
            if errors:  # versions that are no longer configured stay, too, since they work
                states = {number: state for number, state in before.items() if state.model is not None} | states
            self._entries[name] = dict(sorted(states.items()))
            self._problems.pop(name, None)
            self._end(before, states, "the model was loaded again")
            self._hand_over(name, states)
            if errors:
                raise errors[0]
            return True

    async def _load_version(
        self, folder: ModelFolder, number: int, path: Path, before: VersionState | None, own_bytes: int
    ) -> VersionState:
        """The state of a version, loaded unless it is the same as before; `own_bytes` is what the others of its model
        take.
        """
        identity = (folder.config, await self._threads.run(file_identity, path))
        is_same = before is not None and before.problem is None and before.identity == identity
        if before is not None and before.model is not None and is_same:
            return before
        self._make_room(folder.name, own_bytes + size_of(identity[1]))  # until it is known what it takes
        model = await self._threads.run(self._make, folder.name, number, path, folder.config)
        try:
            self._make_room(folder.name, own_bytes + model.memory_bytes)
        except EngineError:
            model.retire("it has no room")
            raise
        _log.info("loaded model %s, version %d, on %s", folder.name, number, model.device, extra={"model": folder.name})
        return VersionState(model, "", identity)

    def _make_room(self, name: str, size: int) -> None:
        """Unload the least recently used of the other models, until a model of so many bytes fits beside them.

        Raises `RepositoryError` if it does not fit alone, and `Busy` if it does not beside models that are in use.
        """
        limit = self._memory_limit
        if limit is None:
            return
        if size > limit:
            raise RepositoryError(
                f"model `{name}` takes {size / (1 << 20):.1f} MiB, and --memory-limit allows {limit >> 20} MiB for all "
                "models; raise it, or leave the model out"
            )
        while True:
            others = {other: self._loaded(other) for other in self._entries if other != name}
            if size + sum(model.memory_bytes for models in others.values() for model in models) <= limit:
                return
            idle = [
                other
                for other, models in others.items()
                if models and not self._locks.is_held(other) and not any(model.is_in_use for model in models)
            ]
            if not idle:
                raise Busy(
                    f"model `{name}` takes {size / (1 << 20):.1f} MiB, for which there is no room beside the models "
                    f"that are in use (--memory-limit {limit >> 20}); try again later"
                )
            self._park(min(idle, key=lambda other: self._used.get(other, 0.0)), name)

    def _loaded(self, name: str) -> list[ServedModel]:
        return [state.model for state in self._entries[name].values() if state.model is not None]

    def _park(self, name: str, other: str) -> None:
        """Unload a model, which the next request loads again, to make room for another one."""
        before = self._entries[name]
        why = f"it was unloaded to make room for model `{other}`; the next request loads it"
        self._entries[name] = {
            number: state
            if state.model is None
            else VersionState(None, why, state.identity, is_parked=True, parked_names=state.model.openai_names)
            for number, state in before.items()
        }
        self._end(before, {}, "the model was unloaded")
        del before
        gc.collect()  # at once: the other model needs the memory of the network, which has cycles
        _log.info("unloaded model %s to make room for model %s", name, other, extra={"model": name})

    def _make(self, name: str, number: int, path: Path, config: ModelConfig) -> ServedModel:
        try:
            model = self._served_model(name, number, path, config)
            if config.warmup is not None:
                try:
                    warm_up(model, config.warmup)
                except BaseException:
                    model.retire("its warm-up failed")
                    raise
            return model
        except EngineError:
            raise
        except Exception as e:  # an error of a plugin or of the system, which must not affect the other models
            raise RepositoryError(f"{path} cannot be loaded: {type(e).__name__}: {e}") from e

    def _served_model(self, name: str, number: int, path: Path, config: ModelConfig) -> ServedModel:
        network = load_network(self._core, name, path, config, self._blobs)
        if config.encoder is not None:
            beside = find_text(path, None)
            if beside is None:
                raise RepositoryError(f"{path}: `encoder` is set, but there is no tokenizer.json beside the model")
            most = self._most_answer_bytes
            return EncoderModel(name, number, network, config, self.clock, self.tally, most, beside)
        if config.generation is None:
            return ServedModel(name, number, network, config, self.clock, self.tally, self._most_answer_bytes)
        text = find_text(path, vocabulary_of(network.signature, LOGITS))
        chat = None if text is None else find_chat_template(path)
        adapters = load_adapters(path, config, network)
        draft = load_draft(self._core, path, config, self._blobs)
        return GenerativeModel(name, number, network, config, self.clock, self.tally, text, chat, adapters, draft)

    def _note_failure(self, name: str, error: EngineError) -> None:
        """Record the failure of a model without any version that is loaded; a version that is served stays."""
        if name in self._problems:
            self._problems[name] = str(error)
        for number, state in self._entries.get(name, {}).items():
            if state.is_parked:
                self._entries[name][number] = VersionState(None, str(error))
        self._log_failure(name, error, None)

    @staticmethod
    def _log_failure(name: str, error: EngineError, number: int | None) -> None:
        what = f"model {name!r:.80}" if number is None else f"model {name}, version {number}"
        _log.error("%s cannot be loaded: %s: %s", what, type(error).__name__, error, extra={"model": name})

    async def unload(self, name: str) -> None:
        """Stop serving a model; accepted requests end normally. A model that is being loaded is unloaded afterwards.

        Raises `NotServedError` for an unknown name.
        """
        async with self._locks.hold(name):
            states = self._entries.pop(name, None)
            self._used.pop(name, None)
            if states is None and self._problems.pop(name, None) is None:
                raise NotServedError(f"there is no model {name!r:.80}")
            self._end(states or {}, {}, "the model was unloaded")
            self._ended.forget(self._served())
            _log.info("unloaded model %s", name, extra={"model": name})

    def _hand_over(self, name: str, states: dict[int, VersionState]) -> None:
        """Pass the ended sequences on to the models, so that these sequences do not begin anew unless a client requests
        it.

        Those are the sequences of the same version; and for the model that requests without a version reach from now
        on, also the sequences of the version that they reached before, which may continue.
        """
        for number, state in states.items():
            if state.model is not None:
                state.model.remember(self._ended.of(name, number))
        ready = [number for number, state in states.items() if state.problem is None]
        reached = max(ready, default=None)
        before = None if reached is None else self._ended.reach(name, reached)
        if reached is not None and before is not None and (model := states[reached].model) is not None:
            told = f"runs on version {before}, which requests without a version no longer reach: name the version"
            old = states.get(before)
            model.succeed(old.model if old is not None else None, self._ended.of(name, before), told)
        self._ended.forget(self._served())

    def _served(self) -> set[tuple[str, int]]:
        return {
            (name, number)
            for name, states in self._entries.items()
            for number, state in states.items()
            if state.model is not None or state.is_parked
        }

    @staticmethod
    def _end(before: dict[int, VersionState], after: dict[int, VersionState], why: str) -> None:
        kept = {id(state.model) for state in after.values()}
        retired = [s.model for s in before.values() if s.model is not None and id(s.model) not in kept]
        for model in retired:
            model.retire(why)
        if retired:  # a network has cycles, and threads, which it would keep until Python looks for cycles by itself
            asyncio.get_running_loop().call_later(_COLLECTING_SECONDS, gc.collect)


class RepositoryExtension(ModelRepositoryExtension):  # type: ignore[misc]
    """Loading and unloading for clients: errors state what is wrong."""

    def __init__(self, repository: Repository, allows_loading: bool = True) -> None:
        super().__init__(repository)
        self.repository, self._allows_loading = repository, allows_loading

    async def index(self, filter_ready: bool | None = False) -> list[dict[str, str]]:
        """Name, version, state and reason of everything in the repository."""
        return [
            {
                "name": name,
                "version": version,
                "state": "READY" if state.problem is None else "UNAVAILABLE",
                "reason": state.problem or state.reason,
            }
            for name, version, state in self.repository.states()
            if state.problem is None or not filter_ready
        ]

    async def load(self, model_name: str) -> None:
        """Load or reload. Raises `Refused` with the error."""
        self._require_allowed()
        try:
            await self.repository.load(model_name)
        except EngineError as e:
            raise Refused(e, is_loading=True) from e

    async def unload(self, model_name: str) -> None:
        """Unload. Raises `Refused` for an unknown name."""
        self._require_allowed()
        try:
            await self.repository.unload(model_name)
        except NotServedError as e:
            raise Refused(e) from e

    def _require_allowed(self) -> None:
        if not self._allows_loading:
            raise Refused(
                NotAllowedError(
                    "clients may not load or unload models, since the server was started with --no-loading; change the "
                    "repository and start the server again"
                )
            )


def _seen(task: asyncio.Task[bool]) -> None:
    """Read the error of a loading whose readers were all cancelled, because otherwise asyncio logs it again."""
    if not task.cancelled():
        task.exception()
