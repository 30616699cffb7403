"""`RemoteContext` and `RemoteTensor`: a device's memory as applications see it."""

from __future__ import annotations

import itertools
import math
import weakref
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any, ClassVar, Final, final

import numpy as np
from numpy.typing import NDArray

from engine.errors import (
    ContextClosed,
    DeviceError,
    EngineError,
    InputError,
    NotOnHostError,
    OutOfMemoryError,
    PluginContractError,
    UnsupportedError,
)
from engine.ir import ElementType, string, undefined
from engine.runtime.lifecycle import ForkSafeLock
from engine.runtime.overview import show_overview
from engine.startup import dataclass

Array = NDArray[Any]

DLPACK_HOST: Final = 1
"""kDLCPU of DLPack's `DLDeviceType`."""
DLPACK_OTHER: Final = 12
"""kDLExtDev: a device for which DLPack has no number."""
_MAX_BYTES: Final = 2**63 - 1
_numbers = itertools.count(1)


@dataclass(frozen=True, slots=True)
class Transfers:
    """Bytes that were copied between the host's memory and a context's so far, by tensors and by inferences."""

    to_device: int = 0
    to_host: int = 0


class RemoteContext(ABC):
    """Memory and queues of a device, for tensors that stay there; created by `Core.create_context`. Thread-safe.

    What applications use first:

        context = core.create_context("TEMPLATE")
        network = core.compile_model(model, context)       # its requests take the context's tensors
        tensor = context.create_tensor(f32, [4, 2])
        tensor.copy_from(array)
        context.close()                                    # or: with core.create_context(...) as context

    Networks that are compiled for a context (`core.compile_model(model, context)`) take its tensors as inputs and
    outputs; no others do. The context keeps its tensors only weakly; a tensor keeps its context. Used in `with`, it is
    closed at the end.

    Args:
        plugin: the plugin that creates it.
        device: the device string that the context was asked for.
        handles: the device's own objects behind the context, under the names that `Plugin.context_handles` lists.
    """

    def __init_subclass__(cls, **arguments: Any) -> None:
        super().__init_subclass__(**arguments)
        show_overview(cls, RemoteContext)

    def __init__(self, plugin: object, device: str, handles: Mapping[str, Any] = MappingProxyType({})) -> None:
        self.plugin: Final = plugin
        self.device: Final = device
        self.handles: Final = MappingProxyType(dict(handles))
        self.number: Final = next(_numbers)
        """Distinguishes the contexts of a process in messages."""
        self._lock = ForkSafeLock()
        self._tensors: weakref.WeakSet[RemoteTensor] = weakref.WeakSet()
        self._is_closed = False
        self._transfers = Transfers()

    # -- what a device implements -------------------------------------------------------------------------

    @abstractmethod
    def create_tensor_impl(self, element_type: ElementType, shape: tuple[int, ...]) -> RemoteTensor:
        """Required. A new tensor in the device's memory, uninitialised. Raises `OutOfMemoryError`."""

    def wrap_impl(self, handle: object, element_type: ElementType, shape: tuple[int, ...]) -> RemoteTensor:
        """Optional. A tensor in memory that exists already. Raises `InputError` if it is not such memory."""
        raise UnsupportedError(
            f"{self.device} does not wrap memory of other libraries; use create_tensor and copy_from"
        )

    def close_impl(self) -> None:  # noqa: B027
        """Optional. Release the context's own resources; its tensors have been released."""

    # -- tensors ------------------------------------------------------------------------------------------

    @final
    def create_tensor(self, element_type: ElementType, shape: Sequence[int]) -> RemoteTensor:
        """Return a new tensor, whose elements are undefined.

        Raises `InputError` for a type or shape that no tensor has, `ContextClosed`, `OutOfMemoryError`, `DeviceError`.
        """
        lengths = self._checked(element_type, shape)
        with _device_errors(self, "create_tensor"):
            tensor = self.create_tensor_impl(element_type, lengths)
        return self._added(tensor)

    @final
    def wrap(self, handle: object, element_type: ElementType, shape: Sequence[int]) -> RemoteTensor:
        """Return a tensor in memory that the application has made with the device's own library; nothing is copied.

        The documentation of the device says which handles it takes. The memory must not be freed, or changed during an
        inference that uses the tensor. Raises `InputError` if it does not fit, `ContextClosed`, `DeviceError`, and
        `UnsupportedError` if the device takes no handles.
        """
        lengths = self._checked(element_type, shape)
        with _device_errors(self, "wrap"):
            tensor = self.wrap_impl(handle, element_type, lengths)
        return self._added(tensor)

    def _checked(self, element_type: ElementType, shape: Sequence[int]) -> tuple[int, ...]:
        self.require_open()
        if not isinstance(element_type, ElementType) or element_type in (string, undefined):
            raise InputError(f"{self}: a tensor has an element type such as engine.ir.f32; got {element_type!r:.80}")
        try:
            lengths = tuple(length.__index__() for length in shape)
        except (TypeError, AttributeError):
            lengths = (-1,)
        if min(lengths, default=0) < 0:
            raise InputError(f"{self}: a shape is a sequence of lengths, 0 or more; got {shape!r:.80}")
        if (nbytes := math.prod(lengths) * np.dtype(element_type.numpy).itemsize) > _MAX_BYTES:
            raise OutOfMemoryError(
                f"{self}: a tensor {element_type} {list(lengths)} has {nbytes} bytes; use a smaller one"
            )
        return lengths

    def _added(self, tensor: object) -> RemoteTensor:
        if not isinstance(tensor, RemoteTensor) or not hasattr(tensor, "context"):
            raise PluginContractError(f"{self}: expected an initialised RemoteTensor, got {type(tensor).__name__}")
        with self._lock:
            is_closed = self._is_closed
            if not is_closed:
                self._tensors.add(tensor)
        if is_closed:
            tensor.release()
            self.require_open()
        return tensor

    # -- closing ------------------------------------------------------------------------------------------

    @final
    def close(self) -> None:
        """Release all tensors; afterwards, neither they nor the context can be used. May be called again.

        Memory in use by a running inference is released when it ends. Networks compiled for the context still take
        arrays. Raises `DeviceError` if the device fails to release something; the context is also closed then.
        """
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
            tensors = list(self._tensors)
            self._tensors.clear()
        failures = []
        for release in (*(tensor.release for tensor in tensors), self.close_impl):
            try:
                with _device_errors(self, "close"):
                    release()
            except EngineError as e:  # the other tensors are released nevertheless
                failures.append(e)
        if failures:
            raise failures[0]

    @final
    @property
    def is_closed(self) -> bool:
        """Whether `close` was called; its tensors then raise `ContextClosed`."""
        return self._is_closed

    @final
    def require_open(self) -> None:
        """Raise `ContextClosed` if the context was closed."""
        if self._is_closed:
            raise ContextClosed(f"{self} is closed; create another with core.create_context({self.device!r})")

    def __enter__(self) -> RemoteContext:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- transfers ----------------------------------------------------------------------------------------

    @final
    @property
    def transfers(self) -> Transfers:
        """The bytes copied between host and device so far: by `to_host` and `copy_from`, and by inferences of networks
        that were compiled for the context. Memory that the device reads or writes in place is not copied."""
        return self._transfers

    @final
    def count_transfer(self, *, to_device: int = 0, to_host: int = 0) -> None:
        """Count bytes that an inference has copied. Called by the device's requests."""
        with self._lock:
            so_far = self._transfers
            self._transfers = Transfers(so_far.to_device + to_device, so_far.to_host + to_host)

    def __str__(self) -> str:
        return f"context {self.number} of {self.device}"

    def __repr__(self) -> str:
        return f"<{self}{', closed' if self._is_closed else ''}>"


