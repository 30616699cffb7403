"""Models that exporters write for constructs that need special code in them, and whether they run here.

    pip install torch onnxscript skl2onnx onnxmltools lightgbm xgboost catboost pandas onnxruntime onnxconverter-common
    python benchmarks/exporters.py write FOLDER     # in an environment of its own; missing packages are skipped
    python benchmarks/exporters.py check FOLDER --write docs/exporters.md     # in this project's

nncf wants an environment of its own, in which `write` adds to the folder.

`write` needs nothing of the engine, and downloads nothing. `check` compares with what the original computed, or with
onnxruntime for quantizers, on CPU and TEMPLATE.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from pathlib import Path

_ROOMS = ("of_torch", "of_onnxscript", "of_sklearn", "of_trees", "of_quantizers", "of_nncf")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    write, check = commands.add_parser("write"), commands.add_parser("check")
    for each in (write, check):
        each.add_argument("folder", type=Path)
        each.add_argument("--only", default="", help="constructs whose exporters begin so, separated by commas")
    check.add_argument("--devices", default="CPU,TEMPLATE")
    check.add_argument("--write", type=Path, metavar="PAGE", help="replace the tables of what was checked in this page")
    options = parser.parse_args()
    return write_all(options) if options.command == "write" else check_all(options)


def write_all(options: argparse.Namespace) -> int:
    """Export all constructs whose packages are installed."""
    from constructs import construct

    for room in _ROOMS:
        try:
            importlib.import_module(f"constructs.{room}")
        except ImportError as e:
            print(f"left out, {room.removeprefix('of_')}: {e}")
    return 1 if construct.write_all(options.folder, options.only) else 0


def check_all(options: argparse.Namespace) -> int:
    """Check the files that were written."""
    from constructs.check import check, entries_of
    from constructs.report import page_with

    found = []
    for entry in entries_of(options.folder):
        if entry["exporter"].startswith(tuple(options.only.split(","))):
            found.append(check(options.folder, entry, options.devices.split(",")))
            print(f"{found[-1].exporter}: {found[-1].name}: {found[-1].text}", flush=True)
    if options.write is not None:
        options.write.write_text(page_with(options.write.read_text(), found))
    return 0 if all(each.is_right for each in found) else 1


if __name__ == "__main__":
    sys.exit(main())
