"""Native kernels from shared libraries: CPU runs them as steps of its plans, and errors state what is wrong with a
library.

If this fails, a user's kernel computes wrong values, leaks memory, or an incompatible library ends the process.
"""

from __future__ import annotations

import gc
import random
import re
import shutil
import struct
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from engine import Core, Extension, Operator, include_dir, ops
from engine.errors import DeviceError, EngineError, ExtensionConflictError, ExtensionError, TypeInferenceError
from engine.ir import Model, Parameter, PartialShape, Result, TensorType, f32
from engine.native import load_kernel_library
from engine.native.elf import why_incomplete
from tests.extensions.conftest import STRICT, Build, model_of

X = np.array([[1, -2, 3], [4, 5, 6]], np.float32)
MIXED = 'NAME="mixed"'


def native(op_type: str, *inputs: str, name: str = "", output: str = "y", **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(op_type, inputs or ["x"], [output], name, domain="test.native", **attributes)


@pytest.fixture
def core(build: Build) -> Core:
    made = Core()
    made.add_extension(build())
    return made


@pytest.mark.parametrize("device", ["TEMPLATE", "CPU", "HETERO:CPU,TEMPLATE"])
@pytest.mark.parametrize("shape", [(2, 3), ("n", 3), ("n", "m")])
def test_every_kind_of_attribute_reaches_the_kernel(core: Core, device: str, shape: Any) -> None:
    for attributes, expected in (
        ({}, X),
        ({"scale": 2.0}, X * 2),
        ({"scale": 0.5, "offsets": [1.0, 2.5]}, X * 0.5 + 3.5),
        ({"offsets": [4.0], "mode": "subtract"}, X - 4),
    ):
        network = core.compile_model(model_of(native("Affine", axis=0, **attributes), shape=shape), device)
        for _ in range(2):
            np.testing.assert_array_equal(network(X)["y"], expected.astype(np.float32))


def test_the_library_describes_its_operators(core: Core) -> None:
    (info,) = core.extensions
    assert (str(info), info.native) == ("tests 1.0", info.operators)
    op = ops.get_op("Affine", "test.native")
    assert op.required == ("axis",)
    assert {name: each.default for name, each in op.attributes.items()} == {
        "scale": 1.0, "offsets": None, "mode": "add", "axis": None,
    }  # fmt: skip


def test_cpu_runs_it_as_a_step_between_its_own(core: Core) -> None:
    model = model_of(
        helper.make_node("Softmax", ["x"], ["s"], "soft"),
        native("Affine", "s", name="affine", output="a", scale=3.0, axis=0),
        helper.make_node("MatMul", ["a", "t"], ["m"], "product"),
        native("Affine", "m", name="again", axis=0, offsets=[1.0]),
    )
    weights = np.arange(12, dtype=np.float32).reshape(3, 4)
    model.graph.initializer.append(onnx.numpy_helper.from_array(weights, "t"))
    assert {support.level.value for support in core.query_model(model, "CPU").nodes.values()} == {"native"}
    network = core.compile_model(model, "CPU", {"PERF_COUNT": True, "ALLOW_REFERENCE": False})
    request = network.create_infer_request()
    got = request.infer({"x": X})["y"]
    ran = [(node.name, node.op_type, node.status) for node in request.profiling_info.nodes]
    assert ("affine", "Affine", "native") in ran
    assert ("again", "Affine", "native") in ran
    exponents = np.exp(X - X.max(1, keepdims=True))
    expected = (exponents / exponents.sum(1, keepdims=True) * 3) @ weights + 1
    # A product of 3 terms of at most 33, after a Softmax.
    np.testing.assert_allclose(got, expected, rtol=8 * np.finfo(np.float32).eps, atol=0)


def test_all_workers_compute_their_part(core: Core) -> None:
    x = np.arange(1 << 20, dtype=np.float32)
    for threads in (1, 2):
        config = {"INFERENCE_NUM_THREADS": threads}
        network = core.compile_model(model_of(native("Affine", axis=0, scale=2.0), shape=x.shape), "CPU", config)
        np.testing.assert_array_equal(network(x)["y"], x * 2)


@pytest.mark.parametrize("device", ["TEMPLATE", "CPU"])
def test_an_omitted_input_and_a_constant_one(core: Core, device: str) -> None:
    np.testing.assert_array_equal(core.compile_model(model_of(native("Weighted")), device)(X)["y"], -X)
    model = model_of(native("Weighted", "x", "w"))
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.array([1, 2, 3], np.float32), "w"))
    np.testing.assert_array_equal(core.compile_model(model, device)(X)["y"], X * [1, 2, 3])


