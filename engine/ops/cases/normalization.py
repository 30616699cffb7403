"""Cases of normalizations: axes, long rows, scales that are broadcast, statistics, groups and channels."""

from __future__ import annotations

from typing import Any, Final

from engine.ir.element_type import f16, f64
from engine.ops.cases.case import OperatorCase, case
from engine.ops.cases.data import Data, constant, real


def _normalized(what: str, count: int, inputs: list[Data | None], **options: Any) -> OperatorCase:
    """A case with values of both signs; its error, as of a mean over `count` of them, survives the scaling."""
    attributes = {k: options.pop(k) for k in list(options) if k not in ("num_outputs", "is_dynamic")}
    return case(what, inputs, attributes, terms=count, factors=(0,), **options)


CASES: Final = [
    *(
        _normalized(f"LayerNormalization/{length}{'-fixed' if fixed else ''}", length, [
            real(3, 5, length), constant(real(length)) if fixed else real(length),
            constant(real(length)) if fixed else real(length),
        ])
        for length in (1, 7, 64, 100, 4100)
        for fixed in (False, True)
    ),
    _normalized("LayerNormalization/no-shift", 40, [real(6, 40), constant(real(40))]),
    _normalized("LayerNormalization/axis=1", 60, [real(4, 5, 12), real(5, 12), real(5, 12)], axis=1),
    _normalized("LayerNormalization/axis=0", 60, [real(5, 12), real(5, 12)], axis=0, epsilon=0.01),
    _normalized("LayerNormalization/statistics", 50, [real(3, 50), constant(real(50))], num_outputs=3),
    *(
        _normalized(f"LayerNormalization/scale-{'x'.join(map(str, scale))}", 4,
                    [real(2, scale[-2] if scale[-2] > 1 else 3, 4), real(*scale), real(4)])
        for scale in ((3, 4), (1, 3, 1), (4, 1), (2, 1, 4), (1, 1, 4))
    ),
    *(_normalized(f"LayerNormalization/{t.name}", 40, [real(6, 40, type=t), real(40, type=t)]) for t in (f64, f16)),
    _normalized("LayerNormalization/dynamic", 40, [real(6, 40), constant(real(40))], is_dynamic=True),
    *(_normalized(f"RMSNormalization/{n}", n, [real(3, 5, n), real(n)]) for n in (7, 64, 4100)),
    _normalized("RMSNormalization/axis=1", 60, [real(4, 5, 12), real(5, 12)], axis=1),
    *(
        _normalized(f"GroupNormalization/{'x'.join(map(str, shape))}-{groups}", 1000,
                    [real(*shape), real(shape[1]), real(shape[1])], num_groups=groups)
        for shape, groups in (((2, 6, 5, 4), 3), ((1, 32, 14, 14), 32), ((1, 32, 14, 14), 1), ((2, 48, 40), 4))
    ),
    *(
        _normalized(f"InstanceNormalization/{'x'.join(map(str, shape))}", 400,
                    [real(*shape), real(shape[1]), real(shape[1])])
        for shape in ((2, 6, 5, 4), (1, 32, 14, 14), (2, 19, 40), (1, 3, 4, 5, 6))
    ),
    *(
        _normalized(f"BatchNormalization/{'x'.join(map(str, shape))}", 4,
                    [real(*shape), *(constant(real(shape[1])) for _ in range(3)), constant(real(shape[1], low=0.5))])
        for shape in ((2, 6, 5, 4), (1, 32, 14, 14), (2, 19, 40), (5, 7))
    ),
    *(
        case(f"LRN/size={size}", [real(2, 9, 5, 6)], {"size": size, "alpha": 0.3, "beta": 0.6, "bias": 1.5}, terms=8)
        for size in (1, 3, 4)
    ),
    *(
        case(f"LpNormalization/p={p}-axis={axis}", [real(3, 5, 40)], {"p": p, "axis": axis}, terms=40)
        for p in (1, 2)
        for axis in (0, -1)
    ),
    *(
        _normalized(f"MeanVarianceNormalization/{','.join(map(str, axes))}", 400, [real(3, 4, 9, 8)], axes=axes)
        for axes in ([0, 2, 3], [1], [1, 2, 3], [2, 3])
    ),
]  # fmt: skip
