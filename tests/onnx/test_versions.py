"""The triage of all transitions between operator versions is complete, and versions called compatible are."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import onnx
import onnx.defs
import onnxruntime
import pytest
from numpy.typing import NDArray
from onnx import helper

from engine.errors import UnknownOperatorError, UnsupportedError
from engine.ir import ElementType
from engine.onnx.opsets import resolve_version
from engine.onnx.upgrades import COMPATIBLE, UPGRADES
from engine.ops import CANONICAL_VERSIONS

Array = NDArray[Any]


def histories() -> dict[tuple[str, str], list[onnx.defs.OpSchema]]:
    found: dict[tuple[str, str], list[onnx.defs.OpSchema]] = {}
    for schema in onnx.defs.get_all_schemas_with_history():
        found.setdefault((schema.domain, schema.name), []).append(schema)
    for schemas in found.values():
        schemas.sort(key=lambda schema: schema.since_version)
    return found


# Operators newer than the canonical opsets are refused; tests/onnx/test_releases.py lists them.
TRANSITIONS = [
    (old, new)
    for schemas in histories().values()
    for old, new in itertools.pairwise(schemas)
    if new.since_version <= CANONICAL_VERSIONS.get(new.domain, new.since_version)
]
COMPATIBLE_TRANSITIONS = [
    (old, new) for old, new in TRANSITIONS if new.since_version in COMPATIBLE.get(old.domain, {}).get(old.name, ())
]


def schema_id(schema: onnx.defs.OpSchema) -> str:
    return f"{schema.domain}{'.' * bool(schema.domain)}{schema.name}-{schema.since_version}"


def test_every_transition_is_in_exactly_one_table() -> None:
    """A new canonical opset brings new versions; each must be read and triaged before it may be imported."""
    existing = {(new.domain, new.name, old.since_version, new.since_version) for old, new in TRANSITIONS}
    compatible = {(new.domain, new.name, old.since_version, new.since_version) for old, new in COMPATIBLE_TRANSITIONS}
    coded = {(*key, step.since, step.to) for key, steps in UPGRADES.items() for step in steps}
    assert not compatible & coded
    assert compatible | coded == existing
    stated = sum(len(versions) for by_op in COMPATIBLE.values() for versions in by_op.values())
    assert stated == len(compatible)


@pytest.mark.parametrize(("old", "new"), COMPATIBLE_TRANSITIONS, ids=lambda schema: schema_id(schema))
def test_a_compatible_version_takes_all_that_the_old_one_took(old: onnx.defs.OpSchema, new: onnx.defs.OpSchema) -> None:
    """Were an attribute gone, or a default another one, a node that was valid would break or mean something else."""
    for name, attribute in old.attributes.items():
        successor = new.attributes[name]
        assert successor.type == attribute.type
        assert successor.required <= attribute.required
        assert successor.default_value == attribute.default_value
    added = new.attributes.keys() - old.attributes.keys()
    assert not [name for name in added if new.attributes[name].required]
    assert new.min_input <= old.min_input
    assert new.max_input >= old.max_input
    assert new.min_output <= old.min_output
    assert new.max_output >= old.max_output
    for before, after in ((old.inputs, new.inputs), (old.outputs, new.outputs)):
        for one, other in zip(before, after, strict=False):
            assert one.types <= other.types


# -- versions whose texts differ where all implementations agree: they are taken for compatible -------------------

_random = np.random.default_rng(5)
SIGNAL = _random.normal(size=(1, 1, 9)).astype(np.float32)
KERNEL = _random.normal(size=(1, 1, 4)).astype(np.float32)
IMAGE = _random.normal(size=(1, 1, 4, 5)).astype(np.float32)
WINDOWS: list[dict[str, Any]] = [
    {"kernel_shape": (2,), "strides": (3,), "pads": (0, 1), "ceil_mode": 1},
    {"kernel_shape": (2,), "strides": (2,), "pads": (0, 1), "ceil_mode": 1},
    {"kernel_shape": (3,), "strides": (2,), "auto_pad": "SAME_UPPER"},
    {"kernel_shape": (2,), "strides": (2,), "auto_pad": "SAME_LOWER"},
    {"kernel_shape": (2,), "strides": (2,), "auto_pad": "VALID"},
]
PADDINGS: list[dict[str, Any]] = [
    {"strides": (2,), "auto_pad": "SAME_UPPER"},
    {"strides": (3,), "auto_pad": "SAME_LOWER"},
]
INDICES = np.array([-1, 0, 2, 3, -4])
REWORDED: list[tuple[str, tuple[int, ...], tuple[Array | None, ...], dict[str, Any]]] = [
    *[("AveragePool", (10, 11, 19, 22), (SIGNAL,), window) for window in WINDOWS],
    *[("MaxPool", (10, 11, 12, 22), (SIGNAL,), window) for window in WINDOWS],
    *[("LpPool", (18, 22), (SIGNAL,), window) for window in WINDOWS],
    *[("LpPool", (2, 11), (SIGNAL,), window) for window in WINDOWS if "ceil_mode" not in window],
    *[("Conv", (1, 11), (SIGNAL, KERNEL), padding) for padding in PADDINGS],
    *[("ConvTranspose", (1, 11), (SIGNAL, KERNEL), padding) for padding in PADDINGS],
    ("ConvTranspose", (1, 11), (SIGNAL, KERNEL), {"strides": (2,), "output_shape": (19,)}),
    ("OneHot", (9, 11), (INDICES, np.array(3), np.array([5, 7], np.float32)), {}),
    ("Resize", (13, 18, 19), (IMAGE, None, np.array([1, 1, 1.3, 0.7], np.float32)), {"mode": "cubic"}),
]


@pytest.mark.parametrize(
    ("op_type", "opsets", "inputs", "attributes"), REWORDED, ids=lambda v: v if isinstance(v, str) else ""
)
def test_versions_with_reworded_texts_run_alike(
    op_type: str, opsets: tuple[int, ...], inputs: tuple[Array | None, ...], attributes: dict[str, Any]
) -> None:
    names = ["" if value is None else f"x{i}" for i, value in enumerate(inputs)]
    node = helper.make_node(op_type, names, ["y"], **attributes)
    feeds = {name: value for name, value in zip(names, inputs, strict=True) if value is not None}
    first, *others = [run([node], feeds, opset) for opset in opsets]
    for other in others:
        np.testing.assert_array_equal(first, other)


@pytest.mark.parametrize("target", [17, 18, 19, 20])
def test_infinity_to_a_small_float_is_the_largest_one_in_every_version_of_cast(target: int) -> None:
    """The tables of Cast-19 to 23 said NaN for two of these types."""
    nodes = [
        helper.make_node("Cast", ["x"], ["small"], to=target),
        helper.make_node("Cast", ["small"], ["y"], to=onnx.TensorProto.FLOAT),
    ]
    feeds = {"x": np.array([np.inf, -np.inf, 1e9], np.float32)}
    largest = run(nodes, feeds, 24)
    assert np.isfinite(largest).all()
    for opset in (19, 21, 23):
        np.testing.assert_array_equal(run(nodes, feeds, opset), largest)


def run(nodes: list[onnx.NodeProto], feeds: dict[str, Array], opset: int) -> Array:
    """The result of onnxruntime for `y` at an opset."""
    inputs = [
        helper.make_tensor_value_info(name, ElementType.from_numpy(value.dtype).onnx, value.shape)
        for name, value in feeds.items()
    ]
    graph = helper.make_graph(nodes, "versions", inputs, [onnx.ValueInfoProto(name="y")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return np.asarray(session.run(None, feeds)[0])


# -- opsets -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("op_type", "domain", "opset", "version"),
    [
        ("Softmax", "", 1, 1), ("Softmax", "", 10, 1), ("Softmax", "", 11, 11), ("Softmax", "", 28, 13),
        ("GroupNormalization", "", 20, 18), ("Upsample", "", 9, 9), ("LabelEncoder", "ai.onnx.ml", 3, 2),
        ("TreeEnsembleRegressor", "ai.onnx.ml", 5, 5),
    ],
)  # fmt: skip
def test_a_model_s_opset_gives_the_version(op_type: str, domain: str, opset: int, version: int) -> None:
    assert resolve_version(op_type, domain, opset) == version


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        (("Relux", "", 17), UnknownOperatorError, "check its name and domain"),
        (("BitwiseAnd", "", 17), UnknownOperatorError, "opset 18"),
        (("Upsample", "", 11), UnknownOperatorError, "since opset 10"),
        (("Scatter", "", 13), UnknownOperatorError, "since opset 11"),
        (("Relu", "", 10**12), UnsupportedError, "newer"),
        (("Relu", "", 0), UnknownOperatorError, "opset 1"),
        (("Relu", "com.example", 1), UnsupportedError, "com.example"),
    ],
)
def test_an_operator_that_an_opset_lacks_is_named(
    arguments: tuple[str, str, int], error: type[Exception], words: str
) -> None:
    with pytest.raises(error) as caught:
        resolve_version(*arguments)
    assert words in str(caught.value)
    assert arguments[0] in str(caught.value) or arguments[1] in str(caught.value)
