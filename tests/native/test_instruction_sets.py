"""The choice of an instruction set: a wrong one is an illegal instruction on a user's machine."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest

from engine import native
from engine.errors import PropertyError
from engine.native import PlanBuilder


def in_process(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def is_available(isa: str) -> bool:
    return isa in native.isas_within(native.cpu_features().isa)


@pytest.mark.parametrize("isa", native.built_isas())
def test_the_environment_lowers_the_instruction_set_and_never_raises_it(isa: str) -> None:
    code = "from engine import native; print(native.default_isa(), native.PlanBuilder().build().isa)"
    result = in_process(code, ENGINE_MAX_ISA=isa)
    expected = [each for each in native.isas_within(isa) if is_available(each)][-1]
    assert result.stdout.split() == [expected, expected], result.stderr


def test_a_build_for_all_machines_has_all_kernels() -> None:
    """Where ENGINE_ISAS=all is set, as in CI, tests of an instruction set would otherwise be left out silently."""
    left_out = native.left_out_kernels()
    if os.environ.get("ENGINE_ISAS") == "all":
        assert left_out == {}
    features = native.cpu_features()
    if not left_out:
        assert features.isa == features.highest_isa
    known = native.kernel_isas()
    for family, isas in left_out.items():
        assert not set(isas) & {"generic", "avx2"}, family
    assert {"generic", "avx2"} <= {isa for isas in known.values() for isa in isas} or "avx2" not in native.built_isas()


def test_an_instruction_set_counts_as_built_with_all_of_its_kernels_only() -> None:
    for isas in native.left_out_kernels().values():
        for isa in isas:
            assert isa not in native.built_isas()
            with pytest.raises(PropertyError, match="is not available; this build has generic"):
                PlanBuilder(isa=isa)


def test_an_unknown_name_in_the_environment_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENGINE_MAX_ISA", "avx9000")
    with pytest.raises(PropertyError, match='ENGINE_MAX_ISA is "avx9000"; expected one of generic'):
        native.default_isa()
    with pytest.raises(PropertyError, match="ENGINE_MAX_ISA"):
        PlanBuilder()


def test_an_empty_variable_is_as_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENGINE_MAX_ISA", "")
    assert native.default_isa() == native.cpu_features().isa


@pytest.mark.parametrize("isa", native.isas_within(native.cpu_features().isa))
def test_a_builder_takes_any_instruction_set_of_this_machine(isa: str) -> None:
    plan = PlanBuilder(isa=isa).build()
    assert plan.isa == isa


def test_a_builder_refuses_what_the_machine_does_not_have() -> None:
    with pytest.raises(PropertyError, match="is not available; this build has generic"):
        PlanBuilder(isa="sse9")


@pytest.mark.parametrize("isa", native.built_isas())
def test_a_plan_for_a_cpu_without_its_kernels_refuses_to_run(isa: str) -> None:
    """Running it would be an illegal instruction."""
    values = np.ones((64, 64), np.float32)
    builder = PlanBuilder(isa=isa)
    weights = builder.add_constant(
        native.pack("pack_gemm_bf16", [values], {"n": 64, "k": 64, "transposed": 0}, isa=isa)
    )
    read, written = builder.add_input(values.nbytes), builder.add_output(values.nbytes)
    sizes = {"m": 64, "n": 64, "k": 64, "a_f32": 1, "c_f32": 1}
    builder.add_step("gemm_bf16", [read, weights], [written], sizes)
    plan = builder.build()
    (step,) = plan.steps
    result = np.empty_like(values)
    if is_available(step.isa):
        native.Context(plan).run([values], [result])
        assert (result == 64).all()
    else:
        with pytest.raises(PropertyError, match=f'the plan is for instruction set "{isa}", which this CPU lacks'):
            native.Context(plan)
        with pytest.raises(PropertyError, match="plans for varying lengths are made where they run"):
            native.PlanFamily((1,), isa=isa)


def test_weights_are_packed_for_other_cpus_as_these_would_pack_them() -> None:
    """A CPU with AVX2 only packs the weights of AVX-512 and AMX, by its own instructions, to the same bytes."""
    code = (
        "import hashlib, numpy as np\n"
        "from engine import native\n"
        "random = np.random.default_rng(0)\n"
        "f32 = random.standard_normal((90, 70)).astype(np.float32)\n"
        "i8 = random.integers(-128, 128, (90, 70)).astype(np.int8)\n"
        "conv = random.standard_normal((40, 24, 3, 3)).astype(np.float32)\n"
        "sizes = {'n': 70, 'k': 90, 'transposed': 0}\n"
        "for isa in native.built_isas():\n"
        "    packed = [native.pack('pack_gemm_f32', [f32], {**sizes, 'matrices': 1, 'b_element': 'f32'}, isa=isa),\n"
        "        native.pack('pack_gemm_bf16', [f32], sizes, isa=isa),\n"
        "        native.pack('pack_gemm_int8', [i8], sizes, isa=isa),\n"
        "        native.pack('to_blocked_f32', [f32], {'batch': 1, 'channels': 90, 'pixels': 70}, isa=isa)]\n"
        "    print(isa, *(hashlib.sha256(each.tobytes()).hexdigest() for each in packed))\n"
    )
    lines = {limit: in_process(code, ENGINE_MAX_ISA=limit).stdout for limit in ("", "avx2", "generic")}
    assert len(lines[""].splitlines()) == len(native.built_isas())
    assert set(lines.values()) == {lines[""]}


def test_an_instruction_set_has_the_features_of_those_within_it() -> None:
    for isa in native.built_isas():
        within = native.isas_within(isa)
        assert within[0] == "generic"
        assert within[-1] == isa
        assert all(native.features(each) <= native.features(isa) for each in within)
    assert native.features("generic") == frozenset()


def test_a_misspelt_feature_is_an_error_and_not_absent() -> None:
    with pytest.raises(PropertyError, match=r"unknown feature 'bf61'; expected one of .*bf16"):
        native.has_feature("generic", "bf61")
    with pytest.raises(PropertyError, match=r"unknown instruction set 'sse9'; expected one of .*generic"):
        native.has_feature("sse9", "bf16")
    with pytest.raises(PropertyError, match=r'unknown instruction set "sse9"; expected one of .*generic'):
        native.isas_within("sse9")


def test_the_features_are_sane() -> None:
    features = native.cpu_features()
    assert features.model
    assert 1 <= features.usable_cores <= features.logical_cores
    assert native.cores() == features.usable_cores


def test_without_the_extension_the_module_imports_and_its_use_says_what_is_wrong() -> None:
    code = (
        "import sys; sys.modules['engine._core'] = None\n"
        "from engine import native\n"
        "from engine.errors import NativeCoreError\n"
        "try: native.PlanBuilder()\n"
        "except NativeCoreError as error: print(error)\n"
    )
    result = in_process(code)
    assert "install it again with a C++17 compiler" in result.stdout, result.stderr
