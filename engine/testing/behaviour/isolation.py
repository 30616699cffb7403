"""Checks of what a device must leave alone: other cores, the process and its output, the working directory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, ClassVar, Final

import numpy as np
import pytest
from onnx import numpy_helper

from engine.core import Core
from engine.errors import EngineError, PropertyError
from engine.startup import dataclass
from engine.testing.behaviour.base import DeviceChecks
from engine.testing.behaviour.cases import CASES

_PROGRAM: Final = Path(__file__).with_name("observed_process.py")
_CONSTANTS: Final = next(case for case in CASES if case.name == "elementwise")
_observed: Final[dict[tuple[str, str], _Observed]] = {}
"""Observations, by device string and configuration: a process takes a second to start."""


@dataclass(frozen=True, slots=True)
class _Observed:
    """The output, files and changes of a process that used the device."""

    stdout: str
    stderr: str
    files: list[str]
    changes: dict[str, list[str]]
    threads: list[str]


class IsolationChecks(DeviceChecks):
    """A device affects neither other cores nor the process; it only returns results."""

    area: ClassVar[str] = "isolation"

    def test_cores_have_properties_of_their_own(self) -> None:
        """A setting in one core is not seen in another, nor by its networks."""
        first, second = self.make_core(), self.make_core()
        before = {name: second.get_property(self.device, name) for name in ("NUM_STREAMS", "PERF_COUNT")}
        first.set_property(self.plugin_name, {"NUM_STREAMS": 3, "PERF_COUNT": True})
        networks = [core.compile_model(self.basic.model(), self.device, dict(self.config)) for core in (first, second)]
        assert networks[0] is not networks[1], "two cores share one network"
        assert networks[0].plugin is not networks[1].plugin, "two cores share one plugin object"
        for name, value in before.items():
            assert second.get_property(self.device, name) == value, f"{name}, set in one core, is seen in another"
            if name not in self.config:
                got = networks[1].get_config(name)
                assert got == value, f"{name}, set in one core, is seen by a network of another"
        request = networks[1].create_infer_request()
        request.infer(self.basic.sample().inputs)
        assert not request.profiling_info.nodes, "PERF_COUNT of one core has an effect in another"

    def test_cores_have_networks_of_their_own(self) -> None:
        """Networks of two cores, of one name and with other constants, do not get each other's results."""
        cores = self.make_core(), self.make_core()
        network, other = (core.compile_model(self.basic.model(), self.device, dict(self.config)) for core in cores)
        requests = [network.create_infer_request(), other.create_infer_request()]
        for seed in range(3):
            for shift, request in enumerate(requests):
                request.start_async(self.basic.sample(seed + shift).inputs)
            for shift, request in enumerate(requests):
                request.wait(self.limit)
                self.assert_outputs(request.results, self.basic.sample(seed + shift).outputs)
        assert network is not other, "two cores share one network"
        assert network.task_executor is not other.task_executor, "networks of two cores share one task executor"

    def test_networks_have_constants_of_their_own(self, core: Core) -> None:
        """Two models of one name and structure whose constants differ are two networks, in one core and in two."""
        case = _CONSTANTS
        network = self.compile_or_skip(core, case)
        changed = type(case.model)()
        changed.CopyFrom(case.model)
        for constant in changed.graph.initializer:
            constant.CopyFrom(numpy_helper.from_array(np.zeros_like(numpy_helper.to_array(constant)), constant.name))
        sample = case.samples[0]
        for other_core in (core, self.make_core()):
            result = self.compile(other_core, changed)(sample.inputs)
            for name, value in sample.outputs.items():
                is_same = np.array_equal(result[name], value)
                assert not is_same, f"output `{name}` was computed with the constants of another network"
            self.assert_outputs(network(sample.inputs), sample.outputs)

    def test_failures_stay_in_their_core(self, core: Core) -> None:
        """Refused models, values and blobs leave the core usable, and other cores and networks as they were."""
        network, sample = self.compile(core, self.basic.model()), self.basic.sample()
        failing = self.make_core()
        unknown = self.basic.model()
        unknown.graph.node[0].op_type = "NoSuchOperator"
        attempts = (
            lambda: failing.compile_model(unknown, self.device, dict(self.config)),
            lambda: failing.compile_model(self.basic.model(), self.device, {"NUM_STREAMS": -1}),
            lambda: failing.set_property(self.plugin_name, {"NO_SUCH_KEY": 1}),
            lambda: failing.import_model(b"no blob", self.device),
        )
        for attempt in attempts:
            with pytest.raises((EngineError, PropertyError)):
                attempt()
            self.assert_outputs(network(sample.inputs), sample.outputs)
            self.check_basic(failing)
        self.check_basic(self.make_core())

    def test_network_outlives_its_core(self) -> None:
        """An application may keep only the network, while it and others drop their cores."""
        core, other = self.make_core(), self.make_core()
        network = self.compile(core, self.basic.model())
        self.check_basic(other)
        del core, other
        self.check_usable(network.create_infer_request(), self.basic.sample())

    def test_nothing_is_printed(self, tmp_path: Path) -> None:
        """Standard output and error belong to the application; a device logs."""
        observed = self._observe(tmp_path)
        assert observed.stdout == "", f"standard output has {observed.stdout!r:.300}"
        assert observed.stderr == "", f"standard error has {observed.stderr!r:.300}"

    def test_no_files_are_left_in_the_working_directory(self, tmp_path: Path) -> None:
        """Files go where a property says, or into the user's cache folder."""
        left = self._observe(tmp_path).files
        assert not left, f"these files appeared in the working directory: {left}"

    def test_process_state_is_not_changed(self, tmp_path: Path) -> None:
        """Directory, environment, signals, locale, warnings, numpy's settings, subnormal numbers, random state."""
        changes = self._observe(tmp_path).changes
        listed = "; ".join(f"{name} was {before}, is {after}" for name, (before, after) in changes.items())
        assert not changes, f"the process was changed: {listed}"

    def test_networks_leave_no_threads(self, tmp_path: Path) -> None:
        """Threads of networks end with them; the number of the device's threads does not grow with each network."""
        left = self._observe(tmp_path).threads
        assert not left, f"after networks were compiled, used and dropped, these threads remain: {left}"

    def _observe(self, folder: Path) -> _Observed:
        """Observe a process that compiles, infers and drops everything; once for a device."""
        key = self.device, repr(dict(self.config))
        if key not in _observed:
            _observed[key] = self._run(folder)
        return _observed[key]

    def _run(self, folder: Path) -> _Observed:
        work, report, model = folder / "work", folder / "report.json", folder / "basic.onnx"
        work.mkdir()
        model.write_bytes(self.basic.model().SerializeToString())
        shapes = json.dumps(list(self.basic.shape))
        command = [sys.executable, str(_PROGRAM), str(report), str(model), self.device, json.dumps(dict(self.config))]
        done = subprocess.run(
            [*command, shapes, str(self.limit)],
            capture_output=True,
            text=True,
            timeout=self.limit + 60,
            cwd=work,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
            check=False,
        )
        assert report.exists(), f"a process that uses the device ended with code {done.returncode}: {done.stderr}"
        assert done.returncode == 0, f"a process that used the device ended with code {done.returncode}: {done.stderr}"
        said: dict[str, Any] = json.loads(report.read_text(encoding="utf-8"))
        files = sorted(str(path.relative_to(work)) for path in work.rglob("*"))
        return _Observed(done.stdout, done.stderr, files, said["changes"], said["threads"])
