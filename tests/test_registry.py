"""Finding, creating and isolating plugins.

If these fail, an installed device is not found, a broken package disables working devices, or a plugin is created twice
and both instances compete for one device.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata
import logging
import os
import signal
import sys
import threading
import warnings
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from engine import plugin_api
from engine.errors import (
    DeviceNotFoundError,
    PluginApiError,
    PluginConflictError,
    PluginContractError,
    PluginError,
    PluginLoadError,
    PropertyError,
)
from engine.plugin_api import (
    API_CHANGES,
    API_VERSION,
    CONFIG,
    OLDEST_API_VERSION,
    Config,
    CoreHandle,
    ExecutableNetwork,
    Model,
    Plugin,
    Property,
    QueryResult,
)
from engine.registry.installed import InstalledEntryPoints
from engine.registry.plugins import PluginRegistry

MODULE = """
from engine.plugin_api import Plugin

class Device(Plugin):
    name, version, api_version = "{name}", "1.0", 2
    def compile_model(self, model, config): ...
    def query_model(self, model, config): ...
"""


class Device(Plugin):
    """Can be created, and no more."""

    name = "DEVICE"
    version = "1.0"
    api_version = 2

    def compile_model(self, model: Model, config: Config) -> ExecutableNetwork:
        raise NotImplementedError

    def query_model(self, model: Model, config: Config) -> QueryResult:
        raise NotImplementedError


Install = Callable[..., None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Install distributions: `install("dist", {"NAME": "module:Device"}, module="source")`."""
    monkeypatch.syspath_prepend(tmp_path)
    before = set(sys.modules)

    def install(distribution: str, entry_points: dict[str, str] | str, **modules: str) -> None:
        info = tmp_path / f"{distribution}-1.0.dist-info"
        info.mkdir()
        info.joinpath("METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.0\n")
        if isinstance(entry_points, dict):
            listed = [f"{name} = {target}\n" for name, target in entry_points.items()]
            entry_points = "".join(["[engine.plugins]\n", *listed])
        info.joinpath("entry_points.txt").write_text(entry_points)
        for name, source in modules.items():
            tmp_path.joinpath(f"{name}.py").write_text(source)

    yield install
    for name in set(sys.modules) - before:
        del sys.modules[name]


@pytest.fixture
def registry() -> PluginRegistry:
    return PluginRegistry(cast(CoreHandle, object()))


# -- finding ----------------------------------------------------------------------------------------------------


def test_an_installed_plugin_is_found_and_imported_at_first_use(install: Install, registry: PluginRegistry) -> None:
    install("vendor", {"VENDOR": "vendor_device:Device"}, vendor_device=MODULE.format(name="VENDOR"))
    assert "VENDOR" in registry.names
    assert "vendor_device" not in sys.modules
    plugin = registry.get("VENDOR")
    assert plugin.name == "VENDOR"
    assert registry.get("VENDOR") is plugin
    assert str(registry.origins("VENDOR")[0]) == "vendor_device:Device of vendor 1.0"


def test_entry_points_of_other_groups_are_no_plugins(install: Install, registry: PluginRegistry) -> None:
    install("tool", "[console_scripts]\nTOOL = tool:main\n[engine.other]\nOTHER = tool:main\n[zz]\nLAST = tool:main\n")
    assert not {"TOOL", "OTHER", "LAST"} & set(registry.names)


def test_an_entry_point_may_name_an_attribute_and_extras(install: Install, registry: PluginRegistry) -> None:
    source = MODULE.format(name="VENDOR") + "\nclass Devices:\n    Only = Device\n"
    install("vendor", {"VENDOR": "vendor_nested:Devices.Only [gpu]"}, vendor_nested=source)
    assert registry.get("VENDOR").name == "VENDOR"


