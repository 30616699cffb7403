"""Who may use the server. If this fails, anybody may, or a client's tokens and data cross the network as plain text."""

from __future__ import annotations

import datetime
import http.client
import ipaddress
import json
import socket
import ssl
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from engine_serve.tokens import Tokens, check_tls, read_tokens

from apps.serve.tests.conftest import Running, dense, running, write
from engine.errors import ServingError

FIRST, SECOND = "first-token-of-the-server", "0123456789abcdef0123456789abcdef"


def secret(path: Path, text: str | bytes, mode: int = 0o600) -> Path:
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    path.chmod(mode)
    return path


def certificate(folder: Path, name: str = "server") -> tuple[Path, Path]:
    """A self-signed certificate for this machine's address, and its key."""
    x509 = pytest.importorskip("cryptography.x509")
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder(subject, subject, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    form = serialization.PrivateFormat.PKCS8
    data = key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())
    public = folder / f"{name}.crt"
    public.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    return public, secret(folder / f"{name}.key", data)


# -- files --------------------------------------------------------------------------------------------------------


def test_tokens_of_a_file(tmp_path: Path) -> None:
    found = read_tokens(secret(tmp_path / "tokens", f"# clients\n{FIRST}\n\n  {SECOND}  \n"))
    assert all(found.accepts(f"{scheme} {token}") for token in (FIRST, SECOND) for scheme in ("Bearer", "bearer"))
    for header in (None, "", FIRST, f"Basic {FIRST}", "Bearer", "Bearer ", f"Bearer {FIRST}x", f"Bearer {FIRST[:-1]}"):
        assert not found.accepts(header)
    assert not found.accepts("Bearer # clients")
    assert FIRST not in repr(found)


@pytest.mark.parametrize(
    ("text", "mode", "said"),
    [
        (FIRST, 0o644, "can be read by others"),
        (FIRST, 0o602, "can be written by every user"),
        ("", 0o600, "has no token"),
        ("# nothing\n", 0o600, "has no token"),
        ("short\n", 0o600, "line 1: a token has at least 16"),
        (f"{FIRST}\nwith a space in it\n", 0o600, "line 2"),
        (b"\xff\xfe" * 10, 0o600, "line 1"),
    ],
)
def test_files_of_tokens_that_are_refused(tmp_path: Path, text: str | bytes, mode: int, said: str) -> None:
    with pytest.raises(ServingError, match=said) as caught:
        read_tokens(secret(tmp_path / "tokens", text, mode))
    assert "short" not in str(caught.value).partition(":")[2], "a message shows no token"


def test_files_that_are_not_there_or_do_not_fit(tmp_path: Path) -> None:
    with pytest.raises(ServingError, match="cannot be read"):
        read_tokens(tmp_path / "nothing")
    with pytest.raises(ServingError, match="cannot be read"):
        read_tokens(tmp_path)
    (public, key), (other, _) = certificate(tmp_path), certificate(tmp_path, "other")
    assert check_tls(public, key)[0].startswith(b"-----BEGIN CERTIFICATE")
    for wrong in ((other, key), (key, key), (tmp_path / "nothing", key), (public, secret(tmp_path / "junk", "junk"))):
        with pytest.raises(ServingError, match="are not a certificate and its private key"):
            check_tls(*wrong)
    key.chmod(0o604)
    with pytest.raises(ServingError, match="can be read by others"):
        check_tls(public, key)


