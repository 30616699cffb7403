"""Compiles the native core incrementally: kernel files once for each of several instruction sets, all other files once.

ENGINE_ISAS says for which: `native`, the default, is `generic`, `avx2`, and of each family of kernels the row that this
machine's CPU prefers; `all` is every row of families.def, for other machines; or names of isas.def, separated by
commas.

ENGINE_KERNELS builds a core that only runs plans: it names the rows of families.def that they need, as "conv/avx2",
separated by commas. ENGINE_ISAS does not count then, and the graph algorithms are left out. Needs `ar`, of binutils.

Used by `setup.py` for the extension module, by `tools/c_runtime` for libengine_runtime, and by `csrc/sanitize.py` for
the C++ tests; needs only a compiler with the command line of GCC or Clang. The environment may set CXX, CXXFLAGS,
ENGINE_BUILD_JOBS, ENGINE_BUILD_OBJECTS, ENGINE_WERROR=1 and ENGINE_EMULATE_AMX=1, which makes a core that runs the
kernels for AMX on any CPU with AVX2, slowly.

A build for another platform also sets _PYTHON_HOST_PLATFORM, as CPython's own build does, e.g. to linux-aarch64.
ENGINE_KERNEL_CXX may name a separate compiler for the kernels, which use no library of C++.
"""

from __future__ import annotations

import errno
import fcntl
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp

ROOT = Path(__file__).resolve().parent.parent
SOURCES = ROOT / "csrc"
# Objects refer to their sources relative to the root, so another copy of the same sources can reuse them.
_FOLDER = Path(os.environ.get("ENGINE_BUILD_OBJECTS") or ROOT / "build" / "native")
EMULATE_AMX = ("-DENGINE_EMULATE_AMX",)
_ALWAYS = {"generic", "avx2"}
"""Instruction sets of every build: the ones that an older machine, or a limit, falls back to."""
_IS_EMULATED = os.environ.get("ENGINE_EMULATE_AMX") == "1"
if _IS_EMULATED:
    _FOLDER /= "emulated"
OBJECTS = _FOLDER / sysconfig.get_platform()

WARNINGS = ("-Wall", "-Wextra")
BASE_FLAGS = ("-std=c++17", "-fPIC", "-fvisibility=hidden", "-pthread", *WARNINGS)
# A static local in an inline function would need a guard, and exceptions a type, that all objects share.
KERNEL_FLAGS = ("-fno-exceptions", "-fno-rtti", "-fno-threadsafe-statics", "-fno-math-errno", "-fno-trapping-math",
                "-ffp-contract=fast")  # fmt: skip
# They convert arguments and call the core, or build plans; -O3 takes half as long again to compile them.
BINDING_FLAGS = PREPARE_FLAGS = ("-O1",)
CORE_FLAGS = ("-O2",)
# Kernels that this machine runs under a limit only: correct, some slower, and compiled in two thirds of the time.
FALLBACK_FLAGS = ("-O2",)
# See bindings/gil.cpp.
NO_EXCEPTIONS = {"gil.cpp": ("-fno-exceptions",)}
# GCC keeps loads for the next iteration in registers; register-tiled loops have none to spare and would spill.
GCC_KERNEL_FLAGS = ("-fno-predictive-commoning",)

# The oldest that are known to compile the core.
_OLDEST = {"GCC": 12, "Clang": 14}
_TO_INSTALL = (
    "install GCC 12 or newer (package g++) or Clang 14 or newer, or name a compiler in the environment variable CXX"
)


class BuildError(Exception):
    """The native core cannot be built; the message names the missing part, or has the compiler's output."""


class DiskFull(BuildError):
    """The disk has no space for an object, or for the compiler's temporary files."""

    def __init__(self, where: str) -> None:
        super().__init__(
            f"{where}: no space left on the disk. A build takes up to 500 MB: free some, or name a folder "
            "of another disk in ENGINE_BUILD_OBJECTS (for objects) or TMPDIR (for temporary files)"
        )


