"""MoE and QMoE: onnxruntime's results for mixtures of experts.

If one fails, language models with experts (gpt-oss, Mixtral, Qwen) give other answers, or are not read.
"""

from __future__ import annotations

import io
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
import pytest
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from engine import Core
from engine.errors import EngineError, InputError, ModelError, UnsupportedError
from engine.ir import Constant, ElementType, Model, Parameter, i64
from engine.onnx import model_to_proto, read_model
from engine.onnx.contrib import DOMAIN
from engine.ops.evaluator import ModelEvaluator
from engine.ops.internal import ExpertMatMul, as_onnx
from engine.passes import compress_weights

Array = NDArray[Any]

TOKENS, EXPERTS, HIDDEN, INNER = 5, 6, 64, 32
MOE = ("x", "router", "w1", "b1", "w2", "b2", "w3", "b3")
QMOE = ("x", "router", "w1", "s1", "b1", "w2", "s2", "b2", "w3", "s3", "b3", "z1", "z2", "z3", "weights")
FED = ("x", "router", "weights")


def pack(elements: Array, bits: int) -> Array:
    """Elements along the last axis in bytes, the first in the low bits; the last byte is filled with zeros."""
    count = 8 // bits
    padded = np.pad(elements, [(0, 0)] * (elements.ndim - 1) + [(0, -elements.shape[-1] % count)])
    shifted = (
        padded.astype(np.uint8).reshape(*elements.shape[:-1], -1, count) << np.arange(count, dtype=np.uint8) * bits
    )
    return np.bitwise_or.reduce(shifted.astype(np.uint8), axis=-1)