@pytest.mark.parametrize("device", ["TEMPLATE", "CPU"])
def test_a_kernel_sees_the_constants_when_it_is_prepared(core: Core, device: str) -> None:
    weight = onnx.numpy_helper.from_array(np.float32([3]), "w")
    for shape in ((2, 3), ("n", 3)):
        model = model_of(native("Fixed", "x", "w"), shape=shape)
        model.graph.initializer.append(weight)
        np.testing.assert_array_equal(core.compile_model(model, device)(X)["y"], X * 3)
    folded = model_of(native("Fixed", "w", "w", output="c"), helper.make_node("Mul", ["x", "c"], ["y"]))
    folded.graph.initializer.append(weight)
    np.testing.assert_array_equal(core.compile_model(folded, device)(X)["y"], X * 9)
    said = r"Fixed `f` \(tests 1.0\): kernel test.native.Fixed cannot .* status 1: w must be a constant$"
    with pytest.raises(DeviceError, match=said):
        core.compile_model(model_of(native("Fixed", "x", "x", name="f")), device)(X)


@pytest.mark.parametrize("device", ["TEMPLATE", "CPU"])
def test_a_random_kernel_is_neither_folded_nor_merged(core: Core, device: str) -> None:
    nodes = (native("Dice", "c", output="a"), native("Dice", "c", output="b"), helper.make_node("Sub", "ab", ["d"]))
    model = model_of(*nodes, helper.make_node("Mul", ["x", "d"], ["y"]))
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.ones((2, 3), np.float32), "c"))
    network = core.compile_model(model, device)
    assert set(np.abs(network(X)["y"] / X).ravel()) == {1}
    alone = model_of(native("Dice", "c", output="a"), helper.make_node("Add", ["x", "a"], ["y"]))
    alone.graph.initializer.append(model.graph.initializer[0])
    network = core.compile_model(alone, device)
    assert not np.array_equal(network(X)["y"], network(X)["y"])


@pytest.mark.parametrize("device", ["TEMPLATE", "CPU"])
def test_an_impossible_workspace_names_the_node(core: Core, device: str) -> None:
    said = r"^Greedy `g` \(tests 1.0\): kernel test.native.Greedy asks for a workspace of 18446744073709551615 bytes$"
    with pytest.raises(DeviceError, match=said):
        core.compile_model(model_of(native("Greedy", name="g")), device)(X)


@pytest.mark.parametrize("device", ["TEMPLATE", "CPU"])
def test_no_elements_and_a_scalar(core: Core, device: str) -> None:
    for shape in ((0, 3), ()):
        network = core.compile_model(model_of(native("Affine", axis=0), shape=shape), device)
        assert network(np.ones(shape, np.float32))["y"].shape == shape


@pytest.mark.parametrize("device", ["TEMPLATE", "CPU", "HETERO:CPU"])
def test_a_failure_names_node_and_extension_and_the_request_stays_usable(core: Core, device: str) -> None:
    node = native("Picky", "r", name="picky", output="p")
    neg = helper.make_node("Neg", ["x"], ["r"])
    network = core.compile_model(model_of(neg, node, helper.make_node("Abs", ["p"], ["y"])), device)
    request = network.create_infer_request()
    said = r"Picky `picky` \(tests 1.0\): kernel test.native.Picky failed with status 7: element 2 is negative \ufffd$"
    for _ in range(3):
        with pytest.raises(DeviceError, match=said):
            request.infer({"x": np.float32([[-1, -1, 1], [1, 1, 1]])})
        np.testing.assert_array_equal(request.infer({"x": -np.abs(X)})["y"], np.abs(X))


