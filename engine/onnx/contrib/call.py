"""`ContribCall`, a call of an operator of onnxruntime, and the registry of these operators."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, Final, NoReturn, TypeAlias

from engine.errors import ModelError, UnsupportedError
from engine.ir import Constant, ElementType, Output, f16, f32, f64, i8, u8, undefined
from engine.ir.element_type import bf16
from engine.onnx.upgrades.call import OldCall
from engine.onnx.upgrades.emit import emit, rank_of
from engine.startup import dataclass

DOMAIN: Final = "com.microsoft"
BYTES: Final[frozenset[ElementType]] = frozenset({i8, u8})
FLOATS: Final[frozenset[ElementType]] = frozenset({f32, f16, bf16})
REALS: Final[frozenset[ElementType]] = frozenset({f32, f16, bf16, f64})


class ContribCall(OldCall):
    """A call of an operator of onnxruntime. Its errors do not name the node: the reader adds this."""

    __slots__ = ()

    def check(self) -> None:
        """Raise `ModelError` if inputs are missing, or there are inputs, outputs or attributes that it does not have.

        Raises `UnknownOperatorError` if the operator is not known.
        """
        definition = OPERATORS[self.op_type]
        ports = definition.ports
        if len(self.inputs) > len(ports) and not definition.is_variadic:
            self.invalid(f"it has {len(self.inputs)} inputs; expected at most {len(ports)}: {', '.join(ports)}")
        for index, port in enumerate(ports):
            if port not in definition.optional and not self.has_input(index):
                self.invalid(f"input {index} ({port}) is missing")
        if self.num_outputs > len(definition.outputs):
            self.invalid(f"it has {self.num_outputs} outputs; expected at most {len(definition.outputs)}")
        unknown = [name for name in self.attributes if name not in definition.attributes and not name.startswith("__")]
        if unknown:
            known = ", ".join(definition.attributes) or "none"
            self.invalid(f"it has no attribute `{unknown[0]}`; it has {known}")

    def optional(self, index: int) -> Output | None:
        """Input `index`; None if it is omitted."""
        return self.input(index) if self.has_input(index) else None

    def typed(self, index: int, allowed: Collection[ElementType]) -> Output:
        """Input `index`, of one of the element types `allowed`, or of unknown type. Raises `ModelError`."""
        value = self.input(index)
        if value.element_type not in allowed and value.element_type is not undefined:
            expected = " or ".join(sorted(element_type.name for element_type in allowed))
            self.invalid(f"{self.described(index)} is {value.element_type}; expected {expected}")
        return value

    def real(self, index: int, like: int = 0) -> Output:
        """Input `index`, whose type is floating-point and equals the type of input `like`. Raises `ModelError`."""
        found = self.input(like).element_type
        return self.typed(index, {found} if found in REALS and index != like else REALS)

    def ranked(self, index: int, *allowed: int) -> Output:
        """Input `index`, whose rank is one of `allowed`, or unknown. Raises `ModelError`."""
        value = self.input(index)
        if rank_of(value) not in (None, *allowed):
            expected = " or ".join(map(str, allowed))
            self.invalid(f"{self.described(index)} has shape {value.shape}; expected rank {expected}")
        return value

    def length(self, index: int, axis: int) -> int:
        """The length of an axis of input `index`. Raises `UnsupportedError` if it is unknown."""
        value = self.input(index)
        rank = rank_of(value)
        if rank is None or value.shape[axis].is_dynamic:
            self.unsupported(
                f"{self.described(index)} has shape {value.shape}, so that the length of axis {axis} is unknown",
                "state it in the model's value_info",
            )
        return value.shape[axis].get_length()

    def choice(self, name: str, default: int, allowed: Collection[int]) -> int:
        """An INT attribute that has one of the values `allowed`. Raises `ModelError`."""
        value = self.integer(name, default)
        if value not in allowed:
            self.invalid(f"attribute `{name}` is {value}; expected {' or '.join(map(str, allowed))}")
        return value

    def heads(self, name: str = "num_heads") -> int:
        """A number of heads. Raises `ModelError`."""
        value = self.integer(name)
        if value < 1:
            self.invalid(f"attribute `{name}` is {value}; expected 1 or more")
        return value

    def without_attributes(self, **usual: Any) -> None:
        """Raise `UnsupportedError` if an attribute has another value than the one here, which is its default.

        For attributes that request a feature which cannot be expressed.
        """
        for name, value in usual.items():
            found = self.attributes.get(name, value)
            if found != value:
                self.unsupported(
                    f"attribute `{name}` is {found!r}, which ONNX's operators cannot express",
                    f"write the model with {value!r}",
                )

    def without_inputs(self, *names: str) -> None:
        """Raise `UnsupportedError` if one of the inputs `names` is given, which has no form here."""
        ports = OPERATORS[self.op_type].ports
        for name in names:
            if self.has_input(ports.index(name)):
                self.unsupported(
                    f"{self.described(ports.index(name))} is given, which ONNX's operators cannot express",
                    "write the model without it",
                )

    def single(self, index: int) -> None:
        """Raise `ModelError` if input `index` is known not to be one number."""
        if self.has_input(index):
            shape = self.input(index).shape
            if shape.is_static and shape.size() != 1:
                self.invalid(f"{self.described(index)} has shape {shape}; expected one number")

    def per_channel(self, index: int) -> None:
        """Raise `ModelError` if input `index` is known to be neither one number nor a vector."""
        if self.has_input(index):
            shape = self.input(index).shape
            if shape.rank.is_static and len(shape) > 1:
                self.invalid(f"{self.described(index)} has shape {shape}; expected one number, or one per channel")

    def zero_point(self, index: int, of: int) -> Output | None:
        """Input `index`, a zero point of the type of input `of`; None if it is omitted. Raises `ModelError`."""
        if not self.has_input(index):
            return None
        value, expected = self.input(index), self.input(of).element_type
        if undefined not in (value.element_type, expected) and value.element_type is not expected:
            self.invalid(
                f"{self.described(index)} is {value.element_type}; expected {expected}, the type of "
                f"{self.described(of)}"
            )
        return value

    def dequantized(self, index: int, axis: int | None = None, parameters: tuple[int, int] | None = None) -> Output:
        """The values of input `index`, whose scale and zero point are the inputs `parameters`: by default the next two.

        With an `axis`, these may be vectors with a number for each of its positions. Raises `ModelError`.
        """
        places = parameters or (index + 1, index + 2)
        codes, scale = self.typed(index, BYTES), self.typed(places[0], {f32})
        zero_point = self.zero_point(places[1], index)
        for parameter in places:
            if axis is None:
                self.single(parameter)
            else:
                self.per_channel(parameter)
        shapes = [value.shape for value in (scale, zero_point) if value is not None]
        if all(shape.is_static for shape in shapes) and len({shape.size() for shape in shapes}) > 1:
            self.invalid(
                f"{self.described(places[1])} has shape {shapes[1]}; expected {shapes[0]}, the shape of "
                f"{self.described(places[0])}"
            )
        return emit("DequantizeLinear", codes, scale, zero_point, axis=1 if axis is None else axis)

    def quantized(self, value: Output, index: int, like: int | None = 0) -> Output:
        """The codes of `value`, whose scale and zero point are inputs `index` and `index + 1`.

        They have the type of input `like`, which an omitted zero point leaves open; without `like`, the type of the
        zero point. Raises `ModelError`.
        """
        scale = self.typed(index, {f32})
        self.single(index)
        self.single(index + 1)
        if like is None:
            zero_point: Output | None = self.typed(index + 1, BYTES)
        else:
            zero_point = self.zero_point(index + 1, like)
            if zero_point is None:
                zero_point = Constant(0, self.element_type(like)).output(0)
        return emit("QuantizeLinear", value, scale, zero_point)

    def described(self, index: int) -> str:
        """Input `index` as messages name it: by its number, its port and its value."""
        ports = OPERATORS[self.op_type].ports
        port = f"{ports[index]}, " if index < len(ports) else ""
        return f"input {index} ({port}`{self.input(index).name}`)"

    def invalid(self, reason: str) -> NoReturn:
        """Raise `ModelError`: the operator does not accept the call."""
        raise ModelError(reason)

    def unsupported(self, reason: str, way_out: str) -> NoReturn:
        """Raise `UnsupportedError`: required facts of its inputs are unknown."""
        raise UnsupportedError(f"{reason}; {way_out}")


Expansion: TypeAlias = Callable[[ContribCall], Sequence[Output | None] | None]


@dataclass(frozen=True, slots=True)
class ContribOperator:
    """An operator of onnxruntime.

    Attributes:
        domain: its domain.
        ports: the names of the inputs; further inputs of a variadic operator have no name.
        optional: the names of the inputs that may be omitted.
        outputs: the maximum number of outputs.
        function: expresses a call by ONNX operators; None for an output that it does not compute.
    """

    domain: str
    ports: tuple[str, ...]
    optional: frozenset[str]
    is_variadic: bool
    attributes: tuple[str, ...]
    outputs: tuple[str, ...]
    function: Expansion


OPERATORS: Final[dict[str, ContribOperator]] = {}
"""The known operators by name."""


def contrib(
    op_type: str, ports: str, attributes: str = "", outputs: str = "output", domain: str = DOMAIN
) -> Callable[[Expansion], Expansion]:
    """Decorator: the function expresses the operator by ONNX operators.

    `ports` are the names of its inputs, with `?` behind those that may be omitted, and `...` at the end if any number
    of others follow; `attributes` are the names of its attributes, `outputs` the names of its outputs.
    """
    names = ports.split()
    is_variadic = names[-1] == "..."
    if is_variadic:
        names.pop()

    def register(function: Expansion) -> Expansion:
        OPERATORS[op_type] = ContribOperator(
            domain,
            tuple(name.rstrip("?") for name in names),
            frozenset(name[:-1] for name in names if name.endswith("?")),
            is_variadic,
            tuple(attributes.split()),
            tuple(outputs.split()),
            function,
        )
        return function

    return register
