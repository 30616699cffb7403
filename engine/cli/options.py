"""Options shared by several commands, and the syntax of their values."""

from __future__ import annotations

import argparse
import math
import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from engine.preprocessing import StepsText

MODEL_OR_BLOB: Final = "an ONNX model, or a blob that `engine compile` wrote"


_DIMENSION: Final = re.compile(r"\?|\d{1,19}(\.\.\d{0,19})?|[A-Za-z_]\w*(:\d{1,19}\.\.\d{0,19})?", re.ASCII)


# A name is at the beginning, and after the colon and the commas of a list; ids after a dot keep their case.
_NAME_IN_DEVICE: Final = re.compile(r"(?:^|(?<=[:,]))[A-Za-z]\w*", re.ASCII)

_DEVICE_HELP: Final = (
    "such as CPU, OPENCL.1, HETERO:OPENCL,CPU or BATCH:CPU(16); by default, the blob's device, or "
    "AUTO, which chooses one"
)


class UsageError(Exception):
    """Arguments are valid individually but not in combination."""


def add_device(parser: argparse.ArgumentParser, *, help: str = _DEVICE_HELP) -> None:
    """Add `-d DEVICE`, the device to run on."""
    parser.add_argument("-d", "--device", metavar="DEVICE", type=device_name, help=help)


def add_config(parser: argparse.ArgumentParser) -> None:
    """Add the option `-c KEY=VALUE`, which may be given several times."""
    parser.add_argument(
        "-c",
        "--config",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        type=key_and_value,
        help="set a config key of the device; may be given several times. `engine devices DEVICE` lists the keys",
    )


def add_trust(parser: argparse.ArgumentParser) -> None:
    """Add the options for blobs that are signed, encrypted, or have no weights of their own."""
    parser.add_argument(
        "--trusted-key",
        metavar="FILE",
        action="append",
        default=[],
        help="a key whose signature makes a blob trusted, as `engine keygen` writes it; may be given several times",
    )
    parser.add_argument(
        "--require-signature", action="store_true", help="refuse a blob without a signature by one of these keys"
    )
    parser.add_argument(
        "--release",
        metavar="NAME:VERSION",
        help="refuse a blob unless one of these keys has signed it as this version of the name, or a later one",
    )
    parser.add_argument("--decrypt", metavar="FILE", help="the key with which the blob was encrypted")
    parser.add_argument(
        "--weights-from",
        metavar="FILE",
        help="the model or blob that has the weights of this blob, which was compiled with this option",
    )


def add_extension(parser: argparse.ArgumentParser) -> None:
    """Add `--extension`, which adds operators that models use."""
    parser.add_argument(
        "--extension",
        metavar="PATH_OR_MODULE",
        action="append",
        default=[],
        help="add operators that models use: a module or module:name, a .py file, or a shared library with kernels; "
        "runs their code; may be given several times",
    )


def add_inputs(parser: argparse.ArgumentParser, *, shape_of_blob: bool = True) -> None:
    """Add the options for input values; `shape_of_blob`: the command also takes blobs."""
    parser.add_argument(
        "-i",
        "--input",
        metavar="[NAME=]FILE",
        action="append",
        default=[],
        help="values of inputs: an .npz archive, a folder with input_0.pb and so on, or NAME=FILE with a .npy or .pb "
        "file, an image (x=photo.png), or raw bytes in a .bin file; - is standard input; may be given several times. "
        "An image is resized to the height and width of the input, bilinearly and not cropped, so that its proportions "
        "may change; its pixels are 0 to 255, or 0 to 1 for an input of floating-point numbers. Inputs without a "
        "file are random; their open batch is 1",
    )
    for option, default, what in (("--image-mean", "0", "to subtract from"), ("--image-std", "1", "that divide")):
        parser.add_argument(
            option,
            metavar="X,..",
            type=numbers,
            default=default,
            help=f"for floating-point inputs: numbers {what} an image's channels, from 0 to 1 (default: {default})",
        )
    of_blob = " An input of a blob keeps its shape; a random value for it has this one"
    add_shape(parser, of_blob if shape_of_blob else "")
    add_preprocess(parser)
    parser.add_argument("--seed", metavar="N", type=count, default=0, help="seed of random inputs (default: 0)")


