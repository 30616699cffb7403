"""Networks for other machines: an inference on the wrong one would be an illegal instruction.

ENGINE_MAX_ISA=generic makes this machine one that has no vector instructions.
"""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
from engine_cpu import machine
from onnx import TensorProto, helper, numpy_helper

from engine import Core, ExecutableNetwork
from engine.blob import BlobReader
from engine.errors import BlobIncompatibleError, PropertyError, TargetError
from engine.native import built_isas, cpu_features, default_isa, isas_within
from engine.properties import CpuTarget
from engine.testing.values import values

pytestmark = pytest.mark.skipif("avx2" not in isas_within(default_isa()), reason="this machine has no AVX2")

Array = np.ndarray[Any, np.dtype[Any]]
LENGTH = 64
TOLERANCE = 8 * LENGTH * float(np.finfo(np.float32).eps)
"""The rounding errors of sums of LENGTH products, whose terms are at most 1, in any order."""
WEIGHTS = values(LENGTH, 100, seed="weights", is_uniform=True)
KERNEL = values(40, 16, 3, 3, seed="kernel", is_uniform=True)
"""Of so many output channels that the last vector of AVX-512 is half empty."""
X = values(3, LENGTH, seed="x", is_uniform=True)


def product() -> bytes:
    """A product: `y = x @ WEIGHTS`."""
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    return model([node], {"w": WEIGHTS}, [3, LENGTH], [3, 100])


def convolution() -> bytes:
    node = helper.make_node("Conv", ["x", "w"], ["y"], pads=[1, 1, 1, 1])
    return model([node], {"w": KERNEL}, [1, 16, 24, 24], [1, 40, 24, 24])


def quantized() -> bytes:
    """A depthwise convolution of 8 bits, whose weights have an order of their own."""
    weights = np.round(values(24, 1, 3, 3, seed="bytes", is_uniform=True) * 100).astype(np.int8)
    scale, zero = np.float32(0.02), np.uint8(128)
    constants = {"s": scale, "z": zero, "w": weights, "ws": scale, "wz": np.int8(0), "ys": scale, "yz": zero}
    inputs = ["x", "s", "z", "w", "ws", "wz", "ys", "yz"]
    node = helper.make_node("QLinearConv", inputs, ["y"], pads=[1, 1, 1, 1], group=24)
    ports = [helper.make_tensor_value_info(name, TensorProto.UINT8, [1, 24, 9, 9]) for name in ("x", "y")]
    stored = [numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items()]
    graph = helper.make_graph([node], "net", ports[:1], ports[1:], stored)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString()


def model(nodes: list[Any], constants: dict[str, Array], x: list[Any], y: list[Any]) -> bytes:
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in (("x", x), ("y", y))]
    stored = [numpy_helper.from_array(array, name) for name, array in constants.items()]
    graph = helper.make_graph(nodes, "net", ports[:1], ports[1:], stored)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString()


def blob_of(network: ExecutableNetwork) -> bytes:
    stream = io.BytesIO()
    network.export_model(stream)
    return stream.getvalue()


def sections(blob: bytes) -> dict[str, bytes]:
    reader = BlobReader(blob)
    return {name: bytes(reader.section(name)) for name in reader.section_names}


@pytest.mark.parametrize("isa", isas_within(default_isa()))
def test_a_network_for_a_cpu_whose_instructions_this_one_has_runs(isa: str) -> None:
    network = Core().compile_model(product(), "CPU", target=f"x86-64:{isa}")
    assert np.abs(network(X)["y"] - X @ WEIGHTS).max() < TOLERANCE
    imported = Core().import_model(blob_of(network))
    assert (imported(X)["y"] == network(X)["y"]).all()
    assert imported.get_property("INSTRUCTION_SET") in isas_within(isa)


