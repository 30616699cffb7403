"""The inputs through which a model takes low-rank adapters: their names, and the modules that they belong to."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

LORA_A: Final = ".lora_A"
"""Behind the path of a module: the name of the input [width of x, ranks] that x is multiplied with first."""
LORA_B: Final = ".lora_B"
"""Behind the path of a module: the name of the input [ranks, columns] that is multiplied with the result."""
ADAPTER_MASK: Final = "adapter_mask"
"""The name of the input [batch, ranks] of booleans: the ranks that each sequence uses."""

_ATTENTION: Final = frozenset({"attn", "self_attn", "self_attention"})
"""Names of the attention of a layer; onnxruntime-genai's builder calls all of them `attn`."""


def module_parts(path: str) -> tuple[str, ...]:
    """The components of a path, such as `model.layers.0.self_attn.q_proj`, with one name for attention."""
    return tuple("attn" if part in _ATTENTION else part for part in path.split("."))


def matching_modules(path: str, candidates: Iterable[str]) -> list[str]:
    """The candidates that name the same module as `path`; the one with the same name, if there is one.

    One of the two may begin further outside: exporters add the attribute of a wrapper (`model.model.layers.0...`), or
    export an inner module (`layers.0...`).
    """
    known = list(candidates)
    if path in known:
        return [path]
    wanted = module_parts(path)
    return [each for each in known if _is_same(wanted, module_parts(each))]


def _is_same(a: tuple[str, ...], b: tuple[str, ...]) -> bool:
    length = min(len(a), len(b))
    return a[-length:] == b[-length:]
