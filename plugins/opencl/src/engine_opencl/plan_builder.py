"""`LaunchPlanBuilder`: the interface by which lowerings build the plan of a graph."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from engine.errors import OutOfMemoryError
from engine.ir import Constant, Node, Output, Parameter
from engine.limits import check_planned, current_limits, shown_bytes
from engine.lowering import Decisions
from engine.native import lay_out_arena
from engine.ops.spec import OperatorSpec
from engine_opencl.devices.device import DeviceFacts
from engine_opencl.elements import stored_type
from engine_opencl.expressions import Expression
from engine_opencl.plan import WEIGHT, Argument, Buffer, Fault, Given, Launch, LaunchPlan, byte_size
from engine_opencl.source import with_conversions
from engine_opencl.tuning.site import Site

_C = TypeVar("_C")


class LaunchPlanBuilder:
    """The interface for lowerings: values become buffers, operations become launches.

    `decisions` are those for the nodes of the graph. `choices`: the texts of candidates by site; sites that are not
    there get their defaults. `counted`: see `bound_lengths`.
    """

    def __init__(
        self,
        facts: DeviceFacts,
        decisions: Decisions[Any],
        choices: Mapping[str, str] | None = None,
        counted: Mapping[Output, tuple[Output, int]] | None = None,
    ) -> None:
        self.facts = facts
        self.decisions = decisions
        self.choices = choices or {}
        self.sites: dict[str, Site[LaunchPlanBuilder]] = {}
        """The sites with several candidates, by key."""
        self.uses: Counter[str] = Counter()
        """How often each site was met."""
        self._is_apart = False
        self.launches: list[Launch] = []
        self.weights: dict[Hashable, Callable[[], NDArray[Any]]] = {}
        self._weight_buffers: dict[Hashable, Buffer] = {}
        self._values: dict[Output, Buffer] = {}
        self._buffers: list[Buffer] = []
        self._node: Node | None = None
        self._limit = current_limits().tensor_bytes
        self._created = 0
        self._largest: tuple[int, str] = 0, ""
        """The bytes and the node of the largest value."""
        self._faults: list[Fault] = []
        self._fault_buffer = Buffer(0)
        self._counted: dict[Output, tuple[tuple[int, ...], Buffer]] = {}
        """The largest shape of each value whose length a kernel counts, and where it writes that length."""
        self.counted = counted or {}
        self.deferred: dict[Output, Expression] = {}
        """Values that are computed where they are read, by the elementwise node that alone reads them."""

    # -- values -------------------------------------------------------------------------------------------

    def shape(self, value: Output) -> tuple[int, ...]:
        """The lengths of a value, all of which are known here."""
        return value.shape.get_shape()

    def constant(self, value: Output) -> NDArray[Any] | None:
        """The data of a constant; None for any other value."""
        return value.node.data if isinstance(value.node, Constant) else None

    def values(self, spec: OperatorSpec, *indices: int) -> list[NDArray[Any] | None]:
        """The data of these inputs, which are constants; None for each that is omitted."""
        inputs = [spec.input(index) for index in indices]
        return [None if value is None else self.constant(value) for value in inputs]

    def input(self, value: Output) -> Buffer:
        """The buffer of a value. A constant is uploaded once for all inferences."""
        buffer = self._values.get(value)
        if buffer is None:
            assert isinstance(value.node, Constant), value
            node = value.node
            name = node.rt_info.get(WEIGHT, node)
            buffer = self.weight(name, lambda: np.ascontiguousarray(node.data, stored_type(value)))
            self._values[value] = buffer
        return buffer

    def output(self, value: Output) -> Buffer:
        """New memory for a value. Raises the error of `checked_bytes`."""
        buffer = self.temporary(self.checked_bytes(value))
        self._values[value] = buffer
        return buffer

    def counted_output(self, value: Output, most: tuple[int, ...]) -> tuple[Buffer, Buffer]:
        """New memory for a value whose length along the first axis follows from data, and for that length, an int64.

        `most` is the largest shape that it can have; a kernel of this operation has to write the length, and if other
        operations read the value, all rows. Raises the error of `checked_bytes`.
        """
        nbytes = self._checked(math.prod(most) * stored_type(value).itemsize, value)
        buffer, count = self.temporary(nbytes), self.temporary(8)
        self._values[value], self._counted[value] = buffer, (most, count)
        return buffer, count

    def checked_bytes(self, value: Output) -> int:
        """The size of a value. Raises `OutOfMemoryError`, naming its node, if the device could not hold it."""
        return self._checked(byte_size(value), value)

    def _checked(self, nbytes: int, value: Output) -> int:
        if nbytes > self._largest[0]:
            self._largest = nbytes, str(value.node)
            check_planned(nbytes, value.node, 0 if isinstance(value.node, Parameter) else self._limit)
            self._check_device(nbytes, str(value.node))
        return nbytes

    def create(self, value: Output) -> None:
        """Count a value that the plan's builder computes. Raises `OutOfMemoryError` if all of them are too large."""
        self._created += self.checked_bytes(value)
        if self._created > (most := current_limits().folded_bytes):
            raise OutOfMemoryError(
                f"OPENCL: {value.node}: with its result, the values that are computed when the plan is built take "
                f"{shown_bytes(self._created)}, more than the {shown_bytes(most)} of MAX_FOLDED_BYTES; raise it, or "
                "place the node on another device with HETERO"
            )

    def _check_device(self, nbytes: int, what: str, *, is_divided: bool = False) -> None:
        """Raise `OutOfMemoryError` if the device could not hold this many bytes, in one buffer unless `is_divided`."""
        most = self.facts.memory if is_divided else min(self.facts.memory, self.facts.largest_buffer)
        if nbytes > most:
            raise OutOfMemoryError(
                f"OPENCL: {what}: takes {shown_bytes(nbytes)}; {self.facts.name} allows {shown_bytes(most)}; use "
                "smaller inputs, or place some nodes on another device with HETERO"
            )

    def alias(self, value: Output, source: Output) -> None:
        """Declare that a value has the bytes of another one."""
        self._values[value] = self.input(source)

    def temporary(self, nbytes: int) -> Buffer:
        """Memory for this operation, or until its last reader."""
        buffer = Buffer(max(nbytes, 1))
        self._buffers.append(buffer)
        return buffer

    def weight(self, name: Hashable, make: Callable[[], NDArray[Any]]) -> Buffer:
        """A buffer that is filled once for all inferences with the data that `make` returns; equal names share it."""
        if name not in self._weight_buffers:
            self._weight_buffers[name] = Buffer(0, weight=name)
            self.weights[name] = make
        return self._weight_buffers[name]

    def fault(self, *lengths: int, is_length: bool = False, is_signed: bool = True) -> tuple[Buffer, int]:
        """Where a kernel of this operation reports indices that are out of range for these dimensions, or lengths of
        sequences: its first number, which the numbers of the other dimensions follow. See `Fault`,
            `LaunchPlan.faults`."""
        assert self._node is not None
        first, node = len(self._faults), self._node
        name, op_type = node.friendly_name, node.op_type
        self._faults += [Fault(name, op_type, length, is_length, is_signed) for length in lengths]
        return self._fault_buffer, first

    # -- launches -----------------------------------------------------------------------------------------

    def begin(self, node: Node) -> None:
        """The launches that follow belong to `node`."""
        self._node = node

    def launch(
        self,
        source: str,
        kernel: str,
        arguments: Sequence[Given],
        global_size: Sequence[int],
        local_size: Sequence[int] = (),
        local_bytes: int = 0,
    ) -> None:
        """Run a kernel. Python integers are passed as int, floats as float. A range without items is left out.

        `local_bytes`: the local memory that its source declares, of a work group.
        """
        if 0 in global_size:
            return
        assert self._node is not None
        source = with_conversions(source)
        typed = tuple(_argument(each) for each in arguments)
        for each in typed:
            if isinstance(each, Buffer) and not self._is_apart:
                each.first = len(self.launches) if each.first < 0 else each.first
                each.last = len(self.launches)
        self.launches.append(
            Launch(
                source,
                kernel,
                typed,
                tuple(global_size),
                tuple(local_size),
                self._node.friendly_name,
                self._node.op_type,
                local_bytes=local_bytes,
            )
        )

    def choose(self, key: str, candidates: Sequence[_C], launch: Callable[[LaunchPlanBuilder, _C], None]) -> None:
        """Launch the candidate that was chosen for this computation, or otherwise the first; see `Site`.

        `launch(builder, candidate)` is also called to measure candidates, with another builder: all that it launches
        goes there. Its kernels may write buffers of an inference that they also read only where that does not change
        their work, and may take indices from weights alone: measuring runs them over arbitrary numbers.
        """
        assert self._node is not None
        key = f"{key} accurate" if self.facts.is_accurate else key
        site = self.sites.setdefault(key, Site(key, tuple(candidates), launch, self._node))
        self.uses[key] += 1
        launch(self, site.chosen(self.choices))

    def apart(self, site: Site[LaunchPlanBuilder], candidate: object) -> LaunchPlanBuilder:
        """A builder with the launches of a candidate alone, over the buffers of this one."""
        apart = LaunchPlanBuilder(self.facts, self.decisions, self.choices)
        apart._is_apart = True  # its launches do not change the lifetimes of this builder's buffers
        apart.weights = dict(self.weights)
        apart._weight_buffers, apart._values = dict(self._weight_buffers), dict(self._values)
        apart.begin(site.node)
        site.launch(apart, candidate)
        return apart

    def finish(self, inputs: Sequence[Output], outputs: Sequence[Output]) -> LaunchPlan:
        """The plan, with memory laid out so that buffers whose times do not overlap share it."""
        end = len(self.launches)
        for value in inputs:
            if value in self._values:
                self._values[value].first = -1
        read: list[Buffer | int | NDArray[Any]] = []
        for value in outputs:
            if isinstance(value.node, Constant):
                read.append(value.node.data)
            elif value in inputs:
                read.append(list(inputs).index(value))
            else:
                buffer = self._values[value]
                buffer.last = end
                read.append(buffer)
        for _, count in self._counted.values():
            count.last = end
        used = [b for b in self._buffers if b.last >= 0]
        spans = [(b.byte_size, self.facts.alignment, max(b.first, -1) + 1, b.last + 1) for b in used]
        offsets, total, _, _ = lay_out_arena(spans)
        # Values in the device's own memory have several buffers.
        is_divided = not self.facts.shares_memory
        self._check_device(total, f"{self._largest[1]}, with all other values of its plan", is_divided=is_divided)
        for buffer, offset in zip(used, offsets, strict=True):
            buffer.offset = offset
        given = tuple(b if (b := self._values.get(value)) and b.last >= 0 else None for value in inputs)
        sources = [self.counted.get(value, (value, 0)) for value in outputs]
        counted = [self._counted.get(source) for source, _ in sources]
        shapes = tuple(
            counted_here[0] if (counted_here := self._counted.get(value)) else self.shape(value) for value in outputs
        )
        faults = tuple(self._faults)
        return LaunchPlan(
            tuple(self.launches),
            given,
            tuple(read),
            shapes,
            tuple(each and each[1] for each in counted),
            tuple(axis for _, axis in sources),
            total,
            self.weights,
            faults,
            self._fault_buffer if faults else None,
        )


def _argument(value: Given) -> Argument:
    if isinstance(value, (Buffer, np.generic)):
        return value
    return np.int32(value) if isinstance(value, int) else np.float32(value)
