"""Choosing kernels by measurement on the device: the OpenCL part of `engine.lowering.tuning`.

Sites that take most of the network's time come first.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import Any, Final

from engine.errors import EngineError
from engine.lowering.tuning import Times, Timing, Tuner, time_in_turns
from engine.startup import dataclass
from engine_opencl.devices.device import OpenclDevice
from engine_opencl.plan_builder import LaunchPlanBuilder
from engine_opencl.programs.programs import Building, Programs
from engine_opencl.tuning.site import Site
from engine_opencl.tuning.stopwatch import Stopwatch
from engine_opencl.tuning.tuning_cache import TuningCache

_log = logging.getLogger("engine.opencl")

BUDGETS: Final = {"none": 0.0, "quick": 5.0, "full": 120.0}
"""The seconds for compiling and measuring candidate kernels of a network, by COMPILE_EFFORT."""
_QUICK_CANDIDATES: Final = 4
_SITES_AT_ONCE: Final = 8
"""Sites whose candidates are compiled together, side by side: as many as fill the child processes."""
_TIMING: Final = Timing(summary=min, hopeless=2, long_ns=20_000_000)


@dataclass(slots=True)
class OpenclTuner(Tuner):
    """Chooses among the candidates of a network's sites.

    Attributes:
        effort: the value of COMPILE_EFFORT.
    """

    device: OpenclDevice
    programs: Programs
    how: Building
    effort: str = "none"
    _needed: dict[str, Any] = field(default_factory=dict, init=False)
    """Programs of the plan, kept alive for the final plan."""

    def __post_init__(self) -> None:
        self.logger = _log
        self.budget = BUDGETS[self.effort]
        if self.effort != "none":
            self.cache = TuningCache(self.how.cache.folder, self.device, is_shared=self.how.is_shared)

    def cache_keys(self, problem: str) -> Sequence[str]:
        """The keys of a problem; choices measured with effort quick are not used for full."""
        return [f"{effort}|{problem}" for effort in dict.fromkeys(("full", self.effort))]

    def tune(self, builder: LaunchPlanBuilder) -> bool:
        """Choose for the sites of a plan; returns whether the plan must be rebuilt because a choice changed."""
        if self.cache is None:
            return False
        sites = builder.sites.values()
        before = {site.key: site.chosen(self.choices) for site in sites}
        unknown = [s for s in sites if len(s.candidates) > 1 and self.known(s.key, s.candidates) is None]
        if unknown and self.budget > 0:
            # Building programs that are needed anyway is not charged to the budget.
            self._needed |= self.programs.build(builder.launches, builder.weights, self.how)
            with self.spending() as deadline:
                if not self._measure(unknown, builder, deadline):
                    _log.info("OPENCL: COMPILE_EFFORT %s ended before all kernels were measured", self.effort)
            self.cache.save()
        return any(site.chosen(self.choices) != before[site.key] for site in sites)

    def end(self) -> None:
        """Stop measuring; plans built during inferences use known choices."""
        self.budget = 0.0
        self._needed.clear()

    def _measure(self, sites: list[Site[LaunchPlanBuilder]], builder: LaunchPlanBuilder, deadline: float) -> bool:
        """Measure; returns whether the time sufficed for all sites."""
        stopwatch = Stopwatch(self.device, self.programs)
        share: dict[str, int] = {}
        for site in sites:
            chosen = site.chosen(self.choices)
            run = self._bound(stopwatch, builder.apart(site, chosen), site, chosen)
            share[site.key] = builder.uses[site.key] * run() if run is not None else 0
            stopwatch.forget()
            if time.perf_counter() > deadline:
                return False
        ordered = sorted(sites, key=lambda each: -share[each.key])
        # A few sites at first: compiling candidates that no time is left to measure would delay the result.
        count = 1
        while ordered:
            some, ordered = ordered[:count], ordered[count:]
            builders = {site.key: self._builders(site, builder) for site in some}
            built = self._built([apart for each in builders.values() for apart in each.values()])
            for site in some:
                times = self._times(stopwatch, builders[site.key], site, deadline, built)
                stopwatch.forget()
                if times is None:
                    return False
                if times:
                    self.decide(site.key, site.candidates, times)
            count = min(2 * count, _SITES_AT_ONCE)
        return True

    def _builders(self, site: Site[LaunchPlanBuilder], builder: LaunchPlanBuilder) -> dict[Any, LaunchPlanBuilder]:
        """The launches of the candidates that are measured."""
        candidates = site.candidates[:_QUICK_CANDIDATES] if self.effort == "quick" else site.candidates
        return {candidate: builder.apart(site, candidate) for candidate in candidates}

    def _built(self, builders: Sequence[LaunchPlanBuilder]) -> dict[str, Any] | None:
        """The programs of candidates by source, compiled side by side in child processes; those that fail are left out.

        Returns None if no child process can be used; each candidate is then compiled when it is measured.
        """
        if not self.programs.has_trials(self.how):
            return None
        launches = [launch for apart in builders for launch in apart.launches]
        weights = {name: make for apart in builders for name, make in apart.weights.items()}
        try:
            return self.programs.build(launches, weights, self.how, skips_failures=True)
        except EngineError as e:
            _log.info("OPENCL: the candidates cannot be compiled side by side: %s", str(e).partition("\n")[0])
            return None

    def _times(
        self,
        stopwatch: Stopwatch,
        builders: Mapping[Any, LaunchPlanBuilder],
        site: Site[LaunchPlanBuilder],
        deadline: float,
        built: Mapping[str, Any] | None,
    ) -> Times | None:
        """The minimum nanoseconds of each candidate that runs; None if the time does not suffice.

        `built`: the programs of all candidates that can be built; None if that is not known.
        """
        trials: dict[str, Callable[[], int]] = {}
        for candidate, apart in builders.items():
            if built is not None and any(launch.source not in built for launch in apart.launches):
                _log.info("OPENCL: candidate %s for %s is skipped: it cannot be built", candidate, site.key)
                continue
            run = self._bound(stopwatch, apart, site, candidate)
            if time.perf_counter() > deadline:
                return None
            if run is not None:
                trials[str(candidate)] = run
        return time_in_turns(trials, deadline, _TIMING)

    def _bound(
        self, stopwatch: Stopwatch, apart: LaunchPlanBuilder, site: Site[LaunchPlanBuilder], candidate: Any
    ) -> Callable[[], int] | None:
        """A function that times a candidate; None, with a log message, if it cannot be built or exceeds limits."""
        import pyopencl as cl

        try:
            built = self.programs.build(apart.launches, apart.weights, self.how)
            run = stopwatch.bind(apart.launches, apart.weights)
            del built  # its kernels keep what they need alive
            run()
        except (EngineError, cl.Error) as e:
            why = str(e).partition("\n")[0]
            _log.info("OPENCL: candidate %s for %s is skipped: %s", candidate, site.key, why)
            return None
        return run
