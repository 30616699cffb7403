"""PyTorch's own modules for the networks of `engine.testing.networks`, in eager mode on the device's memory.

They are what a user of PyTorch runs: from torchvision and transformers, with random weights, on which times do not
depend. Batch normalization is not folded, attention is PyTorch's fused one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def torch_runs(network: str, images: int, device: str) -> dict[str, Callable[[], object]]:
    """A function for each precision that runs an inference to its end; empty for a network without a module.

    Raises `ImportError` if a package is missing, `RuntimeError` or `AssertionError` if PyTorch cannot use the device.
    """
    import torch

    made = _module(network, images)
    if made is None:
        return {}
    module, inputs = made
    module = module.eval().to(device)
    half = module if device == "cpu" else _copied(module).half()
    moved = [x.to(device) for x in inputs]
    halves = [x.half() if x.is_floating_point() else x for x in moved]

    def run(module: Any, inputs: Any, *, tf32: bool = False) -> Callable[[], object]:
        def once() -> None:
            torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = tf32
            with torch.inference_mode():
                module(*inputs)
            if device == "cuda":
                torch.cuda.synchronize()

        return once

    runs = {"f32": run(module, moved)}
    if device == "cuda":
        runs |= {"TF32": run(module, moved, tf32=True), "f16": run(half, halves)}
    return runs


def torch_products(size: int, device: str) -> dict[str, Callable[[], object]]:
    """A function for each precision that multiplies two matrices on the device; raises like `torch_runs`."""
    import torch

    x, y = (torch.randn(size, size, device=device) for _ in range(2))

    def run(x: Any, y: Any) -> Callable[[], object]:
        def once() -> None:
            torch.backends.cuda.matmul.allow_tf32 = False
            x @ y
            if device == "cuda":
                torch.cuda.synchronize()

        return once

    return {"f32": run(x, y), "f16": run(x.half(), y.half())} if device == "cuda" else {"f32": run(x, y)}


def _copied(module: Any) -> Any:
    import copy

    return copy.deepcopy(module)


def _module(network: str, images: int) -> tuple[Any, list[Any]] | None:
    import torch

    picture = [torch.randn(images, 3, 224, 224)]
    if network in ("resnet50", "mobilenet_v2", "vit_b16"):
        import torchvision

        return getattr(torchvision.models, {"vit_b16": "vit_b_16"}.get(network, network))(), picture
    if network == "bert_base":
        import transformers

        tokens = torch.randint(0, 1000, (images, 128))
        return transformers.BertModel(transformers.BertConfig()), [tokens, torch.ones_like(tokens)]
    if network == "gpt2_blocks":
        import transformers

        decoder = transformers.GPT2Model(transformers.GPT2Config())

        class Blocks(torch.nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.decoder = decoder

            def forward(self, x: Any) -> Any:
                return self.decoder(inputs_embeds=x, use_cache=False).last_hidden_state

        return Blocks(), [torch.randn(images, 64, 768)]
    return None
