"""`Core`: reads models, and compiles, imports and queries them on the devices that plugins provide."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from engine.blob import (
    BlobCheck,
    BlobInput,
    BlobManifest,
    BlobPart,
    BlobReader,
    SectionTransform,
    WeightsFile,
    check_blob,
    transform_of,
)
from engine.blob.check import is_package, read_manifests
from engine.core.compatibility import check_for_plugin, check_sections, why_malformed, why_not_read
from engine.core.device_name import DeviceName, is_device_id, parse_device, suggestion
from engine.core.plugin_calls import compile_network, create_context, import_network, query_network
from engine.core.plugin_core import PluginCore
from engine.core.report import report, warn_of
from engine.core.settings import CACHE_MAX_BYTES, CORE_PROPERTIES, exported_config, stated_config, with_core_defaults
from engine.core.trust import may_be_mapped, may_be_used_in_place, verify_blob, with_signature
from engine.core.weights import open_weights
from engine.errors import (
    BlobCorruptError,
    BlobError,
    DeviceNotFoundError,
    EngineError,
    PluginContractError,
    PluginError,
    PropertyError,
    TargetError,
    UnsupportedError,
)
from engine.extensions import ExtensionInfo, ExtensionSet
from engine.files import ModelSource
from engine.hosting.api_changes import why_outdated
from engine.limits import report_progress, watched
from engine.plugin_api import ExecutableNetwork, Plugin, RemoteContext
from engine.properties import (
    AVAILABLE_DEVICES,
    CACHE_DIR,
    CONFIG,
    DEVICE_ID,
    DEVICE_PRIORITIES,
    ENABLE_MMAP,
    FULL_DEVICE_NAME,
    ONLY_IF_NAMED,
    REMOTE_CONTEXT_SUPPORT,
    TARGET,
    Config,
    PropertySet,
)
from engine.registry.installed import InstalledEntryPoints
from engine.registry.plugins import PluginOrigin, PluginRegistry, PluginSource
from engine.runtime.lifecycle import ForkSafeLock
from engine.startup import dataclass

if TYPE_CHECKING:
    from engine.blob import BlobRelease
    from engine.core.cache import CacheContents
    from engine.core.compilation import Origins
    from engine.core.live_networks import LiveNetworks
    from engine.core.variant_choice import VariantChoice
    from engine.extensions import ExtensionSource  # which loads the operators
    from engine.hosting.overrides import Initializers
    from engine.ir import Model
    from engine.limits import CancelSignal, Progress
    from engine.plugin_api import QueryResult
    from engine.properties import CpuTarget


_DEFAULT_DEVICE: Final = "AUTO"
_log: Final = logging.getLogger("engine.core")


@dataclass(frozen=True, slots=True)
class PluginVersion:
    """The plugin that provides a device: its version, the API that it was written for, where it comes from.

    `outdated` says what its author has to change for the next engine, as a clause; "" for a plugin for the current API.
    """

    device: str
    version: str
    api_version: int
    origin: PluginOrigin
    outdated: str = ""


class Core:
    """The engine of an application: its plugins, and the defaults of its compilations.

    What applications use first:

        core = Core()
        core.available_devices                                  # such as ["CPU", "TEMPLATE"]
        network = core.compile_model("model.onnx")              # a path, bytes, or a model; on the fastest device
        network = core.compile_model("model.onnx", "TEMPLATE")  # on this device
        result = network({"x": array})["y"]                     # one inference

        model = core.read_model("model.onnx")                   # to inspect or to change it first
        core.query_model(model, "TEMPLATE").nodes               # how the device runs each node
        core.set_property({"CACHE_DIR": "cache"})               # a default for all later compilations
        core.get_property("TEMPLATE", "FULL_DEVICE_NAME")       # a metric of a device, or a default
        network.export_model("network.blob")
        network = core.import_model("network.blob")             # without the model, in another process

    A device string is a plugin's name ("CPU"), optionally with the id of one of its devices ("OPENCL.1"), or with the
    devices that it runs on ("HETERO:OPENCL.1,CPU", "BATCH:CPU(16)"). Plugins are found in the entry-point group
    `engine.plugins` and loaded on first use; a broken one affects no other.

    Cores share nothing with each other but the definitions of extension operators (`add_extension`). All methods may be
    called from any thread. Networks outlive their core.
    """

    def __init__(self) -> None:
        installed = InstalledEntryPoints()
        self._registry = PluginRegistry(PluginCore(self), installed)
        self._extensions = ExtensionSet(installed, ForkSafeLock())
        self._defaults = Config(CORE_PROPERTIES, where="Core")
        self._lock = ForkSafeLock()
        self._origins: Origins | None = None
        self._live: LiveNetworks | None = None

    def __repr__(self) -> str:
        return f"<Core with the plugins {', '.join(self._registry.names) or 'none'}>"

    def _repr_html_(self) -> str:
        from engine.drawing.html import html_table

        available, unavailable = self._survey()
        rows = [(device, self.get_property(device, FULL_DEVICE_NAME.name)) for device in available]
        rows += [(name, f"cannot be used: {error}") for name, error in unavailable.items()]
        return html_table("Core", ("Device", "Name"), rows)

    # -- models and networks ------------------------------------------------------------------------------

    def read_model(self, model: ModelSource, weights: str | os.PathLike[str] | None = None) -> Model:
        """Read an ONNX model from a path, bytes, a binary stream or a `ModelProto`; see `engine.onnx.read_model`.

        The tensors of the safetensors file `weights` replace the data of the initializers of the same names.
        """
        from engine.onnx import read_model

        self._extensions.load_installed()
        return read_model(model, weights)

    def compile_model(
        self,
        model: Model | ModelSource,
        device: str | RemoteContext | None = None,
        config: Mapping[str, object] | None = None,
        *,
        target: CpuTarget | str | None = None,
        cancel: CancelSignal | None = None,
        progress: Progress | None = None,
    ) -> ExecutableNetwork:
        """Compile a model, or anything that `read_model` takes, for a device, or for a context of `create_context`.

        Without a device, it is `default_device`: AUTO, which begins on the device that is ready first, and stays on the
        fastest.

        The requests of a network that is compiled for a context take the context's tensors as inputs and outputs.

        `config` overrides the defaults that `set_property` has set. If the device can export networks, the result of an
        equal compilation of a model in a file is loaded from the user's cache, and of any model from CACHE_DIR if it is
        set; the metric LOADED_FROM_CACHE reports it. CACHE_DIR="" always compiles. While a network of the same file is
        in use, the new one shares its plans and weights, if the device can do that.

        `target` compiles for another machine than this one: "x86-64:avx2", a `CpuTarget`, or "source", for all, so that
        the network is lowered where it is imported. It is the property TARGET of the devices that can do that; their
        metric TARGETS lists the targets. A network that this machine cannot run refuses requests with `TargetError`,
        and can be exported.

        The model is not changed, and later changes to it do not affect the network. An `EngineWarning` says what a user
        should know of it, such as that nodes run on the reference evaluator; EXECUTION_SUMMARY has the same.

        Initializers that the file also lists as inputs are constants of the network; an inference that gives one
        another value compiles the model a second time, with it as an input (`ExecutableNetwork.overridable`).

        `cancel`, such as a `threading.Event`, ends the compilation with `Cancelled` soon after it is set: between two
        passes or two operations. `progress(what, share)` is called before each of them, by the threads that compile,
        one call at a time, with what is done next and an estimate of the share that is done, from 0 to 1; an exception
        in it ends the compilation, too. What AUTO compiles in the background is not watched.

        Raises `DeviceNotFoundError`, `PluginLoadError`, `PropertyError`, `ModelError`, `UnsupportedError` with the
        node that the device cannot run, `TargetError`, `MissingExtensionError`, `Cancelled`, and other `EngineError`s
        of the device.
        """
        if target is not None:
            config = self._with_target(device, config, str(target))
        with watched(cancel, progress):
            report_progress("read", "reading the model")
            network = self.compile_part(model, device, config)
        warn_of(network)
        return network

    def _with_target(
        self, device: str | RemoteContext | None, config: Mapping[str, object] | None, target: str
    ) -> Mapping[str, object]:
        """The configuration with TARGET. Raises `TargetError` if the device compiles for this machine only."""
        if not target:
            raise TargetError("the target is empty; omit it to compile for this machine")
        _, name = self._target(self.default_device if device is None else device)
        plugin = self._resolve(name)[1]
        if TARGET not in plugin.declared:
            raise TargetError(
                f"{plugin.name} compiles for this machine only, and not for {target!r}; devices that compile for "
                f"others: {', '.join(self.devices_with_targets()) or 'none'}"
            )
        stated = (config.explicit if isinstance(config, Config) else config or {}).get(TARGET.name, target)
        if stated != target:
            raise PropertyError(f"{TARGET.name} is {stated!r} in the configuration, and the target is {target!r}")
        return {**(config.explicit if isinstance(config, Config) else config or {}), TARGET.name: target}

    def devices_with_targets(self) -> tuple[str, ...]:
        """The devices that compile for other machines, and compute themselves. Loads all plugins."""
        found = []
        for name in self._registry.names:
            with suppress(EngineError):
                declared = self._registry.get(name).declared
                if TARGET in declared and DEVICE_PRIORITIES not in declared:
                    found.append(name)
        return tuple(found)

    def compile_part(
        self,
        model: Model | ModelSource,
        device: str | RemoteContext | None = None,
        config: Mapping[str, object] | None = None,
    ) -> ExecutableNetwork:
        """Compile like `compile_model`, without an `EngineWarning`: for a network that is a part of another one."""
        start = time.perf_counter()
        target = self.default_device if device is None else device
        network, initializers = self._compiled_or_cached(model, target, config)
        if network.takes_overrides and initializers.ports:
            from engine.hosting.overrides import Overrides

            network.overrides = Overrides(
                initializers, lambda changed: self._compiled_or_cached(changed, target, config)[0]
            )
        network.compile_seconds = time.perf_counter() - start
        report(network, "loaded from the cache" if network.loaded_from_cache else "compiled")
        return network

    def _compiled_or_cached(
        self, model: Model | ModelSource, device: str | RemoteContext, config: Mapping[str, object] | None
    ) -> tuple[ExecutableNetwork, Initializers]:
        """The network, and the model's initializers that inferences may give other values."""
        from engine.core.compilation import Compilation

        context, device = self._target(device)
        plugin, stated = self._settled(device, config)
        _require_owner(context, plugin)
        complete = plugin.config.merged(stated)
        return Compilation(
            plugin,
            complete,
            self._defaults[CACHE_MAX_BYTES],
            self._extensions,
            self._read_origins(),
            self._live_networks(),
            self._ready,
            lambda ready, extensions: self._compiled(plugin, ready, stated, extensions, context),
            lambda reader: self._load(plugin, reader, complete, context),
            self._targets,
        ).network(model)

    def note_copy(self, copy: Model, model: Model) -> None:
        """For devices that run on others: `copy` is, and stays, equal to a model that the device compiles.

        Networks of the copy are then found in the cache by the files that the model was read from.
        """
        self._read_origins().note_copy(copy, model)

    def _live_networks(self) -> LiveNetworks:
        from engine.core.live_networks import LiveNetworks

        with self._lock:
            if self._live is None:
                self._live = LiveNetworks()
            return self._live

    def _read_origins(self) -> Origins:
        from engine.core.compilation import Origins

        with self._lock:
            if self._origins is None:
                self._origins = Origins()
            return self._origins

    def import_model(
        self,
        blob: BlobInput | BlobReader,
        device: str | RemoteContext | None = None,
        config: Mapping[str, object] | None = None,
        *,
        transform: SectionTransform | str | os.PathLike[str] | None = None,
        weights: str | os.PathLike[str] | None = None,
        release: BlobRelease | str | None = None,
        variant: str | None = None,
    ) -> ExecutableNetwork:
        """Import a compiled network from a path, bytes or a binary stream, which is read to the blob's end.

        A plugin passes a blob that its own contains as `reader.nested(section)`, so that the signature also covers it.
        `transform` is the key (or its file), or the transform, with which the blob was exported, and `weights` the file
        of weights; a blob that was exported without refuses them. With `release`, such as "resnet50:7", the blob must
        be signed by a key of TRUSTED_KEYS, and state this name, and this version or a later one.

        Of a package, the variant is imported that requires the most of what this machine has, or the one that is named
        `variant`. If it is damaged, that is an error: no other one is taken in its place.

        `device`, or a context of one, defaults to the device that the blob was compiled for. The configuration is the
        exported one, overridden by `config`. A file is read into memory, or mapped with ENABLE_MMAP.

        Raises `BlobFormatError`, `BlobCorruptError`, `BlobIncompatibleError` with every reason, `BlobSignatureError` as
        TRUSTED_KEYS, REQUIRE_SIGNATURE and `release` say, `BlobTransformError` for a wrong key or a blob that was not
        exported with it, and, for device and configuration, the errors of `compile_model`.
        """
        start = time.perf_counter()
        cipher = transform_of(transform)
        file = self._weights(weights, is_encrypted=cipher is not None)
        required = _parsed_release(release)
        if isinstance(blob, BlobReader):
            reader: BlobReader | None = blob
        elif isinstance(blob, (str, os.PathLike)):
            reader = None
        else:
            reader = BlobReader(blob, transform=cipher, weights=file)
        manifest = _manifest_of(blob) if reader is None else reader.manifest  # type: ignore[arg-type]
        context, device = self._target(manifest.device if device is None else device)
        plugin, stated = self._settled(device, config, manifest.config)
        _require_owner(context, plugin)
        if reader is None:
            is_mapped = plugin.config.merged(stated)[ENABLE_MMAP] and may_be_mapped(blob, self._defaults)
            reader = BlobReader(
                blob,  # type: ignore[arg-type]
                mmap=is_mapped,
                on_demand=is_package(manifest),
                transform=cipher,
                weights=file,
            )
            if reader.manifest != manifest:  # whose configuration nothing has verified
                raise BlobError(f"{reader.where} was replaced while it was imported; import it again")
        check_sections(reader.manifest, cipher, file)
        verify_blob(reader, self._defaults, required)
        if is_package(reader.manifest):
            network = self._import_variant(plugin, reader, device, config, context, variant)
        elif variant is not None:
            raise BlobError(f"{reader.where} is not a package, and has no variant {variant!r}; omit it")
        else:
            network = self._import(plugin, reader, stated, context)
        network.compile_seconds = time.perf_counter() - start
        report(network, "imported")
        return network

    def _import_variant(
        self,
        plugin: Plugin,
        package: BlobReader,
        device: str,
        config: Mapping[str, object] | None,
        context: RemoteContext | None,
        name: str | None,
    ) -> ExecutableNetwork:
        """The network of a variant, which has a configuration of its own."""
        from engine.blob.package import open_variant
        from engine.core.variant_choice import choose_variant, require_variant

        stated_id = self._settled(device, config)[1].get(DEVICE_ID.name, "")
        device_id = _device_id(plugin, package.manifest, stated_id)
        choice = choose_variant(plugin, package.manifest, device_id, self._extensions.names, name)
        chosen = require_variant(choice, package.where, name)
        try:
            reader = open_variant(package, chosen)
            _, stated = self._settled(device, config, reader.manifest.config)
            network = self._import(plugin, reader, stated, context)
        except BlobCorruptError as e:
            others = f"; variant={choice.others[0]!r} imports another one" if choice.others else ""
            raise BlobCorruptError(f"variant {chosen!r}: {e}{others}") from e
        _log.info("%s: variant %r of %d", package.where, chosen, len(choice.reasons))
        return network

    def create_context(self, device: str, properties: Mapping[str, object] | None = None) -> RemoteContext:
        """Make a context of a device: `create_context("OPENCL.1")`. Its tensors stay in the device's memory.

        `properties`: config keys that select the device, and native objects of the application that the context is made
        of, by the names that the device documents, such as OPENCL's `OCL_CONTEXT` and `OCL_QUEUE`.

        Raises `UnsupportedError` for a device without contexts, `PropertyError` for unknown properties, `InputError`
        for native objects that do not fit, and the errors of `compile_model` for the device.
        """
        target, plugin = self._resolve(device)
        if not plugin.get_metric(REMOTE_CONTEXT_SUPPORT.name):
            others = ", ".join(self._with_contexts()) or "another device (no device of this machine has any)"
            raise UnsupportedError(
                f"{plugin.name} has no remote contexts; set arrays, which its requests use in place, or create a "
                f"context of {others}"
            )
        given = dict(properties or {})
        handles = {name: given.pop(name) for name in plugin.context_handles if name in given}
        if unknown := [name for name in given if name not in plugin.declared]:
            listed = "; ".join(f"{name}: {what}" for name, what in plugin.context_handles.items()) or "none"
            raise PropertyError(
                f"{plugin.name}: a context has no property {unknown[0]!r}; it takes config keys of the device, and "
                f"these native objects: {listed}"
            )
        _, stated = self._settled(device, given)
        return create_context(plugin, str(target), stated, handles)

    def query_model(
        self, model: Model | ModelSource, device: str, config: Mapping[str, object] | None = None
    ) -> QueryResult:
        """Return for every node of a model whether a device runs it natively, by reference evaluation, or not at all.

        Raises the errors of `compile_model` for model, device and configuration.
        """
        plugin, stated = self._settled(device, config)
        ready = self._ready(model)
        self._extensions.check(ready)
        return query_network(plugin, ready, stated)

    def check_blob(
        self,
        blob: BlobInput,
        device: str | None = None,
        *,
        transform: SectionTransform | str | os.PathLike[str] | None = None,
        weights: str | os.PathLike[str] | None = None,
        release: BlobRelease | str | None = None,
    ) -> BlobCheck:
        """Check from its manifest alone whether a blob would load here, and give every reason against it.

        There are three answers: it runs; it runs, and would be faster if it was compiled again, with advice; or no.

        The manifests of the blobs in it, the parts of AUTO, HETERO and BATCH, also count; they are `parts` of the
        answer. Sections are read only from an encrypted blob, where the content alone shows whether they are blobs, and
        from a stream that cannot seek.

        Of a package, `variant` is the one that would be imported, and `variants` has the reasons against each.

        `device` defaults to the one that the blob was compiled for; `transform`, `weights` and `release` mean the same
        as for `import_model`. The position of a seekable stream is restored. The answer also says whether a trusted key
        has signed the blob. Raises `BlobFormatError` if the data is damaged or not a blob, `BlobError` if it cannot be
        read.
        """
        target = None if device is None else self._parse(device)
        cipher, file = transform_of(transform), self._weights(weights)
        check = read_manifests(blob, cipher, file)
        manifest = check.manifest
        if manifest is None:
            return check
        if is_package(manifest):
            answer = self._compared_package(manifest, target, check.parts)
            check = replace(check, variant=answer.variant, variants=answer.variants)
        else:
            answer = self._compared(manifest, target)
        reasons, advice = [*answer.reasons, *why_not_read(manifest, cipher, file)], [*answer.advice]
        for part, answer in self._compared_parts(check.parts) if not is_package(manifest) else ():
            reasons += [f"{part.name}: {each}" for each in answer.reasons]
            advice += [f"{part.name}: {each}" for each in answer.advice]
        required = _parsed_release(release)
        check = replace(check, reasons=tuple(reasons), advice=tuple(advice))
        return with_signature(check, "the blob", self._defaults, required)

    def _choice(
        self, manifest: BlobManifest, target: DeviceName | None
    ) -> tuple[VariantChoice | None, tuple[str, ...]]:
        """The variant of a package that would be imported, and why none would be."""
        from engine.core.variant_choice import choose_variant

        try:
            target = self._parse(manifest.device) if target is None else target
            plugin = self._plugin(target)
            device_id = _device_id(plugin, manifest, target.device_id)
            choice = choose_variant(plugin, manifest, device_id, self._extensions.names)
        except PluginError as e:
            return None, (str(e),)
        return choice, (*choice.why_none(), *why_malformed(manifest))

    def _compared_package(
        self, manifest: BlobManifest, target: DeviceName | None, parts: Sequence[BlobPart], within: str = ""
    ) -> BlobCheck:
        """Whether a package, whose section names begin with `within` in `parts`, has a variant for its device here."""
        from engine.blob.package import section_of_variant

        choice, misfits = self._choice(manifest, target)
        if choice is None:
            return BlobCheck(misfits, manifest)
        reasons: list[str] = [*misfits]
        advice: list[str] = []
        section = within + section_of_variant(choice.chosen)
        for part in parts:
            if part.name == section and part.manifest is None:
                reasons.append(f"variant {choice.chosen!r}: {part.reason}")
            elif part.name == section and part.manifest is not None:
                found = self._compared(part.manifest, target)
                advice += [f"variant {choice.chosen!r}: {each}" for each in found.advice]
        return BlobCheck(tuple(reasons), manifest, advice=tuple(advice), variant=choice.chosen, variants=choice.reasons)

    def _compared_parts(self, parts: Sequence[BlobPart]) -> Iterator[tuple[BlobPart, BlobCheck]]:
        """Whether each blob in a blob fits its device here; of a package among them, the variants count together."""
        packages: list[str] = []
        for part in parts:
            if part.name.startswith(tuple(packages)):
                continue
            if part.manifest is None:
                yield part, BlobCheck((part.reason,), None)
                continue
            if is_package(part.manifest):
                packages.append(f"{part.name}/")
                answer = self._compared_package(part.manifest, None, parts, packages[-1])
            else:
                answer = self._compared(part.manifest, None)
            # A key or a file of weights that is passed with the outer blob is not for those in it.
            yield part, replace(answer, reasons=(*answer.reasons, *why_not_read(part.manifest, None, None)))

    def _compared(self, manifest: BlobManifest, target: DeviceName | None) -> BlobCheck:
        """Whether a blob with this manifest, or a part of one, fits its device here, or `target`."""
        try:
            target = self._parse(manifest.device) if target is None else target
            plugin = self._plugin(target)
            device_id = _device_id(plugin, manifest, target.device_id)
            check = check_for_plugin(plugin, manifest, device_id, self._extensions.names)
            check = replace(check, reasons=(*check.reasons, *why_malformed(manifest)))
        except PluginError as e:
            return BlobCheck((str(e),), manifest)
        listed = target.priorities or manifest.config.get(DEVICE_PRIORITIES.name)
        if check.reasons or plugin.chooses_devices or DEVICE_PRIORITIES not in plugin.declared or not listed:
            return check
        absent = tuple(why for device in str(listed).split(",") if (why := self._why_absent(device)))
        return replace(check, reasons=absent)

    def _why_absent(self, device: str) -> str:
        """Why a device that another one runs on does not exist here; empty if it does."""
        try:
            target, plugin = self._resolve(device.partition("(")[0])  # "CPU(16)" of BATCH
            plugin.resolve_device_id(target.device_id)
        except PluginError as e:
            return str(e)
        return ""

    # -- devices and plugins ------------------------------------------------------------------------------

    @property
    def available_devices(self) -> list[str]:
        """The usable devices: "CPU", or "OPENCL.0" and "OPENCL.1" if a plugin has several.

        Loads every plugin; those that fail or find no device are in `unavailable_devices` instead.
        """
        return self._survey()[0]

    @property
    def default_device(self) -> str:
        """The device of compilations that name none: AUTO if its plugin is installed, else the only available device.

        Devices that run on others do not count. Raises `DeviceNotFoundError` if there are several, or none.
        """
        if _DEFAULT_DEVICE in self._registry.names:
            return _DEFAULT_DEVICE
        devices = self._computing(self._to_choose_from()) or self._computing(self.available_devices)
        if len(devices) == 1:
            return devices[0]
        raise DeviceNotFoundError(
            f"no device is given, and there is no plugin for {_DEFAULT_DEVICE}, which chooses one: pass a device to "
            f"compile_model, or install engine-plugin-auto; {self._listed_devices()}"
        )

    @property
    def installed_devices(self) -> list[str]:
        """The device names of all plugins, usable or not; none is loaded for it."""
        return self._registry.names

    @property
    def unavailable_devices(self) -> dict[str, EngineError]:
        """Why each of the other plugins is unusable, by device name."""
        return self._survey()[1]

    def get_versions(self, *names: str) -> dict[str, PluginVersion]:
        """Return the version of every plugin that can be loaded, by device name; with names, load these only."""
        versions = {}
        for name in self._registry.names:
            if names and name not in names:
                continue
            with suppress(PluginError):
                plugin = self._registry.get(name)
                (origin,) = self._registry.origins(name)
                outdated = why_outdated(plugin.api_version)
                versions[name] = PluginVersion(name, plugin.version, plugin.api_version, origin, outdated)
        return versions

    def register_plugin(self, name: str, plugin: PluginSource) -> None:
        """Add a plugin to this core: a `Plugin` subclass, a function that takes the core and returns one, or its
        "module:name".

        `name` replaces the name of a class, so one class may be added under several names. Nothing is imported
        or created before the first use. Raises `PluginError` for a malformed name or plugin, `PluginConflictError`
        if the name is taken and was not unloaded.
        """
        self._registry.register(name, plugin)

    @property
    def registered_plugins(self) -> dict[str, str]:
        """The plugins of `register_plugin` by device, each as "module:name" if it can be written so.

        Plugins of installed distributions are not listed: another core finds them by itself.
        """
        return self._registry.registered

    def unload_plugin(self, name: str) -> None:
        """Discard a plugin's instance with its defaults, or its failure; it is created again on next use.

        Its networks and requests stay usable, and the name can be registered again. Raises `DeviceNotFoundError`.
        """
        self._registry.unload(self._parse(name).name)

    # -- extensions ---------------------------------------------------------------------------------------

    def add_extension(self, extension: ExtensionSource) -> ExtensionInfo:
        """Add operators that models use, from a shared library with native kernels (`engine_kernel.h`), or Python code.

        `extension` is an `Extension`, one or more `Operator`s, a module that has an `EXTENSION`, the name of a module,
        or the path of a .py file or of a shared library.

        Modules and libraries run their code. An operator has one definition in a process: another core uses it after
        the same extension was also added there. Adding an extension again has no effect. Installed packages add theirs
        by entry points of the group `engine.ops`, without a call.

        Raises `ExtensionError` if the extension cannot be loaded, is not valid, or its check refuses this machine;
        `ExtensionConflictError` if it defines an operator that is defined already. Nothing is added then.
        """
        return self._extensions.add(extension)

    @property
    def extensions(self) -> tuple[ExtensionInfo, ...]:
        """The extensions that were added and the ones of installed packages, by name."""
        return self._extensions.infos

    @property
    def registered_extensions(self) -> dict[str, str]:
        """The extensions of `add_extension`, as "name version", each with its module's name or its path, else "".

        Those of installed packages are not listed: another core finds them by itself.
        """
        return self._extensions.sources

    @property
    def unavailable_extensions(self) -> dict[str, EngineError]:
        """Why extensions of installed packages are unusable, by the name of the entry point."""
        return self._extensions.failures

    # -- properties ---------------------------------------------------------------------------------------

    def get_property(self, device: str, name: str | None = None) -> Any:
        """Read a property: `get_property("TEMPLATE", "FULL_DEVICE_NAME")`, or the core's: `get_property("CACHE_DIR")`.

        For a config key, this is the value that the next compilation uses. Raises `PropertyError` listing all names.
        """
        if name is None:
            return self._defaults[device]
        target, plugin = self._resolve(device)
        stated = stated_config(plugin, target, None)
        if plugin.declared.require(name, where=plugin.name).mutability is CONFIG:
            return plugin.config.merged(with_core_defaults(plugin, stated, self._defaults))[name]
        return plugin.get_metric(name, target.device_id)

    def supported_properties(self, device: str) -> PropertySet:
        """Return the declarations of a device's metrics and config keys: type, default, allowed values, meaning."""
        return self._resolve(device)[1].declared

    def set_property(self, device: str | Mapping[str, object], values: Mapping[str, object] | None = None) -> None:
        """Set defaults for later compilations: `set_property("TEMPLATE", {"PERF_COUNT": True})`, or for all devices.

        A device's own default overrides one for all devices: `set_property({"CACHE_DIR": "cache"})`. All values
        are set, or none. Raises `PropertyError` for unknown names and values that are not allowed.
        """
        if isinstance(device, Mapping) and values is None:
            with self._lock:
                self._defaults = self._defaults.merged(device)
            return
        if not isinstance(device, str) or not isinstance(values, Mapping):
            raise PropertyError(
                "set_property takes a device and a mapping of names to values, or only the mapping for all devices"
            )
        target, plugin = self._resolve(device)
        if str(target) != target.name:
            raise PropertyError(
                f"defaults apply to a whole plugin: set them for {target.name!r}, not {device!r}; pass properties of "
                "a single device to compile_model"
            )
        plugin.set_config(values)

    def stated_defaults(self, device: str) -> dict[str, Any]:
        """Return what `set_property` has set for compilations on a device, be it for this one or for all.

        What is not in it has the declared default. Raises `DeviceNotFoundError`, `PluginLoadError`.
        """
        _, plugin = self._resolve(device)
        return with_core_defaults(plugin, plugin.config.explicit, self._defaults)

    def clear_cache(self) -> CacheContents:
        """Delete the networks in CACHE_DIR or, if it is not set, the cached networks of models in files.

        Returns what was deleted. Networks that are loaded stay usable, other files in the folder stay.
        """
        from engine.core.cache import CacheContents, CompileCache, user_cache

        stated = self._defaults[CACHE_DIR]
        folder = stated if CACHE_DIR.name in self._defaults.explicit else user_cache()
        return CompileCache(folder).clear() if folder else CacheContents("", 0, 0)

    # -- steps --------------------------------------------------------------------------------------------

    def _parse(self, device: str) -> DeviceName:
        try:
            return parse_device(device, self._registry.names)
        except DeviceNotFoundError as e:
            raise DeviceNotFoundError(f"{e}; {self._listed_devices()}") from None

    def _plugin(self, target: DeviceName) -> Plugin:
        names = self._registry.names
        if target.name in names:
            return self._registry.get(target.name)
        hint = suggestion(target.name, names)
        raise DeviceNotFoundError(f"no plugin provides device {str(target)!r}{hint}; {self._listed_devices()}")

    def _resolve(self, device: str) -> tuple[DeviceName, Plugin]:
        target = self._parse(device)
        return target, self._plugin(target)

    def _listed_devices(self) -> str:
        devices = ", ".join(self.available_devices)
        return f"available devices: {devices or 'none; install a plugin, such as engine-plugin-template'}"

    def _computing(self, devices: Iterable[str]) -> list[str]:
        """Those of these devices that do not run on others."""
        return [each for each in devices if DEVICE_PRIORITIES not in self._resolve(each)[1].declared]

    def _survey(self, names: Iterable[str] | None = None) -> tuple[list[str], dict[str, EngineError]]:
        """The usable devices of all plugins, or of these, and why the others are unusable."""
        available: list[str] = []
        unavailable: dict[str, EngineError] = {}
        for name in self._registry.names if names is None else names:
            try:
                available += _device_strings(self._registry.get(name))
            except EngineError as e:
                unavailable[name] = e
        return available, unavailable

    def _target(self, device: str | RemoteContext) -> tuple[RemoteContext | None, str]:
        """The context that a network is for, if any, and its device."""
        if not isinstance(device, RemoteContext):
            return None, device
        device.require_open()
        return device, device.device

    def _with_contexts(self) -> list[str]:
        found = []
        for name in self._registry.names:
            with suppress(EngineError):
                plugin = self._registry.get(name)
                if plugin.get_metric(REMOTE_CONTEXT_SUPPORT.name) and plugin.get_metric(AVAILABLE_DEVICES.name):
                    found.append(name)
        return found

    def _settled(
        self, device: str, config: Mapping[str, object] | None, exported: Mapping[str, Any] | None = None
    ) -> tuple[Plugin, dict[str, Any]]:
        """The plugin of a device string, and the values that override its own defaults and the exported values."""
        target, plugin = self._resolve(device)
        stated = stated_config(plugin, target, config)
        return plugin, with_core_defaults(plugin, stated, self._defaults, exported_config(plugin, exported or {}))

    def _compiled(
        self,
        plugin: Plugin,
        model: Model,
        stated: Mapping[str, Any],
        extensions: tuple[str, ...],
        context: RemoteContext | None,
    ) -> ExecutableNetwork:
        network = compile_network(plugin, model, stated, context)
        network.extensions = extensions
        network.unpickle, network.open_weights = unpickled_network, open_weights
        return network

    def _ready(self, model: Model | ModelSource) -> Model:
        from engine.ir import Model

        if not isinstance(model, Model):
            return self.read_model(model)
        import engine.ops  # noqa: F401  (which knows the types of operators)

        model.validate()
        return model

    def _import(
        self,
        plugin: Plugin,
        reader: BlobReader,
        stated: Mapping[str, Any],
        context: RemoteContext | None,
        *,
        is_for_here: bool = True,
    ) -> ExecutableNetwork:
        device_id = _device_id(plugin, reader.manifest, stated.get(DEVICE_ID.name, ""))
        if is_for_here:
            check = check_for_plugin(plugin, reader.manifest, device_id, self._extensions.names)
            check.require()
            if check.advice:
                _log.info(
                    "%s runs, and would be faster if it was compiled again: %s", reader.where, "; ".join(check.advice)
                )
        network = import_network(plugin, reader, stated, context)
        network.unpickle, network.open_weights = unpickled_network, open_weights
        return network

    def _weights(self, path: str | os.PathLike[str] | None, *, is_encrypted: bool = False) -> WeightsFile | None:
        """The file of weights that a caller named, which is not used in place if others could change it."""
        if path is None:
            return None
        file = open_weights(path)
        file.is_used_in_place = may_be_used_in_place(file, self._defaults, is_encrypted)
        return file

    def _load(
        self, plugin: Plugin, reader: BlobReader, complete: Config, context: RemoteContext | None
    ) -> ExecutableNetwork:
        """Load a cached network as if it had been compiled with the configuration `complete`."""
        reader.admit()
        # The blob's own configuration may name another device string than this compilation.
        exported = {name: complete[name] for name in reader.manifest.config if name in complete}
        # A network for another machine, of this machine's cache, does not run here, and is exported again.
        is_for_here = not complete.get(TARGET.name)
        return self._import(plugin, reader, {**exported, **complete.explicit}, context, is_for_here=is_for_here)

    def _to_choose_from(self) -> list[str]:
        """The usable devices that may be used although nobody has named them. The others are not looked for."""
        return self._survey(name for name in self._registry.names if not self._must_be_named(name))[0]

    def _must_be_named(self, name: str) -> bool:
        try:
            return bool(self._registry.get(name).get_metric(ONLY_IF_NAMED.name))
        except EngineError:  # which the survey meets again
            return False

    def _targets(self, plugin: Plugin, config: Config) -> list[tuple[Plugin, Config]]:
        """The devices that a device runs on, with their configurations; none if it computes itself."""
        if DEVICE_PRIORITIES not in plugin.declared:
            return []
        listed = config[DEVICE_PRIORITIES]
        devices = listed.split(",") if listed else self._to_choose_from()
        settled = [self._settled(device, None) for device in devices]
        return [(other, other.config.merged(stated)) for other, stated in settled]


