"""Many sequences in one batch. If one fails, a sequence gets another's tokens, or a server stops serving."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper

from engine import Core
from engine.errors import Cancelled, DeviceError, InputError, OutOfMemoryError, StateError
from engine.generation import Generator, PromptLookup, Sampling, Scheduler, SchedulerStatistics
from engine.generation.prompt_chunks import PromptChunks
from engine.generation.sequence_groups import RunCost, divided
from engine.passes import MakeStateful
from engine.runtime import GrowingSet

DECODERS = Path(__file__).parent / "fixtures" / "decoders"
PROMPTS = [[3, 14, 15, 9], [2], [7, 1, 8], [2, 8, 1, 8, 2, 8, 1, 8], [31], [5, 6], [9] * 12, [1, 2, 3], [4], [30, 29]]


def network(name: str = "llama.dynamo23", device: str = "CPU", bound: int | None = None) -> Any:
    core = Core()
    model = core.read_model(DECODERS / f"{name}.onnx")
    MakeStateful(bound=bound).run_on_model(model)
    return core.compile_model(model, device)


@pytest.fixture(scope="module")
def llama() -> Any:
    return network()


def alone(compiled: Any, prompt: list[int], count: int, sampling: Sampling | None = None) -> list[int]:
    return Generator(compiled, sampling).generate(prompt, count)[0]


@pytest.mark.parametrize("name", ["llama.dynamo23", "llama.script17", "gpt2.dynamo20"])
@pytest.mark.parametrize("slots", [1, 3, 16])
def test_each_sequence_gets_what_it_gets_alone(name: str, slots: int) -> None:
    """Prompts of different lengths, which wait, join and leave at different times."""
    compiled = network(name)
    counts = [3 + (5 * index) % 11 for index in range(len(PROMPTS))]
    with Scheduler(compiled, slots) as scheduler:
        streams = [scheduler.submit(prompt, count) for prompt, count in zip(PROMPTS, counts, strict=True)]
        found = [stream.result() for stream in streams]
    assert found == [alone(compiled, prompt, count) for prompt, count in zip(PROMPTS, counts, strict=True)]


@pytest.mark.parametrize("draft", [None, PromptLookup()])
def test_nothing_is_planned_after_a_warm_up(draft: PromptLookup | None) -> None:
    """No sequence waits for plans: prompts, chunks of them, and batches of any number of sequences and proposals."""
    compiled = network()
    with Scheduler(compiled, 4, prompt_chunk=3, draft=draft) as scheduler:
        scheduler.warm_up(8)
        planned = compiled.get_metric("LOWERED_PLANS")
        assert planned > 0
        streams = [scheduler.submit(prompt, 12) for prompt in PROMPTS if len(prompt) > 1]
        found = [stream.result() for stream in streams]
        assert compiled.get_metric("LOWERED_PLANS") == planned
        assert draft is None or scheduler.statistics.proposed_tokens > 0
    assert found == [alone(network(), prompt, 12) for prompt in PROMPTS if len(prompt) > 1]


def test_sampling_and_stop_tokens_of_each(llama: Any) -> None:
    drawn = Sampling(temperature=1.5, seed=4)
    expected = alone(llama, PROMPTS[0], 12)
    with Scheduler(llama, 4) as scheduler:
        random = scheduler.submit(PROMPTS[2], 6, sampling=drawn)
        stopped = scheduler.submit(PROMPTS[0], 12, stop_tokens=[expected[4]])
        first = scheduler.submit(PROMPTS[0], 1)
        assert random.result() == alone(llama, PROMPTS[2], 6, drawn)
        assert stopped.result() == expected[: expected.index(expected[4]) + 1]
        assert first.result() == expected[:1]


def test_later_ones_join_while_others_run(llama: Any) -> None:
    """Submitted whenever a token of another one arrives."""
    with Scheduler(llama, 4) as scheduler:
        long = scheduler.submit([3], 40)
        others = []
        for index, _ in enumerate(long):
            if index % 5 == 0:
                others.append((PROMPTS[index % 10], scheduler.submit(PROMPTS[index % 10], 7)))
        assert long.tokens == alone(llama, [3], 40)
        for prompt, stream in others:
            assert stream.result() == alone(llama, prompt, 7)


def test_asyncio(llama: Any) -> None:
    async def collect(scheduler: Scheduler, prompt: list[int]) -> list[int]:
        return [token async for token in scheduler.submit(prompt, 6)]

    async def all_of_them() -> list[list[int]]:
        with Scheduler(llama, 3) as scheduler:
            return await asyncio.gather(*(collect(scheduler, prompt) for prompt in PROMPTS[:5]))

    assert asyncio.run(all_of_them()) == [alone(llama, prompt, 6) for prompt in PROMPTS[:5]]


def test_every_sequence_of_the_batch_advances_and_others_are_served_in_turn(llama: Any) -> None:
    with Scheduler(llama, 2) as scheduler:
        first, second, third = (scheduler.submit([5], 30) for _ in range(3))
        tokens = iter(second)
        for _ in range(30):
            next(tokens)
        assert len(first.tokens) >= 29
        assert third.result() == alone(llama, [5], 30)
        assert first.tokens == second.tokens == third.tokens


def test_a_cancelled_sequence_makes_room(llama: Any) -> None:
    with Scheduler(llama, 1) as scheduler:
        endless, waiting, other = scheduler.submit([3], 10**6), scheduler.submit([4], 5), scheduler.submit([7], 3)
        next(iter(endless))
        waiting.cancel()
        endless.cancel()
        assert other.result() == alone(llama, [7], 3)
        for stream in (endless, waiting, endless):
            with pytest.raises(Cancelled, match="the sequence was cancelled"):
                stream.result()


def test_the_bound_ends_one_sequence_only() -> None:
    """The columns that no sequence has are dropped first."""
    compiled = network(bound=20)
    with Scheduler(compiled, 2) as scheduler:
        short = scheduler.submit([7, 1], 5)
        endless = scheduler.submit(PROMPTS[0], 10**6)
        later = [scheduler.submit(prompt, 6) for prompt in PROMPTS[:6]]
        with pytest.raises(StateError, match="its bound is 20"):
            endless.result()
        assert len(endless.tokens) == 20 - 4 + 1
        assert short.result() == alone(compiled, [7, 1], 5)
        assert [stream.result() for stream in later] == [alone(compiled, prompt, 6) for prompt in PROMPTS[:6]]
        with pytest.raises(StateError, match="its bound is 20"):
            scheduler.submit([1] * 21).result()
        assert scheduler.submit([7, 1], 5).result() == short.tokens


def test_closing_ends_all(llama: Any) -> None:
    scheduler = Scheduler(llama, 1)
    streams = [scheduler.submit([3], 10**6) for _ in range(3)]
    next(iter(streams[0]))
    scheduler.close()
    scheduler.close()
    for stream in streams:
        with pytest.raises(Cancelled, match="the scheduler was closed"):
            stream.result()
    with pytest.raises(InputError, match="the scheduler is closed"):
        scheduler.submit([3])
    Scheduler(llama).close()


def test_a_failure_of_the_thread_reaches_the_readers(llama: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A step fails, and the removal of its sequences fails, too."""
    scheduler, submitted = Scheduler(llama, 2), threading.Event()
    monkeypatch.setattr(scheduler, "_step", lambda: submitted.wait(60) and 1 / 0)
    monkeypatch.setattr(scheduler, "_drop_all", lambda error: 1 / 0)
    streams = [scheduler.submit([3], 5) for _ in range(3)]
    submitted.set()
    for stream in streams:
        with pytest.raises(DeviceError, match="the scheduler failed: ZeroDivisionError"):
            stream.result()
    assert scheduler.failure is not None
    with pytest.raises(DeviceError, match="the scheduler failed: ZeroDivisionError"):
        scheduler.submit([3])
    scheduler.close()


