"""The content of a HETERO blob: the wiring, the certificate, and a blob for each part."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping

from engine.errors import BlobCorruptError, BlobError, BlobFormatError
from engine.plugin_api import BlobReader, BlobWriter, CoreHandle, ExecutableNetwork, RemoteContext, Signature
from engine_hetero.device_list import DeviceList, new_contexts
from engine_hetero.network.dataflow import Dataflow
from engine_hetero.wiring.certificate import Certificate
from engine_hetero.wiring.wiring import Wiring

_WIRING = "wiring"
_CERTIFICATE = "certificate"


def write_parts(writer: BlobWriter, dataflow: Dataflow, certificate: Certificate) -> None:
    """Add the sections. Raises `UnsupportedError` if the device of a part cannot export."""
    writer.add_section(_WIRING, json.dumps(dataflow.wiring.to_json(), separators=(",", ":")).encode())
    writer.add_section(_CERTIFICATE, certificate.to_bytes())
    for number, network in enumerate(dataflow.networks):
        stream = io.BytesIO()
        network.export_model(stream)
        writer.add_section(_part(number), stream.getbuffer())


def read_parts(
    core: CoreHandle, blob: BlobReader, devices: DeviceList, signature: Signature
) -> tuple[Wiring, Certificate, list[ExecutableNetwork]]:
    """The parts of a blob, imported on their devices after the certificate is verified.

    `signature` has the network's inputs, outputs and variables.

    Raises `BlobCorruptError` if certificate, wiring and parts contradict each other, `BlobFormatError` for malformed
    sections, `BlobError` naming a part that its device cannot import.
    """
    try:
        wiring = Wiring.from_json(json.loads(bytes(blob.section(_WIRING))))
    except (ValueError, RecursionError) as e:
        raise BlobFormatError(f"the wiring of the parts is not valid JSON: {e}") from e
    ports = tuple(len(each) + len(signature.states) for each in (signature.inputs, signature.outputs))
    if (wiring.input_count, len(wiring.outputs)) != ports:
        raise BlobCorruptError(
            f"the network has {ports[0]} inputs and {ports[1]} outputs, but the wiring of its parts has "
            f"{wiring.input_count} and {len(wiring.outputs)}"
        )
    certificate = Certificate.from_bytes(bytes(blob.section(_CERTIFICATE)))
    certificate.verify(wiring)
    for device in dict.fromkeys(part.device for part in wiring.parts):
        if device not in devices.names:
            raise BlobError(
                f"the blob has a part for {device}, which is not among the devices {', '.join(devices.names)}; "
                "import it with the devices that it was compiled for, or compile the model again"
            )
    contexts = new_contexts(core, devices, wiring.devices_that_read_themselves)
    networks = [_import(core, blob, devices, number, part.device, contexts) for number, part in enumerate(wiring.parts)]
    for number, (part, network) in enumerate(zip(wiring.parts, networks, strict=True)):
        if (len(part.inputs), part.output_count) != (len(network.inputs), len(network.outputs)):
            raise BlobCorruptError(
                f"part {number} has {len(network.inputs)} inputs and {len(network.outputs)} outputs, "
                f"but the wiring has {len(part.inputs)} and {part.output_count}"
            )
    return wiring, certificate, networks


def _import(
    core: CoreHandle,
    blob: BlobReader,
    devices: DeviceList,
    number: int,
    device: str,
    contexts: Mapping[str, RemoteContext],
) -> ExecutableNetwork:
    try:
        return core.import_model(blob.nested(_part(number)), contexts.get(device, device), devices.configs[device])
    except BlobError as e:
        raise type(e)(f"part {number} on {device}: {e}") from e


def _part(number: int) -> str:
    return f"part{number}"
