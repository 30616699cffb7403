"""Chains of convolutions that run as one step, by strips of rows: the maps between them need not leave a cache."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from functools import partial
from typing import Final

from engine.ir import Constant, Output
from engine.ops.conv import ConvSpec
from engine_cpu.choices import Choices
from engine_cpu.item import Item
from engine_cpu.layout import Layout, LayoutOption, padded_channels, static_shape
from engine_cpu.lowering.conv_geometry import ConvGeometry, conv_geometry

_X, _W, _BIAS, _RESIDUAL = range(4)
_KINDS: Final = ("Conv", "FusedConv")
# Smaller maps between the convolutions stay in a cache anyway.
_MIN_MAP_BYTES: Final = 1 << 20
# All strips read all weights of the 1x1 convolutions, which must stay in the cache beside the strip.
_MAX_WEIGHT_BYTES: Final = 512 << 10
# What a strip of the fewest rows may take of the expanded map: twice what the kernel gives to strips of more rows.
_MAX_STRIP_BYTES: Final = 1 << 20
# Neighbouring workers compute the rows twice that both need; with so many rows of their own, these hardly count.
_MIN_ROWS: Final = 14


def join_chains(
    items: Sequence[Item],
    options: dict[Item, LayoutOption],
    outputs: Collection[Output],
    threads: int,
    choices: Choices,
) -> tuple[list[Item], dict[Item, LayoutOption]]:
    """Join convolutions 1x1, depthwise, 1x1 whose layouts are known; the first or the last may be missing.

    Args:
        items: in execution order.
        options: the layouts of each.
        outputs: the values that are read outside the segment.
        threads: of an inference.
        choices: which chains were joined for other lengths.

    Returns:
        The items, some of which stand for a chain at the place of its last node, and their options.
    """
    chains = _Chains(items, options, frozenset(outputs), threads, choices)
    joined = {chain[-1]: chain for chain in chains.found()}
    if not joined:
        return list(items), options
    inside = {item for chain in joined.values() for item in chain[:-1]}
    kept = [_item(joined[item]) if item in joined else item for item in items if item not in inside]
    return kept, {item: options.get(item) or _option(item) for item in kept}


class _Chains:
    def __init__(
        self,
        items: Sequence[Item],
        options: dict[Item, LayoutOption],
        outputs: frozenset[Output],
        threads: int,
        choices: Choices,
    ) -> None:
        self.options, self.outputs, self.threads, self.choices = options, outputs, threads, choices
        self.geometries = {item: geometry for item in items if (geometry := self._geometry(item))}
        self.makers = {item.outputs[0]: item for item in self.geometries}
        self.readers = {item.inputs[_X]: item for item in self.geometries}

    def found(self) -> Iterable[tuple[Item, ...]]:
        """The chains; no item is in two of them."""
        taken: set[Item] = set()
        for item, geometry in self.geometries.items():
            if not geometry.is_depthwise:
                continue
            chain: tuple[Item, ...] = (item,)
            before, after = self._before(item), self._after(item)
            if before is not None and before not in taken:
                chain = (before, *chain)
            if after is not None:
                chain = (*chain, after)
            if self.choices.once("chain", item.node, partial(self._is_worth_it, chain)):
                if not self._fits(chain, _MIN_ROWS // 2):
                    self.choices.refuse(item.node, "it is joined to others for larger maps, which would be slow here")
                taken.update(chain)
                yield chain

    def _geometry(self, item: Item) -> ConvGeometry | None:
        """The geometry of a convolution that may be in a chain."""
        spec = item.spec
        option = self.options[item]
        if not isinstance(spec, ConvSpec) or spec.node.op_type not in _KINDS or option.precision == "bf16":
            return None
        if option.inputs[_X] is not Layout.BLOCKED or option.outputs[0] is not Layout.BLOCKED:
            return None
        constants = [spec.input(_W), spec.input(_BIAS)]
        if any(value is not None and not isinstance(value.node, Constant) for value in constants):
            return None
        x, w = spec.node.input_value(_X), spec.node.input_value(_W)
        if len(x.shape) > 4:  # neighbours may pair its axes differently, but a chain has one map
            return None
        geometry = conv_geometry(spec, static_shape(x), static_shape(w))
        return geometry if geometry.is_depthwise or _is_pointwise(geometry) else None

    def _before(self, item: Item) -> Item | None:
        value = item.inputs[_X]
        maker = None if value is None else self.makers.get(value)
        return maker if maker is not None and self._is_private(maker) and self._is_pointwise(maker) else None

    def _after(self, item: Item) -> Item | None:
        reader = self.readers.get(item.outputs[0])
        return reader if reader is not None and self._is_private(item) and self._is_pointwise(reader) else None

    def _is_pointwise(self, item: Item) -> bool:
        return not self.geometries[item].is_depthwise

    def _is_private(self, item: Item) -> bool:
        """Whether only the next convolution of a chain needs the result, as it is computed by this one."""
        (value,) = item.outputs
        has_residual = isinstance(item.spec, ConvSpec) and item.spec.input(_RESIDUAL) is not None
        return value.num_consumers == 1 and value not in self.outputs and not has_residual

    def _is_worth_it(self, chain: Sequence[Item]) -> bool:
        geometries = [self.geometries[item] for item in chain]
        if max((g.out_bytes() for g in geometries[:-1]), default=0) < _MIN_MAP_BYTES:
            return False
        return self._fits(chain, _MIN_ROWS)

    def _fits(self, chain: Sequence[Item], least_rows: int) -> bool:
        """Whether all workers have enough rows, and weights and strips have a place in a cache."""
        geometries = [self.geometries[item] for item in chain]
        weights = sum(4 * g.in_channels * padded_channels(g.out_channels) for g in geometries if not g.is_depthwise)
        (window,) = (g for g in geometries if g.is_depthwise)
        rows = window.strides[0] + (window.kernel[0] - 1) * window.dilations[0] + 1
        strip = 4 * padded_channels(window.in_channels) * window.in_size[1] * rows
        has_rows = window.batch * window.out_size[0] >= least_rows * self.threads
        return weights <= _MAX_WEIGHT_BYTES and strip <= _MAX_STRIP_BYTES and has_rows


def _is_pointwise(g: ConvGeometry) -> bool:
    return g.groups == 1 and g.kernel == (1, 1) and g.strides == (1, 1) and not any(g.pads)


def _item(chain: Sequence[Item]) -> Item:
    between = {item.outputs[0] for item in chain[:-1]}
    read = (value for item in chain for value in item.inputs)
    inputs = tuple(dict.fromkeys(value for value in read if value is not None and value not in between))
    return Item(tuple(item.spec for item in chain), chain[0].lowering, inputs, chain[-1].outputs)


def _option(chain: Item) -> LayoutOption:
    """Maps are in blocks, and weights as the steps read them."""
    inputs = (Layout.PLAIN if isinstance(value.node, Constant) else Layout.BLOCKED for value in chain.inputs if value)
    return LayoutOption(tuple(inputs), (Layout.BLOCKED,))
