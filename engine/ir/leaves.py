"""The nodes at a model's boundary: `Parameter`, `Constant` and `Result`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from engine.errors import ModelError
from engine.ir.element_type import ElementType, boolean, f32, i64, string, undefined
from engine.ir.mapped import release_pages
from engine.ir.node import Node, Output, OutputLike
from engine.ir.shape import PartialShape, ShapeLike, as_shape
from engine.ir.types import TensorType, ValueType, merge_types

Array = NDArray[Any]


class Parameter(Node):
    """An input of a model: `Parameter(f32, [1, "N"], "x")`, or of any value type: `Parameter(SequenceType(...))`."""

    __slots__ = ()

    def __init__(
        self, value_type: ElementType | ValueType, shape: ShapeLike = None, friendly_name: str | None = None
    ) -> None:
        if isinstance(value_type, ElementType):
            value_type = TensorType(value_type, as_shape(shape))
        elif shape is not None or not isinstance(value_type, ValueType):
            raise ModelError(
                f"a parameter takes an element type (engine.ir.f32) and a shape, or a value type such as "
                f"SequenceType alone; got {value_type!r} and shape {shape!r}"
            )
        super().__init__("Parameter", types=[value_type], friendly_name=friendly_name)
        self._pinned = True

    @property
    def type(self) -> ValueType:
        """The type of the input. After assigning another one, `Model.validate` infers the others."""
        return self._types[0]

    @type.setter
    def type(self, value_type: ValueType) -> None:
        self._types = [value_type]

    def infer_types(self) -> bool:
        """Return False: a parameter's type is given, never inferred."""
        return False

    def clone_with_new_inputs(self, inputs: Iterable[OutputLike | None]) -> Parameter:
        """A parameter of the same type, name and rt_info; it has no inputs."""
        node = Parameter(self.type, friendly_name=self._name)
        node.rt_info.update(self.rt_info)
        node._names = self._names
        return node


class Constant(Node):
    """A tensor known when the model is built.

    Args:
        value: an array, a number, a string or nested lists. Python floats become f32, ints i64; numpy arrays keep
            their dtype. The array is not copied and must not be modified afterwards.
        element_type: if given, the type to convert to: real types round, other types require exact values.

    Raises `ModelError` for values that are not tensors: ragged lists, None, text mixed with other elements.
    """

    __slots__ = ("_bases", "_data", "_derivation", "_load")

    def __init__(
        self, value: ArrayLike, element_type: ElementType | None = None, friendly_name: str | None = None
    ) -> None:
        data = _as_array(value, element_type)
        self._data: Array | None = data
        self._load: Callable[[], Array] | None = None
        self._bases: Sequence[Constant] = ()
        self._derivation: Callable[..., Array] | None = None
        value_type = TensorType(ElementType.from_numpy(data.dtype), PartialShape(data.shape))
        super().__init__("Constant", types=[value_type], friendly_name=friendly_name)

    @classmethod
    def lazy(cls, value_type: TensorType, load: Callable[[], Array], friendly_name: str | None = None) -> Constant:
        """A constant whose data `load` returns on the first access, and on the first after each `release`.

        `value_type` has a static shape; `load` returns an array of that shape and dtype, or raises `ModelError`.
        """
        node = cls.__new__(cls)
        node._data = None
        node._load = load
        node._bases, node._derivation = (), None
        Node.__init__(node, "Constant", types=[value_type], friendly_name=friendly_name)
        return node

    @classmethod
    def derived(cls, sources: Sequence[Constant], value_type: TensorType, compute: Callable[..., Array]) -> Constant:
        """A constant that `compute` derives from the data of others on the first access, and after each `release`.

        The sources' data is then released if it can be read again: of all weights that a pass changes, only those
        that a device is currently packing are in memory. `compute` returns an array of the type's shape and
        dtype, and must not fail.
        """
        # Clones, because references to nodes of a graph would keep the whole graph alive.
        kept = [source.clone_with_new_inputs([]) for source in sources]
        for source in kept:
            source.release()

        def load() -> Array:
            data = compute(*[source.data for source in kept])
            for source in kept:
                source.release()
            return data

        node = cls.lazy(value_type, load)
        node._bases, node._derivation = kept, compute
        return node

    @property
    def bases(self) -> Sequence[Constant]:
        """The constants that it is derived from; none if its data is its own."""
        return self._bases

    @property
    def derivation(self) -> Callable[..., Array] | None:
        """The function that derives its data from that of its bases; None if its data is its own."""
        return self._derivation

    @property
    def data(self) -> Array:
        """The tensor; read-only by convention, and often a view of a mapped file."""
        if self._data is None:
            assert self._load is not None
            self._data = self._load()
        return self._data

    @property
    def is_loaded(self) -> bool:
        """Whether reading `data` needs no loading."""
        return self._data is not None

    def release(self) -> None:
        """Free the data if it can be read again; for use after a device has packed it."""
        if self._load is not None:
            self._data = None
        elif self._data is not None:
            release_pages(self._data)

    def discard(self) -> None:
        """Drop the data permanently: reading it raises `ModelError`. For the owner of a graph that has been lowered."""
        self._data = None
        self._load = self._discarded
        self._bases, self._derivation = (), None

    def _discarded(self) -> Array:
        raise ModelError(f"{self}: its data was discarded because the device keeps it in another form")

    @property
    def input_type(self) -> ValueType:
        """The type that it has as an input: lengths that the file leaves open are unknown, others are its data's."""
        lengths = self.annotations.get("declared_shape")
        return self._types[0] if lengths is None else TensorType(self.element_type, PartialShape(lengths))

    def shares_data(self, other: Constant) -> bool:
        """Whether both refer to the same tensor in memory or in a file, like a constant and its clones."""
        return self.output(0).type == other.output(0).type and (
            self._load is other._load if self._load is not None else self._data is other._data
        )

    @property
    def element_type(self) -> ElementType:
        """The element type of the data."""
        return self.output(0).element_type

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the data; always static."""
        return self.output(0).shape.get_shape()

    @property
    def byte_size(self) -> int:
        """Bytes of the data in ONNX's packed storage."""
        return self.element_type.byte_size(self.output(0).shape.size())

    def infer_types(self) -> bool:
        """Return False: a constant's type follows from its data."""
        return False

    def memory_span(self) -> tuple[int, int] | None:
        """The addresses at which the data begins and ends; None if it is not loaded, or in several pieces."""
        if self._data is None or not self._data.flags.forc:
            return None
        start = int(self._data.__array_interface__["data"][0])
        return start, start + self._data.nbytes

    def clone_with_new_inputs(self, inputs: Iterable[OutputLike | None]) -> Constant:
        """A constant that shares this one's data."""
        node = Constant.__new__(Constant)
        node._data, node._load = self._data, self._load
        node._bases, node._derivation = self._bases, self._derivation
        Node.__init__(node, "Constant", types=self._types, friendly_name=self._name)
        if self._rt_info:
            node._rt_info = dict(self._rt_info)
        node._names = self._names
        return node


