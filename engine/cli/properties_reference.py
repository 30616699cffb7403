"""`docs/properties.md`, from the declarations: `python -m engine.cli.properties_reference` prints it."""

from __future__ import annotations

from engine.core import CORE_PROPERTIES
from engine.properties import (
    CONFIG,
    CONFIG_PROPERTIES,
    DEVICE_CONFIGS,
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

Every property is declared once, with its type, default, allowed values and meaning; this page, the validation of
configurations, `SUPPORTED_METRICS`, `SUPPORTED_CONFIG_KEYS` and the command line derive from the declarations. A device
may have more properties and allow fewer values than listed here: `engine devices DEVICE` lists a device's properties.

- A *metric* is a fact that a device or a network reports: `core.get_property("CPU", "FULL_DEVICE_NAME")`,
  `network.get_metric("NETWORK_NAME")`.
- A *config key* is set before a network is compiled or imported, and readable afterwards:
  `core.compile_model(model, "CPU", {"NUM_STREAMS": 2})`, `network.get_config("NUM_STREAMS")`.

Values passed to `compile_model` take precedence over the defaults for a device, set by
`core.set_property("CPU", {...})`, and these over the defaults for all devices, set by `core.set_property({...})`;
`core.stated_defaults("CPU")` tells which of them are set. A blob stores the values that it was compiled with; values
passed to `import_model` override them. Types are not converted, except that the command line parses text:
`-c PERF_COUNT=true`, lists separated by commas, mappings as JSON.
"""


def properties_reference() -> str:
    """Return the reference of all properties as Markdown."""
    own = [p for p in CONFIG_PROPERTIES if p.name not in EXECUTOR_PROPERTIES]
    core_only = [p for p in CORE_PROPERTIES if p.name not in DEVICE_PROPERTIES]
    sections = {
        "Config keys of every device": PropertySet(*own),
        "Config keys of the executors, on which requests run": EXECUTOR_PROPERTIES,
        "Config keys of devices that run on others": PropertySet(DEVICE_PRIORITIES, DEVICE_CONFIGS),
        "Config keys of the core only": PropertySet(*core_only).of(CONFIG),
        "Metrics of every device": DEVICE_PROPERTIES.of(METRIC),
        "Metrics of every network": NETWORK_METRICS,
    }
    return _INTRODUCTION + "".join(f"\n## {title}\n\n{describe(listed)}" for title, listed in sections.items())


if __name__ == "__main__":
    print(properties_reference(), end="")
