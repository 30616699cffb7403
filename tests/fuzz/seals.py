"""Forgers of protected blobs: they have every file, but no key. An imported network computes the results that its
author's network computed.

A blob is encrypted, signed as a release, or both, and may have its weights in a plain blob beside it. The importer
requires what there is: the key, the signature, the release. A forged blob is refused, or gives exactly the results of
the honest one; and what is imported was said to load by the check. Requirements that are added count in every part.
"""

from __future__ import annotations

import contextlib
import functools
import io
import json
import os
import random
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from onnx import helper, numpy_helper

from engine import Core
from engine.blob import AesGcmKey, BlobManifest, BlobReader, BlobWeights, BlobWriter, HmacKey, is_blob
from engine.errors import BlobError, EngineError

from .blobs import changed_json
from .finding import Finding, note
from .proto_mutations import damaged

LIMIT = 20.0
MEMORY = 4 << 30
INTERRUPTS = False
IS_KEPT = False

BASES = 10
VERSION = 3
_DEVICES = ("TEMPLATE", "CPU", "HETERO:CPU,TEMPLATE", "AUTO:CPU", "BATCH:TEMPLATE(2)")
_SECRET = bytes(range(32))
_KEY, _SIGNER = AesGcmKey("cipher", _SECRET), HmacKey("signer", _SECRET)
_STRANGER = HmacKey("signer", bytes(32))
_X = np.random.default_rng(0).standard_normal((2, 32)).astype(np.float32)


def prepare(devices: tuple[str, ...]) -> None:
    """All devices are tried: what is forged is the container."""


@dataclass(frozen=True)
class Case:
    """A forged blob, what was done, and what the importer requires and passes."""

    blob: bytes
    made: str
    index: int
    is_encrypted: bool
    is_signed: bool


def files(seed: int) -> dict[str, bytes]:
    """The forged blob, and the plain one that has its weights."""
    case = make(seed)
    return {"forged.blob": case.blob, "base.blob": base(case.index)}


@functools.cache
def folder() -> Path:
    """Of the plain blobs, and of the file with the key that signs."""
    made = Path(tempfile.mkdtemp(prefix="engine-fuzz-seals-"))
    with open(made / "signer.key", "w", opener=lambda path, flags: os.open(path, flags, 0o600)) as file:
        file.write(f"engine-blob-key hmac-sha256 secret signer {_SECRET.hex()}\n")
    return made


@functools.cache
def core(is_signed: bool) -> Core:
    """The core of all cases that require a signature, or do not."""
    made = Core()
    if is_signed:
        made.set_property({"TRUSTED_KEYS": [str(folder() / "signer.key")], "REQUIRE_SIGNATURE": True})
    return made


