"""`engine doctor`: what is installed, what is wrong, and how to fix it."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from typing import TYPE_CHECKING

from engine.cli.options import add_json, amount
from engine.cli.output import print_json, print_table, say
from engine.drawing.table import byte_count, count

if TYPE_CHECKING:
    from engine.cli.health import HealthReport

SUMMARY = "report what is installed, what is wrong, and how to fix it"
DESCRIPTION = """\
Show the machine, the versions, the devices and the caches of the engine, and try each device on a small model, in a
process of its own, which a driver may crash or block. Each problem has a line that says how to fix it; notes are about
settings that one may have forgotten. The exit code is 1 if there is a problem.
"""
EXAMPLES = """\
engine doctor                  # examine everything
engine doctor -d CPU           # only this device; it is a problem if its plugin is not installed
engine doctor --json -d CPU    # for programs, such as the health check of a container
engine doctor --clear-cache    # only delete the networks that were cached without CACHE_DIR
"""
_LIMIT = 120.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-d",
        "--device",
        metavar="NAME",
        action="append",
        default=[],
        help="examine only this plugin, such as OPENCL, with all its devices; may be given several times",
    )
    parser.add_argument(
        "--limit",
        metavar="SECONDS",
        type=amount,
        default=_LIMIT,
        help=f"how long the trial of a plugin may take (default: {_LIMIT:g})",
    )
    parser.add_argument(
        "--clear-cache",
        action="store_true",
        help="delete the cached networks of models in files, and examine nothing; other caches stay",
    )
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Examine and report, or delete the cached networks."""
    if args.clear_cache:
        return _clear_cache(args)
    from engine.cli.health import examine

    report = examine(args.device, args.limit)
    if args.json:
        print_json(report.to_json())
    else:
        _print(report)
    return 0 if report.is_healthy else 1


def _clear_cache(args: argparse.Namespace) -> int:
    from engine.core.cache import CacheContents, CompileCache, user_cache

    folder = user_cache()
    deleted = CompileCache(folder).clear() if folder else CacheContents("", 0, 0)
    if args.json:
        print_json(asdict(deleted))
    elif folder:
        say(f"{folder}: {count(deleted.networks, 'network')} deleted, {byte_count(deleted.byte_size)}")
    else:
        say("networks of models in files are not cached: ENGINE_CACHE_DIR is empty")
    return 0


def _print(report: HealthReport) -> None:
    machine = report.machine
    versions = ", ".join(f"{name} {version}" for name, version in machine.versions.items() if version)
    say(f"versions  {versions}, Python {machine.python}")
    say(f"system    {machine.system}")
    if machine.isa:
        say(f"CPU       {machine.cpu}; {count(machine.cores, 'core')}")
        say(f"kernels   for {machine.isa}, of {', '.join(machine.isas)}")
    say(f"memory    {byte_count(machine.available_memory)} of {byte_count(machine.memory)} available")
    for cache in report.caches:
        networks = f"{count(cache.networks, 'network')}, " if cache.networks else ""
        say(f"cache     {cache.path}: {networks}{count(cache.files, 'file')}, {byte_count(cache.byte_size)}")
    devices = [(plugin, device) for plugin in report.plugins for device in plugin.devices]
    if devices:
        say()
        rows = [
            (
                device.device,
                plugin.distribution.rpartition(" ")[2],
                "FAILS" if device.error else f"{device.seconds:.2f} s",
                device.name,
            )
            for plugin, device in devices
        ]
        print_table(rows, ("DEVICE", "VERSION", "TRIAL", "NAME"))
    for finding in report.findings:
        say(f"\n{finding.level}: {finding.about}: {finding.found}")
        say(f"  to fix it: {finding.remedy}" if finding.level == "problem" else f"  {finding.remedy}")
    if report.is_healthy:
        say("\nno problem was found")
