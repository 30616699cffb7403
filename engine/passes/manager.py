"""`Manager`: runs passes in order, validates after each, and records their effects."""

from __future__ import annotations

import logging
import os
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TypeVar

from engine.errors import Cancelled, EngineError, PassError
from engine.ir import Model, stored_bytes
from engine.ir.checkpoint import Checkpoint
from engine.ir.node import edits
from engine.limits import compilation, step
from engine.passes import regions
from engine.passes.base import Pass, run_pass
from engine.passes.config import PassConfig, PipelineRun
from engine.passes.late import loaded
from engine.passes.rewrite import GraphRewrite, MatcherPass
from engine.passes.settings import is_on
from engine.passes.snapshots import ALL_FORMATS, Snapshots, tracing
from engine.startup import dataclass

PROFILE = "ENGINE_PROFILE_PASS_ENABLE"

_log = logging.getLogger("engine.passes")
_P = TypeVar("_P", bound=Pass)


@dataclass(frozen=True, slots=True)
class PassRecord:
    """One pass of a run.

    Attributes:
        changed: whether it changed the model.
        rewrites: the number of changes: matches of a matcher pass, the count of a model pass, the sum for containers.
        seconds: its time; 0 for a pass that `Pass.may_change` says changes nothing and, unless profiling is on, for a
            matcher within a `GraphRewrite`.
        nodes_before: nodes of the main graph before it; None for a matcher within a `GraphRewrite`.
        parts: the passes within a `GraphRewrite` or a nested manager.
    """

    name: str
    changed: bool
    rewrites: int
    seconds: float
    nodes_before: int | None = None
    nodes_after: int | None = None
    parts: tuple[PassRecord, ...] = ()

    def __str__(self) -> str:
        mark = "unchanged" if not self.changed else "1 rewrite" if self.rewrites == 1 else f"{self.rewrites} rewrites"
        nodes = f", {self.nodes_before} -> {self.nodes_after} nodes" if self.changed and self.nodes_before else ""
        return f"{self.name:<40} {self.seconds * 1e3:9.3f} ms  {mark}{nodes}"

    def flat(self) -> Iterator[PassRecord]:
        """The records of single passes: this one, or those within it."""
        if not self.parts:
            yield self
        for part in self.parts:
            yield from part.flat()


