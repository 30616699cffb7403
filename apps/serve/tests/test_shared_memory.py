"""Tensors in shared memory, with Triton's client. If this fails, clients read wrong numbers, or end the server."""

from __future__ import annotations

import itertools
import json
import os
import queue
import shutil
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from engine_serve import shared_memory
from engine_serve.shared_memory import Regions

from apps.serve.tests.conftest import Running, dense, expected, running, slow, wait_for, write
from apps.serve.tests.test_generation_served import CONFIG, DECODER, PROMPTS
from apps.serve.tests.test_protocol import echoes, refusal
from apps.serve.tests.test_sequences import history
from engine import ops
from engine.errors import Busy, InputError, NotAllowedError, OutOfMemoryError
from engine.ir import Model, Parameter, Result, f16, f32
from engine.testing.behaviour.states import History, chunk

pytestmark = pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="needs the shared memory of Linux")

ROW = 64
"""The bytes of a row of `dense`'s input; a row of its output has 32."""
_numbers = itertools.count()


def pair() -> Model:
    """The same values as float32 and as float16."""
    x = Parameter(f32, ["N"], "x")
    half = ops.Cast(x, to=f16)
    return Model([Result(ops.Identity(x), "same"), Result(half, "half")], [x], name="pair")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("shared") / "models"
    for name, model in (("dense", dense()), ("echoes", echoes()), ("slow", slow(5_000_000)), ("pair", pair())):
        write(folder, name, model, 'device = "CPU"\n')
    (folder / "llama").mkdir()
    for path in DECODER.parent.glob(DECODER.name + "*"):
        shutil.copy(path, folder / "llama" / path.name.replace(DECODER.name, "model.onnx"))
    (folder / "llama" / "config.toml").write_text(CONFIG)
    with running(folder, "--shared-memory", "--max-body", "1", "--max-answer", "1") as found:
        yield found


@pytest.fixture(params=["http", "grpc"])
def client(server: Running, request: pytest.FixtureRequest) -> Iterator[tuple[Any, Any]]:
    import tritonclient.grpc as over_grpc
    import tritonclient.http as over_http

    module, address = (over_http, server.http) if request.param == "http" else (over_grpc, server.grpc)
    made = module.InferenceServerClient(address)
    yield module, made
    made.unregister_system_shared_memory()
    made.close()


@contextmanager
def memory(size: int) -> Iterator[tuple[Any, str]]:
    """An object of shared memory, by Triton's module, and its key."""
    from tritonclient.utils import shared_memory as triton

    key = f"/engine_test_{os.getpid()}_{next(_numbers)}"
    handle = triton.create_shared_memory_region("unused", key, size, create_only=True)
    try:
        yield handle, key
    finally:
        triton.destroy_shared_memory_region(handle)


