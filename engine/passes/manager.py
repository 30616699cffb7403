"""`Manager`: runs passes in order, validates after each, and shows what happened."""

from __future__ import annotations

import logging
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from engine.errors import EngineError, PassError
from engine.ir import Model
from engine.passes import regions
from engine.passes.base import MatcherPass, Pass
from engine.passes.checks import checked_run
from engine.passes.config import PassConfig
from engine.passes.snapshots import Snapshots

PROFILE = "ENGINE_PROFILE_PASS_ENABLE"
TRACING = "ENGINE_ENABLE_VISUALIZE_TRACING"

_log = logging.getLogger("engine.passes")
_P = TypeVar("_P", bound=Pass)


@dataclass(frozen=True, slots=True)
class PassRecord:
    """One pass of a run: whether it changed the model, how long it took, and the node counts around it."""

    name: str
    changed: bool
    seconds: float
    nodes_before: int
    nodes_after: int

    def __str__(self) -> str:
        mark = f"{self.nodes_before} -> {self.nodes_after} nodes" if self.changed else "unchanged"
        return f"{self.name:<40} {self.seconds * 1e3:9.3f} ms  {mark}"


class Manager(Pass):
    """A pipeline of passes; itself a pass, so managers nest.

    After each pass that changed something the graph is checked for dangling ports and its types and shapes are
    inferred anew, so a pass that broke the model is named at once.

    Args:
        config: the switches to share with an outer pipeline.
        validate: infer types after each pass that changed something; off, the caller validates.
        checked: also catch wrong return values, lost names and rt_info, lost outputs, edits behind a match and
            constants left unfolded (see `checks`); a failing pass leaves the model as it was. For tests: slow.
        profile: log time and node counts of each pass (also by `ENGINE_PROFILE_PASS_ENABLE=1`); they are in
            `records` in any case.
        snapshots: a folder for the model's text, ONNX and SVG after each pass that changed it (also, in the
            current folder, by `ENGINE_ENABLE_VISUALIZE_TRACING=1`).
    """

    def __init__(
        self,
        config: PassConfig | None = None,
        *,
        validate: bool = True,
        checked: bool = False,
        profile: bool = False,
        snapshots: str | os.PathLike[str] | None = None,
        label: str = "Manager",
    ) -> None:
        self.pass_config = PassConfig() if config is None else config
        self.config = self.pass_config
        self.label = label
        self.records: list[PassRecord] = []
        self._passes: list[tuple[Pass, bool]] = []
        self._validate = validate
        self._checked = checked
        self._profile = profile or _flag(PROFILE)
        folder = Path.cwd() if snapshots is None and _flag(TRACING) else snapshots
        self._snapshots = None if folder is None else Snapshots(Path(folder), label)

    @property
    def passes(self) -> list[Pass]:
        """The passes, in order."""
        return [item for item, _ in self._passes]

    def register_pass(self, item: _P | type[_P], enabled: bool = True) -> _P:
        """Append a pass (or make one of a class) and return it; `enabled=False` waits for `PassConfig.enable`.

        Raises `PassError` for something else, for a pass registered twice and for a MatcherPass without a matcher.
        """
        instance = item() if isinstance(item, type) else item
        if not isinstance(instance, Pass):
            raise PassError(f"a manager runs passes, got {instance!r}")
        if any(known is instance for known, _ in self._passes):
            raise PassError(f"pass {instance.name} is registered already; make a second one to run it twice")
        if isinstance(instance, MatcherPass) and instance.matcher is None:
            raise PassError(f"pass {instance.name} has no matcher; call register_matcher in its __init__")
        instance.set_pass_config(self.pass_config)
        self._passes.append((instance, enabled))
        return instance

    def set_pass_config(self, config: PassConfig) -> None:
        """Join an outer pipeline: its switches replace this manager's."""
        self.pass_config = self.config = config
        for item, _ in self._passes:
            item.set_pass_config(config)

    def run_on_model(self, model: Model) -> bool:
        """`run_passes`, as a pass of an outer manager."""
        return self.run_passes(model)

    def run_passes(self, model: Model) -> bool:
        """Run every enabled pass on `model`; True where any changed it.

        Raises `PassError` naming the pass that failed or broke the graph.
        """
        self.records = []
        only = regions.allowed()
        changed = False
        for item, enabled in self._passes:
            if not self.pass_config.is_enabled(type(item), enabled):
                continue
            if only is not None and item.name not in only and not _is_container(item):
                continue
            changed |= self._run(item, model)
        return changed

    def _run(self, item: Pass, model: Model) -> bool:
        before = len(model.ordered_nodes())
        start = time.perf_counter()
        try:
            changed = checked_run(item, model) if self._checked else item.run_on_model(model)
            if not isinstance(changed, bool):
                raise PassError(f"pass {item.name} returned {changed!r}; a pass returns True or False")
            if changed and self._validate:
                model.validate()
        except PassError:
            raise
        except EngineError as e:
            raise PassError(f"pass {item.name} broke model `{model.name}`: {e}") from e
        except Exception as e:
            raise PassError(f"pass {item.name} failed on model `{model.name}`: {type(e).__name__}: {e}") from e
        seconds = time.perf_counter() - start
        record = PassRecord(_label(item), changed, seconds, before, len(model.ordered_nodes()) if changed else before)
        self.records.append(record)
        if self._profile:
            _log.warning("%s", record)
        if changed:
            if not _is_container(item):
                regions.fired(item.name)
            if self._snapshots is not None:
                self._snapshots.take(model, _label(item))
        return changed


def _is_container(item: Pass) -> bool:
    """True for passes that only hold others, which have switches and regions of their own."""
    return hasattr(item, "passes") or hasattr(item, "matchers")


def _label(item: Pass) -> str:
    label = getattr(item, "label", None)
    return label if isinstance(label, str) else item.name


def _flag(name: str) -> bool:
    return os.environ.get(name, "0").lower() not in ("", "0", "off", "false", "no")