class Result(Node):
    """An output of a model: reads one value; its friendly name is the output's name."""

    __slots__ = ("_declared", "_made_name")

    def __init__(self, source: OutputLike, friendly_name: str | None = None) -> None:
        super().__init__("Result", [source], types=[])
        self._pinned = True
        value = self.input_value(0)
        self._name = value.name if friendly_name is None else friendly_name
        is_made = friendly_name is None and value.node._names is None and not value.node.has_own_name
        self._made_name = self._name if is_made else None
        self._declared: tuple[Output, ValueType] | None = None

    @property
    def has_made_name(self) -> bool:
        """Whether the name was generated, from the operator and number of the node that it read."""
        return self._made_name == self._name

    @property
    def type(self) -> ValueType:
        """The type of the value that leaves the model: the inferred type, with the additions of `declare`."""
        value = self.input_value(0)
        if self._declared is None or self._declared[0] != value:
            return value.type
        try:
            return merge_types(self._declared[1], value.type)
        except ModelError:
            return value.type

    def declare(self, value_type: ValueType | None) -> None:
        """State a type of the value that is read now, which inference does not prove; None takes it back.

        The value keeps the type that is proven, so that no pass relies on what is stated: a request compares it with
        the result.
        """
        self._declared = None if value_type is None else (self.input_value(0), value_type)

    def infer_types(self) -> bool:
        """Return False: a result has no outputs."""
        return False

    def clone_with_new_inputs(self, inputs: Iterable[OutputLike | None]) -> Result:
        """A result of the same name that reads the one value of `inputs`."""
        (source,) = inputs
        if source is None:
            raise ModelError(f"{self} needs a value to read")
        node = Result(source, self._name)
        node._made_name = self._made_name
        if self._declared is not None and self._declared[0] == self.input_value(0):
            node.declare(self._declared[1])
        node.rt_info.update(self.rt_info)
        return node


