"""A model in two processes of a real local Ray. If these fail, tokens differ from those of the whole model, a lost
process loses sequences, or a process holds more of the weights than it should.
"""

from __future__ import annotations

import asyncio
import gc
import os
import random
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from engine_ray import PartsNetwork, export_parts, open_parts

from engine import Core, ops
from engine.errors import (
    BlobError,
    BlobIncompatibleError,
    Cancelled,
    DeviceError,
    InputError,
    StateError,
    UnsupportedError,
)
from engine.generation import Generator, Sampling
from engine.ir import Constant, Model, Parameter, Result, Variable, f32
from engine.passes import MakeStateful

ray = pytest.importorskip("ray", reason="Ray is not installed: pip install engine-ray")
pytest.importorskip("ray.data", reason="Ray Data is not installed: pip install engine-ray")

DECODERS = Path(__file__).parents[3] / "tests" / "fixtures" / "decoders"
PROMPT = [3, 14, 15, 9]
SLOT = {"num_cpus": 0.5}  # so that the two CPUs have room for the processes of two tests
PROMPTS = [[3, 14, 15, 9], [2], [7, 1, 8], [5, 5, 5, 5], [30]]

pytestmark = [
    # Of Ray's own code: sockets and files of its processes that it leaves to the end of this one.
    pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning"),
    pytest.mark.filterwarnings("ignore:subprocess .* is still running:ResourceWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning:ray.*"),
    pytest.mark.filterwarnings("ignore::FutureWarning:ray.*"),
]


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    ray.init("local", num_cpus=2, include_dashboard=False, log_to_driver=False, object_store_memory=80 << 20)
    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
    yield
    ray.shutdown()


def decoder(name: str = "llama.dynamo23", bound: int | None = None) -> Model:
    model = Core().read_model(DECODERS / f"{name}.onnx")
    MakeStateful(bound=bound).run_on_model(model)
    return model


@pytest.fixture(scope="module")
def whole() -> Any:
    return Core().compile_model(decoder(bound=40), "CPU")


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PartsNetwork]:
    folder = tmp_path_factory.mktemp("parts")
    export_parts(decoder(bound=40), folder, 2)
    with open_parts(folder, slot=SLOT) as network:
        yield network


@pytest.mark.parametrize(("name", "device"), [("gpt2.script17", "TEMPLATE"), ("llama_scatter.dynamo24", "CPU")])
def test_tokens_are_those_of_the_whole_model(name: str, device: str, tmp_path: Path) -> None:
    """Also with caches of a fixed length; the weights of each process are those of its part."""
    compiled = Core().compile_model(decoder(name), device)
    folder = export_parts(decoder(name), tmp_path, 2, device)
    with open_parts(tmp_path, slot=SLOT) as network:
        assert Generator(network).generate(PROMPT, 6) == Generator(compiled).generate(PROMPT, 6)
        prompts = [PROMPTS[0], PROMPTS[1], PROMPTS[3]]  # of different lengths, though a model has no mask
        alone = [Generator(compiled).generate(prompt, 6)[0] for prompt in prompts]
        assert network.generate(prompts, 6, micro_batches=1) == alone
        equal = [PROMPTS[0], PROMPTS[3]]
        assert Generator(network).generate(equal, 6) == Generator(compiled).generate(equal, 6)
        processes = network.processes()
        assert len({each.process for each in processes} | {os.getpid()}) == 3
        for each, part in zip(processes, folder.parts, strict=True):
            assert each.weight_bytes == part.weight_bytes <= 0.6 * folder.weight_bytes
            assert min(each.resident_bytes, each.own_bytes) > 0


