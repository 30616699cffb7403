"""The request: one of OpenVINO's, over the memory of the engine's tensors."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.errors import DeviceError, InputError
from engine.ir import Node
from engine.plugin_api import RequestOwner, SyncInferRequest
from engine_openvino.packing import packed, unpacked
from engine_openvino.profile import record
from engine_openvino.refusals import fits
from engine_openvino.runtime import Compiled, Runtime, reason, require_threads

_POLL_MS = 100
"""How long a wait takes no notice of Ctrl-C."""


class OpenvinoInferRequest(SyncInferRequest):
    """Inputs are read, and outputs of known shapes written, in place; others are copied out of OpenVINO's memory.

    OpenVINO does not keep the arrays alive, so the request does until it has others.
    """

    def __init__(
        self,
        network: RequestOwner,
        runtime: Runtime,
        compiled: Compiled,
        nodes: Mapping[str, Node],
        *,
        takes_wide: bool,
        writes_in_place: bool,
    ) -> None:
        super().__init__(network)
        self._module = runtime.module
        self._request = compiled.network.create_infer_request()
        ports = compiled.network.inputs
        self._inputs = [None if at is None else (at, ports[at].element_type) for at in compiled.inputs]
        self._outputs_of = [
            (port.element_type, _in_place(port) if writes_in_place else None) for port in compiled.network.outputs
        ]
        self._nodes, self._takes_wide = nodes, takes_wide
        self._held: list[Any] = []
        self._is_running = False

    def infer_preprocess(self) -> None:
        """Hand over the memory. Raises `InputError` for integers that OpenVINO would clip."""
        self._held = []
        for index, (value, port) in enumerate(zip(self.inputs, self._inputs, strict=True)):
            if port is not None:
                self._check_range(index, value)
                self._request.set_input_tensor(port[0], self._tensor(value, port[1]))
        for index, (kind, shape) in enumerate(self._outputs_of):
            if shape is not None:
                self._request.set_output_tensor(index, self._tensor(self.output_buffer(index, shape), kind))

    def start_pipeline(self) -> None:
        """Run OpenVINO's request on its threads, and wait for it; a cancellation stops it between two of its nodes."""
        require_threads()
        begun = time.perf_counter_ns()
        with self.stopping(self._request.cancel):
            self._is_running = True
            try:
                self._request.start_async()
                while not self._request.wait_for(_POLL_MS):
                    pass
                self._request.wait()  # which raises the error of the inference
            except RuntimeError as e:
                raise DeviceError(f"{self.signature.network}: request {self.request_id}: {self._told(e)}") from e
        self._is_running = False
        if self.is_profiling:
            record(self, self._request.profiling_info, self._nodes, begun)

    def infer_postprocess(self) -> None:
        """Copy what OpenVINO has in memory of its own."""
        for index, (kind, shape) in enumerate(self._outputs_of):
            if shape is None:
                self.store_output(index, self._value(index, self._request.get_output_tensor(index), kind))

    def _value(self, index: int, tensor: Any, kind: Any) -> NDArray[Any]:
        """The elements of a tensor, still in OpenVINO's memory if they are not packed."""
        shape, dtype = tuple(tensor.shape), self.signature.result_checks[index].dtype
        assert dtype is not None  # OpenVINO has tensors only
        if not tensor.size:
            return np.empty(shape, dtype)
        data: NDArray[Any] = tensor.data.reshape(-1)
        if kind.bitwidth < 8:
            data = unpacked(data.view(np.uint8), kind.bitwidth, math.prod(shape))
        return data.view(dtype).reshape(shape)

    def _told(self, error: Exception) -> str:
        """OpenVINO's error, with the names of the model's nodes."""
        told = reason(error)
        for name, node in self._nodes.items():
            told = told.replace(f"'{name}'", f"`{node.friendly_name}`")
        return f"OpenVINO: {told}"

    def abort_pipeline(self) -> None:
        """Wait until OpenVINO has let go of the arrays."""
        if self._is_running:
            self._is_running = False
            self._request.cancel()
            try:
                self._request.wait()
            except RuntimeError:  # the cancellation
                return

    def clear_tensors(self) -> None:
        """Let go of the arrays."""
        super().clear_tensors()
        self._held = []

    def _tensor(self, value: Any, kind: Any) -> Any:
        """A tensor of OpenVINO in the memory of an array; its constructor by bytes takes every type."""
        data = value.reshape(-1).view(np.uint8)
        if kind.bitwidth < 8:
            data = packed(data, kind.bitwidth)
        self._held.append(data)
        return self._module.Tensor(data, self._module.Shape(value.shape), kind)

    def _check_range(self, index: int, value: NDArray[Any]) -> None:
        if self._takes_wide or value.dtype.kind not in "iu" or value.dtype.itemsize < 4:
            return
        if not fits(value):
            name = self.signature.inputs[index].name if index < len(self.signature.inputs) else "of a variable"
            raise InputError(
                f"{self.signature.network}: input `{name}` has integers beyond 32 bits, which OpenVINO would clip; "
                "compile with ALLOW_NARROW_TYPES to accept that, or use another device"
            )


def _in_place(port: Any) -> tuple[int, ...] | None:
    """The shape of an output that OpenVINO can write into a given array; None if it is not known or packed."""
    is_known = port.partial_shape.is_static and port.element_type.bitwidth >= 8
    return tuple(port.partial_shape.to_shape()) if is_known else None