def rows(count: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal((count, 16)).astype(np.float32)


def given(module: Any, shape: list[int], *where: Any, name: str = "x", datatype: str = "FP32") -> Any:
    """An input in a region: its name, size and offset."""
    tensor = module.InferInput(name, shape, datatype)
    tensor.set_shared_memory(*where)
    return tensor


def asked(module: Any, *where: Any, name: str = "y") -> Any:
    output = module.InferRequestedOutput(name)
    output.set_shared_memory(*where)
    return output


def test_inputs_and_outputs(client: tuple[Any, Any]) -> None:
    """As in Triton's examples: one object for both, an offset of the region, and one in it; 2,000 rows are large."""
    from tritonclient.utils import shared_memory as triton

    module, made = client
    for count in (1, 2000):
        x = rows(count, count)
        with memory(128 + count * 96) as (handle, key):
            made.register_system_shared_memory("in", key, 64 + count * ROW, offset=64)
            made.register_system_shared_memory("out", key, count * 32, offset=128 + count * ROW)
            triton.set_shared_memory_region(handle, [x], offset=128)
            result = made.infer(
                "dense",
                [given(module, [count, 16], "in", count * ROW, 64)],
                outputs=[asked(module, "out", count * 32)],
            )
            described = result.get_output("y")
            y = triton.get_contents_as_numpy(handle, np.float32, [count, 8], offset=128 + count * ROW).copy()
            np.testing.assert_allclose(y, expected(x), atol=1e-4)
            if module.__name__.endswith("http"):
                assert described == {"name": "y", "shape": [count, 8], "datatype": "FP32"}
            else:
                assert described.parameters["shared_memory_byte_size"].int64_param == count * 32
            made.unregister_system_shared_memory("in")
            made.unregister_system_shared_memory("out")


def test_there_is_no_memory_of_cuda(client: tuple[Any, Any]) -> None:
    """Triton's perf_analyzer lists and unregisters it in any case."""
    from tritonclient.utils import InferenceServerException

    module, made = client
    is_http = module.__name__.endswith("http")
    found = made.get_cuda_shared_memory_status() if is_http else made.get_cuda_shared_memory_status(as_json=True)
    assert found == ([] if is_http else {})
    made.unregister_cuda_shared_memory()
    with pytest.raises(InferenceServerException, match="use shared memory of the system"):
        made.register_cuda_shared_memory("gpu", b"aGFuZGxl", 0, 64)


def test_some_tensors_in_shared_memory_and_others_not(client: tuple[Any, Any]) -> None:
    """Their places in the message differ from those of the tensors. Texts have their lengths before them."""
    from tritonclient.utils import serialize_byte_tensor
    from tritonclient.utils import shared_memory as triton

    module, made = client
    values = {
        "half": (np.array([0.5, -2.0], np.float16), "FP16"),
        "bytes": (np.array([0, 255], np.uint8), "UINT8"),
        "long": (np.array([-(2**60), 3], np.int64), "INT64"),
        "flag": (np.array([True, False]), "BOOL"),
        "text": (np.array(["grün".encode(), b""], object), "BYTES"),
    }
    with memory(4096) as (handle, key):
        made.register_system_shared_memory("all", key, 4096)
        for shared in (("long", "text"), ("half",), tuple(values)):
            inputs, outputs, offset = [], [], 0
            for name, (value, datatype) in values.items():
                raw = serialize_byte_tensor(value).item() if datatype == "BYTES" else value.tobytes()
                if name in shared:
                    handle._mpsm_handle.buf[offset : offset + len(raw)] = raw
                    inputs.append(given(module, [2], "all", len(raw), offset, name=name, datatype=datatype))
                    outputs.append(asked(module, "all", 64, 1024 + 8 * offset, name=f"{name}_out"))
                else:
                    tensor = module.InferInput(name, [2], datatype)
                    tensor.set_data_from_numpy(value)
                    inputs.append(tensor)
                    outputs.append(module.InferRequestedOutput(f"{name}_out"))
                offset += 64
            result = made.infer("echoes", inputs, outputs=outputs)
            for place, (name, (value, datatype)) in enumerate(values.items()):
                if name in shared:
                    kind = np.object_ if datatype == "BYTES" else value.dtype
                    found = triton.get_contents_as_numpy(handle, kind, [2], 1024 + 8 * 64 * place).copy()
                else:
                    found = result.as_numpy(f"{name}_out")
                np.testing.assert_array_equal(found, value)


def test_an_empty_tensor(client: tuple[Any, Any]) -> None:
    module, made = client
    with memory(64) as (_, key):
        made.register_system_shared_memory("all", key, 64)
        result = made.infer("pair", [given(module, [0], "all", 0)], outputs=[asked(module, "all", 0, 64, name="half")])
        assert result.get_output("half") is not None


def test_status_and_registering_again(client: tuple[Any, Any]) -> None:
    module, made = client
    is_http = module.__name__.endswith("http")
    options = {} if is_http else {"as_json": True}

    def status(name: str = "") -> Any:
        found = made.get_system_shared_memory_status(name, **options)
        return found if is_http else list(found.get("regions", {}).values())

    with memory(4096) as (_, key), memory(4096) as (_, other):
        assert status() == []
        made.register_system_shared_memory("first", key, 100, offset=8)
        made.register_system_shared_memory("second", key, 4096)
        found = {each["name"]: each for each in status()}
        assert (set(found), len(status("first"))) == ({"first", "second"}, 1)
        assert (found["first"]["key"], int(found["first"]["byte_size"]), int(found["first"]["offset"])) == (key, 100, 8)
        for again in (key, other):
            assert "already" in refusal(made.register_system_shared_memory, "first", again, 100)[1]
        assert "no region 'third'" in refusal(status, "third")[1]
        made.unregister_system_shared_memory("third")  # as in Triton, no error
        made.unregister_system_shared_memory("first")
        made.register_system_shared_memory("first", other, 4)
        made.unregister_system_shared_memory()
        assert status() == []
    assert "system_shared_memory" in str(made.get_server_metadata())


def test_registrations_that_are_refused(client: tuple[Any, Any], server: Running) -> None:
    """A key is the name of an object, and never a path."""
    _, made = client
    folder = Path("/dev/shm")
    link, inner = folder / f"engine_link_{os.getpid()}", folder / f"engine_folder_{os.getpid()}"
    pipe = folder / f"engine_pipe_{os.getpid()}"
    link.symlink_to("/etc/hostname")
    inner.mkdir()
    os.mkfifo(pipe)
    try:
        with memory(4096) as (_, key):
            for name, wrong, size, offset, said in (
                ("r", "/no_such_object", 8, 0, "there is no shared memory object"),
                ("r", "../../etc/passwd", 8, 0, "path separators"),
                ("r", "//etc/passwd", 8, 0, "path separators"),
                ("r", f"{inner.name}/x", 8, 0, "path separators"),
                ("r", "..", 8, 0, "path separators"),
                ("r", "/", 8, 0, "path separators"),
                ("r", "a\0b", 8, 0, "path separators"),
                ("r", "a" * 256, 8, 0, "path separators"),
                ("r", link.name, 8, 0, "is not that of a shared memory object"),
                ("r", inner.name, 8, 0, "is not that of a shared memory object"),
                ("r", pipe.name, 8, 0, "is not that of a shared memory object"),
                ("r", key, 4097, 0, "end beyond the shared memory"),
                ("r", key, 4096, 1, "end beyond the shared memory"),
                ("r", key, 0, 0, "`byte_size`"),
                ("r" * 256, key, 8, 0, "at most 255 characters"),
            ):
                status, message = refusal(made.register_system_shared_memory, name, wrong, size, offset)
                assert said in message
                assert status in ("400", "StatusCode.INVALID_ARGUMENT"), (status, message)
        for body in (
            b"[]",
            b"{",
            b"{}",
            b'{"key": 3, "byte_size": 8}',
            b'{"key": "k", "byte_size": true}',
            b'{"key": "k", "byte_size": 8, "offset": -1}',
            b'{"key": "k", "byte_size": 8, "device": 1}',
        ):
            request = urllib.request.Request(f"http://{server.http}/v2/systemsharedmemory/region/r/register", body)
            with pytest.raises(urllib.error.HTTPError) as caught:
                urllib.request.urlopen(request, timeout=20)
            assert (caught.value.code, "InputError" in json.load(caught.value)["error"]) == (400, True)
    finally:
        link.unlink()
        inner.rmdir()
        pipe.unlink()
    assert "Traceback" not in server.log


def test_requests_that_are_refused(client: tuple[Any, Any], server: Running) -> None:
    from tritonclient.utils import shared_memory as triton

    module, made = client
    x = rows(2)
    with memory(2 << 20) as (handle, key):
        made.register_system_shared_memory("small", key, 128)
        made.register_system_shared_memory("same", key, 256)
        made.register_system_shared_memory("large", key, 2 << 20)
        triton.set_shared_memory_region(handle, [x])
        right = given(module, [2, 16], "small", 128)
        for inputs, outputs, said in (
            ([given(module, [2, 16], "unknown", 128)], None, "no region 'unknown'"),
            ([given(module, [2, 16], "small", 129)], None, "end beyond region 'small'"),
            ([given(module, [2, 16], "small", 128, 1)], None, "end beyond region 'small'"),
            ([given(module, [2, 16], "small", 128, -64)], None, "`shared_memory_offset`"),
            ([given(module, [2, 16], "small", -128)], None, "`shared_memory_byte_size`"),
            ([given(module, [2, 16], "small", 64)], None, "16 elements"),
            ([given(module, [2, 16], "small", 126)], None, "expected a multiple of 4"),
            ([given(module, [1 << 14, 16], "large", 1 << 20), right], None, "TooLargeError"),
            ([given(module, [2, 16], "small", 128, datatype="INT32")], None, "expected FP32"),
            ([right], [asked(module, "unknown", 64)], "no region 'unknown'"),
            ([right], [asked(module, "small", 64, 65)], "end beyond region 'small'"),
            ([right], [asked(module, "small", 63)], "output 'y' has 64 bytes"),
        ):
            status, message = refusal(made.infer, "dense", inputs, outputs=outputs)
            assert said in message, message
            assert status in ("400", "413", "StatusCode.INVALID_ARGUMENT"), (status, message)
        numbers = given(module, [4], "small", 16)
        for start in (71, 8, 0):
            both = [asked(module, "small", 64, 8, name="same"), asked(module, "same", 64, start, name="half")]
            assert "the same bytes" in refusal(made.infer, "pair", [numbers], outputs=both)[1]
        np.testing.assert_array_equal(triton.get_contents_as_numpy(handle, np.float32, [2, 16]), x)
        texts = [given(module, [2], "small", 7, 64, name="text", datatype="BYTES")]
        handle._mpsm_handle.buf[64:71] = b"\4\0\0\0abc"  # ends within a text
        for name, datatype in (("half", "FP16"), ("bytes", "UINT8"), ("long", "INT64"), ("flag", "BOOL")):
            texts.append(given(module, [0], "small", 0, name=name, datatype=datatype))
        assert "end within a text" in refusal(made.infer, "echoes", texts)[1]
        np.testing.assert_allclose(made.infer("dense", [right]).as_numpy("y")[0], expected(x)[0], atol=1e-5)
    assert "Traceback" not in server.log


def test_a_language_model(client: tuple[Any, Any]) -> None:
    """It takes tokens from shared memory, also over a stream, and refuses to write to it, where nothing would be."""
    module, made = client
    prompt, options = np.array([PROMPTS[0]]), {"parameters": {"max_tokens": 5}}
    sent_tokens = module.InferInput("input_ids", [1, 4], "INT64")
    sent_tokens.set_data_from_numpy(prompt)
    right = made.infer("llama", [sent_tokens], **options).as_numpy("tokens").tolist()[0]
    with memory(4096) as (handle, key):
        handle._mpsm_handle.buf[: prompt.nbytes] = prompt.tobytes()
        made.register_system_shared_memory("r", key, 4096)
        shared = given(module, [1, 4], "r", prompt.nbytes, name="input_ids", datatype="INT64")
        assert made.infer("llama", [shared], **options).as_numpy("tokens").tolist()[0] == right
        outputs = [asked(module, "r", 40, 1024, name="tokens")]
        for tensor in (shared, sent_tokens):
            message = refusal(made.infer, "llama", [tensor], outputs=outputs, **options)[1]
            assert "does not write its tokens to shared memory" in message, message
        if module.__name__.endswith("grpc"):
            answers = queue.Queue[Any]()
            made.start_stream(lambda result, error: answers.put((result, error)))
            made.async_stream_infer("llama", [shared], **options)
            assert [answers.get(timeout=30)[0].as_numpy("tokens").item() for _ in right] == right
            made.async_stream_infer("llama", [shared], outputs=outputs, **options)
            assert "does not write its tokens to shared memory" in str(answers.get(timeout=30)[1])
            dense_input = given(module, [1, 16], "unknown", ROW)
            made.async_stream_infer("dense", [dense_input])
            assert "no region 'unknown'" in str(answers.get(timeout=30)[1])
            made.stop_stream()


def test_data_and_a_region(server: Running) -> None:
    tensor = {"name": "x", "shape": [1, 16], "datatype": "FP32", "data": [1.0] * 16}
    for more, said in (
        ({"shared_memory_region": "r", "shared_memory_byte_size": 64}, "both data and a `shared_memory_region`"),
        ({"shared_memory_byte_size": 64}, "needs `shared_memory_region`"),
    ):
        body = json.dumps({"inputs": [tensor | {"parameters": more}]}).encode()
        with pytest.raises(urllib.error.HTTPError) as caught:
            urllib.request.urlopen(f"http://{server.http}/v2/models/dense/infer", body, timeout=20)
        assert (caught.value.code, said in json.load(caught.value)["error"]) == (400, True)


def test_memory_that_its_client_shortens(client: tuple[Any, Any], server: Running) -> None:
    """A mapping of it would end the server: here, the request fails, and the next one is answered."""
    module, made = client
    x = rows(2)
    for is_output in (False, True):
        with memory(8192) as (_, key):
            made.register_system_shared_memory("r", key, 8192)
            os.truncate(f"/dev/shm{key}", 4096 + 100)
            tensor = module.InferInput("x", [2, 16], "FP32")
            tensor.set_data_from_numpy(x)
            if is_output:
                call = made.infer, "dense", [tensor]
                message = refusal(*call, outputs=[asked(module, "r", 64, 4096 + 64)])[1]
            else:
                message = refusal(made.infer, "dense", [given(module, [2, 16], "r", 128, 4096)])[1]
            assert "has been shortened to 4196 bytes" in message, message
            assert os.stat(f"/dev/shm{key}").st_size == 4196
            np.testing.assert_allclose(made.infer("dense", [tensor]).as_numpy("y"), expected(x), atol=1e-5)
            made.unregister_system_shared_memory("r")
    assert server.process.poll() is None
    assert "Traceback" not in server.log


def test_memory_that_goes_while_a_request_runs(server: Running) -> None:
    """The region is unregistered, and its object shortened: the input has been read, and writing the output fails."""
    import tritonclient.http as module
    from tritonclient.utils import InferenceServerException
    from tritonclient.utils import shared_memory as triton

    made = module.InferenceServerClient(server.http, concurrency=2)
    for is_shortened in (False, True):
        x = rows(1, 5)
        with memory(4096) as (handle, key):
            triton.set_shared_memory_region(handle, [x])
            made.register_system_shared_memory("r", key, 4096)
            outputs = [asked(module, "r", 64, 1024)]
            future = made.async_infer("slow", [given(module, [1, 16], "r", 64)], outputs=outputs)
            wait_for(lambda: server.metric('engine_running_inferences{model="slow"') == 1)
            made.unregister_system_shared_memory("r")
            triton.set_shared_memory_region(handle, [x * 0])  # the request has its own copy
            if is_shortened:
                os.truncate(f"/dev/shm{key}", 0)
                with pytest.raises(InferenceServerException, match="shortened"):
                    future.get_result()
                os.truncate(f"/dev/shm{key}", 4096)
            else:
                future.get_result()
                y = triton.get_contents_as_numpy(handle, np.float32, [1, 16], 1024)
                np.testing.assert_allclose(y, np.ones((1, 16)), atol=1e-5)
    made.close()


def test_an_object_that_is_unlinked_stays_what_it_was(client: tuple[Any, Any]) -> None:
    module, made = client
    first, second = rows(1, 1), rows(1, 2)
    name = f"engine_unlinked_{os.getpid()}_{next(_numbers)}"
    for value in (first, second):
        shared = SharedMemory(name, create=True, size=ROW)
        shared.buf[:ROW] = value.tobytes()
        if value is first:
            made.register_system_shared_memory("r", name, ROW)
        shared.close()
        shared.unlink()
    result = made.infer("dense", [given(module, [1, 16], "r", ROW)])
    np.testing.assert_allclose(result.as_numpy("y"), expected(first), atol=1e-5)


def test_an_answer_above_the_limit(client: tuple[Any, Any]) -> None:
    """What is written to shared memory counts by its bytes, not by its digits."""
    module, made = client
    for count, is_refused in ((1 << 17, False), ((1 << 18) - 1, True)):
        with memory(2 << 20) as (_, key):
            made.register_system_shared_memory("r", key, 2 << 20)
            outputs = [asked(module, "r", 1 << 20, 1 << 20, name="same"), module.InferRequestedOutput("half")]
            call = made.infer, "pair", [given(module, [count], "r", count * 4)]
            if is_refused:
                assert "TooLargeError" in refusal(*call, outputs=outputs)[1]
            else:
                call[0](*call[1:], outputs=outputs)
            made.unregister_system_shared_memory("r")


def test_it_is_off_unless_asked_for(tmp_path: Path) -> None:
    import tritonclient.grpc as over_grpc
    import tritonclient.http as over_http

    write(tmp_path / "models", "dense", dense(), 'device = "CPU"\n')
    with running(tmp_path / "models") as server, memory(64) as (_, key):
        for module, address, status in (
            (over_http, server.http, ("403", "400")),
            (over_grpc, server.grpc, ("StatusCode.PERMISSION_DENIED", "StatusCode.INVALID_ARGUMENT")),
        ):
            made = module.InferenceServerClient(address)
            for call in (
                (made.register_system_shared_memory, "r", key, 64),
                (made.unregister_system_shared_memory,),
                (made.get_system_shared_memory_status,),
            ):
                found, message = refusal(*call)
                assert (found, "--shared-memory" in message) == (status[0], True), (found, message)
            found, message = refusal(made.infer, "dense", [given(module, [1, 16], "r", 64)])
            assert (found, "--shared-memory" in message) == (status[1], True), (found, message)
            made.close()


def test_regions_have_a_bound_and_close_their_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_memory, "_MAX_REGIONS", 3)
    with memory(64) as (_, key):
        open_files = len(os.listdir("/proc/self/fd"))
        regions = Regions()
        for place in range(3):
            regions.register(f"r{place}", key, 64)
        with pytest.raises(Busy, match="3 regions"):
            regions.register("r3", key, 64)
        regions.unregister("r0")
        with pytest.raises(InputError, match="end beyond"):
            regions.register("r3", key, 65)
        held = regions.find("r1").span(0, 4)
        regions.unregister()
        assert bytes(held.read()) == bytes(4)
        del held
        assert len(os.listdir("/proc/self/fd")) == open_files


