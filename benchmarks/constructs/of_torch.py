"""Models that PyTorch's two exporters write: control flow, complex numbers, quantized modules, and others."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch._higher_order_ops import associative_scan, cond, scan, while_loop
from torch._higher_order_ops import map as map_over

from constructs.construct import Written, construct

DYNAMO, SCRIPT = "torch.onnx.export, dynamo", "torch.onnx.export, TorchScript"


def exported(
    module: Any, inputs: Sequence[torch.Tensor], dynamo: bool = True, tolerance: float = 2e-5, **options: Any
) -> Written:
    """Export a module or function, and compute its results."""
    torch.manual_seed(0)
    if not isinstance(module, nn.Module):
        module = _Called(module)
    module = module.eval()
    with torch.no_grad():
        if dynamo:
            program = torch.onnx.export(module, tuple(inputs), dynamo=True, verbose=False, **options)
            model: Any = program.model_proto
        else:
            buffer = io.BytesIO()
            torch.onnx.export(module, tuple(inputs), buffer, dynamo=False, **options)
            model = buffer.getvalue()
        found = module(*inputs)
    flat = list(_flat(found))
    return Written(model, [each.numpy() for each in inputs], [_array(each) for each in flat], tolerance)


def _flat(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        for each in value.values():
            yield from _flat(each)
    else:
        for each in value:
            yield from _flat(each)


def _array(tensor: torch.Tensor) -> Any:
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor)
    return (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy()


class _Called(nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *values: Any) -> Any:
        return self.function(*values)


def declared(exporter: str, name: str, module: Callable[[], Any], *shapes: Any, **options: Any) -> None:
    """Declare a construct of modules with random inputs: shapes, or tensors."""

    def make() -> Written:
        torch.manual_seed(0)
        inputs = [each if isinstance(each, torch.Tensor) else torch.randn(each) for each in shapes]
        return exported(module(), inputs, dynamo=exporter == DYNAMO, **options)

    construct(exporter, "torch", *(("onnxscript",) if exporter == DYNAMO else ()), name=name)(make)


class Branches(nn.Module):
    """cond whose branches use weights, nested."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return cond(x.sum() > 0, lambda v: cond(v.max() > 1, self.one, torch.relu, (v,)), self.other, (x,))


class Powers(nn.Module):
    """while_loop with two carried values."""

    def forward(self, x: torch.Tensor, n: torch.Tensor) -> Any:
        return while_loop(lambda i, v: i < n, lambda i, v: (i + 1, v * 0.5 + 1), (torch.tensor(0), x))


class Running(nn.Module):
    """scan with a carried value and stacked outputs."""

    def forward(self, start: torch.Tensor, steps: torch.Tensor) -> Any:
        return scan(lambda carry, x: (carry * 0.9 + x, torch.tanh(carry + x)), start, steps, dim=0)


class Rotary(nn.Module):
    """Complex numbers as rotary embeddings use them."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        angles = torch.outer(torch.arange(x.shape[1]).float(), 1.0 / 10000 ** (torch.arange(0, 8, 2) / 8))
        turned = torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2)) * torch.polar(torch.ones_like(angles), angles)
        return torch.view_as_real(turned).flatten(2)


class Accumulating(nn.Module):
    """A scripted loop that appends to a list."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: list[torch.Tensor] = []
        for i in range(x.size(0)):
            if bool(x[i].sum() > 0):
                found.append(x[i] * 2)
            else:
                found.append(x[i])
        return torch.stack(found)


class Searching(nn.Module):
    """A scripted while loop with a condition of data."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        steps = 0
        while bool(x.abs().max() > 0.5) and steps < 20:
            x = x * 0.7
            steps += 1
        return x


class FakeQuantized(nn.Module):
    """Weights by channel and activations by tensor, as training for quantization has them."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(16, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.fake_quantize_per_tensor_affine(x, 0.04, 3, -128, 127)
        scale, zero = self.linear.weight.abs().amax(1) / 127, torch.zeros(8, dtype=torch.int32)
        weight = torch.fake_quantize_per_channel_affine(self.linear.weight, scale, zero, 0, -128, 127)
        return nn.functional.linear(x, weight, self.linear.bias)


def statically_quantized() -> nn.Module:
    """Convolution, ReLU and product in PyTorch's eager quantization."""
    quant = torch.ao.quantization
    model = nn.Sequential(quant.QuantStub(), nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(288, 4),
                          quant.DeQuantStub()).eval()  # fmt: skip
    model.qconfig = quant.get_default_qconfig("x86")
    prepared = quant.prepare(model)
    prepared(torch.randn(4, 3, 8, 8))
    return quant.convert(prepared)


def dynamically_quantized() -> nn.Module:
    """Products with weights of 8 bits."""
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4)).eval()
    return torch.ao.quantization.quantize_dynamic(model, {nn.Linear}, torch.qint8)


class Twice(nn.Module):
    """One value returned twice, and an input returned."""

    def forward(self, x: torch.Tensor) -> Any:
        y = torch.relu(x)
        return y, y, x


