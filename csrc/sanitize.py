"""Build the C++ tests with sanitizers, and run them: `python csrc/sanitize.py [address|thread|plain ...]`.

`address` runs all tests under ASan and UBSan; `thread` runs the multithreaded tests under TSan; `plain` runs all
tests on the objects of a release. The first two are the default.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

from native_build import (
    OBJECTS,
    RELEASE,
    BuildError,
    Unit,
    Variant,
    compile_units,
    core_units,
    jobs,
    kernel_units,
    link_program,
    test_units,
)

COMMON = ("-O1", "-g1", "-fno-omit-frame-pointer")
VARIANTS = {
    "address": Variant(OBJECTS / "address", (*COMMON, "-fsanitize=address,undefined", "-fno-sanitize-recover=all")),
    "thread": Variant(OBJECTS / "thread", (*COMMON, "-fsanitize=thread")),
    "plain": RELEASE,
}
# Kernel tests call workers one after the other, so TSan could find nothing in them or in the kernels.
THREADED = ("executor", "graph_closure")
OPTIONS = {"ASAN_OPTIONS": "detect_stack_use_after_return=1", "TSAN_OPTIONS": "halt_on_error=1"}


def main() -> int:
    """Run the named variants; return the number of programs that failed."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0], allow_abbrev=False)
    parser.add_argument("variants", nargs="*", help="address, thread or plain; default: address thread")
    parser.add_argument("--only", default="", help="run only programs whose name contains this")
    arguments = parser.parse_args()
    if unknown := set(arguments.variants) - set(VARIANTS):
        parser.error(f"unknown variants {sorted(unknown)}; expected {list(VARIANTS)}")
    try:
        failed = [
            failure for name in arguments.variants or ("address", "thread") for failure in _run(name, arguments.only)
        ]
    except BuildError as error:
        print(error, file=sys.stderr)
        return 1
    print(f"failed: {', '.join(failed)}" if failed else "all passed")
    return len(failed)


def _run(name: str, only: str) -> list[str]:
    variant = VARIANTS[name]
    start = time.monotonic()
    shared, programs = test_units(variant)
    wanted = [
        program
        for program in programs
        if only in program.source.stem and (name != "thread" or program.source.stem.startswith(THREADED))
    ]
    kernels_variant = RELEASE if name == "thread" else variant
    kernels = kernel_units(kernels_variant)
    core = [*core_units(variant), *shared]
    count = compile_units(kernels, kernels_variant) + compile_units([*core, *wanted], variant)
    print(f"{name}: {count} files compiled in {time.monotonic() - start:.0f} s", flush=True)

    def has_passed(program: Unit) -> bool:
        target = variant.objects / program.source.stem
        link_program([unit.object for unit in (*kernels, *core, program)], target, variant)
        done = subprocess.run(
            [target], env=OPTIONS | os.environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False
        )
        print(f"{name}: {program.source.stem}\n{done.stdout.decode(errors='replace')}", end="", flush=True)
        return done.returncode == 0

    with ThreadPoolExecutor(max_workers=jobs()) as pool:
        passed = list(pool.map(has_passed, wanted))
    return [f"{program.source.stem} ({name})" for program, good in zip(wanted, passed, strict=True) if not good]


if __name__ == "__main__":
    sys.exit(main())
