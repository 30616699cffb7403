"""Engines that generate tokens, behind one interface."""

from __future__ import annotations

import ctypes
import json
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

if TYPE_CHECKING:
    from generating.writer import Decoder


class TokenEngine(ABC):
    """One sequence of one loaded model."""

    packages: ClassVar[tuple[str, ...]] = ()
    """The packages that must be installed."""
    computes_as_asked: ClassVar[bool] = True
    """Whether it computes in the precision of the form, so that tokens in f32 must be those of other engines."""

    def __init__(self, path: Path, form: str, threads: int) -> None:
        self.path, self.form, self.threads = path, form, threads
        config = json.loads((path.parent / "genai_config.json").read_text())
        self.positions = int(config["model"]["context_length"])

    @classmethod
    def reason_against(cls, form: str) -> str:
        """Why the engine cannot run models of this form; empty if it can."""
        return ""

    @classmethod
    def prepare(cls, model: Decoder, path: Path, form: str) -> None:
        """Write the files that the engine needs beside the model at `path`; by default none."""
        return

    @property
    def lowered(self) -> int | None:
        """How many plans were lowered so far; None if the engine does not say."""
        return None

    @property
    @abstractmethod
    def version(self) -> str:
        """The engine's version."""

    @abstractmethod
    def start(self, prompt: Sequence[int]) -> int:
        """Begin a new sequence with a prompt; returns the likeliest next token."""

    @abstractmethod
    def step(self) -> int:
        """Append the last token; returns the likeliest next one."""


class ThisEngine(TokenEngine):
    """This project, by `engine.generation`."""

    def __init__(self, path: Path, form: str, threads: int) -> None:
        super().__init__(path, form, threads)
        from engine import Core
        from engine.generation import Generator
        from engine.passes import MakeStateful

        core = Core()
        model = core.read_model(path)
        MakeStateful(bound=self.positions).run_on_model(model)
        hint = "bf16" if form == "bf16" else "f32"
        config = {"INFERENCE_NUM_THREADS": threads, "INFERENCE_PRECISION_HINT": hint}
        self._network = core.compile_model(model, "CPU", config)
        self._generator = Generator(self._network)

    @property
    def lowered(self) -> int | None:
        return int(self._network.get_metric("LOWERED_PLANS"))

    @property
    def version(self) -> str:
        import engine

        return engine.__version__

    def start(self, prompt: Sequence[int]) -> int:
        self._generator.reset()
        self._generator.append(list(prompt))
        return self.step()

    def step(self) -> int:
        (token,) = self._generator.step()
        assert token is not None
        return token


class OnnxruntimeGenai(TokenEngine):
    """onnxruntime-genai, whose past and present share a buffer."""

    packages = ("onnxruntime_genai",)

    @classmethod
    def reason_against(cls, form: str) -> str:
        return "onnxruntime's CPU provider has no products in bf16" if form == "bf16" else ""

    def __init__(self, path: Path, form: str, threads: int) -> None:
        super().__init__(path, form, threads)
        import onnxruntime_genai

        self._package = onnxruntime_genai
        config = onnxruntime_genai.Config(str(path.parent))
        config.overlay(f'{{"model":{{"decoder":{{"session_options":{{"intra_op_num_threads":{threads}}}}}}}}}')
        self._model = onnxruntime_genai.Model(config)
        self._generator: Any = None

    @property
    def version(self) -> str:
        return str(self._package.__version__)

    def start(self, prompt: Sequence[int]) -> int:
        parameters = self._package.GeneratorParams(self._model)
        parameters.set_search_options(do_sample=False, max_length=self.positions)
        self._generator = None
        self._generator = self._package.Generator(self._model, parameters)
        self._generator.append_tokens(np.array(prompt, np.int32))
        return self.step()

    def step(self) -> int:
        self._generator.generate_next_token()
        return int(self._generator.get_next_tokens()[0])


class Openvino(TokenEngine):
    """openvino with the ONNX file, made stateful by its own transformation: it fuses no cache with the attention."""

    packages = ("openvino",)

    def __init__(self, path: Path, form: str, threads: int) -> None:
        super().__init__(path, form, threads)
        import openvino
        from openvino._offline_transformations import apply_make_stateful_transformation

        core = openvino.Core()
        model = core.read_model(path)
        names = [name for port in model.inputs for name in port.names if name.startswith("past_key_values")]
        pairs = {name: name.replace("past_key_values", "present") for name in names}
        # The initial value of a variable has a batch of 0 unless it is known.
        model.reshape({port: [1, *list(port.partial_shape)[1:]] for port in model.inputs})
        apply_make_stateful_transformation(model, pairs)
        config = {"INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY", **_openvino_settings(form)}
        self._request = core.compile_model(model, "CPU", config).create_infer_request()
        self._version = openvino.__version__
        self._has_positions = any("position_ids" in port.names for port in model.inputs)
        self._length, self._last = 0, 0
        self._more: dict[str, np.ndarray] = {}

    @property
    def version(self) -> str:
        return str(self._version)

    def start(self, prompt: Sequence[int]) -> int:
        self._request.reset_state()
        self._length = 0
        return self._infer(np.array([prompt], np.int64))

    def step(self) -> int:
        return self._infer(np.array([[self._last]], np.int64))

    def _infer(self, ids: np.ndarray) -> int:
        before, self._length = self._length, self._length + ids.shape[1]
        inputs = {"input_ids": ids, "attention_mask": np.ones((1, self._length), np.int64), **self._more}
        if self._has_positions:
            inputs["position_ids"] = np.arange(before, self._length)[None]
        result = self._request.infer(inputs, share_inputs=True)
        self._last = int(result["logits"][0, -1].argmax())
        return self._last


