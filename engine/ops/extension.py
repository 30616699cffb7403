"""`Operator`: an operator that a user defines, by names of inputs and outputs, attributes, type rule and evaluation.

`define` makes operators known to the whole process, because nodes name their operators and belong to no core. So one
name has one meaning in a process: another definition is refused. `engine.extensions` decides which core uses them.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from types import MappingProxyType, NoneType, UnionType
from typing import Any, Final, Protocol, TypeAlias, get_args

import numpy as np

from engine.errors import DeviceError, EngineError, ExtensionConflictError, ExtensionError, ModelError
from engine.ir import UNKNOWN, Constant, Node, Output, Parameter, PartialShape, TensorType, ValueType, string, undefined
from engine.ops.axes import AxesFunction, declare_axes
from engine.ops.expression import ExpressionEvaluator, ExpressionFunction, expand, expression_types
from engine.ops.protos import attribute_kind
from engine.ops.registry import (
    CANONICAL_VERSIONS,
    INTERNAL_DOMAIN,
    TENSOR_NAMES,
    Evaluator,
    OpDef,
    attribute,
    find_op,
    get_op,
    register_op,
)
from engine.ops.rules import check_inputs, fail
from engine.ops.traits import NO_TRAITS, Traits, declare_traits
from engine.startup import dataclass
from engine.startup.onnx_library import onnx

InferFunction: TypeAlias = Callable[[Sequence[Any], Mapping[str, Any]], Any]
KernelAttribute: TypeAlias = tuple[str, int, Any]
"""Name, kind as `engine_kernel.h` numbers it, and value: int, float, str or a list of them."""
EvaluateFunction: TypeAlias = Callable[..., Any]

_NAME: Final = re.compile(r"[A-Za-z_]\w*")
_DOMAIN: Final = re.compile(r"[A-Za-z_][\w.-]*")
_PORT: Final = re.compile(r"([A-Za-z_]\w*)(\?|\.\.\.)?")
_A: Final = onnx.AttributeProto
_KERNEL_KINDS: Final[dict[int, int]] = {_A.INT: 1, _A.FLOAT: 2, _A.STRING: 3, _A.INTS: 4, _A.FLOATS: 5, _A.STRINGS: 6}
_FITTING: Final[dict[int, tuple[int, ...]]] = {_A.FLOAT: (_A.FLOAT, _A.INT), _A.FLOATS: (_A.FLOATS, _A.INTS)}
"""The kinds of values for attributes that take more than one."""
_MAX_PREPARED: Final = 8
"""The number of shapes of inputs for which an evaluation keeps a kernel's preparations."""
_AttrType = onnx.defs.OpSchema.AttrType
_REQUIRED: Final[dict[Any, Any]] = {
    int: _AttrType.INT, float: _AttrType.FLOAT, str: _AttrType.STRING, list[int]: _AttrType.INTS,
    list[float]: _AttrType.FLOATS, list[str]: _AttrType.STRINGS,
}  # fmt: skip