def test_what_a_generator_does_with_its_sequences(parts: PartsNetwork, whole: Any) -> None:
    """Parts of a prompt, rewinding, forks, reordering, saved states, drafts and sampling, as with the whole model."""
    found, expected = Generator(parts), Generator(whole)
    for each in (found, expected):
        each.append(PROMPT[:2])
        each.logits()
        each.append(PROMPT[2:])
    assert list(found.stream(4)) == list(expected.stream(4))
    assert found.request.length == expected.request.length
    forks = found.fork(), expected.fork()
    for each in (found, expected):
        each.rewind(3)
    assert found.generate([8], 3) == expected.generate([8], 3)
    assert forks[0].generate([1], 3) == forks[1].generate([1], 3)
    for each in (found, expected):
        each.reset()
        each.append(PROMPTS[:3])
        each.step()
        each.reorder([2, 2, 0])
    assert [found.step() for _ in range(3)] == [expected.step() for _ in range(3)]
    state = {name: each.get() for name, each in expected.request.query_state().items()}
    np.testing.assert_allclose(
        found.request.query_state()["past_key_values.1.key"].get(), state["past_key_values.1.key"], rtol=0, atol=1e-6
    )
    drawn = Sampling(temperature=1.5, seed=4)
    assert Generator(parts, drawn).generate(PROMPT, 5) == Generator(whole, drawn).generate(PROMPT, 5)
    assert Generator(parts, draft=whole).generate(PROMPT, 8) == Generator(whole).generate(PROMPT, 8)

    async def streamed(network: Any) -> list[int]:
        generator = Generator(network)
        generator.append(PROMPT)
        return [token async for token in generator.stream_async(4)]

    assert asyncio.run(streamed(parts)) == asyncio.run(streamed(whole))


def test_a_state_is_saved_and_loaded(parts: PartsNetwork, tmp_path: Path) -> None:
    first = Generator(parts)
    first.generate(PROMPT, 3)
    first.request.save(tmp_path / "state")
    other = parts.create_infer_request()
    other.load(tmp_path / "state")
    assert other.length == first.request.length == 6
    for name, state in first.request.query_state().items():
        np.testing.assert_array_equal(other.query_state()[name].get(), state.get())
    other.query_state()["past_key_values.0.key"].reset()
    with pytest.raises(StateError, match="different lengths"):
        _ = other.length


def test_micro_batches_give_the_tokens_of_each_prompt_alone(parts: PartsNetwork, whole: Any) -> None:
    """Several of them are under way at the same time; the order is that of the prompts."""
    alone = [Generator(whole).generate(prompt, 6)[0] for prompt in PROMPTS]
    for count in (None, 1, 5):
        assert parts.generate(PROMPTS, 6, micro_batches=count) == alone
    stop = alone[0][2]
    cut = [row[: row.index(stop) + 1] if stop in row else row for row in alone]
    assert parts.generate(PROMPTS, 6, stop_tokens=[stop]) == cut
    drawn = Sampling(temperature=1.5, seed=4)
    assert parts.generate(PROMPTS, 4, sampling=drawn)[4] != parts.generate(PROMPTS, 4)[4]
    assert parts.generate(PROMPTS, 4, sampling=drawn) == parts.generate(PROMPTS, 4, sampling=drawn)
    for wrong in (0, True, 1.5):
        with pytest.raises(InputError, match="micro_batches is"):
            parts.generate(PROMPTS, micro_batches=wrong)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="prompts is empty"):
        parts.generate([])
    with pytest.raises(InputError, match="token 99 is out of range"):
        parts.generate([[1], [99]])


@pytest.mark.parametrize("part", [0, 1])
def test_sequences_of_a_killed_process_are_replayed(parts: PartsNetwork, whole: Any, part: int) -> None:
    """In the middle of a text, of a fork and a batch whose padding was moved; before, tokens were taken back."""
    before = parts.restarts
    generators = [(Generator(each), Generator(each), Generator(each)) for each in (parts, whole)]
    outcomes = []
    for network, (single, batch, idle) in zip((parts, whole), generators, strict=True):
        first = single.generate(PROMPT, 4)
        single.rewind(2)
        fork = single.fork()
        rows = batch.generate(PROMPTS[:3], 3)
        idle.append([1])
        if network is parts:
            os.kill(parts.processes()[part].process, signal.SIGKILL)
        outcomes.append((first, rows, single.generate([4], 4), fork.generate([4], 4), batch.step(), idle.step()))
    assert outcomes[0] == outcomes[1]
    assert parts.restarts == before + 1


