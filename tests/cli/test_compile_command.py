"""`engine compile` for several devices and configurations: each blob is what it should be, or none is written."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from engine import Core
from engine.blob import BlobReader

Engine = Callable[..., Any]


def config_of(blob: Path) -> dict[str, Any]:
    with BlobReader(blob) as reader:
        return dict(reader.manifest.config)


def test_one_blob_for_each_device(engine: Engine, files: Path, tmp_path: Path) -> None:
    inputs = files / "basic_input.npz"
    done = engine("compile", files / "basic.onnx", "-d", "TEMPLATE", "-d", "CPU", "-i", inputs, "--json", cwd=tmp_path)
    assert (done.code, done.err) == (0, "")
    found = json.loads(done.out)
    assert [(each["file"], each["device"], each["close"]) for each in found["blobs"]] == [
        ("basic.TEMPLATE.blob", "TEMPLATE", True),
        ("basic.CPU.blob", "CPU", True),
    ]
    assert [each["name"] for each in found["blobs"][1]["comparison"]] == ["total", "product"]
    with np.load(inputs) as values, np.load(files / "basic_answer.npz") as answer:
        for device in ("TEMPLATE", "CPU"):
            result = Core().import_model(tmp_path / f"basic.{device}.blob")(dict(values))
            assert all(np.allclose(result[name], answer[name]) for name in answer)


def test_the_device_that_auto_chose_is_named(engine: Engine, files: Path, tmp_path: Path) -> None:
    done = engine("compile", files / "basic.onnx", "-d", "AUTO:TEMPLATE", "-o", tmp_path / "a.blob")
    assert ", for AUTO:TEMPLATE (TEMPLATE), compiled in " in done.out
    done = engine("compile", files / "basic.onnx", "-d", "AUTO:TEMPLATE", "-o", tmp_path / "a.blob", "--json")
    assert json.loads(done.out)["execution_devices"] == ["TEMPLATE"]


def test_a_setting_belongs_to_the_device_before_it(engine: Engine, files: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    done = engine(
        *("compile", files / "basic.onnx", "-c", "PERF_COUNT=true", "-o", "out"),
        *("-d", "TEMPLATE", "-c", "NUM_STREAMS=2", "-d", "TEMPLATE", "-d", "TEMPLATE", "-o", "own.blob"),
        cwd=tmp_path,
    )
    assert (done.code, done.err) == (0, "")
    assert config_of(tmp_path / "out" / "basic.TEMPLATE.blob") == {"PERF_COUNT": True, "NUM_STREAMS": 2}
    assert config_of(tmp_path / "out" / "basic.TEMPLATE.2.blob") == {"PERF_COUNT": True}
    assert config_of(tmp_path / "own.blob") == {"PERF_COUNT": True}
    # With one device, the order does not matter.
    assert engine("compile", files / "basic.onnx", "-o", "a.blob", "-d", "TEMPLATE", cwd=tmp_path).code == 0
    assert engine("compile", files / "basic.onnx", "-d", "TEMPLATE", "-o", "b.blob", cwd=tmp_path).code == 0
    assert (tmp_path / "a.blob").read_bytes() == (tmp_path / "b.blob").read_bytes()


def test_blobs_that_differ_are_not_written(engine: Engine, tmp_path: Path) -> None:
    """Random numbers without a seed differ between two runs of a network, as a wrong blob's results would."""
    node = helper.make_node("RandomUniformLike", ["x"], ["y"], "noise")
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [4]) for name in ("x", "y")]
    graph = helper.make_graph([node], "noise", ports[:1], ports[1:])
    onnx.save(helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)]), tmp_path / "n.onnx")
    (tmp_path / "n.TEMPLATE.blob").write_bytes(b"earlier")
    done = engine("compile", "n.onnx", "-d", "TEMPLATE", "-d", "TEMPLATE", cwd=tmp_path)
    assert done.code == 1
    assert "not written: n.TEMPLATE.blob" in done.out
    assert "DIFFERS" in done.out
    assert {file.name for file in tmp_path.iterdir()} == {"n.onnx", "n.TEMPLATE.blob"}
    assert (tmp_path / "n.TEMPLATE.blob").read_bytes() == b"earlier"
    assert engine("compile", "n.onnx", "-d", "TEMPLATE", "--check", cwd=tmp_path).code == 1
    assert engine("compile", "n.onnx", "-d", "TEMPLATE", "-d", "TEMPLATE", "--no-check", cwd=tmp_path).code == 0
    assert {"n.TEMPLATE.blob", "n.TEMPLATE.2.blob"} <= {file.name for file in tmp_path.iterdir()}


