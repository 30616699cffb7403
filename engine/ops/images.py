"""ImageDecoder, which decodes the bytes of an image file: its spec and evaluation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from engine.errors import ModelError
from engine.ir import Node
from engine.ops.reference import compile_onnx
from engine.ops.registry import Evaluator, compiles
from engine.ops.spec import OperatorSpec, check_choice, specifies
from engine.startup import dataclass


@specifies("ImageDecoder")
@dataclass(frozen=True, slots=True, kw_only=True)
class ImageDecoderSpec(OperatorSpec):
    """The pixels of an encoded image (ONNX ImageDecoder-20)."""

    pixel_format: str

    @classmethod
    def resolve(cls, node: Node, given: dict[str, Any]) -> None:
        check_choice(node, "pixel_format", given["pixel_format"], ("RGB", "BGR", "Grayscale"))


@compiles("ImageDecoder")
def _compile_image_decoder(node: Node) -> Evaluator:
    ImageDecoderSpec.of(node)
    decode = compile_onnx(node)

    def run(inputs: Sequence[Any]) -> tuple[Any, ...]:
        try:
            return decode(inputs)
        except (OSError, SyntaxError, ValueError) as e:  # PIL's errors for data that is not an image
            raise ModelError(f"{len(inputs[0])} bytes are not an image that can be decoded: {type(e).__name__}") from e

    return run
