#!/usr/bin/env bash
# onnxruntime-genai 0.18.0: a Mistral checkpoint with a sliding window is written without it, and then does not generate
# beyond twice its length.
#
# The guess before: each layer has `local_window_size` 16, and generation gives the tokens of transformers.
# What happens: `local_window_size` is -1 in all layers (a Mistral configuration has no `layer_types`), so the model attends
# to all tokens; genai_config.json still has a `sliding_window` of 16, of no layers, and `Generator` fails at the 33rd token.
#
# Installs pinned packages in a temporary folder; about 1 GB. Exits with 1 if the behaviour is another one.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q onnxruntime-genai==0.18.0 onnxruntime==1.32.0 torch==2.13.0 transformers==5.24.0 \
    tokenizers==0.23.3 onnx==1.23.2 onnx-ir==1.1.0 sentencepiece==0.2.3
cat > "$work/try.py" <<'PY'
import json, runpy, sys
from pathlib import Path

import onnx, onnxruntime_genai, tokenizers, torch, transformers

work = Path(sys.argv[1])
source, target = work / "source", work / "target"
torch.manual_seed(0)
config = transformers.MistralConfig(
    vocab_size=320, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2, head_dim=16, max_position_embeddings=256, sliding_window=16, initializer_range=0.3,
    bos_token_id=1, eos_token_id=2, pad_token_id=0,
)
transformers.AutoModelForCausalLM.from_config(config).save_pretrained(source)
words = tokenizers.Tokenizer(tokenizers.models.WordLevel({f"w{i}": i for i in range(320)}, unk_token="w0"))
transformers.PreTrainedTokenizerFast(tokenizer_object=words, eos_token="w2").save_pretrained(source)

package = Path(onnxruntime_genai.__file__).parent / "models"
sys.path.insert(0, str(package))
builder = runpy.run_path(str(package / "builder.py"), run_name="builder")
paths = str(source), str(source), str(target), "fp32", "cpu", str(work / "cache")
builder["create_model"](*paths, **builder["parse_extra_options"](*paths, []))

graph = onnx.load(target / "model.onnx", load_external_data=False).graph
windows = {a.i for n in graph.node if n.op_type == "GroupQueryAttention" for a in n.attribute if a.name == "local_window_size"}
said = json.loads((target / "genai_config.json").read_text())["model"]["decoder"].get("sliding_window")
model = onnxruntime_genai.Model(str(target))
params = onnxruntime_genai.GeneratorParams(model)
params.set_search_options(max_length=60, min_length=60)
generator = onnxruntime_genai.Generator(model, params)
generator.append_tokens(list(range(3, 13)))
failure = ""
try:
    while not generator.is_done():
        generator.generate_next_token()
except Exception as e:
    failure = str(e)
count = len(generator.get_sequence(0))
print("onnxruntime-genai", onnxruntime_genai.__version__, "transformers", transformers.__version__)
print("local_window_size of the layers:", windows, "(the checkpoint's: 16)")
print("genai_config.json, sliding_window:", said)
print("tokens with the prompt:", count, "of 60;", failure[:300] or "no error")
is_so = windows == {-1} and said and said["layers"] == [] and "present.0.key" in failure and count < 60
sys.exit(0 if is_so else 1)
PY
"$work/venv/bin/python" "$work/try.py" "$work" 2>/dev/null
