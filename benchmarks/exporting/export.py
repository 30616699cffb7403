"""Exports recipes: writes NAME.EXPORTEROPSET.static|dynamic.onnx, and its inputs beside it as .npz."""

from __future__ import annotations

import contextlib
import io
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from exporting.recipe import Exported, Module, Recipe


class NotExportedError(Exception):
    """No opset worked; the message has the exporter's error at the first."""


def export(recipe: Recipe, exporter: str, folder: Path, scale: int) -> Path:
    """Write one network; return its path. Raises `NotExportedError`."""
    problem = ""
    for opset in recipe.opsets(exporter):
        for varies in (True, False):
            try:
                with _quiet():
                    made = recipe.make(scale) if opset == 0 else _of_torch(recipe, exporter, opset, scale, varies)
                return _written(recipe, exporter, made, folder)
            except _Static:
                continue
            except Exception as e:  # exporters raise anything
                problem = problem or f"{type(e).__name__}: {' '.join(str(e).split())[:300]}"
            if opset == 0:
                break
    raise NotExportedError(problem)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        yield


class _Static(Exception):
    """There is nothing that varies."""


def _of_torch(recipe: Recipe, exporter: str, opset: int, scale: int, varies: bool) -> Exported:
    import torch

    torch.manual_seed(0)
    torch.backends.mha.set_fastpath_enabled(False)  # an operator that exporters do not know
    made: Module = recipe.make(scale)
    if varies and not made.axes:
        raise _Static
    inputs = {name: torch.from_numpy(np.ascontiguousarray(value)) for name, value in made.inputs.items()}
    scripted = isinstance(made.module, torch.jit.ScriptModule)
    module = made.module.eval() if scripted else _Called(made.module, list(inputs)).eval()
    _randomize(module)
    axes: dict[str, Any] = {name: dict(of) for name, of in made.axes.items()} if varies else {}
    with torch.no_grad():
        if exporter == "script":
            model = _by_script(module, inputs, opset, axes)
        else:
            model = _by_dynamo(module, inputs, opset, axes)
    return Exported(stripped(model).SerializeToString(), made.inputs)


def _by_script(module: Any, inputs: Mapping[str, Any], opset: int, axes: Mapping[str, Any]) -> onnx.ModelProto:
    import torch

    buffer = io.BytesIO()
    torch.onnx.export(
        module, tuple(inputs.values()), buffer, opset_version=opset, dynamo=False, input_names=list(inputs),
        dynamic_axes=dict(axes) or None,
    )  # fmt: skip
    return onnx.load_model_from_string(buffer.getvalue())


def _by_dynamo(module: Any, inputs: Mapping[str, Any], opset: int, axes: Mapping[str, Any]) -> onnx.ModelProto:
    import torch

    automatic = torch.export.Dim.AUTO
    shapes = (tuple(dict.fromkeys(axes.get(name, {}), automatic) for name in inputs),) if axes else None
    program = torch.onnx.export(
        module, tuple(inputs.values()), dynamo=True, opset_version=opset, dynamic_shapes=shapes,
        input_names=list(inputs), verbose=False,
    )  # fmt: skip
    model: onnx.ModelProto = program.model_proto
    if model.opset_import[0].version != opset:
        raise ValueError(f"wrote opset {model.opset_import[0].version} instead of {opset}")
    return model


def _Called(module: Any, names: list[str]) -> Any:  # noqa: N802 - a class, made where torch is imported
    """The module called by the names of its arguments, giving a flat tuple of tensors."""
    import inspect

    import torch

    accepted = inspect.signature(module.forward).parameters
    by_name = all(name in accepted for name in names)

    class Called(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = module

        def forward(self, *values: Any) -> Any:
            found = self.inner(**dict(zip(names, values, strict=True))) if by_name else self.inner(*values)
            flat: list[Any] = []
            _flatten(found, flat)
            return tuple(flat)

    return Called()


def _flatten(value: Any, flat: list[Any]) -> None:
    import torch

    if isinstance(value, torch.Tensor):
        flat.append(value)
    elif isinstance(value, Mapping):
        for each in value.values():
            _flatten(each, flat)
    elif isinstance(value, (tuple, list)):
        for each in value:
            _flatten(each, flat)


def _randomize(module: Any) -> None:
    """Keep values at the scale of the inputs: initial weights of training let them vanish in deep networks."""
    import torch

    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, value in module.named_parameters():
            if value.dim() >= 2 and "embed" not in name:
                value.normal_(0, value[0].numel() ** -0.5, generator=generator)
            elif value.dim() == 1 and name.endswith("bias"):
                value.normal_(0, 0.1, generator=generator)


def stripped(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model without metadata on where and how it was exported; nodes are unchanged."""
    model.doc_string = ""
    for graph in _graphs(model):
        graph.ClearField("metadata_props")
        graph.doc_string = ""
        for node in graph.node:
            node.doc_string = ""
            node.ClearField("metadata_props")
        for value in (*graph.input, *graph.output, *graph.value_info):
            value.ClearField("metadata_props")
        for tensor in graph.initializer:
            tensor.ClearField("metadata_props")
    for function in model.functions:
        function.doc_string = ""
        function.ClearField("metadata_props")
        for node in function.node:
            node.doc_string = ""
            node.ClearField("metadata_props")
    return model


def _graphs(model: onnx.ModelProto) -> Iterator[onnx.GraphProto]:
    waiting = [model.graph]
    while waiting:
        graph = waiting.pop()
        yield graph
        for node in graph.node:
            for attribute in node.attribute:
                waiting += [attribute.g] if attribute.HasField("g") else list(attribute.graphs)


def _written(recipe: Recipe, exporter: str, made: Exported, folder: Path) -> Path:
    model = onnx.load_model_from_string(made.model)
    versions = {"" if entry.domain == "ai.onnx" else entry.domain: entry.version for entry in model.opset_import}
    opset = versions.get("", next(iter(versions.values())))  # boosted trees need the operators of ai.onnx.ml only
    known = {initializer.name for initializer in model.graph.initializer}
    inputs = [value for value in model.graph.input if value.name not in known]
    dims = [dim for value in inputs for dim in value.type.tensor_type.shape.dim]
    kind = "static" if all(dim.HasField("dim_value") for dim in dims) else "dynamic"
    path = folder / f"{recipe.name}.{exporter}{opset}.{kind}.onnx"
    path.write_bytes(made.model)
    # An exporter may drop an input that nothing depends on, or name it otherwise.
    used = {value.name for value in inputs}
    values = dict(made.inputs)
    if not used <= set(values):
        values = dict(zip([value.name for value in inputs], values.values(), strict=True))
    np.savez(path.with_suffix(".npz"), **{name: value for name, value in values.items() if name in used})
    return path
