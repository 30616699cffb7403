"""`engine compile`: a model, devices and configurations in, blobs out."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator, Sequence
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine.cli.options import (
    UsageError,
    add_extension,
    add_inputs,
    add_json,
    add_tolerances,
    device_name,
    key_and_value,
)
from engine.cli.output import print_comparisons, print_json, say
from engine.cli.weights import add_weights, as_json, check_weights, compressed
from engine.drawing.table import byte_count
from engine.startup import dataclass

if TYPE_CHECKING:
    from engine.blob import SigningKey
    from engine.core import Core
    from engine.core.build import Build, Built, Check, CompiledBuild
    from engine.core.variants import WrittenPackage
    from engine.ir import Model
    from engine.limits import Progress
    from engine.passes import CompressedModel

SUMMARY = "compile a model for devices and write blobs"
DESCRIPTION = """\
Compile a model and write the compiled network to a blob file. `engine run`, `engine benchmark` and `Core.import_model`
load the blob without the model and without compiling again. The file is written atomically.

With several -d, one blob is written for each: a -c or -o after a -d belongs to this device, a -c before the first one
to all devices. Each blob is then imported and run on the same inputs, and its outputs are compared with the first
device's: numbers are close if |actual - expected| <= atol + rtol * |expected|. If one is not, the exit code is 1 and no
blob is written. With one device, --check does the same.
"""
EXAMPLES = """\
engine compile model.onnx -d TEMPLATE                     # write model.blob here
engine compile model.onnx -d TEMPLATE -o /srv/net.blob    # write it elsewhere
engine compile model.onnx -d TEMPLATE -c PERF_COUNT=true  # the configuration travels with the blob
engine compile model.onnx -d CPU -d TEMPLATE              # write model.CPU.blob and model.TEMPLATE.blob, compared
engine compile model.onnx -d CPU -c NUM_STREAMS=1 -o low.blob -d CPU -c NUM_STREAMS=2 -o high.blob  # two variants
engine compile model.onnx -d CPU --check -i inputs.npz    # written only if it computes the same after import
engine compile model.onnx -d CPU --shape x=8,3,224,224    # for inputs of this shape only
engine compile model.onnx -d CPU --preprocess 'x=input(u8, NHWC).mean(127.5).scale(58)'  # takes bytes of images
engine compile model.onnx -d CPU --preprocess 'y=output().softmax().top_k(5)'  # gives the 5 best classes
engine compile model.onnx -d CPU --weights int4           # with weights of 4 bits
engine compile decoder.onnx -d CPU --stateful             # requests keep the keys and values of past tokens
engine compile model.onnx -d OPENCL --sign release.key    # signed, for hosts that trust the key
engine compile model.onnx -d CPU --sign release.key --release net:7  # hosts can refuse older ones
engine compile model.onnx -d CPU --encrypt secret.key     # encrypted; its imports need the key
engine compile model.onnx -d TEMPLATE --weights-from model.onnx  # without weights; its imports need the model
engine compile model.onnx -d CPU -c NUM_STREAMS=2 -o two.blob --weights-from model.blob  # shares its weights
engine compile model.onnx -d CPU --targets generic,source -o both.blob  # one file for several machines
engine compile model.onnx -d CPU --target source          # for other machines; `engine devices CPU` lists the targets
"""


@dataclass(slots=True)
class _Variant:
    """A `-d`, and the options that belong to it."""

    device: str
    config: list[tuple[str, str]] = field(default_factory=list)
    output: str | None = None


class _Device(argparse.Action):
    """The action of `-d`, which begins a variant."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        namespace.variants = [*namespace.variants, _Variant(values)]


