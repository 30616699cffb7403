"""Types that numpy lacks (bf16, 8 and 4 bits): their values pass by address, in ONNX's own storage."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np

from engine.ops.tensors import tensor_from_raw, tensor_to_raw
from engine.plugin_api import ElementType, Signature, TensorType, UnsupportedError
from engine_onnxruntime.runtime import Session


def is_narrow(element_type: ElementType) -> bool:
    """Whether the runtime's Python interface has no arrays of this type."""
    return element_type.numpy.type.__module__ != "numpy"


def has_narrow_ports(signature: Signature) -> bool:
    """Whether an input, an output or a variable is of such a type.

    Raises `UnsupportedError` if there is a sequence or an optional beside it, which has no address.
    """
    types = [check.port.type for check in (*signature.input_checks, *signature.result_checks)]
    tensors = [each.element_type for each in types if isinstance(each, TensorType)]
    if not any(map(is_narrow, tensors)):
        return False
    if len(tensors) < len(types):
        raise UnsupportedError(
            f"{signature.network}: onnxruntime passes {next(filter(is_narrow, tensors))} only beside tensors, and "
            "an input or output is a sequence, an optional or a map; cast inside the model"
        )
    return True


def run_by_address(session: Session, inputs: Sequence[Any], options: Any) -> list[Any]:
    """The outputs of one inference. Raises exceptions of the runtime."""
    binding = session.handle.io_binding()
    kept = [bind_value(binding, name, array) for name, array in zip(session.inputs, inputs, strict=True)]
    for name in session.outputs:
        binding.bind_output(name, "cpu")
    session.handle.run_with_iobinding(binding, options)
    del kept
    return [taken_value(value) for value in binding.get_outputs()]


def bind_value(binding: Any, name: str, array: Any) -> Any:
    """Bind an input; the result must live until the inference ends."""
    element_type = ElementType.from_numpy(array.dtype)
    if not is_narrow(element_type):
        binding.bind_cpu_input(name, array)
        return array
    stored = np.frombuffer(tensor_to_raw(array), np.uint8)
    binding.bind_input(name, "cpu", 0, element_type.onnx, list(array.shape), stored.ctypes.data)
    return stored


def taken_value(value: Any) -> Any:
    """An output on the host as an array."""
    element_type = ElementType.from_onnx(value.element_type())
    if not is_narrow(element_type):
        return value.numpy()
    size = value.tensor_size_in_bytes()
    stored = bytes((ctypes.c_uint8 * size).from_address(value.data_ptr())) if size else b""
    return tensor_from_raw(bytearray(stored), element_type, tuple(value.shape()))
