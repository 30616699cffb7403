"""Makes a network and its inputs from a command's arguments."""

from __future__ import annotations

import argparse
import importlib
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from engine.blob import check_blob, is_blob
from engine.cli.options import UsageError
from engine.cli.output import say
from engine.core import REQUIRE_SIGNATURE, TRUSTED_KEYS, Core
from engine.errors import DeviceNotFoundError, InputError
from engine.ir import Dimension, Model, PartialShape, TensorType
from engine.plugin_api import CONFIG, ExecutableNetwork, Port
from engine.runtime.random_inputs import random_inputs
from engine.startup import dataclass
from engine.values.files import Kind, read_value, read_values
from engine.values.images import PixelScale


@dataclass(frozen=True, slots=True)
class OpenedNetwork:
    """A network, and how long it took to read its file and to compile or import it, in seconds."""

    network: ExecutableNetwork
    read_seconds: float
    compile_seconds: float


def make_core(args: argparse.Namespace) -> Core:
    """A core with the extensions of `args` that trusts the keys of `args`."""
    core = Core()
    for extension in args.extension:
        core.add_extension(extension)
    if not hasattr(args, "trusted_key"):
        return core
    core.set_property({TRUSTED_KEYS.name: args.trusted_key, REQUIRE_SIGNATURE.name: args.require_signature})
    return core


def open_network(
    core: Core,
    args: argparse.Namespace,
    change: Callable[[Model], Model] = lambda model: model,
    *,
    may_be_cached: bool = False,
) -> OpenedNetwork:
    """Compile the model, or import the blob, of `args.model`; `change` is applied to a model first.

    With `may_be_cached`, a model that the arguments do not change is passed on as its file.
    """
    if is_blob(args.model):
        if getattr(args, "preprocess", ()):
            raise UsageError(
                f"{args.model} is a blob, which keeps the steps that it was compiled with; no --preprocess"
            )
        check = check_blob(args.model)
        check.require()
        assert check.manifest is not None
        config = parse_config(core, args.device or check.manifest.device, args.config)
        start = time.perf_counter()
        network = core.import_model(
            args.model,
            args.device,
            config,
            transform=args.decrypt,
            weights=args.weights_from,
            release=args.release,
        )
        return OpenedNetwork(network, 0.0, time.perf_counter() - start)
    if any(getattr(args, name, None) is not None for name in ("decrypt", "weights_from", "release")):
        raise UsageError(f"{args.model} is a model; --decrypt, --weights-from and --release are for blobs")
    device = require_device(core, args)
    config = parse_config(core, device, args.config)
    start = time.perf_counter()
    if may_be_cached and not args.shape and not getattr(args, "preprocess", ()):
        network = core.compile_model(args.model, device, config)
        return OpenedNetwork(network, 0.0, time.perf_counter() - start)
    model = change(read_shaped(core, args.model, args))
    read = time.perf_counter()
    network = core.compile_model(model, device, config)
    return OpenedNetwork(network, read - start, time.perf_counter() - read)


def read_shaped(core: Core, path: str, args: argparse.Namespace) -> Model:
    """Read a model, give its inputs the shapes of `--shape`, and add the steps of `--preprocess`.

    Not every command has these options.
    """
    model = core.read_model(path)
    if shapes := dict(getattr(args, "shape", ())):
        _require_names(shapes, [parameter.friendly_name for parameter in model.parameters])
        model.reshape(shapes)
    if not (steps := getattr(args, "preprocess", ())):
        return model
    from engine.preprocessing import PrePostProcessor

    processor = PrePostProcessor(model)
    for each in steps:
        each.add_to(processor)
    return processor.build()


def _require_names(shapes: Iterable[str], names: Sequence[str]) -> None:
    if unknown := set(shapes) - set(names):
        listed = ", ".join(names) or "none"
        raise UsageError(f"--shape {min(unknown)}=..: the model has no such input; inputs: {listed}")


def require_device(core: Core, args: argparse.Namespace) -> str:
    """Return the device of `args` for a model; without one, AUTO, or the only device.

    Raises `UsageError` if neither exists.
    """
    if args.device is not None:
        return str(args.device)
    try:
        return core.default_device
    except DeviceNotFoundError as e:
        listed = ", ".join(core.available_devices) or "none"
        raise UsageError(f"no device is given for the model: use -d DEVICE; available: {listed}") from e


def device_of(network: ExecutableNetwork, stated: str | None) -> str:
    """The device of a network as it was stated, with those that run it where they differ: "AUTO (CPU)"."""
    device = network.plugin.name if stated is None else stated
    used = ", ".join(network.get_metric("EXECUTION_DEVICES"))
    return device if used == device else f"{device} ({used})"


def require_folder(path: str) -> None:
    """Raise `UsageError` if the folder of an output file does not exist, before anything is computed."""
    if not path:
        raise UsageError("the name of the output file is empty")
    folder = os.path.dirname(os.path.abspath(path))
    if not os.path.isdir(folder):
        raise UsageError(f"cannot write {path}: folder {folder} does not exist")


