"""Packages: one file for several machines. ENGINE_MAX_ISA lowers what this machine has."""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from engine import Core
from engine.blob import BlobAnswer, BlobManifest, BlobReader, make_key_files
from engine.blob.package import variants_of
from engine.core import compile_variants, export_variants
from engine.core.compatibility import check_for_plugin
from engine.errors import (
    BlobCorruptError,
    BlobError,
    BlobFormatError,
    BlobIncompatibleError,
    BlobSignatureError,
    BlobTransformError,
    TargetError,
    UnsupportedError,
)
from engine.native import built_isas, default_isa, isas_within
from engine.passes import MakeStateful
from engine.testing.values import values

pytestmark = pytest.mark.skipif("avx2" not in isas_within(default_isa()), reason="this machine has no AVX2")

Array = np.ndarray[Any, np.dtype[Any]]
LENGTH = 64
TOLERANCE = 8 * LENGTH * float(np.finfo(np.float32).eps)
"""The rounding errors of sums of LENGTH products, whose terms are at most 1, in any order."""
WEIGHTS = values(LENGTH, 100, seed="weights", is_uniform=True)
TABLE = values(50, LENGTH, seed="table", is_uniform=True)
INDICES = np.array([3, 49, 0])
EXPECTED = TABLE[INDICES] @ WEIGHTS


def model_bytes(weights: Array = WEIGHTS) -> bytes:
    """A look-up, whose table no kernel packs, and a product, whose weights are packed."""
    nodes = [helper.make_node("Gather", ["table", "x"], ["rows"]), helper.make_node("MatMul", ["rows", "w"], ["y"])]
    x = helper.make_tensor_value_info("x", TensorProto.INT64, [3])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [3, weights.shape[1]])
    stored = [numpy_helper.from_array(TABLE, "table"), numpy_helper.from_array(weights, "w")]
    graph = helper.make_graph(nodes, "net", [x], [y], stored)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return bytes(made.SerializeToString())


def package(*targets: str, **options: Any) -> bytes:
    core = Core()
    variants = compile_variants(core, core.read_model(model_bytes()), targets, "CPU")
    stream = io.BytesIO()
    export_variants({each.name: each.network for each in variants}, stream, **options)
    return stream.getvalue()


@pytest.fixture(scope="module")
def three() -> bytes:
    """Variants of which a machine with AVX2 and no more takes the second."""
    return package("generic", "avx2", "source")


def damaged(blob: bytes, wanted: Callable[[str], bool]) -> bytes:
    """The blob with a changed byte in the middle of a section."""
    manifest = BlobReader(blob).manifest
    last = manifest.sections[-1]
    section = next(each for each in manifest.sections if wanted(each.name))
    place = len(blob) - (last.offset + last.size) + section.offset + section.size // 2
    changed = bytearray(blob)
    changed[place] ^= 1
    return bytes(changed)


