"""Exports networks of many architectures, with random weights, for `compare.py --sweep`.

    pip install torch transformers timm onnxscript
    python benchmarks/architectures.py FOLDER                  # all, some minutes
    python benchmarks/architectures.py FOLDER --only swin,t5

Needs nothing of the engine, and downloads nothing: a configuration of `transformers` or a definition of `timm`, small
enough for two cores, is built with seeded weights and exported by PyTorch's exporter. FOLDER receives NAME.onnx and
NAME.npz, its inputs. Architectures that cannot be exported are reported and left out.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import sys
import warnings
from collections.abc import Callable, Mapping
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
import torch

Made = tuple[torch.nn.Module, dict[str, torch.Tensor]]
"""A module and its inputs, by name."""

TOKENS, IMAGE = 64, 224
OPSET = 20


def text(config: str, model: str, **changes: Any) -> Callable[[], Made]:
    """A model of tokens from a configuration of `transformers`, by class names."""

    def make() -> Made:
        import transformers

        module = build(transformers, config, model, {"vocab_size": 1000, **changes})
        ids = torch.from_numpy(np.random.default_rng(0).integers(5, 900, (1, TOKENS)))
        return module, {"input_ids": ids}

    return make


def image(config: str, model: str, size: int = IMAGE, **changes: Any) -> Callable[[], Made]:
    """A model of images from a configuration of `transformers`."""

    def make() -> Made:
        import transformers

        return build(transformers, config, model, changes), {"pixel_values": normal(1, 3, size, size)}

    return make


def sound(config: str, model: str, name: str, shape: tuple[int, ...], **changes: Any) -> Callable[[], Made]:
    """A model of waves or spectrograms from a configuration of `transformers`."""

    def make() -> Made:
        import transformers

        return build(transformers, config, model, changes), {name: normal(*shape)}

    return make


def pictured(name: str, size: int = IMAGE, **changes: Any) -> Callable[[], Made]:
    """A definition of `timm`."""

    def make() -> Made:
        import timm

        return timm.create_model(name, pretrained=False, **changes), {"x": normal(1, 3, size, size)}

    return make


def build(library: Any, config: str, model: str, changes: Mapping[str, Any]) -> torch.nn.Module:
    """A model with random weights."""
    settings = getattr(library, config)(**changes)
    with contextlib.suppress(AttributeError):
        settings.use_cache = False
    made: torch.nn.Module = attrgetter(model)(library)(settings)
    return made


def randomize(module: torch.nn.Module) -> None:
    """Keep values at the scale of the inputs: initial weights of training let them vanish in deep networks."""
    with torch.no_grad():
        for name, value in module.named_parameters():
            if value.dim() >= 2 and "embed" not in name:
                value.normal_(0, (value[0].numel()) ** -0.5)


def normal(*shape: int) -> torch.Tensor:
    """Seeded values of a normal distribution."""
    return torch.from_numpy(np.random.default_rng(0).standard_normal(shape).astype(np.float32))


_SMALL = {"hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 1024}
_DECODER = {**_SMALL, "num_key_value_heads": 2}

ARCHITECTURES: Mapping[str, Callable[[], Made]] = {
    # encoders of text
    "bert": text("BertConfig", "BertModel", **_SMALL),
    "roberta": text("RobertaConfig", "RobertaModel", **_SMALL),
    "albert": text("AlbertConfig", "AlbertModel", embedding_size=64, **_SMALL),
    "electra": text("ElectraConfig", "ElectraModel", embedding_size=64, **_SMALL),
    "distilbert": text("DistilBertConfig", "DistilBertModel", dim=256, n_layers=4, n_heads=4, hidden_dim=1024),
    "deberta_v2": text("DebertaV2Config", "DebertaV2Model", relative_attention=True, pos_att_type=["p2c", "c2p"],
                       position_buckets=32, max_relative_positions=64, **_SMALL),
    "mobilebert": text("MobileBertConfig", "MobileBertModel", num_hidden_layers=6),
    "squeezebert": text("SqueezeBertConfig", "SqueezeBertModel", embedding_size=256, **_SMALL),
    "mpnet": text("MPNetConfig", "MPNetModel", **_SMALL),
    "fnet": text("FNetConfig", "FNetModel", hidden_size=256, num_hidden_layers=4, intermediate_size=1024),
    "funnel": text("FunnelConfig", "FunnelModel", d_model=256, n_head=4, d_head=64, d_inner=1024, block_sizes=[2, 2]),
    "convbert": text("ConvBertConfig", "ConvBertModel", embedding_size=256, **_SMALL),
    "roformer": text("RoFormerConfig", "RoFormerModel", embedding_size=256, **_SMALL),
    "modernbert": text("ModernBertConfig", "ModernBertModel", pad_token_id=0, bos_token_id=1, eos_token_id=2,
                       cls_token_id=1, sep_token_id=2, **_SMALL),
    "t5_encoder": text("T5Config", "T5EncoderModel", d_model=256, d_kv=64, d_ff=1024, num_layers=4, num_heads=4),
    # decoders of text, all tokens at once
    "gpt2": text("GPT2Config", "GPT2LMHeadModel", n_embd=256, n_layer=4, n_head=4),
    "gpt_neox": text("GPTNeoXConfig", "GPTNeoXForCausalLM", **_SMALL),
    "opt": text("OPTConfig", "OPTForCausalLM", hidden_size=256, num_hidden_layers=4, num_attention_heads=4,
                ffn_dim=1024, word_embed_proj_dim=256),
    "llama": text("LlamaConfig", "LlamaForCausalLM", **_DECODER),
    "qwen2": text("Qwen2Config", "Qwen2ForCausalLM", **_DECODER),
    "gemma": text("GemmaConfig", "GemmaForCausalLM", head_dim=64, **_DECODER),
    "phi": text("PhiConfig", "PhiForCausalLM", **_SMALL),
    "bloom": text("BloomConfig", "BloomForCausalLM", hidden_size=256, n_layer=4, n_head=4),
    # transformers of images
    "vit": image("ViTConfig", "ViTModel", **{**_SMALL, "hidden_size": 192, "num_attention_heads": 3}),
    "deit": image("DeiTConfig", "DeiTModel", **{**_SMALL, "hidden_size": 192, "num_attention_heads": 3}),
    "beit": image("BeitConfig", "BeitModel", use_relative_position_bias=True, **_SMALL),
    "dinov2": image("Dinov2Config", "Dinov2Model", **{**_SMALL, "hidden_size": 192, "num_attention_heads": 3}),
    "swin": image("SwinConfig", "SwinModel"),
    "swinv2": image("Swinv2Config", "Swinv2Model", 256, image_size=256, depths=[2, 2, 2, 2], window_size=8),
    "cvt": image("CvtConfig", "CvtModel", depth=[1, 2, 4]),
    "pvt": image("PvtConfig", "PvtModel"),
    "segformer": image("SegformerConfig", "SegformerForSemanticSegmentation", 256),
    "mobilevit": image("MobileViTConfig", "MobileViTModel", 256),
    "mobilevitv2": image("MobileViTV2Config", "MobileViTV2Model", 256),
    "levit": image("LevitConfig", "LevitModel"),
    "poolformer": image("PoolFormerConfig", "PoolFormerModel"),
    "focalnet": image("FocalNetConfig", "FocalNetModel"),
    "yolos": image("YolosConfig", "YolosModel", 224, image_size=[224, 224], num_detection_tokens=20,
                   **{**_SMALL, "hidden_size": 192, "num_attention_heads": 3}),
    "dpt": image("DPTConfig", "DPTForDepthEstimation", 224, image_size=224, hidden_size=192, num_hidden_layers=4,
                 num_attention_heads=3, intermediate_size=768, backbone_out_indices=[0, 1, 2, 3],
                 neck_hidden_sizes=[48, 96, 192, 192], fusion_hidden_size=64),
    "maxvit": pictured("maxvit_pico_rw_256", 256),
    "mixer": pictured("mixer_s32_224"),
    "edgenext": pictured("edgenext_x_small", 256),
    "coat": pictured("coat_lite_tiny"),
    "tiny_vit": pictured("tiny_vit_5m_224"),
    # convolutional networks
    "convnextv2": image("ConvNextV2Config", "ConvNextV2Model"),
    "resnext50": pictured("resnext50_32x4d"),
    "regnetx": pictured("regnetx_016"),
    "regnety": pictured("regnety_016"),
    "res2net": pictured("res2net50_26w_4s"),
    "ghostnet": pictured("ghostnet_100"),
    "mnasnet": pictured("mnasnet_100"),
    "mobilenetv1": pictured("mobilenetv1_100"),
    "mobilenetv3": pictured("mobilenetv3_large_100"),
    "efficientnetv2": pictured("efficientnetv2_rw_t"),
    "inception_v3": pictured("inception_v3", 299),
    "xception": pictured("xception41", 299),
    "hrnet": pictured("hrnet_w18_small"),
    "dla": pictured("dla34"),
    "cspdarknet": pictured("cspdarknet53"),
    "repvgg": pictured("repvgg_a0"),
    "nfnet": pictured("eca_nfnet_l0"),
    "resnet18": pictured("resnet18"),
    "resnest": pictured("resnest14d"),
    "selecsls": pictured("selecsls42b"),
    "shufflenet": lambda: (_torchvision("shufflenet_v2_x1_0"), {"x": normal(1, 3, IMAGE, IMAGE)}),
    # sound and sequences
    "wav2vec2": sound("Wav2Vec2Config", "Wav2Vec2Model", "input_values", (1, 16000), **_SMALL),
    "ast": sound("ASTConfig", "ASTModel", "input_values", (1, 128, 128), max_length=128,
                 **{**_SMALL, "hidden_size": 192, "num_attention_heads": 3}),
    "whisper": sound("WhisperConfig", "models.whisper.modeling_whisper.WhisperEncoder", "input_features",
                     (1, 80, 3000), d_model=256, encoder_layers=2, encoder_attention_heads=4, encoder_ffn_dim=1024),
}  # fmt: skip


def _torchvision(name: str) -> torch.nn.Module:
    import torchvision

    made: torch.nn.Module = getattr(torchvision.models, name)(weights=None)
    return made


def export(name: str, folder: Path) -> None:
    """Write one network and its inputs."""
    torch.manual_seed(0)
    module, inputs = ARCHITECTURES[name]()
    randomize(module)
    path = folder / f"{name}.onnx"
    with torch.no_grad(), contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            module.eval(), (), str(path), kwargs=inputs, dynamo=True, opset_version=OPSET, external_data=False,
            input_names=list(inputs), verbose=False,
        )  # fmt: skip
    np.savez(folder / f"{name}.npz", **{key: value.numpy() for key, value in inputs.items()})


def main() -> int:
    """Export, and report each network."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", default=",".join(ARCHITECTURES), help="separated by commas")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    failed = 0
    for name in options.only.split(","):
        try:
            export(name, options.folder)
            print(f"{name}: {(options.folder / f'{name}.onnx').stat().st_size / 1e6:.1f} MB", flush=True)
        except Exception as e:  # any failure of an exporter
            failed += 1
            print(f"{name}: not exported: {type(e).__name__}: {' '.join(str(e).split())[:200]}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
