"""Build the C++ tests with sanitizers, and run them: `python csrc/sanitize.py [address|thread|plain ...]`.

`address` runs all tests under ASan and UBSan; `thread` runs the multithreaded tests under TSan; `plain` runs all
tests on the objects of a release. The first two are the default. `address` needs the installed engine, which knows this
CPU. `--under "qemu-aarch64 -cpu max"` runs programs that were compiled for another architecture (see native_build.py).
"""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

from native_build import (
    EMULATE_AMX,
    OBJECTS,
    RELEASE,
    BuildError,
    Unit,
    Variant,
    compile_units,
    core_units,
    jobs,
    kernel_rows,
    kernel_units,
    link_program,
    runtime_units,
    test_units,
)

COMMON = ("-O1", "-g1", "-fno-omit-frame-pointer")
# Tiles are emulated: this tests their kernels on any CPU, and instruments their reads and writes.
TILES = (*EMULATE_AMX, "-DENGINE_SMALL_TILES")
VARIANTS = {
    "address": Variant(
        OBJECTS / "address", (*COMMON, *TILES, "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
    ),
    "thread": Variant(OBJECTS / "thread", (*COMMON, "-fsanitize=thread")),
    "plain": RELEASE,
}
# Tests of kernels compute expected values most of the time, several times as long with the sanitizers. Their buffers
# are on the heap, so overruns of the instrumented kernels are found all the same.
CHECKS = Variant(OBJECTS / "checks", ("-O2", *TILES))
# Kernel tests call workers one after the other, so TSan could find nothing in them or in the kernels.
THREADED = ("executor", "graph_closure", "runtime")
OPTIONS = {"ASAN_OPTIONS": "detect_stack_use_after_return=1", "TSAN_OPTIONS": "halt_on_error=1"}


def main() -> int:
    """Run the named variants; return the number of programs that failed."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0], allow_abbrev=False)
    parser.add_argument("variants", nargs="*", help="address, thread or plain; default: address thread")
    parser.add_argument("--only", default="", help="run only programs whose name contains this")
    parser.add_argument("--under", default="", metavar="COMMAND", help="run programs by this command, e.g. an emulator")
    arguments = parser.parse_args()
    if unknown := set(arguments.variants) - set(VARIANTS):
        parser.error(f"unknown variants {sorted(unknown)}; expected {list(VARIANTS)}")
    try:
        failed = [
            failure
            for name in arguments.variants or ("address", "thread")
            for failure in _run(name, arguments.only, shlex.split(arguments.under))
        ]
    except BuildError as error:
        print(error, file=sys.stderr)
        return 1
    print(f"failed: {', '.join(failed)}" if failed else "all passed")
    return len(failed)


def _run(name: str, only: str, under: list[str]) -> list[str]:
    variant = VARIANTS[name]
    start = time.monotonic()
    shared, programs = test_units(variant)
    programs = [program for program in programs if only in program.source.stem]
    instrumented, others = _kernels(variant) if name == "address" else ([], kernel_units(RELEASE))
    core = core_units(variant) + runtime_units(variant)
    if name == "thread":
        programs = [program for program in programs if program.source.stem.startswith(THREADED)]
        # Neither kernels nor their preparation have threads of their own.
        shared, core = ([unit for unit in units if not _is_of_kernels(unit)] for units in (shared, core))
        others += [unit for unit in core_units(RELEASE) if _is_of_kernels(unit)]
    checks: set[Unit] = set()
    if name == "address":
        shared, programs = (_checks(units) for units in (shared, programs))
        checks = {unit for unit in (*shared, *programs) if _is_of_kernels(unit)}
    linked = [*instrumented, *core, *shared]
    count = (
        compile_units(others, RELEASE)
        + compile_units(list(checks), CHECKS)
        + compile_units([unit for unit in (*linked, *programs) if unit not in checks], variant)
    )
    print(f"{name}: {count} files compiled in {time.monotonic() - start:.0f} s", flush=True)

    def has_passed(program: Unit) -> bool:
        target = variant.objects / program.source.stem
        link_program([unit.object for unit in (*linked, *others, program)], target, variant)
        start = time.monotonic()
        done = subprocess.run(
            [*under, target], env=OPTIONS | os.environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False
        )
        seconds = time.monotonic() - start
        printed = done.stdout.decode(errors="replace")
        print(f"{name}: {program.source.stem}, {seconds:.0f} s\n{printed}", end="", flush=True)
        return done.returncode == 0

    with ThreadPoolExecutor(max_workers=jobs()) as pool:
        passed = list(pool.map(has_passed, programs))
    return [f"{program.source.stem} ({name})" for program, good in zip(programs, passed, strict=True) if not good]


def _is_of_kernels(unit: Unit) -> bool:
    """Whether a unit is a part of the kernels, or of their tests."""
    return "kernels" in unit.source.parts or unit.source.stem.startswith("kernels_")


def _checks(units: list[Unit]) -> list[Unit]:
    """The units of the tests; units of kernels as in CHECKS."""
    plain = {unit.source: unit for found in test_units(CHECKS) for unit in found}
    return [plain[unit.source] if _is_of_kernels(unit) else unit for unit in units]


def _kernels(variant: Variant) -> tuple[list[Unit], list[Unit]]:
    """The kernels to instrument, and the others, from the release build.

    Each family is instrumented for its first and its last instruction set that this CPU has. Between them it differs
    only in the number of lanes, and the tests look for overruns themselves. Kernels that use tiles must be, since the
    release's are not emulated.
    """
    from engine.native import cpu_features, isas_within  # the other variants run without an installed engine

    isas = {*isas_within(cpu_features().isa), "amx"}
    rows: dict[str, list[str]] = {}
    for family, isa in kernel_rows():
        if isa in isas:
            rows.setdefault(family, []).append(isa)
    chosen = {(family, isa) for family, found in rows.items() for isa in (found[0], found[-1])}

    def is_chosen(unit: Unit) -> bool:
        return (unit.source.stem, unit.object.parent.name) in chosen

    return (
        [unit for unit in kernel_units(variant) if is_chosen(unit)],
        [unit for unit in kernel_units(RELEASE) if not is_chosen(unit)],
    )


if __name__ == "__main__":
    sys.exit(main())
