"""`docs/properties.md`, from the declarations: `python -m engine.tools.properties_reference` prints it."""

from __future__ import annotations

from engine.core import CORE_PROPERTIES
from engine.properties import (
    CONFIG,
    CONFIG_PROPERTIES,
    DEVICE_PRIORITIES,
    DEVICE_PROPERTIES,
    EXECUTOR_PROPERTIES,
    METRIC,
    NETWORK_METRICS,
    PropertySet,
    describe,
)

_INTRODUCTION = """\
# Properties

Every property is declared once, with its type, default, allowed values and meaning; this page, the validation of what
users set, `SUPPORTED_METRICS`, `SUPPORTED_CONFIG_KEYS` and the command line derive from the declarations. A device may
have more properties, and allow less, than is listed here: `engine devices DEVICE` lists a device's own.

- A *metric* is a fact that a device or a network reports: `core.get_property("CPU", "FULL_DEVICE_NAME")`,
  `network.get_metric("NETWORK_NAME")`.
- A *config key* is chosen before a network is compiled or imported, and readable afterwards:
  `core.compile_model(model, "CPU", {"NUM_STREAMS": 2})`, `network.get_config("NUM_STREAMS")`.

What is given to `compile_model` goes before the defaults that `core.set_property("CPU", {...})` makes for a device, and
these before those that `core.set_property({...})` makes for all devices. A blob carries the values that it was compiled
with; what is given to `import_model` overrides them. Types are not converted, but the command line reads text:
`-c PERF_COUNT=true`, lists separated by commas, mappings as JSON.
"""


def properties_reference() -> str:
    """Return the reference of all properties as Markdown."""
    own = [p for p in CONFIG_PROPERTIES if p.name not in EXECUTOR_PROPERTIES]
    core_only = [p for p in CORE_PROPERTIES if p.name not in DEVICE_PROPERTIES]
    sections = {
        "Config keys of every device": PropertySet(*own),
        "Config keys of the executors, on which requests run": EXECUTOR_PROPERTIES,
        "Config key of devices that run on others": PropertySet(DEVICE_PRIORITIES),
        "Config keys of the core alone": PropertySet(*core_only).of(CONFIG),
        "Metrics of every device": DEVICE_PROPERTIES.of(METRIC),
        "Metrics of every network": NETWORK_METRICS,
    }
    return _INTRODUCTION + "".join(f"\n## {title}\n\n{describe(listed)}" for title, listed in sections.items())


if __name__ == "__main__":
    print(properties_reference(), end="")