@cache
def _unpickling_core() -> Core:
    return Core()


def unpickled_network(blob: bytes) -> ExecutableNetwork:
    """Import the blob of a pickled network, perhaps in another process; the networks of a process share a core."""
    return _unpickling_core().import_model(blob)


def _require_owner(context: RemoteContext | None, plugin: Plugin) -> None:
    if context is not None and context.plugin is not plugin:
        raise UnsupportedError(
            f"{context} was created by another Core, or before its plugin was unloaded; create one with this core: "
            f"core.create_context({context.device!r})"
        )


def _parsed_release(release: BlobRelease | str | None) -> BlobRelease | None:
    if release is None:
        return None
    from engine.blob import BlobRelease

    return BlobRelease.parse(release)


def _manifest_of(blob: BlobInput) -> BlobManifest:
    check = check_blob(blob)
    check.require()
    assert check.manifest is not None
    return check.manifest


def _device_id(plugin: Plugin, manifest: BlobManifest, stated: str) -> str:
    """The id of the device for a blob: as requested, else as exported, else the plugin's default."""
    exported = manifest.config.get(DEVICE_ID.name)
    return stated or (exported if isinstance(exported, str) else plugin.config[DEVICE_ID])


def _device_strings(plugin: Plugin) -> list[str]:
    ids = plugin.get_metric(AVAILABLE_DEVICES.name)
    if not ids:
        raise DeviceNotFoundError(f"{plugin.name} finds no device on this machine")
    if wrong := [device_id for device_id in ids if not is_device_id(device_id)]:
        raise PluginContractError(
            f"plugin {plugin.name}: a device id consists of letters, digits, - and _; device_ids returned {wrong}"
        )
    return [f"{plugin.name}.{device_id}" for device_id in ids] if len(ids) > 1 else [plugin.name]
