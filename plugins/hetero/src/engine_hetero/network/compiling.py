"""Compiles all parts on their devices concurrently, and reports errors with part and device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any

from engine.errors import MemoryBudgetError, with_message
from engine.plugin_api import (
    CoreHandle,
    DeviceNotFoundError,
    EngineError,
    ExecutableNetwork,
    RemoteContext,
    Support,
    SupportLevel,
    UnsupportedError,
)
from engine.startup import dataclass
from engine.threads import in_threads
from engine_hetero.device_list import DeviceList
from engine_hetero.parts.splitting import PartModel

_MAX_THREADS = 16
_MAX_NAMED = 5
_SMALL_NODES = 16
"""The maximum number of nodes, inputs and outputs included, of a part that is compiled in a batch with others."""


@dataclass(frozen=True, slots=True)
class Refused:
    """A part whose nodes its device claimed but which it refused to compile."""

    number: int
    part: PartModel
    error: UnsupportedError


@dataclass(frozen=True, slots=True)
class TooLarge:
    """A part that does not fit into the memory budget of its device."""

    number: int
    part: PartModel
    error: MemoryBudgetError


@dataclass(frozen=True, slots=True)
class Compiler:
    """Compiles the parts of one model through the core."""

    core: CoreHandle
    devices: DeviceList
    _asked_again: set[str] = field(default_factory=set)

    def compile(
        self, parts: Sequence[PartModel], contexts: Mapping[str, RemoteContext], configs: Sequence[Mapping[str, Any]]
    ) -> tuple[list[ExecutableNetwork | TooLarge], list[Refused]]:
        """The networks of the parts, each for the context of its device, if any, and the parts that were refused.

        A part that does not fit into the budget of its device is returned as `TooLarge`.

        Args:
            configs: the configuration of each part.

        Raises `DeviceNotFoundError` if a device is no longer available, and if one fails its error, of the same class,
        each naming part, device and cause.
        """
        if not parts:
            return [], []
        batches = _batches(parts)

        def compile_batch(batch: Sequence[int]) -> list[ExecutableNetwork | TooLarge | Refused]:
            return [self._compile(number, parts[number], configs[number], contexts) for number in batch]

        compiled = in_threads(compile_batch, batches, _MAX_THREADS, "HETERO:compile")
        results = [result for results in compiled for result in results]
        order = [number for batch in batches for number in batch]
        by_number = dict(zip(order, results, strict=True))
        networks = [by_number[number] for number in range(len(parts))]
        refused = [each for each in networks if isinstance(each, Refused)]
        return [each for each in networks if not isinstance(each, Refused)], refused

    def _compile(
        self, number: int, part: PartModel, config: Mapping[str, Any], contexts: Mapping[str, RemoteContext]
    ) -> ExecutableNetwork | TooLarge | Refused:
        try:
            return self.core.compile_model(part.model, contexts.get(part.device, part.device), config)
        except UnsupportedError as e:
            return Refused(number, part, e)
        except MemoryBudgetError as e:
            return TooLarge(number, part, e)
        except DeviceNotFoundError as e:
            raise DeviceNotFoundError(
                f"{described(number, part)}: the device answered the query but is no longer available: {e}"
            ) from e
        except EngineError as e:
            raise with_message(e, f"{described(number, part)} cannot be compiled: {e}") from e

    def ask_again(self, refused: Sequence[Refused]) -> list[tuple[str, Mapping[str, Support]]]:
        """For each refused part, the nodes that its device, queried with only this part, refuses, with the reasons.

        Raises `UnsupportedError` if a device still claims all of them, or was queried again before.
        """
        found: list[tuple[str, Mapping[str, Support]]] = []
        for each in refused:
            part = each.part
            if part.device in self._asked_again:
                raise _contradiction(each)
            answer = self.core.query_model(part.model, part.device, self.devices.configs[part.device])
            if not (nodes := answer.at(SupportLevel.REFUSED)):
                raise _contradiction(each)
            found.append((part.device, nodes))
        self._asked_again.update(each.part.device for each in refused)
        return found


def _contradiction(refused: Refused) -> UnsupportedError:
    """The error for a device that claims nodes but refuses their subgraph."""
    error = UnsupportedError(
        f"{described(refused.number, refused.part)}: the device claims every node of the subgraph, even when "
        f"queried again, but refuses to compile it: {refused.error}; put the node that this error names on another "
        'device (rt_info["affinity"] or AFFINITY_FILE), and report the error to the maintainer of the plugin'
    )
    error.__cause__ = refused.error
    return error


def _batches(parts: Sequence[PartModel]) -> list[list[int]]:
    """The numbers of the parts that are compiled one after the other; batches are compiled concurrently.

    If there are many parts, the small ones of a device form a batch: compiling them is mostly Python's work, for which
    many threads only wait for each other.
    """
    if len(parts) <= _MAX_THREADS:
        return [[number] for number in range(len(parts))]
    small: dict[str, list[int]] = {}
    large = []
    for number, part in enumerate(parts):
        if part.model.node_count > _SMALL_NODES:
            large.append([number])
        else:
            small.setdefault(part.device, []).append(number)
    return large + list(small.values())


def described(number: int, part: PartModel) -> str:
    """The name of a part in messages."""
    names = [
        n.friendly_name for n in part.model.ordered_nodes() if n.op_type not in ("Parameter", "Constant", "Result")
    ]
    more = f", and {len(names) - _MAX_NAMED} more" if len(names) > _MAX_NAMED else ""
    return f"subgraph {number} on {part.device} ({', '.join(f'`{name}`' for name in names[:_MAX_NAMED])}{more})"
