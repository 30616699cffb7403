"""Loading: a file of a repository becomes a network, compiled or imported as the model's configuration says."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from engine.blob import BlobRelease, check_blob, is_blob
from engine.core import Core
from engine.core.device_name import parse_device
from engine.errors import EngineError, PassError, RepositoryError
from engine.generation import Adapter, Draft, PromptLookup, read_adapter
from engine.generation.adapted import AdapterInputs
from engine.ir import TensorType
from engine.passes import LastPosition, MakeAdaptable, MakeStateful, MaskedCaches
from engine.plugin_api import ExecutableNetwork
from engine.properties import DEVICE_CONFIGS, DEVICE_PRIORITIES, INFERENCE_NUM_THREADS, NUM_STREAMS, PERFORMANCE_HINT
from engine_serve.model_config import CONFIG_FILE, PROMPT_LOOKUP, Generation, ModelConfig

if TYPE_CHECKING:
    from engine.plugin_api import Port

_log = logging.getLogger("engine.serving")
_CORES: Final = {PERFORMANCE_HINT.name, NUM_STREAMS.name, INFERENCE_NUM_THREADS.name}


@dataclass(frozen=True, slots=True)
class BlobOptions:
    """How blobs are imported.

    Attributes:
        decrypt: the key that decrypts them.
        releases: by the name of a model, its required release; a later one is also accepted.
    """

    decrypt: str | None = None
    releases: Mapping[str, BlobRelease] = field(default_factory=dict)


def load_network(core: Core, name: str, path: Path, config: ModelConfig, blobs: BlobOptions) -> ExecutableNetwork:
    """Compile a model, or import a blob, of the model called `name`.

    Raises `RepositoryError` if the configuration asks for batches or a language model of a blob that is not one, or for
    sequences of a model without variables, if a release is required and this is not a blob, or if an input or output is
    not a tensor; and the errors of `Core.compile_model` and `Core.import_model`.
    """
    release = _required(path, config.release, blobs.releases.get(name))
    if is_blob(path):
        network = _imported(core, path, config, blobs.decrypt, release)
    elif release is None:
        network = _compiled(core, path, config)
    else:
        raise RepositoryError(
            f"{path} is a model, which has no signature, and release {release} is required; compile it with `engine "
            f"compile --sign FILE --release {release}`"
        )
    if config.sequences is not None and not network.variables:
        raise RepositoryError(f"{path}: `sequences` is set, but the model has no variables; leave it out")
    for kind, ports in (("input", network.inputs), ("output", network.outputs)):
        for port in ports:
            _require_tensor(path, kind, port)
    return network


def load_adapters(path: Path, config: ModelConfig, network: ExecutableNetwork) -> dict[str, Adapter]:
    """The adapters of the model whose file is `path`, by their names.

    Raises `AdapterError` for one that cannot be read, that does not fit the network, or whose rank is above
    `adapter_rank`, and for a blob that takes none.
    """
    adapters = {} if config.generation is None else config.generation.adapters
    made = {name: read_adapter(path.parent / folder) for name, folder in adapters.items()}
    inputs = AdapterInputs(network.signature)
    for adapter in made.values():
        inputs.check([adapter])
    return made


def load_draft(core: Core, path: Path, config: ModelConfig, blobs: BlobOptions) -> Draft | PromptLookup | None:
    """What proposes tokens for the language model whose file is `path`; None if nothing does.

    Raises `RepositoryError`, naming the file, if a draft cannot be loaded.
    """
    generation = config.generation
    if generation is None or generation.draft is None:
        return None
    if generation.draft == PROMPT_LOOKUP:
        return PromptLookup()
    file = path.parent / generation.draft
    if not file.is_file():
        raise RepositoryError(
            f'{path}: `generation.draft` is {generation.draft!r:.80}; expected "{PROMPT_LOOKUP}", or the file of a '
            f"model, and there is no file {file}"
        )
    own = Generation(max_length=generation.max_length)
    try:
        network = load_network(core, "", file, ModelConfig(config.device, config.properties, generation=own), blobs)
        return Draft(network)
    except EngineError as e:
        raise RepositoryError(f"{path}: the draft {file} cannot be loaded: {type(e).__name__}: {e}") from e


def file_identity(path: Path) -> tuple[Any, ...]:
    """An identity that changes when a file of the model's folder, such as external data, is written again.

    Raises `RepositoryError` if they cannot be read.
    """
    found = []
    try:
        for each in sorted(path.parent.rglob("*")):
            if each.is_file():
                status = os.stat(each)
                found.append((each, status.st_ino, status.st_size, status.st_mtime_ns))
    except OSError as e:
        raise RepositoryError(f"{path.parent} cannot be read: {e}") from e
    return (path, *found)


def size_of(identity: tuple[Any, ...]) -> int:
    """The bytes of the files of a model's folder, by their `file_identity`."""
    return sum(size for _, _, size, _ in identity[1:])


