"""The operator registry: one `OpDef` per operator at the canonical opset, created from its `onnx.defs` schema.

The decorators here add type rules and evaluators to an `OpDef`; each family of operators has its module.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias

from engine.errors import ModelError, UnknownOperatorError, UnsupportedError
from engine.ir import ElementType, Node, ValueType
from engine.ir.element_type import ALL
from engine.ops.families import import_family
from engine.ops.protos import attribute_from_proto
from engine.ops.traits import Traits, traits_of_operator
from engine.startup import dataclass
from engine.startup.onnx_library import default_value, onnx

CANONICAL_OPSET: Final = 28
"""The version of ONNX's own domain for all nodes of a `Model`."""
ML_OPSET: Final = 5
"""The canonical version of `ai.onnx.ml`."""
TRAINING_OPSET: Final = 1
"""The canonical version of `ai.onnx.preview.training`."""
INTERNAL_DOMAIN: Final = "engine"
"""The domain of internal operators; see `engine.ops.internal`."""
CANONICAL_VERSIONS: Final[dict[str, int]] = {
    "": CANONICAL_OPSET,
    "ai.onnx.ml": ML_OPSET,
    "ai.onnx.preview": 1,
    "ai.onnx.preview.training": TRAINING_OPSET,
}
"""Canonical version by domain; all other domains are custom."""
if onnx.defs.onnx_opset_version() < CANONICAL_OPSET:
    raise UnsupportedError(
        f"onnx {onnx.__version__} defines the operators up to opset {onnx.defs.onnx_opset_version()}; opset "
        f"{CANONICAL_OPSET} is needed, which onnx 1.23 has: pip install 'onnx>=1.23'"
    )
KEPT_DEPRECATED: Final = frozenset({("ai.onnx.ml", "TreeEnsembleClassifier"), ("ai.onnx.ml", "TreeEnsembleRegressor")})
"""Operators that are kept although deprecated: their successor lacks some features, such as base values."""

TypeRule: TypeAlias = "Callable[[Node], Sequence[ValueType] | None]"
"""Returns the output types of a node, or None to use ONNX's own inference. Raises `TypeInferenceError`."""
Evaluator: TypeAlias = "Callable[[Sequence[Any]], tuple[Any, ...]]"
"""Returns the outputs of one node for its inputs; None is an omitted input. Safe for concurrent calls."""
EvaluatorFactory: TypeAlias = "Callable[[Node], Evaluator]"
OutputCount: TypeAlias = "Callable[[Sequence[Any], dict[str, Any]], int]"


@dataclass(frozen=True, slots=True)
class OpPort:
    """A formal input or output of an operator.

    Attributes:
        name: its name in the schema.
        elements: the allowed element types of tensors; empty if tensors are not allowed.
        others: the allowed types of sequences, optionals and maps, as ONNX writes them (`seq(tensor(float))`).
        type_name: ports with the same type variable have the same type.
    """

    name: str
    elements: frozenset[ElementType]
    others: frozenset[str]
    type_name: str
    is_optional: bool
    is_variadic: bool
    is_homogeneous: bool


@dataclass(frozen=True, slots=True)
class AttributeDef:
    """An attribute of an operator: `kind` is a value of `AttributeProto.AttributeType`; None means no default."""

    name: str
    kind: int
    required: bool
    default: Any


