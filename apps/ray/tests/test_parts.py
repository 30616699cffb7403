"""A folder of parts, without Ray. If these fail, parts that do not fit each other run, or nobody sees why."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from engine_ray import PartFolder, export_parts, open_parts, read_parts
from engine_ray.part_actor import Action, Call, PartActor, Reply
from engine_ray.part_folder import MANIFEST, require_part
from engine_ray.parts_network import _groups, _own_seed

from engine import Core
from engine.errors import (
    BlobError,
    BlobFormatError,
    BlobIncompatibleError,
    EngineError,
    PassError,
    PropertyError,
)
from engine.generation import Sampling
from engine.ir import Model
from engine.passes import MakeStateful

DECODERS = Path(__file__).parents[3] / "tests" / "fixtures" / "decoders"


def decoder(name: str = "llama.dynamo23") -> Model:
    model = Core().read_model(DECODERS / f"{name}.onnx")
    MakeStateful().run_on_model(model)
    return model


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> PartFolder:
    return export_parts(decoder(), tmp_path_factory.mktemp("parts"), 2, "TEMPLATE")


def actors(folder: PartFolder) -> list[PartActor]:
    found = []
    for number, part in enumerate(folder.parts):
        kept = {port.name for port in folder.outputs}
        kept |= {name for later in folder.parts[number + 1 :] for name in later.inputs}
        found.append(PartActor(number, part, f"{folder.path}/{part.file}", frozenset(kept), is_last=True))
    return found


def test_the_folder_describes_the_model(exported: PartFolder) -> None:
    model = decoder()
    read = read_parts(exported.path)
    assert (read.parts, read.weight_bytes, read.identity) == (exported.parts, exported.weight_bytes, exported.identity)
    assert [each.to_json() for each in read.states] == [each.to_json() for each in exported.states]
    assert [port.name for port in exported.inputs] == ["input_ids", "attention_mask", "position_ids"]
    assert [port.name for port in exported.outputs] == ["logits"]
    assert [state.name for state in exported.states] == [variable.name for variable in model.variables]
    assert exported.largest_share < 0.6
    assert [len(part.variables) for part in exported.parts] == [2, 2]
    for part in exported.parts:
        require_part(f"{exported.path}/{part.file}", part)


def test_an_actor_drops_what_nobody_reads(exported: PartFolder) -> None:
    """The tensors that go from one machine to the next are those that a later part reads."""
    first, last = actors(exported)
    for each in (first, last):
        assert each.open("TEMPLATE", {}) is None
        assert isinstance(each.step(Call(1, 0, Action.OPEN)), Reply)
    whole = Core().compile_model(decoder(), "TEMPLATE").create_infer_request()
    ids = np.array([[3, 14, 15]])
    inputs = {"input_ids": ids, "attention_mask": np.ones_like(ids), "position_ids": np.arange(3)[None]}
    call = Call(1, 0, Action.INFER, values=inputs)
    between = first.step(call)
    assert isinstance(between, Reply)
    assert between.values.keys() == set(exported.parts[1].inputs)
    assert between.values.keys() & set(exported.parts[0].outputs)
    after = last.step(replace(call, values=between.values))
    assert isinstance(after, Reply)
    np.testing.assert_array_equal(after.values["logits"], whole.infer(inputs)["logits"])
    assert after.shapes == {f"past_key_values.1.{name}": (1, 2, 3, 4) for name in ("key", "value")}


def test_an_actor_tells_that_it_has_lost_a_sequence(exported: PartFolder) -> None:
    """It never computes with the variables of another step."""
    actor = actors(exported)[0]
    assert actor.step(Call(1, 0, Action.OPEN)) == Reply(0, is_lost=True), "it is not open"
    assert actor.open("TEMPLATE", {}) is None
    for call in (Call(1, 0, Action.REWIND, 1), Call(2, 0, Action.FORK, 1)):
        assert actor.step(call) == Reply(0, is_lost=True)
    shapes = {f"past_key_values.0.{name}": (1, 2, 0, 4) for name in ("key", "value")}
    assert actor.step(Call(1, 0, Action.OPEN)) == Reply(0, shapes)
    assert actor.step(Call(1, 1, Action.REWIND, 0)) == Reply(0, is_lost=True)
    failed = actor.step(Call(1, 0, Action.REWIND, 1))
    assert isinstance(failed, Reply)
    assert "cannot rewind" in str(failed.error)
    broken = actor.step(Call(1, 0, Action.INFER))
    assert isinstance(broken, Reply)
    assert "part 0 of the model failed: KeyError" in str(broken.error)
    assert actor.value(2, "past_key_values.0.key") is None
    process = actor.process()
    assert (process.part, process.sequences, process.weight_bytes) == (0, 1, exported.parts[0].weight_bytes)
    forgetting = Call(3, 0, Action.OPEN, forgotten=[1])
    assert isinstance(actor.step(forgetting), Reply)
    assert actor.value(1, "past_key_values.0.key") is None
    part = exported.parts[0]
    unlinked = PartActor(0, part, f"{exported.path}/{part.file}", frozenset(part.outputs), is_last=False)
    assert unlinked.open("TEMPLATE", {}) is None
    assert unlinked.step(Call(1, 0, Action.OPEN)) == Reply(0, is_lost=True), "it does not know the next part yet"


def test_parts_of_different_exports_are_refused(exported: PartFolder, tmp_path: Path) -> None:
    """Even of the same model, if it was divided otherwise; and a part that is missing or damaged."""
    other = export_parts(decoder(), tmp_path / "other", 3, "TEMPLATE")
    mixed = Path(shutil.copytree(exported.path, tmp_path / "mixed"))
    shutil.copy(f"{other.path}/part1.blob", mixed)
    folder = read_parts(mixed)
    assert isinstance(actors(folder)[1].open("TEMPLATE", {}), BlobIncompatibleError)
    assert actors(folder)[0].open("TEMPLATE", {}) is None
    (mixed / "part1.blob").unlink()
    with pytest.raises(BlobError, match=r"part1.blob: the blob of a part is missing; copy the whole folder"):
        require_part(str(mixed / "part1.blob"), folder.parts[1])
    (mixed / "part1.blob").write_bytes(b"no blob")
    assert isinstance(actors(folder)[1].open("TEMPLATE", {}), BlobFormatError)
    # On another device, and with a configuration that it does not have.
    assert isinstance(actors(folder)[0].open("CPU", {}), BlobIncompatibleError)
    assert isinstance(actors(folder)[0].open("TEMPLATE", {"NO_SUCH": 1}), PropertyError)


def test_a_failed_export_leaves_no_manifest(exported: PartFolder, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(exported.path, tmp_path / "copy"))
    with pytest.raises(PassError, match="places to divide"):
        export_parts(decoder(), folder, 1000, "TEMPLATE", largest=1)
    assert read_parts(folder).parts == exported.parts, "nothing was written yet"
    with pytest.raises(PropertyError):
        export_parts(decoder(), folder, 2, "TEMPLATE", {"NO_SUCH": 1})
    with pytest.raises(BlobError, match="expected a folder of export_parts"):
        read_parts(folder)


def change(value: Any, *path: Any, to: Any) -> Any:
    place = value
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = to
    return value


@pytest.mark.parametrize(
    ("path", "to", "message"),
    [
        (["format"], 2, "format 2; expected 1"),
        (["parts"], [], "there are no parts"),
        (["parts"], 3, "TypeError"),
        (["parts", 0, "file"], "../part0.blob", "expected the name of a file in the folder"),
        (["parts", 0, "file"], "", "expected the name of a file in the folder"),
        (["parts", 0, "weight_bytes"], -1, "expected a count"),
        (["parts", 1, "inputs", 0], "nothing", "part 1 reads `nothing`, which no part before it gives"),
        (["parts", 1, "outputs"], [], "no part gives the output `logits`"),
        (["parts", 1, "variables"], ["v"], "the parts have the variables"),
        (["parts", 0, "lengths"], {"n": ["v", 0, 1, False]}, "reads lengths of `v`, which is not a variable"),
        (["parts", 0, "lengths"], {"n": [1]}, "TypeError"),
        (["parts", 0, "lengths"], {"n": ["v", "0", 1, False]}, "expected the end of a shape"),
        (["variables", 0], None, "the description of a variable is malformed"),
        (["inputs", 0], {}, "the description of an input or output is malformed"),
        (["name"], None, "expected a text"),
    ],
)  # fmt: skip
def test_a_damaged_manifest_is_a_typed_error(
    exported: PartFolder, tmp_path: Path, path: list[Any], to: Any, message: str
) -> None:
    value = json.loads((Path(exported.path) / MANIFEST).read_text())
    (tmp_path / MANIFEST).write_text(json.dumps(change(value, *path, to=to)))
    with pytest.raises(EngineError, match=message) as raised:
        read_parts(tmp_path)
    assert isinstance(raised.value, (BlobFormatError, BlobIncompatibleError))
    (tmp_path / MANIFEST).write_text("[" * 100_000)
    with pytest.raises(BlobFormatError, match="not valid JSON"):
        read_parts(tmp_path)


def test_wrong_arguments_are_errors_before_anything_starts(exported: PartFolder, tmp_path: Path) -> None:
    with pytest.raises(BlobError, match="a model in parts cannot be opened"):
        open_parts(tmp_path)
    with pytest.raises(PropertyError, match="max_restarts is -1; expected 0 or more"):
        open_parts(exported.path, max_restarts=-1)
    with pytest.raises(PropertyError, match="NO_SUCH"):
        open_parts(exported.path, {"NO_SUCH": 1})
    with pytest.raises(PropertyError, match="slot has 'cpus'; expected amounts of num_cpus and num_gpus"):
        open_parts(exported.path, slot={"cpus": 1})


@pytest.mark.parametrize("count", [1, 2, 3, 5, 9])
def test_micro_batches_have_all_prompts_of_similar_lengths(count: int) -> None:
    lengths = [4, 1, 3, 4, 1]
    groups = _groups(lengths, count, can_pad=True)
    assert sorted(index for group in groups for index in group) == list(range(5))
    assert len(groups) == min(count, 5)
    assert max(map(len, groups)) - min(map(len, groups)) <= 1
    assert [lengths[index] for group in groups for index in group] == [1, 1, 3, 4, 4]
    unpadded = _groups(lengths, count, can_pad=False)
    assert sorted(index for group in unpadded for index in group) == list(range(5))
    assert all(len({lengths[index] for index in group}) == 1 for group in unpadded)
    assert min(count, 5) <= len(unpadded) <= count + 2, "there are three lengths"


def test_micro_batches_draw_numbers_of_their_own() -> None:
    drawn = Sampling(temperature=0.5, seed=3)
    assert [_own_seed(drawn, number) for number in range(2)] == [drawn, replace(drawn, seed=4)]
    assert _own_seed(None, 1) is None
