"""Whether a blob fits a plugin on this machine."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from engine.blob import BlobCheck, BlobManifest, SectionTransform, WeightsFile, check_manifest
from engine.blob.bound import why_not_bound
from engine.blob.transform import why_not_authentic, why_not_restored
from engine.errors import BlobFormatError, BlobIncompatibleError, BlobTransformError, PluginContractError
from engine.extensions import REQUIREMENT, missing_reasons
from engine.hosting import check_interface, plugin_errors
from engine.plugin_api import API_VERSION, Plugin, engine_version
from engine.properties import IMPORT_EXPORT_SUPPORT


def check_for_plugin(
    plugin: Plugin, manifest: BlobManifest, device_id: str, extensions: Collection[str] = ()
) -> BlobCheck:
    """Every reason why the plugin could not import a blob with this manifest. Raises `DeviceNotFoundError`.

    `extensions` are the core's, each as "name version".
    """
    missing = missing_reasons(manifest, extensions)
    of_device = {name: value for name, value in manifest.requirements.items() if name != REQUIREMENT}
    check = check_manifest(
        manifest,
        device=plugin.name,
        plugin_name=plugin.name if manifest.device == plugin.name else None,
        engine_version=engine_version(),
        api_version=str(API_VERSION),
    )
    features = host_features(plugin, device_id)
    answer = BlobCheck((), manifest)
    if manifest.device == plugin.name:
        described = (
            replace(manifest, requirements=of_device) if len(of_device) < len(manifest.requirements) else manifest
        )
        answer = _answer(plugin, described, features)
    reasons = [*check.reasons, *answer.reasons, *missing]
    if not plugin.get_metric(IMPORT_EXPORT_SUPPORT.name):
        reasons.append(f"{plugin.name} cannot import compiled networks; compile the model instead")
    return BlobCheck(tuple(reasons), manifest, advice=answer.advice)


def _answer(plugin: Plugin, manifest: BlobManifest, features: Mapping[str, str | Collection[str]]) -> BlobCheck:
    with plugin_errors(plugin.name, "check_blob"):
        if plugin.api_version > 1:
            answer = plugin.check_blob(manifest, features)
        else:  # a method of this name is its own
            answer = Plugin.check_blob(plugin, manifest, features)
    if isinstance(answer, BlobCheck) and all(
        isinstance(each, tuple) and all(map(_is_text, each)) for each in (answer.reasons, answer.advice)
    ):
        return answer
    raise PluginContractError(
        f"plugin {plugin.name}: check_blob must return a BlobCheck with tuples of sentences; got {answer!r:.200}"
    )


def why_malformed(manifest: BlobManifest) -> tuple[str, ...]:
    """Why no network can be made of a manifest, as a sentence; empty if one can. An import raises it."""
    try:
        check_interface(manifest)
    except BlobFormatError as e:
        return (str(e),)
    return ()


def why_not_read(
    manifest: BlobManifest, transform: SectionTransform | None, weights: WeightsFile | None
) -> tuple[str, ...]:
    """Why a blob's sections cannot be read, as sentences; empty if they can."""
    why = why_not_restored(manifest, transform)
    if why is None and transform is not None:
        why = why_not_authentic(manifest, transform)
    return tuple(each for each in (why, why_not_bound(manifest, weights)) if each)


def check_sections(manifest: BlobManifest, transform: SectionTransform | None, weights: WeightsFile | None) -> None:
    """Raise `BlobTransformError` or `BlobIncompatibleError` if a blob's sections cannot be read."""
    if (why := why_not_restored(manifest, transform)) is not None:
        raise BlobTransformError(why)
    if (why := why_not_bound(manifest, weights)) is not None:
        raise BlobIncompatibleError(why)


def host_features(plugin: Plugin, device_id: str) -> Mapping[str, str | Collection[str]]:
    """The features of this machine that the plugin reports, to compare with the requirements of blobs.

    Raises `DeviceNotFoundError` for an unknown device id, `PluginContractError` for a malformed return value.
    """
    device_id = plugin.resolve_device_id(device_id)
    with plugin_errors(plugin.name, "host_features"):
        features = plugin.host_features(device_id)
        if isinstance(features, Mapping) and all(map(_is_text, features)) and all(map(_is_value, features.values())):
            return features
    raise PluginContractError(
        f"plugin {plugin.name}: host_features must return a mapping of names to strings or collections of strings; "
        f"got {features!r}"
    )


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_value(value: object) -> bool:
    return _is_text(value) or (isinstance(value, Collection) and all(map(_is_text, value)))
