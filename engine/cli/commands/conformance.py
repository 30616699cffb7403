"""`engine conformance`: how well a device keeps the contract."""

from __future__ import annotations

import argparse

from engine.cli.options import amount, device_name, positive

SUMMARY = "score a device by the checks that every plugin must pass"
DESCRIPTION = """\
Run all checks of the conformance kit that apply to a device's claims, and print a score for each area, the faults to
fix first, and the checks that did not apply. Checks run in a process of their own: a plugin that crashes, exits or
hangs fails one check. A matrix shows which operators are right in which element types. Needs the extra `plugin`:
pip install "engine-sdk[plugin]". The exit code is 0 for full marks, 1 otherwise; with --against, it is 0 if nothing
became worse since the earlier report, 1 otherwise.
"""
EXAMPLES = """\
engine conformance ACME                                    # all checks, and the score
engine conformance ACME -k export                          # the checks with this in their names
engine conformance ACME --json score.json --html page.html # write reports
engine conformance ACME --against score.json               # what became better and worse since
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "device", metavar="DEVICE", type=device_name, help="the device, such as ACME or HETERO:ACME,CPU"
    )
    parser.add_argument(
        "-k", dest="checks", metavar="NAMES", default="", help="only checks whose names fit, as pytest -k"
    )
    parser.add_argument(
        "--full", action="store_true", help="checks of memory run 1,000 compilations and 10,000 inferences"
    )
    parser.add_argument(
        "--limit", metavar="SECONDS", type=amount, default=60.0, help="how long a check may wait (default: 60)"
    )
    parser.add_argument("--jobs", metavar="N", type=positive, default=1, help="run checks in N processes (default: 1)")
    parser.add_argument("--json", metavar="FILE", help="write the score and all results as JSON")
    parser.add_argument("--html", metavar="FILE", help="write them as an HTML page")
    parser.add_argument(
        "--against",
        metavar="FILE",
        help="an earlier report, written by --json: print which checks and scores became better and worse",
    )


def run(args: argparse.Namespace) -> int:
    """Run the checks, and print and write the score."""
    from engine.cli.networks import require_folder
    from engine.testing.conformance.running import ConformanceOptions, run_conformance

    for path in filter(None, (args.json, args.html)):
        require_folder(path)
    options = ConformanceOptions(
        args.device, args.limit, args.full, args.checks, args.jobs, args.json, args.html, args.against
    )
    return run_conformance(options)
