"""`run_conformance`: runs the checks in processes of their own, and returns the scorecard."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from engine.errors import PluginError
from engine.startup import dataclass
from engine.testing.conformance.against import read_earlier
from engine.testing.conformance.last_hook import running_hook, while_running

_NEEDED: Final = ("pytest", "xdist", "pytest_timeout", "jinja2")
_CREATE: Final = """
import sys
from pathlib import Path
from engine.testing.conformance.hooks import HookWatch
HookWatch(Path(sys.argv[2])).install()
from engine.testing.conformance.description import describe
print("", describe(sys.argv[1]), sep="\\n")
"""
_CREATION_LIMIT: Final = 120.0
_RESTARTS: Final = 200
_REPORT_LIMIT: Final = 30.0
"""The seconds that an interrupted run has for writing its reports."""


@dataclass(frozen=True, slots=True)
class ConformanceOptions:
    """The checks to run, and the reports to write.

    Attributes:
        device: the device string.
        limit: how long a check may wait for the device, in seconds.
        is_full: whether checks of memory run 1,000 compilations and 10,000 inferences instead of a part of them.
        checks: an expression over the names of checks, as pytest's `-k`; all if empty.
        jobs: how many processes run checks.
        json: where to write the results as JSON, if anywhere.
        html: where to write them as a page, if anywhere.
        against: the file of an earlier report to compare with, if any.
    """

    device: str
    limit: float = 60.0
    is_full: bool = False
    checks: str = ""
    jobs: int = 1
    json: str | None = None
    html: str | None = None
    against: str | None = None


def run_conformance(options: ConformanceOptions) -> int:
    """Run the checks and print the score; returns 0 for full marks and 1 otherwise.

    With an earlier report, it returns 0 if nothing became worse since, and 1 otherwise: see `Changes`.

    Raises `InputError` if that is no such report, and `PluginError` if the device cannot be created, if no check has
    the name, or without the extra `plugin`.
    """
    if missing := [name for name in _NEEDED if find_spec(name) is None]:
        raise PluginError(
            f"the conformance kit needs {', '.join(missing)}, which the extra `plugin` installs: "
            'pip install "engine-sdk[plugin]"'
        )
    if options.against is not None:
        read_earlier(options.against)
    code = _run(_command(options, _describe(options.device)))
    if code in (0, 1, 2):  # passed, failed, ended early
        return min(code, 1)
    if code == 5:
        raise PluginError(f"no check has a name that fits {options.checks!r}")
    raise PluginError(f"pytest could not run the checks: it ended with exit code {code}")


def _run(command: list[str]) -> int:
    """Run pytest to its end; an interrupt ends the checks, and what was found until then is reported."""
    # In a group of its own, so that a terminal interrupts this process only, which interrupts the other once. With
    # SIGINT blocked, so that this waits until pytest has begun its session.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        process = subprocess.Popen(command, process_group=0)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    with process:
        try:
            return process.wait()
        except BaseException:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(_REPORT_LIMIT)
            except subprocess.TimeoutExpired:
                process.kill()
            raise


def _describe(device: str) -> str:
    """Create the device in another process first: if that fails, so would every check. Returns its description."""
    with tempfile.TemporaryDirectory(prefix="engine-conformance-") as folder:
        hook = Path(folder) / "hook"
        try:
            done = subprocess.run(
                [sys.executable, "-c", _CREATE, device, str(hook)],
                capture_output=True,
                text=True,
                timeout=_CREATION_LIMIT,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise PluginError(
                f"creating {device} did not end within {_CREATION_LIMIT:g} s: {while_running(running_hook(hook))}"
            ) from None
        if done.returncode:
            lines = done.stderr.strip().splitlines()
            ended = f"the process ended with exit code {done.returncode} {while_running(running_hook(hook))}"
            raise PluginError(f"{device} cannot be created: {lines[-1] if lines else ended}")
        return done.stdout.splitlines()[-1]  # the plugin may have printed others


def _command(options: ConformanceOptions, description: str) -> list[str]:
    ini = Path(__file__).with_name("pytest.ini")
    command = [sys.executable, "-m", "pytest", "-c", str(ini), f"--rootdir={ini.parent}", "-q", "--no-header"]
    command += ["-p", "engine.testing.conformance.interrupts"]
    command += ["--engine-device", options.device, f"--engine-description={description}"]
    command += ["--engine-progress", "--tb=no", "--no-summary"]
    command += ["--engine-limit", str(options.limit)]
    command += ["-n", str(options.jobs), "--max-worker-restart", str(_RESTARTS)]
    command += ["-p", "no:hypothesispytest"]  # which imports hypothesis at the end, if it is installed
    if options.is_full:
        command.append("--engine-full")
    if options.checks:
        command += ["-k", options.checks]
    files = (("--engine-json", options.json), ("--engine-html", options.html), ("--engine-against", options.against))
    for name, path in files:
        if path is not None:
            command += [name, os.path.abspath(path)]
    return command
