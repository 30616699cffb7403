"""Programs in blobs: they compute exactly the same, load no module that compiles, and cannot be forged."""

from __future__ import annotations

import io
import json
import random
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from engine_cpu.network import CpuNetwork
from engine_cpu.stored_network import StoredNetwork
from engine_cpu.stored_program import DATA, SECTION, WHY_NOT

from engine import Core, ops
from engine.blob import BlobReader, BlobWriter
from engine.errors import BlobFormatError, EngineError, PlanError, UnsupportedError
from engine.ir import Constant, Model, Parameter, Result, Variable, f32, string
from engine.ir.element_type import ALL
from engine.native import StoredProgram, program_format
from engine.plugin_api import ExecutableNetwork
from engine.testing.networks import seeded_network
from engine.testing.values import values

COMPILING = ("onnx", "google", "ml_dtypes", "engine.onnx", "engine.ops", "engine.passes", "engine.lowering")


@pytest.fixture(scope="module")
def core() -> Core:
    return Core()


def exported(network: ExecutableNetwork) -> bytes:
    stream = io.BytesIO()
    network.export_model(stream)
    return stream.getvalue()


def small_model() -> Model:
    x = Parameter(f32, [2, 64], "x")
    hidden = ops.Relu(ops.Add(ops.MatMul(x, Constant(values(64, 48))), Constant(values(48))))
    # The constants are an output, and an operand of several elements that no kernel packs.
    return Model(
        [
            Result(ops.Softmax(ops.Mul(hidden, Constant(values(2, 48)))), "y"),
            Result(ops.Identity(Constant(values(3, 5))), "c"),
        ],
        [x],
    )


def changed(blob: bytes, change: Callable[[str, bytes], bytes | None], **manifest: Any) -> bytes:
    """A blob with changed sections and valid hashes; without those for which `change` gives None."""
    reader = BlobReader(blob)
    writer = BlobWriter(replace(reader.manifest, **manifest))
    for name in reader.section_names:
        if (data := change(name, bytes(reader.section(name)))) is not None:
            writer.add_section(name, data)
    stream = io.BytesIO()
    writer.write(stream)
    return stream.getvalue()


@pytest.mark.parametrize("name", ["efficientnet_b0", "segformer_b0", "lstm"])
def test_a_stored_program_gives_the_very_answer(core: Core, name: str) -> None:
    network = seeded_network(name, small=True)
    compiled = core.compile_model(network.model.SerializeToString(), "CPU")
    blob = exported(compiled)
    imported = core.import_model(blob)
    assert isinstance(imported, StoredNetwork)
    for got, want in zip(imported(network.inputs).values(), compiled(network.inputs).values(), strict=True):
        np.testing.assert_array_equal(got, want)
    assert imported.get_metric("ARENA_BYTES") == compiled.get_metric("ARENA_BYTES")
    assert imported.get_metric("EXECUTION_SUMMARY") == compiled.get_metric("EXECUTION_SUMMARY")
    assert exported(imported) == blob


def test_outputs_that_are_constants_and_profiles_are_stored(core: Core) -> None:
    model = small_model()
    compiled = core.compile_model(model, "CPU", {"PERF_COUNT": True})
    imported = core.import_model(exported(compiled))
    assert isinstance(imported, StoredNetwork)
    requests = [network.create_infer_request() for network in (compiled, imported)]
    results = [request.infer({"x": values(2, 64)}) for request in requests]
    for name in ("y", "c"):
        np.testing.assert_array_equal(results[1][name], results[0][name])
    nodes = [
        [(node.name, node.op_type, node.kernel, node.live_bytes) for node in request.profiling_info.nodes]
        for request in requests
    ]
    assert nodes[1] == nodes[0] != []


def test_variables_are_kept_by_a_stored_program(core: Core) -> None:
    x, past = Parameter(f32, [1, 4], "x"), Parameter(f32, [1, 4], "past")
    total = ops.Add(x, past)
    model = Model([Result(ops.Mul(total, total), "y"), Result(total, "sum")], [x, past])
    model.add_variable(Variable("total", "past", "sum", np.zeros((1, 4), np.float32)))
    compiled = core.compile_model(model, "CPU")
    imported = core.import_model(exported(compiled))
    assert isinstance(imported, StoredNetwork)
    request = imported.create_infer_request()
    for count in (1, 2, 3):
        result = request.infer({"x": np.full((1, 4), 2, np.float32)})
        np.testing.assert_array_equal(result["y"], np.full((1, 4), (2 * count) ** 2, np.float32))


