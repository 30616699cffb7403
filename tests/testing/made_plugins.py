"""Plugins that the scaffold writes, made importable without pip: what tests of scaffold and kit share."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from engine.testing.scaffold import PluginPlan, new_plugin

SOME_CHECKS = "basic or after_export or strided or concurrent or left_out or cached"
"""Of the conformance kit's checks those that run by default on plugins made here; the slow tests run all."""


def make(plan: PluginPlan, folder: Path) -> Path:
    """Write the plugin, build its native kernels if it has any, and describe it as installed; gives its folder."""
    made = new_plugin(plan, folder / plan.distribution)
    source = made / "src"
    if plan.is_native:
        done = subprocess.run(
            [sys.executable, "setup.py", "-q", "build_ext", "--build-lib", str(source)],
            cwd=made,
            env={**os.environ, "CFLAGS": "-O0 -g0"},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
    describe(plan, made)
    return made


def describe(plan: PluginPlan, folder: Path) -> None:
    """Describe the plugin as pip does when it installs one."""
    info = folder / "src" / f"{plan.package}-0.1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {plan.distribution}\nVersion: 0.1.0\n")
    entry = f"{plan.device} = {plan.package}:{plan.prefix}Plugin"
    (info / "entry_points.txt").write_text(f"[engine.plugins]\n{entry}\n")


def run(
    folders: list[Path], *command: str, cwd: Path | None = None, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run Python with plugins on its path."""
    with start(folders, *command, cwd=cwd, **environment) as process:
        try:
            out, err = process.communicate(timeout=600)
        except BaseException:
            process.kill()
            raise
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def start(folders: list[Path], *command: str, cwd: Path | None = None, **environment: str) -> subprocess.Popen[str]:
    """Start Python with plugins on its path."""
    paths = [str(folder / "src") for folder in folders] + [path for path in sys.path if path]
    return subprocess.Popen(
        [sys.executable, *command],
        cwd=cwd or folders[0],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
