"""`engine doctor` finds what does not work, names it, says how to fix it, and survives what it examines."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engine.cli.health import Level, examine
from engine.cli.health.devices import examine_devices
from engine.cli.health.surroundings import VARIABLES, examine_caches, examine_variables
from engine.hosting import API_VERSION

ROOT = Path(__file__).parents[2]
Install = Callable[[str, str], None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Install a plugin: the device's name, and the code of its module, which begins as TEMPLATE's plugin."""
    site = tmp_path / "site"
    monkeypatch.syspath_prepend(str(site))

    def install(name: str, code: str) -> None:
        info = site / f"{name.lower()}_device-1.2.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name.lower()}-device\nVersion: 1.2\n")
        (info / "entry_points.txt").write_text(f"[engine.plugins]\n{name} = {name.lower()}_device:Device\n")
        head = f"import os, time\nfrom engine_template import TemplatePlugin\nNAME = {name!r}\n"
        (site / f"{name.lower()}_device.py").write_text(head + code)

    return install


DEVICE = "class Device(TemplatePlugin):\n    name = NAME\n    "


def test_what_works_has_no_findings() -> None:
    plugins, findings = examine_devices(["TEMPLATE", "CPU"])
    assert findings == []
    assert [(plugin.name, plugin.error) for plugin in plugins] == [("CPU", ""), ("TEMPLATE", "")]
    (device,) = plugins[1].devices
    assert (device.device, device.error) == ("TEMPLATE", "")
    assert device.name
    assert plugins[1].distribution.startswith("engine-plugin-template ")


def test_what_a_plugin_warns_of_is_a_note(install: Install) -> None:
    warning = 'logging.getLogger("engine.warner").warning("the %s is missing", "licence")'
    install("WARNER", f"import logging\n{warning}\n{DEVICE}pass\n")
    _, (finding,) = examine_devices(["WARNER"])
    assert (finding.level, finding.about, finding.found) == (Level.NOTE, "WARNER", "it warns: the licence is missing")


def test_a_plugin_for_the_api_before_is_a_note(install: Install) -> None:
    """Its user has to update it before the engine."""
    install("ELDER", DEVICE + f"api_version = {API_VERSION - 1}")
    (plugin,), (finding,) = examine_devices(["ELDER"])
    assert [each.error for each in plugin.devices] == [""]
    assert (finding.level, finding.about) == (Level.NOTE, "ELDER")
    assert finding.found.startswith(f"it works with this engine, but it was written for plugin API {API_VERSION - 1}")
    assert finding.remedy == "install a newer elder-device before the next engine, or ask its author for one"


@pytest.mark.slow
def test_a_device_that_runs_on_others_is_tried_on_those_that_work() -> None:
    plugins, findings = examine_devices(["BATCH", "CPU", "HETERO", "TEMPLATE"])
    assert findings == []
    tried = ["BATCH:CPU", "CPU", "HETERO:CPU,TEMPLATE", "TEMPLATE"]
    assert [device.device for plugin in plugins for device in plugin.devices] == tried


@pytest.mark.parametrize(
    ("code", "problem"),
    [
        ("raise RuntimeError('no driver 7')", "no driver 7"),
        ("import absent_module", "absent_module"),
        ("os.kill(os.getpid(), 11)", "ended by SIGSEGV"),
        ("os._exit(3)", "exit code 3"),
        ("time.sleep(600)", "took longer than 4 s"),
        (DEVICE + "def device_ids(self):\n        return []", "finds no device"),
        (DEVICE + "def device_ids(self):\n        os.kill(os.getpid(), 6)", "ended by SIGABRT"),
        (DEVICE + "api_version = 'engine-0'", "engine-0"),
        (DEVICE + "api_version = 99", "written for plugin API 99, and this engine runs plugins for API"),
    ],
)
def test_a_plugin_that_cannot_be_used(install: Install, code: str, problem: str) -> None:
    install("BROKEN", code)
    plugins, findings = examine_devices(["BROKEN"], limit=4.0 if "sleep" in code else 120.0)
    assert [(finding.level, finding.about) for finding in findings] == [(Level.PROBLEM, "BROKEN")]
    assert problem in findings[0].found
    assert "broken-device" in findings[0].remedy
    assert [(plugin.name, plugin.devices) for plugin in plugins] == [("BROKEN", ())]


