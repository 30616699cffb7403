"""The catalog: every pass is found, has a name of its own and says what it does."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from engine.errors import PassError
from engine.passes import MatcherPass, ModelPass, find_pass, list_passes

PASS = '''
from engine.passes import {base}

class {name}({base}):
    """{doc}

    More.
    """
{body}
    def run_on_model(self, model):
        return False
'''


def write(
    package: Path, module: str, name: str, base: str = "ModelPass", doc: str = "Does it.", body: str = ""
) -> None:
    package.mkdir(exist_ok=True)
    (package / "__init__.py").touch()
    (package / f"{module}.py").write_text(PASS.format(name=name, base=base, doc=doc, body=body))


@pytest.fixture
def importable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def test_every_pass_of_the_engine_has_its_own_name_kind_doc_and_file() -> None:
    passes = {info.name: info for info in list_passes()}
    assert {"ConstantFolding", "InitNodeInfo", "Serialize", "Validate", "VisualizeTree"} <= set(passes)
    assert passes["ConstantFolding"].kind == "ModelPass"
    assert passes["ConvBatchNormFusion"].kind == "MatcherPass"
    assert issubclass(passes["ConvBatchNormFusion"].cls, MatcherPass)
    for info in passes.values():
        assert info.doc.endswith("."), f"{info.name} says in one sentence what it does"
        source = Path(info.file).read_text(encoding="utf-8").splitlines()
        assert source[info.line - 1].startswith(f"class {info.cls.__name__}")


def test_passes_of_other_packages_are_listed_with_them(importable: Path) -> None:
    write(importable / "catalog_plugin", "one", "DeviceLayout", doc="Lays out\n    for the device.")
    write(importable / "catalog_plugin", "two", "_Private")
    added = {i.name for i in list_passes(["catalog_plugin"])} - {i.name for i in list_passes()}
    assert added == {"DeviceLayout"}
    info = find_pass("DeviceLayout", ["catalog_plugin"])
    assert (info.kind, info.doc) == ("ModelPass", "Lays out for the device.")
    assert issubclass(info.cls, ModelPass)


def test_two_passes_of_one_name_are_refused(importable: Path) -> None:
    write(importable / "catalog_twins", "one", "Twin")
    write(importable / "catalog_twins", "two", "Other", body='    name = "Twin"\n')
    with pytest.raises(PassError, match=r"two passes are named 'Twin': .*one\.py:4 and .*two\.py:4"):
        list_passes(["catalog_twins"])


def test_a_module_that_cannot_be_imported_is_left_out_and_reported(
    importable: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(importable / "catalog_partly", "good", "GoodPass")
    (importable / "catalog_partly" / "bad.py").write_text("import a_driver_that_is_not_installed\n")
    with caplog.at_level(logging.WARNING, "engine.passes"):
        assert find_pass("GoodPass", ["catalog_partly"]).name == "GoodPass"
    assert "catalog_partly.bad is skipped" in caplog.text
    assert "a_driver_that_is_not_installed" in caplog.text


def test_a_name_that_does_not_exist_is_answered_with_close_ones() -> None:
    with pytest.raises(PassError, match=r"no pass is named 'ConstantFold'; did you mean ConstantFolding"):
        find_pass("ConstantFold")
    with pytest.raises(PassError, match=r"no pass is named 'zzz'; available: .*ConstantFolding"):
        find_pass("zzz")