class _Setting(argparse.Action):
    """Belongs to the last `-d`, or to all if there is none yet."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        if namespace.variants:
            namespace.variants[-1].config.append(values)
        else:
            namespace.config = [*namespace.config, values]


class _Output(argparse.Action):
    """Belongs to the last `-d`, or to the first that follows."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        if namespace.variants:
            namespace.variants[-1].output = values
        else:
            namespace.output = values


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", help="an ONNX model")
    parser.set_defaults(variants=[], config=[], output=None)
    parser.add_argument(
        "-d",
        "--device",
        metavar="DEVICE",
        action=_Device,
        default=argparse.SUPPRESS,
        type=device_name,
        help="such as CPU, OPENCL.1 or HETERO:OPENCL,CPU; by default, AUTO, which chooses a device; "
        "may be given several times",
    )
    parser.add_argument(
        "-c",
        "--config",
        metavar="KEY=VALUE",
        action=_Setting,
        default=argparse.SUPPRESS,
        type=key_and_value,
        help="set a config key of the -d before it, or of all devices; may be given several times. "
        "`engine devices DEVICE` lists the keys",
    )
    parser.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        action=_Output,
        default=argparse.SUPPRESS,
        help="the blob of the -d before it (default: the model's name with .blob, in the current folder; with several "
        "devices, .CPU.blob and so on). Before the first of several -d: the folder of all blobs",
    )
    parser.add_argument(
        "--target",
        metavar="TARGET",
        help="compile for another machine than this one: a CPU, such as x86-64:avx2 or "
        "x86-64:avx512,cores=8,l2=2MiB; source, for all, so that an import lowers the network; or @FILE, a file that "
        "`engine devices DEVICE --describe` has written there",
    )
    parser.add_argument(
        "--targets",
        metavar="TARGET,TARGET...",
        help="compile for each of several targets, and write one file, of which an import takes the best variant for "
        "its machine; weights that are equal are stored once. --check imports those that this machine runs",
    )
    add_extension(parser)
    add_weights(parser, None)
    parser.add_argument(
        "--stateful",
        action="store_true",
        help="pairs of past and present values become variables, which requests keep between inferences",
    )
    parser.add_argument(
        "--masked-caches",
        action="store_true",
        help="sequences of different lengths can be in one batch, also for GroupQueryAttention; needs --stateful",
    )
    parser.add_argument(
        "--last-position",
        action="store_true",
        help="a language model computes its logits for the last token of a prompt only",
    )
    parser.add_argument(
        "--sign", metavar="FILE", help="sign the blob with the key of this file, as `engine keygen` writes it"
    )
    parser.add_argument(
        "--release",
        metavar="NAME:VERSION",
        help="the signature includes this name and version, such as resnet50:7; a user who requires release 7 of it "
        "accepts neither an older blob nor one of another name",
    )
    parser.add_argument(
        "--encrypt", metavar="FILE", help="encrypt the blob with the key of this file, as `engine keygen` writes it"
    )
    parser.add_argument(
        "--weights-from",
        metavar="FILE",
        help="leave out weights that this file has: the model, for devices that keep weights as the model has them, "
        "or a blob of the same model. An import needs the file, unchanged",
    )
    parser.add_argument(
        "--check",
        action=argparse.BooleanOptionalAction,
        help="import each blob and compare its outputs with the first device's (default: with several devices)",
    )
    add_inputs(parser, shape_of_blob=False)
    add_tolerances(parser)
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    from engine.blob import BlobRelease, is_blob, read_encryption_key, read_signing_key
    from engine.cli.networks import make_core, read_shaped
    from engine.cli.terminal import DELAY_SECONDS, progress_bar
    from engine.core.build import Packaging, compile_builds, export_builds
    from engine.core.weights import open_weights
    from engine.passes import LastPosition, MakeStateful, MaskedCaches

    if is_blob(args.model):
        raise UsageError(f"{args.model} is already a blob; `engine inspect` shows its content")
    core = make_core(args)
    builds = _builds(core, args)
    check_weights(args)
    release = None if args.release is None else BlobRelease.parse(args.release)
    if release is not None and args.sign is None:
        raise UsageError(f"--release {release}: only a signed blob states a release; give --sign FILE")
    key = None if args.sign is None else read_signing_key(args.sign)  # before anything is compiled
    cipher = None if args.encrypt is None else read_encryption_key(args.encrypt)
    weights = None if args.weights_from is None else open_weights(args.weights_from)
    model = read_shaped(core, args.model, args)
    if args.stateful:
        MakeStateful().run_on_model(model)
    if args.masked_caches:
        MaskedCaches().run_on_model(model)
    if args.last_position:
        LastPosition().run_on_model(model)
    report = None if args.weights is None else compressed(model, args)
    if args.targets is not None:
        with progress_bar(DELAY_SECONDS) as bar:
            package = _write_package(core, model if report is None else report.model, builds[0], args, bar)
        return _print_package(package, builds[0], key, report, args)
    with progress_bar(DELAY_SECONDS) as bar:
        compiled = compile_builds(core, model if report is None else report.model, builds, bar)
    built = export_builds(core, compiled, Packaging(key, cipher, weights, release), check=_check(compiled, args))
    is_close = all(each.is_close for each in built)
    if args.json:
        print_json(_as_json(compiled, built, key, report, is_close))
    else:
        _print(compiled, built, key, report, is_close)
    return 0 if is_close else 1


