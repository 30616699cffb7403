"""Models with variables over the wire. If this fails, a client gets an answer from another's state, or from none."""

from __future__ import annotations

import asyncio
import concurrent.futures
import json
import queue
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from engine_serve.ended_sequences import EndedTables
from engine_serve.model_config import SequenceLimits
from engine_serve.request_queue import RequestQueue, Times
from engine_serve.sequences import Sequences, step_of

from apps.serve.tests.conftest import Running, dense, running, wait_for, write
from engine import Core
from engine.errors import Busy, DeadlineExceeded, EngineError, InputError, StateError
from engine.ir import Model
from engine.passes import MakeStateful
from engine.testing.behaviour.states import History, chunk, history_model

CPU = 'device = "CPU"\n'
LIMITED = CPU + "[sequences]\nsize = 2\nrequires_start = true\n"


def history(bound: int | None = None) -> Model:
    model = Core().read_model(history_model())
    MakeStateful(bound=bound).run_on_model(model)
    return model


# -- the table of sequences ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def network() -> Any:
    return Core().compile_model(history(), "CPU")


class Table:
    """Sequences of a network, asked in one event loop."""

    def __init__(self, network: Any, waiting: int = 100, **limits: Any) -> None:
        self.queue = RequestQueue("m", network, 2, waiting)
        self.sequences = Sequences("m", network, self.queue, SequenceLimits(**limits))

    async def ask(
        self,
        identity: Any,
        x: Any,
        start: bool | None = None,
        end: bool = False,
        deadline: float | None = None,
        answered: Callable[[Any], Any] = lambda result: np.array(result["total"]),
    ) -> Any:
        given = {"sequence_id": identity, "sequence_end": end} | ({} if start is None else {"sequence_start": start})
        return await self.sequences.infer(step_of(given), {"x": x}, deadline, Times(), x.nbytes, answered)


async def refused(asked: Any, kind: type[EngineError], said: str) -> None:
    with pytest.raises(kind, match=said):
        await asked


def test_each_sequence_has_its_state(network: Any) -> None:
    """Of many at once, whose requests arrive mixed: each in its order."""

    async def talk(table: Table, identity: Any, seed: int) -> None:
        right, steps = History(), 5
        for step in range(steps):
            x = chunk(1 + (seed + step) % 3, float(seed))
            found = await table.ask(identity, x, start=step == 0, end=step == steps - 1)
            np.testing.assert_array_equal(found, right.total(x))

    async def pipelined(table: Table) -> None:
        right, xs = History(), [chunk(1, float(step)) for step in range(6)]
        found = await asyncio.gather(*(table.ask("pipe", x, start=step == 0) for step, x in enumerate(xs)))
        np.testing.assert_array_equal(found, [right.total(x) for x in xs])

    async def all_of_them() -> None:
        table = Table(network)
        identities = [*range(1, 9), *map(str, range(1, 9))]  # 7 and "7" are two
        await asyncio.gather(*(talk(table, each, seed) for seed, each in enumerate(identities)), pipelined(table))
        assert table.sequences.count == 1
        assert table.sequences.nbytes > 0

    asyncio.run(all_of_them())


def test_beginnings_and_ends(network: Any) -> None:
    x, one = chunk(1), History().total(chunk(1))

    async def steps() -> None:
        table = Table(network)
        await refused(table.ask(7, x, start=False), StateError, "sequence 7 of m has not begun; begin it with")
        np.testing.assert_array_equal(await table.ask(7, x), one)  # the client does not say, and 7 is new
        np.testing.assert_array_equal(await table.ask(7, x), 2 * one)
        await refused(table.ask(7, x, start=True), StateError, "has begun already, and two cannot have one id")
        np.testing.assert_array_equal(await table.ask(7, x, start=False, end=True), 3 * one)
        for start in (None, False):
            await refused(table.ask(7, x, start=start), StateError, "has ended: a request with `sequence_end` ended it")
        np.testing.assert_array_equal(await table.ask(7, x, start=True, end=True), one)
        assert table.sequences.count == 0
        strict = Table(network, requires_start=True)
        await refused(strict.ask(7, x), StateError, "has not begun")

    asyncio.run(steps())