class Mixture:
    """A MoE or QMoE with random operands; a test may change any of them.

    `arrays` are the operands by name, and `numbers` the same with the weights as numbers.
    """

    def __init__(
        self,
        activation: str = "relu",
        fusion: int = 0,
        *,
        bits: int = 0,
        block: int = 0,
        zero_points: bool = False,
        bias: bool = True,
        dtype: Any = np.float32,
        router_weights: bool = False,
        **attributes: Any,
    ) -> None:
        self.random = np.random.default_rng(len(activation) + fusion + bits + block)
        self.op_type = "QMoE" if bits else "MoE"
        self.dtype = dtype
        self.attributes: dict[str, Any] = {"k": 2, "activation_type": activation} | attributes
        if fusion:
            self.attributes["swiglu_fusion"] = fusion
        self.arrays: dict[str, Array] = {"x": self._real(TOKENS, HIDDEN), "router": self._real(TOKENS, EXPERTS)}
        self.numbers: dict[str, Array] = {}
        wide = 2 * INNER if fusion else INNER
        layers = [(wide, HIDDEN), (HIDDEN, INNER)]
        if activation == "swiglu" and not fusion:
            layers.append((INNER, HIDDEN))
        for number, (rows, columns) in enumerate(layers, 1):
            self._add_layer(number, rows, columns, bits, block, zero_points)
            if bias:
                self.arrays[f"b{number}"] = self._real(EXPERTS, rows)
        if bits:
            self.attributes["expert_weight_bits"] = bits
        if block:
            self.attributes["block_size"] = block
        if router_weights:
            self.arrays["weights"] = np.abs(self._real(TOKENS, EXPERTS))

    def _real(self, *shape: int) -> Array:
        return self.random.standard_normal(shape).astype(self.dtype)

    def _add_layer(self, number: int, rows: int, columns: int, bits: int, block: int, zero_points: bool) -> None:
        if not bits:
            self.arrays[f"w{number}"] = self.numbers[f"w{number}"] = self._real(EXPERTS, rows, columns) / 8
            return
        codes = self.random.integers(0, 1 << bits, (EXPERTS, rows, columns))
        blocks = columns // block if block else 1
        scale = (self.random.uniform(0.2, 0.6, (EXPERTS, rows, blocks)) / (1 << bits)).astype(self.dtype)
        offsets: Array = np.full((EXPERTS, rows, blocks), 1 << (bits - 1))
        if zero_points:
            offsets = self.random.integers(0, 1 << bits, offsets.shape)
            self.arrays[f"z{number}"] = pack(offsets if block else offsets[..., 0], bits)
        self.arrays[f"w{number}"] = pack(codes, bits)
        self.arrays[f"s{number}"] = scale if block else scale[..., 0]
        repeated = [np.repeat(each, columns // blocks, -1) for each in (offsets, scale.astype(np.float64))]
        self.numbers[f"w{number}"] = (codes - repeated[0]) * repeated[1]

    def proto(self) -> onnx.ModelProto:
        names = MOE if self.op_type == "MoE" else QMOE
        given = [name if name in self.arrays else "" for name in names]
        while not given[-1]:
            given.pop()
        node = helper.make_node(self.op_type, given, ["y"], "experts", domain=DOMAIN, **self.attributes)
        kind = helper.np_dtype_to_tensor_dtype(np.dtype(self.dtype))
        fed = [name for name in FED if name in self.arrays]
        graph = helper.make_graph(
            [node],
            "mixture",
            [helper.make_tensor_value_info(name, kind, self.arrays[name].shape) for name in fed],
            [helper.make_tensor_value_info("y", kind, None)],
            [numpy_helper.from_array(array, name) for name, array in self.arrays.items() if name not in fed],
        )
        opsets = [helper.make_opsetid("", 21), helper.make_opsetid(DOMAIN, 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=10)

    def feed(self) -> dict[str, Array]:
        return {name: self.arrays[name] for name in FED if name in self.arrays}

    def by_onnxruntime(self) -> Array:
        session = onnxruntime.InferenceSession(self.proto().SerializeToString(), providers=["CPUExecutionProvider"])
        (found,) = session.run(None, self.feed())
        return np.asarray(found)

    def by_engine(self, device: str = "TEMPLATE") -> Array:
        network = Core().compile_model(self.proto().SerializeToString(), device)
        (found,) = network(self.feed()).values()
        return np.asarray(found)

    def by_formula(self) -> Array:
        """onnxruntime's documentation in f64: for each token, the sum over its experts."""
        x, router = (self.arrays[name].astype(np.float64) for name in ("x", "router"))
        rows = x.reshape(-1, HIDDEN)
        result = np.zeros_like(rows)
        for token, row in enumerate(rows):
            order = sorted(range(EXPERTS), key=lambda expert: (-router[token, expert], -expert))[: self.attributes["k"]]
            values = np.exp(router[token] - router[token].max())
            weights = values[order] / values.sum()
            if self.attributes.get("normalize_routing_weights") or self.op_type == "QMoE":
                weights = weights / weights.sum()
            for expert, weight in zip(order, weights, strict=True):
                inner = self._activated(self._layer(1, expert, row), expert, row)
                result[token] += weight * self._layer(2, expert, inner)
        return result.reshape(x.shape)

    def _layer(self, number: int, expert: int, row: Array) -> Array:
        bias = self.arrays.get(f"b{number}")
        product: Array = self.numbers[f"w{number}"][expert].astype(np.float64) @ row
        return product if bias is None else product + bias[expert]

    def _activated(self, value: Array, expert: int, row: Array) -> Array:
        assert self.attributes["activation_type"] == "swiglu"
        fusion = self.attributes.get("swiglu_fusion", 0)
        if fusion == 1:
            gate, linear = value[::2], value[1::2]
        elif fusion == 2:
            gate, linear = np.split(value, 2)
        else:
            gate, linear = value, self._layer(3, expert, row)
        limit = self.attributes.get("swiglu_limit", np.inf)
        gate, linear = np.minimum(gate, limit), np.clip(linear, -limit, limit)
        alpha, beta = self.attributes.get("activation_alpha", 1.0), self.attributes.get("activation_beta", 0.0)
        found: Array = gate / (1 + np.exp(-alpha * gate)) * (linear + beta)
        return found


def check(mixture: Mixture, device: str = "TEMPLATE", tolerance: float = 2e-6) -> None:
    expected, found = mixture.by_onnxruntime(), mixture.by_engine(device)
    assert found.dtype == expected.dtype
    assert found.shape == expected.shape
    scale = np.abs(expected.astype(np.float64)).max()
    np.testing.assert_allclose(found.astype(np.float64), expected.astype(np.float64), rtol=0, atol=tolerance * scale)


DEVICES = pytest.mark.parametrize("device", ["TEMPLATE", "CPU"])
ACTIVATIONS = [("relu", 0), ("gelu", 0), ("silu", 0), ("identity", 0), ("swiglu", 1)]


@DEVICES
@pytest.mark.parametrize(("activation", "fusion"), ACTIVATIONS)
@pytest.mark.parametrize("normalized", [0, 1])
def test_activations(activation: str, fusion: int, normalized: int, device: str) -> None:
    check(Mixture(activation, fusion, normalize_routing_weights=normalized), device)


@DEVICES
@pytest.mark.parametrize(("activation", "fusion"), ACTIVATIONS)
@pytest.mark.parametrize("normalized", [0, 1])
def test_activations_of_quantized_experts(activation: str, fusion: int, normalized: int, device: str) -> None:
    check(Mixture(activation, fusion, bits=4, normalize_routing_weights=normalized), device)


@DEVICES
@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("block", [0, 16, 32])
@pytest.mark.parametrize("zero_points", [False, True])
def test_codes(bits: int, block: int, zero_points: bool, device: str) -> None:
    mixture = Mixture("swiglu", 1, bits=bits, block=block, zero_points=zero_points)
    # onnxruntime rounds the activations of 8-bit products in blocks to 8 bits: to 1 / 254 of the largest of a block.
    check(mixture, device, tolerance=2e-2 if bits == 8 and block else 3e-6)
    expected = mixture.by_formula()
    np.testing.assert_allclose(mixture.by_engine(device), expected, rtol=0, atol=3e-6 * np.abs(expected).max())


@DEVICES
@pytest.mark.parametrize("fusion", [0, 1, 2])
@pytest.mark.parametrize("bits", [0, 4])
def test_forms_of_swiglu(fusion: int, bits: int, device: str) -> None:
    """onnxruntime computes only form 1 on CPU; its documentation defines the others."""
    mixture = Mixture("swiglu", fusion, bits=bits, swiglu_limit=0.7, activation_alpha=1.702, activation_beta=1.0)
    expected, found = mixture.by_formula(), mixture.by_engine(device)
    np.testing.assert_allclose(found, expected, rtol=0, atol=2e-6 * np.abs(expected).max())
    if fusion == 1:
        check(mixture, device)


@DEVICES
@pytest.mark.parametrize("limit", [0.0, 0.5, 7.0])
def test_limits(limit: float, device: str) -> None:
    check(Mixture("swiglu", 1, swiglu_limit=limit, activation_alpha=0.5, activation_beta=2.0), device)


@DEVICES
@pytest.mark.parametrize("bits", [0, 4])
def test_a_batch_of_sequences_without_biases(bits: int, device: str) -> None:
    mixture = Mixture("silu", bits=bits, bias=False)
    mixture.arrays["x"] = np.random.default_rng(1).standard_normal((2, 3, HIDDEN)).astype(np.float32)
    mixture.arrays["router"] = np.random.default_rng(2).standard_normal((6, EXPERTS)).astype(np.float32)
    check(mixture, device)


@DEVICES
@pytest.mark.parametrize("bits", [0, 4])
def test_f16(bits: int, device: str) -> None:
    """onnxruntime rounds each product to f16: a sum of 64 terms, and one of 32, whose rounding errors add up."""
    check(Mixture("silu", bits=bits, dtype=np.float16), device, tolerance=5e-3)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("tokens", [1, 40])
def test_weights_of_narrow_types_are_widened_as_they_are_read(dtype: Any, tokens: int) -> None:
    """All sums of f32, and only their last results are rounded."""
    random = np.random.default_rng(tokens)
    weights = (random.standard_normal((3, 37, 1100)) / 32).astype(dtype)
    rows = random.standard_normal((tokens, 1, 1100)).astype(dtype)
    chosen = random.integers(0, 3, (tokens, 2))
    x = Parameter(ElementType.from_numpy(rows.dtype), [tokens, 1, 1100], "x")
    experts = Parameter(i64, [tokens, 2], "experts")
    model = Model([ExpertMatMul(x, experts, Constant(weights))], [x, experts])
    (found,) = Core().compile_model(model, "CPU")([rows, chosen]).values()
    expected = np.einsum("tjnk,tk->tjn", weights[chosen].astype(np.float64), rows[:, 0].astype(np.float64))
    limit = 2.0**-11 if dtype is np.float16 else 2.0**-8
    np.testing.assert_allclose(np.asarray(found, np.float64), expected, rtol=limit, atol=1e-4)


@DEVICES
@pytest.mark.parametrize("bits", [0, 4])
@pytest.mark.parametrize("count", [1, 3, EXPERTS])
def test_numbers_of_chosen_experts(bits: int, count: int, device: str) -> None:
    mixture = Mixture("silu", bits=bits, normalize_routing_weights=1, k=count)
    check(mixture, device)


def test_a_sparse_mixer_changes_nothing() -> None:
    """onnxruntime's CPU kernels compute the same with and without it."""
    check(Mixture("silu", use_sparse_mixer=1))


@DEVICES
@pytest.mark.parametrize("bits", [0, 4])
def test_of_equal_values_the_later_experts_are_chosen(bits: int, device: str) -> None:
    mixture = Mixture("silu", bits=bits)
    mixture.arrays["router"] = np.array(
        [[1] * 6, [0, 2, 2, 2, 0, 0], [3, 1, 1, 3, 3, 3], [-1, -1, -2, -3, -4, -5], [0, 0, 0, 0, 0, -1]], np.float32
    )
    check(mixture, device)


@DEVICES
@pytest.mark.parametrize("bits", [0, 4])
def test_infinite_values_without_a_choice(bits: int, device: str) -> None:
    mixture = Mixture("silu", bits=bits, normalize_routing_weights=1)
    mixture.arrays["router"][:] = -np.inf
    mixture.arrays["router"][:, 3] = 1
    check(mixture, device)


@DEVICES
@pytest.mark.parametrize("bits", [0, 4])
@pytest.mark.parametrize("normalized", [0, 1])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_values_of_the_router_without_a_softmax_fail_the_inference(
    bits: int, normalized: int, value: float, device: str
) -> None:
    """onnxruntime gives zeros for such a token, or leaves NaN out, by its place: an answer that looks right."""
    mixture = Mixture("silu", bits=bits, normalize_routing_weights=normalized)
    network = Core().compile_model(mixture.proto().SerializeToString(), device)
    (expected,) = network(mixture.feed()).values()
    expected = np.array(expected)
    wrong = mixture.feed()
    wrong["router"] = wrong["router"].copy()
    if value == -np.inf:  # without any expert; single ones are only not chosen
        wrong["router"][[1, 3]] = value
    wrong["router"][1, 0] = wrong["router"][3, EXPERTS - 1] = value
    with pytest.raises(InputError, match=r"experts/ExpertMatMul.*row 1 has no experts, .* NaN or infinite"):
        network(wrong)
    (found,) = network(mixture.feed()).values()
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("bits", [0, 4])
def test_nan_of_the_router_fails_exported_models(bits: int) -> None:
    mixture = Mixture("silu", bits=bits)
    proto = model_to_proto(read_model(mixture.proto()))
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    session.run(None, mixture.feed())
    mixture.arrays["router"][1, 0] = np.nan
    with pytest.raises(onnxruntime.capi.onnxruntime_pybind11_state.InvalidArgument, match="out of data bounds"):
        session.run(None, mixture.feed())


@DEVICES
@pytest.mark.parametrize("normalized", [0, 1])
def test_weights_from_another_router(normalized: int, device: str) -> None:
    mixture = Mixture("silu", bits=4, router_weights=True, normalize_routing_weights=normalized)
    check(mixture, device)
    mixture.arrays["weights"][2] = 0
    check(mixture, device)


@pytest.mark.parametrize("bits", [0, 4, 8])
def test_the_decomposition_computes_the_same(bits: int) -> None:
    mixture = Mixture("swiglu", 1, bits=bits, block=16 if bits else 0, zero_points=bool(bits))
    model = read_model(mixture.proto())
    assert "ExpertMatMul" in {node.op_type for node in model.ordered_nodes()}
    (expected,) = ModelEvaluator(model).run(list(mixture.feed().values()))
    decomposed = as_onnx(model)
    assert not any(node.domain for node in decomposed.ordered_nodes())
    (found,) = ModelEvaluator(decomposed).run(list(mixture.feed().values()))
    np.testing.assert_allclose(found, expected, rtol=0, atol=2e-6 * np.abs(expected).max())


def test_an_exported_model_runs_on_onnxruntime() -> None:
    mixture = Mixture("swiglu", 1, bits=4, block=16)
    proto = model_to_proto(read_model(mixture.proto()))
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    (found,) = session.run(None, mixture.feed())
    expected = mixture.by_engine()
    np.testing.assert_allclose(found, expected, rtol=0, atol=2e-6 * np.abs(expected).max())


@DEVICES
@pytest.mark.parametrize("bits", [0, 4])
def test_blobs(bits: int, device: str) -> None:
    mixture = Mixture("swiglu", 1, bits=bits)
    core = Core()
    network = core.compile_model(mixture.proto().SerializeToString(), device)
    blob = io.BytesIO()
    network.export_model(blob)
    blob.seek(0)
    imported = core.import_model(blob, device)
    (expected,), (found,) = network(mixture.feed()).values(), imported(mixture.feed()).values()
    np.testing.assert_array_equal(found, expected)


WRONG: list[tuple[str, dict[str, Any], str]] = [
    ("k", {"k": EXPERTS + 1}, "expected 1..6"),
    ("k", {"k": 0}, "expected 1..6"),
    ("k", {"k": 1, "use_sparse_mixer": 1}, "expected 2 with `use_sparse_mixer`"),
    ("swiglu_limit", {"activation_type": "swiglu", "swiglu_fusion": 1, "swiglu_limit": -1.0}, "expected 0 or more"),
    ("swiglu_fusion", {"swiglu_fusion": 3}, "expected 0 or 1 or 2"),
    ("normalize_routing_weights", {"normalize_routing_weights": 2}, "expected 0 or 1"),
    ("fusion without fc3", {"activation_type": "swiglu"}, "without fc3_experts_weights"),
]


@pytest.mark.parametrize("bits", [0, 4])
@pytest.mark.parametrize(
    ("name", "attributes", "message"), WRONG, ids=[f"{each[0]}{i}" for i, each in enumerate(WRONG)]
)
def test_wrong_attributes(bits: int, name: str, attributes: dict[str, Any], message: str) -> None:
    fusion = attributes.get("swiglu_fusion", 0) % 3
    mixture = Mixture("silu", fusion, bits=bits)
    mixture.attributes |= attributes
    with pytest.raises(ModelError, match=message):
        read_model(mixture.proto())


@pytest.mark.parametrize("bits", [0, 4])
@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("router", (TOKENS - 1, EXPERTS)),
        ("router", (TOKENS, EXPERTS + 1)),
        ("router", (TOKENS, EXPERTS, 1)),
        ("x", (HIDDEN,)),
        ("x", (TOKENS, HIDDEN + 2)),
        ("w1", (EXPERTS, INNER + 1, HIDDEN)),
        ("w1", (EXPERTS, INNER, HIDDEN - 2)),
        ("w1", (EXPERTS - 1, INNER, HIDDEN)),
        ("w2", (EXPERTS, HIDDEN, INNER + 2)),
        ("w2", (EXPERTS, HIDDEN - 2, INNER)),
        ("b1", (EXPERTS, INNER + 1)),
        ("b2", (HIDDEN,)),
    ],
)
def test_shapes_that_contradict(bits: int, name: str, shape: tuple[int, ...]) -> None:
    mixture = Mixture("silu", bits=bits)
    given = mixture.arrays[name]
    if bits and name.startswith("w"):
        shape = (*shape[:-1], shape[-1] // 2)
    mixture.arrays[name] = np.zeros(shape, given.dtype)
    with pytest.raises(ModelError, match="expected"):
        read_model(mixture.proto())


@pytest.mark.parametrize(
    ("name", "shape"), [("s1", (EXPERTS, INNER + 1)), ("s2", (EXPERTS, HIDDEN, 1)), ("z1", (EXPERTS, INNER))]
)
def test_shapes_of_parameters(name: str, shape: tuple[int, ...]) -> None:
    mixture = Mixture("silu", bits=4, zero_points=True)
    mixture.arrays[name] = np.zeros(shape, mixture.arrays[name].dtype)
    with pytest.raises(ModelError, match=name if name != "z1" else "fc1_zero_points"):
        read_model(mixture.proto())


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ({"quant_type": "fp4"}, "quant_type"),
        ({"weights_prepacked": 1}, "weights_prepacked"),
        ({"expert_weight_bits": 3}, "3 bits"),
        ({"activation_type": "geglu"}, "geglu"),
        ({"swiglu_limit_after_activation": 1}, "swiglu_limit_after_activation"),
    ],
)
def test_what_is_not_computed_is_refused_by_name(attributes: dict[str, Any], message: str) -> None:
    mixture = Mixture("silu", bits=4)
    mixture.attributes |= attributes
    with pytest.raises(UnsupportedError, match=message):
        read_model(mixture.proto())