@functools.lru_cache(BASES)
def base(index: int) -> bytes:
    """A plain blob of a model with two weights of one shape, which no pass merges."""
    r = np.random.default_rng(index)
    weights = [numpy_helper.from_array(r.standard_normal((32, 32)).astype(np.float32), name) for name in "ab"]
    nodes = [
        helper.make_node("MatMul", ["x", "a"], ["t"]),
        helper.make_node("Relu", ["t"], ["u"]),
        helper.make_node("MatMul", ["u", "b"], ["y"]),
    ]
    x, y = (helper.make_tensor_value_info(name, 1, [2, 32]) for name in "xy")
    graph = helper.make_graph(nodes, "g", [x], [y], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    stream = io.BytesIO()
    core(False).compile_model(model, _DEVICES[index % len(_DEVICES)]).export_model(stream)
    return stream.getvalue()


@functools.lru_cache(BASES)
def plain_file(index: int) -> Path:
    """The file of a plain blob, which the importer passes as the weights of another."""
    path = folder() / f"base{index}.blob"
    path.write_bytes(base(index))
    return path


@functools.lru_cache(BASES)
def expected(index: int) -> Any:
    """The results of the honest blobs."""
    return core(False).import_model(base(index))({"x": _X})["y"]


@functools.lru_cache(8 * BASES)
def honest(index: int, is_encrypted: bool, is_signed: bool, is_bound: bool, version: int = VERSION) -> bytes:
    """A blob of the author, who has the keys."""
    manifest, sections = stored(base(index))
    if is_signed:
        manifest = _with(manifest, release={"name": "net", "version": version})
    writer = _writer(manifest, sections)
    if is_bound:
        with contextlib.suppress(BlobError):  # no section is large enough
            writer = writer.bound_to(BlobWeights(plain_file(index)))
    if is_encrypted:
        writer = writer.transformed(_KEY)
    return _bytes(writer, _SIGNER if is_signed else None)


def make(seed: int) -> Case:
    """The forged blob of a seed."""
    r = random.Random(f"seal {seed}")
    index = r.randrange(BASES)
    is_encrypted, is_signed = r.choice(((True, False), (False, True), (True, True), (False, False)))
    blob = honest(index, is_encrypted, is_signed, r.random() < 0.5)
    forgeries = _FORGERIES if is_encrypted or is_signed else _PLAIN
    name = r.choice(list(forgeries))
    case = Case(blob, name, index, is_encrypted, is_signed)
    return replace(case, blob=forgeries[name](r, case))


def run(seed: int) -> str:
    """Import a forged blob with the keys that it claims to need."""
    note("making the blob")
    case = make(seed)
    note(f"importing: {case.made}")
    options: dict[str, Any] = {"transform": _KEY} if case.is_encrypted else {}
    if case.is_signed:
        options["release"] = f"net:{VERSION}"
    try:
        with BlobReader(case.blob) as reader:
            if "bound" in reader.manifest.metadata:
                options["weights"] = plain_file(case.index)
        network = core(case.is_signed).import_model(case.blob, **options)
        result = network({"x": _X})["y"]
    except EngineError as e:
        if not str(e).strip() or len(str(e)) > 2000:
            raise Finding("message", f"{case.made}: {e!r:.500}") from e
        return f"{case.made}: refused"
    if not core(case.is_signed).check_blob(case.blob, **options).compatible:
        raise Finding("the check refuses what loads", case.made)
    if case.is_encrypted or case.is_signed or case.made.startswith("need"):
        if case.made.startswith("need"):
            raise Finding("a requirement does not count", case.made)
        if not np.array_equal(np.asarray(result), np.asarray(expected(case.index)), equal_nan=True):
            raise Finding("accepted", f"{case.made}, with a key that its forger does not have, gives another result")
    return f"{case.made}: the same"


# -- what a forger does -----------------------------------------------------------------------------------------


def stored(blob: bytes) -> tuple[BlobManifest, dict[str, bytes]]:
    """The manifest, and the sections as they are in the blob."""
    with BlobReader(blob) as reader:
        listed = reader.manifest.sections
        start = len(blob) - max((s.offset + s.size for s in listed), default=0)
        return reader.manifest, {s.name: blob[start + s.offset :][: s.size] for s in listed}


def _writer(manifest: BlobManifest, sections: dict[str, bytes]) -> BlobWriter:
    writer = BlobWriter(manifest)
    for name, data in sections.items():
        writer.add_section(name, data)
    return writer


def _bytes(writer: BlobWriter, sign: HmacKey | None = None) -> bytes:
    stream = io.BytesIO()
    writer.write(stream, sign=sign)
    return stream.getvalue()


def _with(manifest: BlobManifest, **metadata: Any) -> BlobManifest:
    kept = {key: value for key, value in {**manifest.metadata, **metadata}.items() if value is not None}
    return replace(manifest, metadata=kept)


def _signed(r: random.Random, writer: BlobWriter) -> bytes:
    """Signed by nobody, or by a stranger's key of the same id."""
    return _bytes(writer, r.choice((None, _STRANGER)))


def _all_elsewhere(r: random.Random, case: Case) -> bytes:
    """All sections come from the plain blob, some under each other's names."""
    manifest, _ = stored(base(case.index))
    mine, own = stored(case.blob)
    listed = [{"name": s.name, "size": s.size, "sha256": s.sha256, "place": {}} for s in manifest.sections]
    names = [each["name"] for each in listed]
    swapped = dict(zip(r.sample(names, len(names)), r.sample(names, len(names)), strict=True))
    listed = [{**each, "name": swapped[str(each["name"])]} for each in listed]
    found = mine.metadata.get("transform")
    entries = (found, {"name": _KEY.name, "id": "0" * 32}, {"name": _KEY.name, "id": "0" * 32, "seal": "00" * 60}, None)
    forged = _with(
        replace(r.choice((manifest, mine)), sections=()),
        bound={"file": "base.blob", "sections": listed},
        transform=r.choice(entries),
        release=mine.metadata.get("release"),
    )
    kept = {f"kept {name}": data for name, data in own.items()} if r.random() < 0.3 else {}
    return _signed(r, _writer(forged, kept))


def _changed_manifest(r: random.Random, case: Case) -> bytes:
    manifest, sections = stored(case.blob)
    name = r.choice(("config", "metadata", "requirements", "inputs", "outputs"))
    changed = changed_json(r, json.loads(json.dumps(getattr(manifest, name), default=list)))
    try:
        return _signed(r, _writer(replace(manifest, **{name: changed}), sections))
    except (BlobError, TypeError):
        return case.blob


def _changed_sections(r: random.Random, case: Case) -> bytes:
    manifest, sections = stored(case.blob)
    _, others = stored(honest((case.index + r.choice((0, 1))) % BASES, case.is_encrypted, case.is_signed, False))
    names = list(sections)
    if names:
        name, other = r.choice(names), r.choice(names)
        match r.randrange(6):
            case 0:
                del sections[name]
            case 1:
                sections[name], sections[other] = sections[other], sections[name]
            case 2:
                sections[name] = damaged(r, sections[name])
            case 3:
                sections = dict(r.sample(list(sections.items()), len(sections)))
            case 4:
                sections[f"more {name}"] = sections[name]
            case _:
                sections |= {key: data for key, data in others.items() if key in sections and r.random() < 0.5}
    return _signed(r, _writer(manifest, sections))


def _changed_seal(r: random.Random, case: Case) -> bytes:
    """Without a seal, as in older versions; with another; with another blob's."""
    manifest, sections = stored(case.blob)
    entry = dict(manifest.metadata.get("transform", {"name": _KEY.name, "id": "0" * 32}))
    other = stored(honest((case.index + 1) % BASES, True, case.is_signed, False))[0].metadata["transform"]
    match r.randrange(5):
        case 0:
            entry.pop("seal", None)
        case 1:
            entry["seal"] = other["seal"]
        case 2:
            entry = dict(other)
        case 3:
            entry["seal"] = r.choice(("", "00", "ff" * 60, 3, None))
        case _:
            entry = {}
    return _signed(r, _writer(_with(manifest, transform=entry or None), sections))


def _another_of_the_author(r: random.Random, case: Case) -> bytes:
    """An older release, or the plain blob, in place of this one: of a blob with a key, never another network."""
    older = honest((case.index + 1) % BASES, case.is_encrypted, case.is_signed, False, VERSION - 1)
    return older if case.is_signed and r.random() < 0.7 else base((case.index + 1) % BASES)


def _flipped(r: random.Random, case: Case) -> bytes:
    changed = bytearray(case.blob)
    changed[r.randrange(len(changed))] ^= 1 << r.randrange(8)
    return bytes(changed)


def _needing(requirements: dict[str, str]) -> Callable[[random.Random, Case], bytes]:
    """A plain blob with a part that needs a feature this machine does not have."""

    def change(blob: bytes, r: random.Random) -> bytes:
        manifest, sections = stored(blob)
        parts = [name for name, data in sections.items() if is_blob(data)]
        if parts and "bound" not in manifest.metadata:
            name = r.choice(parts)
            sections[name] = change(sections[name], r)
            return _bytes(_writer(manifest, sections))
        return _bytes(_writer(replace(manifest, requirements={**manifest.requirements, **requirements}), sections))

    return lambda r, case: change(base(case.index), r)


_FORGERIES: dict[str, Callable[[random.Random, Case], bytes]] = {
    "all elsewhere": _all_elsewhere,
    "manifest": _changed_manifest,
    "sections": _changed_sections,
    "seal": _changed_seal,
    "another": _another_of_the_author,
    "flipped": _flipped,
}
_PLAIN: dict[str, Callable[[random.Random, Case], bytes]] = {
    "need of an instruction": _needing({"isa": "avx4096"}),
    "need of an extension": _needing({"extensions": "acme 1.0"}),
    "flipped": _flipped,
    "manifest": _changed_manifest,
    "sections": _changed_sections,
}