def test_nothing_is_written_if_one_device_cannot_compile(engine: Engine, files: Path, tmp_path: Path) -> None:
    done = engine("compile", files / "basic.onnx", "-d", "TEMPLATE", "-d", "CPU", "-c", "NO_KEY=1", cwd=tmp_path)
    assert done.code == 3
    assert "NO_KEY" in done.err
    done = engine("compile", files / "basic.onnx", "-d", "TEMPLATE", "-d", "ABSENT", cwd=tmp_path)
    assert done.code == 3
    assert "ABSENT" in done.err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["-o", "same.blob", "-d", "TEMPLATE", "-o", "same.blob", "-d", "CPU"], "expected an existing folder"),
        (["-d", "TEMPLATE", "-o", "same.blob", "-d", "CPU", "-o", "./same.blob"], "two blobs would be written to"),
        (["-d", "TEMPLATE", "-o", "missing/a.blob", "-d", "CPU"], "does not exist"),
        (["-d", "TEMPLATE", "-i", "inputs.npz"], "which is off"),
    ],
)
def test_contradictory_options(engine: Engine, files: Path, tmp_path: Path, arguments: list[str], problem: str) -> None:
    done = engine("compile", files / "basic.onnx", *arguments, cwd=tmp_path)
    assert (done.code, done.out) == (2, "")
    assert problem in done.err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("file", "options"),
    [
        ("secret.key", ("--encrypt", "secret.key")),
        ("sign.key", ("--sign", "sign.key")),
        ("whole.blob", ("--weights-from", "whole.blob")),
        ("basic_input.npz", ("--check", "-i", "basic_input.npz")),
    ],
)
def test_a_blob_replaces_no_file_that_is_read(
    engine: Engine, files: Path, tmp_path: Path, file: str, options: tuple[str, ...]
) -> None:
    model = files / "basic.onnx"
    engine("keygen", "k", "--algorithm", "aes-256-gcm", "-o", "secret.key", cwd=tmp_path)
    engine("keygen", "s", "--algorithm", "hmac-sha256", "-o", "sign.key", cwd=tmp_path)
    engine("compile", model, "-d", "TEMPLATE", "-o", "whole.blob", cwd=tmp_path)
    (tmp_path / "basic_input.npz").write_bytes((files / "basic_input.npz").read_bytes())
    before = (tmp_path / file).read_bytes()
    done = engine("compile", model, "-d", "TEMPLATE", *options, "-o", file, cwd=tmp_path)
    assert done.code == 2
    assert f"{file}; choose another -o FILE" in done.err
    assert (tmp_path / file).read_bytes() == before


def test_inspect_verifies_with_the_key_and_the_file_of_weights(engine: Engine, tmp_path: Path) -> None:
    """The hashes of the blob alone cover the encrypted sections, and not weights elsewhere."""
    for number in (1, 2):
        weight = onnx.numpy_helper.from_array(np.full((64, 64), number, np.float32), "w")
        ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, (1, 64)) for name in "xy"]
        graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"])], "g", ports[:1], ports[1:], [weight])
        proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
        onnx.save(proto, tmp_path / f"{number}.onnx")
        engine("keygen", "same", "--algorithm", "aes-256-gcm", "-o", f"{number}.key", cwd=tmp_path)
    engine("compile", "1.onnx", "-d", "TEMPLATE", "--encrypt", "1.key", "-o", "secret.blob", cwd=tmp_path)
    engine("compile", "1.onnx", "-d", "TEMPLATE", "--weights-from", "1.onnx", "-o", "bound.blob", cwd=tmp_path)
    for blob, option, kind, words in (
        ("secret.blob", "--decrypt", "key", "not encrypted with this key"),
        ("bound.blob", "--weights-from", "onnx", "whose content has changed since"),
    ):
        right = engine("inspect", blob, "--verify", option, f"1.{kind}", cwd=tmp_path)
        assert (right.code, right.err) == (0, "")
        wrong = engine("inspect", blob, "--verify", option, f"2.{kind}", cwd=tmp_path)
        assert (wrong.code, wrong.err) == (1, "")
        assert "loads here: NO" in wrong.out
        assert wrong.out.count(words) == 1


def test_the_data_of_the_model_is_not_replaced(engine: Engine, files: Path, tmp_path: Path) -> None:
    model = onnx.load(files / "squeezenet.onnx")
    (tmp_path / "sub").mkdir()
    onnx.save(model, tmp_path / "model.onnx", save_as_external_data=True, location="sub/w.bin", size_threshold=0)
    before = (tmp_path / "sub" / "w.bin").read_bytes()
    done = engine("compile", "model.onnx", "-d", "TEMPLATE", "-o", "./sub/../sub/w.bin", cwd=tmp_path)
    assert (done.code, done.out) == (2, "")
    assert "the blob would replace the data of the model sub/w.bin" in done.err
    assert (tmp_path / "sub" / "w.bin").read_bytes() == before


