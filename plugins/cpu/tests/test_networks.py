"""Whole networks on CPU: the answers are onnxruntime's up to rounding, and nothing runs on the reference evaluator.

If a network fails here, users get wrong answers, or a speed that is a hundredth of what the device can do.
"""

from __future__ import annotations

import math
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from engine_cpu.precision import why_not_bf16

from engine import Core
from engine.native import cpu_features, default_isa, isas_within, kernel_isas, product_rates
from engine.plugin_api import SupportLevel
from engine.testing.models import LIGHT_MODELS, light_answer, light_input, light_model, light_tolerance, relative_error
from engine.testing.networks import NETWORKS, SeededNetwork, rounding_tolerance, seeded_network
from engine.testing.networks.arithmetic import reduction_lengths

# Parts of networks in their real sizes, which take paths that small sizes do not, where a whole network would need too
# much time or memory.
CUT = {
    "bert_base": {"layers": 2, "vocabulary": 1000},
    "gpt2_blocks": {"layers": 2},
    "vit_b16": {"layers": 2},
    "vgg19": {"image": 112, "inner": 512},
    "whisper_tiny_encoder": {"layers": 1},
}
# Some of each kind: images, text, sequences, boxes.
SOME = ("unet", "mobilenet_v2", "densenet121", "bert_base", "convnext_t", "lstm", "yolo")
# Those below this CPU's that have kernels of their own.
_OWN = {isa for isas in kernel_isas().values() for isa in isas} - {cpu_features().isa}
ISAS = [isa for isa in isas_within(cpu_features().isa) if isa in _OWN]
LARGE = ("bvlc_alexnet", "vgg19", "zfnet512")  # 240 to 580 MB of weights


@pytest.fixture(scope="module")
def core() -> Core:
    return Core()


@cache
def small(name: str) -> SeededNetwork:
    return seeded_network(name, small=True)


@cache
def expected(name: str) -> list[np.ndarray]:
    return answer_of_onnxruntime(small(name))


def answer_of_onnxruntime(network: SeededNetwork) -> list[np.ndarray]:
    model = network.model.SerializeToString()
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    return [np.asarray(value) for value in session.run(None, dict(network.inputs))]


def infer(core: Core, network: SeededNetwork, **config: Any) -> list[np.ndarray]:
    compiled = core.compile_model(network.model, "CPU", {"ALLOW_REFERENCE": False, **config})
    return list(compiled(network.inputs).values())


def assert_close(got: list[np.ndarray], wanted: list[np.ndarray], tolerance: float) -> None:
    assert len(got) == len(wanted)
    for value, right in zip(got, wanted, strict=True):
        assert relative_error(value, right) <= tolerance


@pytest.mark.parametrize("name", NETWORKS)
def test_the_answer_is_that_of_onnxruntime(core: Core, name: str) -> None:
    assert_close(infer(core, small(name)), expected(name), rounding_tolerance(small(name).model))


@pytest.mark.slow
@pytest.mark.parametrize("name", NETWORKS)
def test_the_answer_of_the_real_size_is_that_of_onnxruntime(core: Core, name: str) -> None:
    network = seeded_network(name, **CUT.get(name, {}))
    assert_close(infer(core, network), answer_of_onnxruntime(network), rounding_tolerance(network.model))


@pytest.mark.parametrize("name", NETWORKS)
def test_no_operation_needs_the_reference_evaluator(core: Core, name: str) -> None:
    assert_native(core, small(name).model, small(name).inputs)


def assert_native(core: Core, model: onnx.ModelProto, inputs: Any) -> None:
    answer = core.query_model(model, "CPU")
    others = {**answer.at(SupportLevel.REFERENCE), **answer.at(SupportLevel.REFUSED)}
    assert {name: str(support.reason) for name, support in others.items()} == {}
    network = core.compile_model(model, "CPU", {"PERF_COUNT": True})
    assert network.get_metric("REFERENCE_STEPS") == ()
    request = network.create_infer_request()
    request.infer(inputs)
    assert {node.status for node in request.profiling_info.nodes} == {"native"}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if name in LARGE else name for name in LIGHT_MODELS]
)
def test_light_networks_give_the_saved_answer_natively(core: Core, name: str) -> None:
    model, inputs = light_model(name), light_input(name)
    assert_native(core, model, inputs)
    (got,) = core.compile_model(model, "CPU")(inputs).values()
    # Twice the tolerance of two direct results: see `rounding_tolerance`.
    assert relative_error(got, light_answer(name)) <= 4 * light_tolerance(name)


@pytest.mark.parametrize("name", SOME)
def test_the_number_of_threads_changes_rounding_only(core: Core, name: str) -> None:
    one, three = (infer(core, small(name), INFERENCE_NUM_THREADS=threads) for threads in (1, 3))
    assert_close(one, three, rounding_tolerance(small(name).model))