def test_a_process_is_killed_while_micro_batches_run(parts: PartsNetwork, whole: Any) -> None:
    alone = [Generator(whole).generate(prompt, 30)[0] for prompt in PROMPTS]
    victims, before = [each.process for each in parts.processes()], parts.restarts

    def kill() -> None:
        for victim in victims:
            time.sleep(0.3)
            os.kill(victim, signal.SIGKILL)

    thread = threading.Thread(target=kill)
    thread.start()
    found = parts.generate(PROMPTS, 30)
    thread.join()
    assert found == alone
    assert Generator(parts).generate(PROMPT, 6) == [alone[0][:6]]
    assert 1 <= parts.restarts - before <= 2
    assert not {each.process for each in parts.processes()} & set(victims)


def test_a_process_that_ray_ends_is_started_again(parts: PartsNetwork, whole: Any) -> None:
    """As when its node is lost."""
    generator, expected = Generator(parts), Generator(whole)
    assert generator.generate(PROMPT, 2) == expected.generate(PROMPT, 2)
    ray.kill(parts._actors._actors[1])
    assert generator.generate([1], 2) == expected.generate([1], 2)


def test_an_error_of_a_part_leaves_the_sequence_as_it_was(parts: PartsNetwork, whole: Any) -> None:
    """A length beyond the bound of the variables, and an error of the second part, when the first one is done."""
    found, expected = Generator(parts), Generator(whole)
    for each in (found, expected):
        each.generate(PROMPT, 3)
        each.append(list(range(30)) + [0] * 10)
        with pytest.raises(StateError, match="bound is 40"):
            each.logits()
        each.rewind(40)
    state = found.request.query_state()["past_key_values.1.key"]
    before = state.get()
    with pytest.raises(InputError, match=r"past_key_values\.1\.key"):
        state.set(np.zeros((1, 2, 7, 5), np.float32))
    np.testing.assert_array_equal(state.get(), before)
    state.set(np.zeros((1, 2, 3, 4), np.float32))  # shorter than the others, which only the part can find
    with pytest.raises(StateError, match="it has 3 since its initial value"):
        found.request.rewind(5)
    state.set(before)
    assert found.generate([8], 3) == expected.generate([8], 3)


def test_a_cancelled_step_is_taken_back(parts: PartsNetwork, whole: Any) -> None:
    found, expected, before = Generator(parts), Generator(whole), parts.restarts
    assert found.generate(PROMPT, 2) == expected.generate(PROMPT, 2)
    victim = parts.processes()[1].process
    os.kill(victim, signal.SIGSTOP)  # so that the step does not end
    try:
        found.append([1])
        timer = threading.Timer(0.5, found.request.cancel)
        timer.start()
        with pytest.raises(Cancelled):
            found.step()
    finally:
        os.kill(victim, signal.SIGCONT)
    expected.append([1])
    assert [found.step() for _ in range(3)] == [expected.step() for _ in range(3)]
    assert parts.restarts == before


def test_sequences_that_nobody_holds_are_dropped(parts: PartsNetwork) -> None:
    kept = Generator(parts)
    kept.generate(PROMPT, 1)
    others = [Generator(parts) for _ in range(3)]
    assert all(len(other.generate(PROMPT, 1)[0]) == 1 for other in others)
    assert min(each.sequences for each in parts.processes()) >= 4
    others.clear()
    gc.collect()  # of those of failed requests, whose errors refer to them
    kept.step()
    assert [each.sequences for each in parts.processes()] == [1, 1]
    kept.reset()
    kept.generate([1], 1)
    assert [each.sequences for each in parts.processes()] == [1, 1]


