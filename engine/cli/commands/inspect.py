"""`engine inspect`: the content of a model or a blob."""

from __future__ import annotations

import argparse
import os
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from engine.cli.options import (
    MODEL_OR_BLOB,
    UsageError,
    add_extension,
    add_json,
    add_preprocess,
    add_shape,
    add_trust,
)
from engine.cli.output import print_json, print_table, say, setting
from engine.drawing.table import byte_count, count

if TYPE_CHECKING:
    from engine.blob import BlobCheck, BlobManifest, BlobPart, BlobReader
    from engine.ir import Constant, Model, Node
    from engine.plugin_api import Port
    from engine.runtime import StatePort

SUMMARY = "show the content of a model or a blob"
DESCRIPTION = """\
For a model: name, opsets, inputs, outputs, operators with their counts, constants. Operators are counted after import,
at the engine's opset and with local functions inlined. For a blob: its device, configuration, inputs, outputs, sections
with their hashes, requirements, the blobs in it (for the devices that AUTO, HETERO and BATCH run on), the key that
signed it, and whether all of it would load here, or be faster if it was compiled again. A signature is verified with
the given keys, and proves nothing without them. The exit code is 1 if a blob would not load here, or if --verify finds
damage.
"""
EXAMPLES = """\
engine inspect model.onnx           # inputs, outputs, operators
engine inspect model.blob           # for which device, and whether it loads here
engine inspect model.blob --verify  # read every section and check its hash
engine inspect model.blob --trusted-key release.key.pub  # and whether this key has signed it
engine inspect model.onnx --html model.html              # the same as a page
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="FILE", help=MODEL_OR_BLOB)
    parser.add_argument("--verify", action="store_true", help="check the hash of every section of a blob")
    add_trust(parser)
    add_extension(parser)
    add_shape(parser)
    add_preprocess(parser)
    parser.add_argument("--html", metavar="FILE", help="write an HTML page with the same content")
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    from engine.blob import is_blob

    if args.html is not None:
        _require_page(args)
    if not is_blob(args.model):
        return _inspect_model(args)
    if args.shape:
        raise UsageError(f"{args.model} is a blob, whose inputs keep their shapes; --shape applies to models")
    if args.preprocess:
        raise UsageError(f"{args.model} is a blob, which keeps the steps that it was compiled with; no --preprocess")
    return _inspect_blob(args)


def _require_page(args: argparse.Namespace) -> None:
    from engine.cli.networks import require_folder

    if os.path.realpath(args.html) == os.path.realpath(args.model):
        raise UsageError(f"the page would replace {args.model}; choose another --html FILE")
    require_folder(args.html)


def _write_page(described: dict[str, Any], args: argparse.Namespace) -> None:
    """Write the page that the arguments ask for, if any."""
    from engine.cli.inspect_page import inspection_page
    from engine.files import write_file

    if args.html is None:
        return
    write_file(args.html, inspection_page(described, os.path.basename(args.model)).encode())
    if not args.json:
        say(f"\nwrote {args.html}")


# -- models -------------------------------------------------------------------------------------------------


def _inspect_model(args: argparse.Namespace) -> int:
    from engine.cli.networks import make_core, read_shaped
    from engine.plugin_api import Port
    from engine.runtime import StatePort

    model = read_shaped(make_core(args), args.model, args)
    states = StatePort.of(model)
    inputs, outputs = ([Port.of(node) for node in nodes] for nodes in (model.parameters, model.results))
    described = _describe_model(model, inputs[: len(inputs) - len(states)], outputs[: len(outputs) - len(states)])
    described["variables"] = [_describe_variable(state) for state in states]
    if args.json:
        print_json(described)
        _write_page(described, args)
        return 0
    producer = f", by {described['producer']}" if described["producer"] else ""
    opsets = ", ".join(f"{domain or 'ai.onnx'} {version}" for domain, version in described["opsets"].items())
    say(f"model `{described['name']}`: ONNX IR version {described['ir_version']}, opset {opsets}{producer}")
    _print_ports(described)
    say(f"\n{sum(described['operators'].values())} operations, those in bodies included:")
    print_table([(f"  {op}", count) for op, count in described["operators"].items()])
    constants = described["constants"]
    say(f"\n{constants['count']} constants, {byte_count(constants['bytes'])}")
    for key, value in described["metadata"].items():
        say(f"{key}: {value}")
    _write_page(described, args)
    return 0


def _describe_model(model: Model, inputs: Sequence[Port], outputs: Sequence[Port]) -> dict[str, Any]:
    from engine.ir import Constant

    about = model.rt_info.get("onnx", {})
    nodes = list(_all_nodes(model))
    constants: list[Constant] = [node for node in nodes if isinstance(node, Constant)]
    operators = Counter(
        f"{node.domain}.{node.op_type}" if node.domain else node.op_type
        for node in nodes
        if node.op_type not in ("Parameter", "Constant", "Result")
    )
    producer = " ".join(str(about[key]) for key in ("producer_name", "producer_version") if key in about)
    return {
        "kind": "model",
        "name": model.name,
        "ir_version": about.get("ir_version"),
        "opsets": about.get("opsets", {}),
        "producer": producer,
        "inputs": [_describe_port(port) for port in inputs],
        "outputs": [_describe_port(port) for port in outputs],
        "operators": dict(sorted(operators.items())),
        "constants": {"count": len(constants), "bytes": sum(constant.byte_size for constant in constants)},
        "metadata": dict(model.metadata),
    }


def _all_nodes(model: Model) -> Iterable[Node]:
    pending = [model]
    while pending:
        for node in pending.pop().ordered_nodes():
            yield node
            pending.extend(node.bodies.values())


# -- blobs --------------------------------------------------------------------------------------------------


def _inspect_blob(args: argparse.Namespace) -> int:
    from engine.blob import BlobReader, transform_of
    from engine.cli.networks import make_core
    from engine.core.weights import open_weights

    core = make_core(args)
    check = core.check_blob(args.model, transform=args.decrypt, weights=args.weights_from, release=args.release)
    described: dict[str, Any] = {
        "kind": "blob",
        "loads_here": check.compatible,
        "reasons": list(check.reasons),
        "advice": list(check.advice),
    }
    if check.manifest is not None:
        described |= _describe_manifest(check.manifest)
        described["parts"] = [_describe_part(part) for part in check.parts]
        described["signature"] = _describe_signature(check)
        if check.variants:
            described["variant"] = check.variant
            described["variants"] = _describe_variants(check)
        if args.verify:
            weights = None if args.weights_from is None else open_weights(args.weights_from)
            with BlobReader(args.model, transform=transform_of(args.decrypt), weights=weights) as reader:
                _verify(reader, described)
    described["answer"] = str(replace(check, reasons=tuple(described["reasons"])).answer)
    if args.json:
        print_json(described)
    else:
        _print_blob(described)
    _write_page(described, args)
    return 0 if described["loads_here"] else 1


def _describe_manifest(manifest: BlobManifest) -> dict[str, Any]:
    from engine.blob import BlobRelease
    from engine.blob.bound import Bound
    from engine.blob.transform import Transformed
    from engine.plugin_api import Port
    from engine.runtime import StatePort

    stored, bound, release = Transformed.of(manifest), Bound.of(manifest), BlobRelease.of(manifest)
    elsewhere = () if bound is None else bound.sections
    return {
        "transform": None if stored is None else stored.name,
        "bound": None
        if bound is None
        else {"file": bound.file, "sections": len(elsewhere), "bytes": sum(each.size for each in elsewhere)},
        "release": None if release is None else str(release),
        "device": manifest.device,
        "plugin": f"{manifest.plugin_name} {manifest.plugin_version}",
        "engine": manifest.engine_version,
        "plugin_api": manifest.api_version,
        "name": manifest.metadata.get("network_name", ""),
        "config": dict(manifest.config),
        "requirements": dict(manifest.requirements),
        "preferences": dict(manifest.preferences),
        "inputs": [_describe_port(Port.from_json(port)) for port in manifest.inputs],
        "outputs": [_describe_port(Port.from_json(port)) for port in manifest.outputs],
        "variables": [_describe_variable(StatePort.from_json(each)) for each in manifest.metadata.get("variables", [])],
        "sections": [
            {"name": s.name, "offset": s.offset, "bytes": s.size, "sha256": s.sha256} for s in manifest.sections
        ],
    }


def _describe_part(part: BlobPart) -> dict[str, Any]:
    """The parts of an inner blob's description that decide where the whole blob loads."""
    manifest = part.manifest
    if manifest is None:
        return {"name": part.name, "device": None, "requirements": {}, "config": {}}
    return {
        "name": part.name,
        "device": manifest.device,
        "requirements": dict(manifest.requirements),
        "config": dict(manifest.config),
    }


