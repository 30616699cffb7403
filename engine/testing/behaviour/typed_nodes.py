"""Nodes of each operator in every element type that ONNX allows for its data, to be asked about."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
import onnx

from engine.errors import ModelError
from engine.ir import Constant, ElementType, Model, Parameter, PartialShape
from engine.ir.element_type import ALL, string
from engine.ops.cases import OperatorCase, all_cases
from engine.ops.cases.data import Array
from engine.ops.create import create


def _schema_text(element_type: ElementType) -> str:
    return f"tensor({onnx.TensorProto.DataType.Name(element_type.onnx).lower()})"


_BY_SCHEMA: Final = {_schema_text(each): each for each in ALL if each.onnx}


def _first_cases() -> dict[str, OperatorCase]:
    found: dict[str, OperatorCase] = {}
    for case in all_cases().values():
        if not case.domain and any(case.inputs):
            found.setdefault(case.op_type, case)
    return found


_CASES: Final = _first_cases()
TYPED_OPERATORS: Final = sorted(_CASES)
"""The operators that `typed_models` has models of."""


def typed_models(op_type: str) -> Iterator[tuple[str, list[Model]]]:
    """Models of one node for each type that ONNX allows for the operator's data, with the type's name.

    Other inputs of the data's type get the new one, too, where ONNX allows it; the rest are those of the operator's
    first case. The second model, if there is one, has constants in place of all inputs but the first, which some
    devices need.
    """
    case = _CASES[op_type]
    formals = onnx.defs.get_schema(op_type).inputs
    variables = [formals[min(index, len(formals) - 1)] for index in range(len(case.inputs))]
    several = (each for each in zip(variables, case.inputs, strict=True) if each[1] and len(each[0].types) > 1)
    data, of_data = next(several, (None, None))
    if data is None or of_data is None:
        return
    for element_type in sorted((_BY_SCHEMA[text] for text in data.types if text in _BY_SCHEMA), key=ALL.index):
        text = _schema_text(element_type)
        types = [
            None
            if given is None
            else element_type
            if formal.type_str == data.type_str or (given.type is of_data.type and text in formal.types)
            else given.type
            for formal, given in zip(variables, case.inputs, strict=True)
        ]
        try:
            yield element_type.name, list(_models(case, types))
        except ModelError:
            continue  # an attribute, or another input, admits only some of the types


def _models(case: OperatorCase, types: Sequence[ElementType | None]) -> Iterator[Model]:
    yield _model(case, types, as_constants=False)
    if sum(each is not None for each in types) > 1 and string not in types:
        yield _model(case, types, as_constants=True)


def _model(case: OperatorCase, types: Sequence[ElementType | None], *, as_constants: bool) -> Model:
    sources: list[Parameter | Constant | None] = []
    for index, (given, array, element_type) in enumerate(zip(case.inputs, case.arrays(), types, strict=True)):
        if given is None or array is None or element_type is None:
            sources.append(None)
        elif element_type is given.type and given.is_constant:
            sources.append(Constant(array, given.type))
        elif as_constants and index:
            sources.append(Constant(_converted(array, element_type)))
        else:
            sources.append(Parameter(element_type, PartialShape(array.shape), f"x{index}"))
    attributes = {k: v.onnx if isinstance(v, ElementType) else v for k, v in case.attributes.items()}
    node = create(case.op_type, sources, attributes, num_outputs=case.num_outputs, friendly_name="node")
    return Model(list(node.outputs), [each for each in sources if isinstance(each, Parameter)], name=case.op_type)


def _converted(array: Array, element_type: ElementType) -> Array:
    with np.errstate(all="ignore"):
        return np.asarray(array).astype(element_type.numpy)
