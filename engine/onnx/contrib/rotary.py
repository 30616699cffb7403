"""Rotary embeddings: the operator, and the part of an attention that has them built in."""

from __future__ import annotations

from typing import Any

from engine.ir import Output, i64
from engine.onnx.contrib.call import REALS, ContribCall, contrib
from engine.onnx.upgrades.emit import emit, i64_scalar, i64s, rank_of


@contrib(
    "RotaryEmbedding",
    "input position_ids cos_cache sin_cache",
    "interleaved is_packed_batching num_heads rotary_embedding_dim scale",
)
def _rotary_embedding(call: ContribCall) -> list[Output]:
    """The operator of ONNX, whose table of positions is [B, S] and whose heads are counted by an attribute."""
    call.without_attributes(is_packed_batching=0, scale=1.0)
    x, rank = call.typed(0, REALS), rank_of(call.ranked(0, 3, 4))
    columns = call.length(2, 1)
    rotated, heads = call.integer("rotary_embedding_dim", 0), call.integer("num_heads", 0)
    if rank is None:
        call.unsupported(f"the rank of {call.described(0)} is unknown", "state its shape in the model's value_info")
    if rotated and not heads:
        call.invalid(f"attribute `num_heads` is 0; expected 1 or more, as `rotary_embedding_dim` is {rotated}")
    if rotated not in (0, 2 * columns):
        call.invalid(f"{call.described(2)} has {columns} columns; expected half of rotary_embedding_dim, {rotated}")
    if rank == 3 and not heads:
        width = call.length(0, 2)
        if width % (2 * columns):
            call.invalid(f"{call.described(0)} has width {width}; expected heads of {2 * columns}, as the tables have")
        heads = width // (2 * columns)
    positions = call.typed(1, {i64})
    if rank_of(call.ranked(1, 1, 2)) != 2:
        call.single(1)
        positions = counted_from(positions, x, axis=1 if rank == 3 else 2)
    attributes: dict[str, Any] = {"rotary_embedding_dim": rotated}
    if rank == 3:
        attributes["num_heads"] = heads
    return [rotated_by(call, x, positions, 2, attributes, is_interleaved=bool(call.choice("interleaved", 0, (0, 1))))]


@contrib(
    "MRotaryEmbedding",
    "input position_ids cos_cache sin_cache",
    "interleaved is_packed_batching mrope_layout mrope_section num_heads rotary_embedding_dim scale",
)
def _of_three_positions(call: ContribCall) -> list[Output]:
    """Rotations of tokens that have positions in time, height and width, each of which chooses some of the angles."""
    call.without_attributes(is_packed_batching=0, scale=1.0)
    x, rank = call.typed(0, REALS), rank_of(call.ranked(0, 3, 4))
    if rank is None:
        call.unsupported(f"the rank of {call.described(0)} is unknown", "state its shape in the model's value_info")
    rotated, heads = call.integer("rotary_embedding_dim", 0), call.integer("num_heads", 0)
    if heads < 1 and (rotated or rank == 3):
        call.invalid(f"attribute `num_heads` is {heads}; expected 1 or more")
    columns = call.length(2, 1)
    if rotated not in (0, 2 * columns):
        call.invalid(f"{call.described(2)} has {columns} columns; expected half of rotary_embedding_dim, {rotated}")
    sections = call.integers("mrope_section")
    if len(sections) != 3 or any(each < 0 for each in sections) or sum(sections) != columns:
        call.invalid(
            f"attribute `mrope_section` is {list(sections)}; expected 3 numbers of 0 or more, whose sum is {columns}"
        )
    positions = call.typed(1, {i64})
    call.ranked(1, 3)
    if positions.shape.rank.is_static and not positions.shape[0].accepts(3):
        call.invalid(f"{call.described(1)} has shape {positions.shape}; expected [3, batch, length]")
    streams = _streams(sections, is_interleaved=bool(call.choice("mrope_layout", 0, (0, 1))))
    tables = []
    for index in (2, 3):
        call.ranked(index, 2)
        tables.append(_chosen(call.real(index), positions, streams))
    attributes: dict[str, Any] = {"rotary_embedding_dim": rotated, "interleaved": call.choice("interleaved", 0, (0, 1))}
    if rank == 3:
        attributes["num_heads"] = heads
    return [emit("RotaryEmbedding", x, *tables, **attributes)]


def _streams(sections: tuple[int, ...], *, is_interleaved: bool) -> list[int]:
    """Which of the three positions chooses each of the angles."""
    if not is_interleaved:
        return [stream for stream in range(3) for _ in range(sections[stream])]
    return [i % 3 if i // 3 < sections[i % 3] else 0 for i in range(sum(sections))]


def _chosen(table: Output, positions: Output, streams: list[int]) -> Output:
    """The rows [B, S, columns] of a table, each of whose columns is at one of the `positions`, [3, B, S]."""
    columns = len(streams)
    rows = emit("Transpose", emit("Gather", positions, i64s(streams), axis=0), perm=(1, 2, 0))
    places = emit("Add", emit("Mul", rows, i64_scalar(columns)), i64s(range(columns)))
    return emit("Gather", emit("Reshape", table, i64s([-1])), places, axis=0)


def counted_from(first: Output, x: Output, axis: int) -> Output:
    """The positions [B, S] of `x`, whose rows are along `axis`, if each sample's positions start at `first`, [1]."""
    length = emit("Shape", x, start=axis, end=axis + 1)
    rows = emit("Range", i64_scalar(0), emit("Squeeze", length, i64s([0])), i64_scalar(1))
    batch = emit("Shape", x, start=0, end=1)
    return emit("Expand", emit("Add", rows, first), emit("Concat", batch, length, axis=0))


def rotated_by(
    call: ContribCall, x: Output, positions: Output, tables: int, attributes: dict[str, Any], *, is_interleaved: bool
) -> Output:
    """`x` rotated by the rows `positions` of the tables, which are inputs `tables` and `tables + 1`."""
    pair = [call.ranked(index, 2) for index in (tables, tables + 1)]
    for index in (tables, tables + 1):
        call.real(index)
    return emit("RotaryEmbedding", x, *pair, positions, interleaved=int(is_interleaved), **attributes)
