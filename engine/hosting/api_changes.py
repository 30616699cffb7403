"""What a version of the plugin API changed: the old forms work for one version more, through adapters.

To change the API: raise `API_VERSION`, drop the changes of the version before, with their adapters, and add those of
the new version. `tests/test_corpus.py` runs the plugins of the version before.
"""

from __future__ import annotations

from typing import Final

from engine.hosting.version import API_VERSION
from engine.startup import dataclass

OLDEST_API_VERSION: Final = API_VERSION - 1
"""The oldest version of the plugin API whose plugins this engine runs."""


@dataclass(frozen=True, slots=True)
class ApiChange:
    """A change of the plugin API.

    Attributes:
        since: the version of the API that has the new form.
        owner: the class of `engine.plugin_api`.
        old: the name of its hook or attribute in the version before.
        new: the name in this version.
        why: the reason.
    """

    since: int
    owner: str
    old: str
    new: str
    why: str

    def __str__(self) -> str:
        return f"{self.owner}.{self.old} is called {self.new} ({self.why})"


API_CHANGES: Final = (
    ApiChange(
        2,
        "ExecutableNetwork",
        "release",
        "release_caches",
        "it frees caches, and the network stays usable, unlike what drivers call a release",
    ),
)
"""The changes of the current version."""


def api_changes_for(api_version: int) -> tuple[ApiChange, ...]:
    """The changes that a plugin for `api_version` has not made yet."""
    return tuple(change for change in API_CHANGES if change.since > api_version)


def outdated_hooks(made: object, owner: type) -> tuple[ApiChange, ...]:
    """The changes whose old hook a subclass of `owner` defines, which nothing would call."""
    return tuple(
        change
        for change in API_CHANGES
        if change.owner == owner.__name__
        and getattr(type(made), change.old, None) is not getattr(owner, change.old, None)
    )


def why_outdated(api_version: int) -> str:
    """What the author of a plugin for `api_version` has to change, as a clause; "" for the current version."""
    if api_version >= API_VERSION:
        return ""
    changes = "; ".join(map(str, api_changes_for(api_version)))
    return (
        f"it was written for plugin API {api_version}, and engines with plugin API {api_version + 2} will not run it. "
        f"In API {API_VERSION}, {changes}: change this where the plugin has it, and set api_version = {API_VERSION}"
    )
