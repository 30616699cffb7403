"""Programs in blobs: the calls that build their plans, so that an import needs neither the graph nor a compiler.

The section is JSON, which the native core reads, in this process as in the C runtime. Plans are built from it with all
checks of the native core, as from a graph: it is data, and may be forged. Arrays are parts of other sections, of packed
weights, of the graph's weights, or of `DATA`.
"""

from __future__ import annotations

import json
import math
from bisect import bisect_right
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np

from engine.errors import BlobFormatError, ModelError, PlanError, UnsupportedError
from engine.ir import ElementType, TensorType
from engine.limits import check_planned
from engine.native import StoredProgram as Stored
from engine.native import program_format
from engine.plugin_api import BlobReader, NodeCounts, Port
from engine_cpu.program import PlacedSegment, Program
from engine_cpu.recording import BufferCall, StepCall
from engine_cpu.segments.native import NativeSegment
from engine_cpu.segments.segment import Array, PlanForm, Segment

if TYPE_CHECKING:
    from engine.native import StoredForm, StoredSegment
    from engine.plugin_api import BlobWriter

SECTION: Final = "program"
DATA: Final = "program/data"
"""The arrays of plans that no other section has."""
WHY_NOT: Final = "program/none"
"""The section that states why a blob has no program."""
_ALIGNMENT: Final = 64
_EXTENSION: Final = "extension"
"""The kernel whose calls name an object of this process."""

Form: TypeAlias = "tuple[np.dtype[Any], tuple[int, ...]]"


def why_not_stored(program: Program, ports: Sequence[Port]) -> str:
    """Why a blob cannot have a program, as a clause; "" if it can. `ports` are its inputs and outputs."""
    for each in program.segments:
        if (why := _why_not_segment(each.segment)) != "":
            return why
    for port in ports:
        if not isinstance(port.type, TensorType) or port.type.element_type.numpy.hasobject:
            return f"`{port.name}` is {port.type}"
        if not port.type.shape.is_static:
            return f"the shape of `{port.name}` is open: {port.type}"
    return ""


def _why_not_segment(segment: Segment) -> str:
    if segment.form is None or segment.calls is None:
        return segment.why_not_stored
    for call in segment.calls:
        if isinstance(call, StepCall) and call.kernel == _EXTENSION:
            return f"{call.name} is an operator of an extension"
    if any(dtype.hasobject for dtype, _ in (*segment.form.inputs, *segment.form.outputs)):
        return "a plan reads or writes strings"
    return ""


def is_of_this_format(section: memoryview) -> bool:
    """Whether a program, which begins with its format, has the one that this engine reads; damage does not matter."""
    start = f'{{"format":"{program_format()}",'.encode()
    return bytes(section[: len(start)]) == start or not bytes(section[:12]).startswith(b'{"format":"')


def write_program(writer: BlobWriter, program: Program, counts: NodeCounts) -> None:
    """Add the sections of a program, after the sections of the weights."""
    arrays = _Arrays(writer)
    described = {
        "format": program_format(),
        "inputs": program.num_inputs,
        "outputs": list(program.outputs),
        "constants": [
            [slot, *_described((data.dtype, data.shape)), *arrays.place(data)]
            for slot, data in program.constants.items()
        ],
        "segments": [_segment(each.segment, each.reads, each.writes, arrays) for each in program.segments],
        "rows": sorted({row for plan in program.plans for row in plan.rows}),
        "nodes": [counts.nodes, counts.reference_nodes, counts.work, counts.reference_work],
    }
    writer.add_section(SECTION, json.dumps(described, separators=(",", ":")).encode())
    if arrays.chunks:
        writer.add_section(DATA, arrays.chunks)


def _segment(segment: Segment, reads: Sequence[int], writes: Sequence[int], arrays: _Arrays) -> dict[str, Any]:
    form = segment.form
    assert form is not None
    assert segment.calls is not None
    return {
        "reads": list(reads),
        "writes": list(writes),
        "inputs": [_described(each) for each in form.inputs],
        "outputs": [_described(each) for each in form.outputs],
        "nodes": form.step_nodes,
        "largest": [form.largest, form.largest_bytes],
        "calls": [_call(call, arrays) for call in segment.calls],
    }


def _call(call: BufferCall | StepCall, arrays: _Arrays) -> list[Any]:
    if isinstance(call, StepCall):
        numbers = {name: _plain(value) for name, value in call.numbers.items()}
        return ["step", call.kernel, [*call.inputs], [*call.outputs], numbers, call.name]
    if call.array is not None:
        return ["constant", *arrays.place(call.array), call.nbytes]
    if call.kind == "view":
        return ["view", call.of, call.offset, call.nbytes]
    return [call.kind, call.nbytes, call.alignment]


def _plain(value: Any) -> Any:
    """An attribute in the form of JSON, which distinguishes integers from other numbers."""
    if isinstance(value, (str, bool)):
        return value
    if isinstance(value, (int, np.integer)):
        return int(value)
    if isinstance(value, (float, np.floating)):
        return float(value)
    return [_plain(each) for each in value]


