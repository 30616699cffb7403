"""The results and the profile of an inference."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from engine.errors import InputError
from engine.runtime.records import SUBGRAPH, NodeProfile, StageProfile, TransferProfile
from engine.startup import dataclass

_FIRST: Final = 4
"""How many elements of an output a notebook shows."""


class InferResult(Mapping[str, Any]):
    """The outputs of one inference, by name (`result["y"]`) and by index (`result[0]`).

    What applications use first:

        result = network({"x": array})
        result["y"], result[0]                   # a numpy array
        for name, value in result.items(): ...
        (y,) = result.values()

    A mapping in output order: iterating gives names, `values()` the values. A tensor is a numpy array, a
    sequence a list, an absent optional None. Later inferences do not change it, except for tensors that the
    user has set as outputs.
    """

    __slots__ = ("_index", "_values")

    def __init__(self, index: Mapping[str | int, int], values: Sequence[Any]) -> None:
        self._index = index
        self._values = values

    def __getitem__(self, key: str | int) -> Any:
        try:
            return self._values[self._index[key]]
        except (KeyError, TypeError):
            listed = ", ".join(self)
            message = f"no output {key!r}; outputs: {listed} (or index 0 to {len(self) - 1})"
        raise UnknownOutputError(message)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        """The only output, for numpy: `np.asarray(result)`. Raises `InputError` if there are several outputs, and
        `ValueError` if a copy would be needed but `copy` is False, as numpy does."""
        if len(self) != 1:
            raise InputError(f"the result has {len(self)} outputs ({', '.join(self)}); select one: result[0]")
        return np.array(self._values[0], dtype, copy=copy)

    def __iter__(self) -> Iterator[str]:
        return (name for name in self._index if isinstance(name, str))

    def __len__(self) -> int:
        return len(self._values)

    def __contains__(self, key: object) -> bool:
        return key in self._index

    def _repr_html_(self) -> str:
        from engine.drawing.html import html_table

        return html_table(
            "Result", ("Output", "Type", "Values"), [(name, *_shown(value)) for name, value in self.items()]
        )

    def __repr__(self) -> str:
        shown = (f"{name}: {getattr(value, 'shape', type(value).__name__)}" for name, value in self.items())
        return f"InferResult({', '.join(shown)})"


def _shown(value: Any) -> tuple[str, str]:
    """The type of a value, and the beginning of its elements."""
    if not isinstance(value, np.ndarray):
        return type(value).__name__, f"{value!s:.80}"
    first = ", ".join(f"{each:.6g}" if isinstance(each, float) else str(each) for each in value.flat[:_FIRST].tolist())
    return f"{value.dtype}{list(value.shape)}", f"{first:.80}{', ..' if value.size > _FIRST else ''}"


class UnknownOutputError(InputError, KeyError):
    """The network does not have this output."""

    def __str__(self) -> str:
        return Exception.__str__(self)


@dataclass(frozen=True, slots=True)
class ProfilingInfo:
    """The profile of a request's last inference; empty unless PERF_COUNT is set.

        print(request.profiling_info.table())          # stages, and nodes by their time
        request.profiling_info.trace("trace.json")     # for https://ui.perfetto.dev

    `begun_ns` is when the inference was started (`time.perf_counter_ns`); 0 without a profile. Its first stage may have
    waited for its executor.
    """

    request_id: int
    stages: tuple[StageProfile, ...]
    nodes: tuple[NodeProfile, ...]
    transfers: tuple[TransferProfile, ...] = ()
    begun_ns: int = 0

    @property
    def duration_ns(self) -> int:
        """The time from the start of the inference to the end of its last stage."""
        return max((stage.end_ns for stage in self.stages), default=self.begun_ns) - self.begun_ns

    def table(self, most: int | None = None) -> str:
        """Stages, and nodes by their time, as a text of at most 80 columns; at most `most` nodes."""
        from engine.runtime.profile_table import profile_table

        return profile_table([self], most)

    def trace(self, path: str | os.PathLike[str], network: str = "") -> None:
        """Write a trace that https://ui.perfetto.dev and chrome://tracing show. Raises `OSError`; see `write_trace`."""
        from engine.runtime.trace import write_trace

        write_trace([self], path, network)

    @property
    def node_nanoseconds(self) -> dict[str, int]:
        """How long each node ran, by friendly name: the sum of its records. Records of whole subgraphs are left out."""
        found: dict[str, int] = {}
        for record in self.nodes:
            if record.op_type != SUBGRAPH:
                found[record.node_name] = found.get(record.node_name, 0) + record.duration_ns
        return found