class OpDef:
    """The definition of one operator at the canonical opset.

    Attributes:
        name: the op type.
        domain: its domain, "" for ONNX's own.
        schema: the `onnx.defs.OpSchema`.
        since_version: the opset version of the operator's current definition.
        inputs: the formal inputs in order; a variadic one is last.
        outputs: the formal outputs in order; a variadic one is last.
        min_inputs: the number of required inputs.
        max_inputs: the maximum number of inputs; unlimited if variadic.
        min_outputs: the minimum number of outputs.
        max_outputs: the maximum number of outputs.
        attributes: the attributes by name.
        required: the names of the required attributes.
        is_plain: whether every node has the same number of inputs, one output, and no required attributes.
        agreement: the comparison of its inputs' lengths that ONNX's inference lacks, if any.
        restriction: the check of the values of its constant inputs that ONNX's inference lacks, if any.
        rule: the engine's type rule, if any.
        evaluator: the engine's evaluator, if any.
        count_outputs: the default number of outputs of a node; None is the number required.
        extension: name and version of the extension that defines it; "" for all other operators.
        definition: the `engine.ops.extension.Operator` of an operator of an extension; None for all others.
    """

    __slots__ = (
        "agreement", "attributes", "count_outputs", "definition", "domain", "evaluator", "extension", "inputs",
        "is_plain", "max_inputs", "max_outputs", "min_inputs", "min_outputs", "name", "outputs", "required",
        "restriction", "rule", "schema", "since_version",
    )  # fmt: skip

    def __init__(self, schema: onnx.defs.OpSchema) -> None:
        self.name: str = schema.name
        self.domain: str = schema.domain
        self.schema = schema
        self.since_version = int(schema.since_version)
        self.min_inputs: int = schema.min_input
        self.max_inputs: int = schema.max_input
        self.min_outputs: int = max(schema.min_output, 1)
        self.max_outputs: int = schema.max_output
        self.agreement: Callable[[Node], None] | None = None
        self.restriction: Callable[[Node], None] | None = None
        self.rule: TypeRule | None = None
        self.evaluator: EvaluatorFactory | None = None
        self.count_outputs: OutputCount | None = None
        self.extension = ""
        self.definition: Any = None

    def __getattr__(self, name: str) -> Any:
        """Read the rest of the schema on first use, because a model uses only a few of two hundred operators."""
        if name == "schema":
            self.schema = onnx.defs.get_schema(self.name, self.since_version, self.domain)
            return self.schema
        if name not in _READ_LATER:
            raise AttributeError(f"{self!r} has no attribute {name!r}")
        self.inputs = tuple(_port(port) for port in self.schema.inputs)
        self.outputs = tuple(_port(port) for port in self.schema.outputs)
        self.attributes = {name: _attribute(a) for name, a in self.schema.attributes.items()}
        self.required = tuple(name for name, a in self.attributes.items() if a.required)
        self.is_plain = self.max_outputs == 1 and self.min_inputs == self.max_inputs and not self.required
        return getattr(self, name)

    @property
    def traits(self) -> Traits:
        """The promises of all of its nodes."""
        return traits_of_operator(self.name, self.domain)

    @property
    def is_commutative(self) -> bool:
        """Whether the first two inputs may be swapped."""
        return self.traits.commutative

    @property
    def is_deterministic(self) -> bool:
        """Whether equal inputs and attributes give equal outputs."""
        return not self.traits.random

    @property
    def is_variadic(self) -> bool:
        """Whether the last formal input may repeat."""
        return bool(self.inputs) and self.inputs[-1].is_variadic

    def input_port(self, index: int) -> OpPort:
        """The formal input of input `index`; a variadic last one repeats."""
        return self.inputs[min(index, len(self.inputs) - 1)]

    def input_name(self, index: int) -> str:
        """The name of input `index` in the schema; variadic ones are numbered."""
        port = self.input_port(index)
        return f"{port.name}[{index - len(self.inputs) + 1}]" if port.is_variadic else port.name

    def __str__(self) -> str:
        return f"{self.domain}.{self.name}" if self.domain else self.name

    def __repr__(self) -> str:
        return f"<OpDef {self} since {self.since_version}>"


def get_op(op_type: str, domain: str = "") -> OpDef:
    """The definition of an operator. Raises `UnknownOperatorError` with similar names."""
    found = find_op(op_type, domain)
    if found is None:
        raise UnknownOperatorError(_unknown(op_type, domain))
    return found


def find_op(op_type: str, domain: str = "") -> OpDef | None:
    """The definition of an operator; None if the canonical opset does not have it."""
    ops = _OPS.get(domain)
    if ops is None and import_family((domain, op_type)):
        ops = _OPS.get(domain)
    return None if ops is None else ops[op_type]


def definition_of(op_type: str, domain: str = "") -> OpDef:
    """The definition of an operator, perhaps without what its family declares: for code that only names operators.

    Raises `UnknownOperatorError` with similar names.
    """
    known: dict[str, OpDef | None] = _OPS.get(domain, {})
    found = known.get(op_type) or _definition(op_type, domain)
    return get_op(op_type, domain) if found is None else found