def test_registries_share_no_instances(install: Install) -> None:
    install("vendor", {"VENDOR": "vendor_two:Device"}, vendor_two=MODULE.format(name="VENDOR"))
    first, second = (PluginRegistry(cast(CoreHandle, object())) for _ in range(2))
    assert first.get("VENDOR") is not second.get("VENDOR")


def test_an_unknown_device_is_an_error_that_lists_the_plugins(registry: PluginRegistry) -> None:
    registry.register("DEVICE", Device)
    with pytest.raises(DeviceNotFoundError, match=r"'OTHER'.*DEVICE"):
        registry.get("OTHER")


def test_one_distribution_on_two_paths_counts_once(
    install: Install, registry: PluginRegistry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shadowed = tmp_path / "shadowed" / "my.vendor-0.9.dist-info"
    shadowed.mkdir(parents=True)
    shadowed.joinpath("METADATA").write_text("Metadata-Version: 2.1\nName: my.vendor\nVersion: 0.9\n")
    shadowed.joinpath("entry_points.txt").write_text("[engine.plugins]\nVENDOR = old:Device\n")
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path / "shadowed")])
    install("My_Vendor", {"VENDOR": "vendor_new:Device"}, vendor_new=MODULE.format(name="VENDOR"))
    assert registry.get("VENDOR").name == "VENDOR"
    assert [str(origin) for origin in registry.origins("VENDOR")] == ["vendor_new:Device of My_Vendor 1.0"]


@pytest.mark.parametrize("content", ["[engine.plugins]\nno equals sign\n", "[engine.plugins\nX = a:b\n", "\n\xff["])
def test_damaged_metadata_hides_no_other_plugin(
    install: Install, registry: PluginRegistry, content: str, tmp_path: Path
) -> None:
    install("damaged", content)
    tmp_path.joinpath("damaged-1.0.dist-info", "entry_points.txt").write_bytes(content.encode("latin-1"))
    install("vendor", {"VENDOR": "vendor_sound:Device"}, vendor_sound=MODULE.format(name="VENDOR"))
    assert registry.get("VENDOR").name == "VENDOR"


