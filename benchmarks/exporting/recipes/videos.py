"""Networks of videos and volumes, from `torchvision` and of their own."""

from __future__ import annotations

from typing import Any

from exporting.recipe import Module, Recipes, normal

RECIPES = Recipes("videos")


def clips(module: Any, frames: int, size: int, channels: int = 3) -> Module:
    """A module of one clip; the number of clips varies."""
    return Module(module, {"x": normal(1, channels, frames, size, size)}, {"x": {0: "batch"}})


def of_torchvision(name: str, frames: int = 4, smallest: int = 32) -> Any:
    """A recipe: a classifier of clips, which are smaller at scale 1."""

    def make(scale: int) -> Module:
        import torchvision

        made = getattr(torchvision.models.video, name)(weights=None, num_classes=10)
        return clips(made, frames if scale == 1 else 2 * frames, smallest if scale == 1 else 56)

    return make


RECIPES.add("r3d", of_torchvision("r3d_18"))
RECIPES.add("r2plus1d", of_torchvision("r2plus1d_18"))


@RECIPES()
def swin3d(scale: int) -> Module:
    import torchvision

    made = torchvision.models.video.SwinTransformer3d(
        patch_size=[2, 4, 4], embed_dim=8 * scale, depths=[2, 2], num_heads=[2, 4], window_size=[2, 4, 4],
        num_classes=10,
    )  # fmt: skip
    return clips(made, 4, 32)


@RECIPES()
def x3d_block(scale: int) -> Module:
    """Depthwise convolutions of three axes between pointwise ones, with a gate for each channel."""
    import torch

    class Block(torch.nn.Module):
        def __init__(self, width: int, inner: int) -> None:
            super().__init__()
            self.expand = torch.nn.Sequential(torch.nn.Conv3d(width, inner, 1, bias=False), torch.nn.BatchNorm3d(inner))
            self.each = torch.nn.Sequential(
                torch.nn.Conv3d(inner, inner, 3, padding=1, groups=inner, bias=False), torch.nn.BatchNorm3d(inner)
            )
            self.gate = torch.nn.Sequential(
                torch.nn.AdaptiveAvgPool3d(1), torch.nn.Conv3d(inner, 8, 1), torch.nn.ReLU(),
                torch.nn.Conv3d(8, inner, 1), torch.nn.Sigmoid(),
            )  # fmt: skip
            self.project = torch.nn.Conv3d(inner, width, 1)

        def forward(self, x: Any) -> Any:
            y = self.each(torch.relu(self.expand(x)))
            return x + self.project(torch.nn.functional.silu(y * self.gate(y)))

    width = 12 * scale
    stem = torch.nn.Sequential(
        torch.nn.Conv3d(3, width, (1, 3, 3), (1, 2, 2), (0, 1, 1), bias=False),
        torch.nn.Conv3d(width, width, (5, 1, 1), padding=(2, 0, 0), groups=width),
    )
    blocks = [Block(width, 54 * scale // 2) for _ in range(2)]
    head = [torch.nn.AdaptiveAvgPool3d(1), torch.nn.Flatten(), torch.nn.Linear(width, 10)]
    return clips(torch.nn.Sequential(stem, *blocks, *head), 4 * scale, 16 * scale)


@RECIPES()
def unet3d(scale: int) -> Module:
    import torch

    def twice(inputs: int, outputs: int) -> Any:
        layers: list[Any] = []
        for width in (inputs, outputs):
            layers += [torch.nn.Conv3d(width, outputs, 3, 1, 1), torch.nn.InstanceNorm3d(outputs), torch.nn.LeakyReLU()]
        return torch.nn.Sequential(*layers)

    class UNet(torch.nn.Module):
        def __init__(self, width: int) -> None:
            super().__init__()
            self.down = torch.nn.ModuleList([twice(1, width), twice(width, 2 * width)])
            self.up = torch.nn.ConvTranspose3d(2 * width, width, 2, 2)
            self.join = twice(2 * width, width)
            self.last = torch.nn.Conv3d(width, 2, 1)

        def forward(self, x: Any) -> Any:
            kept = self.down[0](x)
            below = self.down[1](torch.nn.functional.max_pool3d(kept, 2))
            return self.last(self.join(torch.cat([self.up(below), kept], 1)))

    return clips(UNet(4 * scale), 8 * scale, 8 * scale, channels=1)
