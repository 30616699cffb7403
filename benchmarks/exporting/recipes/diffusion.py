"""Parts of diffusion pipelines, from `diffusers`."""

from __future__ import annotations

from typing import Any

import numpy as np

from exporting.recipe import Module, Recipes, normal

RECIPES = Recipes("diffusion")


def _flat(module: Any) -> Any:
    """A model of diffusers that returns a tuple."""
    import torch

    class Flat(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.module = module

        def forward(self, *inputs: Any) -> Any:
            return self.module(*inputs, return_dict=False)[0]

    return Flat()


def _time(value: int = 11) -> np.ndarray:
    return np.array([value], np.int64)


@RECIPES()
def unet_conditional(scale: int) -> Module:
    import diffusers

    w = 16 * scale
    made = diffusers.UNet2DConditionModel(
        sample_size=8, in_channels=4, out_channels=4, block_out_channels=(w, 2 * w), layers_per_block=1,
        down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"), up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
        cross_attention_dim=16, attention_head_dim=8, norm_num_groups=4,
    )  # fmt: skip
    inputs = {"sample": normal(2, 4, 8, 8), "timestep": _time(), "encoder_hidden_states": normal(2, 5, 16)}
    axes = {"sample": {0: "batch"}, "encoder_hidden_states": {0: "batch", 1: "words"}}
    return Module(_flat(made), inputs, axes)


@RECIPES()
def unet_unconditional(scale: int) -> Module:
    import diffusers

    w = 16 * scale
    made = diffusers.UNet2DModel(
        sample_size=16, block_out_channels=(w, 2 * w), layers_per_block=1, norm_num_groups=4,
        down_block_types=("DownBlock2D", "AttnDownBlock2D"), up_block_types=("AttnUpBlock2D", "UpBlock2D"),
    )  # fmt: skip
    return Module(_flat(made), {"sample": normal(1, 3, 16, 16), "timestep": _time()}, {"sample": {0: "batch"}})


def _vae(scale: int) -> Any:
    import diffusers

    w = 8 * scale
    return diffusers.AutoencoderKL(
        block_out_channels=(w, 2 * w), down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2, latent_channels=4, norm_num_groups=4, layers_per_block=1,
    )  # fmt: skip


@RECIPES()
def vae_decoder(scale: int) -> Module:
    import torch

    vae = _vae(scale)

    class Decoder(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.vae = vae

        def forward(self, latents: Any) -> Any:
            return self.vae.decode(latents, return_dict=False)[0]

    return Module(Decoder(), {"latents": normal(1, 4, 8, 8)}, {"latents": {0: "batch", 2: "height", 3: "width"}})


@RECIPES()
def vae_encoder(scale: int) -> Module:
    import torch

    vae = _vae(scale)

    class Encoder(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.vae = vae

        def forward(self, images: Any) -> Any:
            return self.vae.encode(images).latent_dist.mode()

    return Module(Encoder(), {"images": normal(1, 3, 16, 16)}, {"images": {0: "batch"}})


@RECIPES()
def dit(scale: int) -> Module:
    import diffusers

    made = diffusers.DiTTransformer2DModel(
        num_attention_heads=2, attention_head_dim=8 * scale, in_channels=4, out_channels=8, num_layers=1,
        norm_num_groups=2, sample_size=8, patch_size=2, num_embeds_ada_norm=10,
    )  # fmt: skip
    inputs = {"hidden_states": normal(2, 4, 8, 8), "timestep": np.array([3, 5]), "class_labels": np.array([1, 2])}

    import torch

    class Labelled(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.module = made

        def forward(self, hidden_states: Any, timestep: Any, class_labels: Any) -> Any:
            return self.module(hidden_states, timestep, class_labels, return_dict=False)[0]

    return Module(Labelled(), inputs)


@RECIPES()
def sd3_transformer(scale: int) -> Module:
    import diffusers
    import torch

    made = diffusers.SD3Transformer2DModel(
        sample_size=8, patch_size=2, in_channels=4, num_layers=2, attention_head_dim=8 * scale, num_attention_heads=2,
        joint_attention_dim=16, caption_projection_dim=16 * scale, pooled_projection_dim=16, out_channels=4,
    )  # fmt: skip

    class Joint(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.module = made

        def forward(self, hidden: Any, words: Any, pooled: Any, timestep: Any) -> Any:
            return self.module(hidden, words, pooled, timestep, return_dict=False)[0]

    inputs = {"hidden": normal(1, 4, 8, 8), "words": normal(1, 5, 16), "pooled": normal(1, 16), "timestep": _time()}
    return Module(Joint(), inputs)
