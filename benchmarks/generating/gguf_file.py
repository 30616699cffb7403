"""The same models as files of llama.cpp."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import gguf
import numpy as np
import onnx
from onnx import numpy_helper

from generating.gpt2 import Gpt2
from generating.writer import BLOCK, Decoder

TYPES = {"f32": "F32", "bf16": "BF16", "int8": "Q8_0", "int4": "Q4_0", "int4a8": "Q4_0"}
"""llama.cpp's types of weights. Those of few bits have a scale for 32 weights, and round activations to 8 bits."""

_Tensor = tuple[str, Callable[[], np.ndarray], tuple[int, int] | tuple[int]]
"""The name in the file, the values, and their shape; matrices are [outputs, inputs]."""


def write_gguf(model: Decoder, source: Path, form: str, path: Path) -> None:
    """Write the model of the ONNX file `source` for llama.cpp, with matrices in the type that corresponds to `form`.

    Weights of few bits are rounded again, to the scales of smaller blocks.
    """
    kind = gguf.GGMLQuantizationType[TYPES[form]]
    is_gpt2 = isinstance(model, Gpt2)
    tensors = list((_gpt2_tensors if is_gpt2 else _llama_tensors)(model, Weights(source)))
    path.parent.mkdir(parents=True, exist_ok=True)
    writer = gguf.GGUFWriter(path, "gpt2" if is_gpt2 else "llama")
    _describe(writer, model)
    for name, _, shape in tensors:
        stored = kind if _is_multiplied(name) else gguf.GGMLQuantizationType.F32
        row = gguf.quant_shape_to_byte_shape(shape, stored)
        writer.add_tensor_info(name, shape, np.dtype(np.float32), int(np.prod(row)), raw_dtype=stored)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for name, values, _ in tensors:
        stored = kind if _is_multiplied(name) else gguf.GGMLQuantizationType.F32
        writer.write_tensor_data(gguf.quantize(np.ascontiguousarray(values(), np.float32), stored))
    writer.close()


def _describe(writer: gguf.GGUFWriter, m: Decoder) -> None:
    writer.add_tokenizer_model("no_vocab")
    writer.add_vocab_size(m.vocabulary)
    writer.add_context_length(m.positions)
    writer.add_embedding_length(m.width)
    writer.add_block_count(m.layers)
    writer.add_feed_forward_length(m.inner)
    writer.add_head_count(m.heads)
    writer.add_head_count_kv(m.kv_heads)
    if isinstance(m, Gpt2):
        writer.add_layer_norm_eps(1e-5)
    else:
        writer.add_layer_norm_rms_eps(1e-5)
        writer.add_rope_dimension_count(m.head_size)
        writer.add_rope_freq_base(10000.0)


def _is_multiplied(name: str) -> bool:
    """Whether a tensor is a matrix of a product, not a table, a bias or a scale."""
    return name.endswith(".weight") and "norm" not in name and not name.startswith(("token", "position"))