def test_a_request_that_fails_leaves_the_sequence_as_it_was(network: Any) -> None:
    x, one = chunk(1), History().total(chunk(1))

    async def steps() -> None:
        table = Table(network)
        await refused(table.ask(1, x[0], start=True), InputError, "rank")
        assert table.sequences.count == 0
        first, second = table.ask(1, x[0], start=True), table.ask(1, x)
        failed, after = await asyncio.gather(first, second, return_exceptions=True)
        assert isinstance(failed, InputError)
        assert isinstance(after, StateError), "it would begin in place of the first one"
        await table.ask(1, x, start=True)
        await refused(table.ask(1, x[0], end=True), InputError, "rank")
        await refused(table.ask(1, x, deadline=0), DeadlineExceeded, "had passed")
        np.testing.assert_array_equal(await table.ask(1, x), 2 * one)

    asyncio.run(steps())


class Held:
    """Submissions that run when they are told to."""

    def __init__(self, submissions: Any, left: list[Callable[[], None]]) -> None:
        self._submissions, self._left = submissions, left

    def submit(self, inputs: Any, deadline: float | None) -> Any:
        future: Future[Any] = Future()
        future.set_running_or_notify_cancel()

        def run() -> None:
            future.set_result(self._submissions.submit(inputs, deadline).result())

        self._left.append(run)
        return future


def test_a_cut_off_request_whose_state_has_changed_ends_its_sequence(network: Any) -> None:
    """Its client does not know whether to send it again, and would get a wrong answer in one case."""
    x = chunk(1)

    async def steps() -> None:
        table, left = Table(network), list[Callable[[], None]]()
        await table.ask(1, x, start=True)
        sequence = table.sequences._running[1]
        sequence.submissions = Held(sequence.submissions, left)  # type: ignore[assignment]
        late = asyncio.ensure_future(table.ask(1, x, deadline=0.01))
        await refused(late, DeadlineExceeded, "passed while it ran")
        following = asyncio.ensure_future(table.ask(1, x))
        await asyncio.sleep(0.01)
        assert not following.done(), "it waits until the device has ended"
        left[0]()
        await refused(following, StateError, "has ended: a request had no answer, after its state had changed")
        await table.ask(2, x, start=True)
        with pytest.raises(ZeroDivisionError):
            await table.ask(2, x, answered=lambda _: 1 / 0)
        await refused(table.ask(2, x), StateError, "had no answer")

    asyncio.run(steps())


def test_bounds(network: Any) -> None:
    x = chunk(1)

    async def steps() -> None:
        table = Table(network, idle_ms=50)
        await asyncio.gather(*(table.ask(each, x) for each in range(1, 4)))
        await asyncio.sleep(0.2)
        assert table.sequences.count == 0
        await refused(table.ask(2, x), StateError, "has ended: it had no request for 50 ms")
        few = Table(network, size=2)
        await few.ask(1, x)
        await few.ask(2, x)
        await refused(few.ask(3, x), Busy, "`sequences.size`")
        await few.ask(1, x, end=True)
        await few.ask(3, x)
        full = Table(network, state_mib=1e-5)  # 10 bytes
        await full.ask(1, x)
        await refused(full.ask(1, x), Busy, "`sequences.state_mib`")
        await refused(full.ask(2, x), Busy, "`sequences.state_mib`")
        await full.ask(1, x, end=True)
        await full.ask(2, x)
        waiting = Table(network, waiting=1)
        found = await asyncio.gather(*(waiting.ask(1, x) for _ in range(4)), return_exceptions=True)
        assert [type(each) for each in found[2:]] == [Busy, Busy]

    asyncio.run(steps())


@pytest.mark.parametrize(
    "given",
    [
        {}, {"sequence_id": 0}, {"sequence_id": ""}, {"sequence_id": -1}, {"sequence_id": 1 << 64},
        {"sequence_id": 1.0}, {"sequence_id": True}, {"sequence_id": [1]}, {"sequence_id": "a" * 129},
        {"sequence_id": 1, "sequence_start": 1}, {"sequence_id": 1, "sequence_end": "true"},
    ],
)  # fmt: skip
def test_ids_and_flags_that_are_not_valid(given: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="sequence_"):
        step_of(given)


