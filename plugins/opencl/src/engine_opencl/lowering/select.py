"""Lowers TopK, which selects the largest or smallest elements along one axis."""

from __future__ import annotations

from typing import Final

from engine.ir import Output
from engine.lowering import Refusal, check_constant
from engine.ops.select import TopKSpec
from engine_opencl.elements import C_BYTES, c_type
from engine_opencl.lowering.arg_reduce import comparable
from engine_opencl.lowering.elementwise import NUMBERS
from engine_opencl.lowering.registry import OpLowering, check_types, lowers
from engine_opencl.lowering.rows import power_above, power_within
from engine_opencl.plan import Buffer
from engine_opencl.plan_builder import LaunchPlanBuilder
from engine_opencl.source import kernel_source

_SHORT: Final = 128
_SHORT_ON_CPU: Final = 512
"""Maximum row length for which comparing each element with all others is faster than sorting."""
_TILE: Final = 2048
"""Maximum number of elements that a group sorts: more would limit the groups that share local memory."""


@lowers("TopK", spec=TopKSpec)
class TopKLowering(OpLowering[TopKSpec]):
    """Short rows by the rank of each element; longer rows by sorting tiles, then sorting or merging their results."""

    values = (1,)

    def check(self, spec: TopKSpec) -> Refusal | None:
        return check_types((spec.data,), NUMBERS) or check_constant(spec.node, *self.values)

    def lower(self, spec: TopKSpec, b: LaunchPlanBuilder) -> None:
        x = spec.data
        outer, length, inner = spec.at(b.shape(x))
        most = b.shape(spec.output())[spec.axis]
        given, results = b.input(x), [b.output(output) for output in spec.node.outputs]
        if 0 in (outer, inner, most):
            return
        kinds = {"INNER": inner, "K": most, "LARGEST": int(spec.largest)}
        if length <= (_SHORT_ON_CPU if b.facts.kind == "cpu" else _SHORT):
            source = comparable(x) + kernel_source("top_k", **kinds, LENGTH=length, RANK=1, LAST=1)
            items = (inner, length, outer) if inner > 1 else (length, 1, outer)
            b.launch(source, "top_k", [given, *results], items)
        else:
            _Sorting(x, b, kinds, outer * inner, most).launch(given, length, results)


class _Sorting:
    """The launches that sort rows down to their first elements."""

    def __init__(self, x: Output, b: LaunchPlanBuilder, kinds: dict[str, int], count: int, most: int) -> None:
        self._b, self._kinds, self._count, self._most = b, kinds, count, most
        self._prefix = comparable(x)
        self._bytes = max(C_BYTES[c_type(x.element_type)], 4)
        self._entry_bytes = 2 * self._bytes
        """The bytes of local memory for a value and its index, aligned to the size of the value."""

    def launch(self, x: Buffer, length: int, results: list[Buffer]) -> None:
        """Sort tiles; while rows have several, sort the remaining elements, or merge if most remain."""
        room = self._b.facts.local_bytes // 2 // self._entry_bytes
        tile = min(_TILE, power_above(length), power_within(room))
        run, runs = min(self._most, tile), -(-length // tile)
        given = self._sort([x], length, tile, run, results, is_first=True)
        while runs > 1:
            if 2 * run <= tile:
                given = self._sort(given, runs * run, tile, run, results)
                runs = -(-runs * run // tile)
            else:
                given = self._merge(given, runs, run, results)
                runs, run = -(-runs // 2), min(2 * run, self._most)

    def _sort(
        self, given: list[Buffer], length: int, tile: int, run: int, results: list[Buffer], *, is_first: bool = False
    ) -> list[Buffer]:
        tiles = -(-length // tile)
        made = results if tiles == 1 else self._passed_on(tiles * run)
        group = min(256, power_within(self._b.facts.max_work_group), tile // 2)
        source = self._prefix + kernel_source(
            "top_k", **self._kinds, SORT=1, FIRST=int(is_first), LAST=int(tiles == 1), COUNT=length,
            TILE=tile, TILES=tiles, RUN=run, GROUP=group,
        )  # fmt: skip
        size = (self._count * tiles * group,)
        self._b.launch(source, "sort_tiles", [*given, *made], size, (group,), tile * self._entry_bytes)
        return made

    def _merge(self, given: list[Buffer], runs: int, run: int, results: list[Buffer]) -> list[Buffer]:
        merged = min(2 * run, self._most)
        made = results if runs == 2 else self._passed_on(-(-runs // 2) * merged)
        source = self._prefix + kernel_source(
            "top_k", **self._kinds, MERGE=1, LAST=int(runs == 2), RUN=run, RUNS=runs, MERGED=merged
        )
        self._b.launch(source, "merge_runs", [*given, *made], (self._count * runs * run,))
        return made

    def _passed_on(self, length: int) -> list[Buffer]:
        """Memory for values and indices of all rows between two launches."""
        return [self._b.temporary(self._count * length * size) for size in (self._bytes, 4)]
