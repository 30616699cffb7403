#!/usr/bin/env bash
# What transformers' fast tokenizers give for a pair of texts whose second text is empty.
# Expected: the tokens of the pair, as the library tokenizers gives them, which the fast tokenizer wraps: a model that
# scores pairs has learned the separators of a pair, and the number of the second text in `token_type_ids`.
set -euo pipefail
transformers=5.24.0 tokenizers=0.23.3
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet "transformers==$transformers" "tokenizers==$tokenizers"
HF_HUB_OFFLINE=1 "$folder/venv/bin/python" -W ignore - <<'PYTHON'
import sys

import tokenizers
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers, processors

words = {"[UNK]": 0, "[CLS]": 1, "[SEP]": 2, "[PAD]": 3, "red": 4, "fox": 5}
inner = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
inner.pre_tokenizer = pre_tokenizers.Whitespace()
inner.post_processor = processors.TemplateProcessing(
    single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 1), ("[SEP]", 2)]
)
outer = transformers.PreTrainedTokenizerFast(tokenizer_object=inner, unk_token="[UNK]", pad_token="[PAD]")

wanted = inner.encode("red fox", "").tokens
alone = outer.convert_ids_to_tokens(outer("red fox", "")["input_ids"])
listed = [outer.convert_ids_to_tokens(ids) for ids in outer(["red fox"], [""])["input_ids"]]
blank = outer.convert_ids_to_tokens(outer("red fox", " ")["input_ids"])
print(f"tokenizers {tokenizers.__version__}, transformers {transformers.__version__}")
print(f"tokenizers, (text, ''):       {wanted}")
print(f"transformers, (text, ''):     {alone}")
print(f"transformers, ([text], ['']): {listed[0]}")
print(f"transformers, (text, ' '):    {blank}")
sys.exit((wanted, alone, listed[0], blank) != (
    ["[CLS]", "red", "fox", "[SEP]", "[SEP]"], ["[CLS]", "red", "fox", "[SEP]"],
    ["[CLS]", "red", "fox", "[SEP]", "[SEP]"], ["[CLS]", "red", "fox", "[SEP]", "[SEP]"],
))
PYTHON