def test_memory_of_another_user_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """If this fails, a server of root reads and writes everybody's shared memory."""
    with memory(64) as (_, key):
        monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
        with pytest.raises(NotAllowedError, match="another user"):
            Regions().register("r", key, 64)


def test_a_system_without_memory_for_a_region(monkeypatch: pytest.MonkeyPatch) -> None:
    """A mapping would end the server with SIGBUS when it writes to pages that do not exist yet."""

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    with memory(64) as (_, key):
        regions = Regions()
        regions.register("r", key, 64)
        monkeypatch.setattr(os, "pwrite", full)
        with pytest.raises(OutOfMemoryError, match="No space left"):
            regions.find("r").span(0, 64).write(b"1234")


ODD = [None, True, 1.0, -1, 1 << 70, "64", "", [], {}, "r\u0000", "é" * 300]


def test_odd_values_of_parameters(server: Running) -> None:
    """Each of them is refused by itself or gives the right answer, and none is an error of the server."""
    import tritonclient.http as module

    made = module.InferenceServerClient(server.http)
    x = rows(1, 7)
    with memory(4096) as (handle, key):
        handle._mpsm_handle.buf[:ROW] = x.tobytes()
        made.register_system_shared_memory("r", key, 4096)
        right = {"shared_memory_region": "r", "shared_memory_byte_size": ROW, "shared_memory_offset": 0}
        places = [(name, value) for name in right for value in ODD]
        places += [("binary_data", True), ("binary_data", 3), ("binary_data_size", ROW), ("classification", 2)]
        for (name, value), is_output in itertools.product(places, (False, True)):
            tensor = {"name": "x", "shape": [1, 16], "datatype": "FP32", "parameters": dict(right)}
            output = {"name": "y", "parameters": right | {"shared_memory_offset": 1024}}
            (output if is_output else tensor)["parameters"][name] = value
            code, answer = sent(server, "models/dense/infer", {"inputs": [tensor], "outputs": [output]})
            if code == 200:
                assert name == "binary_data", (name, value)
                y = np.frombuffer(bytes(handle._mpsm_handle.buf[1024 : 1024 + 32]), np.float32)
                np.testing.assert_allclose(y, expected(x)[0], atol=1e-5)
            else:
                assert (code, "Error: " in answer["error"]) == (400, True), (name, value, answer)
        for name, value in itertools.product(("key", "byte_size", "offset"), ODD):
            body = {"key": key, "byte_size": 8, "offset": 0} | {name: value}
            code, answer = sent(server, "systemsharedmemory/region/odd/register", body)
            assert (code, "InputError" in answer["error"]) == (400, True), (name, value, answer)
        for name, statuses in (("%00", (200,)), ("a%2Fb", (200, 404)), ("..", (200, 404)), ("%F0%9F%98%80", (200,))):
            code, _ = sent(server, f"systemsharedmemory/region/{name}/register", {"key": key, "byte_size": 8})
            assert code in statuses, name
        for method in ("GET", "DELETE", "PUT"):
            assert sent(server, "systemsharedmemory/unregister", {}, method)[0] == 405
        assert sent(server, "systemsharedmemory/region/r/status", {}, "POST")[0] == 405
        made.unregister_system_shared_memory()
    made.close()
    assert "Traceback" not in server.log