@dataclass(frozen=True, slots=True)
class Unit:
    """One object file: its source, its path, its specific flags, and its compiler."""

    source: Path
    object: Path
    flags: tuple[str, ...]
    compiler: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class InstructionSet:
    """A row of isas.def: name, architecture ("any": all), and the compiler's flags."""

    name: str
    architecture: str
    flags: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Variant:
    """A way to compile everything: an object folder and the flags of all units."""

    objects: Path
    flags: tuple[str, ...]


RELEASE = Variant(OBJECTS, ("-O3", "-DNDEBUG", *(EMULATE_AMX if _IS_EMULATED else ())))


def build_extension(target: Path, include: Sequence[str]) -> None:
    """Compile and link the extension module; `include` lists the folders of Python's and pybind11's headers.

    Raises BuildError.
    """
    if platform.system() != "Linux":
        raise BuildError(f"engine's native core runs on Linux only; this is {platform.system()}: use a Linux container")
    with named_disk(RELEASE.objects), _locked(RELEASE.objects):
        # Those that take longest come first, so that no core waits for them in the end.
        units = binding_units(RELEASE, include) + kernel_units(RELEASE) + core_units(RELEASE)
        callable_units = _callable_units(RELEASE)
        compile_units([*units, *callable_units], RELEASE)
        link_shared([unit.object for unit in units], target, [unit.object for unit in callable_units])


def build_runtime(folder: Path) -> list[Path]:
    """Compile the C runtime, and write its library, header and pkg-config file below `folder`; return their paths.

    ENGINE_KERNELS also counts here. Raises BuildError.
    """
    if platform.system() != "Linux":
        raise BuildError(f"libengine_runtime is for Linux; this is {platform.system()}: use a Linux container")
    folder = folder.resolve()  # commands run in the root
    header = SOURCES / "runtime" / "engine_runtime.h"
    abi = re.findall(r"^#define ENGINE_RUNTIME_ABI (\d+)$", header.read_text("utf-8"), re.MULTILINE)[0]
    library = folder / "lib" / f"libengine_runtime.so.{abi}"
    with named_disk(RELEASE.objects), _locked(RELEASE.objects):
        units = kernel_units(RELEASE) + core_units(RELEASE, graph=False) + runtime_units(RELEASE)
        callable_units = _callable_units(RELEASE)
        compile_units([*units, *callable_units], RELEASE)
        # The libraries of C++ are linked in, and nothing of them is visible: the user's program may have others.
        own = ("-static-libstdc++", "-static-libgcc") if _is_gcc(compiler()) else ()
        # Never unloaded: its threads sleep in its code, and a program may call dlclose.
        options = (*own, "-s", "-Wl,-z,defs,-z,nodelete", f"-Wl,-soname,{library.name}",
                   f"-Wl,--version-script={SOURCES / 'runtime' / 'engine_runtime.map'}")  # fmt: skip
        link_shared([unit.object for unit in units], library, [unit.object for unit in callable_units], options)
    link = library.with_suffix("")
    link.unlink(missing_ok=True)
    link.symlink_to(library.name)
    installed = folder / "include" / header.name
    described = folder / "lib" / "pkgconfig" / "engine_runtime.pc"
    for path in (installed, described):
        path.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(header, installed)
    described.write_text(
        "prefix=${pcfiledir}/../..\n\n"
        "Name: engine_runtime\nDescription: Runs networks that engine-sdk has compiled for CPU\n"
        f"Version: {engine_version()}\nCflags: -I${{prefix}}/include\nLibs: -L${{prefix}}/lib -lengine_runtime\n"
    )
    return [library, link, installed, described]


def engine_version() -> str:
    """Return the version of the engine in pyproject.toml."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    return re.findall(r'^version = "([^"]+)"$', text, re.MULTILINE)[0]


def build_kernels() -> list[Path]:
    """Bring the release build's kernel objects up to date; return their paths: .../<isa>/<family>.o."""
    units = kernel_units(RELEASE)
    with _locked(RELEASE.objects):
        compile_units(units, RELEASE)
    return [unit.object for unit in units]


def chosen_rows() -> list[tuple[str, str]]:
    """Return the rows of families.def that ENGINE_ISAS chooses for the release build. Raises BuildError."""
    return list(_chosen())


