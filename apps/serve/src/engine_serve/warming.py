"""Inferences of a model before it is ready, so that no client waits for what a device prepares for its shapes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np

from engine.errors import RepositoryError
from engine.plugin_api import Port
from engine_serve.generative_model import IDS, GenerativeModel
from engine_serve.model_config import CONFIG_FILE, Warmup
from engine_serve.served_model import ServedModel
from engine_serve.tensors import Array

Shapes = Mapping[str, Sequence[int]]


def warm_up(model: ServedModel, warmup: Warmup) -> None:
    """Run what `[warmup]` says, on the current thread.

    Raises `RepositoryError`, naming the model and the inputs, if a run fails.
    """
    if isinstance(model, GenerativeModel):
        for tokens in (*(warmup.prompt_tokens or (None,)), 1):  # a prompt of one token has plans of its own
            what = "prompts" if tokens is None else f"prompts of {tokens} tokens"
            _attempt(model, f"{what} (input `{IDS}`)", partial(model.warm_up, tokens))
        return
    required = [port for port in model.network.inputs if port not in model.network.overridable]
    runs = [{port.name: _shape(model, port, shapes) for port in required} for shapes in _known(model, required, warmup)]
    request = model.network.create_infer_request() if model.sequences is not None else None
    for shapes in runs:
        for rows in _rows(model, required, shapes):
            listed = ", ".join(f"`{name}` {list(shape)}" for name, shape in rows.items())
            run = partial(_run, model.network if request is None else request.infer, required, rows)
            _attempt(model, f"inputs of zeros, {listed},", run)
    model.begin_statistics()


def _run(infer: Callable[[object], object], required: Sequence[Port], shapes: Shapes) -> None:
    infer({port.name: _zeros(port, shapes[port.name]) for port in required})


def _attempt(model: ServedModel, what: str, call: Callable[[], object]) -> None:
    try:
        call()
    except Exception as e:  # also of numpy, if there is no memory for such inputs, and of a plugin
        raise RepositoryError(
            f"model `{model.name}`: the warm-up with {what} failed: {type(e).__name__}: {e}; change [warmup] in "
            f"{CONFIG_FILE}"
        ) from e


def _known(model: ServedModel, required: Sequence[Port], warmup: Warmup) -> Sequence[Shapes]:
    """The shapes of each run. Raises `RepositoryError` for an input that the model does not have."""
    names = [port.name for port in required]
    for shapes in warmup.shapes:
        for name in shapes:
            if name not in names:
                raise RepositoryError(
                    f"model `{model.name}`: [warmup] has a shape of {name!r:.80}, which is not an input of the model; "
                    f"its inputs are {', '.join(names) or 'none'}"
                )
    return warmup.shapes or ({},)


def _shape(model: ServedModel, port: Port, shapes: Shapes) -> tuple[int, ...]:
    """The shape of an input: the given one, or the model's."""
    if port.name in shapes:
        return tuple(shapes[port.name])
    if not port.shape.is_static:
        raise RepositoryError(
            f"model `{model.name}`: [warmup] needs a shape of input `{port.name}`, which is {port.shape} in the model"
        )
    return tuple(dim.min for dim in port.shape)


def _rows(model: ServedModel, required: Sequence[Port], shapes: Shapes) -> Sequence[Shapes]:
    """These shapes; with the rows of each batch that requests of them make, if the device makes batches."""
    if model.batch_runs() is None or not all(shapes.values()):
        return [shapes]
    if any(port.shape.rank.is_static and port.shape[0].is_static for port in required):
        return [shapes]
    most = int(model.network.get_metric("MAX_BATCH_SIZE"))
    return [
        {name: (count * shape[0], *shape[1:]) for name, shape in shapes.items()}  # a batch of so many requests
        for count in range(1, most + 1)
    ]


def _zeros(port: Port, shape: Sequence[int]) -> Array:
    """An input without data; texts are empty."""
    return np.full(shape, "", object) if port.dtype == object else np.zeros(shape, port.dtype)
