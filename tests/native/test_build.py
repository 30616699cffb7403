"""The build of the native core: what a wrong one does shows on other machines only."""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from engine import native

ROOT = Path(__file__).parent.parent.parent
CSRC = ROOT / "csrc"

pytestmark = pytest.mark.skipif(
    not all(map(shutil.which, ("g++", "nm", "c++filt"))), reason="needs a compiler and binutils"
)


def in_build(code: str, cwd: Path = ROOT, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run code beside a checkout's native_build; it builds all kernels unless ENGINE_ISAS is given."""
    return subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(cwd / 'csrc')!r})\n{code}"],
        cwd=cwd,
        env={**os.environ, "ENGINE_ISAS": "all", **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def foreign_weak_symbols(objects: list[str]) -> list[str]:
    """Return the weak symbols of kernel objects that are not of their instruction set's namespace."""
    listing = subprocess.run(["nm", "-A", *objects], capture_output=True, text=True, check=True).stdout
    weak = re.findall(r"^(.*):[0-9a-f ]* [WVu] (.*)$", listing, re.MULTILINE)
    # Only these: demangling all that kernels instantiate takes seconds.
    names = "\n".join(name for _, name in weak)
    demangled = subprocess.run(["c++filt"], input=names, capture_output=True, text=True, check=True).stdout.splitlines()
    found = []
    for path, name in zip((Path(path) for path, _ in weak), demangled, strict=True):
        isa = path.parent.name
        if f"engine::{isa}::" not in name and name != "DW.ref.__gxx_personality_v0":
            found.append(f"{isa}/{path.name}: {name}")
    return found


BUILD_KERNELS = "import native_build as nb\nprint(*nb.build_kernels(), sep='\\n')"


def test_kernel_objects_share_no_function_with_others() -> None:
    # The linker keeps one copy of a weak symbol. That may be the AVX-512 one, which baseline code would then call.
    result = in_build(BUILD_KERNELS)
    assert result.returncode == 0, result.stderr
    objects = result.stdout.split()
    assert objects
    assert foreign_weak_symbols(objects) == []


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """A checkout that compiles fast: one kernel family, `copy`, and one file of the executor."""
    for folder in ("executor", "kernels"):
        shutil.copytree(CSRC / folder, tmp_path / "csrc" / folder)
    for name in ("native_build.py", "isas.def", "codes.def", "pointwise.def"):
        shutil.copy(CSRC / name, tmp_path / "csrc")
    for path in (tmp_path / "csrc").rglob("*.cpp"):
        if path.stem not in ("copy", "memory"):
            path.unlink()
    (tmp_path / "csrc" / "kernels" / "families.def").write_text(
        "ENGINE_KERNELS(copy, generic)\nENGINE_PREPARE(copy)\n", encoding="utf-8"
    )
    return tmp_path


CHOSEN_ROWS = "import native_build as nb\nprint(*(f'{f}/{i}' for f, i in nb.chosen_rows()))"


def test_named_rows_are_all_that_is_built() -> None:
    result = in_build(CHOSEN_ROWS, ENGINE_KERNELS="pool/generic, conv/generic,copy/generic")
    assert result.stdout.split() == ["conv/generic", "copy/generic", "pool/generic"], result.stderr
    folders = "u.source.relative_to(nb.SOURCES).parts[0] for u in nb.core_units(nb.RELEASE)"
    units = f"import native_build as nb\nprint(*({folders}))"
    assert "graph" in in_build(units).stdout.split()
    assert "graph" not in in_build(units, ENGINE_KERNELS="copy/generic").stdout.split()


def test_the_linker_may_take_what_named_kernels_call() -> None:
    """Only of the same instruction set: kernels call no others."""
    names = "u.object.parent.name + '/' + u.object.stem"
    code = f"import native_build as nb\nprint(*({names} for u in nb._callable_units(nb.RELEASE)))"
    called = in_build(code, ENGINE_KERNELS="conv/generic,copy/generic").stdout.split()
    assert "generic/tile" in called
    assert {each.partition("/")[0] for each in called} == {"generic"}
    assert {"generic/conv", "generic/recurrent", "generic/trees"} & set(called) == set()
    assert in_build(code).stdout.split() == []


@pytest.mark.parametrize("name", ["conv/avx9000", "none/generic", "conv", "/"])
def test_a_row_that_is_not_there_is_an_error(name: str) -> None:
    result = in_build(CHOSEN_ROWS, ENGINE_KERNELS=f"copy/generic,{name}")
    assert "BuildError: ENGINE_KERNELS names" in result.stderr
    assert "expected rows such as conv/avx2, separated by commas" in result.stderr


def test_a_weak_symbol_is_found(small: Path) -> None:
    source = small / "csrc" / "kernels" / "copy.cpp"
    source.write_text(
        source.read_text(encoding="utf-8")
        + "\nnamespace shared { inline __attribute__((noinline)) int f(int x) { return x; } }\n"
        + "int user(int x) { return shared::f(x); }\n",
        encoding="utf-8",
    )
    result = in_build(BUILD_KERNELS, small)
    assert result.returncode == 0, result.stderr
    assert foreign_weak_symbols(result.stdout.split()) == ["generic/copy.o: shared::f(int)"]


COMPILE_CORE = """
import native_build as nb
units = nb.kernel_units(nb.RELEASE) + nb.core_units(nb.RELEASE)
try:
    print(nb.compile_units(units, nb.RELEASE), len(units))
except nb.BuildError as error:
    print(error)
"""


def test_only_what_changed_is_compiled_again(small: Path) -> None:
    def compiled(**environment: str) -> int:
        result = in_build(COMPILE_CORE, small, **environment)
        assert result.returncode == 0, result.stderr
        return int(result.stdout.split()[0])

    total = 3  # the kernel, its prepare function, the executor's file
    assert compiled() == total
    assert compiled() == 0
    header = small / "csrc" / "kernels" / "copy.hpp"
    header.touch()
    assert compiled() == 2, "the kernel and its prepare function include the header"
    assert compiled(CXXFLAGS="-DSOMETHING") == total, "other flags make other objects"


DESCRIBE = """
import json
import native_build as nb
kernels, core = nb.kernel_units(nb.RELEASE), nb.core_units(nb.RELEASE)
bindings = nb.binding_units(nb.RELEASE, [])
print(json.dumps({
    "isas": sorted({unit.object.parent.name for unit in kernels}),
    "kernels by": sorted({unit.compiler for unit in kernels}),
    "others by": sorted({unit.compiler for unit in core + bindings}),
    "folders": sorted({unit.object.relative_to(nb.OBJECTS.parent).parts[0] for unit in kernels + core + bindings}),
    "python": sorted({unit.object.parent.name for unit in bindings}),
    "shared": [str(unit.object) for unit in kernels + core],
}))
"""


def test_another_platform_has_its_own_instruction_sets_objects_and_compilers() -> None:
    """A wheel with kernels of the wrong architecture would not link; one with objects of another would not load."""
    variables = {"CXX": "g++ -g0", "ENGINE_KERNEL_CXX": "g++", "_PYTHON_HOST_PLATFORM": "linux-aarch64"}
    result = in_build(DESCRIBE, **variables)
    assert result.returncode == 0, result.stderr
    units = json.loads(result.stdout)
    assert units["isas"] == ["generic", "neonbf16", "neondot"]
    assert (units["kernels by"], units["others by"]) == ([["g++"]], [["g++", "-g0"]])
    assert units["folders"] == ["linux-aarch64"]


ROWS = "import json, native_build as nb\nprint(json.dumps(nb.chosen_rows()))"


def chosen_rows(**environment: str) -> set[tuple[str, str]]:
    result = in_build(ROWS, **environment)
    assert result.returncode == 0, result.stderr
    return {(family, isa) for family, isa in json.loads(result.stdout)}


@pytest.mark.skipif(platform.machine() != "x86_64", reason="names instruction sets of x86-64")
def test_a_build_for_one_machine_leaves_out_what_its_cpu_does_not_prefer() -> None:
    rows = chosen_rows(ENGINE_ISAS="all")
    assert chosen_rows(ENGINE_ISAS="avx2") == {(family, isa) for family, isa in rows if isa in ("generic", "avx2")}
    server = chosen_rows(ENGINE_ISAS="avx512,avx512vnni,avx512bf16")
    assert {("tile", "avx512"), ("tile_int8", "avx512vnni"), ("tile_bf16", "avx512bf16")} <= server
    assert not {("tile_int8", "avxvnni"), ("gemm_amx", "amx")} & server
    with_names = in_build(ROWS, ENGINE_ISAS="avx2, avx9000")
    assert "ENGINE_ISAS names 'avx9000'; expected native, all, or some of generic, v2, avx2" in with_names.stderr


@pytest.mark.skipif(platform.machine() != "x86_64", reason="names instruction sets of x86-64")
def test_a_build_for_this_machine_has_the_best_kernel_of_each_family() -> None:
    rows = chosen_rows(ENGINE_ISAS="all")
    supported = native.features(native.cpu_features().highest_isa)
    best: dict[str, str] = {}
    for family, isa in sorted(rows, key=lambda row: len(native.features(row[1]))):
        if native.features(isa) <= supported:
            best[family] = isa
    always = {(family, isa) for family, isa in rows if isa in ("generic", "avx2")}
    assert chosen_rows(ENGINE_ISAS="native") == always | set(best.items())
    assert chosen_rows(ENGINE_ISAS="") == chosen_rows(ENGINE_ISAS="native")


@pytest.mark.skipif(platform.machine() != "x86_64", reason="names instruction sets of x86-64")
def test_only_rows_that_no_cpu_of_the_build_prefers_are_optimised_less() -> None:
    code = """
import native_build as nb
units = [unit for unit in nb.kernel_units(nb.RELEASE) if unit.source.stem in ("copy", "trees", "gemm")]
print(*(f"{u.object.parent.name}/{u.source.stem}" for u in units if u.flags[-1:] == nb.FALLBACK_FLAGS))
"""

    def less(isas: str) -> set[str]:
        return set(in_build(code, ENGINE_ISAS=isas).stdout.split())

    assert less("all") == set()
    assert less("generic") == {"avx2/gemm", "avx2/trees"}
    assert less("avx2") == {"generic/gemm", "generic/trees"}
    assert less("avx512") == {"generic/gemm", "generic/trees", "avx2/gemm"}


def test_only_objects_of_the_bindings_depend_on_the_version_of_python() -> None:
    result = in_build(DESCRIBE)
    assert result.returncode == 0, result.stderr
    units = json.loads(result.stdout)
    version = sysconfig.get_config_var("SOABI")
    assert units["python"] == [version]
    assert not any(version in path for path in units["shared"])


def test_a_syntax_error_names_the_file(small: Path) -> None:
    (small / "csrc" / "kernels" / "prepare" / "copy.cpp").write_text("int x = ;\n", encoding="utf-8")
    result = in_build(COMPILE_CORE, small)
    assert "prepare/copy.cpp:1:9: error" in result.stdout


def test_without_a_compiler_the_message_says_what_to_install(small: Path) -> None:
    result = in_build(COMPILE_CORE, small, PATH="/nowhere", CXX="")
    assert "no C++ compiler: g++ or c++ or clang++ is not on PATH" in result.stderr
    assert "install GCC 12" in result.stderr


def fake_compiler(folder: Path, script: str) -> str:
    """A program in place of the compiler, which first identifies itself as g++ does."""
    program = folder / "compiler"
    program.write_text(f'#!/bin/sh\ncase "$*" in *-dM*) exec g++ "$@";; esac\n{script}\n', encoding="utf-8")
    program.chmod(0o755)
    return str(program)


def test_a_compiler_that_is_too_old_is_refused_before_it_compiles(small: Path) -> None:
    old = fake_compiler(small, "exit 1")
    Path(old).write_text('#!/bin/sh\necho "#define __GNUC__ 9"\n', encoding="utf-8")
    result = in_build(COMPILE_CORE, small, CXX=old)
    assert f"{old} is GCC 9, too old to compile engine's native core: install GCC 12 or newer" in result.stderr
    no_compiler = in_build(COMPILE_CORE, small, CXX="true")
    assert "BuildError: true is neither GCC nor Clang" in no_compiler.stderr


@pytest.mark.parametrize("status", [1, 4])
def test_a_full_disk_is_one_line_that_says_what_to_do(small: Path, status: int) -> None:
    """By the first compiler that finds no space; what it says of itself is left out, and no other unit is tried."""
    script = f'echo "$@" >> {small}/calls\necho "as: error writing /tmp/x.s: No space left on device"\nexit {status}'
    result = in_build(COMPILE_CORE, small, CXX=fake_compiler(small, script), ENGINE_BUILD_JOBS="1")
    (line,) = result.stdout.splitlines()
    assert re.match(r"\S+\.o: no space left on the disk\. .* ENGINE_BUILD_OBJECTS .* TMPDIR", line)
    assert len((small / "calls").read_text(encoding="utf-8").splitlines()) == 1


def test_a_disk_that_is_full_for_the_build_itself_is_named() -> None:
    code = """
import errno, os, pathlib
import native_build as nb
for number in (errno.ENOSPC, errno.EDQUOT, errno.EACCES):
    try:
        with nb.named_disk(pathlib.Path("objects")):
            raise OSError(number, os.strerror(number), "objects/lock")
    except nb.BuildError as error:
        print(error)
    except OSError as error:
        print("unchanged", error.filename)
"""
    result = in_build(code)
    assert result.returncode == 0, result.stderr
    lines = result.stdout.splitlines()
    assert [line.partition(":")[0] for line in lines] == ["objects/lock", "objects/lock", "unchanged objects/lock"]


def test_the_time_of_a_compiler_is_recorded_and_its_failure_passed_on(tmp_path: Path) -> None:
    """The program that build_times.py puts in place of the compiler."""
    source, log = tmp_path / "one.cpp", tmp_path / "times"
    wrapper = [sys.executable, CSRC / "build_times.py", "--compile", log, "g++", "-c", source, "-o", tmp_path / "one.o"]
    for text, succeeds in (("int x = 1;\n", True), ("int x = ;\n", False)):
        source.write_text(text, encoding="utf-8")
        assert (subprocess.run(wrapper, capture_output=True, check=False).returncode == 0) is succeeds
    assert re.fullmatch(rf"(\d+\.\d{{3}} {re.escape(str(tmp_path / 'one.o'))}\n){{2}}", log.read_text(encoding="utf-8"))


def test_a_source_is_compiled_once_with_or_without_others(small: Path) -> None:
    """One that is in two units would be defined twice, one in none would be missing."""
    sources = "import native_build as nb\nprint(*(u.source.relative_to(nb.SOURCES) for u in nb.core_units(nb.RELEASE)))"
    assert in_build(sources, small).stdout.split() == ["executor/memory.cpp", "kernels/prepare/copy.cpp"]
    units = small / "csrc" / "executor" / "units"
    units.mkdir(exist_ok=True)
    (units / "all.cpp").write_text('#include "executor/memory.cpp"\n', encoding="utf-8")
    assert in_build(sources, small).stdout.split() == ["executor/units/all.cpp", "kernels/prepare/copy.cpp"]
    (units / "more.cpp").write_text('#include "executor/memory.cpp"\n', encoding="utf-8")
    assert "csrc/executor/units includes executor/memory.cpp more than once" in in_build(sources, small).stderr
    (units / "more.cpp").write_text('#include "executor/memories.cpp"\n', encoding="utf-8")
    assert "csrc/executor/units includes executor/memories.cpp, which is not there" in in_build(sources, small).stderr


def test_a_family_without_its_prepare_file_is_named(small: Path) -> None:
    (small / "csrc" / "kernels" / "prepare" / "copy.cpp").unlink()
    result = in_build("import native_build as nb\nnb.core_units(nb.RELEASE)", small)
    assert "csrc/kernels/prepare/<family>.cpp is missing for ['copy']" in result.stderr
