"""`OperatorCase`: one node with its inputs, and the tolerance of its results."""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any

import ml_dtypes
import numpy as np

from engine.ir import Constant, ElementType, Model, Node, Parameter, PartialShape
from engine.ops.cases.data import Array, Data
from engine.ops.create import create
from engine.startup import dataclass


@dataclass(frozen=True, eq=False, slots=True)
class OperatorCase:
    """A node with its inputs.

    Attributes:
        name: the operator and the special feature of the case: "Conv/strided".
        op_type: the operator.
        inputs: in the operator's order; None if one is omitted.
        attributes: the node's attributes.
        domain: the operator's domain.
        num_outputs: the number of outputs of the node; None is the number that the operator requires.
        terms: the length of the longest sum for an element of the result, or the number of its roundings.
        factors: the inputs whose largest elements bound one term of that sum; if empty, the results bound it.
        steps: for integer results, the largest difference between two correct results, if a rounded real number is
            rounded to the next integer.
        is_dynamic: whether the lengths of the inputs are unknown when the model is compiled.
    """

    name: str
    op_type: str
    inputs: tuple[Data | None, ...]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    domain: str = ""
    num_outputs: int | None = None
    terms: int = 1
    factors: tuple[int, ...] = ()
    steps: int = 0
    is_dynamic: bool = False

    def arrays(self) -> list[Array | None]:
        """The inputs' values, the same for every call."""
        seed = zlib.crc32(self.op_type.encode())
        return [None if data is None else data.array(seed + index) for index, data in enumerate(self.inputs)]

    def node(self, *, as_constants: bool = False) -> tuple[Node, list[Parameter]]:
        """The node and its parameters; with `as_constants`, all inputs but the first are constants."""
        sources: list[Parameter | Constant | None] = []
        for index, (data, array) in enumerate(zip(self.inputs, self.arrays(), strict=True)):
            if data is None or array is None:
                sources.append(None)
            elif data.is_constant or (as_constants and index):
                sources.append(Constant(array, data.type))
            else:
                shape = PartialShape([-1] * array.ndim if self.is_dynamic else array.shape)
                sources.append(Parameter(data.type, shape, f"x{index}"))
        attributes = {k: v.onnx if isinstance(v, ElementType) else v for k, v in self.attributes.items()}
        made = create(self.op_type, sources, attributes, domain=self.domain, num_outputs=self.num_outputs)
        return made, [source for source in sources if isinstance(source, Parameter)]

    def model(self, *, as_constants: bool = False) -> tuple[Model, dict[str, Array]]:
        """A model of the node alone, and its inputs by name."""
        node, parameters = self.node(as_constants=as_constants)
        arrays = self.arrays()
        feeds: dict[str, Array] = {}
        for parameter in parameters:
            array = arrays[int(parameter.friendly_name[1:])]
            assert array is not None
            feeds[parameter.friendly_name] = array
        return Model(list(node.outputs), parameters, name=self.name), feeds

    def tolerance(self, element_type: ElementType, largest: float) -> tuple[float, float]:
        """The relative and absolute tolerance of a result of real numbers.

        The error of a sum of n rounded terms grows like n times epsilon times a term's largest magnitude, in any order
        of summation: partial sums and their errors grow with the root of n. The tolerance is twice that, because device
        and reference both round. `largest` is the largest finite absolute value of the result.

        Results of narrow types are sums in a wider type: their own epsilon applies only to the final rounding.
        """
        facts: Any = ml_dtypes.finfo(element_type.numpy)  # type: ignore[no-untyped-call]
        epsilon = float(facts.eps)
        if self.terms == 1:
            return 4 * epsilon, float(facts.smallest_normal)
        size = largest
        if self.factors:
            size = math.prod(data.magnitude for index in self.factors if (data := self.inputs[index]) is not None)
        summed = min(epsilon, float(np.finfo(np.float32).eps))
        # One intermediate result, such as the sum of a mean, may be rounded to the narrow type.
        narrow = 2 * epsilon if summed < epsilon else 0.0
        return 4 * epsilon, (2 * self.terms * summed + narrow) * size

    def __str__(self) -> str:
        return self.name


def case(
    name: str,
    inputs: Sequence[Data | None],
    attributes: Mapping[str, Any] | None = None,
    /,
    **options: Any,
) -> OperatorCase:
    """A case named "operator/feature"; options are the fields of `OperatorCase`."""
    return OperatorCase(name, name.partition("/")[0], tuple(inputs), attributes or {}, **options)