def test_what_importlib_finds_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Folders of metadata are read without it, archives and eggs with it."""
    for folder in ("one-1.dist-info", "Two_2-2.0.egg-info", "three.egg/EGG-INFO", "other-4.dist-info"):
        info = tmp_path / folder
        info.mkdir(parents=True)
        name = folder.partition("-")[0].partition(".")[0]
        header = f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.5+local\nSummary: a: b\n\nName: not this\n"
        info.joinpath("METADATA" if folder.endswith("dist-info") else "PKG-INFO").write_text(header)
        group = "others" if name == "other" else "engine.plugins"
        text = f"# a comment\n\n[{group}]\n {name.upper()} = {name} : Device [extra]\n"
        text += "[engine.ops]\nx=y\n[console_scripts]\nz=z\n"
        info.joinpath("entry_points.txt").write_text(text)
    with zipfile.ZipFile(tmp_path / "archive.zip", "w") as archive:
        archive.writestr("four-1.dist-info/METADATA", "Metadata-Version: 2.1\nName: four\nVersion: 4\n")
        archive.writestr("four-1.dist-info/entry_points.txt", "[engine.plugins]\nFOUR = four:Device\n")
    paths = [str(tmp_path), str(tmp_path / "three.egg"), str(tmp_path / "archive.zip"), str(tmp_path / "missing")]
    monkeypatch.setattr(sys, "path", [*sys.path, *paths])
    wanted = set()
    for distribution in importlib.metadata.distributions():
        for entry in distribution.entry_points:
            if entry.group.startswith("engine."):
                wanted.add((f"{distribution.name} {distribution.version}", entry.group, entry.name, entry.value))
    assert len({distribution for distribution, *_ in wanted}) >= 5
    found = {
        (distribution, entry.group, entry.name, entry.value)
        for group in {group for _, group, *_ in wanted}
        for distribution, entries in InstalledEntryPoints().of(group)
        for entry in entries
    }
    assert found == wanted


def test_what_finders_of_others_know_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    class Known(importlib.metadata.Distribution):
        def read_text(self, filename: str) -> str | None:
            texts = {"METADATA": "Name: known\nVersion: 7\n", "entry_points.txt": "[engine.plugins]\nKNOWN = a:B\n"}
            return texts.get(filename)

        def locate_file(self, path: object) -> Path:
            raise NotImplementedError

    class Finder:
        @staticmethod
        def find_spec(*_: object) -> None:
            return None

        @staticmethod
        def find_distributions(*_: object) -> list[Known]:
            return [Known()]

    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, Finder])
    found = dict(InstalledEntryPoints().of("engine.plugins"))
    assert [(entry.name, entry.value) for entry in found["known 7"]] == [("KNOWN", "a:B")]
    assert len(found) > 5


# -- isolating --------------------------------------------------------------------------------------------------

BROKEN = {
    "ImportError": "import driver_that_nobody_has",
    "SyntaxError": "class Device(",
    "SystemExit": "raise SystemExit('no licence')",
    "AttributeError": "Devices = 1",
    "RuntimeError": MODULE.format(name="BROKEN") + "    def __init__(self, core): raise RuntimeError('no driver')",
    "PluginLoadError": MODULE.format(name="BROKEN") + "    api_version = 99",
}
OUT_OF_CONTRACT = {
    "is builtins:int": "Device = int",
    "got vendor_broken:Device": "def Device(core): ...",
    "an object of builtins:dict": "Device = {}",
    "api_version must be": MODULE.format(name="BROKEN") + "    api_version = '1'",
    "api_version must": MODULE.format(name="BROKEN") + "    api_version = True",
    "version must be": MODULE.format(name="BROKEN") + "    version = None",
    "Device.name is 'OTHER'": MODULE.format(name="OTHER"),
    "Device does not define compile_model, query_model": "from engine.plugin_api import Plugin\n"
    "class Device(Plugin): ...",
    "must call super": MODULE.format(name="BROKEN") + "    def __init__(self, core): pass",
    "is declared as": MODULE.format(name="BROKEN")
    + "    from engine.plugin_api import Property, METRIC\n"
    + "    properties = [Property('PERF_COUNT', int, 0, METRIC, 'Not what it is elsewhere.')]",
}


@pytest.mark.parametrize(("cause", "source"), BROKEN.items(), ids=BROKEN)
def test_a_broken_plugin_gives_its_original_error(
    install: Install, registry: PluginRegistry, caplog: pytest.LogCaptureFixture, cause: str, source: str
) -> None:
    install("vendor", {"BROKEN": "vendor_broken:Device"}, vendor_broken=source)
    registry.register("DEVICE", Device)
    with caplog.at_level(logging.WARNING, "engine"):
        errors = []
        for _ in range(2):
            with pytest.raises(PluginLoadError, match=r"BROKEN \(vendor_broken:Device of vendor 1\.0\)") as caught:
                registry.get("BROKEN")
            errors.append(caught.value)
    original = errors[0].__cause__
    assert cause in [kind.__name__ for kind in type(original).__mro__]
    assert str(original) in str(errors[0])
    assert errors[1].__cause__ is original, "the second use must tell what the first one did"
    assert len(caplog.records) == 1
    assert registry.get("DEVICE").name == "DEVICE"


@pytest.mark.parametrize("stated", [-1, OLDEST_API_VERSION - 1, API_VERSION + 1, 99])
def test_a_plugin_for_another_api_is_refused(install: Install, registry: PluginRegistry, stated: int) -> None:
    install(
        "vendor",
        {"OTHER": "vendor_other:Device"},
        vendor_other=f"{MODULE.format(name='OTHER')}    api_version = {stated}",
    )
    with pytest.raises(
        PluginApiError, match=rf"OTHER \(vendor_other:Device of vendor 1\.0\).* plugin API {stated}, "
    ) as caught:
        registry.get("OTHER")
    assert f"for API {OLDEST_API_VERSION} and {API_VERSION}" in str(caught.value)
    assert f"{'a newer' if stated > 1 else 'an older'} engine with API {stated}" in str(caught.value)


def test_a_plugin_for_the_api_before_is_told_what_will_go(
    install: Install, registry: PluginRegistry, caplog: pytest.LogCaptureFixture
) -> None:
    """Once for each plugin, however many cores use it; current plugins are told nothing."""
    for name in ("ELDER", "OLD"):
        source = f"{MODULE.format(name=name)}    api_version = {API_VERSION - 1}"
        install(f"vendor-{name}", {name: f"vendor_{name.lower()}:Device"}, **{f"vendor_{name.lower()}": source})
    registry.register("DEVICE", Device)
    with caplog.at_level(logging.WARNING, "engine"):
        for each in (registry, PluginRegistry(None)):  # type: ignore[arg-type]
            assert each.get("OLD").api_version == each.get("ELDER").api_version == API_VERSION - 1
        registry.get("DEVICE")
    old, elder = sorted((record.getMessage() for record in caplog.records), reverse=True)
    assert old.startswith("plugin OLD (vendor_old:Device of vendor-OLD 1.0) works")
    assert elder.startswith("plugin ELDER ")
    assert f"engines with plugin API {API_VERSION + 1} will not run it" in old
    assert API_CHANGES, "a version without a change needs no number"
    for change in API_CHANGES:
        assert f"{change.owner}.{change.old} is called {change.new}" in old
        assert hasattr(getattr(plugin_api, change.owner), change.new)


@pytest.mark.parametrize(("words", "source"), OUT_OF_CONTRACT.items(), ids=OUT_OF_CONTRACT)
def test_what_is_no_plugin_is_named(install: Install, registry: PluginRegistry, words: str, source: str) -> None:
    install("vendor", {"BROKEN": "vendor_broken:Device"}, vendor_broken=source)
    with pytest.raises(PluginLoadError) as caught:
        registry.get("BROKEN")
    assert words in str(caught.value)
    assert isinstance(caught.value.__cause__, PluginContractError)


def test_an_entry_point_that_no_device_string_can_name_is_isolated(install: Install, registry: PluginRegistry) -> None:
    install("vendor", {"lower": "vendor_lower:Device"}, vendor_lower=MODULE.format(name="lower"))
    with pytest.raises(PluginLoadError, match="'lower' is not a device name"):
        registry.get("lower")


def test_an_interrupt_while_loading_is_no_failure_of_the_plugin(registry: PluginRegistry) -> None:
    interrupts = [KeyboardInterrupt()]

    class Slow(Device):
        def __init__(self, core: CoreHandle) -> None:
            super().__init__(core)
            if interrupts:
                raise interrupts.pop()

    registry.register("SLOW", Slow)
    with pytest.raises(KeyboardInterrupt):
        registry.get("SLOW")
    assert registry.get("SLOW").name == "SLOW"


def test_a_plugin_that_needs_itself_to_be_created_is_told_so(registry: PluginRegistry) -> None:
    class Circular(Device):
        def __init__(self, core: CoreHandle) -> None:
            super().__init__(core)
            registry.get("CIRCULAR")

    registry.register("CIRCULAR", Circular)
    with pytest.raises(PluginLoadError, match="requests itself"):
        registry.get("CIRCULAR")


# -- conflicts --------------------------------------------------------------------------------------------------


def test_two_distributions_that_claim_a_name_are_both_named(install: Install, registry: PluginRegistry) -> None:
    source = MODULE.format(name="VENDOR")
    install("one", {"VENDOR": "vendor_one:Device"}, vendor_one=source)
    install("two", {"VENDOR": "vendor_other:Device", "FINE": "vendor_fine:Device"}, vendor_other=source)
    install("three", {}, vendor_fine=MODULE.format(name="FINE"))
    with pytest.raises(PluginConflictError) as caught:
        registry.get("VENDOR")
    assert "vendor_one:Device of one 1.0" in str(caught.value)
    assert "vendor_other:Device of two 1.0" in str(caught.value)
    assert registry.get("FINE").name == "FINE"


def test_a_conflict_is_solved_by_registering_one_under_another_name(install: Install, registry: PluginRegistry) -> None:
    source = MODULE.format(name="VENDOR")
    install("one", {"VENDOR": "vendor_first:Device"}, vendor_first=source)
    install("two", {"VENDOR": "vendor_second:Device"}, vendor_second=source)
    registry.register("SECOND", "vendor_second:Device")
    assert type(registry.get("SECOND")).__module__ == "vendor_second"


def test_a_taken_name_is_kept(registry: PluginRegistry) -> None:
    registry.register("DEVICE", Device)
    with pytest.raises(PluginConflictError, match="unload_plugin"):
        registry.register("DEVICE", type("Other", (Device,), {}))
    assert type(registry.get("DEVICE")) is Device


# -- registering ------------------------------------------------------------------------------------------------


def test_one_class_serves_under_several_names(registry: PluginRegistry) -> None:
    registry.register("FIRST", Device)
    registry.register("SECOND", Device)
    first, second = registry.get("FIRST"), registry.get("SECOND")
    assert (first.name, second.name) == ("FIRST", "SECOND")
    assert isinstance(first, Device)
    assert isinstance(second, Device)
    with pytest.raises(PropertyError, match="SECOND"):  # the name that the constructor saw
        second.set_config({"PERF_COUNT": 3})


def test_registered_plugins_are_listed_as_another_process_imports_them(
    install: Install, registry: PluginRegistry
) -> None:
    install("dist", {"INSTALLED": "installed_plugin:P"})
    registry.register("BY_NAME", "acme.driver:AcmePlugin")
    registry.register("BY_CLASS", Device)
    registry.register("BY_OBJECT", functools.partial(Device))
    assert registry.registered == {
        "BY_NAME": "acme.driver:AcmePlugin",
        "BY_CLASS": f"{Device.__module__}:Device",
        "BY_OBJECT": "an object of functools:partial",
    }


def test_a_function_makes_a_plugin_with_the_core(registry: PluginRegistry) -> None:
    made: list[Any] = []

    def make(core: CoreHandle) -> Plugin:
        made.append(core)
        return Device(core)

    registry.register("DEVICE", make)
    assert made == []
    assert registry.get("DEVICE").core is made[0]


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda core: object(), "made an object of builtins:object"),
        (lambda core: None, "NoneType"),
        (Device, "whose name is 'DEVICE'; expected 'MADE'"),
    ],
)
def test_a_function_that_makes_something_else_is_told_so(
    registry: PluginRegistry, make: Callable[[CoreHandle], Any], words: str
) -> None:
    registry.register("MADE", lambda core: make(core))
    with pytest.raises(PluginLoadError, match=words):
        registry.get("MADE")


@pytest.mark.parametrize("name", ["", "device", "A.B", "A:B", "1A", "Ä", "A B", None, 3])
def test_a_malformed_name_is_refused(registry: PluginRegistry, name: Any) -> None:
    with pytest.raises(PluginError, match="upper-case"):
        registry.register(name, Device)


@pytest.mark.parametrize("source", ["", "module", "module:", ":Device", "a b:c", 3, None])
def test_a_malformed_source_is_refused(registry: PluginRegistry, source: Any) -> None:
    with pytest.raises(PluginError, match="module:name"):
        registry.register("DEVICE", source)
    assert "DEVICE" not in registry.names


def test_unloading_lets_a_plugin_be_made_anew(registry: PluginRegistry) -> None:
    registry.register("DEVICE", Device)
    first = registry.get("DEVICE")
    registry.unload("DEVICE")
    second = registry.get("DEVICE")
    assert second is not first
    registry.unload("DEVICE")
    replacement = type("Replacement", (Device,), {})
    registry.register("DEVICE", replacement)
    assert type(registry.get("DEVICE")) is replacement
    with pytest.raises(DeviceNotFoundError):
        registry.unload("OTHER")


def test_unloading_forgets_a_failure(install: Install, registry: PluginRegistry, tmp_path: Path) -> None:
    install("vendor", {"MENDED": "vendor_mended:Device"}, vendor_mended="raise OSError('no driver')")
    with pytest.raises(PluginLoadError):
        registry.get("MENDED")
    # Another length, since bytecode of equal time and size would be taken for this source's.
    tmp_path.joinpath("vendor_mended.py").write_text(MODULE.format(name="MENDED"))
    registry.unload("MENDED")
    assert registry.get("MENDED").name == "MENDED"


# -- threads and forks ------------------------------------------------------------------------------------------


def test_first_uses_at_once_create_one_instance(registry: PluginRegistry) -> None:
    created: list[Plugin] = []
    entered, release = threading.Event(), threading.Event()

    class Slow(Device):
        def __init__(self, core: CoreHandle) -> None:
            super().__init__(core)
            created.append(self)
            entered.set()
            release.wait(60)

    registry.register("SLOW", Slow)
    got: list[Plugin] = []
    threads = [threading.Thread(target=lambda: got.append(registry.get("SLOW"))) for _ in range(8)]
    for thread in threads:
        thread.start()
    assert entered.wait(60)
    release.set()
    for thread in threads:
        thread.join(60)
    assert len(created) == 1
    assert got == created * 8


def test_plugins_that_ask_for_each_other_do_not_deadlock(registry: PluginRegistry) -> None:
    both_started = threading.Barrier(2, timeout=0.2)

    def device(other: str) -> type[Plugin]:
        class Mutual(Device):
            def __init__(self, core: CoreHandle) -> None:
                super().__init__(core)
                with contextlib.suppress(threading.BrokenBarrierError):  # as it should be: one after the other
                    both_started.wait()
                with contextlib.suppress(PluginLoadError):  # the other one is being created
                    registry.get(other)

        return Mutual

    registry.register("A", device("B"))
    registry.register("B", device("A"))
    threads = [threading.Thread(target=registry.get, args=(name,), daemon=True) for name in "AB"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_child_is_not_blocked_by_a_thread_that_it_does_not_have(registry: PluginRegistry) -> None:
    entered, release, parent = threading.Event(), threading.Event(), os.getpid()

    class Slow(Device):
        def __init__(self, core: CoreHandle) -> None:
            super().__init__(core)
            entered.set()
            if os.getpid() == parent:
                release.wait(60)

    registry.register("SLOW", Slow)
    registry.register("DEVICE", Device)
    thread = threading.Thread(target=registry.get, args=("SLOW",))
    thread.start()
    assert entered.wait(60)
    child = forked(lambda: isinstance(registry.get("DEVICE"), Device) and isinstance(registry.get("SLOW"), Slow))
    release.set()
    thread.join(60)
    assert child == 0


def forked(check: Callable[[], bool]) -> int:
    """The exit status of a child that runs `check`: 0 where it holds, by a signal after 30 seconds."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # forking with threads is what is tested
        child = os.fork()
    if child == 0:
        signal.alarm(30)
        status = 1
        try:
            status = 0 if check() else 1
        finally:
            os._exit(status)
    return os.waitpid(child, 0)[1]


def test_properties_of_a_plugin_are_listed_with_those_of_all_devices(registry: PluginRegistry) -> None:
    class Tuned(Device):
        properties = [Property("TUNING", str, "fast", CONFIG, "How to tune.", choices=("fast", "full"))]

    registry.register("TUNED", Tuned)
    assert {"TUNING", "PERF_COUNT"} <= set(registry.get("TUNED").get_metric("SUPPORTED_CONFIG_KEYS"))