def _described(form: Form) -> tuple[str, list[int]]:
    dtype, shape = form
    return ElementType.from_numpy(dtype).name, [int(length) for length in shape]


class _Arrays:
    """Where a blob has the bytes of arrays: arrays of sections are found by their addresses, others are added."""

    def __init__(self, writer: BlobWriter) -> None:
        self.chunks: list[memoryview] = []
        self._size = 0
        self._added: dict[tuple[int, int], int] = {}
        self._kept: list[Array] = []
        """Arrays that were made here stay alive, so that no other one gets their addresses."""
        spans = []
        for name in writer.section_names:
            buffers = writer.section(name)
            if len(buffers) == 1 and len(buffers[0]):
                spans.append((_address(np.frombuffer(buffers[0], np.uint8)), len(buffers[0]), name))
        self._spans = sorted(spans)
        self._starts = [start for start, _, _ in self._spans]

    def place(self, array: Array) -> tuple[str, int]:
        """The section that has an array's bytes, and where they begin in it."""
        address, nbytes = _address(array), array.nbytes
        index = bisect_right(self._starts, address) - 1
        if index >= 0:
            start, size, name = self._spans[index]
            if address + nbytes <= start + size:
                return name, address - start
        known = self._added.get((address, nbytes))
        if known is None:
            known = self._added[address, nbytes] = self._size
            self._kept.append(array)
            padding = -nbytes % _ALIGNMENT
            self.chunks += [np.ascontiguousarray(array).reshape(-1).view(np.uint8).data]
            self.chunks += [memoryview(bytes(padding))] if padding else []
            self._size += nbytes + padding
        return DATA, known


def _address(array: Array) -> int:
    return int(array.ctypes.data)


class StoredProgram:
    """A program as a blob has it, before its plans are built.

    `limit`: the largest value in bytes; 0 is the memory of the machine.

    Raises `BlobFormatError` for anything that `write_program` has not written.
    """

    def __init__(self, blob: BlobReader, limit: int = 0) -> None:
        self._blob, self._limit = blob, limit
        try:
            self._stored = Stored(blob.section(SECTION))
        except PlanError as e:
            raise _damaged(e) from e
        self.counts = NodeCounts(*self._stored.counts)

    def program(self, inputs: Sequence[Port], outputs: Sequence[Port], isa: str, threads: int, streams: int) -> Program:
        """Build its plans. `inputs` and `outputs` are the network's; the program has to fit them.

        Raises `OutOfMemoryError` for a value that is larger than the limit.
        Raises `UnsupportedError` if this build of the native core leaves out kernels that they need. Otherwise, plans
        would be built from other kernels, which may read weights that are packed in another way.
        """
        if missing := self._stored.missing_rows():
            raise UnsupportedError(
                f"{self._blob.where} needs kernels that this build of the engine leaves out: {', '.join(missing)}; "
                "install the complete engine-runtime, or one that `tools/wheels --for` has also made for this model"
            )
        try:
            built = self._stored.build([*map(_form_of, inputs)], [*map(_form_of, outputs)], isa, self._blob.section)
            constants = {slot: _array(data, form) for slot, form, data in built.constants}
            segments = [
                PlacedSegment(NativeSegment(self._plan_form(each), threads, streams), each.reads, each.writes)
                for each in built.segments
            ]
        except (ValueError, PlanError, ModelError) as e:
            raise _damaged(e) from e
        forms = {slot: _form_of(port) for slot, port in enumerate(inputs)}
        forms |= {slot: form for slot, form, _ in built.constants}
        for each in built.segments:
            forms |= dict(zip(each.writes, each.outputs, strict=True))
        sizes = {slot: _bytes_of(form) for slot, form in forms.items()}
        return Program(len(inputs), built.outputs, constants, segments, sizes)

    def _plan_form(self, read: StoredSegment) -> PlanForm:
        check_planned(read.largest_bytes, read.largest, self._limit)
        inputs, outputs = (tuple(map(_numpy_form, forms)) for forms in (read.inputs, read.outputs))
        return PlanForm(read.plan, inputs, outputs, read.step_nodes, read.largest, read.largest_bytes)


def _damaged(error: Exception) -> BlobFormatError:
    return BlobFormatError(
        f"section {SECTION} of the blob is damaged: {error}; compile the model again and export the network"
    )


def _form_of(port: Port) -> StoredForm:
    if not isinstance(port.type, TensorType) or not port.type.shape.is_static:
        raise ValueError(f"`{port.name}` is {port.type}, not a tensor of known shape")
    return port.type.element_type.name, port.type.shape.get_shape()


def _numpy_form(form: StoredForm) -> Form:
    name, shape = form
    return ElementType.parse(name).numpy, tuple(shape)


def _bytes_of(form: StoredForm) -> int:
    dtype, shape = _numpy_form(form)
    return math.prod(shape) * dtype.itemsize


def _array(data: Array, form: StoredForm) -> Array:
    dtype, shape = _numpy_form(form)
    return data.view(dtype).reshape(shape)
