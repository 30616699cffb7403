"""`LatePass`: a pass that is imported when a model has the operators that it changes."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module
from typing import Final

from engine.ir import Model
from engine.passes.base import Pass
from engine.passes.config import PassConfig
from engine.passes.pattern.nodes import split_kind


class LatePass(Pass):
    """Stands for a pass in a pipeline until a model has something that it could change.

    Args:
        path: module and class, as "engine.passes.common.gelu_fusion.GeluFusion".
        needs: operators, as "Conv|ConvTranspose": without a node of one of them, of each argument, it changes nothing.
        makes: the class's attribute, as also the next two.
    """

    seconds: float = 0.0

    def __init__(
        self,
        path: str,
        *needs: str,
        makes: Iterable[str] = (),
        removes: Iterable[str] = (),
        by_default: bool = True,
    ) -> None:
        self._module, _, self.name = path.rpartition(".")
        self.needs: Final = tuple(frozenset(map(split_kind, each.split("|"))) for each in needs)
        self.makes = frozenset(makes)  # type: ignore[misc]
        self.removes = frozenset(removes)  # type: ignore[misc]
        self.by_default = by_default  # type: ignore[misc]
        self._instance: Pass | None = None

    def set_pass_config(self, config: PassConfig) -> None:
        """See `Pass`."""
        if self.config is not config:
            config.note(self.name, None)
            self.config = config
        if self._instance is not None:
            self._instance.set_pass_config(config)

    def may_change(self, model: Model) -> bool:
        """False if the model lacks an operator that it needs."""
        if not all(map(model.has_nodes_of, self.needs)):
            return False
        return self._instance is None or self._instance.may_change(model)

    def may_match(self, model: Model, made: frozenset[str]) -> bool:
        """As `may_change`, in a traversal in which other passes make the operators `made`."""
        kinds = frozenset(map(split_kind, made))
        return all(not kinds.isdisjoint(each) or model.has_nodes_of(each) for each in self.needs)

    def loaded(self) -> Pass:
        """The pass itself."""
        if self._instance is None:
            made: Pass = getattr(import_module(self._module), self.name)()
            if self.config is not None:
                made.set_pass_config(self.config)
            self._instance = made
        return self._instance

    def run_on_model(self, model: Model) -> bool:
        """Run the pass, if the model has something that it could change."""
        return self.may_change(model) and self.loaded().run_on_model(model)


def loaded(item: Pass) -> Pass:
    """The pass that `item` stands for, or itself."""
    return item.loaded() if isinstance(item, LatePass) else item