def _describe_variants(check: BlobCheck) -> list[dict[str, Any]]:
    """The variants of a package: what each requires, whether it can be imported, and the bytes of its sections."""
    from engine.blob.package import section_of_variant, sections_of_variant, variant_sizes, variants_of

    assert check.manifest is not None
    parts = {part.name: part.manifest for part in check.parts if part.manifest is not None}
    named = {name: parts[section_of_variant(name)] for name in check.variants if section_of_variant(name) in parts}
    sizes = variant_sizes(check.manifest, named)
    found = []
    for each in variants_of(check.manifest):
        described: dict[str, Any] = {
            "name": each.name,
            "requirements": dict(each.requirements),
            "reasons": list(check.variants[each.name]),
        }
        if each.name in sizes:
            size = sizes[each.name]
            described |= {"own_bytes": size.own, "shared_bytes": size.shared}
            described["sections"] = list(sections_of_variant(each.name, named[each.name]))
        found.append(described)
    return found


def _describe_signature(check: BlobCheck) -> dict[str, Any] | None:
    signature = check.signature
    if signature is None:
        return None
    return {"key": signature.key_id, "algorithm": signature.algorithm, "trusted": check.is_trusted}


def _verify(reader: BlobReader, described: dict[str, Any]) -> None:
    """Check every section; the damaged ones are reasons why the blob does not load.

    With the key, they are also decrypted, and with the file of weights, the blob's sections there are also checked.
    """
    from engine.errors import BlobCorruptError, BlobError

    for section in described["sections"]:
        try:
            reader.verify_section(section["name"])
        except BlobCorruptError as e:
            section["sound"] = False
            if section["name"] in _imported_sections(reader, described):
                described["loads_here"] = False
                described["reasons"].append(str(e))
        else:
            section["sound"] = True
    for variant in described.get("variants", ()):
        damaged = {section["name"] for section in described["sections"] if not section["sound"]}
        variant["sound"] = damaged.isdisjoint(variant.get("sections", damaged))
    if described["loads_here"]:
        try:
            for name in _imported_sections(reader, described):
                reader.section(name)
        except BlobError as e:  # the other sections fail for the same reason
            described["loads_here"] = False
            described["reasons"].append(str(e))


