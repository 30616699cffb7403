"""Checks whether exported files run on devices and in onnxruntime, and give the original's results."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from publishing.check import difference

from engine import Core
from engine.errors import EngineError

REFUSED = "refused: "


@dataclass(slots=True)
class Checked:
    """The findings for one construct.

    Attributes:
        exporter, name, versions: as written.
        opset: of ONNX's domain, 0 without a file.
        not_exported: the exporter's error.
        devices: by device, how it is wrong or refused; empty if right.
        peer: the same for onnxruntime.
        unlike: how far the file's results are from the original's, here and in onnxruntime alike: the exporter's fault.
        evaluated: the number of nodes that CPU leaves to the reference evaluator.
    """

    exporter: str
    name: str
    versions: Mapping[str, str]
    opset: int = 0
    not_exported: str = ""
    devices: dict[str, str] = field(default_factory=dict)
    peer: str = ""
    unlike: str = ""
    evaluated: int = 0

    @property
    def is_right(self) -> bool:
        """Whether no device is wrong or refuses a file that onnxruntime runs."""
        return self.is_refused_alike or not any(self.devices.values())

    @property
    def is_refused_alike(self) -> bool:
        """Whether all devices and onnxruntime refuse the file."""
        refusals = [problem for problem in self.devices.values() if "Error: " in problem]
        return bool(refusals) and len(refusals) == len(self.devices) and self.peer.startswith(REFUSED)

    @property
    def text(self) -> str:
        """The outcome in words."""
        if self.not_exported:
            return f"not exported: {self.not_exported}"
        problems = [f"{device}: {problem}" for device, problem in self.devices.items() if problem]
        if self.unlike:
            problems.append(f"as onnxruntime, unlike the original: {self.unlike}")
        return "; ".join([*(problems or ["right"]), *([f"onnxruntime: {self.peer}"] if self.peer else [])])


def entries_of(folder: Path) -> list[dict[str, Any]]:
    """The notes of `write_all`."""
    return list(json.loads((folder / "written.json").read_text()).values())


def check(folder: Path, entry: Mapping[str, Any], devices: Sequence[str]) -> Checked:
    """Run one construct on devices and in onnxruntime."""
    found = Checked(entry["exporter"], entry["name"], entry["versions"], not_exported=entry["problem"])
    path = folder / entry["file"]
    if found.not_exported:
        return found
    found.opset = next((each.version for each in onnx.load(path).opset_import if each.domain in ("", "ai.onnx")), 0)
    with np.load(path.with_suffix(".npz"), allow_pickle=True) as arrays:
        inputs = {name[3:]: arrays[name] for name in arrays.files if name.startswith("in:")}
        expected = [arrays[name] for name in arrays.files if name.startswith("out:")]
    try:
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        session = onnxruntime.InferenceSession(path.read_bytes(), options, providers=["CPUExecutionProvider"])
        theirs = session.run(None, inputs)
        found.peer = _wrong(theirs, expected, entry["tolerance"]) if expected else ""
    except Exception as e:  # whatever the peer raises
        theirs, found.peer = None, f"{REFUSED}{_line(e)}"
    core = Core()
    core.set_property({"CACHE_DIR": ""})  # compiling is what is checked
    for device in devices:
        _on_device(found, (core, path, device), inputs, (expected, theirs), entry["tolerance"])
    if found.unlike:
        found.peer = ""
    found.evaluated = _evaluated(core, path)
    return found


def _on_device(
    found: Checked, where: tuple[Core, Path, str], inputs: Any, right: tuple[list[Any], Any], tolerance: float
) -> None:
    (core, path, device), (expected, theirs) = where, right
    try:
        results = list(core.compile_model(path, device)(inputs).values())
    except EngineError as e:
        found.devices[device] = f"{type(e).__name__}: {_line(e)}"
        return
    problem = _wrong(results, expected, tolerance) if expected else ""
    found.devices[device] = problem
    if theirs is None:
        found.devices[device] = problem if expected else "nothing to compare with"
    elif problem or not expected:
        found.devices[device] = _wrong(results, theirs, tolerance)
        if problem and not found.devices[device]:
            found.unlike = problem


def _wrong(results: Sequence[Any], expected: Sequence[Any], tolerance: float) -> str:
    if len(results) != len(expected):
        return f"{len(results)} outputs, expected {len(expected)}"
    for index, (one, right) in enumerate(zip(results, expected, strict=True)):
        if isinstance(right, np.ndarray) and isinstance(one, np.ndarray):
            if one.size == right.size and one.shape != right.shape:  # a column or a row of the same numbers
                one = one.reshape(right.shape)
            if right.dtype == object or one.dtype == object:
                if list(map(str, one.ravel())) != list(map(str, right.ravel())):
                    return f"output {index} has other texts"
                continue
            if one.dtype.kind in "fV" or right.dtype.kind == "f":
                one, right = one.astype(np.float64), right.astype(np.float64)
        gap, text = difference(one, right)
        if text or gap > tolerance:
            return f"output {index} {text or f'deviates by {gap:.1e}'}"
    return ""


def _evaluated(core: Core, path: Path) -> int:
    try:
        model = core.read_model(path)
        answer = core.query_model(model, "CPU")
    except EngineError:
        return 0
    kinds = ("Parameter", "Constant", "Result")
    return sum(
        answer[node.friendly_name].level.value != "native"
        for node in model.ordered_nodes()
        if node.friendly_name in answer.nodes and node.op_type not in kinds
    )


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:200]