class RemoteTensor(ABC):
    """A dense tensor in the memory of a device; made by a `RemoteContext`. Row-major, without gaps.

    What applications use first:

        tensor = context.create_tensor(f32, [4, 2])
        tensor.copy_from(array)                            # from an array, or from another tensor
        result = network({"x": tensor})
        request.set_output_tensor("y", tensor)             # the output stays on the device
        array = tensor.to_host()                           # a copy
        tensor.handle                                      # the device's own object for the memory

    Methods may be called from any thread, but the elements must not be changed while an inference reads them, nor read
    while one writes them.

    Attributes:
        context: where it lives.
        element_type, shape: of its elements.
        is_writable: whether it can be an output.
    """

    dlpack_device_type: ClassVar[int] = DLPACK_OTHER
    """Optional. DLPack's `DLDeviceType` of the memory, where the host cannot access it."""

    def __init_subclass__(cls, **arguments: Any) -> None:
        super().__init_subclass__(**arguments)
        show_overview(cls, RemoteTensor)

    def __init__(self, context: RemoteContext, element_type: ElementType, shape: tuple[int, ...]) -> None:
        self.context = context
        self.element_type: Final = element_type
        self.shape: Final = shape
        self.dtype: Final = np.dtype(element_type.numpy)
        self.nbytes: Final = math.prod(shape) * self.dtype.itemsize
        self.is_writable = True

    # -- what a device implements -------------------------------------------------------------------------

    @property
    @abstractmethod
    def handle(self) -> Any:
        """Required. The device's own object for the memory, such as a buffer of its library. Raises `ContextClosed`."""

    @abstractmethod
    def read(self) -> Array:
        """Required. The elements as a new array; waits for what writes them. The engine calls it for `to_host`."""

    @abstractmethod
    def write(self, array: Array) -> None:
        """Required. Set the elements from a C-contiguous array of the same type and shape, which may change later."""

    def copy_on_device(self, source: RemoteTensor) -> bool:
        """Optional. Copy a tensor of the same context, type and shape without the host; False if it cannot."""
        return False

    def host_view(self) -> Array | None:
        """Optional. The memory as an array, if the host can access it at any time; None if it cannot."""
        return None

    def shares_memory(self, other: object) -> bool:
        """Optional, must call `super()`. Whether an array, or a tensor of the same context, may share its memory."""
        if other is self:
            return True
        view = self.host_view()
        theirs = other.host_view() if isinstance(other, RemoteTensor) else other
        return view is not None and isinstance(theirs, np.ndarray) and np.may_share_memory(view, theirs)

    def release(self) -> None:  # noqa: B027
        """Optional. Drop the memory, since the context is closed; running inferences keep what they use."""

    # -- contents -----------------------------------------------------------------------------------------

    @final
    def to_host(self) -> Array:
        """Return a copy of the elements as an array. Raises `ContextClosed`, `DeviceError`."""
        self.context.require_open()
        with _device_errors(self, "to_host"):
            array = self.read()
        self.context.count_transfer(to_host=self.nbytes)
        return array

    @final
    def copy_from(self, source: object) -> None:
        """Set the elements from an array or DLPack tensor of the same type and shape, or from another remote tensor.

        A tensor of the same context is copied by the device if it can, any other by way of the host. Raises
        `InputError` if the source does not fit, `ContextClosed`, `DeviceError`.
        """
        self.context.require_open()
        if not self.is_writable:
            raise InputError(f"{self} is read-only")
        if isinstance(source, RemoteTensor):
            self._check(source.dtype, source.shape)
            source.context.require_open()
            if source is self:
                return
            with _device_errors(self, "copy_from"):
                if source.context is self.context and self.copy_on_device(source):
                    return
            array = source.to_host()
        else:
            array = self._array(source)
        self._check(array.dtype, array.shape)
        with _device_errors(self, "copy_from"):
            self.write(np.ascontiguousarray(array).reshape(self.shape))
        self.context.count_transfer(to_device=self.nbytes)

    def _array(self, source: Any) -> Array:
        if isinstance(source, np.ndarray):
            return source
        if not hasattr(source, "__dlpack__"):
            kind = type(source).__name__
            raise InputError(f"{self}: expected an array, a DLPack tensor or a remote tensor, got {kind}")
        try:
            return np.from_dlpack(source)
        except Exception as e:
            kind = type(source).__name__
            raise InputError(
                f"{self}: the {kind} cannot be read through DLPack ({e}); copy it to host memory first"
            ) from e

    def _check(self, dtype: np.dtype[Any], shape: tuple[int, ...]) -> None:
        if dtype != self.dtype or shape != self.shape:
            raise InputError(f"{self}: cannot be set from {dtype} {shape}; values are neither cast nor reshaped")

    # -- other libraries ----------------------------------------------------------------------------------

    @final
    def __dlpack__(self, **arguments: Any) -> Any:
        """The memory for another library, not copied; only where the host can access it. Raises `NotOnHostError`."""
        self.context.require_open()
        view = self.host_view()
        if view is None:
            raise NotOnHostError(
                f"{self}: the host cannot access this memory; pass its `handle` to a library of the device, or copy it "
                "with to_host()"
            )
        try:
            return view.__dlpack__(**arguments)
        except BufferError as e:
            raise NotOnHostError(f"{self}: DLPack cannot express it ({e}); copy it with to_host()") from e

    @final
    def __dlpack_device__(self) -> tuple[int, int]:
        """The kind of memory, as DLPack numbers it."""
        self.context.require_open()
        return (self.dlpack_device_type if self.host_view() is None else DLPACK_HOST), 0

    @final
    def __array__(self, *_: object, **__: object) -> Array:
        """Refused: numpy would copy from the device without saying so. Raises `NotOnHostError`."""
        raise NotOnHostError(
            f"{self} is not an array; copy it with to_host(), or share host memory with np.from_dlpack"
        )

    def __str__(self) -> str:
        return f"tensor {self.element_type} {list(self.shape)} in {self.context}"

    def __repr__(self) -> str:
        return f"<{self}>"


@contextmanager
def _device_errors(where: object, what: str) -> Iterator[None]:
    """Turn exceptions of a device other than `EngineError` into `OutOfMemoryError` or `DeviceError`."""
    try:
        yield
    except EngineError:
        raise
    except MemoryError as e:
        raise OutOfMemoryError(f"{where}: {what}: {str(e) or 'there is not enough memory'}") from e
    except Exception as e:
        raise DeviceError(f"{where}: {what} failed: {type(e).__name__}: {e}") from e


def refusal(tensor: RemoteTensor, expected: RemoteContext | None) -> str | None:
    """Why a network that was compiled for the context `expected` cannot use a tensor; None if it can.

    Raises `ContextClosed`.
    """
    tensor.context.require_open()
    if tensor.context is expected:
        return None
    compiled = f"for {expected}" if expected is not None else "without a context"
    return (
        f"the tensor is in {tensor.context}, and the network was compiled {compiled}; compile it with "
        "core.compile_model(model, tensor.context), or pass tensor.to_host()"
    )
