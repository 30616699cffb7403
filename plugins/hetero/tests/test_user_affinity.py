"""Users state where nodes run; their choice must be followed exactly, or refused with the reason."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from engine_hetero.affinity.user_affinity import set_affinity, stated_affinity
from engine_hetero.query.model_graph import ModelGraph

from engine import Core, ops
from engine.errors import EngineError, ModelError, PropertyError, UnsupportedError
from engine.ir import Constant, Model, Node, Parameter, boolean, f32
from engine.onnx import write_model
from engine.passes import Manager
from engine.passes.common.conv_bias_fusion import ConvBiasFusion
from engine.passes.common.identity_elimination import IdentityElimination
from engine.passes.common.init_node_info import InitNodeInfo

DEVICES = ("A", "B.1")


def named(node: Node, name: str) -> Node:
    node.friendly_name = name
    return node


def chain() -> Model:
    x = Parameter(f32, [2, 3], "x")
    node: Node = x
    for op, name in ((ops.Relu, "first"), (ops.Abs, "second"), (ops.Neg, "third")):
        node = named(op(node), name)
    return Model([node], [x])


def stated(model: Model, file: Path | None = None, **options: Model) -> dict[str, int]:
    graph = ModelGraph.of(model)
    affinity = stated_affinity(graph, DEVICES, "" if file is None else str(file), **options)
    assert affinity.dtype == np.int64
    return dict(zip(graph.names, affinity.tolist(), strict=True))


def written(folder: Path, content: object) -> Path:
    path = folder / "affinity.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return path


def canonical(model: Model, *passes: type) -> Model:
    copy = model.clone()
    manager = Manager()
    for each in (InitNodeInfo, *passes):
        manager.register_pass(each)
    manager.run_passes(copy)
    return copy


def test_what_is_not_stated_stays_undecided() -> None:
    model = chain()
    set_affinity(model, {"second": "B.1"})
    assert stated(model) == {"first": -1, "second": 1, "third": -1}


def test_a_function_decides_for_the_nodes_that_it_knows() -> None:
    model = chain()
    model.node("first").rt_info["affinity"] = "B.1"
    set_affinity(model, lambda node: "A" if node.op_type == "Abs" else None)
    assert stated(model) == {"first": 1, "second": 0, "third": -1}


def test_affinities_survive_export_and_import(tmp_path: Path) -> None:
    model = chain()
    set_affinity(model, {"first": "A", "third": "B.1"})
    write_model(model, tmp_path / "model.onnx")
    assert stated(Core().read_model(tmp_path / "model.onnx")) == {"first": 0, "second": -1, "third": 1}


def test_the_file_goes_before_the_model(tmp_path: Path) -> None:
    model = chain()
    set_affinity(model, {"first": "A", "second": "A"})
    assert stated(model, written(tmp_path, {"second": "B.1"})) == {"first": 0, "second": 1, "third": -1}


@pytest.mark.parametrize("device", ["B", "B.2", "a", "C"])
@pytest.mark.parametrize("in_file", [False, True])
def test_a_device_that_is_not_listed_is_refused(tmp_path: Path, device: str, in_file: bool) -> None:
    model = chain()
    if not in_file:
        set_affinity(model, {"second": device})
    path = written(tmp_path, {"second": device}) if in_file else None
    with pytest.raises(UnsupportedError, match=f"`second` is '{device}', which is not in the device list A, B.1"):
        stated(model, path)


def test_a_name_that_no_node_has_is_refused_with_the_closest(tmp_path: Path) -> None:
    with pytest.raises(PropertyError, match=r"affinity.json: model `model` has no node `secnd`.*did you mean `second`"):
        stated(chain(), written(tmp_path, {"secnd": "A"}))
    model = chain()
    with pytest.raises(ModelError, match=r"no node `thrd`.*did you mean `third`"):
        set_affinity(model, {"first": "A", "thrd": "A"})
    assert "affinity" not in model.node("first").rt_info, "a refused call changed the model"


@pytest.mark.parametrize("device", ["", " A", 7])
def test_what_is_no_device_string_is_refused(device: str) -> None:
    model = chain()
    with pytest.raises(ModelError, match="first"):
        set_affinity(model, {"first": device})
    model.node("first").rt_info["affinity"] = device
    with pytest.raises(ModelError, match="first"):
        stated(model)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("{", "is not JSON"),
        ("[" * 100_000, "is not JSON"),
        (["first"], "expected an object"),
        ({"first": 1}, "`first` has 1"),
        ('{"first": "A", "first": "B.1"}', "`first` is listed twice, with 'A' and 'B.1'"),
    ],
)
def test_a_damaged_file_is_refused(tmp_path: Path, content: object, reason: str) -> None:
    with pytest.raises(PropertyError, match=reason):
        stated(chain(), written(tmp_path, content))


def test_a_file_that_is_not_there_or_no_text_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PropertyError, match="cannot be read"):
        stated(chain(), tmp_path / "none.json")
    (tmp_path / "bytes.json").write_bytes(b"\xff\xfe{")
    with pytest.raises(PropertyError, match="is not JSON"):
        stated(chain(), tmp_path / "bytes.json")


def convolution(**affinity: str) -> Model:
    """A Conv and an Add, which become one Conv."""
    x = Parameter(f32, [1, 2, 4, 4], "x")
    conv = named(ops.Conv(x, Constant(np.ones((3, 2, 1, 1), np.float32))), "conv")
    model = Model([named(ops.Add(conv, Constant(np.ones((3, 1, 1), np.float32))), "bias")], [x])
    set_affinity(model, affinity)
    return model


@pytest.mark.parametrize("affinity", [{"conv": "B.1"}, {"bias": "B.1"}, {"conv": "B.1", "bias": "B.1"}])
def test_nodes_that_agree_decide_for_the_node_that_stands_for_them(affinity: dict[str, str]) -> None:
    model = convolution(**affinity)
    fused = canonical(model, ConvBiasFusion)
    assert len(ModelGraph.of(fused)) == 1
    assert list(stated(fused, user_model=model).values()) == [1]


def test_nodes_that_disagree_are_refused(tmp_path: Path) -> None:
    model = convolution(conv="A", bias="B.1")
    fused = canonical(model, ConvBiasFusion)
    with pytest.raises(UnsupportedError, match=r"different affinities: `bias` on B\.1, `conv` on A"):
        stated(fused, user_model=model)
    assert list(stated(fused, written(tmp_path, {"bias": "A"}), user_model=model).values()) == [0]


def test_nodes_that_are_folded_away_need_no_device(tmp_path: Path) -> None:
    x = Parameter(f32, ["n"], "x")
    same = named(ops.Identity(Constant(np.ones(2, np.float32))), "same")
    model = Model([named(ops.Add(x, same), "sum")], [x])
    path = written(tmp_path, {"same": "A", "sum": "B.1", "x": "A"})
    assert stated(canonical(model, IdentityElimination), path, user_model=model) == {"sum": 1}
    with pytest.raises(UnsupportedError, match="`same` is 'C'"):
        stated(canonical(model, IdentityElimination), written(tmp_path, {"same": "C"}), user_model=model)


def test_a_node_without_effect_has_no_say_in_where_others_run() -> None:
    """It was eliminated from the graph: its name was passed to its source."""
    x = Parameter(f32, [2], "x")
    same = named(ops.Identity(named(ops.Relu(x), "relu")), "same")
    model = Model([named(ops.Neg(same), "neg")], [x])
    set_affinity(model, {"relu": "A", "same": "B.1", "neg": "B.1"})
    graph = ModelGraph.of(canonical(model, IdentityElimination))
    assert [node.op_type for node in graph.nodes] == ["Relu", "Neg"]
    assert stated_affinity(graph, DEVICES, user_model=model).tolist() == [0, 1]
    del model.node("relu").rt_info["affinity"]
    assert stated_affinity(graph, DEVICES, user_model=model).tolist() == [1, 1]


def test_a_body_runs_where_the_node_that_holds_it_runs() -> None:
    x, choice = Parameter(f32, [2], "x"), Parameter(boolean, [], "choice")
    captured = Parameter(f32, [2], "captured")
    then = Model([named(ops.Relu(captured), "inner")], [], captures=[captured])
    other = Parameter(f32, [2], "other")
    otherwise = Model([named(ops.Neg(other), "outer")], [], captures=[other])
    node = Node("If", [choice, x, x], {"then_branch": then, "else_branch": otherwise}, friendly_name="if")
    model = Model([node], [choice, x])
    set_affinity(model, {"inner": "B.1"})
    assert stated(model) == {"if": 1}
    set_affinity(model, {"outer": "A"})
    with pytest.raises(UnsupportedError, match="combines 2 nodes with different affinities"):
        stated(model)


def test_nodes_of_one_name_keep_their_own_affinity() -> None:
    model = chain()
    for name, device in (("first", "A"), ("second", "B.1")):
        model.node(name).rt_info["affinity"] = device
    for node in model.ordered_nodes()[1:3]:
        node.friendly_name = "same"
    graph = ModelGraph.of(canonical(model))
    assert stated_affinity(graph, DEVICES, user_model=model).tolist() == [0, 1, -1]


def test_every_refusal_is_an_engine_error(tmp_path: Path) -> None:
    for content in ({"second": "Z"}, {"nobody": "A"}, "nothing"):
        with pytest.raises(EngineError):
            stated(chain(), written(tmp_path, content))


def test_a_file_may_name_what_the_device_folds_away(tmp_path: Path) -> None:
    """It may have been written by a program, for every operation of the model."""
    x = Parameter(f32, [4], "x")
    copied = named(ops.Identity(x), "copied")
    model = Model([named(ops.Neg(named(ops.Relu(copied), "kept")), "negated")], [x])
    file = written(tmp_path, {"copied": "TEMPLATE", "kept": "TEMPLATE"})
    network = Core().compile_model(model, "HETERO:CPU,TEMPLATE", {"AFFINITY_FILE": str(file)})
    assert network.get_metric("SUBGRAPH_DEVICES") == ("TEMPLATE", "CPU")
    written(tmp_path, {"copies": "TEMPLATE"})
    with pytest.raises(PropertyError, match="no node `copies`; did you mean `copied`"):
        Core().compile_model(model, "HETERO:CPU,TEMPLATE", {"AFFINITY_FILE": str(file)})
