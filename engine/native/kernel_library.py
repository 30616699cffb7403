"""`KernelLibrary`: a shared library with native kernels for the operators of an extension (`engine_kernel.h`)."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np

from engine.errors import DeviceError, ExtensionError
from engine.ir import ElementType, Node, PartialShape, TensorType, ValueType, undefined
from engine.native.elf import why_incomplete
from engine.native.extension import _core
from engine.startup import dataclass

if TYPE_CHECKING:
    Array = np.ndarray[Any, np.dtype[Any]]

ELEMENT_TYPES: Final = frozenset(
    ["f32", "u8", "i8", "u16", "i16", "i32", "i64", "bool", "f16", "f64", "u32", "u64", "bf16"]
)
"""The element types that kernels of extensions can have."""

KernelAttribute: TypeAlias = "tuple[str, int, Any]"
"""Name, kind as `engine_kernel.h` numbers it, and value: int, float, str or a list of them."""

_KINDS: Final = {1: int, 2: float, 3: str, 4: list[int], 5: list[float], 6: list[str]}


@dataclass(frozen=True, slots=True)
class OperatorDescription:
    """How a library defines an operator itself; `attributes` are as in `engine.ops.extension.Operator`."""

    version: int
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any]
    is_random: bool


@dataclass(frozen=True, slots=True, eq=False)
class LibraryKernel:
    """The kernel of one operator. Thread-safe, and valid until the process ends."""

    name: str
    library: str
    _kernel: _core.ExtensionKernel = field(repr=False)

    def description(self) -> OperatorDescription | None:
        """The operator that the library defines; None if it only has a kernel for one that Python code defines.

        Raises `ExtensionError` if it is not complete.
        """
        try:
            found = self._kernel.described()
        except UnicodeDecodeError as e:
            raise ExtensionError(f"it has a name that is not UTF-8: {e}") from e
        names = [name for name, _, _, _ in found["attributes"]]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ExtensionError(
                f"it declares attribute {twice[0]!r:.80} {names.count(twice[0])} times; declare it once"
            )
        if not found["infers"]:
            return None
        if not found["inputs"] or not found["outputs"]:
            raise ExtensionError("it has an infer function, but no names of inputs or outputs")
        attributes: dict[str, Any] = {}
        for name, kind, is_required, values in found["attributes"]:
            if is_required:
                attributes[name] = _KINDS[kind]
            elif values:
                attributes[name] = tuple(values) if kind > 3 else values[0]
            else:
                attributes[name] = _KINDS[kind] | None
        return OperatorDescription(
            found["version"] or 1, tuple(found["inputs"]), tuple(found["outputs"]), attributes, found["is_random"]
        )

    def infer(self, inputs: Sequence[ValueType | None], attributes: Mapping[str, Any]) -> list[TensorType]:
        """The types of all outputs that the library gives. Raises `DeviceError` with its message if it refuses."""
        described = self._kernel.described()
        kinds = {name: kind for name, kind, _, _ in described["attributes"]}
        given = [
            (name, kinds[name], list(value) if isinstance(value, tuple) else value)
            for name, value in attributes.items()
            if value is not None
        ]
        found = self._kernel.infer("", _types(inputs), len(described["outputs"]), given)
        return [
            TensorType(
                ElementType.from_onnx(number),
                PartialShape.dynamic() if dims is None else PartialShape([None if d < 0 else d for d in dims]),
            )
            for number, dims in found
        ]

    def refusal(self, node: Node, attributes: Sequence[KernelAttribute]) -> str | None:
        """Why the kernel cannot compute a node; None if it can."""
        values = [*(value for value in node.input_values if value is not None), *node.outputs]
        for value in values:
            if not isinstance(value.type, TensorType) or (
                value.element_type is not undefined and value.element_type.name not in ELEMENT_TYPES
            ):
                return f"{value.name} is {value.type}; kernels of extensions support {', '.join(sorted(ELEMENT_TYPES))}"
        inputs = [None if value is None else value.type for value in node.input_values]
        try:
            self._kernel.supports(_types(inputs), node.num_outputs, list(attributes))
        except DeviceError as e:
            return f"kernel {self.name} of {self.library}: {e}"
        return None

    def prepare(
        self, node: Node, attributes: Sequence[KernelAttribute], constants: Mapping[int, Array], title: str
    ) -> _core.ExtensionCall:
        """A prepared computation of a node of known shapes: `token` names it in steps of kernel "extension".

        `constants` are the values of constant inputs. `title` begins the messages of failures. Raises `DeviceError`
        with the kernel's message.
        """
        inputs = [None if value is None else value.type for value in node.input_values]
        outputs = _types([output.type for output in node.outputs])
        what = f"{title}: kernel {self.name}"
        return self._kernel.call(what, _types(inputs, constants), outputs, list(attributes))


@dataclass(frozen=True, slots=True, eq=False)
class KernelLibrary:
    """A loaded library: the name and version that it has in compiled networks, and its kernels."""

    path: str
    name: str
    version: str
    kernels: Mapping[tuple[str, str], LibraryKernel]
    """The kernels by domain and op type."""


def load_kernel_library(path: str | os.PathLike[str]) -> KernelLibrary:
    """Load a shared library, which runs its code; the same file is loaded once.

    Raises `ExtensionError` if it cannot be loaded, was compiled for another version of the interface, has an invalid
    description, or refuses this machine.
    """
    try:
        real = os.path.realpath(path)
        status = os.stat(real)
    except (OSError, ValueError) as e:  # ValueError: a path with a null byte
        raise ExtensionError(f"extension library {os.fspath(path)}: it cannot be read: {e}") from e
    key = (real, status.st_dev, status.st_ino, status.st_mtime_ns)
    with _lock:
        if key not in _loaded:
            _loaded[key] = _load(real)
        return _loaded[key]


_loaded: Final[dict[tuple[str, int, int, int], KernelLibrary]] = {}
_lock: Final = threading.Lock()


def _load(path: str) -> KernelLibrary:
    try:
        why = why_incomplete(path)  # which would end the process when it is mapped
    except OSError as e:
        raise ExtensionError(f"extension library {path}: it cannot be read: {e}") from e
    if why is not None:
        raise ExtensionError(f"extension library {path}: {why}; copy it, or build it, again")
    try:
        name, version, found = _core.load_extension(path)
    except ExtensionError as e:
        raise ExtensionError(f"extension library {path}: {e}") from e
    except UnicodeDecodeError as e:
        raise ExtensionError(f"extension library {path}: it has a name that is not UTF-8: {e}") from e
    title = f"{name} {version}"
    kernels = {(domain, op): LibraryKernel(f"{domain}.{op}", title, kernel) for domain, op, kernel in found}
    return KernelLibrary(path, name, version, kernels)


def _types(
    values: Sequence[ValueType | None], constants: Mapping[int, Array] | None = None
) -> list[tuple[int, list[int] | None, Array | None] | None]:
    described: list[tuple[int, list[int] | None, Array | None] | None] = []
    for index, value in enumerate(values):
        if value is None:
            described.append(None)
            continue
        assert isinstance(value, TensorType), value
        shape = value.shape
        dims = None if shape.rank.is_dynamic else [d.min if d.is_static else -1 for d in shape.dims]
        data = None if constants is None or index not in constants else np.ascontiguousarray(constants[index])
        described.append((value.element_type.onnx, dims, data))
    return described