def sent(server: Running, path: str, body: Any, method: str = "POST") -> tuple[int, Any]:
    request = urllib.request.Request(f"http://{server.http}/v2/{path}", json.dumps(body).encode(), method=method)
    try:
        with urllib.request.urlopen(request, timeout=20) as response:
            text = response.read()
            return response.status, json.loads(text) if text else None
    except urllib.error.HTTPError as e:
        return e.code, json.load(e)


def test_a_sequence(tmp_path: Path) -> None:
    """An output that does not fit its region is an error after the step: the sequence has ended, as after others."""
    import tritonclient.http as module
    from tritonclient.utils import shared_memory as triton

    write(tmp_path / "models", "history", history())
    with running(tmp_path / "models", "--shared-memory") as server, memory(4096) as (handle, key):
        made, right = module.InferenceServerClient(server.http), History()
        made.register_system_shared_memory("r", key, 4096)
        for step, size in enumerate((2048, 2048, 1)):
            x = chunk(2, float(step))
            triton.set_shared_memory_region(handle, [x])
            call = made.infer, "history", [given(module, list(x.shape), "r", x.nbytes)]
            options = {
                "outputs": [asked(module, "r", size, 2048, name="total")],
                "sequence_id": 7,
                "sequence_start": step == 0,
            }
            if size == 1:
                assert "and the request gives it 1 of region" in refusal(*call, **options)[1]
                continue
            shape = call[0](*call[1:], **options).get_output("total")["shape"]
            found = triton.get_contents_as_numpy(handle, np.float32, shape, 2048).copy()
            np.testing.assert_allclose(found, right.total(x), atol=1e-5)
        message = refusal(made.infer, "history", call[2], sequence_id=7)[1]
        assert "StateError" in message, message
        made.close()


