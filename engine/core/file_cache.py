"""Networks of models in files: found by the files, and stored."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

from engine.blob import BlobReader
from engine.core.cache import CompileCache
from engine.core.file_index import Content, FileIndex
from engine.core.live_networks import LiveNetworks
from engine.core.model_files import ModelFiles, Stamp
from engine.core.own_weights import OwnWeights
from engine.core.storing import store_later
from engine.errors import BlobFormatError, ModelReadError
from engine.hosting.overrides import Initializers
from engine.ir import Model
from engine.plugin_api import ExecutableNetwork
from engine.runtime import Port
from engine.startup import dataclass

_INITIALIZERS: Final = "initializers"
"""In an entry's manifest: the initializers that the model's file also lists as inputs, as ports."""
_log = logging.getLogger("engine.cache")


@dataclass(frozen=True, slots=True)
class Steps:
    """What the core does for the cache.

    Attributes:
        read: reads a model's file, and tells which files it read.
        compile: compiles a model.
        load: makes the network of an entry.
        is_current: whether the network that was compiled now is the one that the identity means.
        content_key: the key of an entry for a model as it was read.
    """

    read: Callable[[str | os.PathLike[str]], tuple[Model, dict[str, os.stat_result]]]
    compile: Callable[[Model], ExecutableNetwork]
    load: Callable[[BlobReader], ExecutableNetwork]
    is_current: Callable[[], bool]
    content_key: Callable[[Model], str]


class FileCache:
    """A cache of networks of models in files.

    Args:
        cache: has the entries.
        identity: everything but the model that a network depends on, as JSON values.
        live: the networks in use, which are found before entries.
        config: all of the configuration, also what does not affect how a network is compiled: networks that share have
            one.
    """

    def __init__(
        self,
        cache: CompileCache,
        identity: Mapping[str, Any],
        steps: Steps,
        live: LiveNetworks,
        config: Mapping[str, Any],
    ) -> None:
        self._cache = cache
        self._live = live
        self._identity = identity
        self._live_identity = {**identity, "config": dict(config)}
        self._steps = steps
        self._index = FileIndex(cache.files)

    def network(self, path: str | os.PathLike[str]) -> tuple[ExecutableNetwork, Initializers]:
        """The network of a model's file, and the model's initializers, as compiling it would return them."""
        files = ModelFiles(path)
        shared = self._live.find(files, self._live_identity)
        if shared is not None:
            return shared[0], Initializers(shared[1], partial(self._read_again, files))
        found = self._found(files)
        if found is None:
            model, statuses = self._steps.read(path)
            files.watch_read(statuses)
            found = self._compiled(files, model), Initializers.of(model)
        self._live.add(files, self._live_identity, *found)
        return found

    def of_read(self, files: ModelFiles, model: Model) -> ExecutableNetwork:
        """The network of a model that was read from files, which have been watched since."""
        found = self._found(files)
        return self._compiled(files, model) if found is None else found[0]

    def _compiled(self, files: ModelFiles, model: Model) -> ExecutableNetwork:
        is_named_by_file = model.name == files.path.stem
        if self._cache.is_stated:
            network, entry = self._by_model(model, files)
            if entry is not None:
                self._record(files, is_named_by_file, lambda _: entry)
        else:
            network = self._steps.compile(model)
            # The code of an extension, which could change, is in no key.
            if not network.extensions:
                store_later(partial(self._store, files, is_named_by_file, network, _metadata(Initializers.of(model))))
        return network

    def of_model(self, model: Model) -> ExecutableNetwork:
        """The network of a model that was read from elsewhere, found by its content."""
        return self._by_model(model)[0]

    def _found(self, files: ModelFiles) -> tuple[ExecutableNetwork, Initializers] | None:
        content = self._index.find(files)
        if content is None:
            return None
        ports: dict[str, Port] = {}

        def load(reader: BlobReader) -> ExecutableNetwork:
            ports.update(_ports_of(reader))
            return self._steps.load(reader)

        entry = self._index.entry(content.key(files, self._identity))
        network = self._cache.load(entry, load, OwnWeights(files))
        return None if network is None else (network, Initializers(ports, partial(self._read_again, files)))

    def _read_again(self, files: ModelFiles) -> Model:
        """The model of a network that was loaded without it."""
        model, statuses = self._steps.read(files.path)
        if {location: Stamp.of(status) for location, status in statuses.items()} != files.stamps:
            raise ModelReadError(
                f"model `{files.path}` has changed since its network was loaded from the cache, which did not read it, "
                "so that the other values of its initializers are not known; compile the model again"
            )
        return model

    def _by_model(self, model: Model, files: ModelFiles | None = None) -> tuple[ExecutableNetwork, str | None]:
        """The network of a model, and the key of its entry if there is one; `files`: those that it was read from."""
        key = self._steps.content_key(model)
        network = self._cache.load(key, self._steps.load)
        if network is not None:
            return network, key
        network = self._steps.compile(model)
        is_stored = self._steps.is_current() and self._cache.store(key, network, _metadata(Initializers.of(model)))
        if is_stored and files is not None and not files.is_unchanged():
            # Weights are views of the files: those of the entry may not be what was hashed.
            self._cache.remove(key)
            is_stored = False
        return network, key if is_stored else None

    def _store(
        self, files: ModelFiles, is_named_by_file: bool, network: ExecutableNetwork, metadata: Mapping[str, Any]
    ) -> None:
        try:
            with files.kept() as is_kept:
                if not is_kept or not self._steps.is_current() or not self._cache.is_usable():
                    return
                self._record(files, is_named_by_file, lambda key: self._stored(files, key, network, metadata))
        except Exception as e:  # in a thread, where nobody else would hear of it
            self._cache.complain("the network `%s` is not cached: %s", network.name, e)
            _log.debug("the network `%s` is not cached", network.name, exc_info=True)

    def _stored(
        self, files: ModelFiles, key: str, network: ExecutableNetwork, metadata: Mapping[str, Any]
    ) -> str | None:
        """The key of the network's entry; None if it could not be stored."""
        is_there = self._cache.was_stored_since(key, files.begun_ns)
        if is_there:
            return key
        if not self._cache.store(key, network, metadata, OwnWeights(files)):
            return None
        if not files.is_unchanged():
            # Weights are views of the files: those of the entry may not be what was hashed.
            self._cache.remove(key)
            return None
        return key

    def _record(self, files: ModelFiles, is_named_by_file: bool, entry_of: Callable[[str], str | None]) -> None:
        """Record which entry the content of files has, as `entry_of` says by the content's key, if it has one."""
        hashes = files.unchanged_hashes()
        if hashes is None:
            _log.info("model `%s` has changed while it was compiled; its network is not cached", files.path)
            return
        content = Content(hashes, is_named_by_file)
        key = content.key(files, self._identity)
        entry = entry_of(key)
        if entry is None:
            return
        try:
            self._index.write(files, content, key, entry)
        except (OSError, ValueError) as e:
            self._cache.complain("the cache's index cannot be written: %s", e)


def _metadata(initializers: Initializers) -> dict[str, Any]:
    return {_INITIALIZERS: [port.to_json() for port in initializers.ports.values()]}


def _ports_of(reader: BlobReader) -> dict[str, Port]:
    listed = reader.manifest.metadata.get(_INITIALIZERS)
    if not isinstance(listed, list):
        raise BlobFormatError(f"{reader.where}: it does not say which initializers the model offers as inputs")
    ports = [Port.from_json(each) for each in listed]
    return {port.name: port for port in ports}