def all_ops() -> list[OpDef]:
    """Every operator of the canonical opsets by name, ONNX's own first, without internal ones (`register_op`)."""
    names = sorted({(s.domain, s.name) for s in onnx.defs.get_all_schemas() if s.domain in CANONICAL_VERSIONS})
    return [op for domain, name in names if (op := find_op(name, domain)) is not None]


def register_op(op: OpDef) -> None:
    """Register an operator that ONNX does not define: see `engine.ops.internal` and `engine.ops.extension`.

    Raises `ModelError` if the name is taken.
    """
    import_family((op.domain, op.name))
    ops = _OPS.setdefault(op.domain, _Ops(op.domain))
    if op.domain in CANONICAL_VERSIONS or op.name in ops:
        raise ModelError(f"operator {op} is defined already, or of a domain that ONNX defines")
    ops[op.name] = op


def attribute(node: Node, name: str) -> Any:
    """The value of an attribute of `node`, or its default in the schema; None if there is neither.

    Raises `ModelError` if the operator does not have the attribute, or requires it but the node lacks it.
    """
    value = node.attributes.get(name)
    if value is not None:
        return value
    definition = get_op(node.op_type, node.domain).attributes.get(name)
    if definition is None:
        known = ", ".join(sorted(get_op(node.op_type, node.domain).attributes)) or "none"
        raise ModelError(f"{node}: {node.op_type} has no attribute {name!r}; it has {known}")
    if definition.required:
        raise ModelError(f"{node}: required attribute {name!r} is missing")
    return definition.default


# -- decorators for the families of operators -------------------------------------------------------------


def infers(*op_types: str, domain: str = "") -> Callable[[TypeRule], TypeRule]:
    """Decorator: the function is the type rule of these operators."""

    def register(rule: TypeRule) -> TypeRule:
        _declare("rule", rule, op_types, domain)
        return rule

    return register


def compares(*op_types: str, domain: str = "") -> Callable[[Callable[[Node], None]], Callable[[Node], None]]:
    """Decorator: the function raises `TypeInferenceError` if lengths of these operators' inputs disagree."""

    def register(agreement: Callable[[Node], None]) -> Callable[[Node], None]:
        _declare("agreement", agreement, op_types, domain)
        return agreement

    return register


def restricts(*op_types: str, domain: str = "") -> Callable[[Callable[[Node], None]], Callable[[Node], None]]:
    """Decorator: the function raises `TypeInferenceError` if a constant input of these operators has a value that they
    do not allow.

    It is called for every node whose types are valid, without a memo, so it must only read inputs that are constants.
    """

    def register(restriction: Callable[[Node], None]) -> Callable[[Node], None]:
        _declare("restriction", restriction, op_types, domain)
        return restriction

    return register


def compiles(*op_types: str, domain: str = "") -> Callable[[EvaluatorFactory], EvaluatorFactory]:
    """Decorator: the function creates the evaluator of a node of these operators, once for many calls."""

    def register(factory: EvaluatorFactory) -> EvaluatorFactory:
        _declare("evaluator", factory, op_types, domain)
        return factory

    return register