def _builds(core: Core, args: argparse.Namespace) -> list[Build]:
    """The blobs to make; every mistake in files, devices and keys is found before anything is compiled."""
    from engine.cli.networks import parse_config, require_device, require_folder
    from engine.core.build import Build

    if args.target is not None and args.target.startswith("@"):
        args.target = _read_target(args.target[1:])
    if args.targets is not None:
        _check_targets(args)
    if not args.variants:
        args.device = None if args.target is None and args.targets is None else _device_with_targets(core)
        args.variants = [_Variant(require_device(core, args))]
    variants: Sequence[_Variant] = args.variants
    paths = _paths(args)
    for path in paths:
        for what, file in _read_files(args):
            if os.path.realpath(path) == os.path.realpath(file):
                raise UsageError(f"the blob would replace the {what} {file}; choose another -o FILE")
        require_folder(path)
    resolved = [os.path.realpath(path) for path in paths]
    if twice := [path for path in paths if resolved.count(os.path.realpath(path)) > 1]:
        raise UsageError(f"two blobs would be written to {twice[0]}; give each -d an -o FILE of its own")
    return [
        Build(each.device, Path(path), parse_config(core, each.device, [*args.config, *each.config]), args.target)
        for each, path in zip(variants, paths, strict=True)
    ]


def _device_with_targets(core: Core) -> str:
    """The device whose targets have names, if there is one only: AUTO chooses among this machine's devices."""
    able = core.devices_with_targets()
    found = [device for device in able if "TARGETS" in core.supported_properties(device)]
    if len(found) == 1:
        return found[0]
    raise UsageError(f"--target without a device: use -d DEVICE; those that compile for others: {', '.join(able)}")


def _read_target(file: str) -> str:
    """The description of a device in a file."""
    try:
        with open(file, encoding="utf-8") as stream:
            return stream.read(1 << 16).strip()
    except (OSError, ValueError) as e:
        raise UsageError(f"--target @{file}: the file cannot be read: {e}") from e


def _check_targets(args: argparse.Namespace) -> None:
    """Refuse what a package of variants cannot have, before anything is compiled."""
    if args.target is not None:
        raise UsageError("--target and --targets: give one of them")
    if len(args.variants) > 1:
        raise UsageError("--targets: a package has networks for one device; give one -d")
    if args.weights_from is not None:
        raise UsageError("--targets: a package has its own weights; omit --weights-from")
    if args.input and not args.check:
        raise UsageError("-i gives the inputs of --check, which is off")


def _targets(text: str) -> list[str]:
    """The targets of a list, in which commas also separate cores and caches of a target."""
    found: list[str] = []
    for piece in text.split(","):
        if "=" in piece and found:
            found[-1] += f",{piece}"
        else:
            found.append(piece)
    return found


def _write_package(
    core: Core, model: Model, build: Build, args: argparse.Namespace, progress: Progress | None
) -> WrittenPackage:
    """Compile the variants, and write them to one file."""
    from engine.cli.networks import network_inputs
    from engine.core.build import Check
    from engine.core.variants import compile_variants, write_package

    variants = compile_variants(core, model, _targets(args.targets), build.device, build.config, progress=progress)
    check = None
    if args.check:
        check = Check(network_inputs(variants[0].network, args), args.rtol, args.atol)
    return write_package(
        core, variants, build.path, sign=args.sign, transform=args.encrypt, release=args.release, check=check
    )


def _print_package(
    package: WrittenPackage,
    build: Build,
    key: SigningKey | None,
    report: CompressedModel | None,
    args: argparse.Namespace,
) -> int:
    """Print the variants, their sizes and how they compare; the exit code."""
    from engine.cli.output import comparison_as_json

    if args.json:
        facts: dict[str, Any] = {
            "file": str(build.path),
            "bytes": package.byte_size,
            "device": build.device.partition(":")[0].partition(".")[0],
            "variants": [
                {
                    "name": each.name,
                    "compile_seconds": each.seconds,
                    "own_bytes": package.sizes[each.name].own,
                    "shared_bytes": package.sizes[each.name].shared,
                    "comparison": [comparison_as_json(c) for c in package.comparisons.get(each.name, ())],
                }
                for each in package.variants
            ],
            "close": package.is_close,
        }
        facts |= {"signed_by": key.key_id} if key is not None else {}
        print_json(facts | ({} if report is None else {"weights": as_json(report)}))
        return 0 if package.is_close else 1
    if report is not None:
        say(str(report), lines=True)
    wrote = "wrote" if package.is_close else "not written:"
    signed = f", signed by key {key.key_id}" if key is not None else ""
    size = byte_count(package.byte_size)
    say(f"{wrote} {build.path}: {size}, {len(package.variants)} variants for {build.device}{signed}")
    for each in package.variants:
        bytes_of = package.sizes[each.name]
        say(
            f"  {each.name}: {byte_count(bytes_of.own)}, and {byte_count(bytes_of.shared)} that others also have, "
            f"compiled in {each.seconds:.2f} s"
        )
    if package.comparisons:
        say("\nimported and compared with the first of them:")
        print_comparisons([(name, c) for name, found in package.comparisons.items() for c in found])
    return 0 if package.is_close else 1


