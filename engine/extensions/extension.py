"""`Extension`: operators with a name and a version, and the shared library with their kernels, if any."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace
from typing import Any, Final

from engine.errors import ExtensionConflictError, ExtensionError
from engine.native import KernelLibrary, LibraryKernel, load_kernel_library
from engine.onnx.contrib import is_known
from engine.ops.extension import Operator, error_text
from engine.startup import dataclass

_NAME: Final = re.compile(r"\w[\w.-]*")
_VERSION: Final = re.compile(r"[A-Za-z0-9][\w.+-]*")


@dataclass(frozen=True, slots=True)
class Extension:
    """Operators that belong together.

    Attributes:
        name: in compiled networks, which require it: letters, digits, '.', '_', '-'.
        version: changes with the meaning of an operator: a compiled network requires the version it was compiled with.
        operators: the operators. None if `library` defines them.
        library: the path of a shared library that has kernels for some or all of the operators; see `engine_kernel.h`.
            Loading it runs its code. It has to have the same name and version. A relative path is one of the current
            folder; a module gives `Path(__file__).with_name(...)`.
        check: whether the extension can be used on this machine; called once, when it is added to a core. An exception
            that it raises is the reason for the refusal; False also refuses it.

    Raises `ExtensionError` for a name, a version or operators that are not valid. Nothing is loaded before it is added.
    """

    name: str
    version: str
    operators: Sequence[Operator] | None = None
    library: str | os.PathLike[str] | None = None
    check: Callable[[], object] | None = field(default=None)

    def __post_init__(self) -> None:
        for what, pattern in (("name", _NAME), ("version", _VERSION)):
            value = getattr(self, what)
            if not isinstance(value, str) or not pattern.fullmatch(value):
                raise ExtensionError(
                    f"{value!r} is not a valid {what} of an extension; expected letters, digits, '.', '_' and '-', "
                    "such as "
                    f"{'my_operators' if what == 'name' else '1.0'}"
                )
        given = self.operators
        if given is not None and not (
            isinstance(given, Sequence) and all(isinstance(each, Operator) for each in given)
        ):
            raise ExtensionError(f"extension {self}: operators must be a list of engine.Operator; got {given!r:.200}")
        if not given and self.library is None:
            raise ExtensionError(f"extension {self} has neither operators nor a library")
        object.__setattr__(self, "operators", None if given is None else tuple(given))

    def __str__(self) -> str:
        return f"{self.name} {self.version}"

    def loaded(self) -> list[Operator]:
        """Its operators with their kernels, after its check; loads its library.

        Raises `ExtensionError`, `ExtensionConflictError`.
        """
        library = None if self.library is None else load_kernel_library(self.library)
        operators = self._joined(library)
        for operator in operators:
            if is_known(operator.name, operator.domain):
                raise ExtensionConflictError(
                    f"extension {self}: the engine imports {operator} itself; give your operator another name or domain"
                )
        if self.check is not None:
            try:
                answer = self.check()
            except (Exception, SystemExit) as e:
                raise ExtensionError(f"extension {self}: its check refuses this machine: {error_text(e)}") from e
            if answer is False:
                raise ExtensionError(f"extension {self}: its check refuses this machine: it returns False")
        return operators

    def _joined(self, library: KernelLibrary | None) -> list[Operator]:
        if library is None:
            return list(self.operators or ())
        if (library.name, library.version) != (self.name, self.version):
            raise ExtensionError(
                f"extension {self}: library {library.path} is {library.name} {library.version}; make name and version "
                "equal"
            )
        if self.operators is None:
            return list(operators_of(library))
        kernels = dict(library.kernels)
        joined = []
        for operator in self.operators:
            kernel = kernels.pop((operator.domain, operator.name), None)
            joined.append(operator if kernel is None else replace(operator, kernel=kernel))
        if kernels:
            names = ", ".join(kernel.name for kernel in kernels.values())
            raise ExtensionError(
                f"extension {self}: library {library.path} has kernels for {names}, but the extension does not "
                "define this operator"
            )
        return joined


def extension_of_library(path: str | os.PathLike[str]) -> Extension:
    """The extension that a library defines without Python code. Raises `ExtensionError`."""
    library = load_kernel_library(path)
    try:
        return Extension(library.name, library.version, None, library.path)
    except ExtensionError as e:
        raise ExtensionError(f"extension library {library.path}: {e}") from e


def operators_of(library: KernelLibrary) -> tuple[Operator, ...]:
    """The operators that a library defines; the same objects for the same library. Raises `ExtensionError`."""
    known = _of_libraries.get(library)
    if known is None:
        made = tuple(_operator_of(kernel, domain, name, library) for (domain, name), kernel in library.kernels.items())
        known = _of_libraries.setdefault(library, made)
    return known


_of_libraries: Final[dict[KernelLibrary, tuple[Operator, ...]]] = {}


def _operator_of(kernel: LibraryKernel, domain: str, name: str, library: KernelLibrary) -> Operator:
    title = f"extension library {library.path}: kernel {kernel.name}"
    try:
        described = kernel.description()
        if described is not None:
            return Operator(
                name=name,
                domain=domain,
                inputs=described.inputs,
                outputs=described.outputs,
                attributes=described.attributes,
                version=described.version,
                is_deterministic=not described.is_random,
                infer=_Infer(kernel),
                kernel=kernel,
            )
    except ExtensionError as e:
        raise ExtensionError(f"{title}: {e}") from e
    raise ExtensionError(
        f"{title} has no infer function, so the library does not define the operator; define it in Python, as an "
        "Extension with this library"
    )


@dataclass(frozen=True, slots=True)
class _Infer:
    """The type rule of a library."""

    kernel: LibraryKernel

    def __call__(self, inputs: Sequence[Any], attributes: Mapping[str, Any]) -> Any:
        return self.kernel.infer(inputs, attributes)
