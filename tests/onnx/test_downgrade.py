"""Canonical nodes are written at the lowest opset that means the same, and at no lower one."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
import onnx.defs
import onnxruntime
import pytest
from numpy.typing import NDArray
from onnx import helper

from engine import ops
from engine.errors import ModelWriteError
from engine.ir import (
    UNKNOWN,
    Constant,
    ElementType,
    Model,
    Node,
    OptionalType,
    Parameter,
    PartialShape,
    SequenceType,
    TensorType,
    ValueType,
    bf16,
    boolean,
    f8e4m3fn,
    f16,
    f32,
    i8,
    i32,
    i64,
    string,
)
from engine.onnx.downgrade import attributes_at, expressible, lowest_opsets, opset_range
from engine.ops.protos import attribute_from_proto, type_from_proto

NEWEST_RUN = 26  # the newest opset that onnxruntime reads


def node(
    op_type: str,
    types: list[ElementType | ValueType | Constant | None],
    outputs: list[ElementType | ValueType] | None = None,
    domain: str = "",
    shape: Any = (2, 3),
    **attributes: Any,
) -> Node:
    """A node whose inputs have these types; one output of the first input's type unless `outputs` says else."""
    inputs: list[Node | None] = []
    for i, given in enumerate(types):
        if given is None or isinstance(given, Constant):
            inputs.append(given)
        else:
            inputs.append(Parameter(given, shape if isinstance(given, ElementType) else None, f"x{i}"))
    wanted = outputs if outputs is not None else [t for t in types if t is not None][:1]
    chosen = [TensorType(t, PartialShape(shape)) if isinstance(t, ElementType) else t for t in wanted]
    assert not any(isinstance(t, Constant) for t in chosen)
    return Node(op_type, inputs, attributes, domain=domain, num_outputs=len(chosen), types=chosen)  # type: ignore[arg-type]


def branch() -> Model:
    return Model([Constant(1.0)])


SIZES = Constant(np.array([1, 2], np.int64))
NEGATIVE = Constant(np.array([-1, 0], np.int64))
SCALAR = Constant(np.float32(0.5))


