"""Forged blobs: every hash is right, as a forger can make them, so only the checks of the contents are left.

Importing and running each gives a result or raises an `EngineError`, and writes no memory outside of its arrays. The
calls that build CPU's plans are a section of JSON; they are also forged one level lower, with values that JSON does not
have.
"""

from __future__ import annotations

import contextlib
import functools
import io
import json
import random
from collections.abc import Callable
from typing import Any

import onnx
from google.protobuf.message import DecodeError

from engine.blob import BlobManifest, BlobReader, BlobWriter, is_blob
from engine.errors import BlobError, EngineError, OutOfMemoryError

from .finding import Finding, note
from .forged_plans import run_forged_plan
from .growing import grow
from .makers import MAKERS
from .mutants import GRACE, RESIDENT_GROWTH, core, infer, resident
from .proto_mutations import INTEGERS, MUTATIONS, TEXTS, damaged

LIMIT = 2 * GRACE
MEMORY = 4 << 30
INTERRUPTS = False
IS_KEPT = False

BASES = 120
PLANS = 0.2
"""The share of forged plans."""
_ENTRIES = (
    "device", "plugin_name", "plugin_version", "engine_version", "api_version", "requirements", "preferences", "config",
    "inputs", "outputs", "metadata",
)  # fmt: skip

_devices: tuple[str, ...] = ("TEMPLATE", "CPU", "HETERO")


def prepare(devices: tuple[str, ...]) -> None:
    """Choose the devices."""
    global _devices
    _devices = devices


@functools.lru_cache(BASES)
def base(index: int) -> bytes:
    """A blob of a random graph, as the device has exported it."""
    model, _ = grow(1000 + index, MAKERS, most_nodes=8).model()
    device = _devices[index % len(_devices)]
    if device == "HETERO":
        device, r = "HETERO:CPU,TEMPLATE", random.Random(index)
        for node in model.ordered_nodes():
            if node.op_type not in ("Parameter", "Constant", "Result") and r.random() < 0.3:
                node.rt_info["affinity"] = r.choice(("CPU", "TEMPLATE"))
    try:
        network = core().compile_model(model, device)
    except EngineError:  # affinities that nodes which run as one contradict
        return base((index + len(_devices)) % BASES)
    stream = io.BytesIO()
    network.export_model(stream)
    return stream.getvalue()


def make(seed: int) -> tuple[bytes, str]:
    """The forged blob of a seed, and what was changed."""
    r = random.Random(f"blob {seed}")
    return forged(r, base(r.randrange(BASES)))


def files(seed: int) -> dict[str, bytes]:
    """The blob; a forged plan has none."""
    return {} if _is_plan(seed) else {"forged.blob": make(seed)[0]}


def run(seed: int) -> str:
    """Import and run a forged blob, or build and run a forged plan."""
    before = resident()
    outcome = run_forged_plan(seed) if _is_plan(seed) else _import(seed)
    grown = resident() - before
    if grown > RESIDENT_GROWTH:
        raise Finding("memory", f"the process has grown by {grown >> 20} MiB; the outcome was {outcome}")
    return outcome


def _is_plan(seed: int) -> bool:
    return random.Random(f"kind of blob {seed}").random() < PLANS


def _import(seed: int) -> str:
    note("making the blob")
    blob, made = make(seed)
    stage = "import"
    try:
        note(f"importing: {made}")
        network = core().import_model(blob)
        stage = "run"
        note(f"running: {made}")
        return f"blob {infer(network, seed % 100)}"
    except OutOfMemoryError:
        return f"blob {stage}: out of memory"
    except EngineError as e:
        if not str(e).strip():
            raise Finding("empty message", f"{made}: {e!r}") from e
        return f"blob {stage}: refused"


def forged(r: random.Random, blob: bytes, depth: int = 0) -> tuple[bytes, str]:
    """A blob with changed contents and right hashes, and what was changed."""
    reader = BlobReader(blob)
    sections = {name: bytes(reader.section(name)) for name in reader.section_names}
    manifest = reader.manifest
    made = []
    for _ in range(r.choice((1, 1, 1, 2))):
        if r.random() < 0.25:
            manifest, what = _changed_manifest(r, manifest)
        else:
            what = _change_section(r, sections, depth)
        made.append(what)
    try:
        return written(manifest, sections), "+".join(made)
    except BlobError:  # a manifest that the writer itself refuses
        return written(reader.manifest, sections), "+".join(made)