class Recurrent(nn.Module):
    """LSTM and GRU in both directions."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(8, 6, num_layers=2, bidirectional=True, batch_first=True)
        self.gru = nn.GRU(12, 5, bidirectional=True, batch_first=True)

    def forward(self, x: torch.Tensor) -> Any:
        return self.gru(self.lstm(x)[0])


def attention(**options: Any) -> Callable[..., torch.Tensor]:
    return lambda q, k, v: nn.functional.scaled_dot_product_attention(q, k, v, **options)


def scattered(x: torch.Tensor) -> torch.Tensor:
    put = x.index_put((torch.tensor([0, 2]),), torch.ones(2, 5))
    return put.scatter_add(0, torch.zeros(2, 5, dtype=torch.int64), x[:2])


AUTO = torch.export.Dim.AUTO
for where in (DYNAMO, SCRIPT):
    declared(where, "complex: rotary embedding", Rotary, (2, 5, 8))
    declared(
        where,
        "complex: fft, product, inverse",
        lambda: lambda x: torch.fft.irfft(torch.fft.rfft(x) * 2j, n=16),
        (3, 16),
    )
    declared(where, "stft and magnitude", lambda: lambda x: torch.stft(
        x, 16, 4, window=torch.hann_window(16), return_complex=True).abs(), (2, 64))  # fmt: skip
    declared(where, "fake quantization", FakeQuantized, (3, 16))
    declared(where, "quantized modules, static", statically_quantized, (1, 3, 8, 8), tolerance=0.02)
    declared(where, "quantized modules, dynamic", dynamically_quantized, (3, 16), tolerance=0.02)
    declared(where, "one value twice, and an input, as outputs", Twice, (2, 3))
    declared(where, "LSTM and GRU", Recurrent, (2, 7, 8))
    declared(where, "attention, causal", lambda: attention(is_causal=True), (1, 4, 6, 8), (1, 4, 6, 8), (1, 4, 6, 8))
    declared(where, "attention, grouped", lambda: attention(enable_gqa=True), (1, 4, 6, 8), (1, 2, 6, 8), (1, 2, 6, 8))
    declared(where, "nonzero, masked_select", lambda: lambda x: (x.nonzero(), x.masked_select(x > 0)), (4, 5))
    declared(where, "index_put, scatter_add", lambda: scattered, (4, 5))
    declared(
        where, "unique", lambda: lambda x: torch.unique((x * 2).round(), return_inverse=True, return_counts=True), (12,)
    )
    declared(where, "grid_sample, interpolate antialiased", lambda: lambda x, g: (
        nn.functional.grid_sample(x, g, align_corners=False),
        nn.functional.interpolate(x, (5, 7), mode="bilinear", antialias=True)), (1, 2, 8, 8), (1, 4, 4, 2))  # fmt: skip
    declared(where, "einsum", lambda: lambda x: torch.einsum("bij,bkj->bik", x, x), (2, 4, 5))
    declared(where, "bucketize", lambda: lambda x: torch.bucketize(x, torch.tensor([-1.0, 0, 1])), (2, 5))
    declared(where, "cummax", lambda: lambda x: x.cummax(1).values, (2, 5))
    declared(where, "embedding_bag", lambda: nn.EmbeddingBag(10, 4, mode="mean"), torch.tensor([[1, 2, 4], [4, 3, 2]]))
    declared(where, "f16 weights", lambda: nn.Linear(8, 4).half(), torch.randn(3, 8).half(), tolerance=2e-3)
    declared(where, "bf16 cast inside", lambda: lambda x: (x.bfloat16() * 3).float(), (3, 8), tolerance=1e-2)

declared(DYNAMO, "cond, nested, with weights", Branches, torch.full((3, 8), 0.5))
declared(DYNAMO, "while_loop", Powers, torch.randn(4), torch.tensor(7))
declared(DYNAMO, "scan", Running, (3,), (6, 3))
declared(DYNAMO, "map", lambda: lambda x, y: map_over(lambda a, b: torch.sin(a) * b, x, y), (5, 3), (3,))
declared(
    DYNAMO, "associative_scan", lambda: lambda x: associative_scan(torch.add, x, 0, combine_mode="generic"), (6, 3)
)
declared(DYNAMO, "open lengths", lambda: nn.Sequential(nn.Linear(8, 8), nn.Flatten(0, 1)), (2, 5, 8),
         dynamic_shapes=({0: AUTO, 1: AUTO},))  # fmt: skip
declared(DYNAMO, "complex output", lambda: lambda x: torch.fft.fft(x), (2, 8))
declared(DYNAMO, "float8 cast inside", lambda: lambda x: x.to(torch.float8_e4m3fn).float(), (3, 8))
declared(SCRIPT, "scripted loop with a list", lambda: torch.jit.script(Accumulating()), (4, 3))
declared(SCRIPT, "scripted while", lambda: torch.jit.script(Searching()), (4, 3))
declared(SCRIPT, "open lengths", lambda: nn.Sequential(nn.Linear(8, 8), nn.Flatten(0, 1)), (2, 5, 8), input_names=["x"],
         dynamic_axes={"x": {0: "batch", 1: "length"}})  # fmt: skip
