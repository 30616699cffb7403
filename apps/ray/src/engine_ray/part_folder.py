"""`export_parts`: a model divided by the bytes of its weights, as a folder with a blob for each part."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from engine.blob import check_blob
from engine.blob.manifest import encode_manifest
from engine.core import Core
from engine.errors import BlobError, BlobFormatError, BlobIncompatibleError
from engine.files import write_file
from engine.files.digest import sha256
from engine.ir import DECLARED_LENGTHS, Model, model_identity
from engine.passes import LengthsOf, divide_model
from engine.runtime import Port, StatePort

MANIFEST: Final = "parts.json"
_FORMAT: Final = 1
_AGAIN: Final = "export the model again: engine_ray.export_parts"


@dataclass(frozen=True, slots=True)
class ExportedPart:
    """One part of an exported model.

    Attributes:
        file: the name of its blob in the folder.
        digest: identifies the blob, without reading its sections.
        weight_bytes: of the constants that it reads.
        inputs, outputs, variables: their names.
        lengths: the inputs that are lengths of variables of other parts.
    """

    file: str
    digest: str
    weight_bytes: int
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    variables: tuple[str, ...]
    lengths: Mapping[str, LengthsOf]


@dataclass(frozen=True, slots=True)
class PartFolder:
    """What `export_parts` wrote: a model in parts, and the interface of the whole.

    Attributes:
        path: the folder; a process reads the blob of its part from it.
        name, device: of the model, and that of each part.
        weight_bytes: of the whole model, each weight counted once.
        parts: in the order in which they run.
    """

    path: str
    name: str
    device: str
    identity: str
    weight_bytes: int
    inputs: Sequence[Port]
    outputs: Sequence[Port]
    states: Sequence[StatePort]
    parts: tuple[ExportedPart, ...]

    @property
    def largest_share(self) -> float:
        """The share of the weights that the largest part reads."""
        return max(part.weight_bytes for part in self.parts) / max(self.weight_bytes, 1)


def export_parts(
    model: Model | str | os.PathLike[str],
    folder: str | os.PathLike[str],
    parts: int,
    device: str = "CPU",
    config: Mapping[str, object] | None = None,
    *,
    largest: float | None = None,
) -> PartFolder:
    """Divide a model by the bytes of its weights, compile each part for `device`, and write their blobs into `folder`.

    For `open_parts`. A model that keeps keys and values must have variables (`engine.passes.MakeStateful`). The parts
    are compiled one after another, so that of the weights, no more than a part's are in memory at once. `folder` is
    created; a former export there is replaced. `largest`: see `engine.passes.divide_model`.

    Raises `PassError` if the model cannot be divided so, `UnsupportedError` if the device cannot export, and the errors
    of reading, compiling and writing.
    """
    read = model if isinstance(model, Model) else Core().read_model(model)
    divided = divide_model(read, parts, largest=largest)
    target = Path(folder)
    try:
        target.mkdir(parents=True, exist_ok=True)
        (target / MANIFEST).unlink(missing_ok=True)  # the parts would not be those that it names
    except OSError as e:
        raise BlobError(f"{target}: cannot be written: {e}") from e
    exported = []
    for number, part in enumerate(divided.parts):
        file = f"part{number}.blob"
        Core().compile_model(part.model, device, config).export_model(target / file)
        names = [parameter.friendly_name for parameter in part.model.parameters]
        states = len(part.model.variables)
        inputs, outputs = names[: len(names) - states], [result.friendly_name for result in part.model.results]
        exported.append(
            ExportedPart(
                file=file,
                digest=blob_digest(target / file),
                weight_bytes=part.weight_bytes,
                inputs=tuple(inputs),
                outputs=tuple(outputs[: len(outputs) - states]),
                variables=tuple(variable.name for variable in part.model.variables),
                lengths=part.lengths,
            )
        )
    found = PartFolder(
        path=os.path.abspath(target),
        name=read.name,
        device=device,
        identity=model_identity(read),
        weight_bytes=divided.weight_bytes,
        inputs=[Port.of(node) for node in read.parameters[: len(read.parameters) - len(read.variables)]],
        outputs=[
            Port.of(node, is_declared=bool(read.rt_info.get(DECLARED_LENGTHS)))
            for node in read.results[: len(read.results) - len(read.variables)]
        ],
        states=StatePort.of(read),
        parts=tuple(exported),
    )
    write_file(target / MANIFEST, json.dumps(_to_json(found), indent=1).encode())
    return found


def read_parts(folder: str | os.PathLike[str]) -> PartFolder:
    """What `export_parts` wrote into a folder; the blobs are not read.

    Raises `BlobError` if there is none, `BlobIncompatibleError` for another format, `BlobFormatError` if it is damaged.
    """
    path = Path(folder) / MANIFEST
    try:
        value = json.loads(path.read_bytes())
    except OSError as e:
        raise BlobError(f"{path}: a model in parts cannot be opened: {e}; expected a folder of export_parts") from e
    except (ValueError, RecursionError) as e:
        raise BlobFormatError(f"{path}: not valid JSON: {e}; {_AGAIN}") from e
    if isinstance(value, dict) and value.get("format") != _FORMAT:
        raise BlobIncompatibleError(f"{path}: format {value.get('format')!r:.80}; expected {_FORMAT}; {_AGAIN}")
    try:
        found = _from_json(os.path.abspath(folder), value)
        _check(found)
    except (KeyError, TypeError, ValueError, AttributeError) as e:
        raise BlobFormatError(f"{path} is malformed: {type(e).__name__}: {e}; {_AGAIN}") from e
    return found


def require_part(path: str, part: ExportedPart) -> None:
    """Raise an error if the blob of a part is missing, damaged, or of another export than the folder's manifest."""
    if not os.path.exists(path):
        raise BlobError(f"{path}: the blob of a part is missing; copy the whole folder, or {_AGAIN}")
    if blob_digest(path) != part.digest:
        raise BlobIncompatibleError(
            f"{path}: the blob is of another export than {MANIFEST} beside it, so the parts would not fit each other; "
            f"{_AGAIN}"
        )