@pytest.mark.parametrize("name", SOME)
@pytest.mark.parametrize("effort", ["quick", "full"])
def test_measured_choices_change_rounding_only(core: Core, name: str, effort: str) -> None:
    got = infer(core, small(name), COMPILE_EFFORT=effort)
    assert_close(got, expected(name), rounding_tolerance(small(name).model))


@pytest.mark.parametrize("name", SOME)
@pytest.mark.parametrize("isa", ISAS)
def test_every_instruction_set_gives_the_answer(
    core: Core, name: str, isa: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ENGINE_MAX_ISA", isa)
    assert_close(infer(core, small(name)), expected(name), rounding_tolerance(small(name).model))


@pytest.mark.parametrize("name", NETWORKS)
def test_an_imported_network_gives_the_very_answer(core: Core, name: str, tmp_path: Path) -> None:
    network = core.compile_model(small(name).model, "CPU")
    network.export_model(tmp_path / "network.blob")
    for mapped in (False, True):
        imported = core.import_model(tmp_path / "network.blob", "CPU", {"ENABLE_MMAP": mapped})
        assert imported.get_metric("REFERENCE_STEPS") == ()
        for got, first in zip(imported(small(name).inputs).values(), network(small(name).inputs).values(), strict=True):
            np.testing.assert_array_equal(got, first)


@pytest.mark.parametrize("name", SOME)
def test_requests_of_several_streams_give_the_same(core: Core, name: str) -> None:
    network = core.compile_model(small(name).model, "CPU", {"NUM_STREAMS": 2, "INFERENCE_NUM_THREADS": 2})
    requests = [network.create_infer_request() for _ in range(4)]
    for request in requests:
        request.start_async(small(name).inputs)
    for request in requests:
        request.wait()
        got = [request.get_output_tensor(index).data for index in range(len(expected(name)))]
        assert_close(got, expected(name), rounding_tolerance(small(name).model))


@pytest.mark.skipif(why_not_bf16(default_isa(), product_rates()) is not None, reason="bf16 is not faster here")
@pytest.mark.parametrize("name", NETWORKS)
def test_bf16_loses_what_its_bits_explain(core: Core, name: str) -> None:
    """Each product rounds its inputs to 8 bits; errors of layers, and of the two operands, are independent."""
    model = small(name).model
    tolerance = 2 * 2.0**-8 * math.sqrt(len(reduction_lengths(model)))
    for got, right in zip(infer(core, small(name), INFERENCE_PRECISION_HINT="bf16"), expected(name), strict=True):
        error = float(np.sqrt(np.mean((got - right) ** 2)) / np.std(right))
        assert error <= tolerance
        # Recurrent layers stay in f32, where rounding is finer.
        assert error > 1e-4 or name in ("lstm", "gru"), "the hint changed nothing"


def with_free_image_size(network: SeededNetwork) -> onnx.ModelProto:
    model = onnx.ModelProto()
    model.CopyFrom(network.model)
    del model.graph.value_info[:]
    for value in (*model.graph.input, *model.graph.output):
        dims = value.type.tensor_type.shape.dim
        dims[0].dim_param, dims[2].dim_param, dims[3].dim_param = "batch", "height", "width"
    return model


def test_an_image_of_any_size_and_batch_gets_its_answer(core: Core) -> None:
    model = with_free_image_size(small("unet"))
    network = core.compile_model(model, "CPU", {"ALLOW_REFERENCE": False})
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    random = np.random.default_rng(0)
    for shape in [(1, 3, 48, 48), (2, 3, 16, 40), (1, 3, 4, 4), (3, 3, 20, 36), (1, 3, 48, 48)]:
        x = random.standard_normal(shape, dtype=np.float32)
        (right,) = session.run(None, {"x": x})
        (got,) = network({"x": x}).values()
        assert relative_error(got, right) <= rounding_tolerance(small("unet").model)


@pytest.mark.parametrize("name", [name for name in SOME if name != "bert_base"])
def test_what_is_no_number_reaches_every_output_that_depends_on_it(core: Core, name: str) -> None:
    """And no other. Against the reference evaluator: onnxruntime's sigmoid turns NaN into numbers."""
    network = small(name)
    inputs = {key: value.copy() for key, value in network.inputs.items()}
    next(iter(inputs.values())).flat[0] = math.nan
    got = infer(core, SeededNetwork(network.model, inputs))
    right = core.compile_model(network.model, "TEMPLATE")(inputs).values()
    for value, wanted in zip(got, right, strict=True):
        known = ~np.isnan(value)
        assert np.array_equal(known, ~np.isnan(wanted))
        assert not known.any() or relative_error(value[known], wanted[known]) <= rounding_tolerance(network.model)
