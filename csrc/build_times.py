"""Measures the cost of a clean build of the native core: the CPU time of the compiler for each object.

    python csrc/build_times.py                     # this checkout
    python csrc/build_times.py main --jobs 2       # another revision, then this checkout
    ENGINE_ISAS=all python csrc/build_times.py

Builds in a temporary folder, one object at a time by default: beside other processes, a compiler takes more CPU time.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shlex
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def main() -> int:
    """Print a table of the groups of objects, and the slowest objects; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("revision", nargs="?", help="what to compare with: a commit or a branch")
    parser.add_argument("--jobs", type=int, default=1, help="compilers that run at once (default: 1)")
    options = parser.parse_args()
    measured: dict[str, dict[str, float]] = {}
    if options.revision:
        with _checkout(options.revision) as tree:
            measured[options.revision] = measure(tree, options.jobs)
    measured["this checkout"] = measure(ROOT, options.jobs)
    _print_groups(measured)
    slowest = sorted(measured["this checkout"].items(), key=lambda item: -item[1])[:10]
    print("\nslowest objects of this checkout:", *(f"{seconds:6.1f} s  {name}" for name, seconds in slowest), sep="\n")
    return 0


def measure(tree: Path, jobs: int) -> dict[str, float]:
    """Compile the checkout `tree`; return the seconds of each object, by its path in the folder of objects."""
    with tempfile.TemporaryDirectory() as folder:
        log, objects = Path(folder) / "times", Path(folder) / "objects"
        wrapper = [sys.executable, str(Path(__file__).resolve()), "--compile", str(log)]
        compiler = shlex.split(os.environ.get("CXX") or "g++")
        environment = os.environ | {
            "CXX": shlex.join([*wrapper, *compiler]),
            "ENGINE_BUILD_OBJECTS": str(objects),
            "ENGINE_BUILD_JOBS": str(jobs),
        }
        build = ["setup.py", "build_ext", "--build-lib", f"{folder}/lib", "--build-temp", f"{folder}/temp"]
        subprocess.run([sys.executable, *build], cwd=tree, env=environment, check=True, stdout=subprocess.DEVNULL)
        times: dict[str, float] = {}
        for line in log.read_text(encoding="utf-8").splitlines():
            seconds, _, path = line.partition(" ")
            if path.endswith(".gch"):
                times[f"headers/{len(times)}"] = float(seconds)
            elif path.endswith(".o"):  # relative to the platform's folder
                times["/".join(Path(path).relative_to(objects).parts[1:])] = float(seconds)
        return times


def group_of(name: str) -> str:
    """The group of an object: its instruction set if it is a kernel, otherwise its folder."""
    folder, _, rest = name.partition("/")
    kernels_of = rest.partition("/")[0]
    if folder != "kernels":
        return folder
    return kernels_of if kernels_of == "prepare" else f"kernels, {kernels_of}"


def _print_groups(measured: dict[str, dict[str, float]]) -> None:
    totals: dict[str, defaultdict[str, float]] = {title: defaultdict(float) for title in measured}
    for title, times in measured.items():
        for name, seconds in times.items():
            totals[title][group_of(name)] += seconds
    groups = sorted(set().union(*totals.values()), key=lambda group: -max(total[group] for total in totals.values()))
    print(f"{'CPU seconds':24}", *(f"{title[:14]:>14}" for title in measured))
    for group in groups:
        print(f"{group:24}", *(f"{total[group]:14.1f}" for total in totals.values()))
    print(f"{'all':24}", *(f"{sum(total.values()):14.1f}" for total in totals.values()))


@contextlib.contextmanager
def _checkout(revision: str) -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "tree"
        git = ["git", "-C", str(ROOT), "worktree"]
        subprocess.run([*git, "add", "--quiet", "--detach", str(tree), revision], check=True)
        try:
            yield tree
        finally:
            subprocess.run([*git, "remove", "--force", str(tree)], check=True)


def compile_timed(log: str, command: list[str]) -> int:
    """Run a compiler; append the CPU time of it and its children, and its output's path, to the log."""
    process = os.spawnvp(os.P_NOWAIT, command[0], command)
    _, status, usage = os.wait4(process, 0)
    if "-o" in command:
        with Path(log).open("a", encoding="utf-8") as file:
            file.write(f"{usage.ru_utime + usage.ru_stime:.3f} {command[command.index('-o') + 1]}\n")
    return os.waitstatus_to_exitcode(status)


if __name__ == "__main__":
    sys.exit(compile_timed(sys.argv[2], sys.argv[3:]) if sys.argv[1:2] == ["--compile"] else main())