def _required(path: Path, configured: BlobRelease | None, given: BlobRelease | None) -> BlobRelease | None:
    """The release that satisfies both the model's configuration and the server's option."""
    if configured is None or given is None:
        return configured or given
    if configured.name != given.name:
        raise RepositoryError(
            f"{path}: {CONFIG_FILE} requires a release of {configured.name}, but the server one of {given.name}, which "
            "no blob can be at once; let them agree"
        )
    return max(configured, given, key=lambda release: release.version)


def _imported(
    core: Core, path: Path, config: ModelConfig, decrypt: str | None, release: BlobRelease | None
) -> ExecutableNetwork:
    check = check_blob(path)
    check.require()
    assert check.manifest is not None
    made_for = check.manifest.device
    if config.batching is not None and not made_for.startswith("BATCH"):
        raise RepositoryError(
            f"{path}: `batching` is set, but the blob was compiled for {made_for}, which makes no batches; compile it "
            f"with `-d BATCH:{made_for}({config.batching.size})`, or serve the model itself"
        )
    network = core.import_model(path, config.device, config.properties, transform=decrypt, release=release)
    for advice in core.check_blob(path, config.device, transform=decrypt, release=release).advice:
        _log.warning("%s runs, and would be faster if it was compiled again: %s", path, advice)
    if config.generation is not None and not network.variables:
        raise RepositoryError(
            f"{path}: `generation` is set, but the blob has no variables; compile it with `--stateful`"
        )
    return network


def _compiled(core: Core, path: Path, config: ModelConfig) -> ExecutableNetwork:
    if config.generation is not None:
        model = core.read_model(path)
        MakeStateful(bound=config.generation.max_length).run_on_model(model)
        with contextlib.suppress(PassError):  # its sequences are computed one after another, which the log says
            MaskedCaches().run_on_model(model)
        with contextlib.suppress(PassError):  # another form of the head: it is computed for all tokens of the prompt
            LastPosition(count=_checked_tokens(config.generation)).run_on_model(model)
        if config.generation.adapters:
            MakeAdaptable(rank=config.generation.adapter_rank).run_on_model(model)
        return core.compile_model(model, config.device, config.properties)
    device = config.device or core.default_device
    if config.batching is None:
        own = config.properties if device.startswith("BATCH") else _for_many(core, device, config.properties)
        return core.compile_model(path, config.device, own)
    properties: dict[str, Any] = {"BATCH_TIMEOUT": config.batching.delay_ms}
    if config.properties:
        properties |= {DEVICE_CONFIGS.name: {device: dict(config.properties)}}
    return core.compile_model(path, f"BATCH:{device}({config.batching.size})", properties)


def _checked_tokens(generation: Generation) -> int:
    """Of how many last tokens of a run the logits are needed."""
    return 1 if generation.draft is None else 1 + PromptLookup().tokens


def _for_many(core: Core, device: str, properties: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration, tuned for many requests at once unless it, or a default of the core, states how cores are
    used.
    """
    is_said = _mentions_cores(properties) or any(map(_mentions_cores, _defaults(core, device)))
    return {**({} if is_said else {PERFORMANCE_HINT.name: "THROUGHPUT"}), **properties}


def _defaults(core: Core, device: str) -> Iterator[Mapping[str, Any]]:
    """The defaults that the application has set for a device and those that it runs on, as far as they can be used."""
    with contextlib.suppress(EngineError):
        parsed = parse_device(device)
        targets = [target.name for target in parsed.targets]
        if not targets and DEVICE_PRIORITIES in core.supported_properties(parsed.name):
            targets = core.available_devices
        for name in (parsed.name, *targets):
            with contextlib.suppress(EngineError):
                yield core.stated_defaults(name)


def _mentions_cores(properties: Mapping[str, Any]) -> bool:
    inner = [each for each in properties.values() if isinstance(each, Mapping)]
    return not _CORES.isdisjoint(properties) or any(map(_mentions_cores, inner))


def _require_tensor(path: Path, kind: str, port: Port) -> None:
    if not isinstance(port.type, TensorType):
        raise RepositoryError(f"{path}: {kind} `{port.name}` is {port.type}; the protocol has tensors only")
