"""Checks of exported weights: every byte is restored, and equal networks give equal blobs."""

from __future__ import annotations

import functools
import hashlib
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar, Final

import numpy as np
import pytest

from engine.blob import BlobReader
from engine.core import Core
from engine.errors import BlobError, UnsupportedError
from engine.plugin_api import CONFIG, ExecutableNetwork, Property
from engine.properties import CONFIG_PROPERTIES
from engine.testing.behaviour.base import DeviceChecks, run_python
from engine.testing.behaviour.claims import WEIGHTED, WeightedModel, weighted_model
from engine.testing.behaviour.numeric import f32

_WIDTHS: Final = (17, 128, 1024)
"""Matrices of 1.1 KiB, 64 KiB and 4 MiB: graphs embed small constants, and large ones become sections."""

_INFER: Final = """
import sys
import numpy as np
from engine.core import Core

blob, device, inputs, outputs = sys.argv[1:]
np.save(outputs, Core().import_model(blob, device)({"x": np.load(inputs)})[0])
"""

_EXPORT: Final = """
import hashlib, io, json, sys
from engine.core import Core

model, device, config = sys.argv[1:]
blob = io.BytesIO()
Core().compile_model(model, device, json.loads(config)).export_model(blob)
print(hashlib.sha256(blob.getvalue()).hexdigest())
"""


@functools.cache
def _weighted(op_type: str, width: int) -> WeightedModel:
    return weighted_model(op_type, width)


