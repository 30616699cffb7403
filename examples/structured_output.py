"""Continue a text with JSON of a given schema, with a grammar of the package `llguidance`.

usage: python examples/structured_output.py BLOB FOLDER SCHEMA TEXT

BLOB is what `engine compile --stateful` has written; FOLDER has the model's tokenizer, as `save_pretrained` of
`transformers` writes it; SCHEMA is a file with a JSON schema. The exit code is 1 if 256 tokens are not enough.
"""

from __future__ import annotations

import sys
from pathlib import Path

import llguidance
import llguidance.hf
import llguidance.numpy as masks
import numpy as np
from transformers import AutoTokenizer

from engine import Core
from engine.generation import Generator, Sampling

SAMPLING = Sampling(temperature=0.8, seed=0)
TOKENS = 256


def main(blob: str, folder: str, schema: str, text: str) -> int:
    """Print the JSON."""
    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    generator = Generator(Core().import_model(blob), SAMPLING)
    # Without free white space, the output ends after finitely many tokens if its strings and numbers do.
    grammar = llguidance.LLMatcher.grammar_from_json_schema(
        Path(schema).read_text(encoding="utf-8"), overrides={"whitespace_flexible": False}
    )
    matcher = llguidance.LLMatcher(llguidance.hf.from_tokenizer(tokenizer, generator.vocabulary), grammar)
    generator.append(tokenizer.encode(text))
    tokens = constrained(generator, matcher, TOKENS)
    if matcher.get_error():
        sys.exit(f"{schema}: {matcher.get_error()}")
    print(tokenizer.decode(tokens, skip_special_tokens=True))
    return 0 if matcher.is_stopped() else 1


def constrained(generator: Generator, matcher: llguidance.LLMatcher, max_tokens: int) -> list[int]:
    """The next tokens of one sequence, all allowed by the grammar, up to the grammar's end."""
    random = np.random.default_rng(generator.sampling.seed)
    tokens: list[int] = []
    while len(tokens) < max_tokens and not matcher.is_stopped():
        logits = generator.logits()
        mask = masks.allocate_token_bitmask(*logits.shape)
        masks.fill_next_token_bitmask(matcher, mask)
        masks.apply_token_bitmask_inplace(logits, mask)
        tokens.append(generator.sampling.choose(logits[0], np.array(generator.tokens[0]), random))
        matcher.consume_token(tokens[-1])
        generator.append(tokens[-1:])
    return tokens


if __name__ == "__main__":
    if len(sys.argv) != 5:
        sys.exit(__doc__)
    sys.exit(main(*sys.argv[1:]))
