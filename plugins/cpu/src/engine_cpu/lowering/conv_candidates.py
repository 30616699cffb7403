"""The candidates for a convolution, sorted by the estimate of a cost model."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, TypeAlias

from engine.native import Attribute, has_feature
from engine.startup import dataclass
from engine_cpu.layout import Layout, padded_channels
from engine_cpu.lowering.conv_geometry import ConvGeometry
from engine_cpu.tuning import DEFAULT_L2_BYTES, Candidate, Candidates

PLANAR_CHANNELS: Final = 16
"""Inputs with fewer channels than this waste lanes in blocks, and may be read PLAIN."""

_MAX_CANDIDATES: Final = 8
_MAX_MERGED: Final = 64
"""Channels up to which Winograd's algorithm computes several groups as one, with zeros between them."""
# Core cycles: at best sixteen multiply-adds per half cycle; twelve bytes from memory per cycle over all cores.
_FMA_CYCLES: Final = 0.5
_MEMORY_BYTES: Final = 12.0
# Measured, relative to the estimate: groups that are not whole blocks, whose channels are moved or expanded; groups of
# one vector of outputs, where each multiply-add loads an input; and Winograd's algorithm for several groups.
_GROUPED_FACTOR: Final = 2.5
_ONE_VECTOR_FACTOR: Final = 1.2
_WINOGRAD_GROUPS_FACTOR: Final = 1.2
# The lanes of several groups: relative to multiply-adds, what these take at best, a permutation that serves three
# kernel columns, for each column of stride, and one that serves a single column.
_LANES_FACTOR: Final = 1.05
_TRIPLE_PERMUTATION: Final = 0.2
_SINGLE_PERMUTATION: Final = 1.5
# Grouped 1x1 convolutions: the pixels of a strip, and cycles to move a vector of sums.
_POINTWISE_PIXELS: Final = 14
_STORE_CYCLES: Final = 3.0
# Cycles of the Winograd input and output transforms of one tile of 16 channels.
_TRANSFORM_CYCLES: Final = {2: (45.0, 35.0), 4: (150.0, 100.0)}
# Cycles of reading and writing 16 partial sums.
_SUM_CYCLES: Final = 4.0
# Weights and transformed tiles that stay cached, relative to the second-level cache.
_CACHED_WEIGHTS: Final = 0.75
_CACHED_TILES: Final = 2
# Kernels on bf16 maps with the same weights as on f32 maps.
_PACKED_AS: Final = {"depthwise_bf16": "depthwise_f32", "winograd_bf16": "winograd_f32"}
_PACKED_BY: Final = ("vectors", "output_tile", "merge", "expanded", "plain")
# On tiles: columns of a group of weights, values of bf16 in a step, and channels of a pixel that is read PLAIN.
_TILE_COLUMNS: Final = 32
_TILE_DEPTH: Final = 32
TILE_PLAIN_CHANNELS: Final = 4


@dataclass(frozen=True, slots=True)
class ConvProblem:
    """The problem that candidates solve: sizes, operands, and where it runs."""

    geometry: ConvGeometry
    epilogue: Mapping[str, Attribute]
    has_bias: bool
    has_residual: bool
    layout: Layout
    isa: str
    threads: int
    out_layout: Layout = Layout.BLOCKED
    is_bf16: bool = False
    has_constant_weights: bool = True
    is_direct: bool = False
    """Whether Winograd's algorithm is left out."""
    l2_bytes: int = DEFAULT_L2_BYTES
    is_repeatable: bool = False
    """Whether the choice must not depend on the number of images."""

    def key(self) -> str:
        """A key that is equal for problems whose candidates take the same time."""
        operands = f"b{int(self.has_bias)}r{int(self.has_residual)}a{self.epilogue.get('activation', '')}"
        layouts = f"{self.layout.value}|{self.out_layout.value}|bf16" if self.is_bf16 else self.layout.value
        mode = "|accurate" if self.is_direct else ""
        return f"{self.geometry.describe()}|{operands}|{layouts}{mode}"

    def kernel(self, family: str) -> str:
        """The name of the family's kernel for f32 or bf16, as the problem is."""
        return f"{family}_bf16" if self.is_bf16 else f"{family}_f32"


class ConvCandidates(Candidates):
    """The best candidates, sorted by estimated time.

    Makes each candidate when it is read: for most problems, only the first one is read.
    """

    def __init__(self, problem: ConvProblem) -> None:
        self._problem = problem
        if problem.is_repeatable:
            problem = replace(problem, geometry=replace(problem.geometry, batch=1))
        self._ranked = sorted(_estimated(problem), key=lambda estimated: estimated[0])

    def __len__(self) -> int:
        return min(len(self._ranked), _MAX_CANDIDATES)

    def __getitem__(self, index: Any) -> Any:
        _, kernel, variant = self._ranked[range(len(self))[index]]
        return _candidate(self._problem, kernel, variant)

    def named(self, name: str) -> Candidate | None:
        found = ((kernel, variant) for _, kernel, variant in self._ranked if _name(kernel, variant) == name)
        return next((_candidate(self._problem, *each) for each in found), None)

    def estimate(self, candidate: Candidate) -> float:
        return next(
            1.0 + cycles for cycles, kernel, variant in self._ranked if _name(kernel, variant) == candidate.name
        )