def test_ids_that_are_remembered_have_a_bound(network: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine_serve.ended_sequences._REMEMBERED", 3)

    async def steps() -> None:
        table = Table(network)
        for each in range(1, 6):
            await table.ask(each, chunk(1), start=True, end=True)
        assert [each in table.sequences.ended for each in range(1, 6)] == [False, False, True, True, True]
        await table.ask(6, chunk(1))
        table.sequences.close()
        await refused(table.ask(6, chunk(1)), StateError, "has ended: the model was unloaded")

    asyncio.run(steps())


def test_what_is_remembered_of_models_that_are_not_served_has_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine_serve.ended_sequences._UNSERVED", 3)
    tables = EndedTables()
    for name in ("served", "first", "second", "third", "none"):
        tables.reach(name, 1)
        for each in range(0 if name == "none" else 2):
            tables.of(name, 1).note(each, "has ended")
    tables.forget({("served", 1)})
    assert [len(tables.of(name, 1)) for name in ("served", "first", "second", "third", "none")] == [2, 0, 0, 2, 0]
    assert tables.reach("third", 2) == 1
    assert tables.reach("none", 2) is None


# -- over the wire ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("sequences") / "models"
    write(folder, "history", history(), CPU)
    write(folder, "limited", history(bound=20), LIMITED)
    write(folder, "brief", history(), CPU + "[sequences]\nidle_ms = 300\n")
    write(folder, "dense", dense(), CPU)
    write(folder, "stateless", dense(), CPU + "[sequences]\n")
    write(folder, "template", history(), 'device = "TEMPLATE"\n')
    write(folder, "auto", history())
    write(folder, "hetero", history(), 'device = "HETERO:TEMPLATE,CPU"\n')
    (folder / "blob").mkdir()
    Core().compile_model(history(), "CPU").export_model(folder / "blob" / "model.blob")
    with running(folder) as found:
        yield found


@pytest.fixture(params=["http", "grpc"])
def ask(server: Running, request: pytest.FixtureRequest) -> Iterator[Callable[..., Any]]:
    import tritonclient.grpc
    import tritonclient.http

    module = tritonclient.http if request.param == "http" else tritonclient.grpc
    client = module.InferenceServerClient(server.http if request.param == "http" else server.grpc)

    def call(name: str, x: Any, **options: Any) -> Any:
        given = module.InferInput("x", list(x.shape), "FP32")
        given.set_data_from_numpy(x)
        return client.infer(name, [given], **options).as_numpy("total")

    yield call
    client.close()


def refusal(call: Any, *arguments: Any, **options: Any) -> str:
    from tritonclient.utils import InferenceServerException

    with pytest.raises(InferenceServerException) as caught:
        call(*arguments, **options)
    return f"{caught.value.status()} {caught.value.message()}"


@pytest.mark.parametrize("name", ["history", "template", "auto", "hetero", "blob"])
def test_triton_s_clients(ask: Callable[..., Any], name: str) -> None:
    """Numbers and texts as ids, two sequences at once."""
    sequences: list[tuple[Any, History]] = [(int(time.time_ns()), History()), (f"text {time.time_ns()}", History())]
    for step in range(4):
        for identity, right in sequences:
            x = chunk(2, float(step))
            found = ask(name, x, sequence_id=identity, sequence_start=step == 0, sequence_end=step == 3)
            np.testing.assert_array_equal(found, right.total(x))
    for identity, _ in sequences:
        assert "has ended" in refusal(ask, name, chunk(1), sequence_id=identity)


def test_a_stream_of_grpc(server: Running) -> None:
    """As Triton's clients send sequences; a request that is refused does not end the stream."""
    import tritonclient.grpc

    client, answers = tritonclient.grpc.InferenceServerClient(server.grpc), queue.Queue[Any]()
    client.start_stream(lambda result, error: answers.put((result, error)))
    right, xs = History(), [chunk(1 + step, float(step)) for step in range(3)]
    for step, x in enumerate(xs):
        for name in ("x", "wrong")[: 2 if step == 1 else 1]:
            given = tritonclient.grpc.InferInput(name, list(x.shape), "FP32")
            given.set_data_from_numpy(x)
            flags = {"sequence_start": step == 0, "sequence_end": step == 2}
            client.async_stream_infer("history", [given], sequence_id="a stream", **flags)
    found = [answers.get(timeout=30) for _ in range(4)]
    assert "there is no input 'wrong'" in str(found[2][1])
    for (result, _), x in zip((found[0], found[1], found[3]), xs, strict=True):
        np.testing.assert_array_equal(result.as_numpy("total"), right.total(x))
    client.stop_stream()
    client.close()


def post(server: Running, name: str, parameters: dict[str, Any]) -> Any:
    tensor = {"name": "x", "shape": [1, 1, 3], "datatype": "FP32", "data": [1, 2, 3]}
    body = json.dumps({"inputs": [tensor], "parameters": parameters}).encode()
    request = urllib.request.Request(f"http://{server.http}/v2/models/{name}/infer", body)
    try:
        with urllib.request.urlopen(request, timeout=20) as response:
            return next(each["data"] for each in json.load(response)["outputs"] if each["name"] == "total")
    except urllib.error.HTTPError as e:
        return e.code, json.load(e)["error"]


def test_a_client_that_does_not_say_where_a_sequence_begins(server: Running) -> None:
    assert post(server, "history", {"sequence_id": 7}) == [2, 4, 6]
    assert post(server, "history", {"sequence_id": 7}) == [4, 8, 12]
    assert post(server, "history", {"sequence_id": "7"}) == [2, 4, 6]
    code, said = post(server, "limited", {"sequence_id": 7})
    assert (code, "has not begun" in said) == (400, True)


def test_what_keeps_no_state_refuses_sequences_and_what_does_refuses_others(server: Running) -> None:
    code, said = post(server, "dense", {"sequence_id": 7})
    assert (code, "has no variables" in said) == (400, True), said
    code, said = post(server, "dense", {"sequence_start": True, "sequence_end": True})
    assert (code, "leave `sequence_end`, `sequence_start` out" in said) == (400, True), said
    code, said = post(server, "history", {})
    assert (code, "needs `sequence_id`" in said) == (400, True), said
    assert "`sequences` is set, but the model has no variables" in server.log


def test_limits_and_the_bound_of_the_variables(server: Running, ask: Callable[..., Any]) -> None:
    ask("limited", chunk(18), sequence_id=1, sequence_start=True)
    ask("limited", chunk(1), sequence_id=2, sequence_start=True)
    assert "`sequences.size`" in refusal(ask, "limited", chunk(1), sequence_id=3, sequence_start=True)
    assert server.metric('engine_sequences{model="limited"') == 2
    assert "its bound is 20" in refusal(ask, "limited", chunk(5), sequence_id=1)
    ask("limited", chunk(2), sequence_id=1, sequence_end=True)
    ask("limited", chunk(1), sequence_id=2, sequence_end=True)
    assert server.metric('engine_sequences{model="limited"') == 0


def test_a_sequence_without_requests_ends(server: Running, ask: Callable[..., Any]) -> None:
    ask("brief", chunk(1), sequence_id=1, sequence_start=True)
    wait_for(lambda: server.metric('engine_sequences{model="brief"') == 0)
    assert "had no request for 300 ms" in refusal(ask, "brief", chunk(1), sequence_id=1)


def test_a_reload_ends_sequences_if_the_files_have_changed(server: Running, ask: Callable[..., Any]) -> None:
    import tritonclient.http

    folder = Path(server.process.args[4])  # type: ignore[index]
    client = tritonclient.http.InferenceServerClient(server.http)
    identity = int(time.time_ns())
    ask("history", chunk(1), sequence_id=identity, sequence_start=True)
    client.load_model("history")
    ask("history", chunk(1), sequence_id=identity)
    write(folder, "history", history(), CPU)
    client.load_model("history")
    for start in ({}, {"sequence_start": False}):
        assert "the model was loaded again" in refusal(ask, "history", chunk(1), sequence_id=identity, **start)
    client.close()


class Versions:
    """A model with versions, as a client loads and asks it."""

    def __init__(self, server: Running, name: str, versions: Any) -> None:
        import tritonclient.http

        client = tritonclient.http.InferenceServerClient(server.http)
        self._server, self.name, self.load, self.unload = server, name, client.load_model, client.unload_model
        self.folder = Path(server.process.args[4])  # type: ignore[index]
        (self.folder / name).mkdir()
        self.choose(versions)

    def choose(self, versions: Any) -> None:
        (self.folder / self.name / "config.toml").write_text(f"{CPU}versions = {json.dumps(versions)}\n")

    def write(self, *versions: int) -> None:
        for version in versions:
            write(self.folder, self.name, history(), version=version)

    def ask(self, identity: int, version: int | None = None, **flags: bool) -> list[float]:
        """One more chunk, not by Triton's client, which always says whether the sequence begins."""
        name = self.name if version is None else f"{self.name}/versions/{version}"
        found = post(self._server, name, {"sequence_id": identity, **flags})
        assert isinstance(found, list), found
        return found

    def refused(self, said: str, identity: int) -> None:
        for flags in ({}, {"sequence_start": False}):
            code, why = post(self._server, self.name, {"sequence_id": identity, **flags})
            assert (code, said in why) == (400, True), why


def test_unloading_and_loading_begins_no_sequence_anew(server: Running) -> None:
    """Also if the loading failed at first, or another version is loaded then."""
    model = Versions(server, "unloaded", "latest")
    model.write(1)
    model.load("unloaded")
    first = model.ask(7, sequence_start=True)
    model.ask(8, sequence_start=True, sequence_end=True)
    assert model.ask(7) > first
    model.unload("unloaded")
    write(model.folder, "unloaded", b"junk", version=1)
    refusal(model.load, "unloaded")
    model.unload("unloaded")
    for version in (1, 2):
        model.write(version)
        model.load("unloaded")
        model.refused("has ended: the model was unloaded", 7)
        model.refused("has ended: a request with `sequence_end` ended it", 8)
        model.unload("unloaded")
    model.load("unloaded")
    assert model.ask(7, sequence_start=True) == model.ask(9) == first


def test_versions_have_sequences_of_their_own(server: Running) -> None:
    """One that goes on is not concerned by the loading of another, unless requests reach the other one instead."""
    model = Versions(server, "versions", "all")
    model.write(1, 2)
    model.load("versions")
    first = model.ask(7, 1, sequence_start=True)
    model.ask(8, sequence_start=True)
    model.write(2)
    model.load("versions")
    assert model.ask(7, 2) == first
    assert model.ask(7, 1) > first
    model.refused("has ended: the model was loaded again", 8)
    model.write(3)
    model.load("versions")
    model.refused("runs on version 2, which requests without a version no longer reach", 7)
    model.refused("has ended: the model was loaded again", 8)
    assert model.ask(7, 2) > first
    model.ask(9, sequence_start=True)
    model.choose([1, 2])
    model.load("versions")
    model.refused("has ended: the model was loaded again", 9)


def test_many_clients_at_once(server: Running) -> None:
    import tritonclient.http

    def talk(seed: int) -> None:
        client, right = tritonclient.http.InferenceServerClient(server.http), History()
        for step in range(6):
            x = chunk(1 + step % 2, float(seed))
            given = tritonclient.http.InferInput("x", list(x.shape), "FP32")
            given.set_data_from_numpy(x)
            flags = {"sequence_start": step == 0, "sequence_end": step == 5}
            found = client.infer("history", [given], sequence_id=f"client {seed}", **flags).as_numpy("total")
            np.testing.assert_array_equal(found, right.total(x))
        client.close()

    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        list(pool.map(talk, range(32)))


def test_nothing_failed_inside(server: Running) -> None:
    assert "Traceback" not in server.log
