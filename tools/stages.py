"""The modules of a plugin in the order in which a model visits them while it is compiled.

`python tools/stages.py HETERO:CPU,TEMPLATE` prints a line for each visit: a module, and the functions called in it
until one of another module was called. A visit to a module that was left before is a return, marked "again".
"""

from __future__ import annotations

import argparse
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any, Final

from engine import Core, Model
from engine.passes.runtime_info import is_operation
from engine.testing.networks import seeded_network

_PARTS_OF_FUNCTIONS: Final = frozenset({"<module>", "<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>"})


@dataclass(frozen=True, slots=True)
class Visit:
    """Successive calls of functions of one module; `module` is its name in the package."""

    module: str
    functions: tuple[str, ...]
    is_return: bool


def divided_model(device: str) -> Model:
    """A small network; if the device string lists devices, each has an equal share of its operations by affinity."""
    model = Core().read_model(seeded_network("mlp", small=True).model)
    devices = device.partition(":")[2].split(",")
    operations = [node for node in model.ordered_nodes() if is_operation(node)]
    if devices != [""]:
        for number, node in enumerate(operations):
            node.rt_info["affinity"] = devices[number * len(devices) // len(operations)]
    return model


def visits(package: str, run: Callable[[], object]) -> list[Visit]:
    """The visits to the modules of a package while `run` runs, also in threads that it starts.

    Functions that a decorator such as `dataclass` generates do not count, since no line of the module is theirs.
    """
    calls: list[tuple[str, str]] = []

    def record(frame: FrameType, event: str, argument: Any) -> None:
        code = frame.f_code
        if event != "call" or code.co_name in _PARTS_OF_FUNCTIONS:
            return
        name = frame.f_globals.get("__name__", "")
        if name.partition(".")[0] == package and code.co_filename == frame.f_globals.get("__file__"):
            calls.append((name.partition(".")[2] or name, code.co_qualname))

    with _profiling(record):
        run()
    return list(_visits(calls))


def compiling_visits(model: Model, device: str) -> list[Visit]:
    """The visits to the modules of a device's plugin while the device compiles a model."""
    core = Core()
    network = core.compile_model(model, device)  # so that nothing is left to import
    package = type(network.plugin).__module__.partition(".")[0]
    return visits(package, lambda: core.compile_model(model, device))


def _visits(calls: Sequence[tuple[str, str]]) -> Iterator[Visit]:
    left: set[str] = set()
    start = 0
    for end in range(1, len(calls) + 1):
        module = calls[start][0]
        if end == len(calls) or calls[end][0] != module:
            yield Visit(module, tuple(dict.fromkeys(name for _, name in calls[start:end])), module in left)
            left.add(module)
            start = end


@contextmanager
def _profiling(record: Callable[[FrameType, str, Any], None]) -> Iterator[None]:
    before, before_in_threads = sys.getprofile(), threading.getprofile()
    threading.setprofile(record)
    sys.setprofile(record)
    try:
        yield
    finally:
        sys.setprofile(before)
        threading.setprofile(before_in_threads)


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the modules of the stages that a model visits, in order."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("device", help="such as HETERO:CPU,TEMPLATE")
    parser.add_argument("--model", help="an ONNX file; otherwise a small network, divided evenly among the devices")
    options = parser.parse_args(arguments)
    model = Core().read_model(options.model) if options.model else divided_model(options.device)
    found = compiling_visits(model, options.device)
    for visit in found:
        mark = "again" if visit.is_return else ""
        print(f"{mark:6}{visit.module:32}{', '.join(visit.functions)}")
    returns = sum(visit.is_return for visit in found)
    print(f"{len({visit.module for visit in found})} modules, {returns} returns")


if __name__ == "__main__":
    main()