def test_what_a_network_in_parts_refuses(parts: PartsNetwork, tmp_path: Path) -> None:
    request = parts.create_infer_request()
    with pytest.raises(UnsupportedError, match=r"as a Scheduler does; use PartsNetwork\.generate"):
        request.gather([(request, 0, 1)])
    with pytest.raises(UnsupportedError, match="as a Scheduler does"):
        request.take_sequence(0, parts.create_infer_request())
    with pytest.raises(UnsupportedError, match="cannot export"):
        parts.export_model(os.devnull)
    export_parts(decoder(), tmp_path, 2, "TEMPLATE")
    closed = open_parts(tmp_path, slot=SLOT)
    closed.close()
    with pytest.raises(DeviceError, match="the parts were closed; open them again"):
        Generator(closed).generate(PROMPT, 1)
    with pytest.raises(DeviceError, match="a part cannot be asked"):
        closed.processes()


def test_a_process_that_cannot_start_is_a_typed_error(tmp_path: Path) -> None:
    export_parts(decoder(), tmp_path / "a", 2, "TEMPLATE")
    export_parts(decoder(), tmp_path / "b", 3, "TEMPLATE")
    (tmp_path / "b" / "part1.blob").replace(tmp_path / "a" / "part1.blob")
    with pytest.raises(BlobIncompatibleError, match="of another export"):
        open_parts(tmp_path / "a", slot=SLOT)
    export_parts(decoder(), tmp_path / "a", 2, "TEMPLATE")
    with pytest.raises(DeviceError, match=r"has not started within 1 s; the cluster needs a free node with"):
        open_parts(tmp_path / "a", slot={"num_cpus": 64}, start_seconds=1)
    with open_parts(tmp_path / "a", slot=SLOT) as network:
        generator = Generator(network)
        before = generator.generate(PROMPT, 2)
        part = tmp_path / "a" / "part1.blob"
        part.rename(tmp_path / "kept")
        os.kill(network.processes()[1].process, signal.SIGKILL)
        with pytest.raises(BlobError, match=r"part1\.blob: the blob of a part is missing"):
            generator.step()
        (tmp_path / "kept").rename(part)
        again = Generator(network)
        assert again.generate(PROMPT, 3)[0] == [*before[0], generator.step()[0]], "the blob is back"


class Deadly:
    """Stops the process that unpickles it."""

    def __reduce__(self) -> Any:
        return os._exit, (1,)


def test_a_step_that_ends_every_process_ends_with_an_error(tmp_path: Path) -> None:
    export_parts(decoder(), tmp_path, 2, "TEMPLATE")
    with open_parts(tmp_path, slot=SLOT, max_restarts=1) as network:
        generator = Generator(network)
        generator.generate(PROMPT, 2)
        with pytest.raises(DeviceError, match="were lost in 2 attempts of one step"):
            generator.request.reorder([Deadly()])  # type: ignore[list-item]
        assert network.restarts == 2
        assert len(generator.generate([1], 2)[0]) == 2