class OperatorKernel(Protocol):
    """The native kernel of an operator: `engine.native.LibraryKernel`."""

    def refusal(self, node: Node, attributes: Sequence[KernelAttribute]) -> str | None:
        """Why it cannot compute the node; None if it can."""
        ...

    def prepare(
        self, node: Node, attributes: Sequence[KernelAttribute], constants: Mapping[int, Any], title: str
    ) -> Any:
        """The computation of a node of known shapes; `constants` are known inputs. Raises `DeviceError`."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    """The definition of an operator.

        Operator(
            name="Swirl",
            domain="com.example",
            inputs=["x", "scale?"],
            attributes={"turns": 1.0, "axis": int},
            infer=lambda inputs, attributes: inputs[0],
            evaluate=lambda x, scale, turns, axis: ...,
        )

    Attributes:
        name: the op type in models.
        domain: the domain in models: a name of yours, such as your company's; ONNX's own domains cannot be extended.
        inputs: the names of the inputs, all of which are tensors. "w?" may be omitted, "xs..." may repeat and is last.
        outputs: the names of the outputs, all of which are tensors; a node of a model may name fewer, at least one.
            All are computed.
        attributes: for each attribute, its default, or the type of a required one: `int`, `float`, `str`, or
            `list[int]` and so on. A union with None, such as `int | None`, means that it is optional and has no
            default.
        expression: what the operator computes, by other operators: takes the inputs as values (None if omitted) and the
            attributes by keyword, and returns a node or a value of the engine's IR for each output, such as
            `ops.Mul(x, ops.Sigmoid(x))`. The type rule and the evaluation follow from it. Devices replace nodes by it,
            so that they run natively, and elementwise operators become parts of one kernel. Called for all types and
            attributes of nodes, so it should check neither.
        infer: the type rule: takes the types of the inputs (`engine.ir.TensorType`, None if omitted) and the attributes
            by name, returns the type of the output, or a sequence with the type of each. Called when the element types
            of all inputs are known; ranks and lengths may be unknown. What it raises becomes a `TypeInferenceError`
            with the node's name.
        evaluate: computes a node on numpy arrays: takes the inputs in order (None if omitted), which it must not
            modify, and the attributes by keyword; returns the output, or a tuple of outputs, of the types that `infer`
            has given. Called by several threads at once. Optional for an operator with a kernel or an expression.
        version: the lowest version of the domain in which models may use the operator.
        is_deterministic: whether equal inputs give equal outputs; otherwise nodes are neither folded nor merged.
        doc: what it computes.
        kernel: set for operators of a library; see `Extension`.
        traits: what is promised of all nodes, so that passes move and fold them; nothing of one that is not
            deterministic.
        axes: how axes of the outputs follow from the inputs' axes, as `AxisMapping` writes it: "N C, C -> N C'".
            `engine.testing.facts.check_facts` finds promises that are not kept.

    Raises `ExtensionError` if a name or an attribute is not valid.
    """

    name: str
    domain: str
    inputs: Sequence[str]
    infer: InferFunction | None = None
    evaluate: EvaluateFunction | None = None
    expression: ExpressionFunction | None = None
    outputs: Sequence[str] = ("y",)
    attributes: Mapping[str, Any] = field(default_factory=dict)
    version: int = 1
    is_deterministic: bool = True
    doc: str = ""
    kernel: OperatorKernel | None = None
    traits: Traits = NO_TRAITS
    axes: str | AxesFunction | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not _NAME.fullmatch(self.name):
            raise ExtensionError(
                f"{self.name!r} is not a valid name of an operator: expected letters, digits and underscores"
            )
        if not isinstance(self.domain, str) or not _DOMAIN.fullmatch(self.domain):
            raise ExtensionError(
                f"operator {self.name}: {self.domain!r} is not a valid domain; expected a name such as com.example, "
                "in letters, "
                "digits, '.', '_' and '-'"
            )
        object.__setattr__(self, "inputs", self._names(self.inputs, "inputs"))
        object.__setattr__(self, "outputs", self._names(self.outputs, "outputs"))
        if any(name.endswith("...") for name in (*self.inputs[:-1], *self.outputs)):
            raise ExtensionError(f"operator {self}: only the last input may repeat; got {self.inputs}, {self.outputs}")
        if not self.outputs or any(name.endswith("?") for name in self.outputs):
            raise ExtensionError(f"operator {self}: expected one output or more, named without '?'; got {self.outputs}")
        if type(self.version) is not int or self.version < 1:
            raise ExtensionError(f"operator {self}: version {self.version!r}; expected an int, 1 or more")
        for what in ("infer", "evaluate", "expression"):
            is_needed = what == "infer" and self.expression is None
            if not callable(getattr(self, what)) and (is_needed or getattr(self, what) is not None):
                raise ExtensionError(f"operator {self}: {what} must be a function; got {getattr(self, what)!r}")
        if self.expression is not None and (self.infer is not None or self.evaluate is not None):
            raise ExtensionError(f"operator {self}: infer and evaluate follow from its expression; leave them out")
        if not isinstance(self.attributes, Mapping):
            raise ExtensionError(f"operator {self}: attributes must be a dict; got {self.attributes!r:.200}")
        attributes = {name: tuple(v) if isinstance(v, list) else v for name, v in self.attributes.items()}
        object.__setattr__(self, "attributes", MappingProxyType(attributes))
        for name, given in attributes.items():
            self._declared(name, given)

    def __str__(self) -> str:
        return f"{self.domain}.{self.name}"

    def __hash__(self) -> int:
        return hash((self.name, self.domain))

    def values(self, node: Node) -> dict[str, Any]:
        """The attributes of a node, with defaults.

        Raises `ModelError` if a required one is missing, or one is of another type, as a blob may have it.
        """
        kinds = get_op(self.name, self.domain).attributes
        values = {name: attribute(node, name) for name in self.attributes}
        for name, value in values.items():
            kind: int = kinds[name].kind
            is_empty = value == () and kind in (_A.INTS, _A.FLOATS, _A.STRINGS)
            if value is not None and not is_empty and attribute_kind(value) not in _FITTING.get(kind, (kind,)):
                wanted = _A.AttributeType.Name(kind).lower()
                raise ModelError(f"{node}: attribute {name!r} must be of type {wanted}; got {value!r:.80}")
        return values

    def expanded(self, node: Node) -> list[Output] | None:
        """The values of the expression for the inputs of `node`, one for each output; None without an expression.

        Raises `ModelError` and the errors of the expression.
        """
        if self.expression is None:
            return None
        inputs = [*node.input_values, *[None] * (len(self._single()) - node.num_inputs)]
        return expand(self.expression, inputs, self.values(node), len(self.outputs))

    def kernel_attributes(self, node: Node) -> list[KernelAttribute]:
        """The attributes of a node that have a value, as its kernel takes them. Raises `ModelError` like `values`."""
        kinds = get_op(self.name, self.domain).attributes
        return [
            (name, _KERNEL_KINDS[kinds[name].kind], list(value) if isinstance(value, tuple) else value)
            for name, value in self.values(node).items()
            if value is not None
        ]

    def kernel_types(self, node: Node) -> tuple[TensorType, ...] | None:
        """The types of a kernel's outputs for these inputs; None if the type rule does not determine them.

        They come from the type rule, since the kernel writes as many elements, whatever a file declares. Raises
        `ModelError` unless the node has all outputs, which the kernel writes.
        """
        self._require_all_outputs(node)
        types = tuple(self._rule(node))
        known = tuple(each for each in types if isinstance(each, TensorType) and each.element_type is not undefined)
        return known if len(known) == len(types) and all(each.shape.is_static for each in known) else None

    def _require_all_outputs(self, node: Node) -> None:
        if node.num_outputs < len(self.outputs):
            raise ModelError(
                f"{node}: its kernel writes {len(self.outputs)} outputs ({', '.join(self.outputs)}), and the node has "
                f"{node.num_outputs}; make it with all"
            )

    def _names(self, names: Sequence[str], what: str) -> tuple[str, ...]:
        if isinstance(names, str) or not all(isinstance(name, str) and _PORT.fullmatch(name) for name in names):
            raise ExtensionError(
                f"operator {self}: {what} are {names!r}; expected a list of names, each with '?' or '...' behind it "
                "if it may be omitted or repeated"
            )
        plain = [name.rstrip("?.") for name in names]
        if len(set(plain)) < len(plain):
            raise ExtensionError(f"operator {self}: {what} are {list(names)!r}; expected names that differ")
        return tuple(names)

    def _declared(self, name: str, given: Any) -> onnx.defs.OpSchema.Attribute:
        """The attribute of a schema."""
        schema = onnx.defs.OpSchema.Attribute
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise ExtensionError(
                f"operator {self}: {name!r} is not a valid name of an attribute: expected letters, digits and "
                "underscores"
            )
        try:
            if given in _REQUIRED:
                return schema(name, _REQUIRED[given], required=True)
            if isinstance(given, UnionType) and NoneType in get_args(given):
                (kind,) = [each for each in get_args(given) if each is not NoneType]
                return schema(name, _REQUIRED[kind], required=False)
            return schema(name, onnx.helper.make_attribute(name, given))
        except (TypeError, ValueError, KeyError):
            pass
        raise ExtensionError(
            f"operator {self}: attribute {name!r} is declared as {given!r}; expected a default (int, float, str, or a "
            "list of them that is not empty), a type such as float or list[int] if nodes must give it, or int | None"
        )

    def _definition(self, extension: str) -> OpDef:
        option = onnx.defs.OpSchema.FormalParameterOption
        port = onnx.defs.OpSchema.FormalParameter
        kinds = {None: option.Single, "?": option.Optional, "...": option.Variadic}
        inputs = []
        for index, text in enumerate(self.inputs):
            name, suffix = _PORT.fullmatch(text).groups()  # type: ignore[union-attr]
            least = 0 if suffix == "..." else 1
            inputs.append(port(name, f"I{index}", param_option=kinds[suffix], is_homogeneous=False, min_arity=least))
        outputs = [
            port(name, f"O{index}", param_option=option.Optional if index else option.Single)
            for index, name in enumerate(self.outputs)
        ]
        op = OpDef(
            onnx.defs.OpSchema(
                self.name,
                self.domain,
                self.version,
                self.doc,
                inputs=inputs,
                outputs=outputs,
                type_constraints=[(each.type_str, sorted(TENSOR_NAMES), "any tensor") for each in (*inputs, *outputs)],
                attributes=[self._declared(name, given) for name, given in self.attributes.items()],
            )
        )
        # A schema counts all inputs before a repeated one as required.
        op.min_inputs = max((i + 1 for i, text in enumerate(self.inputs) if text[-1] not in "?."), default=0)
        op.extension, op.definition = extension, self
        op.rule, op.evaluator = self._rule, self._compile
        op.count_outputs = lambda inputs, attributes: len(self.outputs)
        return op

    # -- types --------------------------------------------------------------------------------------------

    def _rule(self, node: Node) -> Sequence[ValueType]:
        op = find_op(self.name, self.domain)
        assert op is not None
        if node.num_inputs > op.max_inputs:
            fail(node, f"{self} takes at most {op.max_inputs} inputs, got {node.num_inputs}")
        check_inputs(node, op)
        given = [None if source is None else source.type for source in node.input_values]
        if any(isinstance(each, TensorType) and each.element_type is undefined for each in given):
            return (UNKNOWN,) * node.num_outputs
        values = self.values(node)
        try:
            shown: Any = given + [None] * (len(self._single()) - len(given))
            if self.expression is not None:
                found: Any = expression_types(self.expression, shown, values, len(self.outputs))
            else:
                assert self.infer is not None
                found = self.infer(shown, values)
        except Exception as e:
            fail(node, f"the type rule of {op.extension} refuses it: {error_text(e)}", e)
        types = (found,) if isinstance(found, TensorType) else tuple(found) if isinstance(found, (list, tuple)) else ()
        if len(types) < node.num_outputs or not all(isinstance(each, TensorType) for each in types):
            fail(
                node,
                f"the type rule of {op.extension} returns {found!r:.200}; expected a TensorType for each of "
                f"{len(self.outputs)} outputs ({', '.join(self.outputs)})",
            )
        return types[: node.num_outputs]

    def _single(self) -> list[str]:
        """The inputs that do not repeat."""
        return [name for name in self.inputs if not name.endswith("...")]

    # -- evaluation ---------------------------------------------------------------------------------------

    def _compile(self, node: Node) -> Evaluator:
        op = find_op(self.name, self.domain)
        assert op is not None
        title = f"{node} ({op.extension})"
        expected = [output.type for output in node.outputs]
        evaluate, keywords = self.evaluate, self.values(node)
        if self.expression is not None:
            evaluate, keywords = ExpressionEvaluator(self.expression, keywords, len(self.outputs)), {}
        if evaluate is None:
            return self._by_kernel(node, title)
        padding = (None,) * (len(self._single()) - node.num_inputs)

        def run(inputs: Sequence[Any]) -> tuple[Any, ...]:
            result = evaluate(*map(_read_only, inputs), *padding, **keywords)
            values = result if isinstance(result, tuple) else (result,)
            if len(values) < len(expected):
                raise DeviceError(f"{title}: evaluate returns {len(values)} outputs; expected {len(self.outputs)}")
            return tuple(
                _checked(value, value_type, f"{title}: output {name}")
                for value, value_type, name in zip(values, expected, self.outputs, strict=False)
            )

        return run

    def _by_kernel(self, node: Node, title: str) -> Evaluator:
        """Evaluation by the native kernel, on one thread. Raises `ModelError` as `kernel_types` does."""
        self._require_all_outputs(node)
        alone = node.clone_with_new_inputs(
            [None if v is None else Parameter(v.type, friendly_name=v.name) for v in node.input_values]
        )
        alone.friendly_name = node.friendly_name
        constant = [i for i, v in enumerate(node.input_values) if v is not None and isinstance(v.node, Constant)]
        known: dict[tuple[object, ...], _Prepared] = {}

        def run(inputs: Sequence[Any]) -> tuple[Any, ...]:
            arrays = [np.require(value, requirements=["C", "A"]) for value in inputs if value is not None]
            key = tuple(None if value is None else value.shape for value in inputs)
            prepared = known.get(key)
            if prepared is None:
                if len(known) >= _MAX_PREPARED:
                    known.clear()
                constants = {index: inputs[index] for index in constant}
                prepared = known[key] = _Prepared.of(self, alone, inputs, constants, title)
            return prepared.compute(arrays)

        return run


@dataclass(frozen=True, slots=True)
class _Prepared:
    """A kernel's preparation for known shapes, and the types of its outputs."""

    call: Any
    outputs: Sequence[TensorType]

    @classmethod
    def of(
        cls, operator: Operator, alone: Node, inputs: Sequence[Any], constants: Mapping[int, Any], title: str
    ) -> _Prepared:
        """Raises `DeviceError`."""
        assert operator.kernel is not None
        sources = [
            None if source is None else Parameter(source.element_type, value.shape, friendly_name=source.name)
            for source, value in zip(alone.input_values, inputs, strict=True)
        ]
        node = alone.clone_with_new_inputs(sources)
        node.friendly_name = alone.friendly_name
        node.forget_inferred_types()
        node.infer_types()
        types = operator.kernel_types(node)
        if types is None:
            listed = ", ".join(str(output.type) for output in node.outputs)
            raise DeviceError(f"{title}: its kernel cannot run, since the type rule gives the outputs {listed}")
        attributes = operator.kernel_attributes(node)
        if (why := operator.kernel.refusal(node, attributes)) is not None:
            raise DeviceError(f"{title}: its kernel does not support the node, and it has no evaluation: {why}")
        return cls(operator.kernel.prepare(node, attributes, constants, title), types)

    def compute(self, inputs: Sequence[Any]) -> tuple[Any, ...]:
        outputs = [np.empty(each.shape.get_shape(), each.element_type.numpy) for each in self.outputs]
        self.call.compute(inputs, outputs)
        return tuple(outputs)


