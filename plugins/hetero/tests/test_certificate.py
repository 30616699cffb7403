"""A blob whose division was tampered with is refused, whatever was changed; its hashes are right each time."""

from __future__ import annotations

import json
from collections.abc import Callable
from io import BytesIO
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

from engine import Core
from engine.blob import BlobReader, BlobWriter
from engine.errors import BlobError

Sections = dict[str, Any]


@pytest.fixture(scope="module")
def blob() -> bytes:
    """x -> Neg (CPU) -> Neg (TEMPLATE) -> Neg (CPU), with the middle value also read by the last part."""
    core = Core()
    nodes = [
        helper.make_node("Neg", ["x"], ["a"], name="first"),
        helper.make_node("Abs", ["a"], ["b"], name="second"),
        helper.make_node("Add", ["a", "b"], ["y"], name="third"),
    ]
    for node, device in zip(nodes, ("CPU", "TEMPLATE", "CPU"), strict=True):
        node.metadata_props.add(key="affinity", value=device)
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [4]) for name in "xy"]
    graph = helper.make_graph(nodes, "g", ports[:1], ports[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    stream = BytesIO()
    core.compile_model(model, "HETERO:CPU,TEMPLATE").export_model(stream)
    return stream.getvalue()


def tampered(blob: bytes, change: Callable[[Sections, Sections], None]) -> bytes:
    """The blob with `change` applied to its wiring and certificate, and valid hashes."""
    reader = BlobReader(blob)
    sections = {section.name: bytes(reader.section(section.name)) for section in reader.manifest.sections}
    wiring, certificate = json.loads(sections["wiring"]), json.loads(sections["certificate"])
    change(wiring, certificate)
    sections |= {"wiring": json.dumps(wiring).encode(), "certificate": json.dumps(certificate).encode()}
    writer, stream = BlobWriter(reader.manifest), BytesIO()
    for name, data in sections.items():
        writer.add_section(name, data)
    writer.write(stream)
    return stream.getvalue()


def put(*path: Any) -> Callable[[Sections, Sections], None]:
    """Set the value at a path of the wiring ("wiring", ...) or the certificate ("certificate", ...)."""

    def change(wiring: Sections, certificate: Sections) -> None:
        where: Any = {"wiring": wiring, "certificate": certificate}
        *keys, last, value = path
        for key in keys:
            where = where[key]
        where[last] = value

    return change


def test_what_nobody_changed_is_imported(blob: bytes) -> None:
    x = np.array([1, -2, 3, -4], np.float32)
    for data in (blob, tampered(blob, lambda *_: None)):
        np.testing.assert_array_equal(Core().import_model(data)({"x": x})["y"], -x + np.abs(x))


@pytest.mark.parametrize(
    "change",
    [
        put("certificate", "run", [0, 0, 0]),
        put("certificate", "run", [2, 1, 0]),
        put("certificate", "run", [0, 1]),
        put("certificate", "run", [0, 1, -1]),
        put("certificate", "run", [0, 1, 2**70]),
        put("certificate", "run", [0, 1.5, 2]),
        put("certificate", "run", "abc"),
        put("certificate", "part", [0, 1, 0]),
        put("certificate", "part", [0, 0, 1]),
        put("certificate", "part", [0, 1, 7]),
        put("certificate", "edges", [[0, 1], [1, 2]]),
        put("certificate", "edges", [[0, 1], [1, 2], [2, 0]]),
        put("certificate", "edges", [[0, 1], [1, 9]]),
        put("certificate", "edges", [0, 1, 2]),
        put("certificate", "names", ["a"]),
        put("certificate", "names", [1, 2, 3]),
        put("certificate", "lower_bound", "few"),
        put("wiring", "parts", 0, "inputs", 0, [1, 0]),
        put("wiring", "parts", 1, "inputs", 0, [-1, 0]),
        put("wiring", "parts", 1, "inputs", 0, [-1, 4]),
        put("wiring", "parts", 2, "inputs", []),
        put("wiring", "parts", 1, "inputs", 0, [0, 5]),
        put("wiring", "parts", 1, "inputs", 0, [0, 0, ["colour"]]),
        put("wiring", "parts", 1, "node_count", 2),
        put("wiring", "parts", 1, "device", "NOWHERE"),
        put("wiring", "parts", 1, "device", ""),
        put("wiring", "parts", 1, "output_count", 3),
        put("wiring", "parts", 1, "predicted_seconds", "soon"),
        put("wiring", "parts", []),
        put("wiring", "outputs", [[3, 0]]),
        put("wiring", "outputs", []),
        put("wiring", "input_count", 0),
        put("wiring", "input_count", True),
    ],
)
def test_what_was_changed_is_refused(blob: bytes, change: Callable[[Sections, Sections], None]) -> None:
    with pytest.raises(BlobError):
        Core().import_model(tampered(blob, change))


@pytest.mark.parametrize("name", ["wiring", "certificate", "part1"])
@pytest.mark.parametrize("data", [b"", b"\xff", b"[" * 100000, b"{}", None])
def test_sections_that_are_damaged_or_missing(blob: bytes, name: str, data: bytes | None) -> None:
    reader, stream = BlobReader(blob), BytesIO()
    writer = BlobWriter(reader.manifest)
    for section in reader.manifest.sections:
        if section.name != name:
            writer.add_section(section.name, reader.section(section.name))
        elif data is not None:
            writer.add_section(name, data)
    writer.write(stream)
    with pytest.raises(BlobError):
        Core().import_model(stream.getvalue())


def test_parts_stay_on_the_devices_that_they_were_made_for(blob: bytes) -> None:
    with pytest.raises(BlobError, match="part for CPU, which is not among the devices TEMPLATE"):
        Core().import_model(blob, "HETERO:TEMPLATE")