class OpenvinoExport(Openvino):
    """openvino, with the model in the form of its own exporter, in which it fuses a cache with the attention."""

    @classmethod
    def prepare(cls, model: Decoder, path: Path, form: str) -> None:
        from generating.llama import Llama

        if not isinstance(model, Llama):
            raise RuntimeError("it is written for Llama-like models only")
        from generating.openvino_model import write_openvino

        if not _exported(path).exists():
            write_openvino(model, path, form, _exported(path))

    @classmethod
    def settings(cls, form: str) -> dict[str, Any]:
        return _openvino_settings(form)

    def __init__(self, path: Path, form: str, threads: int) -> None:
        TokenEngine.__init__(self, path, form, threads)
        import openvino

        config = {"INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY", **self.settings(form)}
        self._request = openvino.Core().compile_model(_exported(path), "CPU", config).create_infer_request()
        self._version = openvino.__version__
        self._has_positions = True
        self._length, self._last = 0, 0
        self._more = {"beam_idx": np.zeros(1, np.int32)}


class OpenvinoDefaults(OpenvinoExport):
    """The same with openvino's own choice of precisions: bf16 where the CPU has it, keys and values of 8 bits, and
    activations of 8 bits for weights of few bits.
    """

    computes_as_asked = False

    @classmethod
    def settings(cls, form: str) -> dict[str, Any]:
        return {}


def _exported(path: Path) -> Path:
    """The model of openvino beside the ONNX file at `path`."""
    return path.parent / "openvino" / "model.xml"


def _openvino_settings(form: str) -> dict[str, Any]:
    """The precisions of a form."""
    narrow = "bf16" if form == "bf16" else "f32"
    found: dict[str, Any] = {"INFERENCE_PRECISION_HINT": narrow, "KV_CACHE_PRECISION": narrow}
    return found if form == "int4a8" else {**found, "DYNAMIC_QUANTIZATION_GROUP_SIZE": 0}


class LlamaCpp(TokenEngine):
    """llama.cpp, by the C functions that llama-cpp-python binds; `path` is beside its own file.

    Keys and values are f32 with weights of f32, otherwise f16, which is its default.
    """

    packages = ("llama_cpp", "gguf")

    @classmethod
    def prepare(cls, model: Decoder, path: Path, form: str) -> None:
        from generating.gguf_file import write_gguf

        file = path.parent / f"{form}.gguf"
        if not file.exists():
            write_gguf(model, path, form, file)

    def __init__(self, path: Path, form: str, threads: int) -> None:
        super().__init__(path, form, threads)
        import llama_cpp

        self._package = llama_cpp
        self._silence = llama_cpp.llama_log_callback(lambda level, text, data: None)  # kept: C has no reference to it
        llama_cpp.llama_log_set(self._silence, ctypes.c_void_p(0))
        llama_cpp.llama_backend_init()
        model_options = llama_cpp.llama_model_default_params()
        model_options.n_gpu_layers = 0
        file = path.parent / f"{form}.gguf"
        model = llama_cpp.llama_model_load_from_file(str(file).encode(), model_options)
        if not model:
            raise ValueError(f"llama.cpp did not load {file}")
        options = llama_cpp.llama_context_default_params()
        options.n_ctx = options.n_batch = self.positions
        options.n_threads = options.n_threads_batch = threads
        if form == "f32":
            options.type_k = options.type_v = llama_cpp.GGML_TYPE_F32
        self._context = llama_cpp.llama_init_from_model(model, options)
        if not self._context:
            raise ValueError("llama.cpp made no context")
        self._vocabulary = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(model))
        self._last = 0

    @property
    def version(self) -> str:
        return str(self._package.__version__)

    def start(self, prompt: Sequence[int]) -> int:
        self._package.llama_memory_clear(self._package.llama_get_memory(self._context), False)
        return self._decode(prompt)

    def step(self) -> int:
        return self._decode([self._last])

    def _decode(self, tokens: Sequence[int]) -> int:
        ids = (self._package.llama_token * len(tokens))(*tokens)
        status = self._package.llama_decode(self._context, self._package.llama_batch_get_one(ids, len(tokens)))
        if status:
            raise ValueError(f"llama_decode returned {status}")
        logits = self._package.llama_get_logits_ith(self._context, -1)
        self._last = int(np.ctypeslib.as_array(logits, (self._vocabulary,)).argmax())
        return self._last


ENGINES: dict[str, type[TokenEngine]] = {
    "engine": ThisEngine,
    "onnxruntime-genai": OnnxruntimeGenai,
    "openvino": Openvino,
    "openvino-export": OpenvinoExport,
    "openvino-defaults": OpenvinoDefaults,
    "llama.cpp": LlamaCpp,
}