def test_a_block_of_no_power_of_two() -> None:
    mixture = Mixture("silu", bits=4, block=16)
    mixture.attributes["block_size"] = 24
    with pytest.raises(EngineError, match="power of 2"):
        read_model(mixture.proto())


@DEVICES
@pytest.mark.parametrize("weights", ["int4", "int8"])
@pytest.mark.parametrize("symmetric", [True, False])
def test_compressed_experts(weights: str, symmetric: bool, device: str) -> None:
    """The largest error of a code is half a step: with int4, about 5 % of the range of its block of 16."""
    mixture = Mixture("swiglu", 1)
    made = compress_weights(read_model(mixture.proto()), weights, group=16, symmetric=symmetric, least=16)
    assert [layer.nodes for layer in made.layers] == [("experts/ExpertMatMul_1",), ("experts/ExpertMatMul",)]
    assert made.bytes_after < made.bytes_before * (0.4 if weights == "int4" else 0.6)
    expected = mixture.by_engine()
    (found,) = Core().compile_model(made.model, device)(mixture.feed()).values()
    (reference,) = ModelEvaluator(made.model).run(list(mixture.feed().values()))
    largest = np.abs(expected).max()
    np.testing.assert_allclose(found, reference, rtol=0, atol=3e-6 * largest)
    np.testing.assert_allclose(found, expected, rtol=0, atol=(0.2 if weights == "int4" else 0.02) * largest)


def test_experts_that_are_not_compressed() -> None:
    mixture = Mixture("silu")
    model = read_model(mixture.proto())
    assert [each.reason for each in compress_weights(model).skipped] == [
        f"it has shape {[EXPERTS, INNER, HIDDEN]}; its matrices are smaller than 64",
        f"it has shape {[EXPERTS, HIDDEN, INNER]}; its matrices are smaller than 64",
    ]
    kept = compress_weights(model, least=1, exclude="experts/ExpertMatMul")
    assert [(each.nodes, each.reason) for each in kept.skipped] == [(("experts/ExpertMatMul",), "excluded")]