def test_thousands_of_tensors(server: Running) -> None:
    """Each has an entry of the contents or a region, and none of the outputs have bytes in common, or two of them."""
    import tritonclient.grpc as over_grpc
    from tritonclient.grpc import service_pb2

    made = over_grpc.InferenceServerClient(server.grpc)
    with memory(1 << 16) as (_, key):
        made.register_system_shared_memory("r", key, 1 << 16)
        outputs = [
            {"name": f"{n}", "parameters": {"shared_memory_region": "r", "shared_memory_byte_size": 1}}
            for n in range(7000)
        ]
        for place, output in enumerate(outputs):
            output["parameters"]["shared_memory_offset"] = place
        tensor = {"name": "x", "shape": [1, 16], "datatype": "FP32", "data": [1.0] * 16}
        for said in ("there is no output", "'17' and '6999' have the same bytes"):
            code, answer = sent(server, "models/dense/infer", {"inputs": [tensor], "outputs": outputs})
            assert (code, said in answer["error"]) == (400, True), answer
            outputs[6999]["parameters"]["shared_memory_offset"] = 17
        request = service_pb2.ModelInferRequest(model_name="dense")
        for place in range(9000):
            entry = request.inputs.add(name=f"{place}", datatype="FP32", shape=[1])
            if place % 2:
                request.raw_input_contents.append(b"1234")
            else:
                entry.parameters["shared_memory_region"].string_param = "r"
                entry.parameters["shared_memory_byte_size"].int64_param = 4
        with pytest.raises(Exception, match="there is no input"):
            made._client_stub.ModelInfer(request, timeout=20)
        made.unregister_system_shared_memory()
    made.close()
