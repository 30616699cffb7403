"""Whether an operator is one of onnxruntime's: `engine.onnx.contrib` is imported for what ONNX does not have."""

from __future__ import annotations

from engine.ops import CANONICAL_VERSIONS
from engine.startup.onnx_library import onnx


def is_known(op_type: str, domain: str) -> bool:
    """As `contrib.is_known`, whose operators have other names than ONNX's."""
    if domain in CANONICAL_VERSIONS and onnx.defs.has(op_type, domain):
        return False
    from engine.onnx import contrib

    return contrib.is_known(op_type, domain)
