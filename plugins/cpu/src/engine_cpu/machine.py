"""`Machine`: what a network is compiled for, which is this machine unless TARGET names another."""

from __future__ import annotations

from typing import Final

from engine.errors import TargetError
from engine.native import all_isas, built_isas, cores, cpu_features, default_isa, features, isas_within
from engine.plugin_api import Config
from engine.properties import TARGET
from engine.properties.target import SOURCE, CpuTarget
from engine.startup import dataclass
from engine_cpu.instruction_sets import ARCHITECTURE
from engine_cpu.properties import COMPILE_EFFORT, INFERENCE_PRECISION_HINT

OWN_ARCHITECTURE: Final = ARCHITECTURE.replace("_", "-")
"""This machine's architecture as targets spell it: "x86-64", "aarch64"."""


@dataclass(frozen=True, slots=True)
class Machine:
    """What a network is compiled for.

    Attributes:
        isa: the best instruction set that its kernels may use.
        cores: the cores that it may use.
        is_here: whether it is this machine, so that kernels can be measured.
        is_source: whether a blob is lowered where it is imported, for the machine there.
        l2_bytes: the second-level cache of a core, for the choice of kernels; 0 if it is not known.
    """

    isa: str
    cores: int
    is_here: bool = True
    is_source: bool = False
    l2_bytes: int = 0

    @classmethod
    def of(cls, config: Config) -> Machine:
        """The machine that TARGET names, or this one. Raises `TargetError`."""
        text = config[TARGET]
        if not text:
            return cls(default_isa(), cores())
        if config[COMPILE_EFFORT] != "none":
            raise TargetError(
                f"{COMPILE_EFFORT.name} is {config[COMPILE_EFFORT]}, and {TARGET.name} is {text}: kernels can be "
                "measured for this machine only; omit one of them"
            )
        if text == SOURCE:
            if config[INFERENCE_PRECISION_HINT] != "f32":
                raise TargetError(
                    f"{INFERENCE_PRECISION_HINT.name} is {config[INFERENCE_PRECISION_HINT]}, and {TARGET.name} is "
                    f"{SOURCE}: whether a CPU multiplies bf16 decides how weights are stored; name the CPU"
                )
            return cls(default_isa(), cores(), is_source=True)
        target = CpuTarget.parse(text, OWN_ARCHITECTURE)
        return cls(_isa_of(target, text), target.cores or cores(), is_here=False, l2_bytes=target.l2_bytes or 0)


def targets() -> tuple[str, ...]:
    """The targets that this build compiles for: `x86-64:avx2` and so on, and `source`."""
    return (*(f"{OWN_ARCHITECTURE}:{isa}" for isa in built_isas()), SOURCE)


def own_target() -> CpuTarget:
    """The target that describes this machine."""
    cpu = cpu_features()
    sizes = (cpu.l1d_bytes or None, cpu.l2_bytes or None, cpu.l3_bytes or None)
    return CpuTarget(OWN_ARCHITECTURE, (default_isa(),), cores(), *sizes)


def _isa_of(target: CpuTarget, text: str) -> str:
    """The best instruction set within a target's features, which this build must have."""
    if target.architecture.replace("_", "-") != OWN_ARCHITECTURE:
        raise TargetError(
            f"target {text!r}: this engine has kernels for {OWN_ARCHITECTURE} only; {_listed()}. `{SOURCE}` runs on "
            "all architectures"
        )
    has: set[str] = set()
    for name in target.features:
        if name in all_isas():
            has |= features(name)
        elif name in _all_features():
            has.add(name)
        else:
            raise TargetError(
                f"target {text!r}: {name!r} is neither an instruction set nor a feature; {_listed()}; features: "
                f"{', '.join(sorted(_all_features()))}"
            )
    named = target.features[0] if len(target.features) == 1 else ""
    best = named if named in all_isas() else [isa for isa in all_isas() if features(isa) <= has][-1]
    if best not in isas_within(best):
        raise TargetError(
            f"target {text!r}: this build has no kernels for {best}; {_listed()}. ENGINE_ISAS=all, or a wheel, has all "
            f"of {OWN_ARCHITECTURE}"
        )
    return best


def _all_features() -> set[str]:
    return {feature for isa in all_isas() for feature in features(isa)}


def _listed() -> str:
    return f"targets: {', '.join(targets())}"