def written(manifest: BlobManifest, sections: dict[str, bytes]) -> bytes:
    """A blob with right hashes."""
    writer = BlobWriter(manifest)
    for name, data in sections.items():
        writer.add_section(name, data)
    stream = io.BytesIO()
    writer.write(stream)
    return stream.getvalue()


def _changed_manifest(r: random.Random, manifest: BlobManifest) -> tuple[BlobManifest, str]:
    fields = {name: getattr(manifest, name) for name in _ENTRIES}
    name = r.choice(("inputs", "outputs", "config", "metadata", "requirements", "device", *_ENTRIES))
    fields[name] = changed_json(r, json.loads(json.dumps(fields[name], default=list)))
    try:
        return BlobManifest(**fields), f"manifest.{name}"
    except (BlobError, TypeError):
        return manifest, "manifest unchanged"


def _change_section(r: random.Random, sections: dict[str, bytes], depth: int) -> str:
    if not sections:
        return "no sections"
    name = r.choice(list(sections))
    # The graph, or the program in its place, decides on everything else; there may be many sections of weights.
    if "graph" in sections and r.random() < 0.5:
        name = "graph" if "program" not in sections or r.random() < 0.5 else "program"
    if name == "graph":
        sections.pop("program", None)
    data = sections[name]
    match r.randrange(10):
        case 0:
            del sections[name]
            return f"{name} missing"
        case 1:
            sections[name] = data[: r.randint(0, len(data))]
            return f"{name} cut"
        case 2:
            sections[name] = data + r.randbytes(r.choice((1, 64, 4096)))
            return f"{name} longer"
        case 3:
            other = r.choice(list(sections))
            sections[name], sections[other] = sections[other], data
            return f"{name} swapped with {other}"
        case _:
            sections[name] = _changed(r, name, data, depth)
            return name


def _changed(r: random.Random, name: str, data: bytes, depth: int) -> bytes:
    """The section's content, changed according to its kind: a blob, a graph, JSON, or bytes."""
    if is_blob(data) and depth < 3:
        with contextlib.suppress(BlobError):  # an earlier change has cut it, or made it longer
            return forged(r, data, depth + 1)[0]
    if name == "graph" and r.random() < 0.8 and (proto := _graph(data)) is not None:
        for _ in range(r.choice((1, 1, 2))):
            r.choice(MUTATIONS)(r, proto)
        return proto.SerializeToString()
    if data[:1] in (b"{", b"["):
        try:
            return json.dumps(changed_json(r, json.loads(data))).encode()
        except ValueError:
            pass
    return damaged(r, data) if r.random() < 0.5 else _words(r, data)


def _graph(data: bytes) -> onnx.ModelProto | None:
    """The section's graph; None if an earlier change has damaged it."""
    try:
        return onnx.ModelProto.FromString(data)
    except DecodeError:
        return None


def _words(r: random.Random, data: bytes) -> bytes:
    """The bytes with a few words overwritten, in place: weights and numbers of another size."""
    changed = bytearray(data)
    for _ in range(r.choice((1, 2, 8))):
        size = r.choice((1, 4, 8))
        if len(changed) >= size:
            at = r.randrange(0, len(changed) - size + 1)
            changed[at : at + size] = (r.choice(INTEGERS) % 2 ** (8 * size)).to_bytes(size, "little")
    return bytes(changed)


def changed_json(r: random.Random, value: Any) -> Any:
    """A JSON value with one value in it changed."""
    places: list[tuple[Any, Any]] = []
    _collect(value, places)
    if not places or r.random() < 0.03:
        return r.choice((None, [], {}, 0, "", [[]], {"a": 1}))
    container, key = r.choice(places)
    old = container[key]
    choices: list[Callable[[], Any]] = [
        lambda: r.choice(INTEGERS),
        lambda: r.choice(TEXTS),
        lambda: r.choice((None, True, False, [], {}, 0.5, -1e300)),
        lambda: [old, old],
        lambda: old + r.choice((-1, 1)) if isinstance(old, int) and not isinstance(old, bool) else r.choice(INTEGERS),
        lambda: r.choice(places)[0],
    ]
    if r.random() < 0.15:
        del container[key]
    else:
        another = r.choice(choices)()
        container[key] = json.loads(json.dumps(another)) if another is not container else None
    return value


def _collect(value: Any, places: list[tuple[Any, Any]]) -> None:
    if isinstance(value, dict):
        entries: Any = value.items()
    elif isinstance(value, list):
        entries = enumerate(value)
    else:
        return
    for key, inner in entries:
        places.append((value, key))
        _collect(inner, places)
