"""`engine doctor`: what is here, what is wrong, and how to mend it."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from engine.cli.options import add_json, amount
from engine.cli.output import print_json, print_table, say
from engine.drawing.table import byte_count, count

if TYPE_CHECKING:
    from engine.cli.health import HealthReport

SUMMARY = "say what is here, what is wrong, and how to mend it"
DESCRIPTION = """\
Show the machine, the versions, the devices and the caches of the engine, and try each device on a small model, in a
process of its own, which a driver may crash or block. Each problem has a line that says how to mend it; notes are about
settings that one may have forgotten. The exit code is 1 if there is a problem.
"""
EXAMPLES = """\
engine doctor                  # examine everything
engine doctor -d CPU           # only this device; it is a problem if its plugin is not installed
engine doctor --json -d CPU    # for programs, such as the health check of a container
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
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Examine, and report."""
    from engine.cli.health import examine

    report = examine(args.device, args.limit)
    if args.json:
        print_json(report.to_json())
    else:
        _print(report)
    return 0 if report.is_healthy else 1


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
        say(f"cache     {cache.path}: {count(cache.files, 'file')}, {byte_count(cache.byte_size)}")
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
        say(f"  to mend it: {finding.remedy}" if finding.level == "problem" else f"  {finding.remedy}")
    if report.is_healthy:
        say("\nno problem was found")