class Manager(Pass):
    """A pipeline of passes; itself a pass, so managers nest.

    After each pass that changed something, the graph is checked for cycles and dangling ports, and types and shapes are
    inferred again, bodies included, so the error names the pass that broke the model.

    Args:
        config: the configuration to share with an outer pipeline.
        validate: check and infer after each pass that changed something; if False, the caller validates.
        checked: also catch wrong return values, lost names, rt_info and outputs, edits after the root of a match and
            constants left unfolded (see `checks`); after a failure the model is restored. Slow, for tests.
        profile: log time and changes of each pass (also by `ENGINE_PROFILE_PASS_ENABLE=1`) and measure single matchers;
            except for the latter, `records` always has these data.
        snapshots: a folder for the model after each pass that changed it (also, in the current folder, by
            `ENGINE_ENABLE_VISUALIZE_TRACING=1`), numbered from the start, 000.
        snapshot_formats: of "txt", "onnx", "svg", "dot".
        name: the name in profiles, snapshots and `PassConfig`; by default the class's name.

    The outer manager does the checks, measurements and snapshots of nested managers, which are passes or share
    `config`. Not thread-safe.
    """

    def __init__(
        self,
        config: PassConfig | None = None,
        *,
        validate: bool = True,
        checked: bool = False,
        profile: bool = False,
        snapshots: str | os.PathLike[str] | None = None,
        snapshot_formats: Sequence[str] = ALL_FORMATS,
        name: str | None = None,
    ) -> None:
        if name is not None:
            self.name = name
        self.config = self.pass_config = PassConfig() if config is None else config
        self.records: list[PassRecord] = []
        self._passes: list[tuple[Pass, bool | None]] = []
        self._validate = validate
        self._run = PipelineRun(
            checked=checked,
            timed=profile,
            snapshots=None if snapshots is None else Snapshots(Path(snapshots), snapshot_formats),
        )

    @property
    def passes(self) -> list[Pass]:
        """The registered passes, in the order in which they run."""
        return [loaded(item) for item, _ in self._passes]

    def register_pass(self, item: _P | type[_P], enabled: bool | None = True) -> _P:
        """Append a pass (or an instance of a pass class) and return it; `enabled=False` requires `PassConfig.enable`.

        With `enabled=None`, it runs if it suits the device of `PassConfig.limit_to`.

        Raises `PassError` if it is not a pass, is already registered, is a MatcherPass without a matcher, or has the
        name of another class in this pipeline.
        """
        instance = item() if isinstance(item, type) else item
        if not isinstance(instance, Pass):
            raise PassError(f"expected a pass or a pass class, got {instance!r}")
        if any(known is instance for known, _ in self._passes):
            raise PassError(f"pass {instance.name} is already registered; create a second instance to run it twice")
        if isinstance(instance, Manager) and instance._contains(self):
            raise PassError(f"manager {instance.name} cannot be registered with itself")
        if isinstance(instance, MatcherPass) and instance.matcher is None:
            raise PassError(f"pass {instance.name} has no matcher; call register_matcher in its __init__")
        instance.set_pass_config(self.pass_config)
        self._passes.append((instance, enabled))
        return instance

    def set_pass_config(self, config: PassConfig) -> None:
        """Join an outer pipeline: the configurations are merged, and the outer one takes precedence."""
        self.pass_config.join(config)
        super().set_pass_config(config)

    def run_on_model(self, model: Model) -> bool:
        """`run_passes`, as a pass of an outer manager."""
        return self.run_passes(model)

    def run_passes(self, model: Model) -> bool:
        """Run every enabled pass on `model`; True if any changed it.

        Raises `PassError` naming the pass that failed or broke the graph.
        """
        self.records = []
        selection = regions.selection()
        active = [
            item
            for item, enabled in self._passes
            if self.pass_config.is_enabled(item, enabled)
            and (
                selection is None
                or not (item.is_transformation or _is_container(item))
                or selection.runs(item.name, is_container=_is_container(item))
            )
        ]
        with compilation(constant_bytes=lambda: stored_bytes(model)), self._running(model) as run:
            for number, item in enumerate(self._sequence(active)):
                with step("transform", f"pass {item.name}", number, len(active)):
                    self._run_one(item, model, run)
        self.rewrites = sum(record.rewrites for record in self.records)
        return any(record.changed for record in self.records)

    def _sequence(self, passes: Sequence[Pass]) -> Iterable[Pass]:
        """The order in which the enabled passes run; each is in `records` before the next is asked for."""
        return passes

    def rewrite_counts(self) -> dict[str, int]:
        """How often each pass changed the model in the last run, by name, nested passes included."""
        counts: Counter[str] = Counter()
        for record in self.records:
            for part in record.flat():
                counts[part.name] += part.rewrites
        return dict(counts)

    # -- one run ------------------------------------------------------------------------------------------

    @contextmanager
    def _running(self, model: Model) -> Iterator[PipelineRun]:
        """Combine the settings of this manager and the outer ones; restore a checked model after a failure."""
        outer = self.pass_config.run
        run = _joined(outer, self._run)
        checkpoint = Checkpoint(model) if run.checked and not (outer and outer.checked) else None
        self.pass_config.run = run
        start = time.perf_counter()
        try:
            if run.snapshots is not None and (outer is None or run.snapshots is not outer.snapshots):
                run.snapshots.begin(model, self.name)
            yield run
        except BaseException:
            if checkpoint is not None:
                checkpoint.restore()
            raise
        finally:
            self.pass_config.run = outer
        if run.timed and outer is None:
            _log.warning("%s took %.3f ms", self.name, (time.perf_counter() - start) * 1e3)
        unknown = self.pass_config.unknown_names() if outer is None else []
        if unknown:
            _log.warning(
                "PassConfig enables or disables passes that %s does not have: %s", self.name, ", ".join(unknown)
            )

    def _run_one(self, item: Pass, model: Model, run: PipelineRun) -> None:
        before = _node_count(model, f"before pass {item.name}")
        if not run.checked and not item.may_change(model):
            self.records.append(_skipped(item, before))
            if run.timed:
                _report(self.records[-1], run.depth)
            return
        item = loaded(item)
        start = time.perf_counter()
        changed = self._guarded(item, model, run)
        seconds = time.perf_counter() - start
        after = _node_count(model, f"after pass {item.name}") if changed else before
        record = PassRecord(item.name, changed, item.rewrites, seconds, before, after, _parts(item))
        self.records.append(record)
        if run.timed:
            _report(record, run.depth)
        if changed and item.is_transformation and not _is_container(item):
            regions.fired([item.name])
        if changed and run.snapshots is not None and not isinstance(item, Manager):
            run.snapshots.take(model, self.name, item.name)

    def _guarded(self, item: Pass, model: Model, run: PipelineRun) -> bool:
        """Run a pass; an error names the pass."""
        if not isinstance(item, Manager):
            item.set_pass_config(self.pass_config)  # a pass may be in several pipelines
        ids, count = model.node_ids, edits.count
        try:
            if run.checked and not isinstance(item, Manager):
                from engine.passes.checks import checked_run  # with the comparison of models

                changed = checked_run(item, model)
            else:
                changed = run_pass(item, model)
            if changed and self._validate:
                model.validate()
            elif not changed and edits.count != count and model.node_ids != ids:
                raise PassError(f"pass {item.name} returned False and changed the nodes of model `{model.name}`")
        except (PassError, Cancelled, TimeoutError):
            raise  # a TimeoutError is of the caller, who limits the time by the handler of a signal
        except EngineError as e:
            raise PassError(f"pass {item.name} broke model `{model.name}`: {e}") from e
        except Exception as e:
            raise PassError(f"pass {item.name} failed on model `{model.name}`: {type(e).__name__}: {e}") from e
        return changed

    def _contains(self, item: Pass) -> bool:
        return item is self or any(isinstance(inner, Manager) and inner._contains(item) for inner, _ in self._passes)


