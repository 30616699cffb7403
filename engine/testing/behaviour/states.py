"""Checks of variables: values that a request keeps between inferences, such as the keys of past tokens."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import onnx
import pytest
from onnx import helper

from engine.core import Core
from engine.errors import BlobError, Busy, Cancelled, EngineError, InputError, StateError
from engine.ir import Model
from engine.passes import MakeStateful
from engine.plugin_api import AsyncInferRequest, ExecutableNetwork
from engine.testing.behaviour.base import DeviceChecks, start_at_gate
from engine.testing.behaviour.cases import Array, make_model, tensor, values

_WIDTH = 3


def history_model() -> onnx.ModelProto:
    """`present = past ++ 2 x` along the tokens, `total` its sum over the tokens, `count + 1` for every inference."""
    nodes = [
        helper.make_node("Mul", ["x", "two"], ["new"]),
        helper.make_node("Concat", ["past.0.key", "new"], ["present.0.key"], axis=1),
        helper.make_node("ReduceSum", ["present.0.key", "axes"], ["total"], keepdims=0),
        helper.make_node("Add", ["past.count", "one"], ["present.count"]),
    ]
    inputs = [
        tensor("x", ["batch", "new_tokens", _WIDTH]),
        tensor("past.0.key", ["batch", "past_tokens", _WIDTH]),
        tensor("past.count", ["batch", 1]),
    ]
    outputs = [
        tensor("present.0.key", ["batch", "all_tokens", _WIDTH]),
        tensor("total", ["batch", _WIDTH]),
        tensor("present.count", ["batch", 1]),
    ]
    constants: dict[str, Array] = {
        "two": np.array([2.0], np.float32),
        "one": np.array([[1.0]], np.float32),
        "axes": np.array([1], np.int64),
    }
    return make_model(nodes, inputs, outputs, constants, name="history")


class History:
    """The expected results of `history_model` for the inputs of one request so far."""

    def __init__(self, batch: int = 1) -> None:
        self.tokens = np.zeros((batch, 0, _WIDTH), np.float32)
        self.count = 0

    def total(self, x: Array) -> Array:
        """Append `x`; returns the sum over all tokens."""
        self.tokens = np.concatenate([self.tokens, 2 * x], axis=1)
        self.count += 1
        return np.asarray(self.tokens.sum(axis=1), np.float32)


def chunk(tokens: int, start: float = 0.0, batch: int = 1) -> Array:
    """An input of `history_model` with this many tokens, counting up from `start`."""
    return values((batch, tokens, _WIDTH), start=start)


class StateChecks(DeviceChecks):
    """A request keeps the variables of a model; other requests, and the network, do not see them."""

    area: ClassVar[str] = "states"

    def stateful(self, core: Core, bound: int | None = None, **config: object) -> ExecutableNetwork:
        """The model with variables, compiled, or the check skipped with the device's reason."""
        model = self._model(core, bound)
        self.require_support(core, model)
        return core.compile_model(model, self.device, {**self.config, **config})

    @staticmethod
    def _model(core: Core, bound: int | None = None) -> Model:
        model = core.read_model(history_model())
        # The counter grows with the sequences only; its name is not one that is found.
        MakeStateful({"past.0.key": "present.0.key", "past.count": "present.count"}, bound=bound).run_on_model(model)
        return model

    def step(self, request: AsyncInferRequest, history: History, x: Array) -> None:
        """Infer, and fail unless the result follows from the whole history."""
        expected = history.total(x)
        self.assert_outputs(request.infer({"x": x}), {"total": expected})
        self.check_values(request, history)

    def check_values(self, request: AsyncInferRequest, history: History) -> None:
        """Fail unless the variables have the values of this history."""
        state = request.query_state()
        self.assert_value(state["past.0.key"].get(), history.tokens, "past.0.key")
        if history.count:
            count = np.full((len(history.tokens), 1), history.count, np.float32)
            self.assert_value(state["past.count"].get(), count, "past.count")

    def test_variables_are_not_inputs_or_outputs(self, core: Core) -> None:
        """A network shows what its users give and get, and lists the variables separately."""
        network = self.stateful(core)
        assert [port.name for port in network.inputs] == ["x"]
        assert [port.name for port in network.outputs] == ["total"]
        assert [variable.name for variable in network.variables] == ["past.0.key", "past.count"]
        with pytest.raises(InputError, match="past"):
            network.create_infer_request().infer({"x": chunk(1), "past.0.key": chunk(1)})

    def test_values_are_kept_from_one_inference_to_the_next(self, core: Core) -> None:
        """Over several lengths of inputs, in the calling thread and in the background."""
        network = self.stateful(core)
        request, history = network.create_infer_request(), History()
        for tokens in (3, 1, 1, 2):
            self.step(request, history, chunk(tokens, start=float(tokens)))
        request.start_async({"x": chunk(1)})
        request.wait(self.limit)
        self.assert_outputs(request.results, {"total": history.total(chunk(1))})
        self.check_values(request, history)
        assert request.length == 8

    def test_requests_have_values_of_their_own(self, core: Core) -> None:
        """Also with another number of sequences; calling the network begins anew each time."""
        network = self.stateful(core)
        requests = [(network.create_infer_request(), History(batch)) for batch in (1, 2, 1)]
        for round_ in range(3):
            for index, (request, history) in enumerate(requests):
                self.step(request, history, chunk(1, start=10.0 * index + round_, batch=len(history.tokens)))
        for _ in range(2):
            self.assert_outputs(network({"x": chunk(2)}), {"total": History().total(chunk(2))})

    def test_reset_rewind_and_lengths(self, core: Core) -> None:
        """A reset request begins anew; values can also be reset one by one."""
        request = self.stateful(core).create_infer_request()
        state = request.query_state()
        assert request.length == 0
        assert state["past.0.key"].shape == (1, 0, _WIDTH)
        history = History()
        self.step(request, history, chunk(4))
        assert state["past.0.key"].shape == (1, 4, _WIDTH)
        assert state["past.0.key"].nbytes == 4 * 4 * _WIDTH
        with pytest.raises(StateError, match=r"past\.count"):
            request.rewind(1)  # the counter does not keep its past values
        state["past.count"].reset()
        assert request.length == 4
        request.reset_state()
        assert request.length == 0
        self.step(request, History(), chunk(1, start=7.0))

    def test_checkpoints(self, core: Core) -> None:
        """A rewound request has the values of a checkpoint; other lengths are refused, and change nothing."""
        request = self.stateful(core).create_infer_request()
        request.keep_checkpoints(2)
        history, past = History(2), []
        for tokens in (3, 1, 2):
            past.append((history.tokens, history.count))
            self.step(request, history, chunk(tokens, start=float(tokens), batch=2))
        assert request.checkpoints == [3, 4]
        for count in (1, 6):
            with pytest.raises(StateError, match=r"past\.count"):
                request.rewind(count)
            self.check_values(request, history)
        other, others = request.fork(), History(2)
        others.tokens, others.count = past[1]
        request.reorder([1, 1])
        request.rewind(2)
        history.tokens, history.count = past[2][0][[1, 1]], past[2][1]
        self.check_values(request, history)
        self.step(request, history, chunk(1, start=9.0, batch=2))
        other.undo(2)
        self.check_values(other, others)
        self.step(other, others, chunk(2, start=5.0, batch=2))
        with pytest.raises(StateError, match="cannot undo 2 inferences"):
            other.undo(2)
        self.check_values(other, others)

    def test_set_values(self, core: Core) -> None:
        """A request continues from set values; values that do not fit are refused and leave the former ones."""
        request = self.stateful(core).create_infer_request()
        state, history = request.query_state(), History()
        history.tokens = chunk(2, start=5.0)
        given = history.tokens.copy()
        state["past.0.key"].set(given)
        given[:] = 0  # it was copied
        self.step(request, history, chunk(1))
        for wrong in (np.zeros((1, 2, _WIDTH), np.float64), np.zeros((1, 2), np.float32), "text"):
            with pytest.raises(InputError, match=r"past\.0\.key"):
                state["past.0.key"].set(wrong)
        self.check_values(request, history)
        with pytest.raises(InputError, match="batch"):
            request.infer({"x": chunk(1, batch=2)})
        self.check_values(request, history)

    def test_fork(self, core: Core) -> None:
        """A fork continues from the same values; neither sees the other's further values."""
        request, history = self.stateful(core).create_infer_request(), History()
        self.step(request, history, chunk(3))
        other, others = request.fork(), History()
        others.tokens, others.count = history.tokens.copy(), history.count
        for round_ in range(3):
            self.step(request, history, chunk(1, start=float(round_)))
            self.step(other, others, chunk(2, start=100.0 + round_))

    def test_adopted_values(self, core: Core) -> None:
        """A request goes on from another one's values; neither sees the other's further values."""
        network = self.stateful(core)
        request, other = network.create_infer_request(), network.create_infer_request()
        history, others = History(), History()
        self.step(request, history, chunk(3))
        self.step(other, others, chunk(1, start=50.0))
        other.adopt(request)
        others.tokens, others.count = history.tokens.copy(), history.count
        for round_ in range(2):
            self.step(other, others, chunk(2, start=100.0 + round_))
            self.step(request, history, chunk(1, start=float(round_)))
        with pytest.raises(StateError, match="of the same network"):
            request.adopt(self.stateful(core).create_infer_request())
        self.check_values(request, history)

    def test_reorder(self, core: Core) -> None:
        """Sequences are taken in another order, or several times; indices out of range change nothing."""
        request, history = self.stateful(core).create_infer_request(), History(3)
        self.step(request, history, chunk(2, batch=3))
        with pytest.raises(StateError, match="3 sequences"):
            request.reorder([0, 3, 1])
        self.check_values(request, history)
        request.reorder([2, 2, 0])
        history.tokens = history.tokens[[2, 2, 0]]
        self.step(request, history, chunk(1, batch=3))
        request.reorder([1])
        history.tokens = history.tokens[[1]]
        self.step(request, history, chunk(1))

    def test_a_length_beyond_the_bound_is_refused(self, core: Core) -> None:
        """The values stay as they were, and the request is usable."""
        request, history = self.stateful(core, bound=4).create_infer_request(), History()
        self.step(request, history, chunk(3))
        with pytest.raises(StateError, match=r"bound is 4"):
            request.infer({"x": chunk(2)})
        self.check_values(request, history)
        self.step(request, history, chunk(1))
        request.reset_state()
        self.step(request, History(), chunk(4))

    def test_save_and_load(self, core: Core, tmp_path: Path) -> None:
        """Another request continues from a file or a stream; a damaged or foreign one changes nothing."""
        network = self.stateful(core)
        request, history = network.create_infer_request(), History()
        self.step(request, history, chunk(3))
        path, stream = tmp_path / "state", io.BytesIO()
        request.save(path)
        request.save(stream)
        assert stream.getvalue() == path.read_bytes()
        for source in (path, path.read_bytes()):
            other, others = network.create_infer_request(), History()
            others.tokens, others.count = history.tokens.copy(), history.count
            other.load(source)
            self.step(other, others, chunk(1))
        whole = path.read_bytes()
        for wrong in (b"", whole[:-1], whole[:200] + bytes([whole[200] ^ 1]) + whole[201:], b"nonsense" * 40):
            with pytest.raises(BlobError):
                request.load(wrong)
        changed = history_model()
        changed.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(np.array([3.0], np.float32), "two"))
        model = core.read_model(changed)
        MakeStateful({"past.0.key": "present.0.key", "past.count": "present.count"}).run_on_model(model)
        stranger = core.compile_model(model, self.device, dict(self.config)).create_infer_request()
        with pytest.raises(StateError, match="another model"):
            stranger.load(path)
        assert stranger.length == 0
        self.check_values(request, history)
        self.step(request, history, chunk(1))

    def test_blobs_have_variables_and_no_values(self, core: Core) -> None:
        """An imported network has the same variables, with their initial values, and reads saved states."""
        self.require_export(core)
        network = self.stateful(core)
        request, history = network.create_infer_request(), History()
        self.step(request, history, chunk(2))
        blob, state = io.BytesIO(), io.BytesIO()
        network.export_model(blob)
        request.save(state)
        imported = core.import_model(blob.getvalue(), self.device)
        assert [variable.name for variable in imported.variables] == ["past.0.key", "past.count"]
        self.step(imported.create_infer_request(), History(), chunk(2))
        other = imported.create_infer_request()
        other.load(state.getvalue())
        self.step(other, history, chunk(1))

    def test_an_inference_that_fails_leaves_the_values(self, core: Core) -> None:
        """Cancelled between any two stages, or refused because of its inputs."""
        network = self.stateful(core)
        request, gate = self.gated_request(network, 1)
        history = History()
        with gate:
            start_at_gate(request, gate, {"x": chunk(2)})
            for access in (request.query_state()["past.0.key"].get, request.reset_state, lambda: request.length):
                with pytest.raises(Busy):
                    access()
            request.cancel()
        with pytest.raises(Cancelled):
            request.wait(self.limit)
        assert request.length == 0
        self.step(request, history, chunk(2))
        with pytest.raises(InputError):
            request.infer({"x": np.zeros((1, 1, _WIDTH + 1), np.float32)})
        self.step(request, history, chunk(1))

    def test_a_model_without_variables(self, network: ExecutableNetwork) -> None:
        """It has no values to query; methods that need them say so."""
        request = network.create_infer_request()
        assert request.query_state() == {}
        assert request.length == 0
        attempts: list[Any] = [request.fork, lambda: request.rewind(1), lambda: request.save(io.BytesIO())]
        for attempt in attempts:
            with pytest.raises(EngineError, match="no variables"):
                attempt()
