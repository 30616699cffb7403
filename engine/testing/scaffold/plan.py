"""`PluginPlan`: the choices for a new plugin, checked before anything is written."""

from __future__ import annotations

import keyword
from typing import Final

from engine.errors import PluginError
from engine.registry.plugins import is_device_name
from engine.startup import dataclass
from engine.testing.scaffold.families import DEFAULT_OPERATORS, divided

_MAX_NAME_CHARACTERS: Final = 32
_PRODUCTS: Final = frozenset({"Conv", "Gemm", "MatMul"})


@dataclass(frozen=True, slots=True)
class PluginPlan:
    """A device to be created, and the features of its plugin.

    Raises `PluginError` if the name cannot be one of a device, or no operator uses the kernel of `is_native`, and
    `UnsupportedError` for an operator with which a plugin cannot begin.

    Attributes:
        device: the device's name, as `Plugin.name`: upper-case letters, digits and `_`.
        operators: the operators that it claims, of ONNX's own domain, on float32.
        is_async: whether host and device stages run on executors of their own.
        has_export: whether networks are exported and imported.
        is_native: whether there is a kernel in C++: the matrix product of Conv, Gemm and MatMul.
        is_runtime: whether the device is a runtime that reads ONNX, which decides itself what it runs; then there are
            neither operators nor kernels, and networks are always exported.
    """

    device: str
    operators: tuple[str, ...] = DEFAULT_OPERATORS
    is_async: bool = False
    has_export: bool = False
    is_native: bool = False
    is_runtime: bool = False

    def __post_init__(self) -> None:
        if not is_device_name(self.device) or len(self.device) > _MAX_NAME_CHARACTERS or self.device.endswith("_"):
            raise PluginError(
                f"{self.device!r} is not the name of a device: expected an upper-case letter, then upper-case letters, "
                f"digits and underscores, at most {_MAX_NAME_CHARACTERS} characters, such as ACME or ACME_NPU2"
            )
        if self.is_runtime and (
            self.operators != DEFAULT_OPERATORS or self.is_async or self.has_export or self.is_native
        ):
            raise PluginError(
                "a plugin of a runtime has neither operators nor kernels of its own, computes in one stage, and always "
                "exports networks; leave out --ops, --async, --export and --native"
            )
        if not self.operators:
            raise PluginError("a device needs at least one operator")
        divided(self.operators)
        if self.is_native and not _PRODUCTS & set(self.operators):
            raise PluginError(
                "the native kernel is a matrix product, but no chosen operator needs one; "
                f"add one of {', '.join(sorted(_PRODUCTS))} to them"
            )

    @property
    def package(self) -> str:
        """The name of the Python package."""
        return f"engine_{self.device.lower()}"

    @property
    def distribution(self) -> str:
        """The name of the distribution, which `pip install` takes."""
        return f"engine-plugin-{self.device.lower().replace('_', '-')}"

    @property
    def prefix(self) -> str:
        """The beginning of the names of its classes."""
        prefix = "".join(part.capitalize() for part in self.device.split("_"))
        return f"{prefix}Device" if keyword.iskeyword(prefix) else prefix
