"""A device's answer to a query: how it runs each operation, and why not natively."""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping
from dataclasses import field

from engine.errors import PluginContractError, UnsupportedError
from engine.placement.report import PlacementReport
from engine.startup import dataclass


class SupportLevel(enum.Enum):
    """How a device runs a node."""

    NATIVE = "native"
    REFERENCE = "reference"
    """On the host's reference evaluator: correct, but slow."""
    REFUSED = "refused"


class RefusalCause(enum.StrEnum):
    """Why a device does not run a node, for programs: a limitation has the same cause on every device."""

    OP = "op"
    """The device has no kernel for the operator, or none that computes all outputs that are read."""
    ELEMENT_TYPE = "element type"
    RANK = "rank"
    """The number of dimensions of a value is not supported."""
    SHAPE = "shape"
    """The dimensions of a value are not supported."""
    ATTRIBUTE = "attribute"
    DYNAMIC_SHAPE = "dynamic shape"
    """A rank or a length is known only during an inference."""
    CONSTANT = "constant"
    """An input is computed during an inference and must be a constant."""
    MEMORY = "memory"
    """The node does not fit into the MEMORY_BUDGET of the device."""
    PLACEMENT = "placement"
    """A device that runs on others found no way to place the node."""


@dataclass(frozen=True, slots=True)
class Support:
    """How a device runs one node, and why not natively.

    `cause` is for programs; `reason` is for people: what was found, what is supported, and how to change the model.

    `precision` names the element type that the device computes the node in, such as "f32", or "u8" for products of
    8-bit integers; it is empty if the device does not say. `precision_reason` is not empty if the node's operands are
    quantized, but the device computes it on their real values: why.
    """

    level: SupportLevel
    cause: RefusalCause | None = None
    reason: str = ""
    precision: str = ""
    precision_reason: str = ""

    def __post_init__(self) -> None:
        is_refused = self.level is SupportLevel.REFUSED
        if not isinstance(self.cause, RefusalCause) and (is_refused or self.cause is not None):
            causes = ", ".join(f"RefusalCause.{cause.name}" for cause in RefusalCause)
            raise PluginContractError(
                f"a node is {self.level.value} without a cause: got {self.cause!r}; expected one of {causes}"
            )

    @classmethod
    def native(cls, precision: str = "", precision_reason: str = "") -> Support:
        """The device runs the node itself."""
        return cls(SupportLevel.NATIVE, precision=precision, precision_reason=precision_reason)

    @classmethod
    def reference(cls, cause: RefusalCause | None = None, reason: str = "") -> Support:
        """The node runs on the reference evaluator."""
        return cls(SupportLevel.REFERENCE, cause, reason)

    @classmethod
    def refused(cls, cause: RefusalCause, reason: str) -> Support:
        """The device does not run the node."""
        return cls(SupportLevel.REFUSED, cause, reason)


@dataclass(frozen=True, slots=True)
class QueryResult:
    """A device's answer for every operation of a model, by friendly name.

    Parameters, constants and results may be omitted.

    `atoms` are sets of nodes that the device supports only together: a partitioner must not separate them.
    `placement` is set by a device that runs on others: how it would divide the model among them.
    """

    nodes: Mapping[str, Support]
    atoms: tuple[frozenset[str], ...] = field(default=())
    placement: PlacementReport | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.nodes, Mapping) or not all(isinstance(s, Support) for s in self.nodes.values()):
            raise PluginContractError(f"a QueryResult must map friendly names to Support; got {self.nodes!r:.120}")
        if not isinstance(self.atoms, tuple) or not all(isinstance(atom, frozenset) for atom in self.atoms):
            raise PluginContractError(f"a QueryResult's atoms must be a tuple of frozensets; got {self.atoms!r:.120}")
        if not isinstance(self.placement, (PlacementReport, type(None))):
            raise PluginContractError(f"a QueryResult's placement must be PlacementReport; got {self.placement!r:.120}")

    def at(self, level: SupportLevel) -> dict[str, Support]:
        """Return the nodes of one level."""
        return {name: support for name, support in self.nodes.items() if support.level is level}

    @property
    def is_supported(self) -> bool:
        """Whether the device runs every node."""
        return not self.at(SupportLevel.REFUSED)

    def require_supported(self, device: str) -> None:
        """Raise `UnsupportedError` naming the first refused node, with its reason, for `Plugin.compile_model`."""
        for name, support in self.nodes.items():
            if support.level is SupportLevel.REFUSED:
                raise UnsupportedError(f"{device} cannot run `{name}` ({support.cause}): {support.reason}")

    def __getitem__(self, friendly_name: str) -> Support:
        return self.nodes[friendly_name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.nodes)

    def __len__(self) -> int:
        return len(self.nodes)