def _read_files(args: argparse.Namespace) -> Iterator[tuple[str, str]]:
    """The files that are read, and what they are; a blob must not replace one."""
    yield "model", args.model
    yield from (("data of the model", str(file)) for file in _data_files(args.model))
    named = {"key": (args.sign, args.encrypt), "file of weights": (args.weights_from,)}
    for what, files in named.items():
        yield from ((what, file) for file in files if file is not None)
    for given in args.input:  # FILE, which may contain =, or NAME=FILE
        yield from (("input", file) for file in {given, given.partition("=")[2]} - {"", "-"})


def _data_files(model: str) -> list[Path]:
    """The files with data of a model; empty if it cannot be read, which compiling reports."""
    from engine.errors import EngineError
    from engine.onnx.weight_spans import data_files

    try:
        return data_files(model)
    except (EngineError, OSError):
        return []


def _paths(args: argparse.Namespace) -> list[str]:
    """The file of each blob."""
    named_after = os.path.splitext(os.path.basename(args.model))[0]
    variants: Sequence[_Variant] = args.variants
    if len(variants) == 1:
        stated = variants[0].output if variants[0].output is not None else args.output
        return [f"{named_after}.blob" if stated is None else stated]
    folder = "" if args.output is None else args.output
    if folder and not os.path.isdir(folder):
        raise UsageError(f"-o {folder}: before the first of several -d: expected an existing folder for all blobs")
    paths: list[str] = []
    for position, each in enumerate(variants):
        earlier = sum(other.device == each.device for other in variants[:position])
        device = each.device.replace(":", "-").replace(",", "-")
        name = f"{named_after}.{device}.{earlier + 1}.blob" if earlier else f"{named_after}.{device}.blob"
        paths.append(os.path.join(folder, name) if each.output is None else each.output)
    return paths


def _check(compiled: Sequence[CompiledBuild], args: argparse.Namespace) -> Check | None:
    from engine.cli.networks import network_inputs
    from engine.core.build import Check

    if args.check is False or (args.check is None and len(compiled) == 1):
        if args.input:
            raise UsageError("-i gives the inputs of --check, which is off")
        return None
    return Check(network_inputs(compiled[0].network, args), args.rtol, args.atol)


def _as_json(
    compiled: Sequence[CompiledBuild],
    built: Sequence[Built],
    key: SigningKey | None,
    report: CompressedModel | None,
    is_close: bool,
) -> dict[str, Any]:
    """The facts of the blob; with several, in a list."""
    from engine.cli.output import comparison_as_json

    blobs = []
    for each, made in zip(built, compiled, strict=True):
        facts: dict[str, Any] = {
            "file": str(each.build.path),
            "bytes": each.byte_size,
            "device": each.build.device.partition(":")[0].partition(".")[0],
            "execution_devices": list(made.network.get_metric("EXECUTION_DEVICES")),
            "compile_seconds": each.compile_seconds,
        }
        facts |= {"signed_by": key.key_id} if key is not None else {}
        if each.comparisons:
            facts |= {"close": each.is_close, "comparison": [comparison_as_json(c) for c in each.comparisons]}
        blobs.append(facts)
    weights = {} if report is None else {"weights": as_json(report)}
    return {**blobs[0], **weights} if len(blobs) == 1 else {"blobs": blobs, "close": is_close, **weights}


def _print(
    compiled: Sequence[CompiledBuild],
    built: Sequence[Built],
    key: SigningKey | None,
    report: CompressedModel | None,
    is_close: bool,
) -> None:
    from engine.cli.networks import device_of

    if report is not None:
        say(str(report), lines=True)
    signed = f", signed by key {key.key_id}" if key is not None else ""
    wrote = "wrote" if is_close else "not written:"
    for each, made in zip(built, compiled, strict=True):
        device = device_of(made.network, each.build.device)
        say(
            f"{wrote} {each.build.path}: {byte_count(each.byte_size)}, for {device}, "
            f"compiled in {each.compile_seconds:.2f} s{signed}"
        )
    if not any(each.comparisons for each in built):
        return
    say(f"\nimported and compared with {built[0].build.device}:")
    print_comparisons([(each.build.path.name, comparison) for each in built for comparison in each.comparisons])
