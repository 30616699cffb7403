"""Proposals in a `Scheduler`. If one fails, a sequence gets tokens that the network alone would not have chosen."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest

from engine import Core
from engine.errors import Cancelled, DeviceError, EngineError, InputError, OutOfMemoryError, StateError
from engine.generation import Adapter, Draft, Generator, PromptLookup, Sampling, Scheduler
from engine.generation.batch_speculation import BatchSpeculation
from engine.generation.speculation import best_count
from engine.passes import MakeAdaptable, MakeStateful
from engine.runtime import GrowingSet
from tests.genai_decoders import Decoder
from tests.test_adapters import adapter
from tests.test_genai_models import masked
from tests.test_speculation import DECODERS, chain, following, network, random_table

EAGER = PromptLookup(shortest=1, cost=0.02)
PROMPTS = [[3, 14, 15, 9, 3, 14], [7, 7, 7], [1, 2, 3, 4, 5, 6], [3], [5, 6, 5, 6, 5]]


@cache
def adaptable(device: str) -> Any:
    """With adapters of 8 ranks together; a fixed number, since CPU makes plans for each otherwise."""
    core = Core()
    model = core.read_model(DECODERS / "llama.script17.onnx")
    MakeStateful(bound=80).run_on_model(model)
    MakeAdaptable(rank=8).run_on_model(model)
    shapes: dict[str | int, Any] = {
        each.friendly_name: [8 if dim.symbol == "adapter_rank" else dim for dim in each.output(0).shape]
        for each in model.parameters
        if "lora" in each.friendly_name or each.friendly_name == "adapter_mask"
    }
    model.reshape(shapes)
    return core.compile_model(model, device)


@cache
def expected(prompt: tuple[int, ...], count: int, used: Adapter | None, sampling: Sampling) -> list[int]:
    """By TEMPLATE, one sequence by itself."""
    generator = Generator(adaptable("TEMPLATE"), sampling, adapter=used)
    return generator.generate(list(prompt), count)[0]


def alone(compiled: Any, prompt: list[int], count: int, sampling: Sampling | None = None) -> list[int]:
    return Generator(compiled, sampling).generate(prompt, count)[0]


# -- the same tokens ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("device", ["CPU", "TEMPLATE"])
@pytest.mark.parametrize("slots", [1, 5])
@pytest.mark.parametrize("proposer", ["lookup", "same", "other"])
def test_greedy_tokens_are_those_without_proposals(device: str, slots: int, proposer: str) -> None:
    compiled = network(device=device)
    small = network("gpt2.script17", is_last=True)
    drafts = {"lookup": EAGER, "same": Draft(compiled, cost=0.05), "other": Draft(small, cost=0.05)}
    with Scheduler(compiled, slots, draft=drafts[proposer]) as scheduler:
        streams = [scheduler.submit(prompt, 25) for prompt in PROMPTS]
        assert [stream.result() for stream in streams] == [alone(compiled, prompt, 25) for prompt in PROMPTS]
        found = scheduler.statistics
    assert 0 < found.proposed_tokens == sum(stream.proposed for stream in streams)
    assert found.accepted_tokens == sum(stream.accepted for stream in streams)
    if proposer == "same":
        assert found.accepted_tokens == found.proposed_tokens
    if proposer == "lookup":
        assert 40 < found.accepted_tokens < found.proposed_tokens


ADAPTERS = [adapter(rank=3, seed=1), adapter(rank=4, seed=2), adapter(rank=5, seed=3)]
SAMPLINGS = [
    Sampling(), Sampling(repetition_penalty=1.3), Sampling(logit_bias={5: 0.5, 7: -np.inf}),
    Sampling(temperature=0.3, seed=5), Sampling(temperature=0.7, top_k=5, seed=2, frequency_penalty=0.5),
]  # fmt: skip


@pytest.mark.parametrize(
    ("device", "seed"),
    [
        ("CPU", 0), ("TEMPLATE", 1), ("TEMPLATE", 2), ("TEMPLATE", 3),
        *(pytest.param("CPU", seed, marks=pytest.mark.slow) for seed in range(1, 6)),
        *(pytest.param("TEMPLATE", seed, marks=pytest.mark.slow) for seed in range(4, 16)),
    ],
)  # fmt: skip
def test_all_together(device: str, seed: int) -> None:
    """Proposals, chunks of prompts, kept prefixes, adapters, samplings and cancellations in random order."""
    random = np.random.default_rng(seed)
    draft = EAGER if seed % 2 == 0 else Draft(network("gpt2.script17", is_last=True), cost=0.02)
    # With a draft, drawn tokens are others than without, of the same distribution.
    samplings = SAMPLINGS if seed % 2 == 0 else SAMPLINGS[:3]
    stems = [random.integers(0, 32, length).tolist() for length in (20, 33)]
    with Scheduler(
        adaptable(device),
        int(random.integers(2, 6)),
        prompt_chunk=[None, 3, 7][seed % 3],
        prefix_cache_bytes=int(random.choice([0, 60_000])),
        draft=draft,
    ) as scheduler:
        submitted: list[Any] = []
        for index in range(14):
            stem = stems[random.integers(2)][: random.integers(0, 34)]
            prompt = [*stem, *random.integers(0, 32, random.integers(1, 9)).tolist()]
            used = [None, *ADAPTERS][random.integers(4)]
            sampling, count = samplings[random.integers(len(samplings))], int(random.integers(1, 30))
            stop = random.integers(0, 32, random.integers(0, 2)).tolist()
            stream = scheduler.submit(prompt, count, sampling=sampling, stop_tokens=stop, adapter=used)
            submitted.append((prompt, count, used, sampling, stop, stream))
            read = submitted[random.integers(len(submitted))][-1]
            if index % 2 and not read.is_cancelled:
                for _ in zip(range(random.integers(3)), read, strict=False):
                    pass
            if random.random() < 0.2:
                submitted[random.integers(len(submitted))][-1].cancel()
        for prompt, count, used, sampling, stop, stream in submitted:
            wanted = expected(tuple(prompt), count, used, sampling)
            ends = [place + 1 for place, token in enumerate(wanted) if token in stop]
            wanted = wanted[: min(ends, default=count)]
            try:
                assert stream.result() == wanted
            except Cancelled:
                assert stream.is_cancelled
                assert stream.tokens == wanted[: len(stream.tokens)]
        assert scheduler.statistics.proposed_tokens > 0
        assert scheduler.failure is None


@pytest.mark.parametrize("device", ["CPU", "TEMPLATE"])
def test_models_of_the_builder(device: str) -> None:
    """Rows whose positions follow from the mask, and sequences that are computed one after another."""
    prompts = [[3, 1, 4, 1, 3, 1], [7, 7], [2, 8, 2, 8, 2], [9] * 12]
    compiled = masked(Decoder(("packed", 16), ("turned", 16)).proto(), device, last=9)
    wanted = [alone(compiled, prompt, 20) for prompt in prompts]
    for options in ({}, {"is_batched": False}):
        with Scheduler(compiled, 3, draft=EAGER, **options) as scheduler:  # type: ignore[arg-type]
            streams = [scheduler.submit(prompt, 20) for prompt in prompts]
            assert [stream.result() for stream in streams] == wanted
            assert scheduler.statistics.accepted_tokens > 5


def test_stop_tokens_and_lengths_among_proposals() -> None:
    """Nothing is given behind a stop token, or beyond the number of tokens."""
    compiled = network()
    for prompt in PROMPTS[:3]:
        wanted = alone(compiled, prompt, 20)
        with Scheduler(compiled, 4, draft=Draft(compiled, cost=0.02)) as scheduler:
            streams = [scheduler.submit(prompt, count) for count in range(1, 9)]
            stopped = [scheduler.submit(prompt, 20, stop_tokens=[stop]) for stop in set(wanted)]
            assert [stream.result() for stream in streams] == [wanted[:count] for count in range(1, 9)]
            for stop, stream in zip(set(wanted), stopped, strict=True):
                assert stream.result() == wanted[: wanted.index(stop) + 1]


# -- the same distribution ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options", [{}, {"logit_bias": {1: 1.5, 2: -np.inf}}, pytest.param({"top_k": 3}, marks=pytest.mark.slow)], ids=str
)
def test_drawn_tokens_have_the_probabilities_of_the_network(options: dict[str, Any]) -> None:
    """However far the draft's are from them: the first three tokens of 800 seeds, by a chi-square test.

    Of the classes, which are expected ten times or more, the sum of squares is below the mean plus five standard
    deviations, but once in 10,000 for a chi-square distribution of 20 degrees of freedom; the seeds are fixed.
    """
    table, size, count = random_table(4, 1), 4, 800
    draft = Draft(chain(table + random_table(4, 2, 1.0)), tokens=3, cost=0.02)
    samplings = [Sampling(**{"temperature": 1.0, "seed": seed} | options) for seed in range(count)]
    with Scheduler(chain(table, has_positions=True), 6, draft=draft) as scheduler:
        streams = [scheduler.submit([0], 4, sampling=each) for each in samplings]
        found = np.array([stream.result() for stream in streams])
        statistics = scheduler.statistics
    assert 0 < statistics.accepted_tokens < statistics.proposed_tokens
    shares = [samplings[0].probabilities(row, np.array([], np.int64)) for row in table]
    likely = np.array([[[shares[0][a] * shares[a][b] * shares[b][c] for c in range(size)] for b in range(size)]
                       for a in range(size)]).ravel()  # fmt: skip
    seen = np.bincount(found[:, 0] * size * size + found[:, 1] * size + found[:, 2], minlength=size**3)
    assert not seen[likely == 0].any()
    large = likely * count >= 10
    rest = np.array([likely[~large].sum(), seen[~large].sum() / count])
    sums = (seen[large] - count * likely[large]) ** 2 / (count * likely[large])
    total = sums.sum() + (count * (rest[1] - rest[0]) ** 2 / rest[0] if rest[0] > 0 else 0)
    freedom = large.sum() - (rest[0] == 0)
    assert freedom > 5
    assert total < freedom + 5 * np.sqrt(2 * freedom)


# -- how much is proposed -------------------------------------------------------------------------------------------


def test_a_batch_that_repeats_its_prompts_takes_fewer_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    order = [*range(1, 40), 0]
    runs, infer = [], Scheduler._infer

    def counted(self: Scheduler, request: Any, inputs: Any, adapters: Any) -> Any:
        runs.append(inputs[0].shape)
        return infer(self, request, inputs, adapters)

    monkeypatch.setattr(Scheduler, "_infer", counted)
    with Scheduler(chain(following(order), has_positions=True), 4, draft=PromptLookup(cost=0.1)) as scheduler:
        streams = [scheduler.submit(order[index:] + order[:index], 100) for index in range(4)]
        for index, stream in enumerate(streams):
            first = order[index:] + order[:index]
            assert stream.result() == [order[(first[-1] + i) % 40] for i in range(100)]
    assert len(runs) < 60, "several tokens a run"


def test_proposals_that_are_refused_become_rare() -> None:
    """Of equally likely tokens, so that little more is computed than without."""
    size = 16
    compiled = chain(np.zeros((size, size)), has_positions=True)
    for draft in (PromptLookup(shortest=1), Draft(chain(following([0] * size)))):
        with Scheduler(compiled, 4, draft=draft) as scheduler:
            streams = [
                scheduler.submit([1, 2, 3], 400, sampling=Sampling(temperature=1.0, seed=seed)) for seed in range(4)
            ]
            for stream in streams:
                stream.result()
            found = scheduler.statistics
        assert found.proposed_tokens <= 160
        assert found.accepted_tokens <= 30


@pytest.mark.parametrize(
    ("rows", "cost", "count"),
    [
        ([(1.0, 8)], 0.3, 8), ([(1.0, 3)], 0.3, 3), ([(0.0, 8)], 0.3, 0), ([(0.3, 8)], 0.3, 0), ([(0.5, 8)], 0.3, 1),
        ([(1.0, 8), (0.0, 0)], 0.3, 8), ([(1.0, 8), (0.0, 0), (0.0, 0), (0.0, 0)], 0.3, 0), ([], 0.3, 0),
        ([(0.9, 2), (0.9, 8)], 0.2, 2),
    ],
)  # fmt: skip
def test_how_many_are_worth_it(rows: list[tuple[float, int]], cost: float, count: int) -> None:
    """For all rows of a run together: one that repeats pays for itself, but not for three that do not."""
    assert best_count(rows, cost) == count


# -- limits and failures ----------------------------------------------------------------------------------------------


def test_proposals_never_exceed_the_bound() -> None:
    """The last tokens before it are those without proposals, and so is the error behind them."""
    compiled = network(bound=20)
    with Scheduler(compiled, 3, draft=Draft(compiled, cost=0.02)) as scheduler:
        endless = [scheduler.submit(prompt, 10**6) for prompt in PROMPTS[:3]]
        for prompt, stream in zip(PROMPTS, endless, strict=False):
            with pytest.raises(StateError, match="its bound is 20"):
                stream.result()
            assert stream.tokens == alone(compiled, prompt, 20 - len(prompt) + 1)
        assert scheduler.submit([7, 1], 5).result() == alone(compiled, [7, 1], 5)


def test_more_positions_than_the_model_has() -> None:
    """A table of positions that no bound states: the sequence goes on without proposals until it is used up."""
    compiled = network("gpt2.script17")
    prompt, reference, wanted = [3, 14, 3, 14], Generator(compiled), list[int]()
    reference.append(prompt)
    error: EngineError | None = None
    while error is None:
        try:
            wanted += [token for token in reference.step() if token is not None]
        except EngineError as e:
            error = e
    with Scheduler(compiled, 2, draft=Draft(compiled, cost=0.02)) as scheduler:
        stream = scheduler.submit(prompt, 300)
        with pytest.raises(type(error)):
            stream.result()
        assert stream.tokens == wanted
        assert stream.accepted > 20
        assert scheduler.submit([7, 1], 5).result() == alone(compiled, [7, 1], 5)


def test_a_failing_draft_ends_its_own_sequence_only(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = network()
    proposed = BatchSpeculation._proposed

    def fails(self: BatchSpeculation, stream: Any, *args: Any) -> Any:
        if stream.prompt == [13]:
            raise LookupError("of a plugin")
        return proposed(self, stream, *args)

    monkeypatch.setattr(BatchSpeculation, "_proposed", fails)
    with Scheduler(compiled, 3, draft=Draft(compiled, cost=0.02)) as scheduler:
        streams = [scheduler.submit(prompt, 20) for prompt in ([3], [13], [7, 1])]
        with pytest.raises(DeviceError, match="LookupError: of a plugin"):
            streams[1].result()
        assert [streams[0].result(), streams[2].result()] == [alone(compiled, prompt, 20) for prompt in ([3], [7, 1])]
        assert scheduler.failure is None


def test_without_memory_for_proposals_a_sequence_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled, extended = network(), GrowingSet.extended
    wanted = [alone(compiled, prompt, 20) for prompt in PROMPTS]

    def limited(self: GrowingSet, count: int) -> GrowingSet:
        if self.length > 8 and count > 1:
            raise OutOfMemoryError("not enough memory")
        return extended(self, count)

    monkeypatch.setattr(GrowingSet, "extended", limited)
    with Scheduler(compiled, 3, draft=EAGER) as scheduler:
        streams = [scheduler.submit(prompt, 20) for prompt in PROMPTS]
        assert [stream.result() for stream in streams] == wanted


def test_drafts_of_other_vocabularies_are_refused() -> None:
    """When the scheduler is made, if the models state them; otherwise for each sequence."""
    compiled = chain(random_table(5, 0), has_positions=True)
    with pytest.raises(InputError, match=r"the draft has 6 tokens, and CPU network `chain` 5"):
        Scheduler(compiled, draft=chain(random_table(6, 0)))
    unknown = chain(random_table(6, 0), states_vocabulary=False)
    with Scheduler(compiled, 2, draft=Draft(unknown, cost=0.02)) as scheduler:
        stream = scheduler.submit([1, 2], 8)
        with pytest.raises(InputError, match=r"the draft's logits are of 6 tokens, and the network's of 5"):
            stream.result()
        assert scheduler.failure is None


def test_what_cannot_be_checked_is_refused() -> None:
    with pytest.raises(InputError, match="not the logits of all tokens"):
        Scheduler(network(is_last=True), draft=PromptLookup())
    with pytest.raises(InputError, match="draft is a str; expected"):
        Scheduler(network(), draft="small")  # type: ignore[arg-type]


@pytest.mark.parametrize(("share", "cost", "count"), [(0.5, 0.0, 29), (0.5, 0.02, 4), (0.9, 0.02, 19)])
def test_the_best_count_does_not_depend_on_a_large_limit(share: float, cost: float, count: int) -> None:
    """A limit of 10**12 tokens would be tried one by one, between two tokens of all sequences."""
    assert best_count([(share, 10**12)], cost) == best_count([(share, 200)], cost) == count