class WeightChecks(DeviceChecks):
    """Weights of any size are exported and imported without a change, and an equal compilation gives an equal blob."""

    area: ClassVar[str] = "export"
    reproducible: ClassVar[dict[str, object]] = {"COMPILE_EFFORT": "none"}
    """Configuration without which compiling measures; keys that the device does not have are left out."""

    @pytest.mark.parametrize("width", _WIDTHS)
    @pytest.mark.parametrize("op_type", WEIGHTED)
    def test_weights_are_right_and_come_back(self, core: Core, op_type: str, width: int) -> None:
        """The network computes with all of its weights, and the imported one gives exactly the same numbers."""
        given = self._compilable(core, op_type, width)
        network = self.compile(core, given.model)
        result = network({"x": given.x})[0]
        f32(given.expected, given.magnitude).check(result, self.rtol, f"{given}, compiled")
        self.require_export(core)
        again = core.import_model(_blob(network), self.device)({"x": given.x})[0]
        self._same(again, result, f"{given}, imported")

    def test_large_weights_in_another_process(self, core: Core, tmp_path: Path) -> None:
        """The other process has only the blob, and gives exactly the same numbers."""
        self.require_export(core)
        given = self._first(core, 256)
        network = self.compile(core, given.model)
        blob, inputs, outputs = tmp_path / "network.blob", tmp_path / "x.npy", tmp_path / "y.npy"
        network.export_model(blob)
        np.save(inputs, given.x)
        run_python(_INFER, str(blob), self.device, str(inputs), str(outputs))
        self._same(np.load(outputs), network({"x": given.x})[0], f"{given}, imported in another process")

    def test_equal_compilations_give_equal_blobs(self, core: Core) -> None:
        """Compiled and exported twice, and exported twice: byte for byte the same."""
        self.require_export(core)
        for model in (self.basic.model(), self._first(core, 128).model):
            network = self.compile(core, model, **self._reproducibly(core))
            first, second = _blob(network), _blob(network)
            assert first == second, f"two exports of one network differ {_difference(first, second)}"
            third = _blob(self.compile(core, model, **self._reproducibly(core)))
            assert first == third, f"the exports of two compilations differ {_difference(first, third)}"

    def test_equal_blobs_from_other_processes(self, core: Core, tmp_path: Path) -> None:
        """Processes with other seeds of Python's hashes export the same bytes."""
        self.require_export(core)
        given, path = self._first(core, 64), tmp_path / "model.onnx"
        path.write_bytes(given.model.SerializeToString())
        config = {**self.config, **self._reproducibly(core)}
        here = hashlib.sha256(_blob(core.compile_model(path, self.device, config))).hexdigest()
        for seed in ("1", "2"):
            said = run_python(_EXPORT, str(path), self.device, json.dumps(config), PYTHONHASHSEED=seed).strip()
            assert said == here, f"with PYTHONHASHSEED={seed}, another process exports other bytes"

    def test_flipped_bits_in_large_sections(self, core: Core) -> None:
        """One bit anywhere in a section, the first and the last included, is found before it changes a result."""
        self.require_export(core)
        given = self._first(core, 128)
        blob = _blob(self.compile(core, given.model))
        sections = BlobReader(blob).manifest.sections
        for section in sections:
            places = {0, section.size // 3, section.size // 2, section.size - 1} if section.size else set()
            for place in places:
                damaged = bytearray(blob)
                damaged[section.offset + place] ^= 0x10
                with pytest.raises(BlobError):
                    core.import_model(damaged, self.device)({"x": given.x})

    def test_truncated_weights(self, core: Core) -> None:
        """A blob that ends within its weights is refused."""
        self.require_export(core)
        given = self._first(core, 128)
        blob = _blob(self.compile(core, given.model))
        for length in (len(blob) - 1, len(blob) - 4, len(blob) * 3 // 4, len(blob) // 2):
            with pytest.raises(BlobError):
                core.import_model(blob[:length], self.device)({"x": given.x})

    def test_own_keys_travel_and_are_overridden(self, core: Core) -> None:
        """Keys that only this device has are in the blob, unless given otherwise on import or declared as local."""
        self.require_export(core)
        tried = 0
        for key, values in _own_values(core, self.device):
            for value, other in (values, values[::-1]):
                try:
                    network = self.compile(core, self.basic.model(), **{key.name: value})
                except UnsupportedError:
                    continue  # such as an element type that this machine's hardware lacks
                blob = _blob(network)
                kept = core.import_model(blob, self.device).get_config(key.name)
                expected = value if key.is_portable else core.get_property(self.device, key.name)
                assert kept == expected, f"exported with {key.name}={value!r}, imported with {kept!r}"
                self._override(core, blob, key.name, other)
                tried += 1
        if not tried:
            pytest.skip(f"{self.device} declares no configuration key of its own with two values to choose from")

    def _override(self, core: Core, blob: bytes, key: str, value: object) -> None:
        try:
            found = core.import_model(blob, self.device, {key: value}).get_config(key)
        except UnsupportedError as e:
            if key in str(e):
                return  # values that compiling has used cannot be changed, and the device says so
            raise
        assert found == value, f"{key}={value!r} was given on import; the network has {found!r}"

    def _compilable(self, core: Core, op_type: str, width: int) -> WeightedModel:
        given = _weighted(op_type, width)
        self.require_support(core, given.model)
        return given

    def _first(self, core: Core, width: int) -> WeightedModel:
        for op_type in WEIGHTED:
            if core.query_model(_weighted(op_type, width).model, self.device, dict(self.config)).is_supported:
                return _weighted(op_type, width)
        pytest.skip(f"{self.device} does not claim any of {', '.join(WEIGHTED)} with constant weights")

    def _reproducibly(self, core: Core) -> dict[str, object]:
        declared = core.supported_properties(self.device).of(CONFIG).names
        return {name: value for name, value in self.reproducible.items() if name in declared}

    @staticmethod
    def _same(actual: Any, expected: Any, where: str) -> None:
        assert actual.dtype == expected.dtype, f"{where}: the result is {actual.dtype}, expected {expected.dtype}"
        assert actual.shape == expected.shape, f"{where}: the result has shape {actual.shape}"
        wrong = int((actual != expected).sum())
        assert not wrong, f"{where}: {wrong} of {expected.size} elements differ from the exported network's"


def _blob(network: ExecutableNetwork) -> bytes:
    stream = io.BytesIO()
    network.export_model(stream)
    return stream.getvalue()


def _difference(first: bytes, second: bytes) -> str:
    if len(first) != len(second):
        return f"in size: {len(first)} and {len(second)} bytes"
    at = next(index for index, (a, b) in enumerate(zip(first, second, strict=True)) if a != b)
    return f"from byte {at} of {len(first)} on"


def _own_values(core: Core, device: str) -> Iterator[tuple[Property[Any], tuple[object, object]]]:
    """The device's own keys whose values are easily varied, each with two values."""
    for key in core.supported_properties(device).of(CONFIG):
        if key.name in CONFIG_PROPERTIES.names:
            continue
        if key.type is bool:
            yield key, (True, False)
        elif key.type is str and key.choices is not None and len(key.choices) > 1:
            yield key, (key.choices[0], key.choices[1])