def _imported_sections(reader: BlobReader, described: dict[str, Any]) -> Sequence[str]:
    """The sections that an import uses: all, or of a package those of the chosen variant, as far as they are known."""
    for variant in described.get("variants", ()):
        if variant["name"] == described["variant"] and "sections" in variant:
            return list(variant["sections"])
    return reader.section_names


def _print_blob(described: dict[str, Any]) -> None:
    if "device" in described:
        say(f"blob: network `{described['name']}` for {described['device']}")
        say(f"plugin {described['plugin']}, engine {described['engine']}, plugin API {described['plugin_api']}")
        for key, value in described["config"].items():
            say(f"config {key}={setting(tuple(value) if isinstance(value, list) else value)}")
        for key, value in described["requirements"].items():
            say(f"requires {key}: {value if isinstance(value, str) else ', '.join(value)}")
        for key, value in described["preferences"].items():
            say(f"is made for {key}: {value if isinstance(value, str) else ', '.join(value)}")
        for variant in described.get("variants", ()):
            say(_variant_line(variant, described["variant"]))
        for part in described["parts"] if "variants" not in described else ():
            say(f"part {part['name']}: for {part['device'] or 'an unknown device'}")
            for key, value in part["requirements"].items():
                say(f"part {part['name']} requires {key}: {value if isinstance(value, str) else ', '.join(value)}")
        signature = described["signature"]
        if signature is None:
            say("signature: none")
        else:
            verdict = "verified" if signature["trusted"] else "NOT verified; --trusted-key names the file of a key"
            say(f"signature: by key {signature['key']} ({signature['algorithm']}), {verdict}")
        if described["release"] is not None:
            say(f"release: {described['release']}")
        if described["transform"] is not None:
            say(f"sections are stored by {described['transform']}")
        if (bound := described["bound"]) is not None:
            amount = f"{count(bound['sections'], 'section')} of {byte_count(bound['bytes'])}"
            say(f"without weights: {amount} are in the file that was `{bound['file']}` when the blob was exported")
        _print_ports(described)
        say(f"\n{count(len(described['sections']), 'section')}:")
        verdicts = {True: "sound", False: "DAMAGED"}
        print_table(
            [
                (f"  {s['name']}", s["bytes"], s["sha256"], *([verdicts[s["sound"]]] if "sound" in s else []))
                for s in described["sections"]
            ]
        )
    advised = "yes; recompile to be faster" if described["advice"] else "yes"
    say(f"\nloads here: {advised if described['loads_here'] else 'NO'}")
    for sentence in described["reasons"] or described["advice"]:
        say(f"  {sentence}")