def _joined(outer: PipelineRun | None, own: PipelineRun) -> PipelineRun:
    if outer is None:
        return replace(own, timed=own.timed or is_on(PROFILE), snapshots=own.snapshots or tracing())
    return PipelineRun(
        checked=outer.checked or own.checked,
        timed=outer.timed or own.timed,
        snapshots=own.snapshots or outer.snapshots,
        depth=outer.depth + 1,
    )


def _is_container(item: Pass) -> bool:
    """True for passes that only contain others, which are configured, recorded and photographed individually."""
    return isinstance(item, (Manager, GraphRewrite))


def _node_count(model: Model, when: str) -> int:
    try:
        return model.node_count
    except EngineError as e:
        raise PassError(f"model `{model.name}` is broken {when}: {e}") from e


def _parts(item: Pass) -> tuple[PassRecord, ...]:
    if isinstance(item, Manager):
        return tuple(item.records)
    if isinstance(item, GraphRewrite):
        return tuple(
            PassRecord(m.name, m.rewrites > 0, m.rewrites, m.seconds) if m.rewrites or m.seconds else _idle(m.name)
            for m in item.members
        )
    return ()


def _skipped(item: Pass, nodes: int) -> PassRecord:
    """The record of a pass without anything to change."""
    matchers = item.members if isinstance(item, GraphRewrite) else ()
    for each in (item, *matchers):
        each.rewrites = 0
    return PassRecord(item.name, False, 0, 0.0, nodes, nodes, tuple(_idle(each.name) for each in matchers))


@cache
def _idle(name: str) -> PassRecord:
    """The record of a matcher that changed nothing: most of them, in most runs."""
    return PassRecord(name, False, 0, 0.0)


def _report(record: PassRecord, depth: int) -> None:
    _log.warning("%s%s", "  " * depth, record)
    if record.parts and record.parts[0].nodes_before is None:
        for part in record.parts:
            _log.warning("%s%s", "  " * (depth + 1), part)
