"""Models that onnxruntime-genai's builder writes, and the tokens that it and the engine generate with them.

Two steps, since the builder needs torch, and may need other versions than the engine:

    pip install onnxruntime-genai==0.18.0 onnxruntime==1.32.0 onnx_ir torch==2.13.0 transformers==5.24.0
    python benchmarks/genai_builder.py write models      # in that environment: small models of random weights, tokens
    python benchmarks/genai_builder.py check models      # in the engine's: a table

Each model has a configuration of its architecture with few, small layers, and is written in several forms. `write`
generates with onnxruntime-genai, greedily, after prompts of several lengths; `check` computes the same tokens on the
engine's devices, each after those that onnxruntime-genai chose, and compares: how many are the likeliest ones here, and
by how much the logits of the others differ. Nothing is fetched from a hub.
"""

from __future__ import annotations

import argparse
import json
import os
import runpy
import subprocess
import sys
import traceback
from pathlib import Path
from typing import Any, Final

SMALL: Final = {
    "vocab_size": 320, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 256, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
    "initializer_range": 0.3, "tie_word_embeddings": False,
}  # fmt: skip
TIED: Final = {"tie_word_embeddings": True}
HEADS: Final = {"head_dim": 16}
LONG: Final = {
    "original_max_position_embeddings": 64,
    "rope_parameters": {
        "rope_type": "longrope", "type": "longrope", "rope_theta": 10000.0,
        "short_factor": [1.0 + 0.1 * i for i in range(8)], "long_factor": [1.5 + 0.3 * i for i in range(8)],
    },
}  # fmt: skip
MIXED: Final = {
    "layer_types": ["linear_attention", "full_attention", "linear_attention"], "head_dim": 32,
    "linear_conv_kernel_dim": 4, "linear_key_head_dim": 16, "linear_value_head_dim": 16,
    "linear_num_key_heads": 2, "linear_num_value_heads": 4,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5,
                        "mrope_section": [4, 2, 2], "mrope_interleaved": True},
}  # fmt: skip
SHORT: Final = {"layer_types": ["conv", "full_attention", "conv"], "conv_L_cache": 3}
EXPERTS: Final = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
EYES: Final = {"depth": 1, "num_hidden_layers": 1, "hidden_size": 32, "num_heads": 2, "num_attention_heads": 2,
               "intermediate_size": 32, "out_hidden_size": 64}  # fmt: skip


def seeing(text: dict[str, Any]) -> dict[str, Any]:
    """The configuration of a model that also sees pictures; the builder writes its part for text."""
    return {"text_config": text, "vision_config": EYES, "tie_word_embeddings": False}


def sections(*lengths: int) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": list(lengths)}}


