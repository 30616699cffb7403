"""Compile every source of the native core once, unoptimised, to check that a compiler accepts it without warnings.

`CXX=clang++ python csrc/check_compiler.py`. Kernels are compiled for the last instruction set of their rows. Needs
pybind11. Objects have a separate folder; only files that changed are compiled again.
"""

from __future__ import annotations

import os
import sys
import sysconfig

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
    core = core_units(UNOPTIMISED) + binding_units(UNOPTIMISED, include)
    return [*last.values(), *core, *shared, *programs]


if __name__ == "__main__":
    sys.exit(main())
