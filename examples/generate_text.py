"""Continue several texts at the same time, with a tokenizer of the package `tokenizers`.

usage: python examples/generate_text.py BLOB FOLDER TEXT ...

BLOB is what `engine compile --stateful` has written; FOLDER has the model's `tokenizer.json`. Each text ends after 64
tokens. For one text, `engine generate --prompt` does the same.
"""

from __future__ import annotations

import sys
from pathlib import Path

from engine import Core
from engine.generation import Sampling, Scheduler, read_tokenizer

SAMPLING = Sampling(temperature=0.8, top_p=0.95, seed=0)
TOKENS = 64


def main(blob: str, folder: str, *texts: str) -> int:
    """Print each text with its continuation."""
    tokenizer = read_tokenizer(Path(folder) / "tokenizer.json")
    with Scheduler(Core().import_model(blob), slots=min(len(texts), 8)) as scheduler:
        # All are submitted before the first is awaited, so that they are computed together.
        streams = [scheduler.submit(tokenizer.encode(text).ids, TOKENS, sampling=SAMPLING) for text in texts]
        for text, stream in zip(texts, streams, strict=True):
            print(text + tokenizer.decode(stream.result()))
    return 0


if __name__ == "__main__":
    if len(sys.argv) < 4:
        sys.exit(__doc__)
    sys.exit(main(*sys.argv[1:]))
