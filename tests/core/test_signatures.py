"""Signed blobs: a blob signed by a trusted key is used as it was written, and no other blob is accepted as one.

If these fail, a host that runs only its own blobs runs a stranger's, or refuses its own.
"""

from __future__ import annotations

import hashlib
import io
import logging
import mmap
import os
import pickle
import struct
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx
import pytest

from engine import Core
from engine.blob import (
    FORMAT_VERSION,
    SIGNED_FORMAT_VERSION,
    BlobReader,
    BlobSignature,
    BlobWriter,
    Ed25519PrivateKey,
    Ed25519PublicKey,
    HmacKey,
    SigningKey,
    TrustedKey,
    check_blob,
    make_key_files,
    read_signing_key,
    read_trusted_keys,
)
from engine.errors import BlobCorruptError, BlobError, BlobFormatError, BlobSignatureError, UnsupportedError

Scale = Any
ALGORITHMS = ("ed25519", "hmac-sha256")
HEADER = struct.Struct("<8sQQQ32s")
posix = pytest.mark.skipif(os.name != "posix", reason="needs permissions of POSIX")


class Keys:
    """The files of one key: for signing, and for verifying."""

    def __init__(self, folder: Path, key_id: str, algorithm: str) -> None:
        self.id = key_id
        names = make_key_files(folder / f"{key_id}.key", key_id, algorithm)
        self.signing, self.trusted = names[0], names[-1]


@pytest.fixture(params=ALGORITHMS)
def keys(request: pytest.FixtureRequest, tmp_path: Path) -> Keys:
    return Keys(tmp_path, "release-1", request.param)


@pytest.fixture
def make_keys(tmp_path: Path) -> Callable[..., Keys]:
    def make(key_id: str, algorithm: str = "ed25519", folder: str = "more") -> Keys:
        (tmp_path / folder).mkdir(exist_ok=True)
        return Keys(tmp_path / folder, key_id, algorithm)

    return make


def exported(core: Core, model: onnx.ModelProto, sign: Any = None, config: Mapping[str, Any] | None = None) -> bytes:
    stream = io.BytesIO()
    core.compile_model(model, "SCALE", config).export_model(stream, sign=sign)
    return stream.getvalue()


def trust(core: Core, *keys: Keys, required: bool = False) -> None:
    core.set_property({"TRUSTED_KEYS": [each.trusted for each in keys], "REQUIRE_SIGNATURE": required})