@pytest.mark.parametrize(
    ("limit", "chosen"), [("generic", "generic"), ("v2", "generic"), ("avx2", "avx2"), ("", "avx2")]
)
def test_the_variant_that_requires_most_of_this_machine_is_imported(
    three: bytes, limit: str, chosen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ENGINE_MAX_ISA", limit)
    check = Core().check_blob(three)
    assert (check.compatible, check.variant, list(check.variants)) == (True, chosen, ["generic", "avx2", "source"])
    network = Core().import_model(three)
    assert network.get_property("INSTRUCTION_SET") == chosen
    assert np.abs(network(INDICES)["y"] - EXPECTED).max() < TOLERANCE


def test_a_variant_is_imported_by_name(three: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("generic", "avx2", "source"):
        network = Core().import_model(three, variant=name)
        assert network.get_property("TARGET") == name
        assert np.abs(network(INDICES)["y"] - EXPECTED).max() < TOLERANCE
        exported = io.BytesIO()
        network.export_model(exported)  # as a blob of its own
        assert (Core().import_model(exported.getvalue())(INDICES)["y"] == network(INDICES)["y"]).all()
    for absent in ("amx", ""):
        with pytest.raises(BlobError, match=f"no variant is named '{absent}'; the package has generic, avx2, source"):
            Core().import_model(three, variant=absent)
    monkeypatch.setenv("ENGINE_MAX_ISA", "generic")
    with pytest.raises(BlobIncompatibleError, match=r"variant 'avx2': requirement 'isa': the blob needs avx2"):
        Core().import_model(three, variant="avx2")
    monkeypatch.undo()
    alone = io.BytesIO()
    Core().compile_model(model_bytes(), "CPU").export_model(alone)
    with pytest.raises(BlobError, match="is not a package, and has no variant 'avx2'"):
        Core().import_model(alone.getvalue(), variant="avx2")


def test_a_variant_for_a_lesser_machine_gives_advice() -> None:
    check = Core().check_blob(package("generic", "source"))
    assert (check.answer, check.variant) == (BlobAnswer.RECOMPILE, "generic")
    assert check.advice[0].startswith("variant 'generic': kernels: the blob was made for f32 generic")
    assert check.manifest is not None
    assert not check.manifest.preferences, "those of a variant are not the package's"


def test_equal_sections_are_stored_once(three: bytes) -> None:
    assert three.count(TABLE.tobytes()) == 1
    assert three.count(WEIGHTS.tobytes()) == 1  # of source; the others pack it, each in its own order


def test_a_package_without_a_variant_for_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    high = built_isas()[-1]
    blob = package("avx2", f"{high},cores=2")
    monkeypatch.setenv("ENGINE_MAX_ISA", "generic")
    check = Core().check_blob(blob)
    assert (check.compatible, check.variant, len(check.reasons)) == (False, "", 2)
    with pytest.raises(
        BlobIncompatibleError, match=r"no variant .*: variant 'avx2': requirement 'isa'.*'.*,cores=2': "
    ):
        Core().import_model(blob)


def test_a_damaged_variant_is_an_error_and_never_replaced_silently(three: bytes) -> None:
    blob = damaged(three, lambda name: name == "variant/avx2")
    with pytest.raises(BlobCorruptError, match=r"variant 'avx2': .*; variant='generic' imports another one"):
        Core().import_model(blob)
    for name in ("generic", "source"):  # which are intact
        assert np.abs(Core().import_model(blob, variant=name)(INDICES)["y"] - EXPECTED).max() < TOLERANCE
    other = damaged(three, lambda name: name == "variant/source")
    assert np.abs(Core().import_model(other)(INDICES)["y"] - EXPECTED).max() < TOLERANCE
    with pytest.raises(BlobCorruptError, match="variant 'source'"):
        Core().import_model(other, variant="source")


def test_damage_in_each_section_is_noticed_by_the_variants_that_have_it(three: bytes) -> None:
    sections = [section.name for section in BlobReader(three).manifest.sections]
    for section in sections:
        blob = damaged(three, lambda name, section=section: name == section)  # type: ignore[misc]
        failed = set()
        for variant in ("generic", "avx2", "source"):
            try:
                network = Core().import_model(blob, variant=variant)
                assert np.abs(network(INDICES)["y"] - EXPECTED).max() < TOLERANCE
            except BlobCorruptError:
                failed.add(variant)
        assert failed, section


def test_a_truncated_package(three: bytes, tmp_path: Path) -> None:
    path = tmp_path / "package.blob"
    for size in (0, 50, 200, len(three) // 2, len(three) - 1):
        path.write_bytes(three[:size])
        for use in (Core().check_blob, Core().import_model):
            with pytest.raises(BlobFormatError):
                use(path)


def test_engines_that_do_not_know_packages_refuse_them(three: bytes) -> None:
    """They compare the requirements of the manifest with the device's features."""
    core = Core()
    plugin = core.compile_model(model_bytes(), "CPU").plugin
    reasons = check_for_plugin(plugin, BlobReader(three).manifest, "0").reasons
    assert [reason for reason in reasons if "requirement 'variants'" in reason]


def test_a_signature_covers_all_variants(tmp_path: Path) -> None:
    make_key_files(str(tmp_path / "release.key"), "release", "hmac-sha256")
    key = str(tmp_path / "release.key")
    blob = package("generic", "avx2", sign=key, release="net:2")
    core = Core()
    core.set_property({"TRUSTED_KEYS": (key,), "REQUIRE_SIGNATURE": True})
    assert core.check_blob(blob).is_trusted
    assert np.abs(core.import_model(blob, release="net:2")(INDICES)["y"] - EXPECTED).max() < TOLERANCE
    with pytest.raises(BlobSignatureError, match="expected net of version 3"):
        core.import_model(blob, release="net:3")
    with pytest.raises(BlobSignatureError):
        core.import_model(package("generic", "avx2"))
    with pytest.raises(BlobSignatureError, match="only a signed blob states one"):
        package("generic", release="net:2")


def test_an_encrypted_package(tmp_path: Path) -> None:
    pytest.importorskip("cryptography")
    make_key_files(str(tmp_path / "secret.key"), "secret", "aes-256-gcm")
    key = str(tmp_path / "secret.key")
    blob = package("generic", "avx2", "source", transform=key)
    assert TABLE.tobytes() not in blob
    assert Core().check_blob(blob, transform=key).variant == "avx2"
    assert np.abs(Core().import_model(blob, transform=key)(INDICES)["y"] - EXPECTED).max() < TOLERANCE
    with pytest.raises(BlobTransformError):
        Core().import_model(blob)


def test_a_package_of_a_model_with_variables() -> None:
    """The manifest of the package tells the variables, as that of any blob does."""
    total = helper.make_node("Add", ["x", "past"], ["present"])
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 4]) for name in ("x", "past", "present")]
    graph = helper.make_graph([total], "sum", ports[:2], ports[2:])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    core = Core()
    model = core.read_model(made)
    MakeStateful().run_on_model(model)
    variants = compile_variants(core, model, ["generic", "source"], "CPU")
    stream = io.BytesIO()
    export_variants({each.name: each.network for each in variants}, stream)
    assert len(BlobReader(stream.getvalue()).manifest.metadata["variables"]) == 1
    request = core.import_model(stream.getvalue()).create_infer_request()
    for count in (1, 2, 3):
        request.infer({"x": np.ones((1, 4), np.float32)})
        (state,) = request.query_state().values()
        assert (state.get() == count).all()