def _chosen() -> dict[tuple[str, str], bool]:
    """The rows of the release build, and whether CPUs that it is for prefer them: other rows are for limits only."""
    rows = kernel_rows()
    if named := _named_rows():
        if unknown := named - set(rows):
            family, isa = min(unknown)
            raise BuildError(
                f"ENGINE_KERNELS names {family}/{isa}, which families.def does not have for {architecture()}; expected "
                "rows such as conv/avx2, separated by commas"
            )
        return {row: True for row in rows if row in named}
    chosen = os.environ.get("ENGINE_ISAS", "").strip() or ("all" if _IS_EMULATED or _is_cross() else "native")
    if chosen == "all":
        return dict.fromkeys(rows, True)
    names = [isa.name for isa in instruction_sets(RELEASE) if isa.architecture in ("any", architecture())]
    wanted = _ALWAYS & set(names)
    if chosen == "native":
        supported = set(_supported_isas())
    else:
        supported = {name.strip() for name in chosen.split(",")}
        if others := supported - set(names):
            raise BuildError(f"ENGINE_ISAS names {min(others)!r}; expected native, all, or some of {', '.join(names)}")
        wanted |= supported
    limit = max(map(names.index, supported))
    usable = supported | {isa for isa in wanted if names.index(isa) <= limit}
    highest = {family: isa for family, isa in sorted(rows, key=lambda row: names.index(row[1])) if isa in usable}
    return {
        (family, isa): isa == highest.get(family) for family, isa in rows if isa in wanted or isa == highest.get(family)
    }


def _named_rows() -> set[tuple[str, str]]:
    """The rows that ENGINE_KERNELS names; none if it is not set."""
    names = [each.strip() for each in os.environ.get("ENGINE_KERNELS", "").split(",") if each.strip()]
    rows = set()
    for family, _, isa in (each.partition("/") for each in names):
        rows.add((family, isa))
    return rows


def _is_cross() -> bool:
    """Whether the core is for another machine, whose CPU cannot be asked."""
    return "_PYTHON_HOST_PLATFORM" in os.environ


def _supported_isas() -> list[str]:
    """The instruction sets of this machine's CPU, as the core itself finds them."""
    variant = Variant(OBJECTS / "probe", RELEASE.flags)
    sources = ("executor/cpu_features.cpp", "executor/cpu_quota.cpp", "executor/kernel_rows.cpp", "probe/cpu_isas.cpp")
    units = [_baseline_unit(SOURCES / name, variant) for name in sources]
    program = variant.objects / "cpu_isas"
    if compile_units(units, variant) or not program.exists():
        link_program([unit.object for unit in units], program, variant)
    return subprocess.run([program], check=True, capture_output=True, text=True).stdout.split()


def kernel_rows() -> list[tuple[str, str]]:
    """Return the (family, instruction set) rows of families.def for this architecture."""
    rows = re.findall(r"^ENGINE_KERNELS\((\w+), (\w+)\)$", _families(), re.MULTILINE)
    isas = {isa.name: isa for isa in instruction_sets(RELEASE)}
    for family, name in rows:
        if name not in isas:
            raise BuildError(f"families.def: {family} names instruction set `{name}`; expected one of {list(isas)}")
    return [(family, name) for family, name in rows if isas[name].architecture in ("any", architecture())]


def architecture() -> str:
    """Return the architecture that is built for, as isas.def names it."""
    target = os.environ.get("_PYTHON_HOST_PLATFORM")
    machine = target.rpartition("-")[2] if target else platform.machine()
    return {"AMD64": "x86_64", "arm64": "aarch64"}.get(machine, machine)


def instruction_sets(variant: Variant) -> list[InstructionSet]:
    """Return the rows of isas.def for a way to compile, ascending."""
    text = (SOURCES / "isas.def").read_text(encoding="utf-8")
    chosen = r"\1" if set(EMULATE_AMX) <= set(variant.flags) else r"\2"
    text = re.sub(r"^#ifdef ENGINE_EMULATE_AMX$(.*?)^#else$(.*?)^#endif$", chosen, text, flags=re.DOTALL | re.MULTILINE)
    rows = re.findall(r'^ENGINE_ISA\((\w+), (\w+), "([^"]*)",', text, re.MULTILINE)
    return [InstructionSet(name, architecture, tuple(flags.split())) for name, architecture, flags in rows]