def test_failures_of_many_requests_are_told_apart(core: Core) -> None:
    network = core.compile_model(model_of(native("Picky", name="p"), shape=(64,)), "CPU")
    wrong: list[str] = []

    def run(index: int) -> None:
        x = np.ones(64, np.float32)
        x[index] = -1
        for _ in range(50):
            try:
                network(x)
            except DeviceError as e:
                if f"element {index} is negative" not in str(e):
                    wrong.append(str(e))

    threads = [threading.Thread(target=run, args=(index,)) for index in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


@pytest.mark.parametrize("device", ["TEMPLATE", "CPU"])
def test_what_create_refuses_is_an_error_with_the_node(core: Core, device: str) -> None:
    model = model_of(native("Affine", name="a", axis=0, mode="divide"))
    said = (
        r"Affine `a` \(tests 1.0\): kernel test.native.Affine cannot be prepared; its create .*mode must be add or sub"
    )
    with pytest.raises(DeviceError, match=said):
        core.compile_model(model, device)(X)


def test_what_the_kernel_does_not_support_is_refused_with_its_reason(core: Core) -> None:
    model = model_of(native("Affine", name="a", axis=0))
    model.graph.input[0].type.tensor_type.elem_type = model.graph.output[0].type.tensor_type.elem_type = 11
    answer = core.query_model(model, "CPU")["a"]
    assert answer.level.value == "reference"
    assert answer.reason == "kernel test.native.Affine of tests 1.0: only f32 is supported"
    with pytest.raises(
        DeviceError, match=r"its kernel does not support the node, and it has no evaluation: .*only f32"
    ):
        core.compile_model(model, "CPU")(X.astype(np.float64))
    model.graph.input[0].type.tensor_type.elem_type = model.graph.output[0].type.tensor_type.elem_type = 6
    with pytest.raises(TypeInferenceError, match=r"`a`: the type rule of tests 1.0 refuses it: i32 is not supported"):
        core.read_model(model)


@pytest.mark.parametrize("device", ["TEMPLATE", "CPU", "HETERO:CPU"])
@pytest.mark.parametrize("shape", [(1 << 20,), ("n",)])
def test_a_model_cannot_make_a_kernel_write_beyond_its_output(core: Core, device: str, shape: Any) -> None:
    """It declares one element for an output whose length the type rule does not tell."""
    model = model_of(native("Vague", name="v", output="a"), helper.make_node("Neg", ["a"], ["y"]), shape=shape)
    model.graph.value_info.append(helper.make_tensor_value_info("a", 1, [1]))
    with pytest.raises(DeviceError, match=r"Vague `v` \(tests 1.0\): its kernel cannot run, since the type rule gives"):
        core.compile_model(model, device)(np.ones(1 << 20, np.float32))


@pytest.mark.parametrize("device", ["TEMPLATE", "CPU", "HETERO:CPU,TEMPLATE"])
@pytest.mark.parametrize("shape", [(2, 3), ("n", 3)])
def test_a_kernel_has_all_outputs_also_those_that_a_model_does_not_name(core: Core, device: str, shape: Any) -> None:
    for names, expected in ((["p"], X), (["p", ""], X), (["", "p"], -X)):
        node = helper.make_node("Pair", ["x"], names, "pair", domain="test.native")
        model = model_of(node, helper.make_node("Neg", ["p"], ["y"]), shape=shape)
        np.testing.assert_array_equal(core.compile_model(model, device)(X)["y"], -expected)
    x = Parameter(f32, [2, 3], "x")
    pair = ops.create("Pair", [x], domain="test.native", num_outputs=1, friendly_name="pair")
    said = r"Pair `pair`: its kernel writes 2 outputs \(a, b\), and the node has 1; make it with all"
    with pytest.raises(EngineError, match=said):
        core.compile_model(Model([Result(pair, "y")], [x]), device)(X)


def test_states_are_freed_with_the_network(core: Core) -> None:
    alive = core.compile_model(
        model_of(native("Alive", output="n"), helper.make_node("Cast", ["n"], ["y"], to=1)), "CPU"
    )
    gc.collect()  # leftovers of other tests
    before = float(alive(X)["y"])
    network = core.compile_model(model_of(native("Affine", axis=0), shape=("n", 3)), "CPU")
    for length in (1, 2, 3):
        network(np.ones((length, 3), np.float32))
    request = network.create_infer_request()
    assert float(alive(X)["y"]) > before
    del network, request
    gc.collect()
    assert float(alive(X)["y"]) == before


def test_a_loop_runs_it(core: Core) -> None:
    body = helper.make_graph(
        [native("Affine", "v", output="w", scale=2.0, axis=0), helper.make_node("Identity", ["c"], ["d"])],
        "body",
        [
            helper.make_tensor_value_info("i", 7, []),
            helper.make_tensor_value_info("c", 9, []),
            helper.make_tensor_value_info("v", 1, [2, 3]),
        ],
        [helper.make_tensor_value_info("d", 9, []), helper.make_tensor_value_info("w", 1, [2, 3])],
    )
    model = model_of(helper.make_node("Loop", ["n", "", "x"], ["y"], "loop", body=body), domains=("test.native",))
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.int64(5), "n"))
    for device in ("TEMPLATE", "CPU"):
        np.testing.assert_array_equal(core.compile_model(model, device)(X)["y"], X * 32)


