"""GroupQueryAttention whose cache has the last keys only: the results of onnxruntime, and of a whole cache.

If one fails, models with windows (Gemma 2 and 3, gpt-oss) give other answers once a sequence is longer than a window.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper

from engine import Core
from engine.errors import EngineError, ModelError, UnsupportedError
from engine.onnx import read_model

Array = NDArray[Any]
SIZE, FLOAT = 16, TensorProto.FLOAT


class Windowed:
    """A GroupQueryAttention with two queries for each head of keys, and random inputs."""

    def __init__(self, window: int, batch: int = 1, *, heads: int = 1, seed: int = 0, **options: Any) -> None:
        self.window, self.batch, self.heads = window, batch, heads
        self.random = np.random.default_rng(seed)
        self.is_packed, self.has_sink = options.pop("is_packed", False), options.pop("has_sink", False)
        self.attributes = options

    def proto(self, *, is_whole: bool = False, room: Any = "old", bias: bool = False, outputs: int = 3) -> Any:
        info, keys = helper.make_tensor_value_info, self.heads * SIZE
        widths = {"q": 4 * keys} if self.is_packed else {"q": 2 * keys, "k": keys, "v": keys}
        inputs = [info(name, FLOAT, ["b", "s", width]) for name, width in widths.items()]
        inputs += [info(name, FLOAT, ["b", self.heads, room, "size"]) for name in ("past_k", "past_v")]
        inputs += [info("last", TensorProto.INT32, ["b"]), info("total", TensorProto.INT32, [])]
        names = [*widths, *[""] * (3 - len(widths)), "past_k", "past_v", "last", "total"]
        rotary = ["cos", "sin"] if self.attributes.get("do_rotary") else ["", ""]
        names += [*rotary, "", "bias" if bias else "", "sink" if self.has_sink else ""]
        inputs += [info(name, FLOAT, [64, SIZE // 2]) for name in rotary if name]
        inputs += [info("sink", FLOAT, [2 * self.heads])] if self.has_sink else []
        inputs += [info("bias", FLOAT, [1, 1, "s", "t"])] if bias else []
        node = helper.make_node(
            "GroupQueryAttention", names, ["y", "next_k", "next_v"][:outputs], domain="com.microsoft",
            num_heads=2 * self.heads, kv_num_heads=self.heads, local_window_size=self.window,
            sliding_window_cache=int(not is_whole), **self.attributes,
        )  # fmt: skip
        given = [info("y", FLOAT, ["b", "s", 2 * keys])]
        given += [info(name, FLOAT, ["b", self.heads, "new", "size"]) for name in ("next_k", "next_v")]
        graph = helper.make_graph([node], "windowed", inputs, given[:outputs])
        opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=10)

    def feed(self, count: int, total: int) -> dict[str, Array]:
        """The inputs of a step, without the past."""
        keys = self.heads * SIZE
        widths = {"q": 4 * keys} if self.is_packed else {"q": 2 * keys, "k": keys, "v": keys}
        fed = {name: self.real(self.batch, count, width) for name, width in widths.items()}
        fed |= {"last": np.full(self.batch, total - 1, np.int32), "total": np.array(total, np.int32)}
        if self.attributes.get("do_rotary"):
            angles = np.arange(64)[:, None] / 100 ** (np.arange(SIZE // 2) / SIZE)
            fed |= {"cos": np.cos(angles).astype(np.float32), "sin": np.sin(angles).astype(np.float32)}
        return fed | ({"sink": self.real(2 * self.heads)} if self.has_sink else {})

    def real(self, *shape: int) -> Array:
        return self.random.normal(size=shape).astype(np.float32)

    def buffer(self, room: int) -> Array:
        return np.zeros((self.batch, self.heads, room, SIZE), np.float32)


def session(proto: Any) -> Any:
    return onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])


def filled(tokens: int, room: int, window: int) -> int:
    """How many positions of onnxruntime's buffer have tokens; the others have no meaning."""
    block = room - window + 1
    return tokens - block * max(0, -(-(tokens - room) // block))


@pytest.mark.parametrize("device", ["CPU", "TEMPLATE"])
@pytest.mark.parametrize(
    ("slack", "steps", "options"),
    [
        (0, [3, 1, 1, 6, 1], {}),  # fills, moves by one, and by more than a window
        (0, [9, 1], {"is_packed": True, "do_rotary": 1, "heads": 2}),
        (3, [5, 1, 1, 1, 1, 9], {"has_sink": True, "softcap": 4.0}),  # moves by blocks of four
        (1, [7, 1, 1], {"batch": 2, "do_rotary": 1, "rotary_interleaved": 1}),
    ],
)
def test_every_step_is_that_of_onnxruntime_and_of_a_whole_cache(
    device: str, slack: int, steps: list[int], options: dict[str, Any]
) -> None:
    window, total = 4, 0
    case = Windowed(window, **options)
    room = window + slack
    peer, whole = session(case.proto()), session(case.proto(is_whole=True))
    network = Core().compile_model(case.proto(), device)
    kept, short = [case.buffer(room)] * 2, [case.buffer(0)] * 2  # which begins with none, as a variable does
    everything = [case.buffer(0)] * 2
    for count in steps:
        total += count
        fed = case.feed(count, total)
        expected = peer.run(None, {**fed, "past_k": kept[0], "past_v": kept[1]})
        complete = whole.run(None, {**fed, "past_k": everything[0], "past_v": everything[1]})
        np.testing.assert_allclose(expected[0], complete[0], rtol=0, atol=1e-5)
        got = network({**fed, "past_k": kept[0], "past_v": kept[1]})
        np.testing.assert_allclose(got[0], expected[0], rtol=0, atol=1e-5)
        end = filled(total, room, window)
        for mine, its in ((got[1], expected[1]), (got[2], expected[2])):
            assert mine.shape == its.shape == case.buffer(room).shape
            np.testing.assert_allclose(mine[:, :, :end], its[:, :, :end], rtol=0, atol=1e-5)
        grown = network({**fed, "past_k": short[0], "past_v": short[1]})
        np.testing.assert_allclose(grown[0], complete[0], rtol=0, atol=1e-5)
        assert grown[1].shape == case.buffer(window).shape
        kept, short, everything = [got[1], got[2]], [grown[1], grown[2]], complete[1:]


@pytest.mark.parametrize("device", ["CPU", "TEMPLATE"])
def test_prompts_of_different_lengths(device: str) -> None:
    """onnxruntime refuses padding here; each sequence gets what onnxruntime gives it alone."""
    case, alone = Windowed(4, batch=2), Windowed(4)
    network, peer = Core().compile_model(case.proto(), device), session(alone.proto())
    lengths, past = np.array([7, 3], np.int32), [case.buffer(0)] * 2
    own = {row: [alone.buffer(4)] * 2 for row in (0, 1)}
    for fed in (case.feed(7, 7), case.feed(1, 8)):
        total = lengths if fed["q"].shape[1] > 1 else lengths + 1
        got = network({**fed, "last": total - 1, "past_k": past[0], "past_v": past[1]})
        past = [got[1], got[2]]
        for row, kept in own.items():
            count = min(total[row], fed["q"].shape[1])
            part = {name: fed[name][row : row + 1, :count] for name in "qkv"}
            told = {"last": total[row : row + 1] - 1, "total": np.array(total[row])}
            result = peer.run(None, {**part, **told, "past_k": kept[0], "past_v": kept[1]})
            own[row] = result[1:]
            np.testing.assert_allclose(got[0][row, :count], result[0][0], rtol=0, atol=1e-5)


@pytest.mark.parametrize("device", ["CPU", "TEMPLATE"])
def test_a_buffer_that_lacks_keys_of_the_window_is_an_error(device: str) -> None:
    """A past of two positions is read as complete after two tokens, and not after three."""
    case = Windowed(4)
    network = Core().compile_model(case.proto(), device)
    past = {"past_k": case.real(1, 1, 2, SIZE), "past_v": case.real(1, 1, 2, SIZE)}
    assert network({**case.feed(1, 3), **past})[1].shape == (1, 1, 4, SIZE)
    with pytest.raises(EngineError, match=r"index|indices|range"):
        network({**case.feed(1, 4), **past})


def test_calls_that_are_refused() -> None:
    case = Windowed(4)
    for error, proto, words in (
        (ModelError, Windowed(-1).proto(), "`local_window_size` is -1; expected 1 or more"),
        (ModelError, case.proto(room=3), "expected a window of 4 positions or more"),
        (ModelError, case.proto(outputs=1), "present_key and present_value are omitted"),
        (UnsupportedError, case.proto(bias=True), "`bias`\\) is given with `sliding_window_cache`"),
    ):
        with pytest.raises(error, match=words):
            read_model(proto)
    proto = case.proto()
    for index in (3, 4):
        proto.graph.node[0].input[index] = ""
    with pytest.raises(ModelError, match="past_key and past_value are omitted"):
        read_model(proto)
