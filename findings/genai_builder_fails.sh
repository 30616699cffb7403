#!/usr/bin/env bash
# onnxruntime-genai 0.18.0: the builder does not write Gemma 3 and SmolLM3 for CPU, and its --help ends with an error.
#
# The guess before: Gemma 3 and SmolLM3, which the builder's documentation lists, are written by it with the transformers
# that it needs (5: it imports Qwen3_5ForConditionalGeneration), from the configurations that this version makes.
# What happens: KeyError 'rope_type', as transformers 5 has rotary parameters for each kind of layer; KeyError
# 'position_ids' in SmolLM3's layers without rotary embeddings; and `--help` fails on a per cent sign in a help text.
#
# Installs pinned packages in a temporary folder; about 1 GB. Exits with 1 if the behaviour is another one.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q onnxruntime-genai==0.18.0 onnxruntime==1.32.0 torch==2.13.0 transformers==5.24.0 \
    tokenizers==0.23.3 onnx==1.23.2 onnx-ir==1.1.0 sentencepiece==0.2.3
cat > "$work/write.py" <<'PY'
import sys

import tokenizers, transformers

small = dict(
    vocab_size=320, hidden_size=64, intermediate_size=128, num_hidden_layers=6, num_attention_heads=4,
    num_key_value_heads=2, max_position_embeddings=256, bos_token_id=1, eos_token_id=2, pad_token_id=0,
)
words = tokenizers.Tokenizer(tokenizers.models.WordLevel({f"w{i}": i for i in range(320)}, unk_token="w0"))
for name, config in (
    ("gemma3", transformers.Gemma3TextConfig(**small, head_dim=16, sliding_window=16)),
    ("smollm3", transformers.SmolLM3Config(**small)),
):
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(f"{sys.argv[1]}/{name}")
    transformers.PreTrainedTokenizerFast(tokenizer_object=words, eos_token="w2").save_pretrained(f"{sys.argv[1]}/{name}")
PY
"$work/venv/bin/python" "$work/write.py" "$work" 2>/dev/null
"$work/venv/bin/python" -c 'import onnxruntime_genai as g, transformers as t; print("onnxruntime-genai", g.__version__, "transformers", t.__version__)'
changed=0
expect() {  # NAME WORDS COMMAND...: the last line of the command's output has the words
    local name=$1 words=$2 last
    shift 2
    last=$("$@" 2>&1 | grep -v '^\s*$' | tail -n 1 || true)
    echo "$name: $last"
    [[ $last == *"$words"* ]] || changed=1
}
build=("$work/venv/bin/python" -m onnxruntime_genai.models.builder)
for name in gemma3:rope_type smollm3:position_ids; do
    expect "${name%:*}" "KeyError: '${name#*:}'" "${build[@]}" -m "$work/${name%:*}" -i "$work/${name%:*}" \
        -o "$work/${name%:*}-onnx" -p fp32 -e cpu -c "$work/cache"
done
expect "--help" "ValueError" "${build[@]}" --help
exit "$changed"
