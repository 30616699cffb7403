"""Models with experts: a router that gives NaN for one token, and weights that are larger than the memory.

If one fails, such a token ends the answers of other users, or its NaN stays in the keys and values of a sequence; or
the memory must hold all experts.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from engine import Core
from engine.errors import InputError
from engine.generation import Generator, Sampling, Scheduler
from engine.passes import LastPosition, MakeStateful, MaskedCaches
from tests.genai_decoders import WIDTH, Decoder

BAD = 13
EXPERTS, INNER = 4, 16
MANY = 64
WHY = r"ExpertMatMul.*row [0-4] has no experts, as the router's values for it are NaN or infinite"


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


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads the memory of a process as Linux has it")
@pytest.mark.parametrize(("bits", "length"), [(0, 512), (4, 1024)])
def test_weights_stay_in_the_file_and_others_than_chosen_ones_are_not_read(
    bits: int, length: int, tmp_path: Path
) -> None:
    """Otherwise a model that is larger than the memory would not run, or would be read from the disk for each token."""
    path = tmp_path / "experts.onnx"
    size = write_mixture(path, bits, length)
    before = resident()
    network = Core().compile_model(path, "CPU", {"INFERENCE_NUM_THREADS": 1})
    request = network.create_infer_request()
    router = np.zeros((1, MANY), np.float32)
    router[0, :2] = 1
    request.infer({"x": np.ones((1, length), np.float32), "router": router})
    after = resident()
    # Two experts of 64, and what the system maps around the addresses that are read.
    assert after["RssFile"] - before["RssFile"] < size / 4
    assert after["RssAnon"] - before["RssAnon"] < size / 4
    for chosen in range(2, 40):
        router[0, chosen] = 100
        request.infer({"x": np.ones((1, length), np.float32), "router": router})
        router[0, chosen] = 0
    assert resident()["RssAnon"] - before["RssAnon"] < size / 4


def write_mixture(path: Path, bits: int, length: int) -> int:
    """A MoE or QMoE of 64 experts with weights of zeros, in a file beside it; the bytes of that file."""
    tensors = []
    place = 0
    columns = length * bits // 8 if bits else length
    for name in ("w1", "w2"):
        shapes = [(name, TensorProto.UINT8 if bits else TensorProto.FLOAT, (MANY, length, columns))]
        if bits:
            shapes.append((f"{name}_scales", TensorProto.FLOAT, (MANY, length, length // 32)))
        for each, kind, shape in shapes:
            nbytes = int(np.prod(shape)) * (1 if kind == TensorProto.UINT8 else 4)
            tensor = TensorProto(name=each, data_type=kind, dims=shape, data_location=TensorProto.EXTERNAL)
            for key, value in (("location", "experts.bin"), ("offset", place), ("length", nbytes)):
                tensor.external_data.add(key=key, value=str(value))
            tensors.append(tensor)
            place += nbytes
    with open(path.with_name("experts.bin"), "wb") as file:
        file.truncate(place)
    inputs = ["x", "router", "w1", *(["w1_scales"] if bits else []), "", "w2", *(["w2_scales"] if bits else [])]
    more: dict[str, Any] = {"expert_weight_bits": bits, "block_size": 32} if bits else {}
    node = helper.make_node(
        "QMoE" if bits else "MoE", inputs, ["y"], domain="com.microsoft", k=2, activation_type="silu", **more
    )
    x, router, y = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, count])
        for name, count in (("x", length), ("router", MANY), ("y", length))
    )
    graph = helper.make_graph([node], "mixture", [x, router], [y], tensors)
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    path.write_bytes(helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString())
    return place


def resident() -> dict[str, int]:
    """The resident bytes of this process: its own, and those of files."""
    fields = (line.split() for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("Rss"))
    return {name.rstrip(":"): int(value) << 10 for name, value, *_ in fields}