# -- kernels of operators that Python defines -------------------------------------------------------------------


def mixed(library: Path) -> Extension:
    affine = Operator(
        name="Affine",
        domain="test.mixed",
        inputs=["x"],
        attributes={"scale": 1.0, "offsets": list[float] | None, "mode": "add"},
        infer=_same,
        evaluate=_affine,
    )
    plain = Operator(name="Plain", domain="test.mixed", inputs=["x"], infer=_same, evaluate=np.negative)
    return Extension("mixed", "1.0", [affine, plain], library=library)


def _same(inputs: Any, attributes: Any) -> Any:
    return inputs[0]


def _affine(x: Any, scale: float, offsets: Any, mode: str) -> Any:
    return (x * scale + sum(offsets or ())).astype(x.dtype)


def test_python_defines_and_the_library_computes(build: Build) -> None:
    core = Core()
    info = core.add_extension(mixed(build("ONLY_KERNEL", MIXED)))
    assert info.native == ("test.mixed.Affine",)
    node = helper.make_node("Affine", ["x"], ["a"], "a", domain="test.mixed", offsets=[2.0])
    model = model_of(node, helper.make_node("Plain", ["a"], ["y"], "p", domain="test.mixed"))
    answer = core.query_model(model, "CPU")
    assert [answer[name].level.value for name in "ap"] == ["native", "reference"]
    for device in ("TEMPLATE", "CPU"):
        np.testing.assert_array_equal(core.compile_model(model, device)(X)["y"], -(X + 2))
    # Nodes that the kernel does not support are evaluated.
    model.graph.input[0].type.tensor_type.elem_type = model.graph.output[0].type.tensor_type.elem_type = 11
    np.testing.assert_array_equal(core.compile_model(model, "CPU")(X.astype(np.float64))["y"], -(X + 2))


def test_fields_that_a_library_does_not_know_are_not_read(build: Build) -> None:
    """It has a function where its shorter structure ends, which would refuse the machine."""
    kernels = load_kernel_library(build("ONLY_KERNEL", MIXED, "SHORT", "CHECK_FAILS")).kernels
    assert [kernel.description() for kernel in kernels.values()] == [None]