def kernel_units(variant: Variant) -> list[Unit]:
    """Return one unit for each kernel file and instruction set."""
    if variant != RELEASE:
        return _units_of(kernel_rows(), variant)
    rows = _chosen()
    return [
        unit if is_preferred else replace(unit, flags=(*unit.flags, *FALLBACK_FLAGS))
        for unit, is_preferred in zip(_units_of(list(rows), variant), rows.values(), strict=True)
    ]


def _callable_units(variant: Variant) -> list[Unit]:
    """The kernels that ENGINE_KERNELS may call, since these include their headers; the linker takes the called ones.

    A kernel calls only those of its own instruction set.
    """
    named = _named_rows()
    called = {(other, isa) for family, isa in named for other in _included_families(f"kernels/{family}.cpp", set())}
    return _units_of([row for row in kernel_rows() if row in called - named], variant)


def _included_families(name: str, seen: set[str]) -> set[str]:
    """The families whose headers a file includes, itself or by others."""
    seen.add(name)
    included = set(re.findall(r'^#include "(kernels/\w+\.hpp)"$', (SOURCES / name).read_text("utf-8"), re.MULTILINE))
    found = {Path(each).stem for each in included}
    return found.union(*(_included_families(each, seen) for each in included - seen))


def _units_of(rows: Sequence[tuple[str, str]], variant: Variant) -> list[Unit]:
    flags = {isa.name: isa.flags for isa in instruction_sets(variant)}
    command = kernel_compiler()
    common = KERNEL_FLAGS + (GCC_KERNEL_FLAGS if _is_gcc(command) else ())
    return [
        Unit(
            SOURCES / "kernels" / f"{family}.cpp",
            variant.objects / "kernels" / isa / f"{family}.o",
            (*common, *flags[isa], f"-DENGINE_ISA_NS={isa}"),
            command,
        )
        for family, isa in rows
    ]


def core_units(variant: Variant, together: bool | None = None, *, graph: bool = True) -> list[Unit]:
    """Return the units that are compiled for the baseline and do not use Python.

    `graph`: with graph algorithms. `together`: the files in the folders `units`, each for several sources, since one
    unit for each source would take twice as long to compile. The default for a release; other variants have one unit
    for each source.
    """
    listed = set(re.findall(r"^ENGINE_PREPARE\((\w+)\)$", _families(), re.MULTILINE))
    prepare = sorted((SOURCES / "kernels" / "prepare").glob("*.cpp"))
    if missing := listed - {path.stem for path in prepare}:
        raise BuildError(f"families.def: csrc/kernels/prepare/<family>.cpp is missing for {sorted(missing)}")
    is_release = variant == RELEASE
    together = is_release if together is None else together
    has_graph = graph and not (_named_rows() and is_release)
    folders = ("blob", "executor", "graph") if has_graph else ("blob", "executor")
    others = [path for folder in folders for path in _sources(SOURCES / folder, together)]
    prepare = _sources(SOURCES / "kernels" / "prepare", together)
    return [
        *(_baseline_unit(path, variant, CORE_FLAGS if is_release else ()) for path in others),
        *(_baseline_unit(path, variant, PREPARE_FLAGS) for path in prepare),
    ]


def runtime_units(variant: Variant, together: bool | None = None) -> list[Unit]:
    """Return the units of the C runtime, which only libengine_runtime has; `together` as for `core_units`."""
    is_release = variant == RELEASE
    flags = (f'-DENGINE_VERSION="{engine_version()}"', "-DENGINE_RUNTIME_BUILD", *(CORE_FLAGS if is_release else ()))
    sources = _sources(SOURCES / "runtime", is_release if together is None else together)
    return [_baseline_unit(path, variant, flags) for path in sources]


