"""Devices whose blobs are wrong in one way each: weights, equal bytes, other machines and versions, keys."""

from __future__ import annotations

import itertools
import uuid
from typing import Any, ClassVar

import numpy as np
from engine_template.network import TemplateNetwork
from mutants.numeric_base import Device, Network, device, network

from engine.plugin_api import (
    CONFIG,
    BlobReader,
    BlobWriter,
    Config,
    ExecutableNetwork,
    Model,
    Property,
)

# -- blobs --------------------------------------------------------------------------------------------------


class _Imported(Network):
    """A network whose constants change on import."""

    @classmethod
    def imported(cls, plugin: Any, config: Config, blob: BlobReader) -> TemplateNetwork:
        network = super().imported(plugin, config, blob)
        memory = network.program.memory
        for slot in network.program.constants:
            memory[slot] = cls.changed(memory[slot])
        return network

    @classmethod
    def changed(cls, weights: Any) -> Any:
        raise NotImplementedError


@network
class ZeroesWeightsAbove1Kb(_Imported):
    @classmethod
    def changed(cls, weights: Any) -> Any:
        return np.zeros_like(weights) if weights.nbytes > 1024 else weights


@network
class TruncatesWeightsAbove1Mb(_Imported):
    @classmethod
    def changed(cls, weights: Any) -> Any:
        kept = weights.copy()
        kept.reshape(-1)[(1 << 20) // weights.itemsize :] = 0
        return kept


@network
class LosesTheLastWeight(_Imported):
    @classmethod
    def changed(cls, weights: Any) -> Any:
        kept = weights.copy()
        if kept.size > 256:
            kept.reshape(-1)[-1] = 0
        return kept


@network
class StoresWeightsAsHalves(_Imported):
    @classmethod
    def changed(cls, weights: Any) -> Any:
        return weights.astype(np.float16).astype(weights.dtype) if weights.dtype == np.float32 else weights


@network
class SwapsBytesOfWeights(_Imported):
    """Of large ones, as if they came from a machine of another byte order."""

    @classmethod
    def changed(cls, weights: Any) -> Any:
        return weights.byteswap() if weights.nbytes > 1024 else weights


@network
class ImportsWeightsTransposed(_Imported):
    @classmethod
    def changed(cls, weights: Any) -> Any:
        is_square = weights.ndim == 2 and weights.shape[0] == weights.shape[1]
        return np.ascontiguousarray(weights.T) if is_square and weights.nbytes > 1024 else weights


@network
class KeepsLargeWeightsInTheProcess(Network):
    """The blob has a number in their place."""

    kept: ClassVar[dict[str, Any]] = {}

    def export_sections(self, writer: BlobWriter) -> None:
        super().export_sections(writer)
        if any(self.program.memory[slot].nbytes > 1024 for slot in self.program.constants):
            self.kept[key := str(len(self.kept))] = [self.program.memory[slot] for slot in self.program.constants]
            writer.add_section("kept", key.encode())

    @classmethod
    def imported(cls, plugin: Any, config: Config, blob: BlobReader) -> TemplateNetwork:
        network = super().imported(plugin, config, blob)
        if "kept" in blob.section_names:
            for slot, value in zip(
                network.program.constants, cls.kept[bytes(blob.section("kept")).decode()], strict=True
            ):
                network.program.memory[slot] = value
        return network


@network
class ExportsARandomSection(Network):
    def export_sections(self, writer: BlobWriter) -> None:
        super().export_sections(writer)
        writer.add_section("id", uuid.uuid4().bytes)


@network
class NumbersItsCompilations(Network):
    """In its blob."""

    numbers: ClassVar[Any] = itertools.count()

    def load(self, graph: Model) -> None:
        super().load(graph)
        self.number = next(self.numbers)

    def export_sections(self, writer: BlobWriter) -> None:
        super().export_sections(writer)
        writer.add_section("number", str(self.number).encode())


@network
class ExportsInTheOrderOfASet(Network):
    """Which depends on the hashes of strings."""

    def export_sections(self, writer: BlobWriter) -> None:
        super().export_sections(writer)
        names = {f"tensor{number}" for number in range(20)}
        writer.add_section("names", " ".join(names).encode())


@device
class ImportsFromEveryMachine(Device):
    """It says that it has whatever a blob requires."""

    class Everything(dict[str, Any]):
        def get(self, key: str, default: Any = None) -> Any:
            return {"that no machine has"}

    def host_features(self, device_id: str) -> Any:
        return self.Everything()


class Same(str):
    """Equal to every text."""

    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = str.__hash__


@device
class ImportsFromEveryVersion(Device):
    """Every blob has its version."""

    class AnyVersion(str):
        def partition(self, *_: Any) -> Any:
            return (self,)

        def split(self, *_: Any) -> Any:
            return self

        def __iter__(self) -> Any:
            return iter((Same("1"), Same("0")))

    version = AnyVersion("1.0")


_OWN = Property("MUTANT_MODE", str, "exact", CONFIG, "A key of this device.", choices=("exact", "fast"))


@device
class LosesItsOwnKeyOnImport(Device):
    properties = (*Device.properties, _OWN)

    def import_network(self, blob: BlobReader, config: Config) -> ExecutableNetwork:
        return super().import_network(blob, config.merged({_OWN.name: "exact"}))


@device
class KeepsItsOwnKeyOnImport(Device):
    """Whatever is given on import."""

    properties = (*Device.properties, _OWN)

    def import_network(self, blob: BlobReader, config: Config) -> ExecutableNetwork:
        return super().import_network(blob, config.merged({_OWN.name: blob.manifest.config.get(_OWN.name, "exact")}))