# -- what is refused --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("macro", "said"),
    [
        ('AFFINE="a b"', "kernel test.native.a b: 'a b' is not a valid name of an operator"),
        ("NO_VALUES", "kernel test.native.Affine: attribute 0 has a count, and NULL in place of values"),
        ("TWICE", "kernel test.native.Affine: it declares attribute 'offsets' 2 times; declare it once"),
        ("NO_ATTRIBUTES", "kernel test.native.Affine: num_attributes is 4, and attributes is NULL"),
        ('NAME="a b"', "'a b' is not a valid name of an extension"),
        ("ABI=2", "compiled for version 2 of engine_kernel.h, and this engine has version 1; compile it again"),
        ("NO_SYMBOL", "it exports no function engine_kernels, which engine_kernel.h declares"),
        ("RETURNS_NULL", r"engine_kernels\(\) returns NULL"),
        ("CHECK_FAILS", "its check refuses this machine: the CPU has no quantum unit"),
        ('NAME=""', "its engine_library has no name or no version"),
        ("ONLY_KERNEL", "test.mixed.Affine has no infer function, so the library does not define the operator"),
    ],
)
def test_a_library_that_does_not_fit_is_one_clear_error(build: Build, macro: str, said: str) -> None:
    core, path = Core(), build(macro)
    with pytest.raises(ExtensionError, match=said) as caught:
        core.add_extension(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert core.extensions == ()


def test_a_file_that_is_no_library_is_one_clear_error(tmp_path: Path) -> None:
    for name, content, said in (
        ("text.so", b"no library", "it cannot be loaded: .*(too short|invalid)"),
        ("missing.so", None, "it cannot be read: .*No such file"),
        ("null\0.so", None, "it cannot be read: .*null byte"),
    ):
        if content is not None:
            (tmp_path / name).write_bytes(content)
        with pytest.raises(ExtensionError, match=f"extension library .*{said}"):
            Core().add_extension(str(tmp_path / name))


LOAD = """
import sys
from engine import Core
from engine.errors import ExtensionError
for path in sys.argv[1:]:
    try:
        Core().add_extension(path)
        print("loaded")
    except ExtensionError as e:
        print(e)
"""


def test_a_library_that_is_cut_short_is_refused_before_it_is_mapped(build: Build, tmp_path: Path) -> None:
    """A page that the file does not have ends the process with a signal; one that was never written is wrong, too."""
    whole = build().read_bytes()
    lengths = [0, 3, 15, 16, 40, 63, 64, 65, 200, *range(500, len(whole), 997), len(whole) - 64, len(whole) - 1]
    paths = []
    for length in lengths:
        paths.append(tmp_path / f"cut{length}.so")
        paths[-1].write_bytes(whole[:length])
    for length in (64, len(whole) // 2, len(whole) - 64):
        paths.append(tmp_path / f"zeros{length}.so")
        paths[-1].write_bytes(whole[:length].ljust(len(whole), b"\0"))
    done = subprocess.run([sys.executable, "-c", LOAD, *map(str, paths)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    said = done.stdout.splitlines()
    assert len(said) == len(paths)
    for path, line in zip(paths, said, strict=True):
        assert line.startswith(f"extension library {path}: it"), line
        if int(re.sub(r"\D", "", path.name)) >= 16 and path.name.startswith("cut"):
            assert f"it is cut short: it has {path.stat().st_size} bytes" in line


def test_headers_that_are_damaged_are_refused_or_harmless(build: Build, tmp_path: Path) -> None:
    """Whatever the tables contain, reading them ends without a crash. The loader decides about the rest."""
    whole = build().read_bytes()
    r, path = random.Random(5), tmp_path / "damaged.so"
    (sections_at,) = struct.unpack_from("<Q", whole, 40)
    places = [*range(16, 64), *range(64, 64 + 56 * 8, 3), *range(sections_at, len(whole), 5)]
    answers = set()
    for place in places:
        changed = bytearray(whole)
        changed[place] = r.choice((0, 1, 0x7F, 0xFF))
        path.write_bytes(changed)
        answers.add(why_incomplete(path))
    assert None in answers
    assert any(each and "cut short" in each for each in answers)
    for text in (b"", b"\x7fELF", b"#!/bin/sh\n", b"\x7fELF" + bytes(60)):
        path.write_bytes(text)
        assert why_incomplete(path) is None, "the loader says what it is"


def test_kernels_must_belong_to_the_extension(build: Build) -> None:
    path = build("ONLY_KERNEL", MIXED)
    other = mixed(path).operators
    assert other is not None
    with pytest.raises(ExtensionError, match=r"library .* is mixed 1.0; make name and version equal"):
        Core().add_extension(Extension("mixed", "1.1", other, library=path))
    with pytest.raises(
        ExtensionError, match=r"has kernels for test.mixed.Affine, but the extension does not define this operator"
    ):
        Core().add_extension(Extension("mixed", "1.0", other[1:], library=path))


def test_two_libraries_with_one_operator_clash(core: Core, build: Build) -> None:
    second = build('NAME="tests"', "FACTOR=2.0")
    for other in (core, Core()):
        with pytest.raises(ExtensionConflictError, match=r"Affine is defined already in this process, by tests 1.0"):
            other.add_extension(second)


def test_the_same_library_is_loaded_once(build: Build, tmp_path: Path) -> None:
    link = tmp_path / "link.so"
    link.symlink_to(build())
    assert load_kernel_library(build()) is load_kernel_library(link)
    core = Core()
    assert core.add_extension(build()) == core.add_extension(str(link))


# -- the header -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("compiler", ["gcc", "clang"])
def test_the_library_is_compiled_strictly_by(compiler: str, build: Build) -> None:
    assert load_kernel_library(build(compiler=compiler)).kernels


@pytest.mark.parametrize(
    ("compiler", "flags"),
    [
        *((compiler, STRICT) for compiler in ("gcc", "clang")),
        *((compiler, ("-std=c11", *STRICT[1:])) for compiler in ("gcc", "clang")),
        *((compiler, ("-xc++", "-std=c++11", *STRICT[1:])) for compiler in ("g++", "clang++")),
        *((compiler, ("-xc++", "-std=c++17", *STRICT[1:])) for compiler in ("g++", "clang++")),
    ],
)
def test_the_header_alone_compiles_strictly(compiler: str, flags: tuple[str, ...]) -> None:
    if shutil.which(compiler) is None:
        pytest.skip(f"{compiler} is not installed")
    source = '#include "engine_kernel.h"\n#include "engine_kernel.h"\nint use(const engine_call *c);\n'
    language = () if "-xc++" in flags else ("-xc",)
    command = [compiler, *flags, *language, "-fsyntax-only", f"-I{include_dir()}", "-"]
    done = subprocess.run(command, input=source, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_folder_of_the_header_is_printed() -> None:
    import sys

    command = [sys.executable, "-m", "engine.include"]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert printed == f"{include_dir()}\n"
    assert (Path(printed.strip()) / "engine_kernel.h").is_file()


def test_more_dimensions_than_the_header_has_room_for_are_refused(core: Core, build: Build) -> None:
    """Kernels copy lengths to arrays of 16."""
    shape = [1] * 17
    said = r"`a`: .* refuses it: tensors of kernels have at most 16 dimensions; got 17"
    with pytest.raises(TypeInferenceError, match=said):
        core.read_model(model_of(native("Affine", name="a", axis=0), shape=shape))
    core.add_extension(mixed(build("ONLY_KERNEL", MIXED)))
    model = model_of(helper.make_node("Affine", ["x"], ["y"], "a", domain="test.mixed", scale=2.0), shape=shape)
    assert "at most 16 dimensions" in core.query_model(model, "CPU")["a"].reason
    np.testing.assert_array_equal(core.compile_model(model, "CPU")(np.ones(shape, np.float32))["y"].ravel(), [2])


def test_types_of_results_of_a_library(core: Core) -> None:
    made = core.read_model(model_of(native("Affine", axis=0), shape=("n", 3)))
    assert made.results[0].type == TensorType(f32, PartialShape([None, 3]))
