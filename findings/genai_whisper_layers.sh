#!/usr/bin/env bash
# onnxruntime-genai 0.18.0: a Whisper checkpoint whose decoder has more layers than its encoder is written with an encoder
# that computes cross-attention's keys and values for as many layers as the encoder has.
#
# The guess before: `encoder.onnx` has keys and values for each layer of the decoder, which reads them.
# What happens: with one layer in the encoder and two in the decoder, those of the second layer are missing. The builder
# says nothing, and the two files do not fit together.
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

import onnx, onnxruntime_genai, tokenizers, torch, transformers

work = Path(sys.argv[1])
package = Path(onnxruntime_genai.__file__).parent / "models"
sys.path.insert(0, str(package))
builder = runpy.run_path(str(package / "builder.py"), run_name="builder")


def layers(encoder_layers, decoder_layers):
    """The layers whose cross-attention the encoder computes, and the decoder reads."""
    source, target = (work / f"{what}{encoder_layers}{decoder_layers}" for what in ("source", "target"))
    torch.manual_seed(0)
    config = transformers.WhisperConfig(
        vocab_size=120, d_model=32, encoder_layers=encoder_layers, decoder_layers=decoder_layers,
        encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=64, decoder_ffn_dim=64, num_mel_bins=8,
        max_source_positions=16, max_target_positions=48, pad_token_id=0, bos_token_id=1, eos_token_id=2,
        decoder_start_token_id=1, suppress_tokens=[], begin_suppress_tokens=[],
    )
    transformers.WhisperForConditionalGeneration(config).save_pretrained(source)
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({f"w{i}": i for i in range(120)}, unk_token="w0"))
    transformers.PreTrainedTokenizerFast(tokenizer_object=words, eos_token="w2").save_pretrained(source)
    transformers.WhisperFeatureExtractor(feature_size=8).save_pretrained(source)
    paths = str(source), str(source), str(target), "fp32", "cpu", str(work / "cache")
    builder["create_model"](*paths, **builder["parse_extra_options"](*paths, []))
    graphs = [onnx.load(target / f"{part}.onnx", load_external_data=False).graph for part in ("encoder", "decoder")]
    names = [value.name for value in graphs[0].output], [value.name for value in graphs[1].input]
    return [sorted(name for name in each if "key_cross" in name) for each in names]


found = {pair: layers(*pair) for pair in ((2, 2), (1, 2))}
print("onnxruntime-genai", onnxruntime_genai.__version__, "transformers", transformers.__version__)
for (encoder, decoder), (computed, read) in found.items():
    print(f"encoder of {encoder} layers, decoder of {decoder}: computed {computed}, read {read}")
sys.exit([[len(each) for each in pair] for pair in found.values()] != [[2, 2], [1, 2]])
PY
"$work/venv/bin/python" "$work/try.py" "$work" 2>/dev/null | grep -v "^Reading\|^Saving"