def test_importing_a_blob_loads_nothing_that_compiles(core: Core, tmp_path: Path) -> None:
    """It does not load onnx, protobuf or ml_dtypes either, which a machine that runs blobs need not have."""
    core.compile_model(small_model(), "CPU").export_model(tmp_path / "m.blob")
    code = (
        "import sys, numpy\n"
        "from engine import Core\n"
        "network = Core().import_model(sys.argv[1])\n"
        "network({'x': numpy.ones((2, 64), numpy.float32)})\n"
        "print(*sys.modules)\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "m.blob")]
    loaded = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    assert "engine_cpu.stored_program" in loaded
    assert [name for name in loaded if name.startswith(COMPILING) and not name.startswith("onnxruntime")] == []
    assert len([name for name in loaded if name.startswith(("engine.", "engine_cpu."))]) < 140


def open_lengths() -> Model:
    x = Parameter(f32, ["N", 8], "x")
    return Model([ops.Relu(x)], [x])


def reference() -> Model:
    x = Parameter(f32, [4], "x")
    return Model([Result(ops.Det(ops.Reshape(x, Constant(np.array([2, 2])))), "y")], [x])


def counted() -> Model:
    x = Parameter(f32, [4], "x")
    return Model([Result(ops.NonZero(x, friendly_name="found"), "y")], [x])


def strings() -> Model:
    x = Parameter(string, [4], "x")
    return Model([Result(ops.Identity(x), "y")], [x])


@pytest.mark.parametrize(
    ("make", "value", "why"),
    [
        (open_lengths, values(3, 8), r"the shapes of inputs are open: .*x.*N,8"),
        (reference, values(4), "Det .*runs on the reference evaluator"),
        (counted, values(4), "NonZero .*found.* has a result whose shape only an inference knows"),
        (strings, np.array(["a"] * 4, object), "Identity .*runs on the reference evaluator"),
    ],
)
def test_a_blob_without_a_program_says_why_and_runs_from_its_graph(
    core: Core, make: Callable[[], Model], value: Any, why: str
) -> None:
    compiled = core.compile_model(make(), "CPU")
    blob = exported(compiled)
    assert SECTION not in BlobReader(blob).section_names
    text = bytes(BlobReader(blob).section(WHY_NOT)).decode()

    assert re.search(why, text), text
    imported = core.import_model(blob)
    assert isinstance(imported, CpuNetwork)
    np.testing.assert_array_equal(imported([value])[0], compiled([value])[0])


def test_weights_that_are_not_packed_and_other_versions_run_from_the_graph(core: Core) -> None:
    """The meaning of kernels' attributes may change between versions; the meaning of a graph does not."""
    x = {"x": values(2, 64)}
    compiled = core.compile_model(small_model(), "CPU")
    unpacked = core.import_model(exported(compiled), config={"EXPORT_PACKED_WEIGHTS": False})
    major, minor, *_ = BlobReader(exported(compiled)).manifest.engine_version.split(".")
    older = core.import_model(changed(exported(compiled), lambda _, data: data, engine_version=f"{major}.{minor}.99"))
    for network in (unpacked, older):
        assert isinstance(network, CpuNetwork)
        np.testing.assert_array_equal(network(x)["y"], compiled(x)["y"])


def test_the_native_core_knows_the_size_of_each_type() -> None:
    for each in ALL:
        text = {
            "format": program_format(), "inputs": 0, "outputs": [0], "segments": [], "rows": [], "nodes": [0, 0, 0, 0],
            "constants": [[0, each.name, [3], "data", 0]],
        }  # fmt: skip
        program = StoredProgram(json.dumps(text).encode())
        if each.numpy.hasobject:
            with pytest.raises(PlanError, match=f"{each.name}"):
                program.build([], [(each.name, [3])], "generic", lambda _: memoryview(bytes(64)))
            continue
        built = program.build([], [(each.name, [3])], "generic", lambda _: memoryview(bytes(64)))
        [(slot, form, data)] = built.constants
        assert (slot, form[0], list(form[1]), data.nbytes) == (0, each.name, [3], 3 * each.numpy.itemsize)
        assert not data.flags.writeable


def edited(edit: Callable[[dict[str, Any]], object]) -> Callable[[str, bytes], bytes]:
    def change(name: str, data: bytes) -> bytes:
        if name != SECTION:
            return data
        program = json.loads(data)
        edit(program)
        return json.dumps(program).encode()

    return change


def calls(program: dict[str, Any], kind: str) -> list[Any]:
    return [call for call in program["segments"][0]["calls"] if call[0] == kind]


FORGERIES: dict[str, Callable[[dict[str, Any]], object]] = {
    "a format": lambda p: p.update(format="0"),
    "the number of inputs": lambda p: p.update(inputs=0),
    "no segments": lambda p: p.update(segments=[]),
    "an output that is not written": lambda p: p.update(outputs=[99, 1]),
    "outputs exchanged": lambda p: p["outputs"].reverse(),
    "an input of strings": lambda p: p["segments"][0].update(inputs=[["string", [2, 64]]]),
    "an input of another shape": lambda p: p["segments"][0].update(inputs=[["f32", [2, 63]]]),
    "an output of another type": lambda p: p["segments"][0]["outputs"][0].__setitem__(0, "f64"),
    "a shape below zero": lambda p: p["segments"][0]["outputs"][0].__setitem__(1, [-2, -48]),
    "a value that is written twice": lambda p: p["segments"].append(p["segments"][0]),
    "a constant outside of its section": lambda p: calls(p, "constant")[0].__setitem__(2, 1 << 40),
    "a constant that is too long": lambda p: calls(p, "constant")[0].__setitem__(3, 1 << 40),
    "a section that is not there": lambda p: calls(p, "constant")[0].__setitem__(1, "packed/none"),
    "a kernel that is not there": lambda p: calls(p, "step")[0].__setitem__(1, "none"),
    "a kernel of an extension": lambda p: calls(p, "step")[0].__setitem__(1, "extension"),
    "an operand that is not there": lambda p: calls(p, "step")[0][2].append(1 << 30),
    "an input of another size": lambda p: calls(p, "input")[0].__setitem__(1, 4),
    "a call that is not there": lambda p: calls(p, "input")[0].__setitem__(0, "state"),
    "names for other steps": lambda p: p["segments"][0]["nodes"].pop(),
    "no rows of kernels": lambda p: p.pop("rows"),
    "no numbers of nodes": lambda p: p.update(nodes=[1, 2]),
}


@pytest.mark.parametrize("what", FORGERIES)
def test_a_forged_program_is_an_error(core: Core, what: str) -> None:
    blob = exported(core.compile_model(small_model(), "CPU"))
    with pytest.raises(EngineError) as raised:
        core.import_model(changed(blob, edited(FORGERIES[what])))
    assert isinstance(raised.value, BlobFormatError)
    assert "program" in str(raised.value) or "no section" in str(raised.value)


@pytest.mark.parametrize("data", [b"", b"{}", b"[]", b"null", b"\xff", b"[" * 100_000])
def test_a_damaged_program_is_an_error(core: Core, data: bytes) -> None:
    blob = exported(core.compile_model(small_model(), "CPU"))
    with pytest.raises(BlobFormatError, match="section program of the blob is damaged"):
        core.import_model(changed(blob, lambda name, old: data if name == SECTION else old))
    with pytest.raises(BlobFormatError):
        core.import_model(changed(blob, lambda name, old: old[:64] if name == DATA else old))


def test_any_change_of_a_program_is_refused_or_computes_something(core: Core) -> None:
    from tests.fuzz.blobs import changed_json

    blob = exported(core.compile_model(small_model(), "CPU"))
    program = bytes(BlobReader(blob).section(SECTION))
    outcomes = set()
    for seed in range(300):
        r = random.Random(seed)
        text = json.dumps(changed_json(r, json.loads(program))).encode()
        try:
            network = core.import_model(changed(blob, lambda name, old, new=text: new if name == SECTION else old))
            network({"x": values(2, 64)})
            outcomes.add("runs")
        except EngineError:
            outcomes.add("refused")
    assert outcomes == {"runs", "refused"}


def test_kernels_that_a_build_leaves_out_are_named(core: Core) -> None:
    """Plans would otherwise be made of other kernels, which may read packed weights in another way."""
    blob = exported(core.compile_model(small_model(), "CPU"))
    forged = edited(lambda p: p["rows"].extend([["gemm", "avx9000"], ["conv_in_one_step", "avx2"]]))
    with pytest.raises(UnsupportedError, match="leaves out: gemm for avx9000, conv_in_one_step for avx2; install"):
        core.import_model(changed(blob, forged))
