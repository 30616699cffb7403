"""With proposed tokens, a generator gives the tokens that it would give without, in fewer runs."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from engine import Core
from engine.errors import Cancelled, EngineError, InputError, OutOfMemoryError, StateError
from engine.generation import Draft, Generator, PromptLookup, Sampling
from engine.passes import LastPosition, MakeStateful

DECODERS = Path(__file__).parent / "fixtures" / "decoders"
GROWING = ("llama.dynamo23", "gpt2.script17")
STATIC = ("llama_static.dynamo23", "llama_scatter.dynamo24")
PROMPT = [3, 14, 15, 9, 3, 14]
LOOKUP = PromptLookup(shortest=1)


@cache
def network(
    name: str = "llama.dynamo23", device: str = "CPU", bound: int | None = None, *, is_last: bool = False
) -> Any:
    core = Core()
    model = core.read_model(DECODERS / f"{name}.onnx")
    MakeStateful(bound=bound).run_on_model(model)
    if is_last:
        LastPosition().run_on_model(model)
    return core.compile_model(model, device)


@pytest.fixture(scope="module")
def llama() -> Any:
    return network()


@pytest.fixture(scope="module")
def gpt2() -> Any:
    return network("gpt2.script17", is_last=True)


def chain(table: Any, device: str = "CPU", *, states_vocabulary: bool = True, has_positions: bool = False) -> Any:
    """A model in which a row of the table has the logits of what follows a token.

    With positions, it has the inputs that a batch of sequences needs, which it ignores.
    """
    rows = np.array(table, np.float32)
    vocabulary = rows.shape[1] if states_vocabulary else "vocabulary"
    nodes = [
        helper.make_node("Concat", ["past_0", "input_ids"], ["present_0"], axis=1),
        helper.make_node("Gather", ["table", "input_ids"], ["logits"]),
    ]
    if not states_vocabulary:  # a length that is computed
        nodes[1] = helper.make_node("Gather", ["table", "input_ids"], ["whole"])
        nodes.append(helper.make_node("Range", ["zero", "length", "one"], ["all"]))
        nodes.insert(0, helper.make_node("ReduceMax", ["sizes"], ["length"], keepdims=0))
        nodes.append(helper.make_node("Gather", ["whole", "all"], ["logits"], axis=2))
    integers = lambda name, *shape: helper.make_tensor_value_info(name, TensorProto.INT64, shape)  # noqa: E731
    inputs = [integers("input_ids", "batch", "new"), integers("past_0", "batch", "old")]
    if has_positions:
        inputs += [integers("attention_mask", "batch", "columns"), integers("position_ids", "batch", "new")]
    constants = [numpy_helper.from_array(rows, "table")]
    if not states_vocabulary:
        constants += [numpy_helper.from_array(np.array(value), name) for name, value in (("zero", 0), ("one", 1))]
        constants.append(numpy_helper.from_array(np.array([rows.shape[1]]), "sizes"))
    graph = helper.make_graph(
        nodes, "chain", inputs,
        [
            helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", "new", vocabulary]),
            integers("present_0", "batch", "all"),
        ],
        constants,
    )  # fmt: skip
    core = Core()
    model = core.read_model(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10))
    MakeStateful().run_on_model(model)
    return core.compile_model(model, device)


def random_table(size: int, seed: int, scale: float = 1.0) -> Any:
    return np.random.default_rng(seed).normal(0, scale, (size, size))


def following(order: list[int]) -> Any:
    """The table of a chain in which token i is followed by `order[i]`."""
    return 10 * np.eye(len(order))[order]


def combined(values: Any) -> list[Any]:
    """Every network and device with every value; by default, with one of them."""
    devices = ("CPU", "TEMPLATE")
    return [
        pytest.param(name, device, value, marks=[] if (i + j + k) % 3 == 0 else [pytest.mark.slow])
        for i, name in enumerate([*GROWING, *STATIC])
        for j, device in enumerate(devices)
        for k, value in enumerate(values)
    ]


# -- the same tokens ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "device", "proposer"), combined(["lookup", "same", "other"]))
def test_greedy_tokens_are_those_without_proposals(name: str, device: str, proposer: str, gpt2: Any) -> None:
    compiled = network(name, device)
    count = 9 if name in STATIC else 40  # caches have 16 positions
    drafts: dict[str, Any] = {"lookup": LOOKUP, "same": compiled, "other": gpt2}
    plain, proposing = Generator(compiled), Generator(compiled, draft=drafts[proposer])
    for prompt in (PROMPT, [7, 7, 7], [1, 2, 3, 4, 5, 6]):
        assert proposing.generate(prompt, count) == plain.generate(prompt, count)
        assert proposing.tokens == plain.tokens
        plain.reset()
        proposing.reset()
    found = proposing.speculation
    assert found is not None
    assert found.accepted <= found.proposed
    assert found.tokens - found.accepted <= found.runs <= found.tokens
    if proposer == "same":
        assert found.accepted == found.proposed > found.runs


@pytest.mark.parametrize(("name", "device", "seed"), combined(range(3)))
def test_calls_in_any_order(name: str, device: str, seed: int) -> None:
    """Whatever is called in between, tokens are the same: drawn ones, too, where proposals are not drawn."""
    compiled, random = network(name, device), np.random.default_rng(seed)
    sampling = Sampling() if seed == 0 else Sampling(temperature=0.02, seed=seed)
    draft = compiled if seed == 0 else PromptLookup(shortest=1, cost=0)
    plain, proposing = Generator(compiled, sampling), Generator(compiled, sampling, draft=draft)
    room = 16 if name in STATIC else 60

    def both(call: Any) -> None:
        results = []
        for generator in (plain, proposing):
            try:
                results.append(call(generator))
            except EngineError as e:
                results.append(f"{type(e)} {e}")
        np.testing.assert_equal(results[1], results[0])

    for _ in range(60):
        length = len(plain.tokens[0]) if plain.tokens else 0
        action = random.integers(11)
        if length == 0 or (action == 0 and length < room - 3):
            tokens = random.integers(0, 6, random.integers(1, 4)).tolist()
            both(lambda generator, tokens=tokens: generator.append(tokens))
        elif action == 1:
            count = int(random.integers(0, min(length, 6)))
            both(lambda generator, count=count: generator.rewind(count))
        elif action == 2:
            plain, proposing = plain.fork(), proposing.fork()
        elif action == 3:
            both(lambda generator: generator.reorder([0]))
        elif action == 4 and length > room - 3:
            both(lambda generator: generator.reset())
        elif action == 5:
            other = sampling if plain.sampling != sampling else replace(sampling, logit_bias={5: 0.1})
            plain.sampling = proposing.sampling = other
        elif action == 6:
            # Afterwards, both need new tokens.
            both(lambda generator: np.round(generator.logits(), 4))
        elif action == 7:
            count = int(random.integers(1, 8))
            both(lambda generator, count=count: list(generator.stream(count)))
        else:  # the next call finds tokens that were chosen ahead
            for _ in range(random.integers(1, 5)):
                both(lambda generator: generator.step())
        assert proposing.tokens == plain.tokens
    assert proposing.speculation is not None
    assert proposing.speculation.accepted >= 3


@pytest.mark.parametrize("device", ["CPU", "TEMPLATE"])
def test_drawn_tokens_of_a_lookup_are_those_without(device: str) -> None:
    compiled = chain(random_table(8, 0, 2.0), device)
    for sampling in (
        Sampling(temperature=0.5, seed=1),
        Sampling(temperature=1.0, top_k=4, seed=2, frequency_penalty=0.3),
        Sampling(temperature=0.2, min_p=0.2, seed=3, logit_bias={3: 1.0}),
    ):
        plain, proposing = Generator(compiled, sampling), Generator(compiled, sampling, draft=LOOKUP)
        assert proposing.generate([1, 2, 3], 60) == plain.generate([1, 2, 3], 60)
        assert proposing.speculation is not None
        assert proposing.speculation.accepted > 0


def test_a_fork_draws_its_own_numbers_after_tokens_chosen_ahead() -> None:
    compiled = chain(0.4 * following([(i + 1) % 12 for i in range(12)]))

    def drawn(**options: Any) -> tuple[list[int], list[int]]:
        generator = Generator(compiled, Sampling(temperature=0.8, seed=0), **options)
        generator.append([*range(12), 0, 1, 2])
        generator.step()
        found: tuple[list[int], list[int]] = ([], [])
        for _ in range(10):
            generator.step()
            fork = generator.fork()
            for _ in range(6):
                for each, tokens in zip((generator, fork), found, strict=True):
                    tokens.extend(each.stream(1))  # which proposes none, and draws once those ahead are used up
        return found

    assert drawn(draft=PromptLookup(shortest=1, cost=0)) == drawn()


def test_a_draft_with_the_same_seed_draws_the_same_tokens(llama: Any, gpt2: Any) -> None:
    generator = Generator(llama, Sampling(temperature=0.8, seed=3), draft=gpt2)
    first = generator.generate(PROMPT, 30)
    generator.reset()
    assert generator.generate(PROMPT, 30) == first
    again = Generator(llama, Sampling(temperature=0.8, seed=3), draft=gpt2)
    assert again.generate(PROMPT, 30) == first


def test_asyncio(llama: Any, gpt2: Any) -> None:
    async def collect(draft: Any) -> list[int]:
        generator = Generator(llama, draft=draft)
        generator.append(PROMPT)
        return [token async for token in generator.stream_async(30)]

    expected = Generator(llama).generate(PROMPT, 30)[0]
    assert asyncio.run(collect(LOOKUP)) == expected
    assert asyncio.run(collect(gpt2)) == expected


@pytest.mark.parametrize("device", ["CPU", "TEMPLATE"])
def test_logits_of_the_last_few_tokens_are_enough(device: str) -> None:
    """As many tokens are proposed as can be checked."""
    core = Core()
    model = core.read_model(DECODERS / "llama.dynamo23.onnx")
    MakeStateful().run_on_model(model)
    LastPosition(count=4).run_on_model(model)
    compiled = core.compile_model(model, device)
    generator = Generator(compiled, draft=LOOKUP)
    assert generator.generate(PROMPT, 40) == Generator(network()).generate(PROMPT, 40)
    found = generator.speculation
    assert found is not None
    assert found.accepted > 20
    assert found.tokens / found.runs <= 4
    assert Generator(compiled).generate([PROMPT, PROMPT], 9) == Generator(network()).generate([PROMPT, PROMPT], 9)


def test_a_batch_is_computed_without_proposals(llama: Any) -> None:
    generator = Generator(llama, draft=LOOKUP)
    assert generator.generate([PROMPT, [1, 2]], 8) == Generator(llama).generate([PROMPT, [1, 2]], 8)
    assert generator.speculation is not None
    assert generator.speculation.proposed == 0


def test_a_stop_token_among_proposals_ends_the_sequence(llama: Any) -> None:
    expected = Generator(llama).generate(PROMPT, 40)[0]
    for stop in set(expected):
        plain, proposing = Generator(llama, stop_tokens=[stop]), Generator(llama, stop_tokens=[stop], draft=llama)
        assert proposing.generate(PROMPT, 40) == plain.generate(PROMPT, 40)
        assert proposing.is_done == plain.is_done
        proposing.append([5])
        plain.append([5])
        assert proposing.generate([6], 5) == plain.generate([6], 5)


# -- the same distribution ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "scale"),
    [
        ({}, 1.5), ({"temperature": 0.6}, 0.1), ({"top_k": 3}, 1.5), ({"top_p": 0.8}, 0.3),
        ({"logit_bias": {1: 1.5, 2: -np.inf}}, 1.5),
    ],
    ids=lambda value: next(iter(value), "plain") if isinstance(value, dict) else "",
)  # fmt: skip
def test_drawn_tokens_have_the_probabilities_of_the_network(options: dict[str, Any], scale: float) -> None:
    """However far the draft's are from them.

    Given how often a token occurred, the numbers of its successors are binomial. A number exceeds 4.5 standard
    deviations once in 150,000; there are 25 of them in each case.
    """
    table = random_table(5, 1)
    compiled, draft = chain(table), chain(table + random_table(5, 2, scale))
    sampling = Sampling(**{"temperature": 1.0, "seed": 7} | options)
    generator = Generator(compiled, sampling, draft=Draft(draft, tokens=4, cost=0.05))
    counts = np.zeros((5, 5))
    for start in range(5):
        tokens = [start, *generator.generate([start], 400)[0]]
        np.add.at(counts, (tokens[:-1], tokens[1:]), 1)
        generator.reset()
        generator.sampling = Sampling(**{"temperature": 1.0, "seed": 8 + start} | options)
    found = generator.speculation
    assert found is not None
    assert found.proposed > 200
    assert 0 < found.accepted < found.proposed
    for row, logits in zip(counts, table, strict=True):
        shares = sampling.probabilities(logits, np.array([], np.int64))
        spread = np.sqrt(row.sum() * shares * (1 - shares))
        assert (np.abs(row - row.sum() * shares) <= 4.5 * spread + 1e-9).all()


def test_a_distribution_that_depends_on_earlier_tokens() -> None:
    """A penalty counts proposed tokens, too: no token is drawn twice if a penalty forbids it."""
    compiled, draft = chain(random_table(12, 3)), chain(random_table(12, 4))
    for seed in range(20):
        sampling = Sampling(temperature=2.0, presence_penalty=1e6, seed=seed)
        (tokens,) = Generator(compiled, sampling, draft=Draft(draft, cost=0.01)).generate([0], 12)
        assert sorted(tokens) == list(range(12))


# -- how much is proposed -------------------------------------------------------------------------------------------


def test_proposals_that_are_accepted_save_runs() -> None:
    order = [*range(1, 40), 0]
    generator = Generator(chain(following(order)), draft=PromptLookup())
    generator.generate(order, 400)
    found = generator.speculation
    assert found is not None
    assert found.tokens == 400
    assert found.runs <= 60, "nearly nine tokens a run"


@pytest.mark.parametrize("proposer", ["lookup", "draft"])
def test_proposals_that_are_refused_become_rare(proposer: str) -> None:
    """Then, little more is computed than without."""
    size = 16
    drafts: dict[str, Any] = {"lookup": LOOKUP, "draft": chain(following([0] * size))}
    generator = Generator(chain(np.zeros((size, size))), Sampling(temperature=1.0, seed=0), draft=drafts[proposer])
    generator.generate([1, 2, 3], 1000)
    found = generator.speculation
    assert found is not None
    assert found.proposed <= 100
    assert found.accepted <= 20


def test_a_draft_that_is_of_no_use_ends_until_there_is_new_text() -> None:
    """Otherwise, it would go on to compute every token."""
    generator = Generator(chain(following([1, 2, 3, 0])), draft=chain(following([0, 1, 2, 3])))
    generator.generate([0], 100)
    before = generator.speculation
    assert before is not None
    assert before.proposed <= 6
    for count in (1, 15):
        generator.generate([1] * count, 20)
        assert generator.speculation is not None
        assert generator.speculation.proposed == before.proposed
    generator.generate([1] * 16, 20)
    assert generator.speculation is not None
    assert generator.speculation.proposed > before.proposed


def test_proposals_resume_where_a_text_begins_to_repeat() -> None:
    """After a long part that does not."""
    random = np.random.default_rng(0)
    table = np.zeros((64, 64))
    table[:] = following([*range(1, 64), 0])
    generator = Generator(chain(table), draft=LOOKUP)
    generator.append(random.integers(0, 64, 10))
    for _ in range(100):  # each token that was proposed is replaced by another one
        generator.step()
        generator.rewind(1)
        generator.append([int(random.integers(0, 64))])
    before = generator.speculation
    (tokens,) = generator.generate([0], 300)
    assert tokens[:3] == [1, 2, 3]
    after = generator.speculation
    assert before is not None and after is not None  # noqa: PT018
    assert after.runs - before.runs < 150


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.integers(0, 3), min_size=1, max_size=40), st.integers(1, 9), st.integers(1, 4), st.integers(0, 3)
)  # fmt: skip
def test_a_lookup_continues_the_last_place_with_the_most_equal_tokens(
    tokens: list[int], count: int, shortest: int, further: int
) -> None:
    lookup = PromptLookup(longest=shortest + further, shortest=shortest)
    expected: list[int] = []
    for length in range(min(lookup.longest, len(tokens) - 1), shortest - 1, -1):
        places = [end for end in range(length, len(tokens)) if tokens[end - length : end] == tokens[-length:]]
        if places:
            whole = list(tokens)
            for index in range(count):
                whole.append(whole[places[-1] + index])
            expected = whole[len(tokens) :]
            break
    assert lookup.found(np.array(tokens), count) == expected


# -- limits and errors ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("proposer", ["lookup", "same", "short"])
@pytest.mark.parametrize("device", ["CPU", "TEMPLATE"])
def test_the_last_tokens_before_a_bound(proposer: str, device: str) -> None:
    """Proposals do not reach it earlier. A draft whose own bound is smaller proposes nothing behind it."""
    compiled = network(device=device, bound=20)
    drafts: dict[str, Any] = {"lookup": LOOKUP, "same": compiled, "short": network(device=device, bound=12)}
    plain, proposing = Generator(compiled), Generator(compiled, draft=drafts[proposer])
    assert proposing.generate(PROMPT, 15) == plain.generate(PROMPT, 15)
    before = {name: state.get() for name, state in proposing.request.query_state().items()}
    with pytest.raises(StateError, match="bound is 20"):
        proposing.step()
    for name, state in proposing.request.query_state().items():
        np.testing.assert_array_equal(state.get(), before[name])
    proposing.rewind(5)
    plain.rewind(5)
    proposing.append([1])
    plain.append([1])
    assert list(proposing.stream(4)) == list(plain.stream(4))


def test_a_prompt_beyond_the_bound_of_the_draft() -> None:
    compiled, draft = network(), network(bound=4)
    generator = Generator(compiled, draft=draft)
    assert generator.generate(PROMPT, 8) == Generator(compiled).generate(PROMPT, 8)
    assert generator.speculation is not None
    assert generator.speculation.proposed == 0
    generator.rewind(12)
    assert generator.generate([5], 2) == Generator(compiled).generate([*PROMPT[:2], 5], 2)


@pytest.mark.parametrize("device", ["CPU", "TEMPLATE"])
def test_positions_that_the_network_does_not_have(device: str) -> None:
    """The network has a table of 64 positions: the error comes with the same token as without proposals."""
    compiled = network("gpt2.script17", device)
    plain, proposing = Generator(compiled), Generator(compiled, draft=compiled)
    results = []
    for generator in (plain, proposing):
        generator.append(PROMPT)
        with pytest.raises(EngineError):
            list(generator.stream(80))
        results.append(generator.tokens[0])
        generator.rewind(10)
        generator.append([2])
        results[-1] += list(generator.stream(5))
    assert results[0] == results[1]
    assert len(results[0]) >= 60


def test_positions_that_the_draft_does_not_have(llama: Any) -> None:
    """It has a table of 64 positions, which no bound states: the tokens behind them are computed without proposals."""
    plain, proposing = Generator(llama), Generator(llama, draft=Draft(network("gpt2.script17"), cost=0.01))
    for generator in (plain, proposing):
        generator.append([3] * 50)
    assert list(proposing.stream(60)) == list(plain.stream(60))
    assert proposing.speculation is not None
    assert proposing.speculation.tokens == 60
    for generator in (plain, proposing):
        generator.reset()
    before = proposing.speculation.proposed
    assert proposing.generate(PROMPT, 10) == plain.generate(PROMPT, 10)
    assert proposing.speculation.proposed > before > 0


def test_no_memory_for_proposals_ends_them_until_a_reset(llama: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run without them needs less."""
    generator = Generator(llama, draft=LOOKUP)
    expected = Generator(llama).generate(PROMPT, 40)
    kind = type(generator.request)
    original = kind.infer

    def infer(self: Any, inputs: Any = None) -> Any:
        if 1 < inputs["input_ids"].shape[1] < len(PROMPT):
            raise OutOfMemoryError("not enough memory")
        return original(self, inputs)

    monkeypatch.setattr(kind, "infer", infer)
    assert generator.generate(PROMPT, 40) == expected
    monkeypatch.undo()
    assert generator.speculation is not None
    assert generator.speculation.accepted == 0
    generator.reset()
    assert generator.generate(PROMPT, 40) == expected
    assert generator.speculation.accepted > 20


