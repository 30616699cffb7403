"""`Construct`: a construct that an exporter writes, with inputs and the original's results."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnx


@dataclass(frozen=True, slots=True)
class Written:
    """The files that a construct makes.

    Attributes:
        model: the model as the exporter wrote it: a proto, its bytes, or a path.
        inputs: by name, or in the model's order.
        expected: the original's outputs; empty if only onnxruntime's count, as for quantizers.
        tolerance: how far the original and a right result may deviate, relative to the largest value.
    """

    model: onnx.ModelProto | bytes | Path
    inputs: Mapping[str, Any] | Sequence[Any]
    expected: Sequence[Any] = ()
    tolerance: float = 2e-5


@dataclass(frozen=True, slots=True)
class Construct:
    """A function that writes one, and the packages whose versions count."""

    name: str
    exporter: str
    packages: tuple[str, ...]
    make: Callable[[], Written]


CONSTRUCTS: Final[dict[str, Construct]] = {}
"""All that were declared, by exporter and name."""


def construct(
    exporter: str, *packages: str, name: str = ""
) -> Callable[[Callable[[], Written]], Callable[[], Written]]:
    """Declare a construct by a decorator; its name is the function's unless it is given."""

    def declare(make: Callable[[], Written]) -> Callable[[], Written]:
        shown = name or make.__name__.replace("_", " ").strip()
        CONSTRUCTS[f"{exporter}: {shown}"] = Construct(shown, exporter, packages, make)
        return make

    return declare


def write_all(folder: Path, only: str) -> int:
    """Run the exporters that are installed here; return how many constructs could not be exported.

    Writes for each NUMBER.onnx, NUMBER.npz, and adds to `written.json`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    index = folder / "written.json"
    entries: dict[str, Any] = json.loads(index.read_text()) if index.exists() else {}
    failed = 0
    for key, each in CONSTRUCTS.items():
        if not key.startswith(tuple(only.split(","))) or not all(map(_version, each.packages)):
            continue
        entry: dict[str, Any] = {"exporter": each.exporter, "name": each.name, "problem": "", "file": file_of(key)}
        entry["versions"] = {package: _version(package) for package in each.packages}
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                _write(folder / entry["file"], each.make(), entry)
        except Exception as e:  # exporters raise anything
            failed += 1
            entry["problem"] = _reason(e)
        print(f"{key}: {entry['problem'] or 'written'}", flush=True)
        entries[key] = entry
        index.write_text(json.dumps(entries, indent=1) + "\n")
    return failed


def _reason(error: BaseException) -> str:
    """The first cause, in one line; the last exception often says only how to report the error."""
    while (cause := error.__cause__ or error.__context__) is not None:
        error = cause
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"


def file_of(key: str) -> str:
    """The name of a construct's file."""
    return "".join(c if c.isalnum() else "_" for c in key) + ".onnx"


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def _write(path: Path, written: Written, entry: dict[str, Any]) -> None:
    model = written.model
    if isinstance(model, Path):
        model = onnx.load(model)
    content = model if isinstance(model, bytes) else model.SerializeToString()
    path.write_bytes(content)
    proto = onnx.load_model_from_string(content)
    constants = {tensor.name for tensor in proto.graph.initializer}
    names = [value.name for value in proto.graph.input if value.name not in constants]
    inputs = written.inputs if isinstance(written.inputs, Mapping) else dict(zip(names, written.inputs, strict=True))
    arrays = {f"in:{name}": np.asarray(value) for name, value in inputs.items()}
    arrays |= {f"out:{index}": np.asarray(value) for index, value in enumerate(written.expected)}
    np.savez(path.with_suffix(".npz"), allow_pickle=True, **arrays)
    entry["tolerance"] = written.tolerance
