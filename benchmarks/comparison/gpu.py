"""The references for OPENCL on a GPU: the device's multiply-add peak, PyTorch and onnxruntime.

The peers run the same ONNX model with the same weights, in f32 without TF32.
"""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pyopencl as cl
from engine_opencl.devices.device import OpenclDevice
from onnx import ModelProto, NodeProto, helper, numpy_helper

Arrays = Mapping[str, np.ndarray]

_CHAINS = 8
"""Independent sums of each work item."""
_STEPS = 4096
_PEAK = f"""
__kernel void peak(__global float* found, float a, float b) {{
  float x[{_CHAINS}];
  for (int i = 0; i < {_CHAINS}; ++i) x[i] = get_global_id(0) + i;
  for (int n = 0; n < {_STEPS // 16}; ++n)
    #pragma unroll
    for (int m = 0; m < 16; ++m)
      #pragma unroll
      for (int i = 0; i < {_CHAINS}; ++i) x[i] = x[i] * a + b;
  float sum = 0.0f;
  for (int i = 0; i < {_CHAINS}; ++i) sum += x[i];
  found[get_global_id(0)] = sum;
}}
"""


def measured_peak(device: OpenclDevice, rounds: int) -> float:
    """GFLOP/s of f32 multiply-adds on registers: the best of slightly more than `rounds` rounds."""
    queue = device.new_queue(profiling=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", cl.CompilerWarning)
        kernel = cl.Kernel(cl.Program(device.context, _PEAK).build(["-cl-mad-enable"]), "peak")
    group = min(256, device.facts.max_work_group)
    items = 32 * group * device.facts.compute_units
    found = cl.Buffer(device.context, cl.mem_flags.READ_WRITE, 4 * items)
    kernel.set_args(found, np.float32(0.999), np.float32(0.5))
    spent = []
    for _ in range(rounds + 5):
        event = cl.enqueue_nd_range_kernel(queue, kernel, (items,), (group,))
        event.wait()
        spent.append(event.profile.end - event.profile.start)
    return 2 * items * _CHAINS * _STEPS / min(spent)


class Peer(ABC):
    """Another engine with one model."""

    name: str

    @abstractmethod
    def infer(self, inputs: Arrays) -> list[np.ndarray]:
        """Run an inference from host memory to host memory."""

    def resident(self, inputs: Arrays) -> Callable[[], object] | None:
        """Run an inference whose input and output stay on the device, to its end; None if that cannot be measured."""
        return None


class Torch(Peer):
    """PyTorch in eager mode: the model's nodes one after the other."""

    def __init__(self, model: ModelProto, device: str) -> None:
        import torch

        self._torch = torch
        self._device = device
        self.name = f"PyTorch {torch.__version__} ({device})"
        if device == "cuda":
            self.name = f"PyTorch {torch.__version__} ({torch.cuda.get_device_name()})"
        torch.backends.cuda.matmul.allow_tf32 = False
        torch.backends.cudnn.allow_tf32 = False
        self._graph = model.graph
        self._weights = {i.name: torch.from_numpy(numpy_helper.to_array(i).copy()) for i in model.graph.initializer}
        self._moved = {name: w.to(device) for name, w in self._weights.items() if w.is_floating_point()}
        self._nodes = [
            (node, {a.name: helper.get_attribute_value(a) for a in node.attribute}) for node in self._graph.node
        ]

    def infer(self, inputs: Arrays) -> list[np.ndarray]:
        moved = {name: self._torch.from_numpy(value).to(self._device) for name, value in inputs.items()}
        return [value.cpu().numpy() for value in self._forward(moved)]

    def resident(self, inputs: Arrays) -> Callable[[], object] | None:
        moved = {name: self._torch.from_numpy(value).to(self._device) for name, value in inputs.items()}

        def run() -> None:
            self._forward(moved)
            if self._device == "cuda":
                self._torch.cuda.synchronize()

        return run

    def _forward(self, inputs: Mapping[str, Any]) -> list[Any]:
        with self._torch.inference_mode():
            values = {**self._moved, **inputs}
            for node, attributes in self._nodes:
                values[node.output[0]] = self._run(node, attributes, values)
            return [values[output.name] for output in self._graph.output]

    def _run(self, node: NodeProto, attributes: Mapping[str, Any], values: Mapping[str, Any]) -> Any:
        torch, f = self._torch, self._torch.nn.functional
        given = [values.get(name) for name in node.input]
        pads = attributes.get("pads", [0, 0, 0, 0])[:2]
        match node.op_type:
            case "Conv":
                strides, group = attributes.get("strides", [1, 1]), attributes.get("group", 1)
                return f.conv2d(*given, stride=strides, padding=pads, groups=group)
            case "MaxPool":
                return f.max_pool2d(given[0], attributes["kernel_shape"], attributes["strides"], pads)
            case "Relu":
                return torch.relu(given[0])
            case "Add":
                return given[0] + given[1]
            case "MatMul":
                return given[0] @ given[1]
            case "Gemm":
                return f.linear(given[0], given[1] if attributes.get("transB") else given[1].T, given[2])
            case "ReduceMean":
                return given[0].mean(self._weights[node.input[1]].tolist(), keepdim=bool(attributes["keepdims"]))
            case "Reshape":
                return given[0].reshape(self._weights[node.input[1]].tolist())
        raise ValueError(f"{node.op_type} `{node.name}`: the comparison with PyTorch does not support this operator")


class OnnxRuntime(Peer):
    """onnxruntime with its CUDA provider."""

    def __init__(self, model: ModelProto, device: str) -> None:
        import onnxruntime

        providers: list[Any] = [("CUDAExecutionProvider", {"use_tf32": "0"})]
        if device != "cuda":
            providers = ["CPUExecutionProvider"]
        wanted = "CUDAExecutionProvider" if device == "cuda" else "CPUExecutionProvider"
        if wanted not in onnxruntime.get_available_providers():
            raise ImportError(f"onnxruntime {onnxruntime.__version__} has no {wanted}")
        self._session = onnxruntime.InferenceSession(model.SerializeToString(), providers=providers)
        self.name = f"onnxruntime {onnxruntime.__version__} ({self._session.get_providers()[0]})"

    def infer(self, inputs: Arrays) -> list[np.ndarray]:
        return list(self._session.run(None, dict(inputs)))


def peers(model: ModelProto, device: str) -> tuple[list[Peer], list[str]]:
    """The peers that are installed and run on `device`, "cuda" or "cpu"; and why others are missing."""
    found: list[Peer] = []
    missing = []
    for kind in (Torch, OnnxRuntime):
        try:
            found.append(kind(model, device))
        except (ImportError, RuntimeError, AssertionError) as e:
            missing.append(f"{kind.__name__} is not available: {str(e).splitlines()[0]}")
    return found, missing
