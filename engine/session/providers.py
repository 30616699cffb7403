"""Execution providers as devices: which device and configuration a list of providers stands for."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import field
from functools import cache
from typing import Any, Final, TypeAlias

from engine.core import Core
from engine.errors import EngineWarning, InputError, UnsupportedError
from engine.startup import dataclass

Provider: TypeAlias = str | tuple[str, Mapping[str, Any]]

_CPU: Final = "CPU"
_DEVICES: Final = {"CPUExecutionProvider": _CPU}
_NAMES: Final = {device: name for name, device in _DEVICES.items()}
# Of memory, which this engine's devices lay out by themselves.
_WITHOUT_EFFECT: Final = ("arena_extend_strategy", "use_arena")


@cache
def shared_core() -> Core:
    """The core of all sessions that are given none."""
    return Core()


def get_available_providers() -> list[str]:
    """The providers to list when there is no reason to choose: the fast CPU device, or the default device.

    Any device string of `Core` is also a provider: "OPENCL", "HETERO:OPENCL,CPU".
    """
    core = shared_core()
    return ["CPUExecutionProvider" if _CPU in core.installed_devices else core.default_device]


def get_all_providers() -> list[str]:
    """The name of every provider: `get_available_providers`, and the devices of all plugins."""
    return list(dict.fromkeys([*get_available_providers(), *shared_core().installed_devices]))


def get_device() -> str:
    """The kind of device that sessions run on by default: "CPU"."""
    return _CPU


@dataclass(frozen=True, slots=True)
class Placement:
    """The device and the configuration of a session.

    Attributes:
        device: the device string.
        config: what the providers' options set.
        options: the options by provider, as they were given.
    """

    device: str
    config: dict[str, Any] = field(default_factory=dict)
    options: dict[str, dict[str, Any]] = field(default_factory=dict)


def placement(
    core: Core, providers: Sequence[Provider] | None, provider_options: Sequence[Mapping[str, Any]] | None
) -> Placement:
    """The device for a list of providers: one, or HETERO on several, the first of which runs the nodes that it
    supports.

    An `EngineWarning` at the line that calls the caller names providers and options that this engine does not know; the
    others, at last the default, are used. Raises `InputError` if lists do not fit, and `UnsupportedError` for options
    of one device among several.
    """
    found: dict[str, dict[str, Any]] = {}
    devices: dict[str, dict[str, Any]] = {}
    for name, options in _pairs(providers, provider_options):
        device = _DEVICES.get(name, name)
        if device.partition(":")[0].partition(".")[0] not in core.installed_devices:
            known = ", ".join(dict.fromkeys(_NAMES.get(each, each) for each in core.installed_devices))
            text = f"the provider {name} is not available; available: {known}"
            warnings.warn(EngineWarning(text), stacklevel=3)
            continue
        found[name] = dict(options)
        devices[device] = {key: value for key, value in options.items() if key not in _WITHOUT_EFFECT}
    if not devices:
        default = _CPU if _CPU in core.installed_devices else core.default_device
        return Placement(default, {}, {_NAMES.get(default, default): {}})
    if len(devices) == 1:
        ((device, config),) = devices.items()
        return Placement(device, _known(core, device, config), found)
    if any(devices.values()):
        raise UnsupportedError(
            f"options of one provider among several ({', '.join(found)}) are not supported; set them by "
            "Core.set_property(DEVICE, ...), and pass the core to the session"
        )
    return Placement(f"HETERO:{','.join(devices)}", {}, found)


def _pairs(
    providers: Sequence[Provider] | None, provider_options: Sequence[Mapping[str, Any]] | None
) -> list[tuple[str, Mapping[str, Any]]]:
    listed = list(providers or ())
    if provider_options is not None and len(provider_options) != len(listed):
        raise InputError(f"providers has {len(listed)} items, but provider_options {len(provider_options)}")
    pairs: list[tuple[str, Mapping[str, Any]]] = []
    for index, provider in enumerate(listed):
        name, options = (provider, {}) if isinstance(provider, str) else provider
        if provider_options is not None:
            options = {**options, **provider_options[index]}
        pairs.append((name, options))
    return pairs


def _known(core: Core, device: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options that are properties of the device."""
    declared = core.supported_properties(device)
    for name in options:
        if name not in declared:
            text = (
                f"the option {name} is not a property of {device}, and is ignored; "
                f"Core.supported_properties({device!r}) lists them"
            )
            warnings.warn(EngineWarning(text), stacklevel=4)
    return {name: value for name, value in options.items() if name in declared}
