"""Language models as onnxruntime-genai's builder writes them since 0.18: small ones, written here by hand.

The past's last dimension is symbolic, layers with a window keep only the keys of the window, and the last product may
share the table of embeddings. If one fails, no model of that builder generates text.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto

from engine import Core
from engine.errors import InputError, PassError, StateError
from engine.generation import Generator, Scheduler
from engine.passes import LastPosition, MakeStateful, MaskedCaches
from tests.genai_decoders import WINDOW, Decoder


def generator_of(proto: Any, device: str) -> Generator:
    core = Core()
    model = core.read_model(proto)
    MakeStateful(bound=64).run_on_model(model)
    LastPosition().run_on_model(model)
    return Generator(core.compile_model(model, device))


def masked(proto: Any, device: str, last: int = 1) -> Any:
    core = Core()
    model = core.read_model(proto)
    MakeStateful(bound=64).run_on_model(model)
    assert MaskedCaches().run_on_model(model)
    assert not MaskedCaches().run_on_model(model)
    LastPosition(count=last).run_on_model(model)
    return core.compile_model(model, device)


def expected(proto: Any, prompt: list[int], count: int) -> list[int]:
    """By onnxruntime, which computes all tokens again for each next one; buffers begin empty."""
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    tokens = list(prompt)
    for _ in range(count):
        fed: dict[str, Any] = {"input_ids": np.array([tokens]), "attention_mask": np.ones((1, len(tokens)), np.int64)}
        for each in session.get_inputs()[2:]:
            room = WINDOW if each.shape[2] == "past_sliding_length" else 0
            fed[each.name] = np.zeros((1, each.shape[1], room, each.shape[3]), np.float32)
        tokens.append(int(session.run(["logits"], fed)[0][0, -1].argmax()))
    return tokens[len(prompt) :]


@pytest.mark.parametrize("device", ["TEMPLATE", "CPU"])
@pytest.mark.parametrize(
    "layers",
    [
        [("packed", 16)],
        [("separate", 16)],
        [("MultiHeadAttention", 16)],
        [("Attention", 16)],
        [("windowed", 16), ("packed", 32), ("windowed", 16)],  # different sizes under one name
        [("turned", 16), ("turned, whole", 16)],
    ],
    ids=lambda layers: "+".join(form for form, _ in layers),
)
def test_tokens_are_those_of_onnxruntime(layers: list[tuple[str, int]], device: str) -> None:
    generator = generator_of(Decoder(*layers).proto(), device)
    proto = Decoder(*layers, has_sizes=True).proto()
    prompts = [[3, 1, 4, 1, 5, 9, 2], *([[7]] if len(layers) > 1 else [])]
    for prompt in prompts:
        assert generator.generate(prompt, 6) == [expected(proto, prompt, 6)]
        generator.reset()


@pytest.mark.parametrize("device", ["CPU", "TEMPLATE"])
def test_a_table_of_embeddings_that_the_last_product_has_too(device: str) -> None:
    form = Decoder(("packed", 16), table="int4")
    proto = Decoder(("packed", 16), table="int4", has_sizes=True).proto()
    assert generator_of(form.proto(), device).generate([1, 2, 3], 6) == [expected(proto, [1, 2, 3], 6)]


def lengths_of(proto: Any) -> list[Any]:
    model = Core().read_model(proto)
    MakeStateful().run_on_model(model)
    return [variable.initial.shape for variable in model.variables]


@pytest.mark.parametrize(
    ("form", "heads"),
    [("packed", 1), ("separate", 1), ("MultiHeadAttention", 2), ("Attention", 1), ("Attention of heads", 2),
     ("Concat", 2), ("windowed", 1)],
)  # fmt: skip
def test_lengths_that_only_the_attention_tells(form: str, heads: int) -> None:
    """The size of the heads, which differs between layers, and their number, where that has a name, too."""
    found = lengths_of(Decoder((form, 16), (form, 24), heads="kv_heads").proto())
    assert sorted(found) == [(1, heads, 0, 16)] * 2 + [(1, heads, 0, 24)] * 2


def test_padding_does_not_enter_windows() -> None:
    core = Core()
    model = core.read_model(Decoder(("windowed", 16), ("packed", 16)).proto())
    MakeStateful(bound=64).run_on_model(model)
    network = core.compile_model(model, "CPU")
    prompts = [[3, 1, 4, 1, 5, 9], [7, 3]]
    alone = [Generator(network).generate(prompt, 8)[0] for prompt in prompts]
    assert Generator(network).generate(prompts, 8) == alone


def test_batches_and_forks_of_windows() -> None:
    """A fork goes on by itself."""
    generator = generator_of(Decoder(("windowed", 16), ("packed", 16)).proto(), "CPU")
    prompt, other = [3, 1, 4, 1, 5, 9], [2, 6, 5, 3, 5, 8]
    alone = [generator_of(Decoder(("windowed", 16), ("packed", 16)).proto(), "CPU").generate(each, 8)[0]
             for each in (prompt, other)]  # fmt: skip
    assert generator.generate([prompt, other], 8) == alone
    generator.reset()
    generator.append(prompt)
    generator.step()
    fork = generator.fork()
    for each in (generator, fork):
        for _ in range(7):
            each.step()
        assert each.tokens == [[*prompt, *alone[0]]]


def test_windows_return_to_checkpoints() -> None:
    """Columns that have left a window cannot be restored otherwise."""
    core = Core()
    model = core.read_model(Decoder(("windowed", 16), ("packed", 16)).proto())
    MakeStateful(bound=64).run_on_model(model)
    network = core.compile_model(model, "CPU")
    generator, prompt = Generator(network, checkpoints=4), [3, 1, 4, 1, 5, 9]
    (tokens,) = generator.generate(prompt, 8)
    generator.rewind(4)
    assert generator.generate([7], 3) == Generator(network).generate([*prompt, *tokens[:4], 7], 3)
    plain = Generator(network)
    plain.generate(prompt, 8)
    with pytest.raises(StateError, match="no checkpoint is old enough"):
        plain.rewind(4)


@pytest.mark.parametrize("device", ["TEMPLATE", "CPU"])
@pytest.mark.parametrize(
    "layers",
    [
        [("packed", 16), ("separate", 16)],
        [("turned", 16), ("turned, whole", 16)],
        [("windowed", 16), ("turned, whole", 32), ("windowed", 16)],
        [("windowed", 16), ("windowed", 16)],
        [("sinks", 16), ("packed", 16)],
    ],
    ids=lambda layers: "+".join(form for form, _ in layers),
)
def test_sequences_of_different_lengths_in_one_batch(layers: list[tuple[str, int]], device: str) -> None:
    """GroupQueryAttention writes each sequence at the beginning of its row; a Scheduler needs them at the end."""
    compiled = masked(Decoder(*layers).proto(), device)
    proto = Decoder(*layers, has_sizes=True).proto()
    prompts = [[3, 1, 4, 1, 5, 9, 2], [7], [2, 8], [9] * 12, [1, 2, 3, 4, 5, 6]]
    counts = [9, 12, 5, 8, 10]
    tokens = [expected(proto, prompt, count) for prompt, count in zip(prompts, counts, strict=True)]
    generator = Generator(compiled)
    assert generator.generate(prompts[0], 9) == tokens[:1]
    with Scheduler(compiled, 3, prompt_chunk=3) as scheduler:
        streams = [scheduler.submit(prompt, count) for prompt, count in zip(prompts, counts, strict=True)]
        assert [stream.result() for stream in streams] == tokens


def test_sequences_that_cannot_join_a_batch_are_computed_one_after_another() -> None:
    """As GroupQueryAttention with LongRoPE."""
    core, layers = Core(), [("packed", 16), ("windowed", 16)]
    model = core.read_model(Decoder(*layers).proto())
    MakeStateful().run_on_model(model)
    proto = Decoder(*layers, has_sizes=True).proto()
    prompts = [[3, 1, 4, 1, 5, 9, 2], [7], [2, 8]]
    with Scheduler(core.compile_model(model, "CPU"), 2, prompt_chunk=2, is_batched=False) as scheduler:
        streams = [scheduler.submit(prompt, 8) for prompt in prompts]
        assert [stream.result() for stream in streams] == [expected(proto, prompt, 8) for prompt in prompts]


def test_windows_are_shared_as_a_whole_only() -> None:
    """The columns that have left a window cannot be restored, so a sequence is not shortened."""
    layers = [("windowed", 16), ("turned, whole", 16)]
    compiled = masked(Decoder(*layers).proto(), "CPU")
    proto = Decoder(*layers, has_sizes=True).proto()
    prompt = list(range(1, 21))
    longer = [*prompt, *expected(proto, prompt, 3)]
    with Scheduler(compiled, 2, prefix_cache_bytes=1 << 20) as scheduler:
        for each, reused in ((prompt, 0), (prompt, 0), (longer[:22], 20), (longer, 22), ([*prompt[:18], 3], 0)):
            stream = scheduler.submit(each, 3)
            assert stream.result() == expected(proto, each, 3)
            assert stream.reused == reused


def test_a_batch_with_padding_behind_its_prompts() -> None:
    """The columns of the padding stay masked; the next tokens are behind them."""
    proto = Decoder(("turned", 16), ("turned, whole", 16)).proto()
    compiled = masked(proto, "CPU")
    core = Core()
    model = core.read_model(proto)
    MakeStateful().run_on_model(model)
    prompts = [[3, 1, 4, 1, 5, 9], [2, 7]]
    alone = [Generator(core.compile_model(model, "CPU")).generate(prompt, 3)[0] for prompt in prompts]
    request, mask = compiled.create_infer_request(), np.array([[1] * 6, [1] * 2 + [0] * 4])
    ids = np.array([prompts[0], prompts[1] + [0] * 4])
    request.infer({"input_ids": ids[:, :2], "attention_mask": mask[:, :2]})
    for column in range(2, 6):
        request.infer({"input_ids": ids[:, column : column + 1], "attention_mask": mask[:, : column + 1]})
    # The first sequence has its next token; the second one is continued from its own last token.
    request.rewind(1)
    last = np.array([[9], [7]])
    mask = np.array([[1] * 6, [1, 0, 0, 0, 0, 1]])
    found = [request.infer({"input_ids": last, "attention_mask": mask})["logits"][:, -1].argmax(axis=-1)]
    for _ in range(2):
        mask = np.concatenate([mask, [[1], [1]]], axis=1)
        found.append(
            request.infer({"input_ids": found[-1][:, None], "attention_mask": mask})["logits"][:, -1].argmax(axis=-1)
        )
    assert np.stack(found, axis=1).tolist() == alone


def test_caches_that_cannot_be_masked() -> None:
    """Nothing changes if results would depend on the columns of other sequences."""
    core = Core()
    model = core.read_model(Decoder(("packed", 16)).proto())
    with pytest.raises(PassError, match="has no variables; run MakeStateful before"):
        MaskedCaches().run_on_model(model)
    MakeStateful().run_on_model(model)
    with pytest.raises(PassError, match=r"has no input .mask."):
        MaskedCaches("mask").run_on_model(model)
    with pytest.raises(InputError, match=r"run engine\.passes\.MaskedCaches on the model"):
        Scheduler(core.compile_model(model, "CPU"))
    decoder = Decoder(("packed", 16))
    decoder.add("Cast", ["columns"], ["real"], to=TensorProto.FLOAT)  # as a LongRoPE chooses its factors
    decoder.add("Mul", ["logits", "real"], ["scaled"])
    decoder.outputs[0].name = "scaled"
    model = core.read_model(decoder.proto())
    MakeStateful().run_on_model(model)
    before = str(model)
    with pytest.raises(PassError, match="has the number of columns, on which other results than the keys depend"):
        MaskedCaches().run_on_model(model)
    assert str(model) == before
    assert all(variable.is_placed for variable in model.variables)