def test_a_mapped_package(three: bytes, tmp_path: Path) -> None:
    path = tmp_path / "package.blob"
    path.write_bytes(three)
    network = Core().import_model(path, config={"ENABLE_MMAP": True})
    assert np.abs(network(INDICES)["y"] - EXPECTED).max() < TOLERANCE


def test_only_the_variant_that_is_imported_takes_memory(
    three: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "package.blob"
    path.write_bytes(three)
    read: list[int] = []

    def counted(descriptor: int, buffers: list[memoryview], offset: int) -> int:
        read.append(len(buffers[0]))
        return preadv(descriptor, buffers, offset)

    preadv = os.preadv
    monkeypatch.setattr(os, "preadv", counted)
    network = Core().import_model(path)
    sizes = {section.name: section.size for section in BlobReader(three).manifest.sections}
    others = sizes["variant/generic"] + sizes["variant/source"] + 2 * WEIGHTS.nbytes  # packed, and as in the model
    assert TABLE.nbytes + WEIGHTS.nbytes < sum(read) < len(three) - others
    path.unlink()
    assert np.abs(network(INDICES)["y"] - EXPECTED).max() < TOLERANCE


def test_a_package_that_is_truncated_while_it_is_imported(three: bytes, tmp_path: Path) -> None:
    path = tmp_path / "package.blob"
    path.write_bytes(three)
    reader = BlobReader(path, on_demand=True)
    path.write_bytes(three[: len(three) // 2])
    with pytest.raises(BlobFormatError, match="truncated while it was read, at byte"):
        reader.verify()


@pytest.mark.parametrize("targets", [(), ("",), ("avx2", "avx2"), ("avx2", "avx9000")])
def test_targets_of_a_package_exist_and_differ(targets: tuple[str, ...]) -> None:
    with pytest.raises(TargetError, match=r"expected targets that differ|'avx9000' is neither"):
        package(*targets)


def test_a_package_has_networks_of_one_model_for_one_device() -> None:
    core = Core()
    network = core.compile_model(model_bytes(), "CPU")
    other = core.compile_model(model_bytes(WEIGHTS[:, :7].copy()), "CPU")
    with pytest.raises(BlobError, match="variants 'a' and 'b' have different outputs"):
        export_variants({"a": network, "b": other}, io.BytesIO())
    template = core.compile_model(model_bytes(), "TEMPLATE")
    with pytest.raises(BlobError, match="variants 'a' and 'b' have different device"):
        export_variants({"a": network, "b": template}, io.BytesIO())
    with pytest.raises(BlobError, match="at least one variant"):
        export_variants({}, io.BytesIO())
    with pytest.raises(UnsupportedError, match="variant 'a': HETERO runs on other devices"):
        export_variants({"a": core.compile_model(model_bytes(), "HETERO:CPU")}, io.BytesIO())


@pytest.mark.parametrize(
    "listed",
    [
        None,
        [],
        "avx2",
        [{"name": "avx2"}],
        [{"name": "absent", "requirements": {}}],
        [{"name": "avx2", "requirements": {"isa": 3}}],
        [{"name": "avx2", "requirements": {}}, {"name": "avx2", "requirements": {}}],
    ],
)
def test_a_malformed_list_of_variants(three: bytes, listed: Any) -> None:
    manifest: BlobManifest = BlobReader(three).manifest
    with pytest.raises(BlobFormatError, match="variant"):
        variants_of(replace(manifest, metadata={**manifest.metadata, "variants": listed}))


def test_the_requirements_of_the_variant_itself_decide(three: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package that was forged to offer AVX2 as `generic` would be an illegal instruction."""
    from engine.blob import BlobWriter

    reader = BlobReader(three)
    listed = [{"name": each.name, "requirements": {}} for each in variants_of(reader.manifest)]
    forged = BlobWriter(replace(reader.manifest, metadata={**reader.manifest.metadata, "variants": listed}))
    for name in reader.section_names:
        forged.add_section(name, reader.section(name))
    stream = io.BytesIO()
    forged.write(stream)
    monkeypatch.setenv("ENGINE_MAX_ISA", "generic")
    with pytest.raises(BlobIncompatibleError, match="needs avx2"):
        Core().import_model(stream.getvalue(), variant="avx2")
