"""Random structures: every device, the blob and the written model give what the text of the specification says."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx.reference import ReferenceEvaluator

from engine import Core
from engine.onnx import model_to_proto
from engine.onnx.functions import subgraphs, walk_nodes

from .finding import Finding, note
from .rounding import Array
from .structure_models import Writer
from .structure_text import results

LIMIT = 60.0
MEMORY = 0
INTERRUPTS = False
IS_KEPT = False

_devices: tuple[str, ...] = ("TEMPLATE", "CPU", "HETERO")
_core: Core | None = None


def prepare(devices: tuple[str, ...]) -> None:
    """Choose the devices."""
    global _devices
    _devices = devices
    onnxruntime.set_default_logger_severity(4)


def core() -> Core:
    """The core of all cases."""
    global _core
    _core = _core or Core()
    return _core


def files(seed: int) -> dict[str, bytes]:
    """The model and its inputs."""
    proto, feeds = Writer(seed).model()
    stream = io.BytesIO()
    np.savez(stream, **feeds)  # type: ignore[arg-type]
    return {"model.onnx": proto.SerializeToString(), "inputs.npz": stream.getvalue()}


def run(seed: int) -> str:
    """Compare a random model on all devices. Returns which of the other runtimes confirm the results."""
    note("writing the model")
    writer = Writer(seed)
    proto, feeds = writer.model()
    expected = results(proto, feeds)
    for device in _devices:
        _on_device(proto, feeds, expected, "HETERO:CPU,TEMPLATE" if device == "HETERO" else device)
    _written(proto, feeds, expected)
    if writer.departs:
        return "by the text only"
    proto = _polite(proto, writer)
    confirmed = [name for name, run in _OTHERS.items() if _agrees(name, run, proto, feeds, expected)]
    return f"confirmed by {' and '.join(confirmed) or 'none'}"


def _polite(proto: onnx.ModelProto, writer: Writer) -> onnx.ModelProto:
    """The model as the other runtimes require it: nodes without names, functions before those that call them, and
    outputs of functions and bodies that their own nodes compute.
    """
    copy: onnx.ModelProto = onnx.ModelProto.FromString(proto.SerializeToString())
    copy.ClearField("functions")
    copy.functions.extend(each.proto for each in writer.functions)
    for nodes in (copy.graph.node, *(each.node for each in copy.functions)):
        for node in walk_nodes(nodes):
            node.name = ""
            for body in subgraphs(node):
                own = {name for each in body.node for name in each.output} | {each.name for each in body.initializer}
                names = _computed(body.node, [each.name for each in body.output], own)
                for each, name in zip(body.output, names, strict=True):
                    each.name = name
    for function in copy.functions:
        own = {name for each in function.node for name in each.output}
        function.output[:] = _computed(function.node, list(function.output), own)
    return copy


def _computed(nodes: Any, outputs: Sequence[str], own: set[str]) -> list[str]:
    """Names of the same values that are distinct, and outputs of `nodes`, to which Identities are added."""
    found: list[str] = []
    for index, name in enumerate(outputs):
        if name not in own or name in found:
            new = f"{name}//{index}"
            nodes.add(op_type="Identity", input=[name], output=[new])
            name = new
        found.append(name)
    return found


def _on_device(proto: onnx.ModelProto, feeds: Mapping[str, Array], expected: Sequence[Any], device: str) -> None:
    note(f"compiling for {device}")
    network = core().compile_model(proto, device)
    note(f"running on {device}")
    _check(device, network(feeds), expected)
    request = network.create_infer_request()
    _check(f"{device}, by a request", request.infer(feeds), expected)
    given = {port.name: feeds[port.name] for port in network.inputs}
    if given.keys() != feeds.keys():
        return  # a blob has the file's values of initializers
    stream = io.BytesIO()
    note(f"exporting from {device}")
    network.export_model(stream)
    _check(f"{device}, imported", core().import_model(stream.getvalue(), device)(feeds), expected)


def _written(proto: onnx.ModelProto, feeds: Mapping[str, Array], expected: Sequence[Any]) -> None:
    note("writing and reading the model")
    written = model_to_proto(core().read_model(proto))
    onnx.checker.check_model(written)
    network = core().compile_model(written, "TEMPLATE")
    _check("TEMPLATE, written and read", network(feeds), expected)


def _check(where: str, found: Any, expected: Sequence[Any]) -> None:
    for index, value in enumerate(expected):
        got = found[index]
        # A dozen roundings of values below 100; most are exact.
        if got.shape != value.shape or not np.allclose(got, value, rtol=1e-4, atol=1e-4):
            raise Finding(f"wrong result of {where}", f"result {index} is {got!r:.400}; expected {value!r:.400}")


def _onnxruntime(proto: onnx.ModelProto, feeds: Mapping[str, Array]) -> Sequence[Any]:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    found: Sequence[Any] = session.run(None, dict(feeds))
    return found


def _reference(proto: onnx.ModelProto, feeds: Mapping[str, Array]) -> Sequence[Any]:
    return list(ReferenceEvaluator(proto).run(None, dict(feeds)))


_OTHERS = {"onnxruntime": _onnxruntime, "onnx.reference": _reference}


def _agrees(name: str, run: Any, proto: onnx.ModelProto, feeds: Mapping[str, Array], expected: Sequence[Any]) -> bool:
    note(f"running in {name}")
    try:
        found = run(proto, feeds)
    except Exception:  # classes of its own, for models that it does not accept
        return False
    try:
        _check(name, found, expected)
    except Finding:
        if name == "onnxruntime":  # which has agreed with the text in all that it took; onnx.reference has not
            raise
        return False
    return True
