"""Real exports of many architectures: makes them, and checks this engine's results for them.

    pip install torch torchvision transformers timm diffusers onnxscript skl2onnx lightgbm xgboost onnxmltools
    python benchmarks/exports.py make FOLDER --scale 4            # in that environment; some ten minutes
    python benchmarks/exports.py make FOLDER --only keras_        # in one with tensorflow-cpu and tf2onnx
    python benchmarks/exports.py check FOLDER                     # in this project's: results, nodes
    python benchmarks/exports.py check FOLDER --times --write docs/models.md

`make` needs nothing of the engine, and downloads nothing: definitions of the libraries are built with seeded weights.
`check` compares every network on CPU with onnxruntime, at the lengths of the export and at others, counts the nodes
that are not native, and with `--times` measures onnxruntime and openvino beside it. Findings are kept in
FOLDER/results.json, from which the page is written.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    make = commands.add_parser("make", help="export the recipes")
    check = commands.add_parser("check", help="compare with onnxruntime, count nodes, measure")
    for each in (make, check):
        each.add_argument("folder", type=Path)
        each.add_argument("--only", default="", help="names that begin so, separated by commas")
    make.add_argument("--exporters", default="", help="only these, separated by commas")
    make.add_argument("--scale", type=int, default=1, help="1: as small as the structure allows; 4 to measure")
    check.add_argument("--device", default="CPU")
    check.add_argument("--times", action="store_true", help="also measure onnxruntime and openvino")
    check.add_argument("--write", type=Path, metavar="PAGE", help="replace the table in this page")
    options = parser.parse_args()
    return make_all(options) if options.command == "make" else check_all(options)


def make_all(options: argparse.Namespace) -> int:
    """Export, and report each network."""
    from exporting.export import NotExportedError, export
    from exporting.recipes.all_recipes import RECIPES

    options.folder.mkdir(parents=True, exist_ok=True)
    failed = 0
    for recipe in RECIPES.values():
        if not recipe.name.startswith(tuple(options.only.split(","))):
            continue
        for exporter in recipe.exporters:
            if options.exporters and exporter not in options.exporters.split(","):
                continue
            try:
                path = export(recipe, exporter, options.folder, options.scale)
                print(f"{path.name}: {path.stat().st_size / 1e3:.0f} kB", flush=True)
            except NotExportedError as e:
                failed += 1
                print(f"{recipe.name}.{exporter}: not exported: {e}", flush=True)
    return 1 if failed else 0


def check_all(options: argparse.Namespace) -> int:
    """Check, and report each network that is not right or not native."""
    from exporting.check import check, inputs_of
    from exporting.recipes.all_recipes import RECIPES
    from exporting.report import page_with, read_json, write_json
    from exporting.times import milliseconds

    from engine import Core

    core, kept = Core(), options.folder / "results.json"
    found = {each.name: each for each in read_json(kept)}
    for path in sorted(options.folder.glob("*.onnx")):
        if not path.name.startswith(tuple(options.only.split(","))):
            continue
        each = check(path, core, options.device)
        found[each.name] = each
        if options.times and not each.problem:
            each.milliseconds = milliseconds(path, inputs_of(path))
        slow = sum(each.others.values())
        print(f"{each.name}: {each.problem or 'right'}, error {each.error:.1e} of {each.tolerance:.1e}, "
              f"{each.nodes - slow} of {each.nodes} native"
              f"{f', also at other lengths ({each.lengths})' if each.lengths else ''}", flush=True)  # fmt: skip
        for (operator, reason), count in each.others.most_common():
            print(f"    {count} {operator}: {reason[:200]}", flush=True)
    write_json(kept, list(found.values()))
    if options.write is not None:
        options.write.write_text(page_with(options.write.read_text(), list(found.values()), RECIPES))
    return 1 if any(each.problem and "onnxruntime" not in each.problem for each in found.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