def _sources(folder: Path, together: bool) -> list[Path]:
    """The sources of a folder to compile; `together`: the files in `units` in place of those that they include."""
    units = sorted((folder / "units").glob("*.cpp"))
    single = sorted(set(folder.rglob("*.cpp")) - set(units))
    if not together:
        return single
    included = [
        name for unit in units for name in re.findall(r'^#include "(.*\.cpp)"$', unit.read_text("utf-8"), re.MULTILINE)
    ]
    if missing := [name for name in included if not (SOURCES / name).is_file()]:
        raise BuildError(f"csrc/{folder.relative_to(SOURCES)}/units includes {missing[0]}, which is not there")
    if twice := [name for name, count in Counter(included).items() if count > 1]:
        raise BuildError(f"csrc/{folder.relative_to(SOURCES)}/units includes {twice[0]} more than once")
    return [*units, *(path for path in single if path.relative_to(SOURCES).as_posix() not in included)]


def binding_units(variant: Variant, include: Sequence[str]) -> list[Unit]:
    """Return the units that use Python, the only ones whose objects serve one version of Python."""
    flags = tuple(flag for folder in include for flag in ("-isystem", folder))
    folder = variant.objects / "bindings" / (sysconfig.get_config_var("SOABI") or "python")
    sources = [*sorted((SOURCES / "bindings" / "units").glob("*.cpp")), SOURCES / "bindings" / "gil.cpp"]
    return [
        Unit(path, folder / f"{path.stem}.o", (*flags, *BINDING_FLAGS, *NO_EXCEPTIONS.get(path.name, ())), compiler())
        for path in sources
        if path.name != "graphs.cpp" or not _named_rows()
    ]


def test_units(variant: Variant) -> tuple[list[Unit], list[Unit]]:
    """Return the units of the C++ tests: those that all programs share, and one main unit for each program."""
    tests = sorted((SOURCES / "tests").glob("*.cpp"))
    shared = [path for path in tests if path.stem.endswith("_common")]
    programs = [path for path in tests if not path.stem.endswith("_common")]
    return ([_baseline_unit(path, variant) for path in shared], [_baseline_unit(path, variant) for path in programs])


def stale_units(units: Sequence[Unit], variant: Variant) -> list[tuple[Unit, tuple[str, ...]]]:
    """Return the units that are out of date, with the commands that compile them."""
    flags = (*BASE_FLAGS, *variant.flags, f"-I{_from_root(SOURCES)}")
    environment_flags = tuple(shlex.split(os.environ.get("CXXFLAGS", "")))
    return [
        (unit, whole)
        for unit in units
        if _is_stale(
            unit,
            whole := (*unit.compiler, *flags, *unit.flags, *environment_flags, "-c", _from_root(unit.source)),
        )
    ]


def compile_units(units: Sequence[Unit], variant: Variant) -> int:
    """Compile the units that are out of date, on all cores; return their number. Raises BuildError."""
    strict = ("-Werror",) if os.environ.get("ENGINE_WERROR") == "1" else ()
    stale = stale_units(units, variant)
    with TemporaryDirectory(prefix="engine-headers-") as folder, ThreadPoolExecutor(max_workers=jobs()) as pool:
        headers = _precompiled([whole for unit, whole in stale if _is_gcc(unit.compiler)], Path(folder), pool)
        full: list[DiskFull] = []

        def compile_one(job: tuple[Unit, tuple[str, ...]]) -> BuildError | None:
            if full:
                return None
            error = _compile(*job, (*strict, *headers.get(_without_source(job[1]), ())))
            if isinstance(error, DiskFull):
                full.append(error)
            return error

        errors = [error for error in pool.map(compile_one, stale) if error]
    if full:
        raise full[0]
    if errors:
        raise BuildError("\n".join(map(str, errors)))
    return len(stale)