@pytest.mark.parametrize("names", [("a.blob", "folder"), ("folder", "a.blob")])
@pytest.mark.parametrize("check", ["--check", "--no-check"])
def test_no_blob_is_left_if_another_cannot_be_written(
    engine: Engine, files: Path, tmp_path: Path, check: str, names: tuple[str, str]
) -> None:
    outputs = [each for name in names for each in ("-d", "TEMPLATE", "-o", name)]
    (tmp_path / "folder").mkdir()
    done = engine("compile", files / "basic.onnx", check, *outputs, cwd=tmp_path)
    assert done.code == 3
    assert "folder" in done.err
    assert [file.name for file in tmp_path.iterdir()] == ["folder"]


def test_a_blob_for_another_machine(engine: Engine, files: Path, tmp_path: Path) -> None:
    model, blob = files / "basic.onnx", tmp_path / "any.blob"
    done = engine("compile", model, "--target", "source", "-o", blob, "--check")
    assert (done.code, "for CPU" in done.out) == (0, True)
    with BlobReader(blob) as reader:
        assert (reader.manifest.requirements, reader.manifest.config) == ({}, {"TARGET": "source"})
    done = engine("compile", model, "-d", "CPU", "--target", "x86-64:z80", "-o", tmp_path / "other.blob")
    assert done.code != 0
    assert "targets: " in done.err
    done = engine("compile", model, "-d", "TEMPLATE", "--target", "source", "-o", tmp_path / "other.blob")
    assert (done.code, "TEMPLATE compiles for this machine only" in done.err) == (3, True)
    assert not (tmp_path / "other.blob").exists()


def test_one_file_for_several_machines(engine: Engine, files: Path, tmp_path: Path) -> None:
    model, blob = files / "basic.onnx", tmp_path / "package.blob"
    done = engine("compile", model, "--targets", "generic,cores=3,source", "-o", blob, "--check", "--json")
    assert done.code == 0
    found = json.loads(done.out)
    assert [each["name"] for each in found["variants"]] == ["generic,cores=3", "source"]
    assert all(c["close"] for each in found["variants"] for c in each["comparison"])
    assert found["bytes"] == blob.stat().st_size
    done = engine("inspect", blob, "--verify", "--json")
    described = json.loads(done.out)
    assert (done.code, described["variant"], described["loads_here"]) == (0, "generic,cores=3", True)
    assert [(each["name"], each["reasons"], each["sound"]) for each in described["variants"]] == [
        ("generic,cores=3", [], True),
        ("source", [], True),
    ]
    assert "variant source (" in engine("inspect", blob, "--html", tmp_path / "page.html").out
    assert "can be imported" in (tmp_path / "page.html").read_text()
    assert engine("run", blob).code == 0
    # Damage to a variant that is not imported here is shown, and does not matter.
    content = bytearray(blob.read_bytes())
    content[-1] ^= 1
    blob.write_bytes(content)
    done = engine("inspect", blob, "--verify")
    assert (done.code, "DAMAGED; can be imported here" in done.out) == (0, True)
    assert engine("run", blob).code == 0


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--targets", "source", "--target", "source"], "--target and --targets: give one of them"),
        (["--targets", "source", "-d", "CPU", "-d", "TEMPLATE"], "give one -d"),
        (["--targets", "source", "--weights-from", "w.onnx"], "omit --weights-from"),
        (["--targets", "source", "-i", "x.npy"], "-i gives the inputs of --check, which is off"),
        (["--targets", "source,source"], "expected targets that differ"),
        (["--targets", "source,"], "expected targets that differ"),
        (["--targets", "source", "-d", "TEMPLATE"], "TEMPLATE compiles for this machine only"),
        (["--target", "@absent.txt"], "--target @absent.txt: the file cannot be read"),
        (["--target", ""], "the target is empty"),
    ],
)
def test_targets_that_contradict_other_options(
    engine: Engine, files: Path, tmp_path: Path, arguments: list[str], problem: str
) -> None:
    done = engine("compile", files / "basic.onnx", "-o", tmp_path / "new.blob", *arguments, cwd=tmp_path)
    assert done.code != 0
    assert problem in done.err
    assert not list(tmp_path.iterdir())


def test_a_device_is_described_for_other_machines(engine: Engine, files: Path, tmp_path: Path) -> None:
    done = engine("devices", "CPU", "--describe")
    (tmp_path / "cpu.txt").write_text(done.out)
    blob, target = tmp_path / "cpu.blob", f"@{tmp_path / 'cpu.txt'}"
    assert engine("compile", files / "basic.onnx", "-d", "CPU", "--target", target, "-o", blob).code == 0
    assert config_of(blob) == {"TARGET": done.out.strip()}
    assert "name it" in engine("devices", "--describe").err
    assert "TEMPLATE has no description" in engine("devices", "TEMPLATE", "--describe").err