def parse_config(core: Core, device: str, settings: Iterable[tuple[str, str]]) -> dict[str, Any]:
    """Parse `KEY=VALUE` settings with the device's property declarations. Raises `PropertyError`."""
    settings = list(settings)
    if not settings:
        return {}
    declared = core.supported_properties(device)
    return {key: declared.require(key, CONFIG, where=device).parse(text) for key, text in settings}


def network_inputs(network: ExecutableNetwork, args: argparse.Namespace) -> dict[str, Any]:
    """Return the inputs from files, and random values for the others."""
    return port_inputs(network.inputs, args)


def port_inputs(ports: Sequence[Port], args: argparse.Namespace) -> dict[str, Any]:
    """Return a value for each input: from files, and random ones for the others."""
    given = given_values(args.input, ports, "input", PixelScale(args.image_mean, args.image_std))
    # A model has been given these shapes.
    shapes = {name: PartialShape(dims) for name, dims in args.shape} if is_blob(args.model) else {}
    _require_names(shapes, [port.name for port in ports])
    if both := shapes.keys() & given.keys():
        raise UsageError(
            f"input {min(both)!r} has both a file and a --shape; for a blob, a shape applies only to random inputs"
        )
    others = [port for port in ports if port.name not in given]
    fixed = {name: shape.get_shape() for name, shape in shapes.items() if shape.is_static and name not in given}
    fixed |= _of_one_sample([port for port in others if port.name not in fixed], given, ports)
    try:
        return given | random_inputs(others, seed=args.seed, shapes=fixed)
    except InputError as e:
        raise InputError(
            f"{e}; values come from files (-i), shapes of random ones from --shape NAME=DIMS, or, with --preprocess, "
            "from input(shape=[..])"
        ) from e


def _of_one_sample(
    others: Sequence[Port], given: Mapping[str, Any], ports: Sequence[Port]
) -> dict[str, tuple[int, ...]]:
    """Shapes of random inputs with an open batch, their first dimension: it is 1, and a note says so.

    A symbol that a given value has fixed keeps that length.
    """
    symbols = _lengths_of(given, ports)
    found: dict[str, tuple[int, ...]] = {}
    for port in others:
        if not isinstance(port.type, TensorType) or not port.shape.rank.is_static or port.shape.is_static:
            continue
        dims = [Dimension(symbols[dim.symbol]) if dim.symbol in symbols else dim for dim in port.shape]
        if dims[0].is_dynamic and dims[0].accepts(1):
            dims[0] = Dimension(1)
            if all(dim.is_static for dim in dims):
                say(
                    f"input `{port.name}` is {port.type}: its batch is taken to be 1; --shape {port.name}=.. sets it",
                    to_stderr=True,
                )
        if all(dim.is_static for dim in dims):
            found[port.name] = tuple(dim.get_length() for dim in dims)
    return found


def _lengths_of(values: Mapping[str, Any], ports: Sequence[Port]) -> dict[str, int]:
    """The lengths of the symbols of ports, as the arrays among their values have them."""
    found: dict[str, int] = {}
    for port in ports:
        shape = getattr(values.get(port.name), "shape", None)
        if shape is not None and isinstance(port.type, TensorType) and port.shape.accepts(shape):
            dims = port.shape if port.shape.rank.is_static else ()
            found |= {dim.symbol: length for dim, length in zip(dims, shape, strict=False) if dim.symbol is not None}
    return found


def given_values(
    arguments: Sequence[str], ports: Sequence[Port], kind: Kind, scale: PixelScale | None = None
) -> dict[str, Any]:
    """Return the values of `[NAME=]FILE` arguments, by name."""
    types = {port.name: port.type for port in ports}
    values: dict[str, Any] = {}
    for text in arguments:
        name, path = _name_and_path(text)
        if name is None:
            found: Mapping[str, Any] = read_values(path, types, kind, scale)
        elif name in types:
            found = {name: read_value(path, types[name], scale)}
        else:
            raise UsageError(f"{text!r}: the model has no {kind} {name!r}; {kind}s: {', '.join(types) or 'none'}")
        if twice := values.keys() & found.keys():
            raise UsageError(f"{kind} {min(twice)!r} is given twice")
        values |= found
    return values


def input_sources(arguments: Sequence[str], ports: Sequence[Port]) -> dict[str, str]:
    """The file of each input that `[NAME=]FILE` arguments name; an archive or a folder stands for all others."""
    named = [_name_and_path(text) for text in arguments]
    several = {port.name: str(path) for name, path in named if name is None for port in ports}
    return several | {name: str(path) for name, path in named if name is not None}


def _name_and_path(text: str) -> tuple[str | None, Path]:
    """Split `NAME=FILE`; an existing file whose name contains `=` is not split."""
    name, equals, path = text.partition("=")
    if not equals or os.path.lexists(text):
        return None, Path(text)
    return name, Path(path)


def plugin_packages() -> list[str]:
    """The packages of installed plugins; one that cannot be imported is reported and skipped."""
    from importlib import metadata

    from engine.registry.plugins import GROUP

    found = []
    for name in sorted({point.module.partition(".")[0] for point in metadata.entry_points(group=GROUP)}):
        try:
            importlib.import_module(name)
        except Exception as e:
            say(f"engine: the passes of {name} are skipped: {e}", to_stderr=True)
        else:
            found.append(name)
    return found
