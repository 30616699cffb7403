"""The devices that HETERO may use, and how each is configured."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from engine.plugin_api import Config, CoreHandle, DeviceNotFoundError, PropertyError, RemoteContext, TargetError
from engine.properties import (
    DEVICE_CONFIGS,
    DEVICE_PRIORITIES,
    ENABLE_MMAP,
    INFERENCE_NUM_THREADS,
    LIMIT_PROPERTIES,
    MAX_FOLDED_BYTES,
    MAX_FOLDED_WORK,
    MEMORY_BUDGET,
    NO_LIMIT,
    NUM_STREAMS,
    PERF_COUNT,
    PERFORMANCE_HINT,
    REMOTE_CONTEXT_SUPPORT,
    TARGET,
)
from engine.startup import dataclass
from engine_hetero.properties import PARTITION_STRATEGY, PLACEMENT

PASSED_ON: Final = (
    PERF_COUNT, PERFORMANCE_HINT, NUM_STREAMS, INFERENCE_NUM_THREADS, ENABLE_MMAP, TARGET, *LIMIT_PROPERTIES,
)  # fmt: skip
"""Config keys of HETERO that are passed on to its devices."""
_MIN_FOLDED: Final = {MAX_FOLDED_BYTES: 64 << 20, MAX_FOLDED_WORK: 10**9}
"""What each part may fold, however many there are: enough for what its device's passes derive from constants."""


@dataclass(frozen=True)
class DeviceList:
    """Device strings, best first, and the configuration of each for compiling, importing and queries."""

    names: tuple[str, ...]
    configs: Mapping[str, Mapping[str, Any]]
    budgets: Mapping[str, int]
    """The MEMORY_BUDGET of each device that has one."""

    @classmethod
    def of(cls, own_name: str, core: CoreHandle, config: Config) -> DeviceList:
        """The device list of a configuration.

        Raises `DeviceNotFoundError` for an empty list, for HETERO itself, and for a missing device; `PropertyError` for
        configuration of a device that is not listed; `TargetError` for a target that one of them does not compile for.
        """
        listed = tuple(config[DEVICE_PRIORITIES].split(",")) if config[DEVICE_PRIORITIES] else ()
        if not listed:
            raise DeviceNotFoundError(
                f"{own_name} runs a model on other devices, but none are listed; list them, best first: "
                f'"{own_name}:{",".join(_others(own_name, core)) or "CPU"}"'
            )
        for name in listed:
            if _is_own(own_name, name):
                raise DeviceNotFoundError(
                    f"device {name!r} in the list {','.join(listed)!r}: {own_name} cannot run on {own_name}; "
                    "list its devices instead"
                )
            # The core also checks device ids, and lists the existing ones in its error.
            if PARTITION_STRATEGY.name in core.get_property(name, "SUPPORTED_CONFIG_KEYS"):
                raise DeviceNotFoundError(
                    f"device {name!r} in the list {','.join(listed)!r} is {own_name} under another name, "
                    f"which cannot run on {own_name}; list its devices instead"
                )
        if config[TARGET] and config[PLACEMENT] == "measured":
            raise TargetError(
                f"{TARGET.name} is {config[TARGET]}, and {PLACEMENT.name} is measured: times can be measured on this "
                "machine only; omit one of them"
            )
        given: Mapping[str, Any] = config[DEVICE_CONFIGS.name]
        if unknown := [name for name in given if name not in listed]:
            raise PropertyError(
                f"{DEVICE_CONFIGS.name} configures {unknown[0]!r}, which is not among the devices {', '.join(listed)}"
            )
        configs = {name: _config_of(name, core, config, given.get(name, {})) for name in listed}
        budgets = {name: _budget_of(name, core, own) for name, own in configs.items()}
        return cls(listed, configs, {name: budget for name, budget in budgets.items() if budget < NO_LIMIT})

    def configs_of_parts(self, names: Sequence[str]) -> list[Mapping[str, Any]]:
        """The configuration for compiling each of several parts, which share what the whole model may fold."""
        shares = {name: self._share(name, len(names)) for name in dict.fromkeys(names)}
        return [shares[name] for name in names]

    def _share(self, name: str, parts: int) -> Mapping[str, Any]:
        config = self.configs[name]
        if parts == 1:
            return config
        whole = {limit: config.get(limit.name, limit.default) for limit in _MIN_FOLDED}
        shares = {
            limit.name: min(most, max(least, most // parts))
            for (limit, most), least in zip(whole.items(), _MIN_FOLDED.values(), strict=True)
        }
        return {**config, **shares}


def new_contexts(core: CoreHandle, devices: DeviceList, names: Iterable[str]) -> dict[str, RemoteContext]:
    """A context for each of these devices that has contexts. Raises their errors."""
    able = [name for name in names if core.get_property(name, REMOTE_CONTEXT_SUPPORT.name)]
    return {name: core.create_context(name, devices.configs[name]) for name in able}


def _config_of(name: str, core: CoreHandle, config: Config, own: Any) -> Mapping[str, Any]:
    if not isinstance(own, Mapping):
        raise PropertyError(
            f"{DEVICE_CONFIGS.name}: expected a mapping of config keys to values for {name}, got {own!r:.80}"
        )
    keys = core.get_property(name, "SUPPORTED_CONFIG_KEYS")
    if config[TARGET] and TARGET.name not in keys:
        raise TargetError(
            f"{TARGET.name} is {config[TARGET]}, and {name} compiles for this machine only; list other devices"
        )
    passed = {p.name: config[p] for p in PASSED_ON if p.name in config.explicit and p.name in keys}
    return {**passed, **own}


def _budget_of(name: str, core: CoreHandle, config: Mapping[str, Any]) -> int:
    """What all parts on a device may take together."""
    if MEMORY_BUDGET.name in config:
        return MEMORY_BUDGET.validate(config[MEMORY_BUDGET.name])
    keys = core.get_property(name, "SUPPORTED_CONFIG_KEYS")
    return int(core.get_property(name, MEMORY_BUDGET.name)) if MEMORY_BUDGET.name in keys else NO_LIMIT


def _others(own_name: str, core: CoreHandle) -> list[str]:
    """The devices that compute; what runs on other devices takes a list of its own, or chooses for itself."""
    names = [name for name in core.available_devices if not _is_own(own_name, name)]
    return [name for name in names if DEVICE_PRIORITIES.name not in core.get_property(name, "SUPPORTED_CONFIG_KEYS")]


def _is_own(own_name: str, device: str) -> bool:
    return device.partition(".")[0] == own_name
