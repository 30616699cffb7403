"""Choosing kernels by measurement on the device at hand, while a network is compiled.

The candidates of a site are timed in turns, so that what disturbs the device meets all of them; the default gives way
only to what is clearly faster. Sites that take most of the network's time come first.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from engine.errors import EngineError
from engine_opencl.devices.device import OpenclDevice
from engine_opencl.programs.programs import Building, Programs
from engine_opencl.tuning.choices import Site
from engine_opencl.tuning.stopwatch import Stopwatch
from engine_opencl.tuning.tuning_cache import TuningCache

if TYPE_CHECKING:
    from engine_opencl.plan import PlanBuilder

_log = logging.getLogger("engine.opencl")

BUDGETS: Final = {"none": 0.0, "quick": 5.0, "full": 120.0}
"""Seconds that compiling kernels to try, and measuring them, may take in a network, by COMPILE_EFFORT."""
_QUICK_CANDIDATES: Final = 4
_ROUNDS: Final = 5
_FEW_ROUNDS: Final = 2
_LONG_NS: Final = 20_000_000
"""What takes longer is hardly disturbed."""
_MARGIN: Final = 0.95
_HOPELESS: Final = 2
"""What is slower by this factor in its first round gets no other."""


@dataclass(slots=True)
class Tuner:
    """Chooses among the candidates of a network's sites. Used by one thread at a time.

    Attributes:
        effort: as COMPILE_EFFORT.
        choices: by site, as a blob keeps them; a site that is there is not measured.
        found: how long the candidates took, by site, where they were measured.
    """

    device: OpenclDevice
    programs: Programs
    how: Building
    effort: str = "none"
    choices: dict[str, str] = field(default_factory=dict)
    found: dict[str, str] = field(default_factory=dict)
    _seconds: float = field(default=0.0, init=False)
    _cache: TuningCache | None = field(default=None, init=False)
    _needed: dict[str, Any] = field(default_factory=dict, init=False)
    """Programs of the plan, so that the plan that comes of it finds them."""

    def __post_init__(self) -> None:
        if self.effort != "none":
            self._seconds = BUDGETS[self.effort]
            self._cache = TuningCache(self.how.cache.folder, self.device)

    def tune(self, builder: PlanBuilder) -> bool:
        """Choose for the sites of a plan; whether it is to be made anew, because something else was chosen."""
        if self._cache is None:
            return False
        before = {site.key: site.chosen(self.choices) for site in builder.sites.values()}
        unknown = [site for site in builder.sites.values() if len(site.candidates) > 1 and not self._is_known(site)]
        if unknown and self._seconds > 0:
            # What is needed anyway does not count.
            self._needed |= self.programs.build(builder.launches, builder.weights, self.how)
            begun = time.perf_counter()
            if not self._measure(unknown, builder, begun + self._seconds):
                _log.info("OPENCL: COMPILE_EFFORT %s ended before all kernels were measured", self.effort)
            self._seconds -= time.perf_counter() - begun
            self._cache.save()
        return any(site.chosen(self.choices) != before[site.key] for site in builder.sites.values())

    def end(self) -> None:
        """From now on, for what an inference needs, take what is known."""
        self._seconds = 0.0
        self._needed.clear()

    def described(self) -> tuple[str, ...]:
        """A line for each choice, with what was measured here."""
        return tuple(
            f"{key}: {text} ({self.found[key]})" if key in self.found else f"{key}: {text}"
            for key, text in sorted(self.choices.items())
        )

    def _is_known(self, site: Site) -> bool:
        assert self._cache is not None
        kept = [self._cache.get(f"{effort}|{site.key}") for effort in dict.fromkeys(("full", self.effort))]
        for text in (self.choices.get(site.key), *kept):
            if text is not None and site.find(text) is not None:
                self.choices[site.key] = text
                return True
        return False

    def _measure(self, sites: list[Site], builder: PlanBuilder, deadline: float) -> bool:
        """Whether the time sufficed for all sites."""
        stopwatch = Stopwatch(self.device, self.programs)
        share: dict[str, int] = {}
        for site in sites:
            run = self._bound(stopwatch, builder, site, site.chosen(self.choices))
            share[site.key] = builder.uses[site.key] * run() if run is not None else 0
            stopwatch.forget()
            if time.perf_counter() > deadline:
                return False
        for site in sorted(sites, key=lambda each: -share[each.key]):
            times = self._times(stopwatch, builder, site, deadline)
            stopwatch.forget()
            if times is None:
                return False
            if times:
                self._decide(site, times)
        return True

    def _times(self, stopwatch: Stopwatch, builder: PlanBuilder, site: Site, deadline: float) -> dict[Any, int] | None:
        """The least nanoseconds of each candidate that runs; None where the time does not suffice."""
        candidates = site.candidates[:_QUICK_CANDIDATES] if self.effort == "quick" else site.candidates
        trials: dict[Any, Callable[[], int]] = {}
        for candidate in candidates:
            run = self._bound(stopwatch, builder, site, candidate)
            if time.perf_counter() > deadline:
                return None
            if run is not None:
                trials[candidate] = run
        times: dict[Any, int] = {}
        rounds = _ROUNDS
        for number in range(_ROUNDS):
            for candidate, run in trials.items():
                times[candidate] = min(times.get(candidate, 1 << 62), run())
                if time.perf_counter() > deadline:
                    return None
            least = min(times.values(), default=0)
            trials = {c: run for c, run in trials.items() if times[c] < _HOPELESS * least}
            rounds = _FEW_ROUNDS if least > _LONG_NS else _ROUNDS
            if number + 1 >= rounds:
                break
        return times

    def _bound(
        self, stopwatch: Stopwatch, builder: PlanBuilder, site: Site, candidate: Any
    ) -> Callable[[], int] | None:
        """What times a candidate; None, with a line in the log, where it cannot be built or does not fit."""
        import pyopencl as cl

        apart = builder.apart(site, candidate)
        try:
            built = self.programs.build(apart.launches, apart.weights, self.how)
            run = stopwatch.bind(apart.launches, apart.weights)
            del built  # its kernels keep what they need
            run()
        except (EngineError, cl.Error) as e:
            why = str(e).partition("\n")[0]
            _log.info("OPENCL: candidate %s for %s is left out: %s", candidate, site.key, why)
            return None
        return run

    def _decide(self, site: Site, times: dict[Any, int]) -> None:
        default = site.candidates[0]
        best = min(times, key=times.__getitem__)
        if default in times and times[best] >= _MARGIN * times[default]:
            best = default
        self.choices[site.key] = str(best)
        assert self._cache is not None
        self._cache.put(f"{self.effort}|{site.key}", str(best))
        self.found[site.key] = ", ".join(f"{candidate} {spent / 1000:.1f} us" for candidate, spent in times.items())
        _log.info("OPENCL: for %s %s is chosen: %s", site.key, best, self.found[site.key])
