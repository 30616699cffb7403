"""`Compilation`: compiles a model for a device, or finds the network in a cache. Importing a blob does not load it."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

from engine.blob import BlobReader
from engine.core.cache import CompileCache, user_cache
from engine.core.code import CodeReader
from engine.core.file_cache import FileCache, Steps
from engine.core.fingerprint import cache_key, has_effects, plugin_identity
from engine.core.live_networks import LiveNetworks
from engine.core.model_files import OWN, ModelFiles, Stamp
from engine.extensions import REQUIREMENT, ExtensionSet
from engine.files import ModelSource
from engine.hosting.overrides import Initializers
from engine.ir import Model
from engine.plugin_api import Config, ExecutableNetwork, Plugin
from engine.properties import ALLOW_SHARED_CACHE, CACHE_DIR, IMPORT_EXPORT_SUPPORT
from engine.startup import dataclass


class Origins:
    """The files of models that were read for devices that compile them on others. Thread-safe."""

    def __init__(self) -> None:
        self._files: WeakKeyDictionary[Model, ModelFiles] = WeakKeyDictionary()

    def of(self, model: object) -> ModelFiles | None:
        """The files of a model, to be watched further; None if it is none, or was not read here."""
        files = self._files.get(model) if isinstance(model, Model) else None
        return None if files is None else files.copy()

    def read(self, path: str | os.PathLike[str]) -> Model:
        """Read a model, and remember its files. Raises `ModelError`."""
        files = ModelFiles(path)
        files.watch(OWN, Stamp.now(files.path))
        model, statuses = read_file(path)
        files.watch_read(statuses)
        self._files[model] = files
        return model

    def note_copy(self, copy: Model, model: Model) -> None:
        """Remember that a copy has the files of the model that it is equal to."""
        files = self._files.get(model)
        if files is not None:
            self._files[copy] = files


@dataclass(frozen=True, slots=True)
class Compilation:
    """A device, its configuration, and what the core does for it.

    Attributes:
        config: the complete configuration.
        max_bytes: of all entries of the cache together.
        extensions: the core's, those of installed packages loaded.
        origins: of the models of this core.
        live: the networks of this core that are in use.
        ready: reads a model, or checks one.
        compile: compiles a model with operators of these extensions.
        load: makes the network of an entry of the cache.
        targets: the devices that a device runs on, with their configurations.
    """

    plugin: Plugin
    config: Config
    max_bytes: int
    extensions: ExtensionSet
    origins: Origins
    live: LiveNetworks
    ready: Callable[[Model | ModelSource], Model]
    compile: Callable[[Model, tuple[str, ...]], ExecutableNetwork]
    load: Callable[[BlobReader], ExecutableNetwork]
    targets: Callable[[Plugin, Config], list[tuple[Plugin, Config]]]

    def network(self, model: Model | ModelSource) -> tuple[ExecutableNetwork, Initializers]:
        """The network, and the model's initializers that inferences may give other values."""
        self.extensions.load_installed()
        path = model if isinstance(model, (str, os.PathLike)) else None
        origin = self.origins.of(model)
        cache = self._cache(is_file=path is not None or origin is not None)
        files = None if cache is None else self._files(cache)
        if files is None:
            is_passed_on = self.plugin.caches_parts and not self.config[CACHE_DIR]
            ready = self.origins.read(path) if path is not None and is_passed_on else self.ready(model)
            return self._compiled(ready), _initializers(ready, model)
        if path is not None:
            return files.network(path)
        ready = self.ready(model)
        network = files.of_model(ready) if origin is None else files.of_read(origin, ready)
        return network, _initializers(ready, model)

    def _cache(self, *, is_file: bool) -> CompileCache | None:
        """The cache of this compilation; None if it has none."""
        plugin, config = self.plugin, self.config
        if plugin.caches_parts or not plugin.get_metric(IMPORT_EXPORT_SUPPORT.name):
            return None
        if config[CACHE_DIR]:
            return CompileCache(config[CACHE_DIR], self.max_bytes, is_shared=config[ALLOW_SHARED_CACHE])
        folder = user_cache()
        if CACHE_DIR.name in config.explicit or not is_file or not folder or has_effects(plugin, config):
            return None
        cache = CompileCache(folder, self.max_bytes, is_shared=config[ALLOW_SHARED_CACHE], is_stated=False)
        why = cache.files.refusal()
        if why is not None:
            cache.complain("networks are not cached: %s", why)
        return cache if why is None else None

    def _files(self, cache: CompileCache) -> FileCache | None:
        """The cache for what this compilation depends on; None if that is not known."""
        defaults, is_installed_too = self.plugin.config, not cache.is_stated
        code = CodeReader(is_installed_too=is_installed_too)
        identity = self._identity(code, self.plugin, self.config)
        if is_installed_too and not code.is_known:
            return None

        def is_current() -> bool:
            """Whether defaults, files and code are what they were: the network may use the new, the key the old."""
            again = CodeReader(is_installed_too=is_installed_too)
            is_same = self.plugin.config is defaults and self._identity(again, self.plugin, self.config) == identity
            return is_same and again.is_loaded

        def content_key(ready: Model) -> str:
            extensions = self.extensions.check(ready)
            return cache_key(ready, {**identity, REQUIREMENT: extensions} if extensions else identity)

        # Which operators a model uses is not known before it is read.
        all_extensions = {**identity, REQUIREMENT: sorted(self.extensions.names)}
        steps = Steps(read_file, self._compiled, self.load, is_current, content_key)
        return FileCache(
            cache, all_extensions, steps, self.live, Config(self.plugin.declared, dict(self.config)).to_json()
        )

    def _identity(
        self, code: CodeReader, plugin: Plugin, config: Config, above: tuple[Plugin, ...] = ()
    ) -> dict[str, Any]:
        """The identity of a plugin and its configuration, with the identities of the devices that it runs on."""
        above = (*above, plugin)
        targets = [(other, stated) for other, stated in self.targets(plugin, config) if other not in above]
        return plugin_identity(plugin, config, [self._identity(code, *target, above) for target in targets], code)

    def _compiled(self, ready: Model) -> ExecutableNetwork:
        return self.compile(ready, self.extensions.check(ready))


def read_file(path: str | os.PathLike[str]) -> tuple[Model, dict[str, os.stat_result]]:
    """Read a model, and tell which files were mapped. Loads the compiler. Raises `ModelError`."""
    from engine.onnx.importer import read_with_statuses

    return read_with_statuses(path)


def _initializers(ready: Model, given: object) -> Initializers:
    """The initializers of a model as it was read; a user may change the model that was given."""
    found = Initializers.of(ready)
    return Initializers.of(ready.clone()) if ready is given and found.ports else found