def test_a_failure_in_a_prompt_ends_one_sequence_only(llama: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever its class: in a server, one request would end the answers of all others, for ever."""
    compute = Scheduler._compute_chunk

    def fails(self: Scheduler, prompt: Any, size: int) -> bool:
        if prompt.stream.prompt == [13]:
            raise LookupError("of a plugin")
        return compute(self, prompt, size)

    monkeypatch.setattr(Scheduler, "_compute_chunk", fails)
    with Scheduler(llama, 3) as scheduler:
        streams = [scheduler.submit(prompt, 20) for prompt in ([3], [13], [7, 1])]
        with pytest.raises(DeviceError, match="computing a token failed: LookupError: of a plugin"):
            streams[1].result()
        assert [streams[0].result(), streams[2].result()] == [alone(llama, prompt, 20) for prompt in ([3], [7, 1])]
        assert scheduler.failure is None


def test_a_failure_of_the_arrangement_ends_the_running_sequences_only(
    llama: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Scheduler(llama, 3) as scheduler:
        regroup, submitted = scheduler._regroup, threading.Event()

        def fails() -> None:
            assert submitted.wait(60)
            monkeypatch.setattr(scheduler, "_regroup", regroup)
            raise MemoryError("none is left")

        monkeypatch.setattr(scheduler, "_regroup", fails)
        stream = scheduler.submit([7], 20)
        submitted.set()
        with pytest.raises(DeviceError, match="computing a token failed: MemoryError: none is left"):
            stream.result()
        assert scheduler.submit([3], 8).result() == alone(llama, [3], 8)
        assert scheduler.failure is None


def test_sequences_stay_where_they_are_if_there_is_no_memory_for_copies(
    llama: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(cls: Any, *_: Any) -> Any:
        raise OutOfMemoryError("none is left")

    monkeypatch.setattr(GrowingSet, "gathered", classmethod(fails))
    with Scheduler(llama, 4) as scheduler:
        streams = [scheduler.submit(prompt, 9) for prompt in PROMPTS]
        assert [stream.result() for stream in streams] == [alone(llama, prompt, 9) for prompt in PROMPTS]


def test_a_cache_that_cannot_grow_ends_the_longest_sequence_only(llama: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The blocks of the variables hold 64 positions at first, and cannot be lengthened while one sequence is longer."""
    prompts, expected = PROMPTS[:3], [alone(llama, prompt, 30) for prompt in PROMPTS[:3]]
    extended = GrowingSet.extended

    def limited(self: GrowingSet, count: int) -> GrowingSet:
        if self.length + count > 64:
            raise OutOfMemoryError("not enough memory for 65 positions")
        return extended(self, count)

    monkeypatch.setattr(GrowingSet, "extended", limited)
    with Scheduler(llama, 4) as scheduler:
        endless = scheduler.submit([3, 14, 15], 10**6)
        streams = [scheduler.submit(prompt, 30) for prompt in prompts]
        with pytest.raises(OutOfMemoryError, match="65 positions"):
            endless.result()
        assert len(endless.tokens) == 64 - 3 + 1
        assert [stream.result() for stream in streams] == expected
        assert scheduler.submit(prompts[0], 30).result() == expected[0]


@pytest.mark.parametrize("device", ["CPU", "TEMPLATE"])
@pytest.mark.parametrize("seed", range(3))
def test_random_sequences(device: str, seed: int) -> None:
    """Of very different lengths, submitted and cancelled at random moments; with chunks of several sizes."""
    compiled, random = network(device=device), np.random.default_rng(seed)
    with Scheduler(compiled, int(random.integers(2, 7)), prompt_chunk=[None, 1, 5][seed]) as scheduler:
        submitted = []
        for _ in range(14):
            length = int(random.choice([1, 2, 5, 40, 90]))
            prompt, count = random.integers(0, 32, length).tolist(), int(random.integers(1, 25))
            submitted.append((prompt, count, scheduler.submit(prompt, count)))
            read = submitted[random.integers(len(submitted))][2]
            if not read.is_cancelled:
                for _ in zip(range(random.integers(3)), read, strict=False):
                    pass
            if random.random() < 0.2:
                submitted[random.integers(len(submitted))][2].cancel()
        for prompt, count, stream in submitted:
            expected = alone(compiled, prompt, count)
            try:
                assert stream.result() == expected
            except Cancelled:
                assert stream.is_cancelled
                assert stream.tokens == expected[: len(stream.tokens)]


class Runs:
    """The shapes of `input_ids` of all runs, in order."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.shapes: list[tuple[int, int]] = []
        made = Scheduler._inputs

        def inputs(scheduler: Scheduler, ids: Any, mask: Any, positions: Any) -> Any:
            self.shapes.append(ids.shape)
            return made(scheduler, ids, mask, positions)

        monkeypatch.setattr(Scheduler, "_inputs", inputs)


@pytest.mark.parametrize("chunk", [1, 7, 64])
def test_a_prompt_is_computed_in_chunks_between_tokens(llama: Any, monkeypatch: pytest.MonkeyPatch, chunk: int) -> None:
    """Otherwise, a running sequence waits for the whole prompt."""
    prompt = np.random.default_rng(0).integers(0, 32, 100).tolist()
    expected = [alone(llama, [3], 130), alone(llama, prompt, 5)]
    runs = Runs(monkeypatch)
    with Scheduler(llama, 4, prompt_chunk=chunk) as scheduler:
        running = scheduler.submit([3], 10**6)
        next(iter(running))
        assert scheduler.submit(prompt, 5).result() == expected[1]
        running.cancel()
        tokens = running.tokens[:130]
        assert tokens == expected[0][: len(tokens)]
    chunks = [index for index, (_, count) in enumerate(runs.shapes) if count == chunk and index]
    if chunk > 1:
        assert len(chunks) == 100 // chunk
        assert all(runs.shapes[index + 1][1] == 1 for index in chunks)
    assert max(count for _, count in runs.shapes) <= chunk


def test_a_prompt_is_computed_whole_while_no_sequence_runs(llama: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = Runs(monkeypatch)
    with Scheduler(llama, 4, prompt_chunk=2) as scheduler:
        scheduler.submit(PROMPTS[6], 2).result()
    assert runs.shapes == [(1, 12), (1, 1)]


def test_only_running_sequences_are_computed(llama: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """One of 64 costs as much as in a batch of one; a sequence is copied into another batch where that pays."""
    runs = Runs(monkeypatch)
    with Scheduler(llama, 64) as scheduler:
        assert scheduler.submit([3], 40).result() == alone(llama, [3], 40)
        assert {count for count, _ in runs.shapes} == {1}
        runs.shapes.clear()
        tokens = iter(scheduler.submit([0], 10**6))
        next(tokens)
        for stream in [scheduler.submit([index], 4) for index in range(1, 6)]:
            stream.result()
        assert max(count for count, _ in runs.shapes) > 1
        for _ in range(6000):
            if runs.shapes[-1] == (1, 1):
                break
            time.sleep(0.01)
        assert runs.shapes[-1] == (1, 1)


def test_memory_follows_the_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without groups, each of the short sequences would take as much as the long one."""
    compiled = network()
    monkeypatch.setattr(type(compiled), "memory_statistics", lambda self: {"weights": 1000})
    with Scheduler(compiled, 8) as scheduler:
        assert scheduler.statistics == SchedulerStatistics()
        stream = scheduler.submit([1] * 150, 30)
        next(tokens := iter(stream))
        each = scheduler.statistics.state_bytes // 150
        others = [scheduler.submit([index], 25) for index in range(7)]
        most = 0
        for _ in tokens:
            found = scheduler.statistics
            held = sum(max(1, other.computed) for other in (stream, *others)) * each
            most = max(most, found.state_bytes / held)
        assert most < 4


@pytest.mark.parametrize("device", ["CPU", "TEMPLATE"])
@pytest.mark.parametrize("seed", range(2))
def test_equal_prefixes_are_computed_once(device: str, seed: int) -> None:
    """Random prompts that begin like earlier ones, or like earlier ones with their answers; tokens stay the same."""
    compiled, random = network(device=device), np.random.default_rng(seed)
    stems = [random.integers(0, 32, length).tolist() for length in (20, 33, 5)]
    size = 0
    with Scheduler(compiled, 3, prompt_chunk=11, prefix_cache_bytes=100_000) as scheduler:
        submitted: list[tuple[list[int], Any]] = []
        for index in range(16):
            stem = list(stems[random.integers(3)])
            if submitted and random.random() < 0.4:
                prompt, stream = submitted[random.integers(len(submitted))]
                stem = [*prompt, *stream.result()]
            stem = stem[: random.integers(1, len(stem) + 1)]
            prompt = [*stem, *random.integers(0, 32, random.integers(1, 9)).tolist()]
            submitted.append((prompt, scheduler.submit(prompt, 8)))
            if index % 3 == 0:
                next(iter(submitted[-1][1]))
            size = max(size, scheduler.statistics.prefix_bytes)
        for prompt, stream in submitted:
            assert stream.result() == alone(compiled, prompt, 8)
        found = scheduler.statistics
        assert found.prefix_tokens == sum(stream.reused for _, stream in submitted) > 16
        assert found.prompt_tokens == sum(len(prompt) for prompt, _ in submitted)
        assert 0 < size <= 100_000


def test_which_prefixes_are_kept(llama: Any) -> None:
    """The longest common one is taken, down to 16 tokens; the least recently used leave."""
    first, second, third = ([number] * 20 for number in (1, 2, 3))
    each = Generator(llama)
    each.generate(first, 1)
    nbytes = sum(state.nbytes for state in each.request.query_state().values())
    with Scheduler(llama, 2, prefix_cache_bytes=2 * nbytes + 1) as scheduler:

        def reused(prompt: list[int]) -> int:
            stream = scheduler.submit(prompt, 1)
            assert stream.result() == alone(llama, prompt, 1)
            return stream.reused

        assert [reused(first), reused(second)] == [0, 0]
        assert scheduler.statistics.prefix_bytes == 2 * nbytes
        assert reused(first) == 19  # the last token is computed
        assert reused([*first[:17], 9]) == 17
        assert reused([*first[:15], 9]) == 0
        assert reused(third) == 0
        assert reused(second) == 0  # it has left
        assert scheduler.statistics.prefix_bytes <= 2 * nbytes
        assert reused([5] * 200) == reused([5] * 200) == 0  # longer than all that is kept
    with pytest.raises(InputError, match="prefix_cache_bytes is -1"):
        Scheduler(llama, prefix_cache_bytes=-1)


def test_without_memory_prefixes_are_forgotten(llama: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before a sequence ends for lack of memory."""
    expected = alone(llama, [1] * 30, 5)
    with Scheduler(llama, 2, prefix_cache_bytes=1 << 20) as scheduler:
        scheduler.submit([1] * 20, 1).result()
        extended = GrowingSet.extended

        def limited(self: GrowingSet, count: int) -> GrowingSet:
            if scheduler.statistics.prefix_bytes:
                raise OutOfMemoryError("not enough memory")
            return extended(self, count)

        monkeypatch.setattr(GrowingSet, "extended", limited)
        assert scheduler.submit([1] * 30, 5).result() == expected


def divisions(lengths: list[int]) -> Iterator[list[list[int]]]:
    if not lengths:
        yield []
    for index in range(1, len(lengths) + 1):
        for rest in divisions(lengths[index:]):
            yield [lengths[:index], *rest]


@settings(max_examples=100)
@given(st.lists(st.integers(1, 5000), min_size=1, max_size=8), st.integers(1, 10**6), st.integers(0, 1000))
def test_groups_cost_least(lengths: list[int], weights: int, position: int) -> None:
    """Compared with all ways to divide the lengths in order."""
    cost = RunCost(weights, position)
    found = divided(lengths, cost)
    assert sorted(index for group in found for index in group) == list(range(len(lengths)))

    def total(groups: list[list[int]]) -> int:
        return sum(cost.of_run(len(group), max(group)) for group in groups)

    given = [[lengths[index] for index in group] for group in found]
    assert total(given) == min(map(total, divisions(sorted(lengths))))


def test_sizes_of_chunks_follow_their_times() -> None:
    """A running sequence would wait too long, or a prompt."""
    chunks = PromptChunks()
    assert chunks.size(chunks.allowed) == 16

    def settled(step: float) -> int:
        for index in range(60):
            chunks.note_step(step)
            size = max(1, chunks.size(chunks.allowed))
            chunks.note_chunk(size, 4.0 + size / 8 + 1000 * (index < 2))  # plans are made
        assert chunks.allowed == 1.5 * step
        return size

    assert settled(8.0) == 48  # takes 10 seconds of 12
    assert settled(80.0) == 768  # 100 of 120 seconds
    assert settled(4.0) == 16  # 6 seconds
    assert chunks.size(0.0) == chunks.size(-1.0) == 0
    assert settled(1.0) == 1


@pytest.mark.parametrize("penalty", [1e308, 1e-308])
def test_a_penalty_that_overflows_ends_nothing(llama: Any, penalty: float) -> None:
    """Every token is in the prompt, so that every score is changed."""
    with Scheduler(llama, 3) as scheduler:
        neighbour = scheduler.submit([3], 20)
        for temperature in (0.0, 0.5, 1e-308, 1e308):
            sampling = Sampling(repetition_penalty=penalty, temperature=temperature, seed=1)
            assert len(scheduler.submit(list(range(32)), 4, sampling=sampling).result()) == 4
        assert neighbour.result() == alone(llama, [3], 20)


def follower() -> Any:
    """Chooses 1 after 0, 2 after 1, 0 after 2, and 9 after 5; it reads the tokens 0 to 7 only, and states no length."""
    after = np.zeros((8, 10), np.float32)
    after[[0, 1, 2, 5], [1, 2, 0, 9]] = 1
    integers = lambda name, *shape: helper.make_tensor_value_info(name, TensorProto.INT64, shape)  # noqa: E731
    reals = lambda name, *shape: helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)  # noqa: E731
    nodes = [
        helper.make_node("Gather", ["after", "input_ids"], ["scores"]),
        helper.make_node("Concat", ["past_0", "scores"], ["present_0"], axis=1),
        helper.make_node("Cast", ["attention_mask"], ["seen"], to=TensorProto.FLOAT),
        helper.make_node("Unsqueeze", ["seen", "two"], ["weights"]),
        helper.make_node("Mul", ["present_0", "weights"], ["masked"]),
        helper.make_node("ReduceMin", ["masked", "axes"], ["zero"]),
        helper.make_node("Mul", ["zero", "zero"], ["nothing"]),
        helper.make_node("Add", ["scores", "nothing"], ["whole"]),
        # A value decides how many of them exist, so the length is not known before.
        helper.make_node("Cast", ["position_ids"], ["places"], to=TensorProto.FLOAT),
        helper.make_node("ReduceMin", ["places"], ["least"], keepdims=0),
        helper.make_node("Add", ["ten", "least"], ["positive"]),
        helper.make_node("NonZero", ["positive"], ["found"]),
        helper.make_node("Reshape", ["found", "flat"], ["columns"]),
        helper.make_node("Gather", ["whole", "columns"], ["logits"], axis=2),
    ]
    given = [
        integers("input_ids", "b", "n"),
        integers("attention_mask", "b", "all"),
        integers("position_ids", "b", "n"),
    ]
    graph = helper.make_graph(
        nodes, "follower", [*given, reals("past_0", "b", "p", 10)],
        [reals("logits", "b", "n", "vocabulary"), reals("present_0", "b", "all", 10)],
        [helper.make_tensor("after", TensorProto.FLOAT, after.shape, after),
         helper.make_tensor("two", TensorProto.INT64, [1], [2]),
         helper.make_tensor("axes", TensorProto.INT64, [2], [1, 2]),
         helper.make_tensor("ten", TensorProto.FLOAT, [10], np.ones(10, np.float32)),
         helper.make_tensor("flat", TensorProto.INT64, [1], [-1])],
    )  # fmt: skip
    core = Core()
    model = core.read_model(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10))
    MakeStateful().run_on_model(model)
    return core.compile_model(model, "CPU")


def test_a_token_that_the_model_cannot_read_ends_its_sequence_only() -> None:
    """It is chosen in the batch, and the step that fails is the step of all."""
    compiled = follower()
    with Scheduler(compiled, 3) as scheduler:
        streams = [scheduler.submit(prompt, 30) for prompt in ([0], [0, 5], [1, 2, 0])]
        with pytest.raises(InputError, match="index 9 is out of range"):
            streams[1].result()
        assert streams[0].result() == [1, 2, 0] * 10
        assert streams[2].result() == [1, 2, 0] * 10
        assert streams[1].tokens == [9]
        for token, said in ((40, "40"), (2**40, "1099511627776"), (10**30, "of 100 bits"), (10**5000, "bits")):
            with pytest.raises(InputError, match=said):
                scheduler.submit([token], 4).result()
        penalty = Sampling(repetition_penalty=1.3)
        with pytest.raises(InputError, match="index 40"):
            scheduler.submit([1, 40], 4, sampling=penalty).result()
        assert scheduler.submit([5], 1, sampling=penalty).result() == [9]
        assert scheduler.submit([0], 4).result() == [1, 2, 0, 1]


def test_what_is_refused(llama: Any) -> None:
    with Scheduler(llama) as scheduler:
        for prompt, said in (([], "must not be empty"), ([99], "token 99 is out of range"), (["a"], "is an integer")):
            with pytest.raises(InputError, match=said):
                scheduler.submit(prompt)  # type: ignore[arg-type]
        with pytest.raises(InputError, match="max_tokens is 0"):
            scheduler.submit([1], 0)
        with pytest.raises(InputError, match="stop_tokens is a int; expected a list of tokens"):
            scheduler.submit([1], stop_tokens=2)  # type: ignore[arg-type]
        with pytest.raises(InputError, match="prompt is a str"):
            scheduler.submit("a")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="slots is 0"):
        Scheduler(llama, 0)
    with pytest.raises(InputError, match="prompt_chunk is 0"):
        Scheduler(llama, prompt_chunk=0)
    value = lambda name, *shape: helper.make_tensor_value_info(name, TensorProto.INT64, shape)  # noqa: E731
    graph = helper.make_graph(
        [helper.make_node("Concat", ["past_0", "input_ids"], ["present_0"], axis=1),
         helper.make_node("OneHot", ["input_ids", "four", "values"], ["logits"])],
        "plain", [value("input_ids", "b", "n"), value("past_0", "b", "p")],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["b", "n", 4]), value("present_0", "b", "all")],
        [helper.make_tensor("four", TensorProto.INT64, [], [4]),
         helper.make_tensor("values", TensorProto.FLOAT, [2], np.array([0, 1], np.float32))],
    )  # fmt: skip
    core = Core()
    placed = core.read_model(DECODERS / "llama.dynamo23.onnx")
    MakeStateful([replace(each, is_placed=True) for each in llama.variables]).run_on_model(placed)
    with pytest.raises(InputError, match=r"at which it writes to variable .* run engine\.passes\.MaskedCaches"):
        Scheduler(core.compile_model(placed, "CPU"))
    model = core.read_model(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10))
    MakeStateful().run_on_model(model)
    with pytest.raises(InputError, match="no input `attention_mask`, which sequences of different lengths need"):
        Scheduler(core.compile_model(model, "CPU"))


def test_a_forked_child_has_a_scheduler_of_its_own_and_the_exit_ends_the_sequences() -> None:
    """Without a thread in the child, its readers would wait for ever; with one at exit, the process could abort."""
    script = f"""
import os, sys, threading
from engine import Core
from engine.errors import Cancelled, StateError
from engine.generation import Scheduler
from engine.passes import MakeStateful
core = Core()
model = core.read_model({str(DECODERS / "llama.dynamo23.onnx")!r})
MakeStateful().run_on_model(model)
scheduler = Scheduler(core.compile_model(model, "CPU"), 2)
expected = scheduler.submit([3, 14], 5).result()
running = scheduler.submit([2], 100_000)
next(iter(running))
if os.fork() == 0:
    try:
        running.result()
    except StateError:
        os._exit(0 if scheduler.submit([3, 14], 5).result() == expected else 1)
    os._exit(1)
assert os.wait()[1] == 0

def read():
    try:
        running.result()
    except Cancelled:
        os.write(1, b"cancelled")

reader = threading.Thread(target=read, daemon=True)
reader.start()
from engine.runtime.lifecycle import lifecycle
import atexit
atexit.unregister(lifecycle.exit)
atexit.register(reader.join)  # runs last
atexit.register(lifecycle.exit)
"""
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", script],
        capture_output=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, b"cancelled", b"")
