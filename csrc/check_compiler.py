"""Compile every source of the native core once, unoptimised, to check that a compiler accepts it without warnings.

`CXX=clang++ python csrc/check_compiler.py`. Kernels are compiled for the last instruction set of their rows; sources
without assembly are parsed and checked, but not translated. Needs pybind11. Objects have a separate folder.
"""

from __future__ import annotations

import os
import sys
import sysconfig
from dataclasses import replace

import pybind11
from native_build import (
    OBJECTS,
    BuildError,
    Unit,
    Variant,
    binding_units,
    compile_units,
    compiler,
    core_units,
    kernel_units,
    runtime_units,
    test_units,
)

UNOPTIMISED = Variant(OBJECTS / "unoptimised", ("-O0",))


def main() -> int:
    """Compile; return the exit status."""
    os.environ["ENGINE_WERROR"] = "1"
    try:
        print(f"{' '.join(compiler())}: {compile_units(_units(), UNOPTIMISED)} files compiled")
    except BuildError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def _units() -> list[Unit]:
    last = {unit.source: unit for unit in kernel_units(UNOPTIMISED)}
    include = [sysconfig.get_path("include"), pybind11.get_include()]
    shared, programs = test_units(UNOPTIMISED)
    others = [
        *core_units(UNOPTIMISED), *runtime_units(UNOPTIMISED), *binding_units(UNOPTIMISED, include), *shared, *programs,
    ]  # fmt: skip
    return [*last.values(), *(unit if _has_assembly(unit) else _checked_only(unit) for unit in others)]


def _has_assembly(unit: Unit) -> bool:
    return "__asm__" in unit.source.read_text(encoding="utf-8")


def _checked_only(unit: Unit) -> Unit:
    return replace(unit, flags=(*unit.flags, "-fsyntax-only"))


if __name__ == "__main__":
    sys.exit(main())
