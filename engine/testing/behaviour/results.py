"""Checks of results: every case, compiled and imported, run synchronously and asynchronously."""

from __future__ import annotations

import io
from typing import ClassVar

import numpy as np
import pytest

from engine.core import Core
from engine.plugin_api import ExecutableNetwork, Port
from engine.testing.behaviour.base import DeviceChecks
from engine.testing.behaviour.cases import CASES, Case


class ResultChecks(DeviceChecks):
    """The results of a network do not depend on how it was created or is run."""

    area: ClassVar[str] = "results"

    def test_basic_model_runs(self, core: Core) -> None:
        """Without this model the other checks have nothing to run."""
        if self.find_basic() is None:
            pytest.fail(self.why_not_basic())
        network = self.compile(core, self.basic.model())
        sample = self.basic.sample()
        result = network(sample.inputs)
        self.assert_outputs(result, sample.outputs)
        for index, name in enumerate(sample.outputs):
            assert result[index] is result[name]
        assert len(result) == len(sample.outputs)

    @pytest.mark.parametrize("case", CASES, ids=str)
    def test_case(self, core: Core, case: Case) -> None:
        """A network call, and a request run synchronously and asynchronously; all runs, in order."""
        network = self.compile_or_skip(core, case)
        request = network.create_infer_request()
        for sample in case.samples:
            self.assert_outputs(network(sample.inputs), sample.outputs)
            self.check_usable(request, sample)

    @pytest.mark.parametrize("case", CASES, ids=str)
    def test_case_after_export_and_import(self, core: Core, case: Case) -> None:
        """The imported network has the same results and description as the exported one."""
        self.require_export(core)
        network, blob = self.compile_or_skip(core, case), io.BytesIO()
        network.export_model(blob)
        imported = core.import_model(blob.getvalue(), self.device)
        assert (imported.inputs, imported.outputs) == (network.inputs, network.outputs)
        assert imported.name == network.name
        for sample in case.samples:
            self.assert_outputs(imported(sample.inputs), sample.outputs)

    @pytest.mark.parametrize("case", CASES, ids=str)
    def test_ports_describe_the_model(self, core: Core, case: Case) -> None:
        """Inputs and outputs have the model's names and order, and types compatible with the values of the runs."""
        network = self.compile_or_skip(core, case)
        assert [port.name for port in network.inputs] == [value.name for value in case.model.graph.input]
        assert [port.name for port in network.outputs] == [value.name for value in case.model.graph.output]
        for index, port in enumerate(network.inputs):
            assert network.input_index(port.name) == index
            assert all(_admits(port, sample.inputs[port.name]) for sample in case.samples)
        for index, port in enumerate(network.outputs):
            assert network.output_index(port.name) == index
            assert all(_admits(port, sample.outputs[port.name]) for sample in case.samples)

    def test_results_stay_when_the_next_inference_runs(self, network: ExecutableNetwork) -> None:
        """Later inferences do not change earlier results."""
        request, samples = network.create_infer_request(), [self.basic.sample(seed) for seed in range(4)]
        kept = [request.infer(sample.inputs) for sample in samples]
        for sample in samples:
            request.start_async(sample.inputs)
            request.wait(self.limit)
            kept.append(request.results)
        for sample, result in zip([*samples, *samples], kept, strict=True):
            self.assert_outputs(result, sample.outputs)

    @pytest.mark.parametrize("case", CASES, ids=str)
    def test_results_belong_to_the_caller(self, core: Core, case: Case) -> None:
        """Writing into results changes neither inputs, nor constants, nor another output, nor the next inference."""
        network = self.compile_or_skip(core, case)
        sample = case.samples[0]
        given = {name: value.copy() for name, value in sample.inputs.items()}
        result = network(given)
        arrays = {f"input `{name}`": value for name, value in given.items()}
        for name, value in result.items():
            if not isinstance(value, np.ndarray):
                continue
            assert value.flags.writeable, f"output `{name}` is read-only"
            for other, array in arrays.items():
                assert not np.shares_memory(value, array), f"output `{name}` shares memory with {other}"
            arrays[f"output `{name}`"] = value
            value[...] = "" if value.dtype == object else 0
        for name, value in sample.inputs.items():
            np.testing.assert_array_equal(given[name], value)
        self.assert_outputs(network(sample.inputs), sample.outputs)

    @pytest.mark.parametrize("case", CASES, ids=str)
    def test_inputs_are_not_written_to(self, core: Core, case: Case) -> None:
        """Read-only arrays are accepted, and others are not changed."""
        network = self.compile_or_skip(core, case)
        sample = case.samples[0]
        given = {name: value.copy() for name, value in sample.inputs.items()}
        for value in given.values():
            value.flags.writeable = False
        self.assert_outputs(network(given), sample.outputs)
        for name, value in sample.inputs.items():
            np.testing.assert_array_equal(given[name], value)


def _admits(port: Port, value: object) -> bool:
    if not isinstance(value, np.ndarray):
        return str(port.type).startswith("seq(")
    return port.element_type.numpy == value.dtype and port.shape.accepts(value.shape)