@pytest.mark.parametrize(
    ("written", "lowest"),
    [
        # Types decide: each came with some version.
        (node("Relu", [f32]), 6),
        (node("Relu", [bf16]), 13),
        (node("Relu", [i32]), 14),
        (node("Cast", [f32], [i32], to=i32.onnx), 6),
        (node("Cast", [f32], [string], to=string.onnx), 9),
        (node("Cast", [f32], [f8e4m3fn], to=f8e4m3fn.onnx), 19),
        (node("Identity", [f32]), 1),
        (node("Identity", [SequenceType(TensorType(f32, PartialShape([2])))]), 14),
        (node("Identity", [OptionalType(TensorType(f32, PartialShape([2])))]), 16),
        (node("Pow", [f32, i32]), 12),
        (node("Pow", [f32, f32]), 7),
        (node("ReduceMax", [boolean, i64]), 20),
        (node("ReduceMax", [f32, i64]), 18),
        # A type that nobody knows fits the canonical version only.
        (node("Relu", [UNKNOWN], [UNKNOWN]), 14),
        (node("Identity", [SequenceType()], [SequenceType()]), 25),
        # Attributes and ports that older schemas lack, where they say something.
        (node("Reshape", [f32, SIZES], allowzero=0), 5),
        (node("Reshape", [f32, SIZES], allowzero=1), 14),
        (node("AveragePool", [f32], kernel_shape=(2, 2)), 1),
        (node("AveragePool", [f32], kernel_shape=(2, 2), count_include_pad=1), 7),
        (node("MaxPool", [f32], kernel_shape=(2, 2), dilations=(2, 2)), 10),
        (node("AveragePool", [f32], kernel_shape=(2, 2), dilations=(2, 2)), 19),
        (node("MaxPool", [f32], [f32, i64], kernel_shape=(2, 2)), 8),
        (node("Gemm", [f32, f32]), 11),
        (node("Gemm", [f32, f32, f32], alpha=0.1), 7),
        (node("DepthToSpace", [f32], blocksize=2, mode="DCR"), 1),
        (node("DepthToSpace", [f32], blocksize=2, mode="CRD"), 11),
        (node("Attention", [f32, f32, f32], left_window_size=-1), 23),
        (node("Attention", [f32, f32, f32, f32]), 24),
        (node("Attention", [f32, f32, f32], left_window_size=2), 25),
        # Defaults that changed, inputs that were attributes: nothing is rewritten.
        (node("Softmax", [f32], axis=1), 13),
        (node("Clip", [f32]), 11),
        (node("Squeeze", [f32]), 13),
        (node("Split", [f32, SIZES], [f32, f32]), 18),
        # Values that an older text forbids.
        (node("Concat", [f32, f32], axis=1), 4),
        (node("Concat", [f32, f32], axis=-1), 11),
        (node("ArgMax", [f32], [i64], axis=-1), 11),
        (node("TopK", [f32, SIZES], [f32, i64], axis=-1), 10),
        (node("TopK", [f32, SIZES], [f32, i64], axis=-2), 11),
        (node("Flatten", [f32], axis=-1), 11),
        (node("Gather", [f32, SIZES]), 1),
        (node("Gather", [f32, NEGATIVE]), 11),
        (node("Gather", [f32, i64]), 11),
        (node("Slice", [f32, SIZES, SIZES, SIZES]), 10),
        (node("Slice", [f32, SIZES, SIZES, NEGATIVE]), 11),
        (node("Max", [f32, f32]), 6),
        (node("Max", [f32, SCALAR]), 8),
        (node("Max", [f32, f32], shape=("N", 3)), 8),
        (node("AveragePool", [f32], kernel_shape=(2, 2), ceil_mode=0), 1),
        (node("AveragePool", [f32], kernel_shape=(2, 2), ceil_mode=1), 22),
        (node("Mod", [i32, i32]), 10),
        (node("Mod", [f32, f32], fmod=1), 10),
        (node("Mod", [f32, f32]), 28),
        (node("Pad", [f32, SIZES], mode="edge"), 11),
        (node("Pad", [f32, SIZES], mode="wrap"), 19),
        (node("ScatterND", [f32, i64, f32], reduction="none"), 11),
        (node("ScatterND", [f32, i64, f32], reduction="add"), 16),
        (node("ScatterND", [f32, i64, f32], reduction="max"), 18),
        (node("Resize", [f32, None, SCALAR]), 13),
        (node("Resize", [f32, None, SCALAR], coordinate_transformation_mode="half_pixel_symmetric"), 19),
        (node("QuantizeLinear", [f32, SCALAR], [i8]), 19),
        (node("DequantizeLinear", [i8, SCALAR], [f32]), 10),
        (node("DequantizeLinear", [i8, f32], [f32]), 13),
        (node("DequantizeLinear", [i8, f16], [f16]), 19),
        (node("Conv", [f32, f32], auto_pad="VALID"), 1),
        (node("Conv", [f32, f32], auto_pad="SAME_UPPER"), 11),
        (node("If", [boolean], [f32], then_branch=branch(), else_branch=branch()), 11),
        (node("LabelEncoder", [i64], [string], "ai.onnx.ml", keys_int64s=(1,), values_strings=("a",)), 2),
        (node("LabelEncoder", [f32], [string], "ai.onnx.ml", keys_floats=(1.0,), values_strings=("a",)), 4),
    ],
    ids=lambda value: str(value.op_type) if isinstance(value, Node) else str(value),
)
def test_the_lowest_opset_of_a_node(written: Node, lowest: int) -> None:
    low, high = opset_range(written)
    assert low == lowest
    assert high == ops.CANONICAL_VERSIONS[written.domain]
    assert expressible(written, low)
    assert not expressible(written, low - 1)


def test_attributes_that_an_opset_lacks_are_left_out() -> None:
    written = node("Reshape", [f32, SIZES], allowzero=0)
    assert attributes_at(written, 13) == {}
    assert attributes_at(written, 14) == {"allowzero": 0}


def test_a_deprecated_operator_bounds_the_opset_from_above() -> None:
    """ai.onnx.ml 5 no longer has TreeEnsembleRegressor, and introduces TreeEnsemble."""
    trees = node("TreeEnsembleRegressor", [f32], [f32], "ai.onnx.ml", n_targets=1)
    assert opset_range(trees) == (1, 4)
    newer = node("TreeEnsemble", [f32], [f32], "ai.onnx.ml", nodes_featureids=(0,))
    assert lowest_opsets(Model([trees], [p for p in [trees.input_value(0).node] if isinstance(p, Parameter)])) == {
        "ai.onnx.ml": 1
    }
    with pytest.raises(ModelWriteError, match=r"TreeEnsemble .*needs opset 5.*TreeEnsembleRegressor"):
        lowest_opsets(Model([trees.output(0), newer.output(0)]))


