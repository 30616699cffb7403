"""A recipe: a function that makes a network with seeded weights, and the exporters that it is for."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

SCRIPT_OPSETS: Final = range(13, 21)
"""The opsets of PyTorch's older exporter, by TorchScript."""
DYNAMO_OPSETS: Final = range(18, 25)
"""The opsets of PyTorch's newer exporter."""

Arrays = Mapping[str, np.ndarray]


@dataclass(frozen=True, slots=True)
class Exported:
    """An ONNX file and its inputs."""

    model: bytes
    inputs: Arrays


@dataclass(frozen=True, slots=True)
class Module:
    """A torch module, its inputs by argument, and their axes that vary: name -> axis -> name of the length."""

    module: Any
    inputs: Mapping[str, Any]
    axes: Mapping[str, Mapping[int, str]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Recipe:
    """One architecture.

    Attributes:
        make: from a scale (1: as small as its structure allows) to a `Module`, or for `exporters` other than torch's,
            to an `Exported` file.
        exporters: `script` and `dynamo` of torch, or the name of another converter.
    """

    name: str
    family: str
    make: Callable[[int], Any]
    exporters: tuple[str, ...] = ("script", "dynamo")

    def opsets(self, exporter: str) -> list[int]:
        """The opsets to try, in order: spread over the recipes, so that some networks have each opset."""
        known = {"script": SCRIPT_OPSETS, "dynamo": DYNAMO_OPSETS}.get(exporter)
        if known is None:
            return [0]  # the function states it
        first = known.start + zlib.crc32(f"{self.name}.{exporter}".encode()) % len(known)
        return [*range(first, known.stop), *reversed(range(known.start, first))]


class Recipes:
    """The recipes of a domain, collected by a decorator."""

    def __init__(self, family: str) -> None:
        self.family = family
        self.found: dict[str, Recipe] = {}

    def __call__(self, *exporters: str, name: str = "") -> Callable[[Callable[[int], Any]], Callable[[int], Any]]:
        """Register a function under its name; without `exporters`, for both of torch's."""

        def register(make: Callable[[int], Any]) -> Callable[[int], Any]:
            self.add(name or make.__name__, make, *exporters)
            return make

        return register

    def add(self, name: str, make: Callable[[int], Any], *exporters: str) -> None:
        """Register a function."""
        if name in self.found:
            raise ValueError(f"two recipes are named {name}")
        self.found[name] = Recipe(name, self.family, make, exporters or ("script", "dynamo"))


def rng() -> np.random.Generator:
    """A seeded generator."""
    return np.random.default_rng(0)


def normal(*shape: int) -> np.ndarray:
    """Seeded values of a normal distribution, in f32."""
    return rng().standard_normal(shape).astype(np.float32)


def tokens(*shape: int, high: int = 90) -> np.ndarray:
    """Seeded numbers of tokens."""
    return rng().integers(5, high, shape)