def test_a_network_for_another_cpu_is_exported_and_refuses_to_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENGINE_MAX_ISA", "generic")
    network = Core().compile_model(product(), "CPU", target="x86-64:avx2")
    refusal = r"CPU network `net` was compiled for x86-64:avx2: it needs isa avx2, and this machine has generic; export"
    for use in (network, lambda x: network.create_infer_request(), lambda x: network.submit(x).result()):
        with pytest.raises(TargetError, match=refusal):
            use(X)
    with pytest.raises(TargetError, match=refusal):
        network.prepare_shapes({"x": X.shape})
    blob = blob_of(network)
    assert not Core().check_blob(blob).compatible
    with pytest.raises(BlobIncompatibleError, match="needs avx2, this host has generic"):
        Core().import_model(blob)
    monkeypatch.undo()
    assert np.abs(Core().import_model(blob)(X)["y"] - X @ WEIGHTS).max() < TOLERANCE


@pytest.mark.parametrize("made", [product, convolution, quantized])
@pytest.mark.parametrize("isa", built_isas())
def test_a_blob_does_not_depend_on_the_machine_that_compiled_it(
    made: Any, isa: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = f"x86-64:{isa},cores=4"
    here = sections(blob_of(Core().compile_model(made(), "CPU", target=target)))
    monkeypatch.setenv("ENGINE_MAX_ISA", "generic")
    there = sections(blob_of(Core().compile_model(made(), "CPU", target=target)))
    assert here.keys() == there.keys()
    different = [name for name in here if here[name] != there[name]]
    assert made is not convolution or any("winograd" in name for name in here)
    for name in different:  # transformed weights are rounded with and without FMA
        assert name.startswith("packed/")
        ours, theirs = (np.frombuffer(each[name], np.float32) for each in (here, there))
        assert np.abs(ours - theirs).max() <= 2 * np.finfo(np.float32).eps * np.abs(ours).max()
    assert made is convolution or not different


@pytest.mark.parametrize("length", [3, None])
def test_varying_lengths_are_planned_where_the_network_runs(
    length: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    open_model = model([node], {"w": WEIGHTS}, [length or "n", LENGTH], [length or "n", 100])
    monkeypatch.setenv("ENGINE_MAX_ISA", "generic")
    blob = blob_of(Core().compile_model(open_model, "CPU", target="avx2"))
    monkeypatch.undo()
    assert np.abs(Core().import_model(blob)(X)["y"] - X @ WEIGHTS).max() < TOLERANCE


def test_source_is_lowered_for_the_machine_that_imports_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENGINE_MAX_ISA", "generic")
    made = Core().compile_model(product(), "CPU", target="source")
    assert np.abs(made(X)["y"] - X @ WEIGHTS).max() < TOLERANCE
    blob = blob_of(made)
    assert BlobReader(blob).manifest.requirements == {}
    assert WEIGHTS.tobytes() in blob
    monkeypatch.setenv("ENGINE_MAX_ISA", "avx2")
    network = Core().import_model(blob)
    assert network.get_property("INSTRUCTION_SET") == "avx2"
    assert np.abs(network(X)["y"] - X @ WEIGHTS).max() < TOLERANCE
    assert sections(blob_of(network)) == sections(blob)


def test_tiles_are_packed_on_a_cpu_without_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    if "amx" not in built_isas():
        pytest.skip("this build has no kernels for AMX")
    monkeypatch.setenv("ENGINE_MAX_ISA", "avx2")
    network = Core().compile_model(product(), "CPU", {"INFERENCE_PRECISION_HINT": "bf16"}, target="amx,cores=16")
    assert network.get_property("INSTRUCTION_SET") == "amx"
    assert network.get_property("EXECUTION_PRECISION") == "bf16"
    with pytest.raises(TargetError, match="it needs isa amx"):
        network(X)
    blob = blob_of(network)
    assert BlobReader(blob).manifest.requirements["isa"] == ["amx"]
    if "amx" in isas_within(cpu_features().isa):
        monkeypatch.undo()
        largest = np.abs(X) @ np.abs(WEIGHTS)  # both factors are rounded to 8 bits
        assert (np.abs(Core().import_model(blob)(X)["y"] - X @ WEIGHTS) <= 2**-7 * largest).all()


@pytest.mark.parametrize(
    ("target", "message"),
    [
        (
            "x86-64:sse9",
            "'sse9' is neither an instruction set nor a feature; targets: x86-64:generic,.*source; features",
        ),
        ("x86-64:avx2+turbo", "'turbo' is neither an instruction set nor a feature"),
        ("riscv64:v", "has kernels for x86-64 only; targets: x86-64:generic"),
        ("x86-64:avx2,cores=0", "cores=0; expected 1 to 4096"),
        ("x86-64:avx2,cores=-1", "cores=-1; expected 1 to 4096"),
        ("x86-64:avx2,l2=0", "l2=0; expected a size such as 512KiB"),
        ("x86-64:avx2,l2=many", "l2=many; expected a size"),
        ("x86-64:avx2,cores=2,cores=3", "got 'cores=3'"),
        ("x86-64:avx2,l4=2MiB", "got 'l4=2MiB'"),
        ("x86-64:", "'' is no name of a feature"),
        (":avx2", "'' is no name of an architecture"),
        ("x86-64:avx2:fma", "is no name of a feature"),
        ("AVX2", "'AVX2' is no name of a feature"),
    ],
)
def test_a_target_that_does_not_exist_is_an_error_that_says_what_does(target: str, message: str) -> None:
    with pytest.raises(TargetError, match=message):
        Core().compile_model(product(), "CPU", target=target)


def test_a_build_without_the_kernels_of_a_target_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """A lower set would be slow on the target without anyone's notice."""
    monkeypatch.setattr(machine, "isas_within", lambda isa: ("generic", "avx2"))
    with pytest.raises(TargetError, match=r"this build has no kernels for avx512; targets: .*ENGINE_ISAS=all"):
        Core().compile_model(product(), "CPU", target="x86-64:avx512")


def test_features_name_the_best_set_that_they_suffice_for() -> None:
    def isa_of(target: str) -> object:
        return Core().compile_model(product(), "CPU", target=target).get_property("INSTRUCTION_SET")

    assert isa_of("x86-64:sse42+avx2+fma+f16c") == "avx2"
    assert isa_of("x86-64:sse42+fma") in ("generic", "v2")


def test_a_target_has_one_text() -> None:
    text = "x86-64:avx512+vnni,cores=8,l1d=48KiB,l2=2MiB,l3=1GiB"
    target = CpuTarget.parse(text)
    assert str(target) == text
    assert target == CpuTarget("x86-64", ("avx512", "vnni"), 8, 48 << 10, 2 << 20, 1 << 30)
    assert str(CpuTarget("x86-64", ("avx2",), l2_bytes=1000)) == "x86-64:avx2,l2=1000"
    assert CpuTarget.parse("avx2", "x86-64") == CpuTarget("x86-64", ("avx2",))
    network = Core().compile_model(product(), "CPU", target=CpuTarget("x86-64", ("avx2",), cores=3))
    assert network.get_property("TARGET") == "x86-64:avx2,cores=3"
    for wrong in ({"cores": 0}, {"cores": True}, {"l2_bytes": 0}):
        with pytest.raises(TargetError, match="expected"):
            CpuTarget("x86-64", ("avx2",), **wrong)


def test_the_cores_of_a_target_decide_streams_and_threads() -> None:
    network = Core().compile_model(product(), "CPU", {"PERFORMANCE_HINT": "THROUGHPUT"}, target="avx2,cores=8")
    assert network.get_property("NUM_STREAMS") == 8
    assert (
        b'"threads": 6'
        in sections(blob_of(Core().compile_model(product(), "CPU", target="avx2,cores=6")))["compilation"]
    )


def test_kernels_are_not_measured_for_another_machine() -> None:
    with pytest.raises(TargetError, match=r"COMPILE_EFFORT is quick.*kernels can be measured for this machine only"):
        Core().compile_model(product(), "CPU", {"COMPILE_EFFORT": "quick"}, target="avx2")
    with pytest.raises(TargetError, match="INFERENCE_PRECISION_HINT is bf16, and TARGET is source"):
        Core().compile_model(product(), "CPU", {"INFERENCE_PRECISION_HINT": "bf16"}, target="source")


def test_devices_pass_a_target_on_or_say_why_not(monkeypatch: pytest.MonkeyPatch) -> None:
    core = Core()
    monkeypatch.setenv("ENGINE_MAX_ISA", "generic")
    network = core.compile_model(product(), "HETERO:CPU", target="avx2")
    assert BlobReader(blob_of(network)).nested("part0").manifest.requirements["isa"] == ["avx2"]
    with pytest.raises(TargetError, match="compiled for avx2"):
        network(X)
    with pytest.raises(TargetError, match="TARGET is avx2, and TEMPLATE compiles for this machine only; list other"):
        core.compile_model(product(), "HETERO:CPU,TEMPLATE", target="avx2")
    with pytest.raises(TargetError, match="PLACEMENT is measured"):
        core.compile_model(product(), "HETERO:CPU", {"PLACEMENT": "measured"}, target="avx2")
    for device in ("AUTO", "TEMPLATE"):
        with pytest.raises(TargetError, match=f"{device} compiles for this machine only.*others: CPU"):
            core.compile_model(product(), device, target="avx2")
    with pytest.raises(TargetError, match="compiled for avx2"):  # by the check of batches
        core.compile_model(product(), "BATCH:CPU(2)", target="avx2")
    batches = core.compile_model(product(), "BATCH:CPU(2)", {"BATCH_CHECK": False}, target="avx2")
    blob = blob_of(batches)
    assert not core.check_blob(blob).compatible
    monkeypatch.undo()
    assert np.abs(core.import_model(blob)(X)["y"] - X @ WEIGHTS).max() < TOLERANCE


def test_a_target_is_part_of_the_key_of_a_cached_network(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    config = {"CACHE_DIR": str(tmp_path)}
    monkeypatch.setenv("ENGINE_MAX_ISA", "generic")
    blobs = {}
    for expected in (False, True):
        for target in ("avx2", "source", None):
            network = Core().compile_model(product(), "CPU", config, target=target)
            assert network.get_property("LOADED_FROM_CACHE") is expected
            assert blobs.setdefault(target, sections(blob_of(network))) == sections(blob_of(network))
            if target == "avx2":
                with pytest.raises(TargetError, match="compiled for avx2"):
                    network(X)
            else:
                assert np.abs(network(X)["y"] - X @ WEIGHTS).max() < TOLERANCE


def test_a_target_is_stated_once() -> None:
    with pytest.raises(PropertyError, match="TARGET is 'avx2' in the configuration, and the target is 'source'"):
        Core().compile_model(product(), "CPU", {"TARGET": "avx2"}, target="source")
    blob = blob_of(Core().compile_model(product(), "CPU"))
    with pytest.raises(PropertyError, match="an import does not compile"):
        Core().import_model(blob, config={"TARGET": "avx2"})


def test_the_second_level_cache_of_a_target_decides_blocks() -> None:
    """Without its size, a blob would be for a cache of 1 MiB."""
    node = helper.make_node("Conv", ["x", "w"], ["y"], pads=[1, 1, 1, 1])
    kernel = values(128, 128, 3, 3, seed="kernel", is_uniform=True)
    made = model([node], {"w": kernel}, [1, 128, 56, 56], [1, 128, 56, 56])

    def program(target: str) -> bytes:
        return sections(blob_of(Core().compile_model(made, "CPU", target=target)))["program"]

    assert program("avx2,cores=1") == program("avx2,cores=1,l2=1MiB")
    assert program("avx2,cores=1") != program("avx2,cores=1,l2=8MiB")