@pytest.mark.parametrize(
    ("hook", "problem"),
    [
        ("raise ValueError('no memory 9')", "no memory 9"),
        ("os.kill(os.getpid(), 11)", "ended by SIGSEGV"),
        ("from engine import ops; x, = model.parameters; node, = model.results; return super().compile_model("
         "type(model)([ops.Neg(x, friendly_name='y')], [x]), config)", "wrong result"),
    ],
)  # fmt: skip
def test_a_device_that_does_not_compute(install: Install, hook: str, problem: str) -> None:
    install("WRONG", f"{DEVICE}def compile_model(self, model, config):\n        {hook}")
    _, findings = examine_devices(["WRONG"])
    (finding,) = findings
    assert finding.level is Level.PROBLEM
    assert finding.about == "WRONG"
    assert problem in finding.found


def test_a_plugin_that_crashes_does_not_keep_others_from_being_tried(install: Install) -> None:
    install("BROKEN", "os.kill(os.getpid(), 11)")
    plugins, findings = examine_devices(["BROKEN", "TEMPLATE"])
    assert [finding.about for finding in findings] == ["BROKEN"]
    assert [device.device for plugin in plugins for device in plugin.devices] == ["TEMPLATE"]


def test_a_device_that_is_not_installed_is_a_problem() -> None:
    report = examine(["ABSENT"])
    assert not report.is_healthy
    assert [finding.about for finding in report.findings if finding.level is Level.PROBLEM] == ["ABSENT"]
    assert report.machine.cores >= 1
    assert 0 < report.machine.available_memory <= report.machine.memory


def test_without_the_native_core_it_says_so() -> None:
    code = (
        "import sys; sys.modules['engine._core'] = None\n"
        "from engine.cli.main import main; sys.exit(main(['doctor', '--json']))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 1, done.stderr
    found = json.loads(done.stdout)
    assert found["healthy"] is False
    problems = [each for each in found["findings"] if each["level"] == "problem"]
    assert [each["about"] for each in problems] == ["native core"]
    assert "engine._core" in problems[0]["found"]


def test_a_cache_that_others_can_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = tmp_path / "engine-opencl"
    folder.mkdir(mode=0o700)
    (folder / "program").write_bytes(bytes(100))
    caches, findings = examine_caches()
    assert [(cache.path, cache.files, cache.byte_size) for cache in caches] == [(str(folder), 1, 100)]
    assert findings == []
    folder.chmod(0o777)
    _, findings = examine_caches()
    assert [(finding.level, finding.about) for finding in findings] == [(Level.PROBLEM, str(folder))]
    assert "chmod" in findings[0].remedy


def test_variables_are_named_with_what_they_do(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("ENGINE_")]:
        monkeypatch.delenv(name)
    assert examine_variables() == []
    monkeypatch.setenv("ENGINE_MAX_ISA", "avx2")
    monkeypatch.setenv("ENGINE_MAXISA", "avx2")
    unknown, known = examine_variables()
    assert (unknown.level, unknown.about, unknown.remedy) == (
        Level.NOTE,
        "ENGINE_MAXISA",
        "did you mean ENGINE_MAX_ISA?",
    )
    assert "instruction set" in known.found


def test_the_list_of_variables_is_that_of_the_sources() -> None:
    sources = [*ROOT.glob("engine/**/*.py"), *ROOT.glob("plugins/*/src/**/*.py"), *ROOT.glob("csrc/**/*.[ch]pp")]
    sources += [*ROOT.glob("apps/*/src/**/*.py"), ROOT / "setup.py", *ROOT.glob("csrc/*.py")]
    named = re.compile(r"""["'](ENGINE_[A-Z_]+)["']""")
    read = {
        name
        for source in sources
        if "health" not in source.parts
        for line in source.read_text(encoding="utf-8").splitlines()
        if not line.lstrip().startswith("#define")
        for name in named.findall(line)
    }
    assert read == set(VARIABLES)


def test_the_report_is_complete_and_fits_a_terminal(tmp_path: Path) -> None:
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
    command = [sys.executable, "-m", "engine", "doctor", "-d", "TEMPLATE"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120, env=environment)
    assert (done.returncode, done.stderr) == (0, "")
    assert "no problem was found" in done.stdout
    assert re.search(r"^TEMPLATE +\d", done.stdout, re.MULTILINE)
    found: dict[str, Any] = json.loads(subprocess.run([*command, "--json"], capture_output=True, check=True).stdout)
    assert found["healthy"] is True
    assert found["plugins"][0]["devices"][0]["device"] == "TEMPLATE"
