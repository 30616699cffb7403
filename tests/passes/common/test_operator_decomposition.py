"""Operators, and forms of operators, as simpler ones. If it fails, devices refuse them, or answer wrongly."""

from __future__ import annotations

import numpy as np
import pytest

from engine import ops
from engine.ir import ElementType, Model, Node, Parameter, PartialShape, f32
from engine.onnx import read_model
from engine.ops import evaluate_model
from engine.passes.common.operator_decomposition import OperatorDecomposition
from engine.testing.onnx_suite import CASES, assert_same
from engine.testing.passes import check_pass

NAMES = (
    "test_adagrad", "test_adagrad_multiple", "test_adam", "test_adam_multiple", "test_momentum",
    "test_nesterov_momentum", "test_momentum_multiple", "test_batchnorm_example", "test_batchnorm_epsilon",
    "test_batchnorm_example_training_mode", "test_batchnorm_epsilon_training_mode", "test_gemm_beta",
    "test_gemm_all_attributes", "test_gemm_default_scalar_bias", "test_gemm_default_single_elem_vector_bias",
    "test_dropout_default_mask", "test_dropout_default_mask_ratio", "test_onehot_with_axis",
    "test_reversesequence_time", "test_reversesequence_batch", "test_maxunpool_export_without_output_shape",
    "test_ai_onnx_ml_array_feature_extractor", "test_ai_onnx_ml_binarizer",
)  # fmt: skip
_REPLACED = {"Adagrad", "Adam", "Momentum", "BatchNormalization", "Dropout", "ArrayFeatureExtractor", "Binarizer"}
_REPLACED |= {"ReverseSequence", "MaxUnpool"}


@pytest.mark.parametrize("name", NAMES)
def test_the_same_results(name: str) -> None:
    case = CASES[name]
    assert case.model is not None
    assert case.data_sets is not None
    model = read_model(case.model)
    check_pass(OperatorDecomposition, model, equivalent=False)
    assert not {node.op_type for node in model.ordered_nodes()} & _REPLACED
    for inputs, outputs in case.data_sets:
        names = [parameter.friendly_name for parameter in model.parameters]
        found = evaluate_model(model, dict(zip(names, inputs, strict=True)))
        for value, expected in zip(found, outputs, strict=True):
            assert_same(np.asarray(value), np.asarray(expected), case)


def _replaced(node: Node, parameter: Parameter, x: np.ndarray) -> list[np.ndarray]:
    model = Model(node.outputs, [parameter])
    before = evaluate_model(model.clone(), {parameter.friendly_name: x})
    check_pass(OperatorDecomposition, model, equivalent=False)
    assert node.op_type not in {each.op_type for each in model.ordered_nodes()}
    after = evaluate_model(model, {parameter.friendly_name: x})
    return [*before, *after]


@pytest.mark.parametrize(
    ("op_type", "attributes"),
    [
        ("Scaler", {"offset": [1.0, 2.0, 3.0], "scale": [0.5]}),
        ("LinearRegressor", {"coefficients": [1.0, 2.0, 3.0, -1.0, 0.5, 2.0], "intercepts": [0.5, 1.0], "targets": 2}),
        ("LinearRegressor", {"coefficients": [1.0, -2.0, 0.5], "targets": 1, "post_transform": "LOGISTIC"}),
    ],
)
def test_classical_arithmetic(op_type: str, attributes: dict[str, object]) -> None:
    x = Parameter(f32, PartialShape([4, 3]), "x")
    node = ops.create(op_type, [x], attributes, domain="ai.onnx.ml")
    before, after = _replaced(node, x, np.random.default_rng(0).standard_normal((4, 3)).astype(np.float32))
    np.testing.assert_allclose(after, before, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("dtype", [np.int64, np.float32])
def test_a_table_of_numbers(dtype: type[np.generic]) -> None:
    """The last of equal keys counts; values that are in no table get the default; a NaN is a key."""
    x, values = Parameter(ElementType.from_numpy(np.dtype(dtype)), PartialShape([6]), "x"), [5, 1, 2, 7, -1, 1]
    keys: dict[str, object] = {"keys_int64s": [1, 2, 1, 5]}
    if dtype is np.float32:
        keys, values[3] = {"keys_floats": [1.0, np.nan, 1.0, 5.0]}, np.nan
    attributes = {**keys, "values_floats": [9.0, 1.5, 0.5, -2.0], "default_float": 8.0}
    node = ops.create("LabelEncoder", [x], attributes, domain="ai.onnx.ml")
    before, after = _replaced(node, x, np.array(values, dtype))
    np.testing.assert_array_equal(after, before)
    wanted = [-2, 0.5, 1.5, 8, 8, 0.5] if dtype is np.int64 else [-2, 0.5, 8, 1.5, 8, 0.5]
    np.testing.assert_array_equal(after, np.array(wanted, np.float32))


def test_a_device_keeps_what_it_runs_whole() -> None:
    model = read_model(CASES["test_adam"].model)  # type: ignore[arg-type]
    decomposition = OperatorDecomposition()
    decomposition.transformation_callback = lambda node: True  # type: ignore[method-assign]
    assert not decomposition.run_on_model(model)
