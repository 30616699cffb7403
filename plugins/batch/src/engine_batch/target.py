"""The device that batches run on, how many requests a batch has, and the configuration there."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from engine.plugin_api import Config, CoreHandle, DeviceNotFoundError, PropertyError, TargetError
from engine.properties import (
    DEVICE_CONFIGS,
    DEVICE_PRIORITIES,
    FORWARDED_PROPERTIES,
    SUPPORTED_CONFIG_KEYS,
    SUPPORTED_METRICS,
    TARGET,
)
from engine.startup import dataclass
from engine_batch.properties import BATCH_SIZE, BATCH_TIMEOUT

PASSED_ON: Final = (*FORWARDED_PROPERTIES, TARGET)
"""Config keys of BATCH that are passed on to its device."""
DEFAULT_SIZE: Final = 8
_METRIC: Final = "OPTIMAL_BATCH_SIZE"
_TARGET: Final = re.compile(r"(?P<device>[^()]+)(\((?P<size>[^()]*)\))?")


@dataclass(frozen=True)
class Target:
    """A device string, how many requests make a full batch, and the configuration of the device.

    `is_size_stated`: whether the user gave the number of requests.
    """

    device: str
    size: int
    config: Mapping[str, Any]
    is_size_stated: bool

    @classmethod
    def of(cls, own_name: str, core: CoreHandle, config: Config) -> Target:
        """The target of a configuration.

        Raises `DeviceNotFoundError` for no device, several, or one of this kind; `PropertyError` for a wrong number.
        """
        listed = config[DEVICE_PRIORITIES.name]
        if not listed:
            raise DeviceNotFoundError(
                f'{own_name} runs batches on another device, but none is given; name it: "{own_name}:CPU(16)"'
            )
        found = _TARGET.fullmatch(listed)
        if "," in listed or found is None:
            raise DeviceNotFoundError(
                f'{own_name} runs batches on one device, and got {listed!r}; name one: "{own_name}:CPU(16)"'
            )
        device = found["device"]
        keys = core.get_property(device, SUPPORTED_CONFIG_KEYS.name)
        if BATCH_TIMEOUT.name in keys:
            raise DeviceNotFoundError(
                f"{own_name} cannot run batches on {device}, which also makes batches; name the device that computes"
            )
        given: Mapping[str, Any] = config[DEVICE_CONFIGS.name]
        if unknown := [name for name in given if name != device]:
            raise PropertyError(f"{DEVICE_CONFIGS.name} configures {unknown[0]!r}; the device of batches is {device}")
        own = given.get(device, {})
        if not isinstance(own, Mapping):
            raise PropertyError(
                f"{DEVICE_CONFIGS.name}: expected a mapping of config keys to values for {device}, got {own!r:.80}"
            )
        if config[TARGET] and TARGET.name not in keys:
            raise TargetError(f"{TARGET.name} is {config[TARGET]}, and {device} compiles for this machine only")
        passed = {p.name: config[p] for p in PASSED_ON if p.name in config.explicit and p.name in keys}
        size = _size(own_name, core, config, device, found["size"])
        is_stated = found["size"] is not None or bool(config[BATCH_SIZE.name])
        return cls(device, size, {**passed, **own}, is_stated)


def _size(own_name: str, core: CoreHandle, config: Config, device: str, argument: str | None) -> int:
    stated: int = config[BATCH_SIZE.name]
    if argument is not None:
        size = int(argument) if argument.isascii() and argument.isdecimal() and len(argument) < 7 else 0
        if not 1 <= size <= 65536:
            raise PropertyError(
                f"{own_name}: expected a number of requests from 1 to 65536 in parentheses, such as {device}(16); got "
                f"{argument!r}"
            )
        if stated and stated != size:
            raise PropertyError(f"{BATCH_SIZE.name} is {stated}, and {device}({argument}) has {size}; set it once")
        return size
    if stated:
        return stated
    if _METRIC in core.get_property(device, SUPPORTED_METRICS.name):
        return max(1, int(core.get_property(device, _METRIC)))
    return DEFAULT_SIZE