def evaluates(*op_types: str, domain: str = "") -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorator: the function evaluates these operators.

    It takes the inputs positionally (None if omitted) and, as keyword-only parameters, the attributes that it needs,
    and optionally `num_outputs`; it returns the output, or a tuple of outputs.
    """

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        def factory(node: Node) -> Evaluator:
            parameters = inspect.signature(function).parameters.values()
            names = [p.name for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY]
            keywords = {n: node.num_outputs if n == "num_outputs" else attribute(node, n) for n in names}

            def run(inputs: Sequence[Any]) -> tuple[Any, ...]:
                result = function(*inputs, **keywords)
                return result if type(result) is tuple else (result,)

            return run

        compiles(*op_types, domain=domain)(factory)
        return function

    return register


def counts_outputs(*op_types: str, domain: str = "") -> Callable[[OutputCount], OutputCount]:
    """Decorator: the function gives the number of outputs of a node for its inputs and attributes, if it gives none."""

    def register(count: OutputCount) -> OutputCount:
        _declare("count_outputs", count, op_types, domain)
        return count

    return register


def _declare(field: str, value: object, op_types: Sequence[str], domain: str) -> None:
    """Set a field of operators, also of those that nobody has looked up yet: few of them are, in most processes."""
    known: dict[str, OpDef | None] = _OPS.get(domain, {})
    for op_type in op_types:
        _FIELDS.setdefault((domain, op_type), {})[field] = value
        if (op := known.get(op_type)) is not None:
            setattr(op, field, value)


# -- schemas to definitions -------------------------------------------------------------------------------

_NO_DEFAULT: Final = (onnx.AttributeProto.UNDEFINED, onnx.AttributeProto.GRAPH)


def _onnx_names() -> dict[str, ElementType]:
    names = {onnx.TensorProto.DataType.Name(t.onnx).lower(): t for t in ALL if t.onnx}
    return {f"tensor({name})": element_type for name, element_type in names.items()}


TENSOR_NAMES: Final = _onnx_names()
"""The element types of tensors, by ONNX's name of a tensor's type."""


def _port(port: onnx.defs.OpSchema.FormalParameter) -> OpPort:
    option = onnx.defs.OpSchema.FormalParameterOption
    return OpPort(
        name=port.name,
        elements=frozenset(TENSOR_NAMES[name] for name in port.types if name in TENSOR_NAMES),
        others=frozenset(name for name in port.types if name not in TENSOR_NAMES),
        type_name=port.type_str,
        is_optional=port.option == option.Optional,
        is_variadic=port.option == option.Variadic,
        is_homogeneous=port.is_homogeneous,
    )


def _attribute(attribute: onnx.defs.OpSchema.Attribute) -> AttributeDef:
    default = default_value(attribute)
    has_default = default.type not in _NO_DEFAULT and not attribute.required
    return AttributeDef(
        name=attribute.name,
        kind=int(attribute.type),  # type: ignore[call-overload]
        required=attribute.required,
        default=attribute_from_proto(default) if has_default else None,
    )


class _Ops(dict[str, "OpDef | None"]):
    """The operators of a domain by name, each created on first lookup; None for unknown names."""

    __slots__ = ("_domain",)

    def __init__(self, domain: str) -> None:
        self._domain = domain

    def __missing__(self, name: str) -> OpDef | None:
        if import_family((self._domain, name)) and name in self:
            return self[name]
        op = _definition(name, self._domain)
        if op is None:
            return None
        for field, value in _FIELDS.get((self._domain, name), {}).items():
            setattr(op, field, value)
        return self.setdefault(name, op)  # another thread may have been faster


def _definition(name: str, domain: str) -> OpDef | None:
    if domain not in CANONICAL_VERSIONS:
        return None
    try:
        schema = onnx.defs.get_schema(name, CANONICAL_VERSIONS[domain], domain)
    except onnx.defs.SchemaError:
        return None  # unknown, or newer than the canonical opset
    if (domain, name) in KEPT_DEPRECATED and schema.deprecated:
        schema = onnx.defs.get_schema(name, schema.since_version - 1, domain)  # the same, but inferred by ONNX
    if schema.deprecated:
        return None
    op = OpDef(schema)
    del op.schema  # a copy, with its documentation: all operators' copies take megabytes
    return op


_READ_LATER: Final = frozenset(["inputs", "outputs", "attributes", "required", "is_plain"])
_FIELDS: Final[dict[tuple[str, str], dict[str, Any]]] = {}
"""What the decorators have set, by operator."""
_OPS: Final = {domain: _Ops(domain) for domain in CANONICAL_VERSIONS}


def _unknown(op_type: str, domain: str) -> str:
    version = CANONICAL_VERSIONS.get(domain)
    if version is None:
        return (
            f"operator {op_type!r} of domain {domain!r} is not one of ONNX's; "
            f"build a node of a custom domain with engine.ir.Node({op_type!r}, inputs, attributes, domain={domain!r})"
        )
    import difflib  # for messages of errors alone

    names = {op.name.lower(): op.name for op in all_ops() if op.domain == domain}
    close = [names[name] for name in difflib.get_close_matches(op_type.lower(), list(names), n=3)]
    elsewhere = [str(op) for op in all_ops() if op.name == op_type and op.domain != domain]
    hint = f"did you mean {', '.join(close + elsewhere)}?" if close or elsewhere else "see engine.ops.all_ops()"
    place = f"opset {version} of {domain or 'ONNX'}"
    return f"operator {op_type!r} is not in {place}; {hint}"