def _llama_tensors(m: Decoder, weights: Weights) -> Iterator[_Tensor]:
    kv = m.kv_heads * m.head_size

    def turned(name: str, heads: int) -> np.ndarray:
        """llama.cpp rotates adjacent elements of a head, the ONNX model the elements of its two halves."""
        matrix = weights.matrix(name)
        return matrix.reshape(heads, 2, -1, m.width).swapaxes(1, 2).reshape(matrix.shape)

    yield "token_embd.weight", lambda: weights.vector("embeddings"), (m.vocabulary, m.width)
    before = "first"
    for index in range(m.layers):
        n, to = f"layer{index}", f"blk.{index}"
        yield f"{to}.attn_norm.weight", lambda b=before: weights.vector(f"{b}.weight"), (m.width,)
        yield f"{to}.attn_q.weight", lambda n=n: turned(f"{n}.q", m.heads), (m.width, m.width)
        yield f"{to}.attn_k.weight", lambda n=n: turned(f"{n}.k", m.kv_heads), (kv, m.width)
        yield f"{to}.attn_v.weight", lambda n=n: weights.matrix(f"{n}.v"), (kv, m.width)
        yield f"{to}.attn_output.weight", lambda n=n: weights.matrix(f"{n}.o"), (m.width, m.width)
        yield f"{to}.ffn_norm.weight", lambda n=n: weights.vector(f"{n}.middle.weight"), (m.width,)
        yield f"{to}.ffn_gate.weight", lambda n=n: weights.matrix(f"{n}.gate"), (m.inner, m.width)
        yield f"{to}.ffn_up.weight", lambda n=n: weights.matrix(f"{n}.up"), (m.inner, m.width)
        yield f"{to}.ffn_down.weight", lambda n=n: weights.matrix(f"{n}.down"), (m.width, m.inner)
        before = f"{n}.end"
    yield "output_norm.weight", lambda: weights.vector(f"{before}.weight"), (m.width,)
    yield "output.weight", lambda: weights.matrix("logits"), (m.vocabulary, m.width)


def _gpt2_tensors(m: Decoder, weights: Weights) -> Iterator[_Tensor]:
    yield "token_embd.weight", lambda: weights.vector("embeddings"), (m.vocabulary, m.width)
    yield "position_embd.weight", lambda: weights.vector("positions"), (m.positions, m.width)
    for index in range(m.layers):
        n, to = f"layer{index}", f"blk.{index}"
        norms = [(f"{to}.attn_norm", f"{n}.first"), (f"{to}.ffn_norm", f"{n}.second")]
        for name, source in norms:
            for part in ("weight", "bias"):
                yield f"{name}.{part}", lambda s=source, p=part: weights.vector(f"{s}.{p}"), (m.width,)
        for name, source, rows, columns in (
            ("attn_qkv", "qkv", m.width, 3 * m.width),
            ("attn_output", "o", m.width, m.width),
            ("ffn_up", "up", m.width, m.inner),
            ("ffn_down", "down", m.inner, m.width),
        ):
            yield f"{to}.{name}.weight", lambda s=f"{n}.{source}": weights.matrix(f"{s}.product"), (columns, rows)
            yield f"{to}.{name}.bias", lambda s=f"{n}.{source}": weights.vector(f"{s}.bias"), (columns,)
    for part in ("weight", "bias"):
        yield f"output_norm.{part}", lambda p=part: weights.vector(f"end.{p}"), (m.width,)
    yield "output.weight", lambda: weights.matrix("logits"), (m.vocabulary, m.width)


class Weights:
    """The initializers of an ONNX file, read one at a time."""

    def __init__(self, path: Path) -> None:
        self._folder = path.parent
        graph = onnx.load(path, load_external_data=False).graph
        self._tensors = {tensor.name: tensor for tensor in graph.initializer}

    def vector(self, name: str) -> np.ndarray:
        """The values as they are."""
        tensor = self._tensors[name]
        if not tensor.external_data:
            return numpy_helper.to_array(tensor)
        where = {entry.key: entry.value for entry in tensor.external_data}
        dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type)
        return np.memmap(self._folder / where["location"], dtype, "r", int(where["offset"]), tuple(tensor.dims))

    def matrix(self, name: str) -> np.ndarray:
        """The weights of a product, [outputs, inputs]."""
        if f"{name}.weight" in self._tensors:
            return self.vector(f"{name}.weight").T
        codes, scales = self.vector(f"{name}.codes"), self.vector(f"{name}.scales")
        bits = codes.shape[2] * 8 // BLOCK
        if bits == 4:
            codes = np.stack([codes & 15, codes >> 4], axis=3)
        columns = len(codes)
        centered = codes.reshape(columns, -1, BLOCK).astype(np.float32) - np.float32(1 << bits - 1)
        return (centered * scales.reshape(columns, -1, 1)).reshape(columns, -1)