def test_a_model_is_written_at_the_highest_of_its_nodes_lowest_opsets() -> None:
    """Bodies count, too; and 6 or less is never written, since runtimes start at 7."""
    x = Parameter(f32, [2, 3], "x")
    relu = Node("Relu", [x], types=[TensorType(f32, PartialShape([2, 3]))])
    assert lowest_opsets(Model([relu], [x])) == {"": 7}
    captured = Parameter(f32, [2, 3], "captured")
    gelu = Node("Gelu", [captured], types=[TensorType(f32, PartialShape([2, 3]))])
    bodies = {"then_branch": Model([gelu], captures=[captured]), "else_branch": branch()}
    condition = Parameter(boolean, [], "condition")
    choice = Node("If", [condition, x], bodies, types=[TensorType(f32, PartialShape.dynamic())])
    custom = Node("Mine", [choice], domain="com.example", types=[UNKNOWN])
    assert lowest_opsets(Model([custom], [x, condition])) == {"": 20}
    assert lowest_opsets(Model([x], [x])) == {}


# -- the operator suite that the onnx package ships -------------------------------------------------------------


def suite() -> Iterator[tuple[str, onnx.ModelProto, list[Any], list[Any]]]:
    """Every case of one node without bodies, at its newest version: name, model, inputs, expected outputs."""
    from onnx.backend.test.case.node import collect_testcases

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        cases = collect_testcases(None)  # type: ignore[no-untyped-call]
    for found in cases:
        if found.model.opset_import[0].version > ops.CANONICAL_OPSET:  # of a later release
            continue
        nodes = found.model.graph.node
        if len(nodes) == 1 and nodes[0].domain == "" and not any(a.HasField("g") for a in nodes[0].attribute):
            for inputs, outputs in found.data_sets:
                yield found.name, found.model, list(inputs), list(outputs)


def as_node(model: onnx.ModelProto) -> Node:
    (proto,) = model.graph.node
    parameters = {v.name: Parameter(type_from_proto(v.type), friendly_name=v.name) for v in model.graph.input}
    types = {v.name: type_from_proto(v.type) for v in model.graph.output}
    return Node(
        proto.op_type,
        [parameters[name] if name else None for name in proto.input],
        {a.name: attribute_from_proto(a) for a in proto.attribute},
        types=[types.get(name, UNKNOWN) for name in proto.output],
    )


def at_opset(model: onnx.ModelProto, opset: int, keep: set[str]) -> onnx.ModelProto:
    written = onnx.ModelProto()
    written.CopyFrom(model)
    del written.opset_import[:]
    written.opset_import.append(helper.make_opsetid("", opset))
    attributes = [a for a in written.graph.node[0].attribute if a.name in keep]
    del written.graph.node[0].attribute[:]
    written.graph.node[0].attribute.extend(attributes)
    written.ir_version = min(written.ir_version, 10)
    return written


def run(model: onnx.ModelProto, inputs: list[Any]) -> list[NDArray[Any]] | None:
    """The results of onnxruntime; None where it cannot run the model."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    feeds = {v.name: value for v, value in zip(model.graph.input, inputs, strict=True)}
    try:
        session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        return list(session.run(None, feeds))
    except Exception:
        return None


def equal(actual: list[NDArray[Any]], expected: list[Any], tolerance: float) -> bool:
    for one, other in zip(actual, expected, strict=True):
        if one.dtype == object:
            if one.tolist() != other.tolist():
                return False
        elif not np.allclose(one, other, rtol=tolerance, atol=tolerance, equal_nan=True):
            return False
    return True


def test_the_operator_suite_written_at_the_lowest_opset_gives_its_results() -> None:
    """onnxruntime, which reads the old version as the old version, is asked; where it is wrong itself, so at both."""
    compared, wrong = 0, []
    for name, model, inputs, expected in suite():
        written = as_node(model)
        canonical = onnx.defs.get_schema(written.op_type, ops.CANONICAL_OPSET).since_version
        own = onnx.defs.get_schema(written.op_type, model.opset_import[0].version).since_version
        if own != canonical or ops.find_op(written.op_type) is None or written.op_type == "Bernoulli":
            continue
        low = max(opset_range(written)[0], 7)
        if low >= canonical:
            continue
        if not all(isinstance(v, np.ndarray) and v.dtype.isbuiltin == 1 for v in [*inputs, *expected]):
            continue
        older = at_opset(model, low, set(attributes_at(written, low)))
        onnx.checker.check_model(older)
        actual = run(older, inputs)
        if actual is None or equal(actual, expected, 1e-3):
            compared += actual is not None
            continue
        newer = run(at_opset(model, min(model.opset_import[0].version, NEWEST_RUN), set(written.attributes)), inputs)
        if newer is None or not equal(actual, newer, 0):
            wrong.append(f"{name} at {low}")
    assert not wrong
    assert compared > 500
