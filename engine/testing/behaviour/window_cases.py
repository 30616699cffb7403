"""Conv and pools with every attribute, on images and kernels whose axes all differ."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from engine.testing.behaviour.cases import Array
from engine.testing.behaviour.numeric import NumericCase, drawn, f32
from engine.testing.behaviour.oracles import convolve, pool


def _conv(
    what: str, image: Sequence[int], kernel: Sequence[int], maps: int = 3, bias: bool = False, **given: Any
) -> NumericCase:
    """On `image` [N, C, ...]; the weights are constant."""
    x, group = drawn(*image, seed=1), given.get("group", 1)
    w, b = drawn(maps, image[1] // group, *kernel, seed=2), drawn(maps, seed=3) if bias else None
    inputs: tuple[Array, ...] = (x, w) if b is None else (x, w, b)
    return NumericCase(f"Conv: {what}", "Conv", inputs, (f32(*convolve(x, w, b, **given)),), given, (1, 2)[: 1 + bias])


def _pads_at(place: int, count: int, width: int = 1) -> list[int]:
    return [width if index == place else 0 for index in range(count)]


def _convs() -> Iterator[NumericCase]:
    image, kernel = (2, 4, 5, 6), (3, 2)
    yield _conv("plain", image, kernel)
    yield _conv("bias", image, kernel, bias=True)
    yield _conv("kernel of 1", image, (1, 1), bias=True)
    yield _conv("strides", image, kernel, strides=[2, 1])
    yield _conv("strides of the other axis", image, kernel, strides=[1, 3])
    yield _conv("dilations", image, kernel, dilations=[2, 1])
    yield _conv("dilations of the other axis", image, kernel, dilations=[1, 3])
    yield _conv("group", image, kernel, maps=4, group=2)
    yield _conv("depthwise", image, kernel, maps=4, group=4, pads=[1, 1, 1, 0])
    yield _conv("depthwise with two maps a channel", image, kernel, maps=8, group=4)
    for place, name in enumerate(("top", "left", "bottom", "right")):
        yield _conv(f"pads {name}", image, kernel, pads=_pads_at(place, 4))
    yield _conv("pads all different", image, kernel, pads=[0, 1, 2, 3], strides=[2, 2])
    for auto in ("SAME_UPPER", "SAME_LOWER", "VALID"):
        yield _conv(f"auto_pad {auto}", (1, 2, 6, 7), (2, 4), auto_pad=auto)
    yield _conv("auto_pad SAME_UPPER with strides", (1, 2, 6, 7), (3, 2), auto_pad="SAME_UPPER", strides=[2, 3])
    yield _conv("1-D", (2, 3, 7), (3,), pads=[2, 1], strides=[2], bias=True)
    yield _conv("1-D in groups, dilated", (1, 4, 9), (2,), maps=6, group=2, dilations=[3])
    yield _conv("3-D", (1, 2, 4, 3, 5), (2, 3, 2), pads=[1, 0, 2, 0, 1, 0], bias=True)
    yield _conv("everything", (2, 4, 9, 8), (3, 2), maps=6, bias=True, group=2, strides=[2, 1], dilations=[1, 2],
                pads=[2, 0, 1, 1])  # fmt: skip


def _pool(op_type: str, what: str, image: Sequence[int], kernel: Sequence[int], **given: Any) -> NumericCase:
    x = drawn(*image, seed=4)
    answer = pool(x, kernel, op_type == "AveragePool", **given)
    return NumericCase(f"{op_type}: {what}", op_type, (x,), (f32(*answer),), {"kernel_shape": list(kernel), **given})


def _pools(op_type: str) -> Iterator[NumericCase]:
    image, kernel = (2, 3, 6, 7), (3, 2)
    yield _pool(op_type, "plain", image, kernel)
    yield _pool(op_type, "strides", image, kernel, strides=[1, 2])
    yield _pool(op_type, "strides of the other axis", image, kernel, strides=[3, 1])
    yield _pool(op_type, "dilations", image, kernel, dilations=[2, 1])
    for place, name in enumerate(("top", "left", "bottom", "right")):
        yield _pool(op_type, f"pads {name}", image, (2, 3), pads=_pads_at(place, 4))
    yield _pool(op_type, "pads all different", image, (4, 4), pads=[0, 1, 2, 3], strides=[2, 2])
    yield _pool(op_type, "ceil_mode", image, (3, 3), strides=[2, 2], ceil_mode=1)
    yield _pool(op_type, "ceil_mode, the last window left out", (1, 1, 5, 5), (1, 1), strides=[3, 3], ceil_mode=1,
                pads=[0, 0, 0, 0])  # fmt: skip
    yield _pool(op_type, "ceil_mode with pads", (1, 2, 6, 6), (3, 3), strides=[2, 2], ceil_mode=1, pads=[1, 1, 1, 1])
    for auto in ("SAME_UPPER", "SAME_LOWER", "VALID"):
        yield _pool(op_type, f"auto_pad {auto}", image, (2, 4), auto_pad=auto)
    yield _pool(op_type, "1-D", (2, 3, 9), (3,), strides=[2], pads=[1, 0])
    yield _pool(op_type, "3-D", (1, 2, 4, 3, 5), (2, 3, 2), strides=[2, 1, 1])
    if op_type == "AveragePool":
        padded = {"pads": [1, 0, 1, 2], "count_include_pad": 1}
        yield _pool(op_type, "count_include_pad", image, (3, 3), **padded)
        yield _pool(op_type, "padding does not count", image, (3, 3), **(padded | {"count_include_pad": 0}))


def _global_pools() -> Iterator[NumericCase]:
    for op_type, is_mean in (("GlobalAveragePool", True), ("GlobalMaxPool", False)):
        for sizes in ((5, 6), (7,), (2, 3, 4)):
            x = drawn(2, 3, *sizes, seed=6)
            yield NumericCase(f"{op_type}: {len(sizes)}-D", op_type, (x,), (f32(*pool(x, sizes, is_mean)),))


WINDOWS: Final = (*_convs(), *_pools("MaxPool"), *_pools("AveragePool"), *_global_pools())
