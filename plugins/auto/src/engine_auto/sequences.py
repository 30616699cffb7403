"""Devices for stateful models: a sequence stays on the device where it began."""

from __future__ import annotations

from typing import Any
from weakref import WeakSet

from engine.errors import StateError
from engine.plugin_api import ExecutableNetwork, SyncInferRequest
from engine.runtime.growing import plain
from engine_auto.candidate import Candidate, State
from engine_auto.selection import Selection


class SequenceSelection(Selection):
    """A selection whose device changes only while no request is in mid-sequence.

    Devices differ in rounding, so a sequence must not continue on another device than the one that computed its state.
    All sequences of a network are on one device, its home, because requests also copy sequences from each other
    (`fork`, `take_sequence`). A sequence begins with an inference from the initial values of the variables, and ends
    when they have these values again.
    """

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._home: Candidate | None = None
        self._places: WeakSet[SequencePlace] = WeakSet()

    def new_place(self, request: SyncInferRequest) -> SequencePlace:
        """The selection's record of a request, which owns it."""
        place = SequencePlace(request)
        with self.lock:
            self._places.add(place)
        return place

    def place_sequence(self, place: SequencePlace, request: SyncInferRequest) -> tuple[Candidate, ExecutableNetwork]:
        """The device and network for an inference of a request.

        Raises `StateError` if the device of its sequence has failed.
        """
        with self.lock:
            assert request.states is not None
            place.is_running = True
            if request.states.is_initial:
                place.home = None
                if self._home is None or self._home.network is None or not self._is_in_use(self._home):
                    self._home = self.current
                    self._give_up_others()
            home = place.home or self._home or self.current
            if home.network is None:
                raise StateError(
                    f"{self.owner}: {home.name}, where this sequence began, is no longer used: {home.why}; a "
                    "sequence cannot continue on another device: begin a new one with reset_state, which runs on "
                    f"{self.current.name}"
                )
            if (
                place.home is None and not request.states.is_initial
            ):  # a copied or loaded state, perhaps in the form of another device
                request.inputs = [plain(value) for value in request.inputs]
            place.home = home
            return home, home.network

    def is_needed(self, candidate: Candidate) -> bool:
        """Whether the variables of running sequences are on this device."""
        return candidate is self._home and self._is_in_use(candidate)

    def _is_in_use(self, candidate: Candidate) -> bool:
        return candidate.state is not State.FAILED and any(
            place.home is candidate and place.is_in_sequence for place in list(self._places)
        )


class SequencePlace:
    """The device of the sequence of one request, and whether it is in one."""

    def __init__(self, request: SyncInferRequest) -> None:
        self.home: Candidate | None = None
        self.is_running = False
        self._states = request.states

    @property
    def is_in_sequence(self) -> bool:
        """Whether an inference runs, or the variables do not have their initial values."""
        return self.is_running or (self._states is not None and not self._states.is_initial)