@contextmanager
def named_disk(folder: Path) -> Iterator[None]:
    """Let an error of a disk that is full, while a build writes to `folder` or to one that the error names, say so."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise DiskFull(str(error.filename or folder)) from error


def jobs() -> int:
    """Return how many compilers or test programs run at once."""
    return int(os.environ.get("ENGINE_BUILD_JOBS", "0")) or len(os.sched_getaffinity(0))


def link_shared(
    objects: Sequence[Path], target: Path, others: Sequence[Path] = (), options: Sequence[str] = ()
) -> None:
    """Link a shared library under a temporary name and rename it: running processes keep the file they mapped.

    The linker takes those of `others` that `objects` call.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    written = target.with_name(f"{target.name}.{os.getpid()}.tmp")
    strip = ("-s",) if _named_rows() else ()  # for its size
    with TemporaryDirectory(prefix="engine-link-") as folder:
        archive = Path(folder) / "others.a"
        if others:
            if not shutil.which("ar"):
                raise BuildError("no `ar` is on PATH, which ENGINE_KERNELS needs: install binutils")
            _run(("ar", "qc", str(archive), *map(str, others)))
        archives = (str(archive),) if others else ()
        _run((*compiler(), "-shared", "-pthread", *strip, *options, *map(str, objects), *archives, "-o", str(written)))
    written.replace(target)


def link_program(objects: Sequence[Path], target: Path, variant: Variant) -> None:
    """Link a test program."""
    target.parent.mkdir(parents=True, exist_ok=True)
    _run((*compiler(), "-pthread", *variant.flags, *map(str, objects), "-o", str(target)))


def compiler() -> tuple[str, ...]:
    """Return the compiler's command. Raises BuildError if none is found."""
    return _found([os.environ["CXX"]] if os.environ.get("CXX") else ["g++", "c++", "clang++"])


def kernel_compiler() -> tuple[str, ...]:
    """Return the command of the kernels' compiler. Raises BuildError if none is found."""
    return _found([os.environ["ENGINE_KERNEL_CXX"]]) if os.environ.get("ENGINE_KERNEL_CXX") else compiler()


def _found(candidates: Sequence[str]) -> tuple[str, ...]:
    for candidate in candidates:
        command = shlex.split(candidate)
        if command and shutil.which(command[0]):
            _check_version(tuple(command))
            return tuple(command)
    raise BuildError(
        f"no C++ compiler: {' or '.join(candidates)} is not on PATH. engine's native core is built from C++17 sources: "
        f"{_TO_INSTALL}"
    )


def _families() -> str:
    return (SOURCES / "kernels" / "families.def").read_text(encoding="utf-8")


@cache
def _check_version(command: tuple[str, ...]) -> None:
    """Raise BuildError for a compiler that does not know the sources' language or instruction sets."""
    name, version = _version(command)
    if version < _OLDEST[name]:
        raise BuildError(
            f"{shlex.join(command)} is {name} {version}, too old to compile engine's native core: {_TO_INSTALL}"
        )


@cache
def _version(command: tuple[str, ...]) -> tuple[str, int]:
    """The compiler's kind and major version. Raises BuildError if it is not such a compiler."""
    asked = [*command, "-dM", "-E", "-x", "c++", os.devnull]
    result = subprocess.run(asked, capture_output=True, text=True, check=False)
    for name, macro in (("Clang", "__clang_major__"), ("GCC", "__GNUC__")):
        if found := re.search(rf"^#define {macro} (\d+)$", result.stdout, re.MULTILINE):
            return name, int(found[1])
    raise BuildError(
        f"{shlex.join(command)} is neither GCC nor Clang: {shlex.join(asked)} does not say so. {_TO_INSTALL}"
    )


def _is_gcc(command: tuple[str, ...]) -> bool:
    return _version(command)[0] == "GCC"


def _baseline_unit(source: Path, variant: Variant, flags: tuple[str, ...] = ()) -> Unit:
    return Unit(source, (variant.objects / source.relative_to(SOURCES)).with_suffix(".o"), flags, compiler())


def _is_stale(unit: Unit, command: tuple[str, ...]) -> bool:
    """Whether the object is missing, was compiled by another command, or is older than one of its inputs."""
    record = unit.object.with_suffix(".cmd")
    try:
        made = unit.object.stat().st_mtime_ns
        if record.read_text(encoding="utf-8") != _recorded(command):
            return True
        rule = unit.object.with_suffix(".d").read_text(encoding="utf-8")
        inputs = rule.replace("\\\n", " ").partition(": ")[2]
        return any((ROOT / path).stat().st_mtime_ns >= made for path in shlex.split(inputs))
    except OSError:
        return True


