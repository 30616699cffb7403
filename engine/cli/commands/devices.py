"""`engine devices`: usable devices, and why others are not usable."""

from __future__ import annotations

import argparse
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from engine.cli.options import UsageError, add_json, device_name
from engine.cli.output import print_json, print_table, say, setting

if TYPE_CHECKING:
    from engine.core import Core

SUMMARY = "list the devices, or the properties of one"
DESCRIPTION = """\
List every device that can be used, with its plugin's version, and every plugin that cannot be used, with the reason;
and likewise the extensions that installed packages provide. With a device's name, list its metrics and config keys: the
current value, the allowed values, and the meaning.
"""
EXAMPLES = """\
engine devices           # the available devices
engine devices TEMPLATE  # the metrics and config keys of one device
engine devices --json    # as JSON, properties included
engine devices CPU --describe  # for `engine compile --target` on another machine
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("device", metavar="DEVICE", nargs="?", type=device_name, help="show this device's properties")
    parser.add_argument(
        "--describe",
        action="store_true",
        help="print only the description of the device, with which `engine compile --target` compiles for it elsewhere",
    )
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    from engine.core import Core

    core = Core()
    if args.describe:
        say(_own_target(core, args.device))
        return 0
    if args.device is not None:
        with _quiet(logging.getLogger("engine.registry")):
            described = _describe(core, args.device)
        if args.json:
            print_json(described)
        else:
            _print_device(described)
        return 0
    with _quiet(logging.getLogger("engine.registry")), _quiet(logging.getLogger("engine.extensions")):
        available, unavailable = core.available_devices, core.unavailable_devices
        extensions, broken = core.extensions, core.unavailable_extensions
    if args.json:
        reasons = [{"device": name, "reason": str(reason)} for name, reason in unavailable.items()]
        print_json({
            "devices": [_describe(core, device) for device in available],
            "unavailable": reasons,
            "extensions": [asdict(extension) for extension in extensions],
            "unavailable_extensions": [{"name": name, "reason": str(why)} for name, why in broken.items()],
        })  # fmt: skip
        return 0
    if available:
        versions = core.get_versions()
        rows = [(d, versions[_plugin_of(d)].version, core.get_property(d, "FULL_DEVICE_NAME")) for d in available]
        print_table(rows, ("DEVICE", "VERSION", "NAME"))
    else:
        say("no device can be used; install a plugin, such as engine-plugin-template")
    for name, plugin in core.get_versions().items():
        if plugin.outdated:
            say(f"\n{name} works, and its plugin has to be updated: {plugin.outdated}")
    for name, reason in unavailable.items():
        say(f"\n{name} cannot be used: {reason}")
    if extensions:
        say()
        rows = [(each.name, each.version, ", ".join(each.operators)) for each in extensions]
        print_table(rows, ("EXTENSION", "VERSION", "OPERATORS"))
    for reason in broken.values():
        say(f"\n{reason}")
    return 0


def _own_target(core: Core, device: str | None) -> str:
    """The target that describes a device of this machine."""
    if device is None:
        raise UsageError("--describe describes one device: name it")
    if "OWN_TARGET" not in core.supported_properties(device):
        raise UsageError(f"{device} has no description: it compiles for the machine that it is on only")
    return str(core.get_property(device, "OWN_TARGET"))


@contextmanager
def _quiet(log: logging.Logger) -> Iterator[None]:
    """Suppress warnings on standard error: their content is listed."""
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(level)


def _describe(core: Core, device: str) -> dict[str, Any]:
    properties = {}
    for declared in core.supported_properties(device):  # first, since it reports errors in the device string
        properties[declared.name] = {
            "value": core.get_property(device, declared.name),
            "kind": declared.mutability.value,
            "allowed": declared.allowed,
            "meaning": declared.doc,
        }
    name = _plugin_of(device)
    plugin = core.get_versions(name)[name]
    return {
        "device": device,
        "name": core.get_property(device, "FULL_DEVICE_NAME"),
        "version": plugin.version,
        "api_version": plugin.api_version,
        "outdated": plugin.outdated,
        "provided_by": str(plugin.origin),
        "properties": properties,
    }


def _plugin_of(device: str) -> str:
    return device.partition(":")[0].partition(".")[0]


def _print_device(described: dict[str, Any]) -> None:
    say(f"{described['device']}: {described['name']}")
    say(f"plugin {described['version']}, for plugin API {described['api_version']}, {described['provided_by']}")
    if described["outdated"]:
        say(f"its plugin has to be updated: {described['outdated']}")
    for kind, title in (("metric", "metrics"), ("config", "config keys, set with -c KEY=VALUE")):
        say(f"\n{title}:")
        for name, entry in described["properties"].items():
            if entry["kind"] == kind:
                say(f"  {name} = {setting(entry['value'])}")
                allowed = f" ({entry['allowed']})" if kind == "config" else ""
                say(f"      {entry['meaning']}{allowed}")