def blob_digest(path: str | os.PathLike[str]) -> str:
    """The hash of a blob's manifest, which has the hashes of its sections. Raises the errors of reading a blob."""
    checked = check_blob(os.fspath(path))
    if checked.manifest is None:
        raise BlobIncompatibleError(f"{os.fspath(path)}: {'; '.join(checked.reasons)}")
    return sha256(encode_manifest(checked.manifest)).hexdigest()


def _to_json(folder: PartFolder) -> dict[str, Any]:
    return {
        "format": _FORMAT,
        "name": folder.name,
        "device": folder.device,
        "identity": folder.identity,
        "weight_bytes": folder.weight_bytes,
        "inputs": [port.to_json() for port in folder.inputs],
        "outputs": [port.to_json() for port in folder.outputs],
        "variables": [state.to_json() for state in folder.states],
        "parts": [
            {
                "file": part.file,
                "digest": part.digest,
                "weight_bytes": part.weight_bytes,
                "inputs": part.inputs,
                "outputs": part.outputs,
                "variables": part.variables,
                "lengths": {
                    name: [each.variable, each.start, each.end, each.is_size] for name, each in part.lengths.items()
                },
            }
            for part in folder.parts
        ],
    }


def _from_json(path: str, value: Any) -> PartFolder:
    return PartFolder(
        path=path,
        name=_text(value["name"]),
        device=_text(value["device"]),
        identity=_text(value["identity"]),
        weight_bytes=_count(value["weight_bytes"]),
        inputs=[Port.from_json(each) for each in value["inputs"]],
        outputs=[Port.from_json(each) for each in value["outputs"]],
        states=[StatePort.from_json(each) for each in value["variables"]],
        parts=tuple(
            ExportedPart(
                file=_file(each["file"]),
                digest=_text(each["digest"]),
                weight_bytes=_count(each["weight_bytes"]),
                inputs=tuple(map(_text, each["inputs"])),
                outputs=tuple(map(_text, each["outputs"])),
                variables=tuple(map(_text, each["variables"])),
                lengths={_text(name): _lengths(*lengths) for name, lengths in each["lengths"].items()},
            )
            for each in value["parts"]
        ),
    )


def _lengths(variable: Any, start: Any, end: Any, is_size: Any) -> LengthsOf:
    for bound in (start, end):
        if bound is not None and type(bound) is not int:
            raise TypeError(f"expected the end of a shape, got {bound!r:.80}")
    return LengthsOf(_text(variable), start, end, bool(is_size))


def _check(folder: PartFolder) -> None:
    """Raise `ValueError` if a part reads what no part before it gives, or an output of the whole is not given."""
    if not folder.parts:
        raise ValueError("there are no parts")
    given = {port.name for port in folder.inputs}
    states = {state.name for state in folder.states}
    for number, part in enumerate(folder.parts):
        if missing := set(part.inputs) - given - set(part.lengths):
            raise ValueError(f"part {number} reads `{min(missing)}`, which no part before it gives")
        if unknown := {lengths.variable for lengths in part.lengths.values()} - states:
            raise ValueError(f"part {number} reads lengths of `{min(unknown)}`, which is not a variable")
        given |= set(part.outputs)
    owned = sorted(name for part in folder.parts for name in part.variables)
    if owned != sorted(states):
        raise ValueError(f"the parts have the variables {owned!r:.80}; expected {sorted(states)!r:.80}")
    if missing := {port.name for port in folder.outputs} - given:
        raise ValueError(f"no part gives the output `{min(missing)}`")


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"expected a text, got {value!r:.80}")
    return value


def _file(value: Any) -> str:
    """The name of a file in the folder, not a path that leads elsewhere."""
    if os.path.basename(_text(value)) != value or value in ("", ".", ".."):
        raise ValueError(f"expected the name of a file in the folder, got {value!r:.80}")
    return str(value)


def _count(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise TypeError(f"expected a count, got {value!r:.80}")
    return value
