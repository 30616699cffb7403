"""The choice among the variants of a package, when it is imported or checked."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from engine.blob import BlobManifest
from engine.blob.package import PackagedVariant, variants_of
from engine.core.compatibility import check_for_plugin, host_features
from engine.errors import BlobError, BlobIncompatibleError
from engine.plugin_api import Plugin
from engine.startup import dataclass


@dataclass(frozen=True, slots=True)
class VariantChoice:
    """The variants of a package as a machine sees them.

    Attributes:
        chosen: the name of the variant that is imported; empty if none can be.
        reasons: for each variant, in the order of the file, why it cannot be imported; empty if it can.
    """

    chosen: str
    reasons: Mapping[str, tuple[str, ...]]

    @property
    def others(self) -> tuple[str, ...]:
        """The variants besides the chosen one that can be imported, by name."""
        return tuple(name for name, why in self.reasons.items() if not why and name != self.chosen)

    def why_none(self) -> tuple[str, ...]:
        """Why no variant can be imported, one sentence for each reason; empty if one can."""
        if self.chosen:
            return ()
        return tuple(f"variant {name!r}: {why}" for name, reasons in self.reasons.items() for why in reasons)


def choose_variant(
    plugin: Plugin, manifest: BlobManifest, device_id: str, extensions: Collection[str] = (), name: str | None = None
) -> VariantChoice:
    """Choose among the variants of a package: the one of this name, or the one that requires the most.

    The highest requirement is that at the latest position in the device's `host_features`; of equal variants, the first
    in the file is chosen. Raises `BlobError` for a name that no variant has, `BlobFormatError`, `PluginError`.
    """
    variants = variants_of(manifest)
    if name is not None and name not in [each.name for each in variants]:
        raise BlobError(f"no variant is named {name!r}; the package has {', '.join(each.name for each in variants)}")
    reasons = {}
    for each in variants:
        single = replace(manifest, requirements=each.requirements)
        reasons[each.name] = check_for_plugin(plugin, single, device_id, extensions).reasons
    features = host_features(plugin, device_id)
    able = [each for each in variants if not reasons[each.name] and name in (None, each.name)]
    best = max(able, key=lambda each: _rank(each, features), default=None)
    return VariantChoice("" if best is None else best.name, reasons)


def _rank(variant: PackagedVariant, features: Mapping[str, str | Collection[str]]) -> tuple[int, int]:
    """How much a variant requires: kinds of features, and the positions of the highest."""
    total = 0
    for kind, required in variant.requirements.items():
        here = features.get(kind, ())
        if isinstance(here, (list, tuple)):
            wanted = [required] if isinstance(required, str) else required
            total += max((here.index(each) for each in wanted if each in here), default=0)
    return len(variant.requirements), total


def require_variant(choice: VariantChoice, where: str, name: str | None = None) -> str:
    """The variant to import. Raises `BlobIncompatibleError` with every reason if there is none."""
    if choice.chosen:
        return choice.chosen
    if name is not None:
        raise BlobIncompatibleError(f"{where}: variant {name!r}: {'; '.join(choice.reasons[name])}")
    raise BlobIncompatibleError(
        f"{where}: no variant of the package can be imported here: {'; '.join(choice.why_none())}"
    )
