"""Chat with a language model, with the tokenizer and the chat template of the package `transformers`.

usage: python examples/chat.py BLOB FOLDER [MESSAGE ...]     (default: messages from standard input, one a line)

BLOB is what `engine compile --stateful` has written; FOLDER has the model's tokenizer, as `save_pretrained` writes it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

from transformers import AutoTokenizer

from engine import Core
from engine.generation import Generator, Sampling, TextStream

SAMPLING = Sampling(temperature=0.7, top_p=0.9, seed=0)
TOKENS = 64


def main(blob: str, folder: str, *messages: str) -> int:
    """Print the answer to each message."""
    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    generator = Generator(Core().import_model(blob), SAMPLING, stop_tokens=[tokenizer.eos_token_id])
    chat: list[dict[str, str]] = []
    for message in messages or map(str.strip, sys.stdin):
        chat.append({"role": "user", "content": message})
        prompt = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=True)["input_ids"]
        continue_with(generator, prompt)
        # The tokenizer below transformers' own leaves out special tokens, such as the one that ends an answer.
        text, pieces = TextStream(tokenizer.backend_tokenizer), []
        for piece in answer(generator, text):
            print(piece, end="", flush=True)
            pieces.append(piece)
        print()
        chat.append({"role": "assistant", "content": "".join(pieces)})
    return 0


def continue_with(generator: Generator, prompt: list[int]) -> None:
    """Let the generator have the tokens of a prompt; those that it begins with already are not computed again."""
    known = generator.tokens[0] if generator.tokens else []
    # The last token of the prompt is computed in any case: its logits tell what follows.
    both = min(len(known), len(prompt) - 1)
    common = next((i for i in range(both) if known[i] != prompt[i]), both)
    generator.rewind(len(known) - common)
    generator.append(prompt[common:])


def answer(generator: Generator, text: TextStream) -> Iterator[str]:
    """The text that follows, piece by piece."""
    for token in generator.stream(max_tokens=TOKENS):
        yield text.add(token)
    yield text.end()


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    sys.exit(main(*sys.argv[1:]))
