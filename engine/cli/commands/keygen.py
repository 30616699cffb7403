"""`engine keygen`: a key that signs or encrypts blobs."""

from __future__ import annotations

import argparse

from engine.cli.options import add_json
from engine.cli.output import print_json, say

SUMMARY = "make a key that signs or encrypts blobs"
DESCRIPTION = """\
Make a key, and write it to a file that only you can read. A key of ed25519 has two files: the private key signs blobs
where they are made; the public key, in FILE.pub, verifies them where they are used. It needs the package cryptography
(`engine-sdk[sign]`). A key of hmac-sha256 is one secret for both: whoever can verify a blob can also forge one. A key
of aes-256-gcm encrypts and decrypts, and also needs the package cryptography. Existing files are not overwritten. To
replace a key, trust the new one beside it until no blob needs the old one.
"""
EXAMPLES = """\
engine keygen release-2026                           # writes release-2026.key and release-2026.key.pub here
engine keygen staging --algorithm hmac-sha256        # one secret, which signs and verifies
engine keygen model-2026 --algorithm aes-256-gcm     # one secret, which encrypts and decrypts
engine keygen release-2026 -o /etc/engine/release.key  # elsewhere
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("id", metavar="ID", help="the key's name in blobs: letters, digits, `.`, `_` and `-`")
    parser.add_argument(
        "--algorithm",
        choices=("ed25519", "hmac-sha256", "aes-256-gcm"),
        default="ed25519",
        help="the algorithm (default: ed25519)",
    )
    parser.add_argument("-o", "--output", metavar="FILE", help="the file of the key (default: ID.key)")
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    from engine.blob import make_key_files
    from engine.cli.networks import require_folder

    target = f"{args.id}.key" if args.output is None else args.output
    require_folder(target)
    files = make_key_files(target, args.id, args.algorithm)
    if args.json:
        print_json({"key": args.id, "algorithm": args.algorithm, "files": files})
        return 0
    kinds = ("the private key, for `engine compile --sign`", "the public key, for `--trusted-key` and TRUSTED_KEYS")
    secret = "the secret key, for both"
    if args.algorithm == "aes-256-gcm":
        secret = "the secret key, for `engine compile --encrypt` and `--decrypt`"
    for file, kind in zip(files, kinds if len(files) == 2 else (secret,), strict=True):
        say(f"wrote {file}: {kind}")
    return 0
