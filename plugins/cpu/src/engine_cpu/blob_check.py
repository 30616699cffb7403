"""Whether a blob runs on this machine, and from what: its plans, its packed weights, or the graph with plain weights.

Plans are for one version of the engine, packed weights for one instruction set and one version of the weight formats. A
blob with all weights in plain form is compiled again where these differ.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Final

from engine.blob.bound import Bound
from engine.native import default_isa, program_format
from engine.plugin_api import BlobManifest, engine_version
from engine_cpu.compilation import PACKED
from engine_cpu.instruction_sets import kernels_here, kernels_of_any
from engine_cpu.stored_program import SECTION

GRAPH: Final = "graph"
"""The section that `engine.lowering` writes, which a runtime for blobs does not have."""
PLANS: Final = "plans"
"""The preference of a blob with plans: the engine version and the format that they are for."""
KERNELS: Final = "kernels"
"""The preference of a blob: the kind of network and the instruction set of its kernels, such as "f32 avx2"."""
_OF_MACHINE: Final = ("architecture", "isa", "packed weights")
"""The requirements of kernels and packed weights, which a graph with plain weights does not have."""

Features = Mapping[str, str | Collection[str]]


def with_needs(manifest: BlobManifest) -> BlobManifest:
    """The manifest with what its blob needs of this machine, and what it prefers.

    Blobs of the first generation have no preferences, and those with plain weights required what their kernels did.
    """
    requirements, preferences = dict(manifest.requirements), dict(manifest.preferences)
    if manifest.generation == 1:
        preferences |= _first_preferences(manifest)
    if has_source(manifest):  # `KERNELS` stands for the instruction set
        preferences |= {name: requirements[name] for name in ("architecture", "packed weights") if name in requirements}
        requirements = {name: value for name, value in requirements.items() if name not in _OF_MACHINE}
    return replace(manifest, requirements=requirements, preferences=preferences)


def with_kernels(features: Features, manifest: BlobManifest) -> Features:
    """The features of this machine, with those that the preferences of a blob are compared with."""
    kinds = tuple(f"{kernels.partition(' ')[0]} " for kernels in _as_set(manifest.preferences.get(KERNELS, ())))
    kernels = [each for each in kernels_here(default_isa()) if each.startswith(kinds)]
    return {**features, PLANS: plans_here(), KERNELS: kernels}


def has_source(manifest: BlobManifest) -> bool:
    """Whether a blob has all weights as in the model, so that it can be compiled for any machine."""
    names = _section_names(manifest)
    return GRAPH in names and not any(name.startswith(PACKED) for name in names)


def is_compiled_again(manifest: BlobManifest, features: Features) -> bool:
    """Whether an import compiles the graph again: its kernels are for another machine or another version."""
    return has_source(manifest) and any(
        not _as_set(manifest.requirements[name]) <= _as_set(features.get(name, ()))
        for name in _OF_MACHINE
        if name in manifest.requirements
    )


def plans_here() -> str:
    """The engine version and the format of plans that this engine reads."""
    return f"{engine_version()} {program_format()}"


def _first_preferences(manifest: BlobManifest) -> Mapping[str, str | Sequence[str]]:
    isa = manifest.requirements.get("isa", ())
    kernels = [kernels_of_any(each) for each in _as_set(isa)]
    # The format of its plans is not in the manifest; an import compares it.
    plans = {PLANS: f"{manifest.engine_version} {program_format()}"} if SECTION in _section_names(manifest) else {}
    return {KERNELS: sorted(kernels), **plans}


def _section_names(manifest: BlobManifest) -> frozenset[str]:
    """The names of the sections, in the blob or in another file."""
    bound = Bound.of(manifest)
    elsewhere = [] if bound is None else [section.name for section in bound.sections]
    return frozenset([*(section.name for section in manifest.sections), *elsewhere])


def _as_set(value: str | Collection[str]) -> frozenset[str]:
    return frozenset([value]) if isinstance(value, str) else frozenset(value)
