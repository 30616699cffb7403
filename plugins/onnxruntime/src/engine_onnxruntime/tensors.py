"""Contexts: tensors in the runtime's memory, which networks pass on to one another without copies."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from engine.plugin_api import (
    ElementType,
    InputError,
    RemoteContext,
    RemoteTensor,
    SyncInferRequest,
    TensorType,
    UnsupportedError,
)
from engine_onnxruntime.narrow import bind_value, is_narrow, taken_value
from engine_onnxruntime.runtime import Session, load_runtime

_HOST: Final = "cpu"
_MEMORIES: Final = {"CUDA": "cuda", "TENSORRT": "cuda", "NVTENSORRTRTX": "cuda"}
"""The runtime's names for memories, by provider; tensors of others are in the host's memory."""


class OnnxRuntimeContext(RemoteContext):
    """The memory of an execution provider. A handle is an `OrtValue`, or an object with DLPack's methods."""

    def __init__(
        self, plugin: object, device: str, device_id: str, options: Mapping[str, str], handles: Mapping[str, object]
    ) -> None:
        super().__init__(plugin, device, handles)
        self.memory = _MEMORIES.get(device_id, _HOST)
        self.index = int(options.get("device_id", "0"))

    def create_tensor_impl(self, element_type: ElementType, shape: tuple[int, ...]) -> RemoteTensor:
        """A tensor in memory of the runtime. Raises `UnsupportedError` for types that numpy lacks."""
        self._require_plain(element_type)
        made = load_runtime().OrtValue.ortvalue_from_shape_and_type
        return OnnxRuntimeTensor(
            self, element_type, shape, made(list(shape), element_type.onnx, self.memory, self.index)
        )

    def wrap_impl(self, handle: object, element_type: ElementType, shape: tuple[int, ...]) -> RemoteTensor:
        """A tensor in the memory of an `OrtValue`, or of another library's tensor, without a copy."""
        self._require_plain(element_type)
        kind = load_runtime().OrtValue
        value: Any = handle
        if not isinstance(handle, kind):
            if not hasattr(handle, "__dlpack__"):
                raise InputError(f"{self}: expected an OrtValue, or a tensor with __dlpack__, got {handle!r:.80}")
            value = kind.from_dlpack(handle)
        nbytes = math.prod(shape) * np.dtype(element_type.numpy).itemsize
        if value.element_type() != element_type.onnx or value.tensor_size_in_bytes() < nbytes:
            raise InputError(f"{self}: {element_type} {list(shape)} does not fit {value.data_type()} {value.shape()}")
        if value.device_name() != self.memory:
            raise InputError(f"{self}: expected memory of {self.memory}, got memory of {value.device_name()}")
        return OnnxRuntimeTensor(self, element_type, shape, value)

    def _require_plain(self, element_type: ElementType) -> None:
        if is_narrow(element_type):
            raise UnsupportedError(f"{self}: onnxruntime has no arrays of {element_type}; pass values on the host")


class OnnxRuntimeTensor(RemoteTensor):
    """A tensor in the memory of an `OrtValue`."""

    context: OnnxRuntimeContext

    def __init__(self, context: OnnxRuntimeContext, element_type: ElementType, shape: tuple[int, ...], value: Any):
        super().__init__(context, element_type, shape)
        self._value = value
        self.address = value.data_ptr()

    @property
    def handle(self) -> Any:
        """The `OrtValue`. Raises `ContextClosed`."""
        self.context.require_open()
        return self._value

    def read(self) -> NDArray[Any]:
        """A copy of the elements."""
        return np.array(self._flat(), copy=True).reshape(self.shape)

    def write(self, array: NDArray[Any]) -> None:
        """Copy elements from the host."""
        if self.context.memory == _HOST:
            self._flat()[...] = array.reshape(-1)
        elif self.nbytes:
            self._value.update_inplace(np.ascontiguousarray(array).reshape(self._value.shape()))

    def host_view(self) -> NDArray[Any] | None:
        """The memory as an array, if it is the host's."""
        return self._flat().reshape(self.shape) if self.context.memory == _HOST else None

    def _flat(self) -> NDArray[Any]:
        count = math.prod(self.shape)
        found: NDArray[Any] = self._value.numpy().reshape(-1)[:count]
        return found

    def shares_memory(self, other: object) -> bool:
        """Two tensors may be in one `OrtValue`."""
        if isinstance(other, OnnxRuntimeTensor):
            return bool(self.nbytes) and self.address == other.address
        return super().shares_memory(other)

    def release(self) -> None:
        """Drop the memory, once no inference uses it."""
        self._value = None

    def bind(self, bind: Callable[..., object], name: str) -> object:
        """Bind the memory to an input or output; the result must live until the inference ends."""
        value = self.handle
        bind(name, self.context.memory, self.context.index, self.element_type.onnx, list(self.shape), self.address)
        return value


def run_in_context(request: SyncInferRequest, session: Session, inputs: Sequence[Any], options: Any) -> list[Any]:
    """The outputs of one inference; those that were written to tensors of the context are these tensors."""
    binding, kept = session.handle.io_binding(), []
    for name, value in zip(session.inputs, inputs, strict=True):
        is_remote = isinstance(value, OnnxRuntimeTensor)
        kept.append(value.bind(binding.bind_input, name) if is_remote else bind_value(binding, name, value))
    targets = [_target(request, index) for index in range(len(session.outputs))]
    for name, target in zip(session.outputs, targets, strict=True):
        if target is None:
            binding.bind_output(name, _HOST)
        else:
            kept.append(target.bind(binding.bind_output, name))
    session.handle.run_with_iobinding(binding, options)
    pairs = zip(targets, binding.get_outputs(), strict=True)
    return [taken_value(value) if target is None else target for target, value in pairs]


def _target(request: SyncInferRequest, index: int) -> OnnxRuntimeTensor | None:
    """The tensor that an output can be written to while inputs are read; None if there is none of a known shape."""
    ports = request.signature.outputs
    if index >= len(ports) or not request.can_write_early(index):
        return None
    value_type = ports[index].type
    if not isinstance(value_type, TensorType) or not value_type.shape.is_static:
        return None
    found = request.remote_output(index, tuple(value_type.shape.get_shape()))
    return found if isinstance(found, OnnxRuntimeTensor) else None