@pytest.mark.parametrize(
    ("options", "code", "said"),
    [
        (["--token-file", "tokens"], 3, "can be read by others"),
        (["--tls-cert", "tokens"], 2, "--tls-cert and --tls-key belong together"),
        (["--tls-cert", "tokens", "--tls-key", "nothing"], 3, "cannot be read"),
    ],
)
def test_the_command_refuses_them(tmp_path: Path, options: list[str], code: int, said: str) -> None:
    secret(tmp_path / "tokens", FIRST, 0o644)
    (tmp_path / "models").mkdir()
    command = [sys.executable, "-m", "engine", "serve", "models", "--port", "0", "--grpc-port", "0", *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (code, "")
    assert said in done.stderr
    assert "Traceback" not in done.stderr


# -- over the wire ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("access")
    write(folder / "models", "dense", dense(), 'device = "CPU"\n')
    public, key = certificate(folder)
    tokens = secret(folder / "tokens", f"{FIRST}\n{SECOND}\n")
    options = ["--tls-cert", str(public), "--tls-key", str(key), "--token-file", str(tokens)]
    with running(folder / "models", *options) as found:
        yield found


def trust(server: Running) -> Path:
    return server.log_path.parent / "server.crt"


def ask(server: Running, path: str, body: Any = None, token: str | None = None) -> tuple[int, str | None]:
    """The status, and what the client is told to send."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"https://{server.http}{path}", data)
    if token is not None:
        request.add_header("Authorization", token)
    try:
        context = ssl.create_default_context(cafile=trust(server))
        with urllib.request.urlopen(request, timeout=20, context=context) as response:
            return response.status, None
    except urllib.error.HTTPError as e:
        return e.code, e.headers["www-authenticate"]


BODY = {"inputs": [{"name": "x", "shape": [1, 16], "datatype": "FP32", "data": [1.0] * 16}]}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v2/models/dense/infer", BODY),
        ("/v2/models/dense/generate", {}),
        ("/openai/v1/completions", {}),
        ("/v2/repository/index", {}),
        ("/v2/repository/models/dense/unload", {}),
        ("/v2/models/dense", None),
        ("/v2", None),
        ("/metrics", None),
        ("/", None),
        ("/nothing", None),
        ("/v2/health/live/", None),
        ("//v2/health/live", None),
    ],
)
def test_http_without_a_token_is_refused(server: Running, path: str, body: Any) -> None:
    for token in (None, "Bearer wrong-token-of-the-server", FIRST, "Bearer"):
        assert ask(server, path, body, token) == (401, "Bearer")


def test_http_with_a_token(server: Running) -> None:
    for token in (FIRST, SECOND):
        assert ask(server, "/v2/models/dense/infer", BODY, f"Bearer {token}") == (200, None)
        assert ask(server, "/metrics", None, f"Bearer {token}") == (200, None)
    assert ask(server, "/v2/health/live") == (200, None), "of probes, which have no token"
    assert ask(server, "/v2/health/ready") == (200, None)


def test_no_plain_text_is_answered(server: Running) -> None:
    with pytest.raises((OSError, http.client.HTTPException)):
        urllib.request.urlopen(f"http://{server.http}/v2/health/live", timeout=20)


def test_grpc(server: Running) -> None:
    import grpc

    def status(method: str, token: str | None, data: bytes = b"", streams: bool = False) -> str:
        path, metadata = f"/inference.GRPCInferenceService/{method}", [("authorization", token)] if token else []
        try:
            if streams:
                list(channel.stream_stream(path)(iter([data]), metadata=metadata, timeout=20))
            else:
                channel.unary_unary(path)(data, metadata=metadata, timeout=20)
        except grpc.RpcError as e:
            return str(e.code().name)
        return "OK"

    credentials = grpc.ssl_channel_credentials(trust(server).read_bytes())
    with grpc.secure_channel(server.grpc, credentials) as channel:
        for token in (None, f"Bearer {FIRST}x", FIRST):
            for method in ("ModelInfer", "ModelReady", "ModelMetadata", "RepositoryModelUnload", "ServerMetadata"):
                assert status(method, token, b"\xff") == "UNAUTHENTICATED"
            assert status("ModelStreamInfer", token, b"\xff", streams=True) == "UNAUTHENTICATED"
        assert status("ServerLive", None) == status("ServerReady", None) == "OK"
        assert status("ModelReady", f"Bearer {SECOND}", b"\x0a\x05dense") == "OK"
        assert status("ModelInfer", f"Bearer {FIRST}", b"\x0a\x07nothing") == "NOT_FOUND"
    with grpc.insecure_channel(server.grpc) as channel:
        assert status("ServerLive", None) == "UNAVAILABLE"


def test_the_log_has_no_token_and_few_lines(server: Running) -> None:
    assert FIRST not in server.log
    assert server.log.count("must be `Bearer` and a token") <= 4
    assert "Traceback" not in server.log


def test_the_server_says_that_anybody_may_use_it(tmp_path: Path) -> None:
    write(tmp_path / "models", "dense", dense(), 'device = "CPU"\n')
    with running(tmp_path / "models", "--host", "0.0.0.0") as server:
        assert "was started without --token-file, and clients may load and unload models" in server.log


@pytest.mark.skipif(sys.platform != "linux", reason="others have one address of this machine only, unless configured")
def test_by_default_it_listens_at_one_address_of_this_machine(tmp_path: Path) -> None:
    write(tmp_path / "models", "dense", dense(), 'device = "CPU"\n')
    with running(tmp_path / "models") as server:
        for address in (server.http, server.grpc):
            host, _, port = address.partition(":")
            assert host == "127.0.0.1"
            socket.create_connection((host, int(port)), timeout=20).close()
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection(("127.0.0.2", int(port)), timeout=20)
        assert "--token-file" not in server.log


def test_a_token_is_compared_in_full(monkeypatch: pytest.MonkeyPatch) -> None:
    """All tokens are compared, by digests of one length, so that the time reveals neither which one is similar nor how
    similar it is.
    """
    import hmac

    calls: list[tuple[bytes, bytes]] = []
    compare = hmac.compare_digest
    monkeypatch.setattr(hmac, "compare_digest", lambda a, b: calls.append((a, b)) or compare(a, b))
    assert Tokens([FIRST, SECOND]).accepts(f"Bearer {FIRST}")
    assert not Tokens([FIRST, SECOND]).accepts("Bearer x")
    assert len(calls) == 4
    assert {len(each) for pair in calls for each in pair} == {32}
