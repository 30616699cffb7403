"""`Adapter`: the matrices of a low-rank adapter (LoRA) of a language model, and PEFT's folders of them."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import field
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from engine.errors import AdapterError, ExternalDataError, UnsupportedError
from engine.startup import dataclass

Array = NDArray[Any]

CONFIG_FILE: Final = "adapter_config.json"
WEIGHTS_FILE: Final = "adapter_model.safetensors"

_MAX_BYTES: Final = 1 << 22
"""The maximum size of a configuration in bytes; those that list all modules have some thousands."""
_TENSOR: Final = re.compile(r"(?:base_model\.model\.)?(.+)\.lora_(A|B)\.weight")
_KEY: Final = re.compile(r"\^?[\w.\-]+")
"""Keys of patterns that are names; PEFT takes them for regular expressions, in which a dot matches itself, too."""
_VARIANTS: Final[Mapping[str, tuple[Any, ...]]] = {
    "bias": ("none", None), "use_dora": (False, None), "lora_bias": (False, None), "use_qalora": (False, None),
    "modules_to_save": (None, []), "layer_replication": (None, []), "alora_invocation_tokens": (None,),
    "trainable_token_indices": (None,), "target_parameters": (None, []), "use_bdlora": (None,), "arrow_config": (None,),
    "kasa_config": (None,), "monteclora_config": (None,),
    "init_lora_weights": (True, False, None, "gaussian", "orthogonal", "eva"),
}  # fmt: skip
"""Options of PEFT whose other values add more than x A B, or change the weights that the adapter is added to, and the
values that do not.
"""
_WITHOUT_EFFECT: Final = frozenset({
    "peft_type", "peft_version", "task_type", "auto_mapping", "base_model_name_or_path", "revision", "inference_mode",
    "r", "lora_alpha", "use_rslora", "rank_pattern", "alpha_pattern", "lora_dropout", "fan_in_fan_out",
    "target_modules", "exclude_modules", "layers_to_transform", "layers_pattern", "megatron_config", "megatron_core",
    "loftq_config", "eva_config", "corda_config", "lora_ga_config", "velora_config", "qalora_group_size",
    "runtime_config", "ensure_weight_tying",
})  # fmt: skip
"""Options that are read here, or that have no effect on the results of a trained adapter. `fan_in_fan_out` tells how
the matrix that it is added to is stored.
"""


@dataclass(frozen=True, slots=True, eq=False)
class Adapter:
    """What a low-rank adapter adds to linear layers: (x A) B for each module.

    Attributes:
        name: for messages.
        modules: A [width of x, rank] and B [rank, columns] of each module, by its path; f32. B has the scale.
    """

    name: str
    modules: Mapping[str, tuple[Array, Array]] = field(repr=False)

    def __post_init__(self) -> None:
        """Raise `AdapterError` unless each module has two finite matrices that can be multiplied."""
        if not self.modules:
            raise AdapterError(f"adapter `{self.name}` has no modules")
        checked = {}
        for path, (a, b) in self.modules.items():
            if a.ndim != 2 or b.ndim != 2 or a.shape[1] != b.shape[0] or not a.shape[1]:
                raise AdapterError(
                    f"adapter `{self.name}`: module `{path}` has A {list(a.shape)} and B {list(b.shape)}; expected "
                    "[width, rank] and [rank, columns], of one rank above 0"
                )
            pair = np.ascontiguousarray(a, np.float32), np.ascontiguousarray(b, np.float32)
            for letter, matrix in zip("AB", pair, strict=True):
                if not np.isfinite(matrix).all():
                    raise AdapterError(
                        f"adapter `{self.name}`: {letter} of module `{path}` has NaN or infinite elements, or some "
                        "beyond the range of f32"
                    )
                matrix.flags.writeable = False
            checked[path] = pair
        object.__setattr__(self, "modules", checked)

    @property
    def rank(self) -> int:
        """The greatest rank of its modules."""
        return max(int(a.shape[1]) for a, _ in self.modules.values())


def read_adapter(folder: str | Path) -> Adapter:
    """Read a LoRA adapter that PEFT wrote: `adapter_config.json` and `adapter_model.safetensors`.

    Each module has its rank, and the scale lora_alpha / r, or lora_alpha / sqrt(r) with `use_rslora`; `rank_pattern`
    and `alpha_pattern` are used. The weights may be f32, f16, bf16 or f64.

    Raises `AdapterError` for files that are missing, damaged or contradict each other, a module without A or B, ranks
    other than stated, and elements that are not finite. Raises `UnsupportedError` for variants of LoRA, such as DoRA,
    trained biases and further trained modules, and for options that are unknown.
    """
    folder = Path(folder)
    config = _Config(folder / CONFIG_FILE)
    try:
        tensors = _tensors(folder / WEIGHTS_FILE)
    except ExternalDataError as e:
        raise AdapterError(str(e)) from e
    modules: dict[str, dict[str, Array]] = {}
    for name, tensor in tensors.items():
        match = _TENSOR.fullmatch(name)
        if match is None:
            raise UnsupportedError(
                f"{folder / WEIGHTS_FILE} has a tensor `{name}`; expected `<module>.lora_A.weight` and "
                "`<module>.lora_B.weight` alone, as of LoRA without its variants"
            )
        modules.setdefault(match[1], {})[match[2]] = tensor
    return Adapter(str(folder), {path: config.scaled(path, pair) for path, pair in modules.items()})


def _tensors(path: Path) -> dict[str, Array]:
    from engine.onnx.safetensors import SafetensorsFile  # few processes read adapters

    file = SafetensorsFile.open(path, f"adapter `{path}`")
    found = {name: file.array(name) for name in file}
    for name, tensor in found.items():
        if tensor.dtype not in (np.float32, np.float64, np.float16) and tensor.dtype.name != "bfloat16":
            raise ExternalDataError(f"tensor `{name}` is {tensor.dtype} in {path}; expected f32, f16, bf16 or f64")
    return found


class _Config:
    """The values of `adapter_config.json`."""

    def __init__(self, path: Path) -> None:
        self.path, self.values = path, _content(path)
        if (kind := self.values.get("peft_type", "LORA")) != "LORA":
            raise UnsupportedError(f"{path}: `peft_type` is {kind!r:.80}; expected 'LORA'")
        self._require_usual()
        self.rank = self._positive("r", self.values.get("r", 8), int)
        self.alpha = self._positive("lora_alpha", self.values.get("lora_alpha", 8), float)
        self.is_root = self.values.get("use_rslora") or False
        if not isinstance(self.is_root, bool):
            raise self._wrong("use_rslora", self.is_root, "true or false")
        self.ranks = self._pattern("rank_pattern", int)
        self.alphas = self._pattern("alpha_pattern", float)

    def scaled(self, path: str, pair: Mapping[str, Array]) -> tuple[Array, Array]:
        """A and B of a module, as its input is multiplied with them."""
        for letter, other in (("A", "B"), ("B", "A")):
            if letter not in pair:
                raise AdapterError(
                    f"{self.path.parent}: module `{path}` has lora_{other} and no lora_{letter}; expected both"
                )
        a, b = pair["A"], pair["B"]
        rank = _of_module(self.ranks, path, self.rank)
        if a.ndim != 2 or b.ndim != 2 or not a.shape[0] == b.shape[1] == rank:
            raise AdapterError(
                f"{self.path.parent}: module `{path}` has lora_A {list(a.shape)} and lora_B {list(b.shape)}, and rank "
                f"{rank} in {CONFIG_FILE}; expected [{rank}, width] and [columns, {rank}]"
            )
        scale = _of_module(self.alphas, path, self.alpha) / (math.sqrt(rank) if self.is_root else rank)
        with np.errstate(over="ignore", invalid="ignore"):  # reported as elements that are not finite
            return a.T.astype(np.float32), (b.T.astype(np.float64) * scale).astype(np.float32)

    def _require_usual(self) -> None:
        for key, value in self.values.items():
            usual = _VARIANTS.get(key, ())
            is_usual = any(value == each and type(value) is type(each) for each in usual)
            if usual and not is_usual:
                raise UnsupportedError(
                    f"{self.path}: `{key}` is {value!r:.80}, a variant of LoRA that the engine does not have; merge "
                    "the adapter into the model, or train it without"
                )
            if not usual and value and key not in _WITHOUT_EFFECT:
                raise UnsupportedError(
                    f"{self.path}: the option `{key}` ({value!r:.80}) is unknown, and may change the results; remove "
                    "it if it does not, or merge the adapter into the model"
                )

    def _pattern(self, key: str, kind: type) -> dict[str, Any]:
        given = self.values.get(key) or {}
        if not isinstance(given, dict):
            raise self._wrong(key, given, "an object of numbers by module")
        for pattern in given:
            if not _KEY.fullmatch(pattern):
                raise UnsupportedError(
                    f"{self.path}: `{key}` has the regular expression {pattern!r:.80}; expected ends of modules' paths"
                )
        return {pattern: self._positive(f"{key}.{pattern}", value, kind) for pattern, value in given.items()}

    def _positive(self, key: str, value: Any, kind: type) -> Any:
        types = (int,) if kind is int else (int, float)
        if isinstance(value, bool) or not isinstance(value, types) or not 0 < value < 2**31:
            raise self._wrong(key, value, f"a {'whole ' if kind is int else ''}number above 0")
        return value

    def _wrong(self, key: str, value: Any, expected: str) -> AdapterError:
        return AdapterError(f"{self.path}: `{key}` is {value!r:.80}; expected {expected}")


def _of_module(values: Mapping[str, Any], path: str, default: Any) -> Any:
    """The value of the first pattern that is the path, or its end."""
    return next((value for pattern, value in values.items() if _is_end(pattern, path)), default)


def _is_end(pattern: str, path: str) -> bool:
    if pattern.startswith("^"):
        return path == pattern[1:]
    return path == pattern or path.endswith(f".{pattern}")


def _content(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            raw = file.read(_MAX_BYTES + 1)
        if len(raw) > _MAX_BYTES:
            raise AdapterError(f"{path} has more than {_MAX_BYTES} bytes; expected the configuration of an adapter")
        found = json.loads(raw)
    except (OSError, ValueError) as e:  # also what is not JSON, and names that no file can have
        raise AdapterError(f"{path} cannot be read: {e}; expected a folder that PEFT wrote") from e
    except RecursionError as e:
        raise AdapterError(f"{path} is nested too deeply; expected the configuration of an adapter") from e
    if not isinstance(found, dict):
        raise AdapterError(f"{path} is a {type(found).__name__}; expected an object")
    return found


def distinct(adapters: Iterable[Adapter | None]) -> list[Adapter]:
    """Each adapter once, in the order of first use."""
    return list({id(each): each for each in adapters if each is not None}.values())
