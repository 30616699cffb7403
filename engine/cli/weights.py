"""Options and output of commands that compress weights."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from engine.cli.options import UsageError, count

if TYPE_CHECKING:
    from engine.ir import Model
    from engine.passes import CompressedModel


def add_weights(parser: argparse.ArgumentParser, default: str | None) -> None:
    """Add `--weights`, whose default is None if the command compresses only on request, and the options that belong to
    it.
    """
    what = "compress the weights of matrix products to int4 or int8"
    parser.add_argument(
        "--weights",
        metavar="TYPE",
        choices=("int4", "int8"),
        default=default,
        help=f"{what} (default: {default})" if default else f"{what} before compiling, and print the error per layer",
    )
    parser.add_argument(
        "--weights-group",
        metavar="N",
        type=count,
        help="how many elements of a column share a scale; 0: all of them (default: 128)",
    )
    parser.add_argument("--asymmetric", action="store_true", help="compress with a zero point for each group")
    parser.add_argument("--embeddings", action="store_true", help="also compress the tables of embeddings")
    for option, what in (("include", "compress only the matrices"), ("exclude", "do not compress the matrices")):
        parser.add_argument(
            f"--{option}",
            metavar="PATTERN",
            action="append",
            default=[],
            help=f"{what} of nodes with such a name, in which * stands for any characters; may be given several times",
        )


def compressed(model: Model, args: argparse.Namespace) -> CompressedModel:
    """The model with the weights that the arguments ask for. Raises `PassError`."""
    from engine.passes import compress_weights

    return compress_weights(
        model,
        args.weights,
        group=128 if args.weights_group is None else args.weights_group,
        symmetric=not args.asymmetric,
        embeddings=args.embeddings,
        include=args.include or "*",
        exclude=args.exclude,
    )


def check_weights(args: argparse.Namespace) -> None:
    """Raise `UsageError` if an option is given that has no meaning without `--weights`."""
    given = {
        "--weights-group": args.weights_group is not None,
        "--asymmetric": args.asymmetric,
        "--embeddings": args.embeddings,
        "--include": args.include,
        "--exclude": args.exclude,
    }
    without = [option for option, is_given in given.items() if is_given]
    if args.weights is None and without:
        raise UsageError(f"{without[0]} has a meaning only with --weights TYPE")


def as_json(found: CompressedModel) -> dict[str, Any]:
    """The report of a compression, for programs."""
    layers = [{**asdict(layer), "element_type": layer.element_type.name} for layer in found.layers]
    return {
        "layers": layers,
        "skipped": [asdict(layer) for layer in found.skipped],
        "bytes_before": found.bytes_before,
        "bytes_after": found.bytes_after,
    }
