"""Programs in blobs: the calls that build their plans, so that an import needs neither the graph nor a compiler.

The section is JSON. Plans are built from it with all checks of the native core, as from a graph: it is data, and may
be forged. Arrays are parts of other sections, of packed weights, of the graph's weights, or of `DATA`.
"""

from __future__ import annotations

import json
import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeAlias
from zlib import crc32

import numpy as np

from engine.errors import BlobFormatError, ModelError, PlanError, UnsupportedError
from engine.ir import ElementType, TensorType
from engine.limits import check_planned
from engine.native import codes, empty_aligned, left_out_kernels
from engine.plugin_api import BlobReader, NodeCounts, Port
from engine_cpu.program import PlacedSegment, Program
from engine_cpu.recording import BufferCall, PlanCalls, StepCall, build_plan
from engine_cpu.segments.native import NativeSegment
from engine_cpu.segments.segment import Array, PlanForm, Segment

if TYPE_CHECKING:
    from engine.plugin_api import BlobWriter

SECTION: Final = "program"
DATA: Final = "program/data"
"""The arrays of plans that no other section has."""
WHY_NOT: Final = "program/none"
"""The section that states why a blob has no program."""
FORMAT: Final = f"3-{crc32(' '.join(codes('Opcode')).encode()):08x}"
"""Increment it whenever the meaning of a kernel's attributes, or of this section, changes. Programs of
`elementwise` have the numbers of opcodes, so it depends on their order."""

_ALIGNMENT: Final = 64
_EXTENSION: Final = "extension"
"""The kernel whose calls name an object of this process."""
_SIZED: Final = frozenset({"input", "output", "buffer"})
"""The calls with a size and an alignment. A state is memory of a variable in place, which only families have."""

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


