"""The base class of all passes, and passes over whole models. Matcher passes are in `engine.passes.rewrite`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

from engine.errors import PassError
from engine.ir import Model, Node
from engine.ir.walk import runnable_bodies
from engine.passes.config import PassConfig


class Pass(ABC):
    """The base class of all passes: a name, and the configuration of the pipeline that the pass runs in.

    Attributes:
        name: the class's name, unless the class (or, for containers, the instance) sets another. PassConfig, profiles,
            snapshots and region files use it; in one pipeline no two classes may have the same.
        config: the configuration of the pipeline; None outside a pipeline.
        rewrites: how often the last run changed something. Matcher passes count their matches; a model pass may count
            its changes here, otherwise a run that changed something counts as one.
        by_default: False for passes that `CommonOptimizations` runs only where a `PassConfig` enables them: those that
            may change a result, and those for quantized models (`QuantizationCapabilities`).
        makes: the operators that it may add to a model without them; internal ones as `engine.FusedConv`.
            `CommonOptimizations` runs it only for a device that has kernels for all of them (`PassConfig.limit_to`), or
            if they are all ONNX's own, also without a device. Those of its pattern need not be listed, nor Identity,
            which other passes remove.
        removes: the operators that a decomposition replaces by others. `CommonOptimizations` runs it for a device, on
            the nodes for which this has no kernel.
        is_transformation: False for passes that only inspect or check: `ENGINE_PASSES_ONLY` never skips them.

    A pass holds state while it runs: use one instance per thread.
    """

    name: str
    config: PassConfig | None = None
    rewrites: int = 0
    by_default: ClassVar[bool] = True
    makes: ClassVar[frozenset[str]] = frozenset()
    removes: ClassVar[frozenset[str]] = frozenset()
    is_transformation: ClassVar[bool] = True

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "name" not in cls.__dict__:
            cls.name = cls.__name__

    def set_pass_config(self, config: PassConfig) -> None:
        """Join a pipeline; called by the manager or rewrite that the pass is registered with."""
        if self.config is config:
            return
        config.note(self.name, type(self))
        self.config = config

    @abstractmethod
    def run_on_model(self, model: Model) -> bool:
        """Transform `model` in place; True where anything changed."""

    def may_change(self, model: Model) -> bool:
        """False if `model` obviously has nothing that the pass changes; a manager then does not run it."""
        return True

    def transformation_callback(self, node: Node) -> bool:
        """True if the callback set through `PassConfig.set_callback` says to leave `node` unchanged."""
        callback = None if self.config is None else self.config.callback(self)
        return callback is not None and bool(callback(node))

    def reason_to_skip(self, node: Node) -> str | None:
        """Why that callback says to leave `node` unchanged; None if it does not."""
        callback = None if self.config is None else self.config.callback(self)
        answer = None if callback is None else callback(node)
        return (answer if isinstance(answer, str) else "the device leaves it") if answer else None

    def __repr__(self) -> str:
        return f"<pass {self.name}>"


def run_pass(item: Pass, model: Model) -> bool:
    """Run a pass on a model with its count reset; raises `PassError` if it returns neither True nor False."""
    item.rewrites = 0
    changed = item.run_on_model(model)
    if not isinstance(changed, bool):
        raise PassError(f"pass {item.name} returned {changed!r}; expected True if it changed the model, else False")
    if changed and not item.rewrites:
        item.rewrites = 1
    return changed


class ModelPass(Pass):
    """A pass over a whole model: override `run_on_model`, and call `run_on_bodies` in it for nodes with bodies."""

    def run_on_bodies(self, node: Node) -> bool:
        """Run on each body of `node` that can run (`runnable_bodies`); True if anything changed."""
        changed = False
        for body in runnable_bodies(node):
            changed |= self.run_on_model(body)
        return changed


class PassViolation(PassError):
    """A pass violates its contract; the message names the pass and the node."""