def _as_array(value: ArrayLike, element_type: ElementType | None) -> Array:
    """`value` as an array of the element type's dtype in this machine's byte order; strings as an object array."""
    if not isinstance(element_type, (ElementType, type(None))) or element_type is undefined:
        raise ModelError(f"a constant's element type must be one such as engine.ir.f32; got {element_type!r}")
    try:
        data = np.asarray(value)
    except ValueError as e:
        raise ModelError(f"cannot create a constant from {type(value).__name__}: {e}") from e
    if not isinstance(value, (np.ndarray, np.generic)) and _may_lose_digits(data):
        data = _exact_integers(value, data, element_type)
    if data.dtype.kind in "USTO":
        data = _as_text(np.asarray(value, object))
        if element_type not in (None, string):
            raise ModelError(f"cannot create a constant of {element_type} from text; convert it to numbers first")
        return data
    if element_type is not None:
        return _converted(data, element_type)
    if isinstance(value, (np.ndarray, np.generic)):
        # Arrays are stored as their bytes in memory, so a foreign byte order must be converted.
        return data if data.dtype.isnative else data.astype(data.dtype.newbyteorder("="))
    default = {"f": f32, "i": i64, "b": boolean}.get(data.dtype.kind)
    if default is None:
        raise ModelError(f"cannot create a constant from {type(value).__name__} {value!r:.60}; pass a numpy array")
    return data.astype(default.numpy)


def _may_lose_digits(data: Array) -> bool:
    """Whether numpy may have made f64 of integers that it cannot hold, or objects.

    It does so of integers of 2^63 and more, and of all beside a real number.
    """
    return data.dtype == object or (data.dtype == np.float64 and bool((np.abs(data) >= 2.0**53).any()))


def _exact_integers(value: ArrayLike, data: Array, element_type: ElementType | None) -> Array:
    """`value` as i64 or u64 if it has only integers and the type is of such; else `data`.

    For a given type, real numbers without a fraction also count as integers.
    """
    objects = np.asarray(value, object)
    if element_type is not None and not element_type.is_integral:
        return data
    for index, each in np.ndenumerate(objects):
        if isinstance(each, (int, np.integer)):
            continue
        if element_type is None or not isinstance(each, (float, np.floating)) or not _is_whole(float(each)):
            return data
        objects[index] = int(each)
    is_signed = element_type is None or element_type.is_signed
    try:
        return objects.astype(np.int64 if is_signed else np.uint64)
    except OverflowError as e:
        if element_type is None and data.dtype == object:
            return data
        raise ModelError(
            f"a constant of {element_type or i64} cannot hold the values {_shown(objects)}; use another type"
        ) from e


def _is_whole(number: float) -> bool:
    return abs(number) <= 2.0**64 and number % 1 == 0


def _as_text(data: Array) -> Array:
    """An object array of str. Raises `ModelError` for an element that is not text."""
    texts = np.empty(data.shape, object)
    for index, element in np.ndenumerate(data):
        try:
            texts[index] = str(element, "utf-8") if isinstance(element, bytes) else element
        except UnicodeDecodeError as e:
            raise ModelError(f"element {list(index)} of a constant is text and not UTF-8: {e}") from e
        if not isinstance(texts[index], str):
            raise ModelError(
                f"element {list(index)} of a constant is {type(element).__name__} {element!r:.60}; expected only "
                "text, or only numbers of a numpy dtype"
            )
    return texts


def _converted(data: Array, element_type: ElementType) -> Array:
    """`data` converted to another type: real types round, others raise `ModelError` unless values stay equal."""
    if data.dtype == element_type.numpy:
        return data
    if element_type is string:
        raise ModelError(f"cannot create a text constant from {data.dtype}; convert it to str first")
    if data.dtype.kind == "c" and not element_type.is_complex:
        raise ModelError(f"cannot create a constant of {element_type} from {data.dtype}; take .real or .imag first")
    with np.errstate(all="ignore"):
        is_narrow = element_type.is_real and np.dtype(element_type.numpy).isbuiltin != 1
        exact = _to_odd(data) if is_narrow and data.dtype == np.float64 else data
        converted = exact.astype(element_type.numpy)
        rounds = element_type.is_complex or element_type.is_real
        is_same = rounds or (
            np.array_equal(converted.astype(data.dtype), data)
            and (not element_type.is_integral or np.array_equal(converted < 0, data < 0))  # u64 and i64 wrap
        )
    if not is_same:
        raise ModelError(f"a constant of {element_type} cannot hold the values {_shown(data)}; use another type")
    return converted


def _to_odd(data: Array) -> Array:
    """Numbers of f64 as f32; rounding them to a narrower type gives the same as rounding once.

    A number that f32 cannot hold becomes the neighbour towards zero with its last bit set ("round to odd"), so that it
    is not a tie of the narrower type.
    """
    near = data.astype(np.float32)
    bits, back = near.view(np.uint32), near.astype(np.float64)
    bits -= (np.abs(back) > np.abs(data)).astype(np.uint32)
    bits |= (np.isfinite(data) & (back != data)).astype(np.uint32)
    return near


def _shown(data: Array) -> str:
    return np.array2string(data.ravel()[:8], separator=", ") + ("..." if data.size > 8 else "")