def parts(blob: bytes) -> tuple[bytes, bytes, bytes, bytes]:
    """Header, manifest, signature (without the zeros after it) and data area."""
    _, version, size, _, _ = HEADER.unpack_from(blob)
    end = 96 + size
    if version == SIGNED_FORMAT_VERSION:
        _, id_size, signature_size = struct.unpack_from("<BBH", blob, end)
        end += 4 + id_size + signature_size + 32
    return blob[:96], blob[96 : 96 + size], blob[96 + size : end], blob[-(-end // 64) * 64 :]


def assembled(manifest: bytes, signature: bytes, data: bytes) -> bytes:
    """A blob whose hashes are right, as a forger can make them."""
    start = -(-(96 + len(manifest) + len(signature)) // 64) * 64
    head = HEADER.pack(
        b"\x93EBLOB\r\n",
        SIGNED_FORMAT_VERSION if signature else FORMAT_VERSION,
        len(manifest),
        start + len(data),
        hashlib.sha256(manifest).digest(),
    )
    return (head + hashlib.sha256(head).digest() + manifest + signature).ljust(start, b"\0") + data


def resealed(signature: bytes) -> bytes:
    """A changed signature with the right hash at its end."""
    return signature[:-32] + hashlib.sha256(signature[:-32]).digest()


# -- what is signed ---------------------------------------------------------------------------------------------


def test_a_signed_blob_is_trusted_where_its_key_is(
    core: Core, model: onnx.ModelProto, scale: Scale, keys: Keys, tmp_path: Path
) -> None:
    blob = exported(core, model, keys.signing)
    seen: list[BlobReader] = []
    import_network = scale.import_network
    scale.import_network = lambda self, reader, config: seen.append(reader) or import_network(self, reader, config)
    assert not core.check_blob(blob).is_trusted
    core.import_model(blob)
    trust(core, keys, required=True)
    path = tmp_path / "signed.blob"
    core.compile_model(model, "SCALE").export_model(path, sign=read_signing_key(keys.signing))
    for source in (blob, path, io.BytesIO(blob)):
        check = core.check_blob(source)
        core.import_model(source)
        assert check.compatible
        assert check.is_trusted
        assert check.signature is not None
        assert check.signature.key_id == "release-1"
    assert [reader.is_trusted for reader in seen] == [False, True, True, True]


def test_the_same_contents_and_key_give_the_same_bytes(core: Core, model: onnx.ModelProto, keys: Keys) -> None:
    assert exported(core, model, keys.signing) == exported(core, model, keys.signing)


def test_a_blob_without_signature_is_as_before(core: Core, model: onnx.ModelProto, keys: Keys) -> None:
    """Its format version says so; with keys, it is loaded and not trusted, unless it must be signed."""
    blob = exported(core, model)
    assert HEADER.unpack_from(blob)[1] == FORMAT_VERSION
    assert BlobReader(blob).signature is None
    signed = exported(core, model, keys.signing)
    assert HEADER.unpack_from(signed)[1] == SIGNED_FORMAT_VERSION
    assert parts(signed)[1::2] == parts(blob)[1::2]
    trust(core, keys)
    core.import_model(blob)
    assert not core.check_blob(blob).is_trusted
    trust(core, keys, required=True)
    for refuse in (lambda: core.import_model(blob), lambda: core.check_blob(blob).require()):
        with pytest.raises(BlobError, match=r"is not signed.*REQUIRE_SIGNATURE.*release-1.*engine compile --sign"):
            refuse()


# -- forgeries --------------------------------------------------------------------------------------------------


def test_a_forged_section_is_found(core: Core, model: onnx.ModelProto, keys: Keys) -> None:
    """Its hash in the manifest is signed."""
    trust(core, keys)
    blob = bytearray(exported(core, model, keys.signing))
    blob[-1] ^= 1
    with pytest.raises(BlobCorruptError):
        core.import_model(bytes(blob))


@pytest.mark.parametrize("change", [(b'"NUM_STREAMS":1', b'"NUM_STREAMS":9'), (b'"scaling"', b'"sc4ling"')])
def test_a_forged_manifest_is_an_error(
    core: Core, model: onnx.ModelProto, keys: Keys, change: tuple[bytes, bytes]
) -> None:
    trust(core, keys)
    _, manifest, signature, data = parts(exported(core, model, keys.signing, {"NUM_STREAMS": 1}))
    core.import_model(assembled(manifest, signature, data))
    assert manifest.count(change[0]) == 1
    forged = assembled(manifest.replace(*change), signature, data)
    with pytest.raises(BlobSignatureError, match="'release-1': the blob was changed after it was signed"):
        core.import_model(forged)
    check = core.check_blob(forged)
    assert not check.compatible
    assert not check.is_trusted
    assert "changed after it was signed" in check.reasons[0]


def test_other_sections_with_other_hashes_are_an_error(core: Core, model: onnx.ModelProto, keys: Keys) -> None:
    trust(core, keys)
    signed = BlobReader(exported(core, model, keys.signing))
    stream = io.BytesIO()
    writer = BlobWriter(signed.manifest)
    writer.add_section("factor", bytes(8))
    writer.write(stream)
    _, manifest, _, data = parts(stream.getvalue())
    with pytest.raises(BlobSignatureError):
        core.import_model(assembled(manifest, parts(exported(core, model, keys.signing))[2], data))


def test_the_signature_of_another_blob_is_an_error(core: Core, make_model: Any, keys: Keys) -> None:
    trust(core, keys)
    one, other = (parts(exported(core, make_model(factor), keys.signing)) for factor in (3, 4))
    assert len(one[2]) == len(other[2])
    with pytest.raises(BlobSignatureError):
        core.import_model(assembled(one[1], other[2], one[3]))


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_key_id_of_any_length_leaves_the_sections_where_they_are_read(
    core: Core, model: onnx.ModelProto, algorithm: str, make_keys: Callable[..., Keys]
) -> None:
    manifest = BlobReader(exported(core, model)).manifest
    for length in (1, 28, 29, 60, 63, 64):
        key = make_keys("k" * length, algorithm)
        writer, stream = BlobWriter(manifest), io.BytesIO()
        writer.add_section("data", b"content")
        writer.write(stream, sign=read_signing_key(key.signing))
        reader = BlobReader(stream.getvalue())
        reader.verify_signature(read_trusted_keys([key.trusted]))
        assert reader.is_trusted
        assert bytes(reader.section("data")) == b"content"


def test_a_signature_that_is_taken_off_leaves_a_blob_that_nobody_trusts(
    core: Core, model: onnx.ModelProto, keys: Keys
) -> None:
    _, manifest, _, data = parts(exported(core, model, keys.signing))
    bare = assembled(manifest, b"", data)
    trust(core, keys)
    core.import_model(bare)
    assert not core.check_blob(bare).is_trusted
    trust(core, keys, required=True)
    with pytest.raises(BlobSignatureError, match="is not signed"):
        core.import_model(bare)


def test_another_key_of_the_same_id_is_an_error(
    core: Core, model: onnx.ModelProto, keys: Keys, make_keys: Callable[..., Keys]
) -> None:
    """Of the same algorithm, or of the other one: a public key must never verify as the secret of HMAC."""
    for algorithm in ALGORITHMS:
        forger = make_keys("release-1", algorithm, f"forger-{algorithm}")
        blob = exported(core, model, forger.signing)
        trust(core, keys)
        with pytest.raises(BlobSignatureError, match="release-1"):
            core.import_model(blob)


def test_a_public_key_is_no_secret_of_hmac(core: Core, model: onnx.ModelProto, make_keys: Callable[..., Keys]) -> None:
    keys = make_keys("release-1", "ed25519")
    public = bytes.fromhex(Path(keys.trusted).read_text().split()[4])
    trust(core, keys)
    with pytest.raises(BlobSignatureError, match="by hmac-sha256, but the trusted key 'release-1' is one of ed25519"):
        core.import_model(exported(core, model, HmacKey("release-1", public)))


def test_an_unknown_key_is_like_none(
    core: Core, model: onnx.ModelProto, keys: Keys, make_keys: Callable[..., Keys], scale: Scale
) -> None:
    """The blob may be for others; where signatures are required, it is refused."""
    blob = exported(core, model, make_keys("theirs").signing)
    trust(core, keys)
    core.import_model(blob)
    check = core.check_blob(blob)
    assert (check.compatible, check.is_trusted) == (True, False)
    imports = len(scale.imported)
    trust(core, keys, required=True)
    with pytest.raises(BlobSignatureError, match=r"by key 'theirs', which is not trusted.*TRUSTED_KEYS: release-1"):
        core.import_model(blob)
    assert "signed by key 'theirs'" in core.check_blob(blob).reasons[0]
    core.set_property({"TRUSTED_KEYS": []})
    with pytest.raises(BlobSignatureError, match="TRUSTED_KEYS: none"):
        core.import_model(blob)
    assert len(scale.imported) == imports, "the plugin must not see it"


def test_several_keys_are_trusted_while_one_replaces_another(
    core: Core, model: onnx.ModelProto, make_keys: Callable[..., Keys]
) -> None:
    old, new = make_keys("release-1", "hmac-sha256"), make_keys("release-2")
    blobs = [exported(core, model, each.signing) for each in (old, new)]
    for trusted, expected in (((old,), [True, False]), ((old, new), [True, True]), ((new,), [False, True])):
        trust(core, *trusted, required=True)
        assert [core.check_blob(blob).compatible for blob in blobs] == expected
        assert [core.check_blob(blob).is_trusted for blob in blobs] == expected


# -- damage -----------------------------------------------------------------------------------------------------


def test_every_flipped_bit_and_every_truncation_of_a_signature_is_found(
    core: Core, model: onnx.ModelProto, keys: Keys
) -> None:
    """With its key or without."""
    blob = exported(core, model, keys.signing)
    header, manifest, signature, _ = parts(blob)
    start = len(header) + len(manifest)
    for is_known in (False, True):
        trust(core, *([keys] if is_known else []))
        for position in range(start, start + len(signature)):
            damaged = bytearray(blob)
            damaged[position] ^= 1 << position % 8
            with pytest.raises(BlobFormatError):
                core.import_model(bytes(damaged))
        for length in range(start, start + len(signature)):
            with pytest.raises(BlobFormatError):
                core.import_model(blob[:length])
            with pytest.raises(BlobFormatError):
                check_blob(io.BytesIO(blob[:length]))


def test_malformed_signatures_are_refused(core: Core, model: onnx.ModelProto, keys: Keys) -> None:
    """A truncated one with matching sizes and hashes, an unknown algorithm, invalid ids."""
    _, manifest, signature, data = parts(exported(core, model, keys.signing))
    number, id_size, size = struct.unpack_from("<BBH", signature)
    value = signature[4 + id_size : 4 + id_size + size]

    def forged(number: int, key_id: bytes, value: bytes) -> bytes:
        head = struct.pack("<BBH", number, len(key_id), len(value))
        return assembled(manifest, resealed(head + key_id + value + bytes(32)), data)

    assert check_blob(forged(number, b"release-1", value)).signature is not None
    for wrong in (
        (number, b"release-1", value[:-1]),
        (number, b"release-1", b""),
        (number, b"release-1", value + b"\0"),
        (0, b"release-1", value),
        (3, b"release-1", value),
        (number, b"", value),
        (number, b"release\n1", value),
        (number, b"release\xff", value),
        (number, b"x" * 65, value),
    ):
        with pytest.raises(BlobFormatError):
            BlobReader(forged(*wrong))
    with pytest.raises(BlobFormatError):
        BlobReader(
            assembled(manifest, b"", data).replace(
                struct.pack("<Q", FORMAT_VERSION), struct.pack("<Q", SIGNED_FORMAT_VERSION), 1
            )
        )


def test_a_damaged_value_of_the_right_form_is_a_wrong_signature(core: Core, model: onnx.ModelProto, keys: Keys) -> None:
    trust(core, keys)
    _, manifest, signature, data = parts(exported(core, model, keys.signing))
    _, id_size, size = struct.unpack_from("<BBH", signature)
    for position in range(4 + id_size, 4 + id_size + size, 7):
        changed = bytearray(signature)
        changed[position] ^= 1
        with pytest.raises(BlobSignatureError):
            core.import_model(assembled(manifest, resealed(bytes(changed)), data))


# -- where blobs are not imported as they are --------------------------------------------------------------------


def test_a_nested_blob_is_covered_by_the_outer_signature(core: Core, model: onnx.ModelProto, keys: Keys) -> None:
    outer = BlobWriter(BlobReader(exported(core, model)).manifest)
    outer.add_section("part", exported(core, model))
    stream = io.BytesIO()
    outer.write(stream, sign=read_signing_key(keys.signing))
    trust(core, keys, required=True)
    reader = BlobReader(stream.getvalue())
    for refused in (reader.section("part"), reader.nested("part")):
        with pytest.raises(BlobSignatureError, match="is not signed"):
            core.import_model(refused)
    reader.verify_signature(read_trusted_keys([keys.trusted]))
    reader.admit()  # as the core does before a plugin is given the blob
    assert reader.nested("part").is_trusted
    core.import_model(reader.nested("part"))


def test_networks_in_the_cache_need_no_signature(
    core: Core, model: onnx.ModelProto, keys: Keys, tmp_path: Path
) -> None:
    trust(core, keys, required=True)
    core.set_property({"CACHE_DIR": str(tmp_path / "cache")})
    hits = [core.compile_model(model, "SCALE").get_metric("LOADED_FROM_CACHE") for _ in range(2)]
    assert hits == [False, True]


@posix
def test_a_signed_blob_is_mapped_only_where_nobody_else_can_change_it(
    core: Core, model: onnx.ModelProto, scale: Scale, keys: Keys, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Otherwise it could be changed after its signature was verified."""
    path = tmp_path / "network.blob"
    core.compile_model(model, "SCALE").export_model(path, sign=keys.signing)

    def is_mapped() -> bool:
        core.import_model(path, config={"ENABLE_MMAP": True})
        return isinstance(scale.imported[-1].obj, mmap.mmap)

    trust(core, keys)
    assert is_mapped()
    path.chmod(0o666)
    assert not is_mapped()
    assert f"{path} can be written by every user" in caplog.text
    trust(core)
    assert is_mapped(), "without keys there is nothing to verify"


# -- keys -------------------------------------------------------------------------------------------------------


def test_a_key_does_not_show(core: Core, model: onnx.ModelProto, keys: Keys, caplog: pytest.LogCaptureFixture) -> None:
    """Neither in its repr, nor in logs, properties or blobs."""
    caplog.set_level(logging.DEBUG)
    secret = bytes.fromhex(Path(keys.signing).read_text().split()[4])
    key = read_signing_key(keys.signing)
    trust(core, keys)
    blob = exported(core, model, keys.signing)
    core.import_model(blob)
    said = [repr(key), str(key), f"{core._defaults}", str(core.get_property("TRUSTED_KEYS")), caplog.text]
    said += [repr(BlobReader(blob).signature), repr(read_trusted_keys([keys.trusted]))]
    assert "release-1" in said[0]
    assert "key release-1 has signed it" in caplog.text
    assert not any(secret.hex() in text or repr(secret)[2:-1] in text for text in said)
    assert secret not in blob
    assert secret.hex().encode() not in blob
    with pytest.raises(TypeError, match="cannot be pickled"):
        pickle.dumps(key)


@posix
def test_files_of_keys_are_for_their_owner(keys: Keys, tmp_path: Path) -> None:
    assert Path(keys.signing).stat().st_mode & 0o777 == 0o600
    Path(keys.signing).chmod(0o644)
    with pytest.raises(BlobSignatureError, match=r"can be read by others \(mode 0644\); use chmod 600"):
        read_signing_key(keys.signing)
    Path(keys.signing).chmod(0o600)
    Path(keys.trusted).chmod(0o602)
    with pytest.raises(BlobSignatureError, match="another user could replace the key"):
        read_trusted_keys([keys.trusted])


def test_keys_are_not_overwritten(keys: Keys, tmp_path: Path) -> None:
    before = Path(keys.signing).read_bytes()
    with pytest.raises(BlobSignatureError, match="exists, and keys are not overwritten"):
        make_key_files(keys.signing, "other", "hmac-sha256")
    (tmp_path / "free.pub").write_text("something else")
    with pytest.raises(BlobSignatureError, match=r"free\.pub exists"):
        make_key_files(tmp_path / "free", "other", "ed25519")
    assert not (tmp_path / "free").exists()
    assert Path(keys.signing).read_bytes() == before


@pytest.mark.parametrize(
    "content",
    [
        "",
        "\0" * 99,
        "-----BEGIN PRIVATE KEY-----",
        "engine-blob-key ed25519 public id",
        "engine-blob-key ed25519 secret id " + "00" * 32,
        "engine-blob-key hmac-sha256 secret id 5ec5e7",
        "engine-blob-key hmac-sha256 secret id 5ec5e7" + "xy" * 32,
        "engine-blob-key hmac-sha256 secret i/d " + "5e" * 32,
        "engine-blob-key ed25519 public id 5ec5e7",
        "engine-blob-key ed25519 private id 5ec5e7",
        "engine-blob-key hmac-sha256 secret id 5ec5e7 more",
    ],
)
def test_a_file_that_is_no_key_is_an_error_that_does_not_show_it(tmp_path: Path, content: str) -> None:
    path = tmp_path / "some.key"
    path.write_text(content)
    path.chmod(0o600)
    for read in (lambda: read_signing_key(path), lambda: read_trusted_keys([path])):
        with pytest.raises(BlobSignatureError) as caught:
            read()
        error: BaseException | None = caught.value
        while error is not None:
            assert "5ec5e7" not in str(error)
            error = error.__cause__
    for missing in (tmp_path, tmp_path / "missing", "nul\0byte"):
        with pytest.raises(BlobSignatureError, match="key file"):
            read_signing_key(missing)


def test_keys_of_the_wrong_kind_are_refused(
    core: Core, model: onnx.ModelProto, make_keys: Callable[..., Keys], tmp_path: Path
) -> None:
    keys = make_keys("release-1")
    with pytest.raises(BlobSignatureError, match="a public key cannot sign"):
        exported(core, model, keys.trusted)
    with pytest.raises(BlobSignatureError, match="trust its public key"):
        read_trusted_keys([keys.signing])
    with pytest.raises(BlobSignatureError, match="another trusted key has the id 'release-1'"):
        read_trusted_keys([keys.trusted, make_keys("release-1", folder="other").trusted])
    with pytest.raises(BlobSignatureError, match="got int"):
        exported(core, model, 3)
    target = tmp_path / "network.blob"
    with pytest.raises(BlobSignatureError, match="cannot be read"):
        core.compile_model(model, "SCALE").export_model(target, sign=tmp_path / "missing.key")
    assert not target.exists()
    core.set_property({"TRUSTED_KEYS": [str(tmp_path / "missing.key")]})
    with pytest.raises(BlobSignatureError, match="cannot be read"):
        core.import_model(exported(core, model))
    for wrong in (HmacKey, Ed25519PublicKey, Ed25519PrivateKey):
        with pytest.raises(BlobSignatureError):
            wrong("id", b"short")
        with pytest.raises(BlobSignatureError, match="key id"):
            wrong("not an id", bytes(32))


def test_a_key_that_another_program_holds(core: Core, model: onnx.ModelProto, tmp_path: Path) -> None:
    """An application's own class signs; what it returns is checked."""
    secret = HmacKey("held-elsewhere", os.urandom(32))

    class Held(SigningKey):
        algorithm, signature_size, key_id = "hmac-sha256", 32, "held-elsewhere"

        def sign(self, message: bytes) -> bytes:
            return secret.sign(message)

    reader = BlobReader(exported(core, model, Held()))
    reader.verify_signature({"held-elsewhere": secret})
    assert reader.is_trusted
    with pytest.raises(BlobSignatureError, match="must return 32 bytes"):
        exported(core, model, type("Short", (Held,), {"sign": lambda self, message: b""})())
    with pytest.raises(BlobSignatureError, match="algorithm 'rot13'"):
        exported(core, model, type("Odd", (Held,), {"algorithm": "rot13"})())
    with pytest.raises(BlobSignatureError, match="key id"):
        exported(core, model, type("Unnamed", (Held,), {"key_id": "a b"})())
    with pytest.raises(TypeError, match="sign"):
        type("Mute", (SigningKey,), {"algorithm": "hmac-sha256", "signature_size": 32, "key_id": "mute"})()


def test_without_cryptography_only_hmac_works(
    core: Core, model: onnx.ModelProto, make_keys: Callable[..., Keys], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And a blob that its key cannot verify is not imported."""
    edwards, shared = make_keys("release-1"), make_keys("release-2", "hmac-sha256")
    blob = exported(core, model, edwards.signing)
    for name in [each for each in sys.modules if each.split(".")[0] == "cryptography"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "cryptography", None)
    for needs in (
        lambda: exported(core, model, edwards.signing),
        lambda: read_trusted_keys([edwards.trusted]),
        lambda: make_keys("release-3"),
    ):
        with pytest.raises(UnsupportedError, match=r"pip install 'engine-sdk\[sign\]'; or use a key of hmac-sha256"):
            needs()
    trust(core, edwards)
    with pytest.raises(UnsupportedError):
        core.import_model(blob)
    trust(core, shared, required=True)
    core.import_model(exported(core, model, shared.signing))


def test_the_algorithms_are_the_published_ones() -> None:
    """RFC 4231, test case 6 (a key of 131 bytes), and RFC 8032, section 7.1, test 2."""
    hmac_key = HmacKey("rfc4231", b"\xaa" * 131)
    signed = hmac_key.sign(b"Test Using Larger Than Block-Size Key - Hash Key First")
    assert signed.hex() == "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54"
    private = Ed25519PrivateKey(
        "rfc8032", bytes.fromhex("4ccd089b28ff96da9db6c346ec114e0f5b8a319f35aba624da8cf6ed4fb8a6fb")
    )
    assert private.public_bytes.hex() == "3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c"
    assert private.sign(b"\x72").hex() == (
        "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da"
        "085ac1e43e15996e458f3613d0f11d8c387b2eaeb4302aeeb00d291612bb0c00"
    )
    key: TrustedKey = private.public
    assert key.verify(b"\x72", private.sign(b"\x72"))
    assert not key.verify(b"\x73", private.sign(b"\x72"))


def test_what_is_compared_takes_the_same_time_however_wrong_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """A forger who measured time would find a signature byte by byte. Time itself is not measured here."""
    import hmac

    compared = []
    monkeypatch.setattr(hmac, "compare_digest", lambda a, b: compared.append((a, b)) or False)
    key = HmacKey("id", bytes(32))
    signature = BlobSignature("hmac-sha256", "id", key.sign(b"message"), b"message")
    with pytest.raises(BlobSignatureError):
        signature.verify(key, "the blob")
    assert compared == [(key.sign(b"message"), signature.value)]


def test_a_reader_keeps_no_trust_from_other_keys(
    core: Core, model: onnx.ModelProto, keys: Keys, make_keys: Callable[..., Keys]
) -> None:
    """An application may open a blob once, and import it in two cores."""
    reader = BlobReader(exported(core, model, keys.signing))
    trust(core, keys)
    core.import_model(reader)
    assert reader.is_trusted
    trust(core, make_keys("other"))
    core.import_model(reader)
    assert not reader.is_trusted
    trust(core, make_keys("third"), required=True)
    with pytest.raises(BlobSignatureError):
        core.import_model(reader)


def test_a_manifest_alone_cannot_claim_trust(core: Core, model: onnx.ModelProto) -> None:
    signed = BlobReader(exported(core, model)).manifest
    writer = BlobWriter(replace(signed, metadata={**signed.metadata, "signature": "release-1", "is_trusted": True}))
    stream = io.BytesIO()
    writer.add_section("factor", bytes(8))
    writer.write(stream)
    assert not core.check_blob(stream.getvalue()).is_trusted
