"""Networks of text, from configurations of `transformers`."""

from __future__ import annotations

import contextlib
from operator import attrgetter
from typing import Any

from exporting.recipe import Module, Recipes, tokens

RECIPES = Recipes("text")
VOCABULARY = 100


def of_config(config: str, model: str, **settings: Any) -> Any:
    """A model of `transformers` by class names, without its cache."""
    import transformers

    made = getattr(transformers, config)(**settings)
    with contextlib.suppress(AttributeError):
        made.use_cache = False
    return attrgetter(model)(transformers)(made)


def lengths(scale: int) -> tuple[int, int]:
    """Batch and length of the tokens."""
    return (2, 6) if scale == 1 else (1, 16 * scale)


def usual(scale: int) -> dict[str, Any]:
    """The sizes as most configurations name them."""
    return {
        "hidden_size": 16 * scale, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32 * scale,
        "vocab_size": VOCABULARY, "max_position_embeddings": 128,
    }  # fmt: skip


def of_tokens(config: str, model: str, masked: bool = False, varying: bool = True, **settings: Any) -> Any:
    """A recipe: a model of tokens, with a mask or not; batch and length vary. Settings may depend on the scale."""

    def make(scale: int) -> Module:
        given = {key: value(scale) if callable(value) else value for key, value in settings.items()}
        sizes = {key: value for key, value in {**usual(scale), **given}.items() if value is not None}
        ids = tokens(*lengths(scale))
        inputs: dict[str, Any] = {"input_ids": ids}
        if masked:
            mask = (ids > -1).astype(ids.dtype)
            mask[-1, -2:] = 0
            inputs["attention_mask"] = mask
        axes = {name: {0: "batch", 1: "length"} for name in inputs} if varying else {}
        return Module(of_config(config, model, **sizes), inputs, axes)

    return make


def width(scale: int) -> int:
    """The width of the usual sizes."""
    return 16 * scale


RECIPES.add("bert", of_tokens("BertConfig", "BertModel", masked=True))
RECIPES.add("albert", of_tokens("AlbertConfig", "AlbertModel", embedding_size=8))
RECIPES.add("distilbert", of_tokens("DistilBertConfig", "DistilBertModel", dim=width, n_layers=2, n_heads=2,
                                    hidden_dim=lambda scale: 32 * scale))  # fmt: skip
RECIPES.add("deberta_v2", of_tokens("DebertaV2Config", "DebertaV2Model", relative_attention=True, masked=True,
                                    pos_att_type=["p2c", "c2p"], position_buckets=8,
                                    max_relative_positions=16))  # fmt: skip
RECIPES.add("modernbert", of_tokens("ModernBertConfig", "ModernBertModel", pad_token_id=0, bos_token_id=1,
                                    eos_token_id=2, cls_token_id=1, sep_token_id=2))  # fmt: skip
RECIPES.add("mpnet", of_tokens("MPNetConfig", "MPNetModel", masked=True))
RECIPES.add("fnet", of_tokens("FNetConfig", "FNetModel", num_attention_heads=None, varying=False))
RECIPES.add("roformer", of_tokens("RoFormerConfig", "RoFormerModel", embedding_size=width))
RECIPES.add("convbert", of_tokens("ConvBertConfig", "ConvBertModel", embedding_size=width))
RECIPES.add("funnel", of_tokens("FunnelConfig", "FunnelModel", d_model=width, n_head=2, d_head=8, d_inner=32,
                                block_sizes=[1, 1], num_hidden_layers=None,
                                max_position_embeddings=None, varying=False))  # fmt: skip
RECIPES.add(
    "xlnet",
    of_tokens(
        "XLNetConfig",
        "XLNetModel",
        d_model=width,
        n_layer=2,
        n_head=2,
        d_inner=32,
        num_hidden_layers=None,
        num_attention_heads=None,
        max_position_embeddings=None,
    ),
)
RECIPES.add("gpt2", of_tokens("GPT2Config", "GPT2LMHeadModel", n_embd=width, n_layer=2, n_head=2))
RECIPES.add("gpt_neox", of_tokens("GPTNeoXConfig", "GPTNeoXForCausalLM", masked=True))
RECIPES.add("bloom", of_tokens("BloomConfig", "BloomForCausalLM", n_layer=2, n_head=2, masked=True))
RECIPES.add("opt", of_tokens("OPTConfig", "OPTForCausalLM", ffn_dim=32, word_embed_proj_dim=width))
RECIPES.add("llama", of_tokens("LlamaConfig", "LlamaForCausalLM", num_key_value_heads=1, masked=True))
RECIPES.add("qwen3", of_tokens("Qwen3Config", "Qwen3ForCausalLM", num_key_value_heads=1, head_dim=8))
RECIPES.add("gemma2", of_tokens("Gemma2Config", "Gemma2ForCausalLM", num_key_value_heads=1, head_dim=8,
                                sliding_window=4))  # fmt: skip
RECIPES.add("phi3", of_tokens("Phi3Config", "Phi3ForCausalLM", pad_token_id=0))
RECIPES.add("mixtral", of_tokens("MixtralConfig", "MixtralForCausalLM", num_key_value_heads=1, num_local_experts=3,
                                 num_experts_per_tok=2, num_hidden_layers=1))  # fmt: skip
RECIPES.add("t5_encoder", of_tokens("T5Config", "T5EncoderModel", d_model=width, d_kv=8, d_ff=32, num_layers=2,
                                    num_heads=2))  # fmt: skip


def both_texts(config: str, model: str, **settings: Any) -> Any:
    """A recipe: an encoder with a decoder, whose tokens have a length of their own."""

    def make(scale: int) -> Module:
        given = {key: value(scale) if callable(value) else value for key, value in settings.items()}
        batch, length = lengths(scale)
        inputs = {"input_ids": tokens(batch, length), "decoder_input_ids": tokens(batch, length // 2)}
        axes = {"input_ids": {0: "batch", 1: "length"}, "decoder_input_ids": {0: "batch", 1: "target"}}
        return Module(of_config(config, model, vocab_size=VOCABULARY, **given), inputs, axes)

    return make


RECIPES.add("t5", both_texts("T5Config", "T5ForConditionalGeneration", d_model=width, d_kv=8, d_ff=32, num_layers=1,
                             num_decoder_layers=1, num_heads=2))  # fmt: skip
RECIPES.add("bart", both_texts("BartConfig", "BartForConditionalGeneration", d_model=width, encoder_layers=1,
                               decoder_layers=1, encoder_attention_heads=2, decoder_attention_heads=2,
                               encoder_ffn_dim=32, decoder_ffn_dim=32, max_position_embeddings=128))  # fmt: skip