def define(operators: Sequence[Operator], extension: str) -> None:
    """Make the operators of an extension known to the process, all or none. Equal definitions may be repeated.

    `extension` is the name and version of their extension. Raises `ExtensionConflictError`, and `ExtensionError` for an
    operator that can neither be evaluated nor has a kernel.
    """
    with _lock:
        fresh = []
        for operator in operators:
            if _is_taken(operator.domain):
                raise ExtensionConflictError(
                    f"extension {extension}: operator {operator} is of a domain that ONNX or the engine defines; use a "
                    "domain of your own"
                )
            if operator.evaluate is None and operator.kernel is None and operator.expression is None:
                raise ExtensionError(
                    f"extension {extension}: operator {operator} has neither an expression, nor evaluate, nor a kernel"
                )
            known = find_op(operator.name, operator.domain)
            if known is None:
                fresh.append(operator)
            elif not known.extension:
                raise ExtensionConflictError(
                    f"extension {extension}: the engine defines {operator} itself; give your operator another name or "
                    "domain"
                )
            elif known.definition != operator or known.extension != extension:
                raise ExtensionConflictError(
                    f"extension {extension}: operator {operator} is defined already in this process, by "
                    f"{known.extension}; give it another name, or start a new process"
                )
        if twice := {str(each) for each in fresh if sum(str(each) == str(other) for other in fresh) > 1}:
            raise ExtensionConflictError(f"extension {extension} defines {', '.join(sorted(twice))} twice")
        names = frozenset(map(str, operators))
        others = _defined.get(extension, names)
        if others != names:
            raise ExtensionConflictError(
                f"extension {extension}: another extension of this name and version is defined already in this "
                f"process, with the operators {', '.join(sorted(others))} instead of {', '.join(sorted(names))}; give "
                "this one another name or version, or add all operators at once"
            )
        for op in [operator._definition(extension) for operator in fresh]:
            traits = op.definition.traits if op.definition.is_deterministic else Traits(random=True)
            declare_traits((op.name,), traits, op.domain)
            if op.definition.axes is not None:
                declare_axes(op.name, axes=op.definition.axes, domain=op.domain)
            register_op(op)
        _defined[extension] = names


