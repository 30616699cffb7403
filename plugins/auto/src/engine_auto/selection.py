"""Selects the device for a network's inferences: the first one ready, then the fastest, then the next if one fails."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Final

from engine.errors import EngineWarning, with_message
from engine.lowering.tuning import MARGIN
from engine.plugin_api import (
    Cancelled,
    CoreHandle,
    DeviceNotFoundError,
    EngineError,
    ExecutableNetwork,
    Executor,
    Model,
    PluginError,
    ThreadExecutor,
    UnsupportedError,
)
from engine.runtime.deadlines import deadline_timer
from engine.runtime.lifecycle import ForkSafeLock, Participant, lifecycle
from engine.threads import Signal
from engine_auto.candidate import OUT, Candidate, State, executor_of
from engine_auto.choices import Choice, Choices
from engine_auto.devices import Device, DeviceList, LeftOut
from engine_auto.log import log, logger, warn
from engine_auto.measuring import Stopped, Trials, inputs_for
from engine_auto.other_load import OtherLoad

MAX_OTHER_LOAD: Final = 0.25
"""A choice is kept only if other processes used at most this share of the machine while it was measured."""
_PATIENCE = 0.02
"""Seconds after which a request that waits for a compilation looks whether it is cancelled."""


class Selection(Participant):
    """The candidates of one network, and which of them is used now. Thread-safe.

    Compilations of more than one candidate, and measurements, run on threads of their own, which refer to this object
    but not to the network; `close` ends them soon.

    Args:
        owner: names the network in messages.
        model: the model, which must not change; None for an imported network, which has one candidate, that is ready.
        hint: PERFORMANCE_HINT.
        seconds: how long to measure.
    """

    def __init__(
        self,
        owner: str,
        core: CoreHandle,
        model: Model | None,
        devices: DeviceList | None,
        hint: str = "LATENCY",
        seconds: float = 0.0,
        choices: Choices | None = None,
    ) -> None:
        self.owner = owner
        self.candidates: list[Candidate] = []
        self.left_out: dict[str, str] = {}
        self._devices = devices
        self._pending = 0
        """The names of the list whose devices are looked for, or compiled for."""
        self.reason = ""
        self._why_now = "it was ready first"
        """Why inferences use the current device until the choice is final."""
        self.is_final = False
        self.wants_shapes = False
        """Whether the devices are measured once an inference shows the shapes of its inputs."""
        self._core, self._model, self._choices = core, model, choices
        self._hint, self._seconds = hint, seconds
        self._current: Candidate | None = None
        self._executor: Executor | None = None
        self._is_busy_measuring = False
        self._is_closed = False
        self._sought: set[str] = set()
        """The names of the list whose devices were looked for."""
        self._errors: dict[str, EngineError] = {}
        """The errors of names whose devices cannot be found."""
        self.remarks: list[str] = []
        """Messages for the user about devices that are no longer used."""
        self._is_started = False
        """Whether warnings are issued at once; until then they are kept, since none are issued if `start` fails."""
        self.lock = ForkSafeLock()
        self.changed = Signal(self.lock)
        lifecycle.track(self)

    # -- the first device -----------------------------------------------------------------------------------

    def start(self) -> None:
        """Wait for a network, on the device that was chosen earlier, or otherwise the first that is ready.

        Raises the error of the device if there is one device; else one with the errors of all of them.
        """
        try:
            self._find_first()
        except BaseException:
            self.close()
            raise
        with self.lock:
            waiting, self._is_started = list(self.remarks), True
        for message in waiting:
            log(f"{self.owner}: {message}")

    def _find_first(self) -> None:
        assert self._devices is not None
        if self._takes_known():
            return
        names = self._devices.names
        if len(names) == 1:
            self._pending = 1
            self._try_name(names[0])
        else:
            self._race(names)
        if self._current is None:
            for candidate in self.candidates:  # of the last resort
                if candidate.state is State.WAITING and self._compile(candidate):
                    break
        if self._current is None:
            raise self._error_of_all()
        if len(names) == 1 or self._current.device.is_last_resort:
            self._settle(self._current, self._why_only(self._current))

    def _takes_known(self) -> bool:
        """Compile for the device that was chosen earlier; False if there is none, or it is not the same any more."""
        known = self._choices.read() if self._choices is not None else None
        if known is None or self._devices is None:
            return False
        name = known.device if self._devices.is_stated else known.device.partition(".")[0]
        try:
            found = [each for each in self._devices.devices(name) if each.name == known.device]
        except (EngineError, LeftOut):
            return False
        if not found or found[0].identity != known.identity:
            return False
        candidate = self._add(found[0])
        if not self._compile(candidate):
            return False
        self._note_times(known.milliseconds)
        self._settle(candidate, f"it was measured earlier: {_listed(known.milliseconds)}")
        return True

    def _race(self, names: Sequence[str]) -> None:
        """Compile for all devices, and return when the first is ready, or all have failed."""
        self._pending = len(names)
        executor = self._executor = ThreadExecutor(f"{self.owner}: compiling", len(names))
        for name in names:
            executor.submit(partial(self._try_in_turn, name))
        self.changed.wait_for(lambda: self._current is not None or not self._pending)

    def _try_in_turn(self, name: str) -> None:
        """A task of the executor; the last one continues with measuring."""
        self._try_name(name)
        with self.lock:
            is_over = self._is_closed or self.is_final or self._is_busy_measuring
            if self._pending or is_over or self._current is None:
                return
            self._is_busy_measuring = True
            ready = [each for each in self.candidates if each.state is State.READY]
        self._compare(ready)

    def _try_name(self, name: str) -> None:
        """Find the devices of a name of the list, and compile for them, except for the last resort."""
        try:
            for candidate in () if self._is_closed else self._find(name):
                if not candidate.device.is_last_resort and candidate.state is State.WAITING and not self._is_closed:
                    self._compile(candidate)
        finally:
            with self.lock:
                self._pending -= 1
                self.changed.notify_all()

    def _find(self, name: str) -> list[Candidate]:
        assert self._devices is not None
        self._sought.add(name)
        try:
            return [self._add(device) for device in self._devices.devices(name)]
        except LeftOut as e:
            with self.lock:
                self.left_out[name] = str(e)
        except EngineError as e:
            with self.lock:
                self.left_out[name], self._errors[name] = str(e), e
            if self._devices.is_stated:
                self._warn(f"{name} is left out: {_error_text(e)}")
        return []

    def _add(self, device: Device) -> Candidate:
        """The candidate for a device, in the order of the list, with the last resort at the end."""
        assert self._devices is not None
        names = self._devices.names
        with self.lock:
            for each in self.candidates:
                if each.name == device.name:
                    return each
            candidate = Candidate(device)
            self.candidates.append(candidate)
            places = {name: place for place, name in enumerate(names)}
            self.candidates.sort(
                key=lambda each: (
                    each.device.is_last_resort,
                    places.get(each.name, places.get(each.name.partition(".")[0], 0)),
                )
            )
            return candidate

    def _compile(self, candidate: Candidate) -> bool:
        """Compile in this thread; False if that fails; the candidate then has the reason."""
        assert self._model is not None
        candidate.state = State.COMPILING
        begun = time.perf_counter()
        failure: EngineError | None = None
        try:
            network, executor, why = candidate.compile(self._core, self._model)
        except EngineError as e:
            failure = e
        except BaseException:
            with self.lock:
                candidate.drop(State.WAITING, "its compilation was interrupted")
                self.changed.notify_all()
            raise
        with self.lock:
            if failure is None:
                candidate.take(network, executor, why, begun)
                if self._current is None:
                    self._current = candidate
                    self.reason = f"{self._why_now}; others are compiled in the background, and then measured"
            else:
                candidate.error = failure
                is_refusal = isinstance(failure, UnsupportedError)
                candidate.drop(State.REFUSED if is_refusal else State.FAILED, str(failure))
            self.changed.notify_all()
        if failure is not None and candidate.state is State.FAILED and not isinstance(failure, Cancelled):
            self._warn(f"{candidate.name} is left for other devices: {_error_text(failure)}")
        return failure is None

    def _warn(self, message: str) -> None:
        """Add a message; issue it now if `start` has succeeded."""
        with self.lock:
            if message not in self.remarks:
                self.remarks.append(message)
            if not self._is_started:
                return
        with suppress(EngineWarning):  # it is only logged: as an error, it would end a thread or a successful inference
            warn(f"{self.owner}: {message}")

    def _error_of_all(self) -> EngineError:
        errors = self._errors | {c.name: c.error for c in self.candidates if isinstance(c.error, EngineError)}
        if len(errors) == 1:
            return next(iter(errors.values()))
        if not errors:
            why = "; ".join(f"{name}: {reason}" for name, reason in self.left_out.items())
            return DeviceNotFoundError(f"{self.owner}: no device can be used: {why}")
        # A model that devices refuse is not the cause if plugins cannot be used, and plugins are not the cause of an
        # invalid model.
        kinds = (UnsupportedError, PluginError)
        first = next((e for e in errors.values() if not isinstance(e, kinds)), None)
        first = first or next((e for e in errors.values() if isinstance(e, UnsupportedError)), None)
        first = first or next(iter(errors.values()))
        told = "; ".join(f"{name}: {error}" for name, error in errors.items())
        what = "runs the whole model" if isinstance(first, UnsupportedError) else "can be used"
        return with_message(first, f"{self.owner}: no device {what}: {told}")

    def _why_only(self, candidate: Candidate) -> str:
        others = [f"{each.name}: {each.why}" for each in self.candidates if each is not candidate and each.state in OUT]
        if candidate.device.is_last_resort:
            return f"no other device can be used ({'; '.join(others) or 'there is none'})"
        return f"it is the only one that can be used ({'; '.join(others)})" if others else "it is the only one"

    def take(self, device: Device, network: ExecutableNetwork, reason: str) -> None:
        """Use the network of an imported blob as the only one."""
        candidate = Candidate(device)
        self.candidates = [candidate]
        candidate.take(network, executor_of(network, candidate.name), "it was imported", time.perf_counter())
        self._current, self._is_started = candidate, True
        self._settle(candidate, reason)

    def forget_model(self) -> None:
        """Keep no reference to the model: no other network will be made of it."""
        self._model = None

    @property
    def was_cached(self) -> bool:
        """Whether the network that is used now came from CACHE_DIR."""
        return self.now()[1].loaded_from_cache

    # -- the fastest device -----------------------------------------------------------------------------------

    def note_shapes(self, shapes: Mapping[str, Sequence[int]]) -> None:
        """Measure with the shapes of an inference; for networks whose inputs have no fixed shapes."""
        with self.lock:
            executor = self._executor
            if not self.wants_shapes or executor is None:
                return
            self.wants_shapes, self._is_busy_measuring = False, True
            ready = [each for each in self.candidates if each.state is State.READY]
        executor.submit(partial(self._compare, ready, dict(shapes)))

    def _compare(self, ready: Sequence[Candidate], shapes: Mapping[str, Sequence[int]] | None = None) -> None:
        """Choose among the candidates that are ready. A task of the executor."""
        try:
            self._choose(ready, shapes or {})
        except (Stopped, Cancelled):  # the network is no longer used, or the interpreter exits
            logger.debug("%s: the measurement was stopped", self.owner)
        finally:
            with self.lock:
                self._is_busy_measuring = False
                self.changed.notify_all()

    def _choose(self, ready: Sequence[Candidate], shapes: Mapping[str, Sequence[int]]) -> None:
        current = self._current
        assert current is not None
        if len(ready) < 2:
            self._settle(current, self._why_only(current))
            return
        if not self._seconds:
            self._settle(current, f"{self._why_now}; MEASURE_SECONDS is 0, so others were not measured")
            return
        networks = {each.name: each.network for each in ready if each.network is not None}
        inputs = inputs_for(next(iter(networks.values())).inputs, shapes)
        if inputs is None:
            if shapes:  # for values that cannot be generated at random
                self._settle(current, f"{self._why_now}; random values cannot be made for inputs of these types")
                return
            with self.lock:
                self.wants_shapes = True
                self.reason = f"{self._why_now}; others are measured with the shapes of the first inference"
            return
        with self.lock:
            self.reason = f"{self._why_now}; {' and '.join(networks)} are being measured"
        others = OtherLoad()
        trials = Trials(networks, inputs, self._hint, self._seconds, self._check_open)
        limit = deadline_timer.call_after(self._seconds, partial(self._give_up_measuring, trials))
        try:
            times, errors = trials.run()
        finally:
            limit.cancel()
        self._decide(current, times, errors, others.share())

    def _give_up_measuring(self, trials: Trials) -> None:
        """Keep the device: its time has passed, whether or not the inference ends that is being measured."""
        late = f": the first inference on {trials.begun} took longer; raise MEASURE_SECONDS" if trials.begun else ""
        self._settle(self.current, f"{self._why_now}; no measurement finished in {self._seconds:g} s{late}")
        trials.stop()

    def _decide(
        self,
        current: Candidate,
        times: Mapping[str, float] | None,
        errors: Mapping[str, EngineError],
        other_load: float,
    ) -> None:
        failed = "".join(f"; {name} failed with random inputs: {error}" for name, error in errors.items())
        if times is None or current.name not in times:
            time = f" in {self._seconds:g} s" if times is None and not errors else ""
            self._settle(current, f"{self._why_now}; no measurement finished{time}{failed}")
            return
        self._note_times(times)
        best = min(times, key=times.__getitem__)
        is_clear = times[best] < MARGIN * times[current.name]
        chosen = next(each for each in self.candidates if each.name == (best if is_clear else current.name))
        if other_load > MAX_OTHER_LOAD:
            failed += f"; not kept, as other processes used {other_load:.0%} of the machine meanwhile"
        elif self._choices is not None:
            self._choices.write(Choice(chosen.name, chosen.device.identity, times))
        is_kept = chosen.name != best
        words = "no other device is 5 % faster than this one" if is_kept else "it was measured to be the fastest"
        self._settle(chosen, f"{words} for {self._hint}: {_listed(times)}{failed}")

    def _note_times(self, times: Mapping[str, float]) -> None:
        for candidate in self.candidates:
            candidate.milliseconds = times.get(candidate.name)

    def _settle(self, chosen: Candidate, reason: str) -> None:
        """Use a device from now on, and give up the networks on others; those may be compiled for again."""
        with self.lock:
            if self.is_final or self._is_closed:
                return
            if chosen.network is None:  # the device has failed meanwhile
                chosen, reason = self.current, self.reason
            self._current, self.reason, self.is_final = chosen, reason, True
            chosen.state = State.CHOSEN
            self._executor = None
            self._give_up_others()
            logger.info("%s: inferences begin on %s: %s", self.owner, chosen.name, reason)
            self.changed.notify_all()

    def _give_up_others(self) -> None:
        for each in self.candidates:
            if each is not self._current and each.state is State.READY and not self.is_needed(each):
                each.drop(State.NOT_CHOSEN, each.why)

    def is_needed(self, candidate: Candidate) -> bool:
        """Whether requests return to a network that is not chosen; see `SequenceSelection`."""
        return False

    def _check_open(self) -> None:
        if self._is_closed or lifecycle.is_exiting:
            raise Stopped

    # -- inferences -------------------------------------------------------------------------------------------

    @property
    def current(self) -> Candidate:
        """The device on which inferences begin."""
        assert self._current is not None
        return self._current

    @property
    def executor(self) -> Executor:
        """The executor of the device on which inferences begin."""
        with self.lock:  # a device that fails meanwhile has no executor any more
            executor = self.current.executor
        assert executor is not None
        return executor

    def now(self) -> tuple[Candidate, ExecutableNetwork]:
        """The device on which inferences begin, and the network there."""
        with self.lock:
            candidate = self.current
            assert candidate.network is not None
            return candidate, candidate.network

    def others(self, failed: Candidate, check: Callable[[], None]) -> Iterator[tuple[Candidate, ExecutableNetwork]]:
        """The other devices with their networks: those that are ready, then those that can be compiled for.

        `check` raises if the request is cancelled while it waits for a compilation.
        """
        tried = {failed}
        while True:
            with self.lock:
                left = [each for each in self.candidates if each not in tried and each.state not in OUT]
                left.sort(key=lambda each: (each is not self._current, each.network is None))
                is_awaited = bool(self._pending) or any(each.state is State.COMPILING for each in left)
                found = next((each for each in left if each.network is not None), None)
                if found is None and not is_awaited and left:
                    found = left[0]
                    found.state = State.COMPILING
                network = None if found is None else found.network
            if found is not None:
                tried.add(found)
                if network is None and self._model is not None and self._compile(found):
                    network = found.network
                if network is not None:
                    yield found, network
            elif is_awaited:
                check()
                self.changed.wait_for(lambda: False, _PATIENCE)
            elif not self._looks_for_more():
                return

    def _looks_for_more(self) -> bool:
        """Look for all devices: if a choice was known, only the chosen device has been. False if all have been looked
        for.
        """
        if self._model is None or self._devices is None:
            return False
        left = [name for name in self._devices.names if name not in self._sought]
        for name in left:
            self._find(name)
        return bool(left)

    def leave(self, failed: Candidate, error: EngineError, successor: Candidate, network: ExecutableNetwork) -> None:
        """Give up a device, with a warning, after an inference failed on it that succeeded on `successor`.

        `network` is the one on `successor`, which may have been given up while the inference ran there.
        """
        with self.lock:
            if failed.state is State.FAILED:
                return
            failed.error = error
            failed.drop(State.FAILED, f"an inference failed: {_error_text(error)}")
            if self._current is failed:
                if successor.network is None:
                    successor.network, successor.executor = network, executor_of(network, successor.name)
                self._current = successor
                successor.state = State.CHOSEN if self.is_final else State.READY
                self._why_now = self.reason = f"{failed.name} failed: {_error_text(error)}"
            now = self.current.name
        self._warn(f"{failed.name} failed and is no longer used; inferences continue on {now}: {_error_text(error)}")

    # -- for users --------------------------------------------------------------------------------------------

    def described(self) -> dict[str, object]:
        """The value of the metric CANDIDATES: by device, its state, and why devices were excluded."""
        with self.lock:
            found: dict[str, object] = {each.name: each.described() for each in self.candidates}
            return found | {name: {"state": "left out", "why": why} for name, why in self.left_out.items()}

    def networks(self) -> list[ExecutableNetwork]:
        """The networks that are compiled at this moment."""
        with self.lock:
            return [each.network for each in self.candidates if each.network is not None]

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the choice is final; False if `timeout` (s) passes before, or if it needs an inference first."""
        self.changed.wait_for(lambda: self.is_final or self.wants_shapes or self._is_closed, timeout)
        return self.is_final

    # -- the end ----------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Begin nothing more in the background; what runs ends soon, or without an effect."""
        with self.lock:
            self._is_closed = True
            self._executor = None
            self.changed.notify_all()

    def _begin_exit(self) -> None:
        self._is_closed = True

    def _after_fork(self) -> None:
        """The child does not have the threads, so its choice stays as it was at the fork."""
        for each in self.candidates:
            if each.state is State.COMPILING:
                each.drop(State.WAITING, "its compilation was left behind by a fork of the process")
        if self._current is not None and not self.is_final:
            self._pending = 0
            self._executor, self._is_busy_measuring, self.wants_shapes, self.is_final = None, False, False, True
            self.reason = f"{self._why_now}; the process was forked before others were measured"


def _error_text(error: EngineError) -> str:
    return f"{type(error).__name__}: {error}"


def _listed(milliseconds: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {value:.3g} ms" for name, value in sorted(milliseconds.items(), key=lambda item: item[1]))
