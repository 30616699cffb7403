"""Checks of parts: a model divided between this device and another gives the same results as undivided."""

from __future__ import annotations

from random import Random
from typing import ClassVar, Final

import pytest

from engine.core import Core
from engine.testing.behaviour.base import DeviceChecks
from engine.testing.behaviour.claims import RandomModel, claimed, random_model

_PARTNERS: Final = ("TEMPLATE", "CPU")
_SEEDS: Final = range(10)


class DivisionChecks(DeviceChecks):
    """HETERO may give the device any part of a model; inputs and outputs of the parts are values from its middle."""

    area: ClassVar[str] = "hetero"

    @pytest.mark.parametrize("seed", _SEEDS)
    def test_random_divisions(self, core: Core, seed: int) -> None:
        """Random models of claimed operators, each divided at random, give numpy's and the device's own results."""
        made, partner = self.random_model(core, seed), self.partner(core)
        alone = self.compile(core, made.model)
        made.check(alone(made.sample.inputs), self.rtol, f"model {seed} on {self.device}")
        devices, random = (self.device, partner), Random(seed)
        for number in range(3):
            places = dict(zip(made.names, random.choices(devices, k=len(made.names)), strict=True))
            places[random.choice(made.names)] = self.device
            self._check_division(core, made, places, f"{self.device},{partner}", f"division {number} of model {seed}")

    @pytest.mark.parametrize("seed", _SEEDS[:2])
    def test_every_operation_by_turns(self, core: Core, seed: int) -> None:
        """Every other operation on the device: each part has other inputs, and each gives its value to the other."""
        made, partner = self.random_model(core, seed + 100), self.partner(core)
        for first in (0, 1):
            turns = (self.device, partner)
            places = {name: turns[(index + first) % 2] for index, name in enumerate(made.names)}
            self._check_division(core, made, places, f"{self.device},{partner}", f"model {seed} by turns from {first}")

    def random_model(self, core: Core, seed: int) -> RandomModel:
        """A random model that the device claims; the check is skipped if it claims no operator of such models."""
        operators = claimed(lambda model: core.query_model(model, self.device, dict(self.config)).is_supported)
        if not operators:
            pytest.skip(self.why_not_basic())
        return random_model(operators, seed)

    def partner(self, core: Core) -> str:
        """Another device; the check is skipped if there is none, or no HETERO."""
        if ":" in self.device:
            pytest.skip(f"{self.device} divides models itself")
        installed = core.available_devices
        found = next((name for name in _PARTNERS if name in installed and name != self.plugin_name), None)
        if "HETERO" not in installed or found is None:
            pytest.skip(f"dividing needs HETERO and one of {', '.join(_PARTNERS)} beside {self.device}")
        return found

    def _check_division(self, core: Core, made: RandomModel, places: dict[str, str], devices: str, where: str) -> None:
        model = core.read_model(made.model)
        for node in model.ordered_nodes():
            if node.friendly_name in places:
                node.rt_info["affinity"] = places[node.friendly_name]
        config = {"DEVICE_PROPERTIES": {self.plugin_name: dict(self.config)}} if self.config else {}
        network = core.compile_model(model, f"HETERO:{devices}", config)
        request = network.create_infer_request()
        for _ in range(2):
            made.check(request.infer(made.sample.inputs), self.rtol, f"{where}, {places}")