def _is_taken(domain: str) -> bool:
    return domain in (*CANONICAL_VERSIONS, INTERNAL_DOMAIN) or f"{domain}.".startswith("ai.onnx.")


_lock: Final = threading.Lock()
_defined: Final[dict[str, frozenset[str]]] = {}
"""The operators of each extension, by its name and version."""


# -- values -----------------------------------------------------------------------------------------------


def error_text(error: BaseException) -> str:
    """The error's message on one line, preceded by its class unless it is the engine's."""
    text = "; ".join(line for each in str(error).splitlines() if (line := each.strip()))
    if isinstance(error, EngineError):
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _read_only(value: Any) -> Any:
    """A view that cannot be written: other nodes may read the same memory."""
    if type(value) is not np.ndarray or not value.flags.writeable:
        return value
    view = value.view()
    view.flags.writeable = False
    return view


def _checked(value: Any, expected: ValueType, what: str) -> Any:
    """`value` as an array. Raises `DeviceError` unless it is of the type that the type rule has given."""
    if not isinstance(value, (np.ndarray, np.generic)):
        raise DeviceError(f"{what} is a {type(value).__name__}; evaluate must return numpy arrays")
    array = np.asarray(value)
    if not isinstance(expected, TensorType) or expected.element_type is undefined:
        return array
    if expected.element_type is string:
        array = _as_text(array, what)
    elif array.dtype != np.dtype(expected.element_type.numpy):
        raise DeviceError(
            f"{what} is {array.dtype}{list(array.shape)}, but the type rule says {expected}; make evaluate and infer "
            "agree"
        )
    if not expected.shape.compatible(PartialShape(array.shape)):
        raise DeviceError(
            f"{what} has the shape {list(array.shape)}, but the type rule says {expected}; make evaluate and infer "
            "agree"
        )
    return array


def _as_text(array: Any, what: str) -> Any:
    """An array of str. Raises `DeviceError` for anything else."""
    if array.dtype.kind in "UT":
        return array.astype(object)
    is_object = array.dtype.kind == "O"
    kinds = {type(element).__name__ for element in array.flat if not isinstance(element, str)} if is_object else ()
    if not is_object or kinds:
        found = ", ".join(sorted(kinds)) or array.dtype
        raise DeviceError(f"{what} holds {found}, but the type rule says strings; make evaluate and infer agree")
    return array