def estimated_seconds(problem: ConvProblem) -> float:
    """The time of a convolution by the direct algorithm at 3 GHz."""
    return _direct_cycles(problem) / 3e9


def has_bf16_kernel(groups: int, in_channels: int, out_channels: int, *, transposed: bool) -> bool:
    """Whether a convolution can run with products in bf16, or at least on bf16 maps."""
    if transposed:
        return groups == 1
    is_depthwise = groups == in_channels == out_channels
    return groups == 1 or is_depthwise or (in_channels // groups % 16 == 0 and out_channels // groups % 16 == 0)


def packing(geometry: ConvGeometry, candidate: Candidate) -> tuple[str, dict[str, Attribute], str]:
    """The kernel that packs a candidate's weights, its attributes, and a short key of the result."""
    chosen = {name: candidate.attributes[name] for name in _PACKED_BY if name in candidate.attributes}
    kernel = f"pack_{_PACKED_AS.get(candidate.kernel, candidate.kernel)}"
    window = ".".join(map(str, (geometry.groups, *geometry.strides, *geometry.dilations)))
    choice = ",".join(f"{name}={value}" for name, value in chosen.items())
    return kernel, geometry.attributes() | chosen, f"{kernel}|{window}|{choice}"


def packed_bytes(geometry: ConvGeometry, kernel: str, attributes: Mapping[str, Attribute]) -> int:
    """An upper bound on the bytes of packed weights."""
    g = geometry
    match kernel:
        case "depthwise_f32" | "depthwise_bf16":
            floats = padded_channels(g.out_channels) * g.taps
        case "winograd_f32" | "winograd_bf16":
            tile = attributes["output_tile"]
            assert isinstance(tile, int)
            merge = attributes.get("merge", 1)
            assert isinstance(merge, int)
            # The transformed and the original weights, and a number that is derived from them.
            floats = ((tile + 2) ** 2 + g.taps) * g.in_group * merge * padded_channels(g.out_channels) + 1
        case "conv_amx_bf16" | "conv_transpose_amx_bf16":
            steps = g.kernel[0] if attributes.get("plain") else -(-g.in_channels // _TILE_DEPTH) * g.taps
            floats = -(-g.out_channels // _TILE_COLUMNS) * _TILE_COLUMNS * steps * _TILE_DEPTH // 2
        case "conv_lanes_f32":
            floats = padded_channels(g.out_channels) * g.in_group * g.taps
        case _:
            floats = g.groups * padded_channels(g.out_group) * g.in_group * g.taps
    return 4 * floats


_Estimated: TypeAlias = tuple[float, str, Mapping[str, Attribute]]
"""Cycles, a kernel, and its specific attributes."""


def _estimated(problem: ConvProblem) -> Iterator[_Estimated]:
    """The candidates with estimates; variants with equal estimates are in order of preference."""
    g = problem.geometry
    if g.transposed:
        has_all_residues = all(k >= s for k, s in zip(g.kernel, g.strides, strict=True)) and g.dilations == (1, 1)
        if _has_tiles(problem) and has_all_residues:
            yield 0.0, "conv_transpose_amx_bf16", {}
        yield from _variants(problem.kernel("conv_transpose"), [{}], 0.0)
    elif problem.layout is Layout.PLAIN:
        if _fits_plain_tiles(problem):
            yield 0.0, "conv_amx_bf16", {"plain": 1}
        yield from _variants(problem.kernel("conv_planar"), [{"vectors": v} for v in _vectors(problem)], 0.0)
    elif g.is_depthwise:
        yield from _variants(problem.kernel("depthwise"), [{}], 0.0)
    elif not g.has_whole_blocks:
        if g.has_lanes:
            yield from _variants("conv_lanes_f32", [{}], _lanes_cycles(problem))
        if g.is_pointwise and math.prod(g.out_size) >= _POINTWISE_PIXELS:
            yield from _variants("conv_pointwise_groups_f32", [{}], _pointwise_cycles(problem))
        yield from _variants("conv_grouped_f32", [{}, {"expanded": 0}, {"expanded": 1}], _grouped_cycles(problem))
        yield from _winograd(problem)
    else:
        if _has_tiles(problem):
            yield 0.0, "conv_amx_bf16", {"plain": 0}
        direct = problem.kernel("conv_blocked")
        has_lanes = g.groups > 1 and g.has_lanes and not problem.is_bf16
        factor = _ONE_VECTOR_FACTOR if has_lanes and g.out_group == 16 else 1.0
        yield from _variants(direct, _tilings(problem), factor * _direct_cycles(problem))
        if has_lanes:
            yield from _variants("conv_lanes_f32", [{}], _lanes_cycles(problem))
        if _fits_taps(problem):
            yield from _variants("conv_taps_f32", [{"vectors": v} for v in _vectors(problem)], _taps_cycles(problem))
        yield from _winograd(problem)


def _fits_taps(problem: ConvProblem) -> bool:
    """Whether taps of a dilated convolution may be added one by one, and all outputs have one of them."""
    g = problem.geometry
    if problem.is_bf16 or g.groups > 1 or problem.epilogue.get("residual_after"):
        return False
    return g.dilations != (1, 1) and all(max(counts) == out for counts, out in zip(_counts(g), g.out_size, strict=True))


def _winograd(problem: ConvProblem) -> Iterator[_Estimated]:
    # On bf16 maps, both input and output must be bf16.
    fits = problem.geometry.is_winograd and problem.is_bf16 == problem.out_layout.is_bf16
    if not fits or problem.is_direct:
        return
    for merge in _merges(problem.geometry):
        for tile in (2, 4):
            cycles = _winograd_cycles(problem, tile, merge)
            yield from _variants(problem.kernel("winograd"), _blocks(problem, tile, merge), cycles)


def _merges(g: ConvGeometry) -> list[int]:
    """How many groups may be computed as one: their channels are whole blocks."""
    if g.groups == 1:
        return [1]
    most = max(1, min(g.groups, _MAX_MERGED // max(g.in_group, g.out_group)))
    return [m for m in range(1, most + 1) if m == g.groups or (m * g.in_group % 16 == m * g.out_group % 16 == 0)]


def _has_tiles(problem: ConvProblem) -> bool:
    return problem.is_bf16 and problem.geometry.groups == 1 and has_feature(problem.isa, "amx_bf16")


def _fits_plain_tiles(problem: ConvProblem) -> bool:
    """Whether a step of depth has the pixels of a kernel row."""
    g = problem.geometry
    is_row = g.kernel[1] * TILE_PLAIN_CHANNELS <= _TILE_DEPTH and g.dilations[1] == 1
    return _has_tiles(problem) and is_row and g.in_channels <= TILE_PLAIN_CHANNELS and problem.has_constant_weights


def _variants(kernel: str, variants: Sequence[Mapping[str, Attribute]], cycles: float) -> Iterator[_Estimated]:
    for rank, variant in enumerate(variants):
        # A variant is worth measuring, but must not rank above another kernel's best.
        yield cycles * (1 + 0.1 * rank) + rank, kernel, variant


def _candidate(problem: ConvProblem, kernel: str, variant: Mapping[str, Attribute]) -> Candidate:
    g = problem.geometry
    attributes: dict[str, Attribute] = {
        **g.attributes(), "bias": int(problem.has_bias), "residual": int(problem.has_residual)
    }  # fmt: skip
    if problem.is_bf16 and not problem.out_layout.is_bf16:
        attributes |= {"y_f32": 1, "residual_f32": 1}
    attributes |= {**problem.epilogue, **variant}
    inputs = [g.map_bytes(problem.layout), packed_bytes(g, kernel, variant)]
    if problem.has_bias:
        inputs.append(4 * padded_channels(g.out_channels))
    if problem.has_residual:
        inputs.append(g.out_bytes(problem.out_layout))
    return Candidate(_name(kernel, variant), kernel, attributes, tuple(inputs), (g.out_bytes(problem.out_layout),))


def _name(kernel: str, variant: Mapping[str, Attribute]) -> str:
    return " ".join([kernel, *(f"{key}{value}" for key, value in variant.items())])


def _vectors(problem: ConvProblem) -> list[int]:
    """Tile widths, the automatic one (0) first, limited to those that the channels of a group fill."""
    return [0, *(v for v in (1, 2) if 16 * v <= padded_channels(problem.geometry.out_group))]


def _tilings(problem: ConvProblem) -> list[dict[str, Attribute]]:
    tilings: list[dict[str, Attribute]] = [{"vectors": v} for v in _vectors(problem)]
    splits = sorted({1, problem.threads})
    orders: list[dict[str, Attribute]] = [
        {"tile_block": block, "channel_split": split} for block in (1, 0) for split in splits
    ]
    return [tilings[0], *orders, *tilings[1:]]


def _blocks(problem: ConvProblem, tile: int, merge: int) -> list[dict[str, Attribute]]:
    g = problem.geometry
    points = (tile + 2) ** 2
    ins, outs = g.in_group * merge, g.out_group * merge
    block = 14
    if 4 * points * ins * outs > _CACHED_WEIGHTS * problem.l2_bytes:
        # One pass over the weights serves as many transformed tiles as fit into the cache.
        block = max(28, min(98, _CACHED_TILES * problem.l2_bytes // (4 * points * (ins + 32)) // 14 * 14))
    blocks = dict.fromkeys((block, 28, 14, 56))
    common: dict[str, Attribute] = {"output_tile": tile}
    if g.groups > 1:
        common["merge"] = merge
    return [*(common | {"block_tiles": b} for b in blocks), common | {"phases": 1}]


def _direct_cycles(problem: ConvProblem) -> float:
    g = problem.geometry
    pixels = g.batch * math.prod(g.out_size)
    # A bf16 instruction computes two products, and bf16 weights are half as large.
    return max(_product_cycles(problem, pixels * g.taps, g.taps)) * (0.5 if problem.is_bf16 else 1.0)


def _taps_cycles(problem: ConvProblem) -> float:
    g = problem.geometry
    pixels = g.batch * math.prod(sum(counts) for counts in _counts(g))
    sums = pixels * padded_channels(g.out_channels) / 16 * _SUM_CYCLES
    return max(_product_cycles(problem, pixels, g.taps)) + sums / problem.threads


def _counts(g: ConvGeometry) -> Iterator[list[int]]:
    """For each axis, how many outputs have each of its taps inside of the map."""
    axes = zip(g.in_size, g.out_size, g.kernel, g.strides, g.dilations, g.pads[:2], strict=True)
    for size, out, kernel, stride, dilation, pad in axes:
        offsets = [tap * dilation - pad for tap in range(kernel)]
        yield [max(0, min(out, -(-(size - at) // stride)) - max(0, -(at // stride))) for at in offsets]


def _grouped_cycles(problem: ConvProblem) -> float:
    return _GROUPED_FACTOR * _direct_cycles(problem)


def _lanes_cycles(problem: ConvProblem) -> float:
    g = problem.geometry
    period = math.lcm(g.out_group, 16)
    # Of a period's vectors, those in which a group ends.
    permuted = min(1.0, (period / g.out_group - 1) / (period / 16))
    has_triples = g.dilations[1] == 1 and g.strides[1] <= 2
    triples = g.kernel[1] // 3 * 3 / g.kernel[1] if has_triples else 0.0
    permutation = triples * g.strides[1] * _TRIPLE_PERMUTATION + (1 - triples) * _SINGLE_PERMUTATION
    pixels = g.batch * math.prod(g.out_size)
    products = pixels * g.taps * g.in_group * padded_channels(g.out_channels) / 16
    return products * (_LANES_FACTOR + permuted * permutation) * _FMA_CYCLES / problem.threads


def _pointwise_cycles(problem: ConvProblem) -> float:
    """The products of strips of pixels, whose sums are stored, and read again."""
    g = problem.geometry
    pixels = g.batch * -(-math.prod(g.out_size) // _POINTWISE_PIXELS) * _POINTWISE_PIXELS
    factor = _ONE_VECTOR_FACTOR if g.out_group <= 16 else _LANES_FACTOR
    products = g.in_group * g.groups * padded_channels(g.out_group) / 16 * factor * _FMA_CYCLES
    return pixels * (products + _STORE_CYCLES * padded_channels(g.out_channels) / 16) / problem.threads


def _winograd_cycles(problem: ConvProblem, tile: int, merge: int) -> float:
    g = problem.geometry
    tiles = g.batch * math.prod(_tiles(*axis, tile) for axis in zip(g.out_size, g.dilations, strict=True))
    points = (tile + 2) ** 2
    into, out = _TRANSFORM_CYCLES[tile]
    transforms = tiles * (into * padded_channels(g.in_channels) + out * padded_channels(g.out_channels)) / 16
    products, weights = _product_cycles(problem, tiles * points, points, merge)
    if g.groups == 1:
        return max(products, weights) + transforms / problem.threads
    # The zeros make the weights several times as large, and each is used for few tiles.
    return _WINOGRAD_GROUPS_FACTOR * (products + transforms / problem.threads) + 2 * weights


def _tiles(outputs: int, dilation: int, tile: int) -> int:
    """Tiles of an axis, whose outputs are as far apart as the dilation."""
    whole, rest = divmod(outputs, tile * dilation)
    return whole * dilation + min(dilation, rest)


def _product_cycles(problem: ConvProblem, pixels: float, taps: float, merge: int = 1) -> tuple[float, float]:
    """Cycles for `pixels` rows by `taps` weight matrices: multiplications, and reading the weights."""
    g = problem.geometry
    depth = g.in_group * merge
    products = pixels * depth * padded_channels(g.out_channels) / 16
    weights = 4.0 * taps * depth * g.out_channels
    return products * _FMA_CYCLES / problem.threads, weights / _MEMORY_BYTES
