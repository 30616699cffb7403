"""The networks of a core that are in use, by the files of their models."""

from __future__ import annotations

import json
import weakref
from collections.abc import Mapping
from typing import Any

from engine.core.model_files import OWN, ModelFiles, Stamp
from engine.hosting.overrides import Initializers
from engine.plugin_api import ExecutableNetwork
from engine.runtime import Port
from engine.runtime.lifecycle import ForkSafeLock
from engine.startup import dataclass


@dataclass(frozen=True, slots=True)
class _Live:
    stamps: Mapping[str, Stamp]
    ports: Mapping[str, Port]
    network: weakref.ReferenceType[ExecutableNetwork]


class LiveNetworks:
    """Finds a network whose plans and weights another compilation of its model can share. Thread-safe.

    A model is the same if the stamps of all its files are, and if every change since they were read would have changed
    one of them.
    """

    def __init__(self) -> None:
        self._networks: dict[tuple[Stamp, str, str], _Live] = {}
        self._lock = ForkSafeLock()

    def find(
        self, files: ModelFiles, identity: Mapping[str, Any]
    ) -> tuple[ExecutableNetwork, Mapping[str, Port]] | None:
        """A new network that shares with one that is in use, and the ports of its model's initializers.

        None if there is none; else the files are watched.
        """
        own = Stamp.now(files.path)
        with self._lock:
            live = None if own is None else self._networks.get(_key(own, files, identity))
        network = None if live is None else live.network()
        if live is None or network is None:
            return None
        if any(Stamp.now(files.place(location)) != stamp for location, stamp in live.stamps.items()):
            return None
        for location, stamp in live.stamps.items():
            files.watch(location, stamp)
        return network.sharing(), live.ports

    def add(
        self, files: ModelFiles, identity: Mapping[str, Any], network: ExecutableNetwork, initializers: Initializers
    ) -> None:
        """Offer a network that was made of these files to later compilations."""
        stamps = dict(files.stamps)
        is_settled = not files.is_changed and all(stamp.is_settled(files.begun_ns) for stamp in stamps.values())
        if (
            not is_settled
            or files.may_be_written()
            or not network.can_share()
            or network.extensions
            or network.context is not None
        ):
            return
        with self._lock:
            for key in [key for key, live in self._networks.items() if live.network() is None]:
                del self._networks[key]
            self._networks[_key(stamps[OWN], files, identity)] = _Live(stamps, initializers.ports, weakref.ref(network))


def _key(own: Stamp, files: ModelFiles, identity: Mapping[str, Any]) -> tuple[Stamp, str, str]:
    # A link has the stamp of its file, but a model without a name has that of the link.
    return own, files.path.stem, json.dumps(identity, sort_keys=True)