def write_program(writer: BlobWriter, program: Program, counts: NodeCounts) -> None:
    """Add the sections of a program, after the sections of the weights."""
    arrays = _Arrays(writer)
    described = {
        "format": FORMAT,
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
        self._arrays: dict[tuple[str, int, int], Array] = {}
        try:
            read = json.loads(bytes(blob.section(SECTION)))
            if read["format"] != FORMAT:
                raise ValueError(f"its format is {read['format']!r:.20}, expected {FORMAT}")
            numbers = read["nodes"]
            if len(numbers) != 4 or not all(type(number) is int and number >= 0 for number in numbers):
                raise ValueError(f"wrong numbers of nodes: {numbers!r:.80}")
            self.counts = NodeCounts(*numbers)
            self.rows = tuple((_text(family), _text(isa)) for family, isa in read["rows"])
            """The kernels of its plans: their families, and the instruction sets."""
            self._read = read
        except _DAMAGES as e:
            raise _damaged(e) from e

    def program(self, inputs: Sequence[Port], outputs: Sequence[Port], isa: str, threads: int, streams: int) -> Program:
        """Build its plans. `inputs` and `outputs` are the network's; the program has to fit them.

        Raises `OutOfMemoryError` for a value that is larger than the limit.
        Raises `UnsupportedError` if this build of the native core leaves out kernels that they need. Otherwise, plans
        would be built from other kernels, which may read weights that are packed in another way.
        """
        left_out = left_out_kernels()
        if missing := [f"{family} for {isa}" for family, isa in self.rows if isa in left_out.get(family, ())]:
            raise UnsupportedError(
                f"{self._blob.where} needs kernels that this build of the engine leaves out: {', '.join(missing)}; "
                "install the complete engine-runtime, or one that `tools/wheels --for` has also made for this model"
            )
        try:
            return self._program([*map(_form_of, inputs)], [*map(_form_of, outputs)], isa, threads, streams)
        except _DAMAGES as e:
            raise _damaged(e) from e

    def _program(self, inputs: list[Form], outputs: list[Form], isa: str, threads: int, streams: int) -> Program:
        read = self._read
        if read["inputs"] != len(inputs):
            raise ValueError(f"it has {read['inputs']!r:.20} inputs, the network {len(inputs)}")
        forms: dict[int, Form] = dict(enumerate(inputs))
        constants: dict[int, Array] = {}
        for slot, name, shape, section, offset in read["constants"]:
            forms[_new(slot, forms)] = dtype, dims = _form(name, shape)
            constants[slot] = self._array(section, offset, math.prod(dims) * dtype.itemsize).view(dtype).reshape(dims)
        segments = []
        for each in read["segments"]:
            form = self._plan_form(each, isa)
            reads, writes = tuple(each["reads"]), tuple(each["writes"])
            if [forms[slot] for slot in reads] != list(form.inputs):
                raise ValueError("a plan reads values of other types or shapes")
            forms.update((_new(slot, forms), made) for slot, made in zip(writes, form.outputs, strict=True))
            segments.append(PlacedSegment(NativeSegment(form, threads, streams), reads, writes))
        if [forms[slot] for slot in read["outputs"]] != outputs:
            raise ValueError("its outputs have other types or shapes than the network's")
        sizes = {slot: math.prod(shape) * dtype.itemsize for slot, (dtype, shape) in forms.items()}
        return Program(len(inputs), read["outputs"], constants, segments, sizes)

    def _plan_form(self, read: Mapping[str, Any], isa: str) -> PlanForm:
        inputs, outputs = (tuple(_form(*form) for form in read[kind]) for kind in ("inputs", "outputs"))
        plan = build_plan(self._calls(read["calls"]), isa)
        sizes = [math.prod(shape) * dtype.itemsize for dtype, shape in (*inputs, *outputs)]
        if sizes != [*plan.inputs, *plan.outputs]:
            raise ValueError("the sizes of a plan's inputs and outputs do not match their types and shapes")
        nodes = tuple((_text(name), _text(op_type)) for name, op_type in read["nodes"])
        if len(nodes) != len(plan.steps):
            raise ValueError(f"a plan has {len(plan.steps)} steps, and names for {len(nodes)}")
        name, nbytes = read["largest"]
        if type(nbytes) is not int or nbytes < 0:
            raise ValueError(f"a value has {nbytes!r:.20} bytes")
        check_planned(nbytes, _text(name), self._limit)
        return PlanForm(plan, inputs, outputs, nodes, name, nbytes)

    def _calls(self, read: Sequence[Sequence[Any]]) -> PlanCalls:
        calls: list[BufferCall | StepCall] = []
        for kind, *rest in read:
            if kind == "step":
                kernel, inputs, outputs, numbers, name = rest
                if kernel == _EXTENSION:
                    raise ValueError("a step calls a kernel of an extension")
                calls.append(StepCall(kernel, tuple(inputs), tuple(outputs), dict(numbers), name))
            elif kind == "constant":
                section, offset, nbytes = rest
                calls.append(BufferCall(kind, nbytes, array=self._array(section, offset, nbytes)))
            elif kind == "view":
                of, offset, nbytes = rest
                calls.append(BufferCall(kind, nbytes, of=of, offset=offset))
            elif kind in _SIZED:
                nbytes, alignment = rest
                calls.append(BufferCall(kind, nbytes, alignment))
            else:
                raise ValueError(f"a plan has no {kind!r:.20}")
        return calls

    def _array(self, section: str, offset: int, nbytes: int) -> Array:
        """A part of a section, aligned for kernels. Parts are made once: plans share them."""
        key = section, offset, nbytes
        if key not in self._arrays:
            if any(type(number) is not int or number < 0 for number in (offset, nbytes)):
                raise ValueError(f"an array is at {offset!r:.20} and has {nbytes!r:.20} bytes")
            content = self._blob.section(_text(section)) if nbytes else memoryview(b"")
            if nbytes and offset + nbytes > len(content):
                raise ValueError(f"an array extends beyond section {section!r:.40}")
            array = np.frombuffer(content[offset : offset + nbytes], np.uint8)
            if array.ctypes.data % _ALIGNMENT:
                array, unaligned = empty_aligned(nbytes), array
                array[...] = unaligned
            self._arrays[key] = array
        return self._arrays[key]


_DAMAGES: Final = (
    *(ValueError, KeyError, TypeError, AttributeError, IndexError, OverflowError, RecursionError),
    *(PlanError, ModelError),
)


def _damaged(error: Exception) -> BlobFormatError:
    return BlobFormatError(
        f"section {SECTION} of the blob is damaged: {error}; compile the model again and export the network"
    )


def _form_of(port: Port) -> Form:
    if not isinstance(port.type, TensorType) or not port.type.shape.is_static:
        raise ValueError(f"`{port.name}` is {port.type}, not a tensor of known shape")
    return _checked(port.type.element_type, port.type.shape.get_shape())


def _form(name: str, shape: Sequence[int]) -> Form:
    if any(type(length) is not int or length < 0 for length in shape):
        raise ValueError(f"a shape is {shape!r:.80}")
    return _checked(ElementType.parse(name), shape)


def _checked(element_type: ElementType, shape: Sequence[int]) -> Form:
    if element_type.numpy.hasobject:
        raise ValueError(f"a plan reads or writes {element_type}")
    return element_type.numpy, tuple(shape)


def _new(slot: int, known: Mapping[int, Form]) -> int:
    """A slot that comes next: slots are numbered in order, so that none is written twice."""
    if type(slot) is not int or slot != len(known):
        raise ValueError(f"value {slot!r:.20} where {len(known)} was expected")
    return slot


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{value!r:.40} is not a text")
    return value
