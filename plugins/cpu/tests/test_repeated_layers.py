"""A decoder's plans are lowered for a few of its layers. A wrong twin of a layer would be a wrong plan for a length."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from engine_cpu.expansion import twins_of
from engine_cpu.recorded_plans import PreparedShortForm, RecordedPlans
from engine_cpu.recording import StepCall

from engine import Core
from engine.generation import Generator
from engine.lowering import LengthPattern, Relation
from engine.passes import MakeStateful
from tests.genai_decoders import Decoder
from tests.test_hybrid_models import Hybrid

PACKED, TURNED, WINDOWED = ("packed", 8), ("turned", 8), ("turned whole", 8)
MODELS: dict[str, Any] = {
    "equal": lambda: Decoder(*[PACKED] * 6),
    "rotary": lambda: Decoder(*[TURNED] * 6),
    "alternating": lambda: Decoder(*[TURNED, WINDOWED] * 5),
    "hybrid": lambda: Hybrid(*["delta", "attention"] * 5),
}


def network_of(proto: Any, device: str = "CPU") -> Any:
    core = Core()
    model = core.read_model(proto)
    MakeStateful(bound=60).run_on_model(model)
    return core.compile_model(model, device)


def pattern_of(network: Any) -> LengthPattern:
    """The past and the number of new tokens vary, for one sequence."""
    names = list(network.programs.lengths.names)
    new, total = names.index("sequence_length"), names.index("total_sequence_length")
    known = {0: Relation(0, (0,)), new: Relation(0, (1,)), total: Relation(0, (0, 1))}
    return LengthPattern((0, new), tuple(known.get(group, Relation(1)) for group in range(len(names))))


def differing(first: Any, second: Any) -> list[Any]:
    """The calls of two recordings that are not equal."""
    assert len(first.calls) == len(second.calls)
    found = []
    for call, other in zip(first.calls, second.calls, strict=True):
        if isinstance(call, StepCall):
            is_same = call == other
        else:
            forms = [(each.kind, each.nbytes, each.alignment, each.of, each.offset) for each in (call, other)]
            is_same = forms[0] == forms[1] and (
                call.array is None or np.array_equal(call.array, other.array, equal_nan=True)
            )
        if not is_same:
            found.append((call, other))
    return found


@pytest.mark.parametrize("name", MODELS)
def test_plans_are_those_of_the_whole_model(name: str) -> None:
    network = network_of(MODELS[name]().proto())
    programs, compiler = network.programs, network.compiler
    short = PreparedShortForm.of(programs._prepared)
    assert short is not None
    pattern = pattern_of(network)
    static = programs.shapes(pattern.vector((0, 0)))
    ours, theirs = (
        RecordedPlans(programs._prepared, programs.lengths, compiler, pattern, static, form, may_assume=True)
        for form in (short, None)
    )
    for plans in (ours, theirs):
        plans.decide((1, 2), (40, 16), [])
    for lengths in ((1, 2), (2, 2), (1, 3), (17, 7), (40, 2), (40, 16)):
        vector = pattern.vector(lengths)
        made = ours.recording(vector)
        assert ours._short is short, "the plans of the short form are not comparable"
        expected = theirs.recording(vector)
        assert not differing(made, expected), lengths
        assert (made.outputs, made.counts, made.appends) == (expected.outputs, expected.counts, expected.appends)
        assert (made.reads, made.writes) == (expected.reads, expected.writes)


@pytest.mark.parametrize("name", MODELS)
def test_tokens_are_those_of_the_evaluation(name: str) -> None:
    found = []
    for device in ("CPU", "TEMPLATE"):
        generator = Generator(network_of(MODELS[name]().proto(), device))
        tokens = generator.generate([3, 1, 4, 1, 5], 3)
        tokens += generator.generate([9, 2, 6], 3)
        generator.reset()
        found.append([*tokens, *generator.generate([2, 7, 1, 8, 2, 8, 1], 6)])
    assert found[0] == found[1]


def test_numbers_of_sequences_after_one_past() -> None:
    """That two numbers of sequences had the same mask does not mean that it stays so while the past grows."""
    network = network_of(Decoder(*[PACKED] * 6).proto())
    generator = Generator(network)
    found = {}
    for rows in (2, 3, 5):
        generator.reset()
        found[rows] = generator.generate([[3, 1, 4, 1]] * rows, 4)
    assert all(each == found[2][0] for rows in found.values() for each in rows)
    assert network.get_metric("PLANS_PER_SHAPE") == ()


@pytest.mark.parametrize(
    "layers",
    [
        [PACKED] * 3,  # too few
        [PACKED, ("separate", 8), TURNED, ("packed", 16), ("Attention", 8)],  # of different structures
    ],
)
def test_layers_that_do_not_repeat(layers: list[tuple[str, int]]) -> None:
    network = network_of(Decoder(*layers, has_sizes=True).proto())
    assert PreparedShortForm.of(network.programs._prepared) is None


def test_a_layer_with_another_window_is_kept() -> None:
    """One global attention among local ones: the layers behind it are left out, and it is not taken for one of them."""
    network = network_of(Decoder(*[TURNED] * 2, WINDOWED, *[TURNED] * 5).proto())
    short = PreparedShortForm.of(network.programs._prepared)
    assert short is not None
    assert short.removed == 3


@pytest.mark.parametrize(
    ("whole", "short", "removed", "expected"),
    [
        ("abab", "abab", 2, [0, 1, 2, 3]),
        ("xababaz", "xabaz", 1, [0, 1, 2, 3, 2, 3, 4]),
        ("xababababz", "xabz", 3, [0, 1, 2, 1, 2, 1, 2, 1, 2, 3]),
        ("xabacabz", "xabz", 2, None),
        ("xababz", "xabz", 3, None),
        ("ab", "abab", 1, None),
        ("aaaab", "ab", 3, [0, 0, 0, 0, 1]),
    ],
)
def test_twins(whole: str, short: str, removed: int, expected: list[int] | None) -> None:
    assert twins_of(whole, short, removed) == expected
