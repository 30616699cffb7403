"""`MakeAdaptable`: linear layers take low-rank adapters (LoRA) as inputs, beside their constant matrices."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import numpy as np

from engine import ops
from engine.errors import PassError
from engine.ir import Constant, Dimension, Model, Parameter, TensorType, boolean
from engine.ir.adapter_inputs import ADAPTER_MASK, LORA_A, LORA_B, matching_modules
from engine.passes.base import ModelPass
from engine.passes.linear_layers import LinearLayer, linear_layers, parts_of
from engine.passes.runtime_info import copy_runtime_info

_RANKS: Final = "adapter_rank"
"""The symbol of the sum of the ranks of all adapters of an inference."""
_FEW: Final = 12


class MakeAdaptable(ModelPass):
    """Adds the low-rank branch of LoRA (Hu et al. 2021) to linear layers: y + ((x A) masked) B.

    Each adapted module gets two inputs, `<module>.lora_A` [width of x, ranks] and `<module>.lora_B` [ranks, columns of
    y], of the type of x. The ranks of all adapters of an inference stand side by side, and an input `adapter_mask`
    [batch, ranks] has the ones that each sequence uses. So the weights, which may be compressed, are in memory once,
    one batch may use several adapters, and other adapters are other values of the inputs. With no ranks, the branches
    add nothing. `engine.generation.Generator` makes the inputs from an `Adapter`.

    The projections of queries, keys and values that onnxruntime-genai's builder joined (`qkv_proj`) are adapted
    separately, unless `targets` names the joined one.

    Not part of any pipeline: run it on a model before compiling it, after `LastPosition`. Raises `PassError` if a
    target is not a linear layer of the model.

    Args:
        targets: the modules: last components ("q_proj"), ends of paths, or paths, as PEFT's `target_modules`. By
            default all linear layers except those whose results are outputs of the model, such as the logits.
        rank: the greatest sum of the ranks of the adapters that are applied in one inference.
        names: the paths of modules by the names of their products, where the model does not have them.
    """

    def __init__(
        self, targets: Iterable[str] | None = None, *, rank: int = 64, names: Mapping[str, str] | None = None
    ) -> None:
        super().__init__()
        if isinstance(rank, bool) or not isinstance(rank, int) or rank < 1:
            raise PassError(f"{self.name}: rank is {rank!r}; expected 1 or more")
        if isinstance(targets, str):
            raise PassError(f"{self.name}: targets is a text, {targets!r}; expected a list, such as [{targets!r}]")
        self._targets = None if targets is None else list(targets)
        self._rank, self._names = rank, dict(names or {})

    def run_on_model(self, model: Model) -> bool:
        """Add the inputs and the branches. Raises `PassError`, and changes nothing, if there is nothing to adapt."""
        if any(parameter.friendly_name == ADAPTER_MASK for parameter in model.parameters):
            return False
        chosen = self._chosen(model)
        names = {layer.path + suffix for layer in chosen for suffix in (LORA_A, LORA_B)}
        if repeated := names.intersection(parameter.friendly_name for parameter in model.parameters):
            raise PassError(f"{self.name}: model `{model.name}` has an input `{min(repeated)}` already")
        self._check(chosen)
        branches = _Branches(model, self._rank, _batch_of(model, chosen))
        for layer in chosen:
            branches.add(layer)
        model.validate()
        self.rewrites = len(chosen)
        return True

    def _chosen(self, model: Model) -> list[LinearLayer]:
        layers = linear_layers(model, self._names)
        products = {layer.product.friendly_name for layer in layers}
        if unknown := self._names.keys() - products:
            raise PassError(
                f"{self.name}: names has `{min(unknown)}`, which is not a product of x with a constant matrix; "
                f"{_listed('products', products)}"
            )
        if self._targets is None:
            found = [part for each in layers for part in parts_of(each) or [each] if not part.gives_output]
            if not found:
                raise PassError(f"{self.name}: model `{model.name}` has no linear layers except those of its outputs")
            return found
        wanted: dict[tuple[str, int], LinearLayer] = {}
        # A joined layer by its own name, or the parts of it that are named.
        pairs = [(each.path, each) for each in layers] + [(p.path, p) for each in layers for p in parts_of(each)]
        for target in self._targets:
            matching = set(matching_modules(target, [path for path, _ in pairs]))
            found = [each for path, each in pairs if path in matching]
            if not found:
                paths = {path for path, _ in pairs}
                raise PassError(
                    f"{self.name}: no linear layer of model `{model.name}` is `{target}`; "
                    f"{_listed('its linear layers', paths)}; if the file does not have the name of a module, pass it: "
                    "MakeAdaptable(names={product: module})"
                )
            wanted |= {(each.path, id(each.y.node)): each for each in found}
        order = {node: index for index, node in enumerate(model.ordered_nodes())}
        return sorted(wanted.values(), key=lambda each: (order[each.y.node], each.y.index))

    def _check(self, layers: Iterable[LinearLayer]) -> None:
        sizes: dict[str, LinearLayer] = {}
        for layer in layers:
            first = sizes.setdefault(layer.path, layer)
            if (first.rows, first.columns) != (layer.rows, layer.columns):
                raise PassError(
                    f"{self.name}: the products `{first.product.friendly_name}` and `{layer.product.friendly_name}` of "
                    f"module `{layer.path}` have different sizes; name the modules: MakeAdaptable(names=...)"
                )
            if len(layer.x.shape) > 3:
                raise PassError(
                    f"{self.name}: {layer.product} reads {layer.x.type}; expected [batch, tokens, width] or "
                    "[batch * tokens, width], since the adapter depends on the sequence"
                )


class _Branches:
    """The inputs of adapters, made when they are first needed, and the branches that read them."""

    def __init__(self, model: Model, rank: int, batch: Dimension) -> None:
        self._model, self._ranks = model, Dimension(0, rank, _free_symbol(model))
        self._mask = model.add_parameter(Parameter(boolean, [batch, self._ranks], ADAPTER_MASK))
        self._by_token = ops.Unsqueeze(self._mask, Constant(np.array([1])))
        """[batch, 1, ranks]"""
        self._inputs: dict[str, tuple[Parameter, Parameter]] = {}

    def add(self, layer: LinearLayer) -> None:
        """Let the readers of a layer read its sum with the branch."""
        readers, x = layer.y.target_inputs, layer.x
        made = []
        if len(x.shape) == 2:  # [batch * tokens, width]
            shape = ops.Concat(
                ops.Shape(self._mask, start=0, end=1), Constant(np.array([-1, layer.rows], np.int64)), axis=0
            )
            made.append(ops.Reshape(x, shape))
            x = made[-1].output(0)
        a, b = self._of(layer)
        product = ops.MatMul(x, a)
        masked = ops.Where(self._by_token, product, Constant(np.zeros((), x.element_type.numpy)))
        value = ops.MatMul(masked, b)
        made += [product, masked, value]
        if len(layer.x.shape) == 2:
            value = ops.Reshape(value, ops.Shape(layer.y))
            made.append(value)
        total = ops.Add(layer.y, value)
        copy_runtime_info(layer.y.node, [*made, total])
        for each in (*made, total):
            each.rt_info.pop("metadata", None)  # of the product that the exporter wrote
        for reader in readers:
            reader.replace_source_output(total.output(0))

    def _of(self, layer: LinearLayer) -> tuple[Parameter, Parameter]:
        if layer.path not in self._inputs:
            kind = layer.x.element_type
            a = Parameter(kind, [layer.rows, self._ranks], layer.path + LORA_A)
            b = Parameter(kind, [self._ranks, layer.columns], layer.path + LORA_B)
            self._inputs[layer.path] = self._model.add_parameter(a), self._model.add_parameter(b)
        return self._inputs[layer.path]


def _batch_of(model: Model, layers: Iterable[LinearLayer]) -> Dimension:
    """The number of sequences: the first dimension of what the layers read, or of the model's first input."""
    for layer in layers:
        first = layer.x.shape[0]
        if len(layer.x.shape) == 3 and (first.is_static or first.symbol is not None):
            return first
    kind = model.parameters[0].type if model.parameters else None
    if isinstance(kind, TensorType) and kind.shape.rank.is_static and len(kind.shape):
        return kind.shape[0]
    return Dimension()


def _free_symbol(model: Model) -> str:
    types = [parameter.type for parameter in model.parameters]
    shapes = [each.shape for each in types if isinstance(each, TensorType) and each.shape.rank.is_static]
    taken, name = {dim.symbol for shape in shapes for dim in shape}, _RANKS
    while name in taken:
        name += "_"
    return name


def _listed(what: str, names: Iterable[str]) -> str:
    known = sorted(set(names))
    return f"{what}: {', '.join(known[:_FEW]) or 'none'}{', ...' if len(known) > _FEW else ''}"