def _variant_line(variant: dict[str, Any], chosen: str) -> str:
    """One line for a variant of a package."""
    state = "imported here" if variant["name"] == chosen else "can be imported here"
    if variant["reasons"]:
        state = f"not here: {'; '.join(variant['reasons'])}"
    if not variant.get("sound", True):
        state = f"DAMAGED; {state}"
    size = ""
    if "own_bytes" in variant:
        size = f" ({byte_count(variant['own_bytes'])}, and {byte_count(variant['shared_bytes'])} that others also have)"
    return f"variant {variant['name']}{size}: {state}"


# -- both ---------------------------------------------------------------------------------------------------


def _describe_port(port: Port) -> dict[str, Any]:
    described: dict[str, Any] = {"name": port.name, "type": str(port.type)}
    if port.layout:
        described["layout"] = port.layout
    if port.preprocess:
        described["preprocess"] = dict(port.preprocess)
    return described


def _describe_variable(state: StatePort) -> dict[str, Any]:
    variable = state.variable
    described: dict[str, Any] = {"name": variable.name, "type": str(state.before.type)}
    return described | {
        key: value
        for key in ("axis", "bound", "batch_axis", "written_axis")
        if (value := getattr(variable, key)) is not None
    }


def _print_ports(described: dict[str, Any]) -> None:
    for what in ("inputs", "outputs"):
        say(f"\n{what}:")
        for port in described[what]:
            layout = f" ({port['layout']})" if "layout" in port else ""
            say(f"  {port['name']}: {port['type']}{layout}")
            steps = port.get("preprocess", {}).get("steps", ())
            for step in steps if isinstance(steps, list) else ():
                say(f"    {step}")
        if not described[what]:
            say("  none")
    if described["variables"]:
        say("\nvariables, which requests keep between inferences:")
    for variable in described["variables"]:
        grows = f", grows along axis {variable['axis']}" if "axis" in variable else ""
        if "written_axis" in variable:
            grows = f", written along axis {variable['written_axis']}"
        bound = f" to {variable['bound']} at most" if "bound" in variable else ""
        say(f"  {variable['name']}: {variable['type']}{grows}{bound}")