def test_a_model_without_variables_runs_in_parts(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x = Parameter(f32, ["n", 8], "x")
    hidden = ops.Relu(ops.MatMul(x, Constant(rng.normal(size=(8, 8)).astype(np.float32))))
    y = ops.MatMul(hidden, Constant(rng.normal(size=(8, 8)).astype(np.float32)))
    model = Model([Result(hidden, "hidden"), Result(y, "y")], [x], name="plain")
    export_parts(model, tmp_path, 2)
    with open_parts(tmp_path, slot=SLOT) as network:
        given = rng.normal(size=(3, 8)).astype(np.float32)
        expected = Core().compile_model(model, "CPU")({"x": given})
        for _ in range(2):
            found = network({"x": given})
            np.testing.assert_array_equal(found["y"], expected["y"])
            np.testing.assert_array_equal(found["hidden"], expected["hidden"])
        os.kill(network.processes()[0].process, signal.SIGKILL)
        np.testing.assert_array_equal(network.submit({"x": given}).result()["y"], expected["y"])
        with pytest.raises(InputError, match="input `x`"):
            network({"x": given[:, 1:]})


def hybrid() -> Model:
    """A state that each inference replaces, and rows that it appends, whose number the state depends on, too; the
    division is between them.
    """
    rng = np.random.default_rng(0)
    matrix = lambda: Constant(rng.normal(size=(8, 8)).astype(np.float32) / 4)  # noqa: E731
    x, state = Parameter(f32, ["n", "t", 8], "x"), Parameter(f32, ["n", 1, 8], "state")
    past = Parameter(f32, ["n", "p", 8], "past")
    mean = ops.ReduceMean(ops.MatMul(x, matrix()), Constant(np.array([1])))
    count = ops.Cast(ops.Shape(past, start=1, end=2), to=f32.onnx)
    following = ops.Tanh(ops.Sub(ops.Add(mean, state), ops.Mul(count, Constant(np.float32(0.01)))))
    rows = ops.Concat(past, ops.MatMul(ops.Add(x, following), matrix()), axis=1)
    y = ops.ReduceMean(rows, Constant(np.array([1])))
    model = Model([Result(y, "y"), Result(following, "next"), Result(rows, "rows")], [x, state, past], name="hybrid")
    model.add_variable(Variable("state", "state", "next", np.zeros((1, 1, 8), np.float32), batch_axis=0))
    model.add_variable(Variable("past", "past", "rows", np.zeros((1, 0, 8), np.float32), axis=1, batch_axis=0))
    return model


def test_states_that_are_replaced_return_to_checkpoints(tmp_path: Path) -> None:
    """Any order of inferences, undoing, rewinding, forks and other changes, and of processes that are killed."""
    model, chooser, rng = hybrid(), random.Random(5), np.random.default_rng(5)
    folder = export_parts(model, tmp_path, 2, "TEMPLATE")
    assert [part.variables for part in folder.parts] == [("state",), ("past",)]
    assert [each.variable for each in folder.parts[0].lengths.values()] == ["past"]
    with open_parts(tmp_path, slot=SLOT) as network:
        pair = [each.create_infer_request() for each in (network, Core().compile_model(model, "TEMPLATE"))]
        for request in pair:
            request.keep_checkpoints(3)
        counts = Counter[str]()
        for number in range(120):
            action = chooser.choice(("infer", "infer", "infer", "undo", "rewind", "reorder", "fork", "set", "reset"))
            count, errors = chooser.randint(0, 3), []
            given = rng.normal(size=(2, chooser.randint(1, 2), 8)).astype(np.float32)
            order = [chooser.randint(0, 1) for _ in range(2)]
            if number % 50 == 49:
                os.kill(network.processes()[chooser.randint(0, 1)].process, signal.SIGKILL)
            for index, request in enumerate(pair):
                try:
                    match action:
                        case "infer":
                            request.infer({"x": given})
                        case "undo":
                            request.undo(count)
                        case "rewind":
                            request.rewind(count)
                        case "reorder":
                            request.reorder(order)
                        case "fork":
                            pair[index] = request.fork()
                        case "set" if number % 3 == 0:
                            request.query_state()["state"].set(given[:, :1])
                        case "reset" if number % 5 == 0:
                            request.reset_state()
                except StateError as e:
                    errors.append(str(e).partition(":")[0])
            assert len(errors) in (0, 2), (number, action, errors)
            counts[f"{action} fails" if errors else action] += 1
            assert pair[0].length == pair[1].length
            assert pair[0].checkpoints == pair[1].checkpoints
            for name, state in pair[1].query_state().items():
                np.testing.assert_array_equal(pair[0].query_state()[name].get(), state.get(), str((number, action)))
        assert min(counts[each] for each in ("infer", "undo", "undo fails", "rewind", "rewind fails", "reorder")) > 0
        with pytest.raises(StateError, match="cannot undo 9 inferences"):
            pair[0].undo(9)
        with pytest.raises(StateError, match="keep_checkpoints takes a number"):
            pair[0].keep_checkpoints(-1)