def _from_root(path: Path) -> str:
    return str(path.relative_to(ROOT))


def _compile(unit: Unit, command: tuple[str, ...], strict: tuple[str, ...]) -> BuildError | None:
    """Compile one unit; return the error if compilation fails.

    `strict` flags turn warnings into errors and do not affect objects, so setting them makes no object out of date.
    """
    unit.object.parent.mkdir(parents=True, exist_ok=True)
    record = unit.object.with_suffix(".cmd")
    record.unlink(missing_ok=True)
    depends = unit.object.with_suffix(".d")
    try:
        _run((*command, *strict, "-MMD", "-MF", str(depends), "-o", str(unit.object)))
    except BuildError as error:
        return error
    record.write_text(_recorded(command), encoding="utf-8")
    return None


def _precompiled(
    commands: Sequence[tuple[str, ...]], folder: Path, pool: ThreadPoolExecutor
) -> dict[tuple[str, ...], tuple[str, ...]]:
    """Let GCC read large headers of the system, half of the work of most units, once for all with equal flags.

    Returns what to add to each flags. Objects are the same with it, and do not depend on the files in `folder`.
    """

    def make(flags: tuple[str, ...]) -> tuple[str, ...]:
        place = Path(mkdtemp(dir=folder))
        header = place / "precompiled.hpp"
        header.write_text("".join(f"#include <{name}>\n" for name in _large_headers(flags)), encoding="utf-8")
        _run((*flags, "-x", "c++-header", str(header), "-o", f"{header}.gch"))
        return "-isystem", str(place), "-include", header.name

    users = Counter(map(_without_source, commands))
    worthwhile = [flags for flags, count in users.items() if count > 3 and _large_headers(flags)]
    return dict(zip(worthwhile, pool.map(make, worthwhile), strict=True))


def _large_headers(flags: tuple[str, ...]) -> tuple[str, ...]:
    """The headers that most units with these flags include. check_compiler.py, by Clang, finds missing includes.

    Kernels include no templates. The bindings are few, and reading their headers is a small part of their work.
    """
    if any(flag.startswith("-DENGINE_ISA_NS=") for flag in flags):
        return ("immintrin.h",) if architecture() == "x86_64" else ()
    if "-isystem" in flags:
        return ()
    return ("algorithm", "cstdint", "cstring", "map", "memory", "stdexcept", "string", "utility", "variant", "vector")


def _without_source(command: tuple[str, ...]) -> tuple[str, ...]:
    return command[: command.index("-c")]


def _recorded(command: Sequence[str]) -> str:
    """The command as text. For folders of system headers, it has the files and their sizes: pip builds in an
    environment with a path of its own each time, and the same headers make the same object.
    """
    return "\n".join(
        _headers(argument) if before == "-isystem" else argument
        for before, argument in zip(("", *command), command, strict=False)
    )


@cache
def _headers(folder: str) -> str:
    files = sorted((str(path.relative_to(folder)), path.stat().st_size) for path in Path(folder).rglob("*.h"))
    return sha256(repr(files).encode()).hexdigest()


def _run(command: Sequence[str]) -> None:
    # Sources are named relative to the root, so that a copy of the checkout can reuse the objects.
    # Messages are in English, so that a full disk is recognised.
    environment = {**os.environ, "LC_ALL": "C.UTF-8"}
    result = subprocess.run(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    if result.returncode != 0 and os.strerror(errno.ENOSPC) in result.stdout:
        raise DiskFull(_target_of(command))
    if result.returncode != 0:
        raise BuildError(f"{shlex.join(command)}\nfailed with status {result.returncode}:\n{result.stdout}")
    if result.stdout:
        print(result.stdout, end="", file=sys.stderr)


def _target_of(command: Sequence[str]) -> str:
    return command[command.index("-o") + 1] if "-o" in command else shlex.join(command)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Let only one build at a time write to a folder of objects."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
