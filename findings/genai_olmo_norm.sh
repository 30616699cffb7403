#!/usr/bin/env bash
# onnxruntime-genai 0.18.0: an OLMo checkpoint is written with another normalization than OLMo has.
#
# The guess before: the model computes the logits of transformers, up to rounding.
# What happens: OLMo subtracts the mean (LayerNorm without weights), and the model has SimplifiedLayerNormalization, which
# does not; epsilon is 1e-6 instead of 1e-5. Logits differ as much as they vary, without a warning.
#
# Installs pinned packages in a temporary folder; about 1 GB. Exits with 1 if the behaviour is another one.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q onnxruntime-genai==0.18.0 onnxruntime==1.32.0 torch==2.13.0 transformers==5.24.0 \
    tokenizers==0.23.3 onnx==1.23.2 onnx-ir==1.1.0 sentencepiece==0.2.3
cat > "$work/try.py" <<'PY'
import runpy, sys
from pathlib import Path

import numpy, onnx, onnxruntime, onnxruntime_genai, tokenizers, torch, transformers

work = Path(sys.argv[1])
source, target = work / "source", work / "target"
torch.manual_seed(0)
config = transformers.OlmoConfig(
    vocab_size=320, hidden_size=64, intermediate_size=128, num_hidden_layers=1, num_attention_heads=4,
    num_key_value_heads=4, max_position_embeddings=256, initializer_range=0.3, bos_token_id=1, eos_token_id=2,
    pad_token_id=0,
)
torch_model = transformers.AutoModelForCausalLM.from_config(config).float().eval()
torch_model.save_pretrained(source)
words = tokenizers.Tokenizer(tokenizers.models.WordLevel({f"w{i}": i for i in range(320)}, unk_token="w0"))
transformers.PreTrainedTokenizerFast(tokenizer_object=words, eos_token="w2").save_pretrained(source)

package = Path(onnxruntime_genai.__file__).parent / "models"
sys.path.insert(0, str(package))
builder = runpy.run_path(str(package / "builder.py"), run_name="builder")
paths = str(source), str(source), str(target), "fp32", "cpu", str(work / "cache")
builder["create_model"](*paths, **builder["parse_extra_options"](*paths, []))

path = target / "model.onnx"
kinds = {n.op_type for n in onnx.load(path, load_external_data=False).graph.node if "LayerNormalization" in n.op_type}
ids = numpy.array([[3, 9, 17, 40, 77]])
past = numpy.zeros((1, 4, 0, 16), numpy.float32)
feeds = {"input_ids": ids, "attention_mask": numpy.ones_like(ids)}
feeds |= {f"past_key_values.0.{part}": past for part in ("key", "value")}
mine = onnxruntime.InferenceSession(str(path)).run(["logits"], feeds)[0]
with torch.no_grad():
    theirs = torch_model(torch.tensor(ids)).logits.numpy()
gap, deviation = abs(mine - theirs).max(), theirs.std()
print("onnxruntime-genai", onnxruntime_genai.__version__, "transformers", transformers.__version__)
print("normalizations of the model:", sorted(kinds))
print(f"logits differ by {gap:.2g}; their standard deviation is {deviation:.2g}")
sys.exit(0 if "LayerNormalization" not in kinds and gap > 0.1 * deviation else 1)
PY
"$work/venv/bin/python" "$work/try.py" "$work" 2>/dev/null