def add_shape(parser: argparse.ArgumentParser, more: str = "") -> None:
    """Add `--shape`, which fixes shapes of inputs before compiling."""
    parser.add_argument(
        "--shape",
        metavar="NAME=DIMS",
        action="append",
        default=[],
        type=name_and_shape,
        help="give an input of the model this shape before compiling, such as x=1,3,224,224, or x=N,3,224,224 where N "
        f"stands for any length; may be given several times.{more}",
    )


def add_tolerances(parser: argparse.ArgumentParser) -> None:
    """Add `--rtol` and `--atol`, by which outputs may differ from the expected ones."""
    parser.add_argument("--rtol", metavar="X", type=amount, default=1e-3, help="relative tolerance (default: 0.001)")
    parser.add_argument("--atol", metavar="X", type=amount, default=1e-5, help="absolute tolerance (default: 0.00001)")


def add_preprocess(parser: argparse.ArgumentParser) -> None:
    """Add `--preprocess`, which adds steps to the model."""
    parser.add_argument(
        "--preprocess",
        metavar="NAME=STEPS",
        action="append",
        default=[],
        type=name_and_steps,
        help="steps that become part of the model: before an input, from what the application passes, such as "
        "'x=input(u8, NHWC).resize([224, 224]).mean(127.5).scale(58)', or after an output, such as "
        "'y=output().softmax().top_k(5)'. They are the methods of engine.PrePostProcessor; may be given several times. "
        "--shape gives the model's shape before the steps, input(shape=[1, 480, 640, 3]) the shape of the "
        "application's tensor",
    )


def add_json(parser: argparse.ArgumentParser) -> None:
    """Add `--json`, which prints one JSON object instead of text."""
    parser.add_argument("--json", action="store_true", help="print one JSON object, for programs")


def device_name(text: str) -> str:
    """Return a device string with its names in upper case: `OPENCL.gpu-0` for `opencl.gpu-0`."""
    return _NAME_IN_DEVICE.sub(lambda match: match[0].upper(), text)


def key_and_value(text: str) -> tuple[str, str]:
    """Parse `KEY=VALUE`; the value may contain further `=` signs."""
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise argparse.ArgumentTypeError(f"expected KEY=VALUE, got {text!r}")
    return key, value


def name_and_shape(text: str) -> tuple[str, tuple[int | str, ...]]:
    """Parse `NAME=1,3,224` or `NAME=N,3,?`; an empty shape stands for a scalar."""
    name, equals, dims = text.rpartition("=")
    lengths = tuple(int(dim) if dim.isdecimal() and dim.isascii() else dim for dim in dims.split(",") if dims)
    is_valid = all(_DIMENSION.fullmatch(dim) for dim in dims.split(",")) if dims else True
    if not name or not equals or not is_valid:
        raise argparse.ArgumentTypeError(
            f"expected NAME=DIMS such as x=1,3,224,224 or x=N,3,1..8,? (a symbol, a range, any length), got {text!r}"
        )
    return name, lengths


def name_and_steps(text: str) -> StepsText:
    """Parse preprocessing steps, `NAME=input(..).STEP(..)..` or `NAME=output(..).STEP(..)..`."""
    from engine.errors import PreprocessingError
    from engine.preprocessing import parse_steps

    try:
        return parse_steps(text)
    except PreprocessingError as e:
        raise argparse.ArgumentTypeError(str(e)) from None


def numbers(text: str) -> tuple[float, ...]:
    """Parse finite numbers, such as `0.485,0.456,0.406`."""
    try:
        found = tuple(map(float, text.split(",")))
    except ValueError:
        found = ()
    if not found or not all(map(math.isfinite, found)):
        raise argparse.ArgumentTypeError(f"expected numbers such as 0.485,0.456,0.406, got {text!r}")
    return found


def count(text: str) -> int:
    """Parse an integer of 0 or more."""
    number = int(text) if text.isascii() and text.isdecimal() else -1
    if number < 0:
        raise argparse.ArgumentTypeError(f"expected a whole number, 0 or more, got {text!r}")
    return number


def positive(text: str) -> int:
    """Parse an integer of 1 or more."""
    number = int(text) if text.isascii() and text.isdecimal() else 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number, 1 or more, got {text!r}")
    return number


def amount(text: str) -> float:
    """Parse seconds or a tolerance: a finite number of 0 or more."""
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 <= number < float("inf"):
        raise argparse.ArgumentTypeError(f"expected a number, 0 or more, got {text!r}")
    return number
