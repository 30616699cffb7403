"""A language model with experts whose router gives NaN for one token.

If one fails, such a token ends the answers of other users, or its NaN stays in the keys and values of a sequence.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import helper, numpy_helper

from engine import Core
from engine.errors import InputError
from engine.generation import Generator, Sampling, Scheduler
from engine.passes import LastPosition, MakeStateful, MaskedCaches
from tests.genai_decoders import WIDTH, Decoder

BAD = 13
EXPERTS, INNER = 4, 16
WHY = r"ExpertMatMul.*row [0-4] has no experts, as the router's values for it are NaN; expected numbers"


class ExpertDecoder(Decoder):
    """One layer of attention, and one of experts. The embedding of token `BAD` is NaN."""

    def embedded(self, table: str) -> str:
        found = super().embedded(table)
        rows = numpy_helper.to_array(self.weights[-1]).copy()
        rows[BAD] = np.nan
        self.weights[-1] = numpy_helper.from_array(rows, "table")
        return found

    def layer(self, index: int, form: str, size: int, hidden: str) -> str:
        hidden = super().layer(index, form, size, hidden)
        flat = self.constant("flat_rows", np.array([-1, WIDTH]))
        self.add("Reshape", [hidden, flat], ["rows"])
        self.add("MatMul", ["rows", self.weight("router", WIDTH, EXPERTS)], ["probabilities"])
        experts = [self.weight("fc1", EXPERTS, INNER, WIDTH), "", self.weight("fc2", EXPERTS, WIDTH, INNER)]
        node = helper.make_node(
            "MoE", [hidden, "probabilities", *experts], ["mixed"], "experts", domain="com.microsoft", k=2,
            activation_type="silu", normalize_routing_weights=1,
        )  # fmt: skip
        self.nodes.append(node)
        return self.add("Add", [hidden, "mixed"], ["with_experts"])


def network(device: str) -> Any:
    core = Core()
    model = core.read_model(ExpertDecoder(("packed", 16)).proto())
    MakeStateful(bound=64).run_on_model(model)
    assert MaskedCaches().run_on_model(model)
    LastPosition().run_on_model(model)
    return core.compile_model(model, device)


DEVICES = pytest.mark.parametrize("device", ["TEMPLATE", "CPU"])


@DEVICES
def test_a_failed_inference_leaves_the_keys_and_values(device: str) -> None:
    generator = Generator(network(device), Sampling(logit_bias={BAD: -np.inf}))
    generator.generate([1, 2, 3], 2)

    def states() -> list[Any]:
        return [np.array(state.get()) for state in generator.request.query_state().values()]

    before = states()
    generator.append([5, BAD])
    with pytest.raises(InputError, match=WHY):
        generator.logits()
    after = states()
    assert before
    for old, new in zip(before, after, strict=True):
        np.testing.assert_array_equal(new, old)
    assert all(np.isfinite(each).all() for each in after)


@DEVICES
def test_only_the_sequence_with_the_token_fails(device: str) -> None:
    compiled = network(device)
    prompts = [[1, 2, 3], [4], [5, 6]]
    good = Sampling(logit_bias={BAD: -np.inf})
    alone = [Generator(compiled, good).generate(prompt, 8)[0] for prompt in prompts]
    with Scheduler(compiled, 5) as scheduler:
        streams = [scheduler.submit(prompt, 8, sampling=good) for prompt in prompts]
        in_prompt = scheduler.submit([7, BAD, 8], 8)
        # Its first token is BAD, which its next step computes together with the other sequences.
        in_step = scheduler.submit([9], 8, sampling=Sampling(logit_bias={BAD: 1e4}))
        with pytest.raises(InputError, match=WHY):
            in_prompt.result()
        with pytest.raises(InputError, match=WHY):
            in_step.result()
        assert [stream.result() for stream in streams] == alone
        assert scheduler.failure is None
