"""Several kernels in one program, for CPUs.

If a case fails here, a kernel computes what another one should, a network does not compile on the runtimes of CPUs, or
its first compilation takes several times as long.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyopencl as cl
import pytest
from engine_opencl.compiler import build_plan
from engine_opencl.devices.device import DeviceFacts, device_of
from engine_opencl.execution import pool
from engine_opencl.plan import Buffer, Launch
from engine_opencl.programs import bundles
from engine_opencl.programs.bundles import bundled, defined_names, numbered
from engine_opencl.programs.programs import Building, Programs
from engine_opencl.transform import prepare_model

from engine import Core, ops
from engine.errors import DeviceError
from engine.ir import Constant, Model, Output, Parameter, Result, f32, i32
from engine.lowering import known_shapes
from engine.onnx.importer import read_model
from engine.testing.networks import seeded_network

SOURCE = """// defines: made2
#define FACTOR {factor}
#define MADE(n) inline float made##n(float x) {{ return x * n; }}
#define times scaled  // a macro that has the name of a function
typedef struct {{
  float value;
  int place;
}} Found;
typedef float real;
#define TYPE(n) float
typedef TYPE(4) other;
__constant float offsets[2] = {{{factor}.0f, 1.0f}}, more[] = {{{factor}.0f}};
__constant float single = {factor}.5f;
MADE(2)
__attribute__((always_inline)) inline real scaled(const other x) {{ return made2(x) * FACTOR; }}
inline Found found_at(float x) {{
  Found f;
  f.value = times(x) + offsets[0] + single + more[0] - more[0];
  f.place = 0;
  return f;
}}
#undef times
inline float times(float x) {{ return found_at(x).value; }}
__kernel __attribute__((reqd_work_group_size(1, 1, 1))) void apply(__global float* x) {{ x[0] = times(x[0]); }}
"""
KERNEL_FILES = Path(bundles.__file__).parents[1] / "kernels"
NAMES = ["made2", "Found", "real", "other", "offsets", "more", "single", "scaled", "found_at", "times", "apply"]


@pytest.fixture
def facts() -> DeviceFacts:
    return replace(device_of("0").facts, kind="cpu")


def launch(source: str, kernel: str = "apply") -> Launch:
    return Launch(source, kernel, (Buffer(4),), (1,), (1,), "node", "Add")


def run(programs: Programs, launch: Launch) -> float:
    """The result of a kernel for the input 3."""
    value = np.array([3], np.float32)
    buffer = cl.Buffer(programs.device.context, cl.mem_flags.COPY_HOST_PTR, hostbuf=value)
    kernel = cl.Kernel(programs.program(launch.source), launch.entry)
    kernel.set_args(buffer)
    queue = programs.device.new_queue()
    cl.enqueue_nd_range_kernel(queue, kernel, (1,), (1,))
    cl.enqueue_copy(queue, value, buffer)
    return float(value[0])


def test_the_names_that_a_source_defines() -> None:
    assert sorted(defined_names(SOURCE.format(factor=5))) == sorted(NAMES)


def test_equal_names_in_one_program_mean_what_their_own_source_says(facts: DeviceFacts, tmp_path: Path) -> None:
    """Functions, types, constants and macros of three sources differ, and a macro of one must not reach the next."""
    programs = Programs(device_of("0"))
    last = "inline float factor() {\n#ifdef FACTOR\n  return 0;\n#else\n  return 7;\n#endif\n}\n"
    last += "__kernel void apply(__global float* x) { x[0] *= factor(); }\n"
    launches = bundled([launch(SOURCE.format(factor=5)), launch(SOURCE.format(factor=9)), launch(last)], facts)
    assert len({each.source for each in launches}) == 1
    assert [each.kernel for each in launches] == ["apply"] * 3
    held = programs.build(launches, {}, Building(str(tmp_path)))
    assert [run(programs, each) for each in launches] == [3 * 2 * 5 + 5 + 5.5, 3 * 2 * 9 + 9 + 9.5, 21]
    assert len(held) == len(list((tmp_path / "opencl").glob("*.program"))) == 1


def test_launches_of_one_source_stay_together_and_equal_plans_have_equal_programs(facts: DeviceFacts) -> None:
    """Otherwise an imported blob, or a second compilation, would find none of its programs."""
    sources = [SOURCE.format(factor=number) for number in range(10)]
    launches = [launch(source) for source in [*sources, *sources]]
    once, again = bundled(launches, facts), bundled(launches, facts)
    assert once == again
    assert [each.source for each in once[:10]] == [each.source for each in once[10:]]
    assert len({each.source for each in once}) == 2
    assert len({(each.source, each.entry) for each in once}) == 10


def test_gpus_compile_each_source_alone(facts: DeviceFacts) -> None:
    launches = (launch(SOURCE.format(factor=1)), launch(SOURCE.format(factor=2)))
    assert bundled(launches, replace(facts, kind="gpu")) == launches
    assert bundled(launches[:1], facts) == launches[:1]


def network_of(tmp_path: Path) -> Any:
    x = Parameter(f32, [3, 4], "x")
    model = Model([Result(ops.Softmax(ops.Relu(x))), Result(ops.ReduceSum(x))], [x])
    return Core().compile_model(model, "OPENCL", {"CACHE_DIR": str(tmp_path), "PERF_COUNT": True})


def answers(network: Any) -> list[np.ndarray]:
    return list(network([np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4)]).values())


@pytest.fixture
def posing_as_cpu(facts: DeviceFacts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_of("0"), "facts", facts)


def test_a_network_has_few_programs_and_profiles_name_its_kernels(posing_as_cpu: None, tmp_path: Path) -> None:
    network = network_of(tmp_path)
    request = network.create_infer_request()
    request.infer([np.ones((3, 4), np.float32)])
    assert {node.kernel for node in request.profiling_info.nodes} >= {"softmax", "reduce"}
    assert len(list((tmp_path / "opencl").glob("*.program"))) == 1


def test_if_a_program_of_several_does_not_compile_each_is_compiled_alone(
    posing_as_cpu: None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    programs_that_were_taken_apart: list[str],
) -> None:
    expected = answers(network_of(tmp_path))
    monkeypatch.setattr(bundles, "numbered", lambda source, number: f"{source}\nnot OpenCL C;\n")
    found = answers(network_of(tmp_path))
    assert "so each has one of its own: " in programs_that_were_taken_apart.pop()
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)


def test_an_error_shows_the_source_of_the_kernel_that_fails_alone(
    posing_as_cpu: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def spoiled(launches: Any, facts: DeviceFacts) -> Any:
        return bundled(
            [replace(each, source=each.source.replace("wide_t e[KEPT]", "wyde_t e[KEPT]")) for each in launches], facts
        )

    build = Programs.build

    def built(self: Programs, launches: Any, *others: Any, **options: Any) -> Any:
        bad = [replace(each, source=each.source.replace("wide_t e[KEPT]", "wyde_t e[KEPT]")) for each in launches]
        return build(self, bad, *others, **options)

    monkeypatch.setattr(pool, "bundled", spoiled)
    monkeypatch.setattr(Programs, "build", built)
    with pytest.raises(DeviceError, match="wyde_t") as caught:
        network_of(tmp_path)
    (source,) = caught.value.__notes__
    assert "softmax(" in source
    assert "reduce(" not in source


@pytest.mark.parametrize("file", sorted(KERNEL_FILES.glob("*.cl")), ids=lambda file: file.name)
def test_alternatives_in_kernels_are_whole(file: Path) -> None:
    """Names are found without evaluating `#if`, so an alternative must close the parentheses that it opens."""
    code = bundles.code_of(file.read_text(encoding="utf-8"))
    for opening, closing in ("()", "[]", "{}"):
        assert code.count(opening) == code.count(closing)


def test_kernels_for_integers_and_for_numbers_share_a_program(posing_as_cpu: None, tmp_path: Path) -> None:
    """A macro that replaces a function of OpenCL for integers must not reach the kernels after it."""
    x, i = Parameter(f32, [3, 5], "x"), Parameter(i32, [3, 5], "i")
    results = [
        ops.ArgMax(i, axis=1),
        ops.IsNaN(x),
        ops.ArgMax(x, axis=1),
        ops.Clip(ops.Sigmoid(x), Constant(np.float32(0.4))),
    ]
    network = Core().compile_model(
        Model([Result(each) for each in results], [x, i]), "OPENCL", {"CACHE_DIR": str(tmp_path)}
    )
    numbers = np.arange(15).reshape(3, 5)
    found = list(network([numbers.astype(np.float32), numbers.astype(np.int32)]).values())
    np.testing.assert_array_equal(found[0], [[4], [4], [4]])
    assert len(list((tmp_path / "opencl").glob("*.program"))) == 1


def test_every_function_of_the_kernels_is_found() -> None:
    """A function that is not renamed is defined twice in a program of several kernels of its family."""
    from engine_opencl.expressions import HELPERS, functions_for

    text = HELPERS + functions_for("double quotient_int( modulo_uint(")
    assert {"relu", "relu_double", "real_power_double", "to_odd", "quotient_int", "modulo_uint"} <= set(
        defined_names(text)
    )
    assert numbered(text, 3).count("#define relu relu__3\n") == 1


CPU: Final = DeviceFacts("a CPU", "1.0", "cpu", True, 64, 4096, 32 << 10, 2**32, 2**34, 2, vector_width=8)


def kernels_on_a_cpu(model: Any) -> Counter[str]:
    """How many kernels of each name a model needs, and under "" how many launches."""
    prepared = prepare_model(model, CPU)
    launches = build_plan(prepared.at(known_shapes(prepared.graph)), CPU).launches
    names = {launch.source: launch.kernel for launch in launches}
    return Counter({**Counter(names.values()), "": len(launches)})


def test_products_and_moves_of_other_lengths_share_kernels() -> None:
    """Each kernel takes a compiler up to 0.3 s: a network of many lengths would take minutes to compile."""
    x = Parameter(f32, (40, 64), "x")
    value: Output = x.output(0)
    for before, after in ((64, 96), (96, 160), (160, 224)):
        product = ops.Relu(ops.MatMul(value, Constant(np.ones((before, after), np.float32))))
        halves = ops.Split(product, num_outputs=2, axis=1)
        value = ops.Concat(halves.output(1), halves.output(0), axis=1).output(0)
    found = kernels_on_a_cpu(Model([Result(value)], [x]))
    assert (found["blocks"], found["copy"]) == (1, 1)
    assert found[""] == 15


def test_a_network_of_many_lengths_has_few_kernels() -> None:
    found = kernels_on_a_cpu(read_model(seeded_network("segformer_b0").model))
    assert found[""] == 184
    assert sum(found.values()) - found[""] <= 29