def test_logits_that_are_no_numbers_end_a_sequence_at_the_same_token() -> None:
    table = following([1, 2, 3, 4, 5, 0])
    table[4] = np.nan
    compiled, draft = chain(table), chain(following([1, 2, 3, 4, 5, 0]))
    for generator in (Generator(compiled), Generator(compiled, draft=draft)):
        generator.append([0])
        with pytest.raises(InputError, match="every logit is NaN"):
            list(generator.stream(10))
        assert generator.tokens == [[0, 1, 2, 3, 4]]


def test_a_cancelled_step_leaves_tokens_and_numbers_as_they_were(llama: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A step of the draft, or the run that checks its tokens."""
    sampling = Sampling(temperature=0.7, seed=5)
    expected = Generator(llama, sampling, draft=llama).generate(PROMPT, 30)
    for failing in (2, 3, 5, 9):
        generator = Generator(llama, sampling, draft=llama)
        generator.append(PROMPT)
        calls = 0
        kind = type(generator.request)
        original = kind.infer

        def infer(self: Any, inputs: Any = None, failing: int = failing, original: Any = original) -> Any:
            nonlocal calls
            calls += 1
            if calls == failing:
                raise Cancelled("the inference was cancelled")
            return original(self, inputs)

        monkeypatch.setattr(kind, "infer", infer)
        found: list[int] = []
        while len(found) < 30:
            try:
                found += list(generator.stream(30 - len(found)))
            except Cancelled:
                found = generator.tokens[0][len(PROMPT) :]
        monkeypatch.undo()
        assert [found] == expected


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (lambda llama: Generator(network(is_last=True), draft=LOOKUP), "not the logits of all tokens.*LastPosition"),
        (lambda llama: Generator(llama, draft=chain(random_table(31, 0))), "the draft has 31 tokens, and .* 32"),
        (lambda llama: Generator(llama, draft=True), "draft is a bool; expected a compiled model"),
        (lambda llama: Generator(llama, draft="draft.onnx"), "draft is a str"),
        (lambda llama: Generator(llama, draft=Draft(llama, names={"ids": "x"})), "unknown role `ids`"),
        (lambda llama: Draft("x"), "network is a str"),  # type: ignore[arg-type]
        (lambda llama: Draft(llama, tokens=0), "Draft: tokens is 0; expected a number of tokens, 1 or more"),
        (lambda llama: Draft(llama, cost=float("nan")), "Draft: cost is nan; expected a number of 0 or more"),
        (lambda llama: PromptLookup(tokens=True), "PromptLookup: tokens is True"),
        (lambda llama: PromptLookup(tokens=1.5), "tokens is 1.5"),  # type: ignore[arg-type]
        (lambda llama: PromptLookup(shortest=0), "shortest is 0"),
        (lambda llama: PromptLookup(shortest=5), "longest is 4; expected a number of tokens, 5"),
        (lambda llama: PromptLookup(cost=-1), "cost is -1"),
        (lambda llama: PromptLookup(cost=10**400), "expected a number of 0 or more, 1e"),
        (lambda llama: PromptLookup(cost=1j), "cost is 1j"),  # type: ignore[arg-type]
    ],
)
def test_uses_that_are_refused(made: Any, said: str, llama: Any) -> None:
    with pytest.raises(InputError, match=said):
        made(llama)


# -- states that do not keep their past values -----------------------------------------------------------------------


@cache
def recurrent(seed: int = 0, device: str = "CPU", size: int = 9) -> Any:
    """A model with one state, the sum of all tokens, on which the logits of each token depend."""
    nodes = [
        helper.make_node("ReduceSum", ["input_ids", "axes"], ["sum"], keepdims=1),
        helper.make_node("Add", ["past_0", "sum"], ["present_0"]),
        helper.make_node("CumSum", ["input_ids", "axis"], ["sums"]),
        helper.make_node("Add", ["past_0", "sums"], ["all"]),
        helper.make_node("Mod", ["all", "size"], ["row"]),
        helper.make_node("Gather", ["table", "row"], ["logits"]),
    ]
    integers = lambda name, *shape: helper.make_tensor_value_info(name, TensorProto.INT64, shape)  # noqa: E731
    values = {
        "axes": np.array([1]), "axis": np.array(1), "size": np.array(size),
        "table": random_table(size, seed, 3.0).astype(np.float32),
    }  # fmt: skip
    graph = helper.make_graph(
        nodes, "recurrent",
        [integers("input_ids", "batch", "new"), integers("past_0", "batch", 1)],
        [
            helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", "new", size]),
            integers("present_0", "batch", 1),
        ],
        [numpy_helper.from_array(value, name) for name, value in values.items()],
    )  # fmt: skip
    core = Core()
    model = core.read_model(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10))
    MakeStateful().run_on_model(model)
    return core.compile_model(model, device)


@pytest.mark.parametrize("device", ["CPU", "TEMPLATE"])
@pytest.mark.parametrize(("proposer", "temperature"), [("lookup", 0), ("lookup", 0.7), ("same", 0), ("other", 0)])
def test_tokens_after_a_state_are_those_without_proposals(device: str, proposer: str, temperature: float) -> None:
    """Accepted tokens behind which one was refused are computed again; forks go on from the same tokens."""
    compiled = recurrent(device=device)
    lookup = PromptLookup(shortest=1, cost=0)
    draft = {"lookup": lookup, "same": Draft(compiled, cost=0), "other": Draft(recurrent(1, device), cost=0)}[proposer]
    sampling = Sampling(temperature=temperature, seed=3)
    plain, proposing = Generator(compiled, sampling), Generator(compiled, sampling, draft=draft)
    random = np.random.default_rng(0)
    for _ in range(30):
        if random.random() < 0.3:
            tokens = random.integers(0, 9, random.integers(1, 4)).tolist()
            plain.append(tokens)
            proposing.append(tokens)
        elif plain.tokens:
            count = int(random.integers(1, 9))
            assert list(proposing.stream(count)) == list(plain.stream(count))
            if random.random() < 0.3:
                plain, proposing = plain.fork(), proposing.fork()
            for _ in range(random.integers(3)):
                assert proposing.step() == plain.step()
        assert proposing.tokens == plain.tokens
    found = proposing.speculation
    assert found is not None
    assert found.proposed > 10
    if proposer != "other":
        assert found.accepted > 10
        assert found.runs < found.tokens
    if proposer == "same":
        assert found.accepted == found.proposed


def test_a_state_is_that_of_the_given_tokens() -> None:
    """It lies before some of them, which the next step computes, never behind them; a rewind is right, or refused."""
    compiled = recurrent()
    generator = Generator(compiled, Sampling(temperature=0.8, seed=1), draft=PromptLookup(shortest=1, cost=0))
    generator.append([1, 2, 3, 1, 2, 3])
    for index in range(60):
        generator.step()
        (tokens,) = generator.tokens
        state = int(generator.request.query_state()["past_0"].get()[0, 0])
        assert state in np.cumsum(tokens[:-1])
        assert generator.request.checkpoint_bytes <= 8
        if index % 7 == 0:
            try:
                generator.rewind(2)
            except StateError:
                assert generator.tokens == [tokens]
            generator.append([index % 5])
            whole = Generator(compiled)
            whole.append(generator.tokens[0])
            np.testing.assert_array_equal(generator.fork().logits(), whole.logits())
    assert generator.speculation is not None
    assert 0 < generator.speculation.accepted < generator.speculation.proposed


def test_a_state_after_an_interrupted_run_is_not_taken_for_that_before() -> None:
    """The run may have ended; its tokens would be in the state twice."""
    generator = Generator(recurrent())
    generator.append([1, 2])
    turn = generator.computed_logits()
    request, inputs = next(turn)
    request.infer(inputs)
    turn.close()
    for _ in range(2):
        with pytest.raises(StateError, match="the last run was interrupted"):
            generator.step()
    generator.reset()
    assert generator.generate([1, 2], 5) == Generator(recurrent()).generate([1, 2], 5)


@pytest.mark.parametrize("temperature", [0, 1])
def test_a_draft_of_states(temperature: float) -> None:
    """It returns to checkpoints of its own; without one, such as after a long rewind, it computes its tokens again."""
    table = random_table(9, 5, 2.0)
    sampling = Sampling(temperature=temperature, seed=1)
    generator = Generator(chain(table), sampling, draft=Draft(recurrent(), cost=0.01))
    generator.append([1, 2])
    plain = Generator(chain(table), sampling)
    plain.append([1, 2])
    for _ in range(6):
        found, wanted = list(generator.stream(10)), list(plain.stream(10))
        if not temperature:
            assert found == wanted
        for each in (generator, plain):
            each.rewind(8)
            each.append([4])
    assert generator.speculation is not None
    assert generator.speculation.proposed > 5


@pytest.mark.parametrize("name", ["llama.dynamo23", "llama_scatter.dynamo24"])
def test_the_request_has_the_tokens_that_were_given(name: str, tmp_path: Path) -> None:
    """Not those that were chosen ahead: a saved state goes on with the next token."""
    compiled = network(name)
    generator, plain = Generator(compiled, draft=compiled), Generator(compiled)
    generator.append([3, 14, 15])
    plain.append([3, 14, 15])
    for index in range(10):
        assert generator.step() == plain.step()
        assert generator.request.length == plain.request.length
        if name == "llama.dynamo23":
            for key, state in generator.request.query_state().items():
                np.testing.assert_allclose(state.get(), plain.request.query_state()[key].get(), rtol=0, atol=1e-5)
        if index % 3 == 1 and plain.request.length:
            generator.request.save(tmp_path / "state")
            request = compiled.create_infer_request()
            request.load(tmp_path / "state")
            (tokens,) = generator.tokens
            found = request.infer({
                "input_ids": np.array([tokens[-1:]]), "attention_mask": np.ones((1, len(tokens)), np.int64),
                "position_ids": np.array([[len(tokens) - 1]]),
            })  # fmt: skip
            expected = Generator(compiled)
            expected.append(tokens)
            np.testing.assert_allclose(found["logits"][0, -1], expected.logits()[0], rtol=0, atol=1e-4)
    assert generator.speculation is not None
    assert generator.speculation.accepted > 3


def test_another_vocabulary_that_the_draft_does_not_state() -> None:
    """It is found with the first proposals, and nothing changes."""
    generator = Generator(chain(np.eye(4)), draft=chain(np.eye(5), states_vocabulary=False))
    generator.append([1, 1])
    assert generator.step() == [1]
    for _ in range(2):
        with pytest.raises(InputError, match="the draft's logits are of 5 tokens, and the network's of 4"):
            generator.step()
    assert generator.tokens == [[1, 1, 1]]