MODELS: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    "Llama": ("LlamaConfig", {}),
    "Llama, tied": ("LlamaConfig", TIED),
    "Mistral": ("MistralConfig", {"sliding_window": None} | HEADS),
    "Mistral, window": ("MistralConfig", {"sliding_window": 16} | HEADS),
    "Qwen2": ("Qwen2Config", TIED),
    "Qwen3": ("Qwen3Config", TIED | HEADS),
    "Gemma": ("GemmaConfig", TIED | HEADS),
    "Gemma2": ("Gemma2Config", TIED | HEADS | {"sliding_window": 16, "query_pre_attn_scalar": 16}),
    "Gemma3": ("Gemma3TextConfig", TIED | HEADS | {"sliding_window": 16, "query_pre_attn_scalar": 16,
                                                  "num_hidden_layers": 7}),
    "Granite": ("GraniteConfig", TIED),
    "Phi": ("PhiConfig", {"partial_rotary_factor": 0.5, "num_key_value_heads": 4, "hidden_size": 128}),
    "Phi3": ("Phi3Config", {"original_max_position_embeddings": 256}),
    "Phi3, longrope": ("Phi3Config", LONG),
    "Nemotron": ("NemotronConfig", {"partial_rotary_factor": 0.5, "head_dim": 32}),
    "OLMo": ("OlmoConfig", {}),
    "Ernie4.5": ("Ernie4_5Config", TIED | HEADS),
    "HunYuan": ("HunYuanDenseV1Config", TIED | HEADS),
    "LFM2": ("Lfm2Config", TIED | SHORT | {"block_auto_adjust_ff_dim": False}),
    "LFM2-MoE": ("Lfm2MoeConfig", TIED | SHORT | EXPERTS | {"num_dense_layers": 1}),
    "LFM2-VL": ("Lfm2VlConfig", seeing(SHORT | {"model_type": "lfm2", "block_auto_adjust_ff_dim": False})),
    "Qwen2.5-VL": ("Qwen2_5_VLConfig", seeing(sections(4, 2, 2))),
    "Qwen3-VL": ("Qwen3VLConfig", seeing(HEADS | sections(4, 2, 2))),
    "Qwen3.5": ("Qwen3_5Config", seeing(MIXED)),
    "Qwen3.5-MoE": ("Qwen3_5MoeConfig", seeing(MIXED | EXPERTS | {"shared_expert_intermediate_size": 32})),
    "Mistral3": ("Mistral3Config", seeing(HEADS | {"model_type": "ministral3", "sliding_window": None})),
    "Gemma3 of pictures": ("Gemma3Config", seeing(HEADS | {"model_type": "gemma3_text", "sliding_window": 16,
                                                           "query_pre_attn_scalar": 16, "num_hidden_layers": 7})),
    "Gemma4": ("Gemma4Config", seeing(HEADS | {"model_type": "gemma4_text", "sliding_window": 16,
                                               "num_hidden_layers": 6, "hidden_size_per_layer_input": 0})),
    "Granite, hybrid": ("GraniteMoeHybridConfig", TIED | {"layer_types": ["attention"] * 3, "num_local_experts": 0,
                                                          "shared_intermediate_size": 128,
                                                          "position_embedding_type": "rope"}),
    "gpt-oss": ("GptOssConfig", HEADS | {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 16}),
    "SmolLM3": ("SmolLM3Config", TIED | {"no_rope_layer_interval": 3}),
}  # fmt: skip
FORMS: Final = {
    "fp32": ("fp32", []),
    "int8": ("int8", []),
    "int4": ("int4", []),
    "whole caches": ("fp32", ["windowed_kv_cache=false"]),
}
PROMPTS: Final = (1, 7, 15, 16, 17, 40, 70)
STEPS: Final = 40


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0], allow_abbrev=False)
    parser.add_argument("step", choices=("write", "check"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--models", help=f"of {'; '.join(MODELS)}")
    parser.add_argument("--forms", help=f"of {'; '.join(FORMS)}")
    parser.add_argument("--devices", default="CPU,TEMPLATE")
    options = parser.parse_args()
    models = options.models.split(";") if options.models else list(MODELS)
    forms = options.forms.split(";") if options.forms else list(FORMS)
    if options.step == "write":
        write(options.folder, models, forms)
    else:
        check(options.folder, models, forms, options.devices.split(","))


def has_form(model: str, form: str) -> bool:
    """Whether a form differs from the others for a model. With 4 bits, a tied table of embeddings is shared."""
    return form != "whole caches" or bool(MODELS[model][1].get("sliding_window"))


# -- in the builder's environment -----------------------------------------------------------------------------


def write(folder: Path, models: list[str], forms: list[str]) -> None:
    """Write the models, each with `expected.json`, or `error.txt`."""
    for name in models:
        source = folder / name / "source"
        if not (source / "config.json").exists():
            write_source(name, source)
        for form in forms:
            target = folder / name / form
            if not has_form(name, form) or (target / "expected.json").exists():
                continue
            target.mkdir(parents=True, exist_ok=True)
            precision, extra = FORMS[form]
            command = [sys.executable, __file__, "write", str(folder), "--models", name, "--forms", form]
            if os.environ.get("ENGINE_BUILDER_PART") == "1":
                build(source, target, precision, extra)
                return
            # A process of its own: the builder changes global state, and may end the process.
            done = subprocess.run(
                command, env=os.environ | {"ENGINE_BUILDER_PART": "1"}, capture_output=True, text=True
            )
            is_written = (target / "expected.json").exists()
            (target / "error.txt").write_text("" if is_written else done.stdout[-4000:] + done.stderr[-6000:])
            print(
                f"{name}, {form}: {'written' if is_written else 'not written: ' + last_line(done.stderr)}", flush=True
            )


def last_line(text: str) -> str:
    """The last line that says something."""
    return ([line for line in text.splitlines() if line.strip()] or [""])[-1][:300]


def write_source(model_name: str, source: Path) -> None:
    """A checkpoint as `transformers` writes it, with a tokenizer of bytes."""
    import tokenizers
    import torch
    import transformers

    kind, given = MODELS[model_name]
    torch.manual_seed(0)
    if "text_config" in given:  # a model that also sees pictures, of which the builder writes the part for text
        config = getattr(transformers, kind)(**given | {"text_config": SMALL | given["text_config"]})
        model = transformers.AutoModelForImageTextToText.from_config(config)
    else:
        config = getattr(transformers, kind)(**SMALL | given)
        model = transformers.AutoModelForCausalLM.from_config(config)
    with torch.no_grad():  # embeddings that outweigh the layers would make every token the one before it
        model.get_input_embeddings().weight *= 0.05
        for name, weight in model.named_parameters():
            if "norm" in name:
                weight += 0.3 * torch.randn_like(weight)
    model.save_pretrained(source)
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=300, special_tokens=["<pad>", "<s>", "</s>"], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(["The quick brown fox jumps over the lazy dog."], trainer)
    wrapped = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", pad_token="<pad>"
    )
    wrapped.save_pretrained(source)


def build(source: Path, target: Path, precision: str, extra: list[str]) -> None:
    """One model, and the tokens that onnxruntime-genai generates with it."""
    import onnxruntime
    import onnxruntime_genai
    import transformers

    package = Path(onnxruntime_genai.__file__).parent / "models"
    sys.path.insert(0, str(package))
    builder = runpy.run_path(str(package / "builder.py"), run_name="builder")
    paths = str(source), str(source), str(target), precision, "cpu", str(target / "cache")
    parsed = builder["parse_extra_options"](*paths, extra)
    config = parsed["hf_details"]["hf_config"]
    config = getattr(config, "text_config", config)
    if "full_attention" in (rope := config.rope_parameters):  # Gemma 3: the builder expects the form of transformers 4
        config.rope_local_base_freq, config.rope_parameters = (
            rope["sliding_attention"]["rope_theta"],
            rope["full_attention"],
        )
    builder["create_model"](*paths, **parsed)
    sees = hasattr(transformers.AutoConfig.from_pretrained(source), "vision_config")
    kind = transformers.AutoModelForImageTextToText if sees else transformers.AutoModelForCausalLM
    torch_model = kind.from_pretrained(source).float().eval()
    prompts = [[3 + (7 * i * i + 3 * i + length) % 297 for i in range(length)] for length in PROMPTS]
    failure = ""
    try:
        tokens = generated(onnxruntime_genai, onnxruntime_genai.Model(str(target)), prompts)
    except Exception as e:
        failure = str(e)[:400]
        tokens = [likeliest(torch_model, prompt, []) for prompt in prompts]
    found = [{"prompt": prompt, "tokens": chosen} for prompt, chosen in zip(prompts, tokens, strict=True)]
    same = [likeliest(torch_model, prompt, chosen) for prompt, chosen in zip(prompts, tokens, strict=True)]
    right = sum(a == b for one, other in zip(tokens, same, strict=True) for a, b in zip(one, other, strict=True))
    packages = {"onnxruntime-genai": onnxruntime_genai, "onnxruntime": onnxruntime, "transformers": transformers}
    described = {
        "versions": {name: package.__version__ for name, package in packages.items()},
        "failure": failure,
        "transformers": f"{right} of {len(PROMPTS) * STEPS}",
        "sequences": found,
    }
    (target / "expected.json").write_text(json.dumps(described))


def generated(package: Any, model: Any, prompts: list[list[int]]) -> list[list[int]]:
    """The tokens that onnxruntime-genai takes after each prompt."""
    found = []
    for prompt in prompts:
        params = package.GeneratorParams(model)
        end = len(prompt) + STEPS
        params.set_search_options(max_length=end, min_length=end, do_sample=False)
        generator = package.Generator(model, params)
        generator.append_tokens(prompt)
        while not generator.is_done():
            generator.generate_next_token()
        found.append([int(each) for each in generator.get_sequence(0)[len(prompt) :]])
    return found


def likeliest(model: Any, prompt: list[int], given: list[int]) -> list[int]:
    """The likeliest token in each step by torch, after the tokens `given`, or after its own."""
    import torch

    tokens, found = list(prompt), []
    with torch.no_grad():
        known = model(torch.tensor([[*prompt, *given]])).logits[0] if given else None
        for step in range(STEPS):
            row = len(prompt) + step - 1
            logits = known[row] if known is not None else model(torch.tensor([tokens])).logits[0, row]
            logits[SMALL["eos_token_id"]] = -torch.inf  # `min_length` forbids it
            found.append(int(logits.argmax()))
            tokens.append(found[-1])
    return found


# -- in the engine's environment ------------------------------------------------------------------------------


def check(folder: Path, models: list[str], forms: list[str], devices: list[str]) -> None:
    """Print the results of each device for each model."""
    print("| model | form | transformers | " + " | ".join(devices) + " |\n|" + "---|" * (3 + len(devices)))
    versions = set()
    for name in models:
        for form in forms:
            target = folder / name / form
            if not has_form(name, form):
                continue
            if (target / "expected.json").exists():
                expected = json.loads((target / "expected.json").read_text())
                versions.add(", ".join(f"{key} {value}" for key, value in sorted(expected["versions"].items())))
                # torch has the weights before they were rounded.
                reference = "" if form.startswith("int") else expected["transformers"]
                cells = [reference, *(checked(target, expected, device) for device in devices)]
                if expected["failure"]:
                    cells[0] = "onnxruntime-genai does not generate with it"
            else:
                error = last_line((target / "error.txt").read_text()) if (target / "error.txt").exists() else "?"
                cells = [f"the builder fails: {error[:160]}", *[""] * len(devices)]
            print(f"| {name} | {form} | " + " | ".join(cells) + " |", flush=True)
    print("\nWritten by " + "; ".join(sorted(versions)))


def checked(target: Path, expected: dict[str, Any], device: str) -> str:
    """How many tokens of a model are the likeliest ones on a device, and how far the others are from it."""
    import numpy as np

    from engine import Core
    from engine.errors import EngineError
    from engine.generation import Generator
    from engine.passes import LastPosition, MakeStateful

    try:
        core = Core()
        model = core.read_model(target / "model.onnx")
        MakeStateful().run_on_model(model)
        LastPosition().run_on_model(model)
        network = core.compile_model(model, device)
        right, count, gap = 0, 0, 0.0
        for sequence in expected["sequences"]:
            generator = Generator(network)
            generator.append(sequence["prompt"])
            for token in sequence["tokens"]:
                logits = generator.logits()[0]
                logits[SMALL["eos_token_id"]] = -np.inf  # `min_length` forbids it
                best = int(logits.argmax())
                right, count = right + (best == token), count + 1
                gap = max(gap, float((logits[best] - logits[token]) / logits[np.isfinite(logits)].std()))
                generator.append([token])
    except EngineError as e:
        return f"{type(e).__name__}: {e}"[:300]
    except Exception:
        return "fails: " + last_line(traceback.format_exc())
    # Tokens that hardly differ would be right however the past is kept.
    kinds = len({token for sequence in expected["sequences"] for token in sequence["tokens"]})
    if kinds < 20:
        return f"only {kinds} different tokens"
    return f"{right} of {count}" + ("" if right == count else f" (others within {gap:.2g} of the logits' deviation)")


if __name__ == "__main__":
    main()
