"""Classifiers of images, from `torchvision`, `timm` and `transformers`."""

from __future__ import annotations

from typing import Any

from exporting.recipe import Module, Recipes, normal
from exporting.recipes.text import of_config, usual

RECIPES = Recipes("images")
_BATCH = {0: "batch"}


def pictures(module: Any, size: int, argument: str = "x", batch: int = 2, *, varying: bool = True) -> Module:
    """A module of one batch of images in RGB, whose number varies."""
    return Module(module, {argument: normal(batch, 3, size, size)}, {argument: _BATCH} if varying else {})


def of_torchvision(name: str, smallest: int = 32, **settings: Any) -> Any:
    """A recipe: a classifier of torchvision; only images are smaller at scale 1."""

    def make(scale: int) -> Module:
        import torchvision

        known = {} if name[0].isupper() else {"weights": None}
        made = getattr(torchvision.models, name)(num_classes=10, **known, **settings)
        return pictures(made, smallest if scale == 1 else max(32 * scale, smallest), batch=1)

    return make


def of_timm(name: str, smallest: int = 32, varying: bool = True, **settings: Any) -> Any:
    """A recipe: a definition of timm."""

    def make(scale: int) -> Module:
        import timm

        made = timm.create_model(name, pretrained=False, num_classes=10, **settings)
        size = settings.get("img_size", smallest if scale == 1 else max(32 * scale, smallest))
        return pictures(made, size, batch=1, varying=varying)

    return make


def of_transformers(config: str, model: str, image: int = 32, patch: int | None = 8, plain: bool = True,
                    **settings: Any) -> Any:  # fmt: skip
    """A recipe: a vision model of transformers; `plain` ones have the usual sizes."""

    def make(scale: int) -> Module:
        sizes = dict(usual(scale)) if plain else {}
        for name in ("vocab_size", "max_position_embeddings"):
            sizes.pop(name, None)
        size = image * (1 if scale == 1 else 2)
        sizes |= {"image_size": size} if patch is None else {"image_size": size, "patch_size": patch}
        return pictures(of_config(config, model, **{**sizes, **settings}), size, "pixel_values")

    return make


RECIPES.add("resnet18", of_torchvision("resnet18"))
RECIPES.add("mobilenet_v2", of_torchvision("mobilenet_v2", width_mult=0.25))
RECIPES.add("mobilenet_v3", of_torchvision("mobilenet_v3_small", width_mult=0.5))
RECIPES.add("shufflenet_v2", of_torchvision("shufflenet_v2_x0_5"))
RECIPES.add("squeezenet", of_torchvision("squeezenet1_1"))
RECIPES.add("densenet", of_torchvision("DenseNet", growth_rate=8, block_config=(2, 2, 2), num_init_features=16))
RECIPES.add("mnasnet", of_torchvision("mnasnet0_5"))
RECIPES.add("regnet", of_torchvision("regnet_y_400mf"))
RECIPES.add("googlenet", of_torchvision("googlenet", 64, aux_logits=False, init_weights=False))
RECIPES.add("efficientnet", of_torchvision("efficientnet_b0"))
RECIPES.add("maxvit", of_timm("maxvit_pico_rw_256", img_size=64, varying=False))
RECIPES.add("convnext_atto", of_timm("convnext_atto"))
RECIPES.add("ghostnet", of_timm("ghostnet_050"))
RECIPES.add("mixer", of_timm("mixer_s32_224", img_size=64))
RECIPES.add("mobilevit_xxs", of_timm("mobilevit_xxs", 64))
RECIPES.add("repvgg", of_timm("repvgg_a0"))
RECIPES.add("nfnet", of_timm("test_nfnet", 64))
RECIPES.add("byobnet", of_timm("test_byobnet", 64))
RECIPES.add("hrnet", of_timm("hrnet_w18_small", 64))
RECIPES.add("levit", of_timm("levit_128s", img_size=64, varying=False))
RECIPES.add("edgenext", of_timm("edgenext_xx_small", 64))
RECIPES.add("resnest", of_timm("resnest14d", 64))
RECIPES.add("halonet", of_timm("halonet26t", 256, varying=False))
RECIPES.add("vit", of_transformers("ViTConfig", "ViTForImageClassification"))
RECIPES.add("beit", of_transformers("BeitConfig", "BeitModel", use_relative_position_bias=True))
RECIPES.add("dinov2", of_transformers("Dinov2Config", "Dinov2Model"))
RECIPES.add("swin", of_transformers("SwinConfig", "SwinModel", 32, 4, plain=False, embed_dim=16, depths=[2, 2],
                                    num_heads=[2, 4], window_size=4))  # fmt: skip
RECIPES.add("swinv2", of_transformers("Swinv2Config", "Swinv2Model", 32, 4, plain=False, embed_dim=16, depths=[2, 2],
                                      num_heads=[2, 4], window_size=4))  # fmt: skip
RECIPES.add("poolformer", of_transformers("PoolFormerConfig", "PoolFormerModel", 32, None, plain=False,
                                          hidden_sizes=[16, 24, 32, 48], depths=[1, 1, 1, 1]))  # fmt: skip
RECIPES.add("focalnet", of_transformers("FocalNetConfig", "FocalNetModel", 32, 4, plain=False, embed_dim=16,
                                        depths=[1, 1], focal_levels=[2, 2], focal_windows=[3, 3]))  # fmt: skip


@RECIPES()
def clip(scale: int) -> Module:
    from exporting.recipe import tokens

    sizes = {key: value for key, value in usual(scale).items() if key != "vocab_size"}
    made = of_config(
        "CLIPConfig", "CLIPModel", projection_dim=16,
        text_config={**sizes, "vocab_size": 100, "max_position_embeddings": 16, "eos_token_id": 99},
        vision_config={**{k: v for k, v in sizes.items() if not k.startswith("max")}, "image_size": 32,
                       "patch_size": 8},
    )  # fmt: skip
    inputs = {"input_ids": tokens(3, 8), "pixel_values": normal(2, 3, 32, 32), "attention_mask": tokens(3, 8) * 0 + 1}
    axes = {"input_ids": {0: "texts"}, "pixel_values": {0: "images"}, "attention_mask": {0: "texts"}}
    return Module(made, inputs, axes)


@RECIPES()
def siglip(scale: int) -> Module:
    from exporting.recipe import tokens

    sizes = {key: value for key, value in usual(scale).items() if not key.startswith(("vocab", "max"))}
    made = of_config("SiglipConfig", "SiglipModel", vision_config={**sizes, "image_size": 32, "patch_size": 8},
                     text_config={**sizes, "vocab_size": 100, "max_position_embeddings": 8})  # fmt: skip
    return Module(made, {"input_ids": tokens(2, 8), "pixel_values": normal(2, 3, 32, 32)})
