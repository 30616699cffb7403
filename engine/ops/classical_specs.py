"""`ai.onnx.ml`: specs of linear models, support vectors, and encoders of features, and their widths."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from engine.errors import OperatorSpecError
from engine.ir import Dimension, MapType, Node, TensorType, as_dimension, i64, string
from engine.ops.registry import compares
from engine.ops.rules import fail
from engine.ops.spec import OperatorSpec, check_choice, check_min_rank, check_rank, refuse, specifies
from engine.startup import dataclass

_ML: Final = "ai.onnx.ml"
TRANSFORMS: Final = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT")
_KERNELS: Final = ("LINEAR", "POLY", "RBF", "SIGMOID")


@specifies("Normalizer", domain=_ML)
@dataclass(frozen=True, slots=True, kw_only=True)
class NormalizerSpec(OperatorSpec):
    """Divides each row by its norm: the largest magnitude, L1 or L2, as `norm` says."""

    norm: str

    @classmethod
    def resolve(cls, node: Node, given: dict[str, Any]) -> None:
        check_choice(node, "norm", given["norm"], ("MAX", "L1", "L2"))
        check_min_rank(node, 0, 1)


@specifies("Scaler", domain=_ML)
@dataclass(frozen=True, slots=True, kw_only=True)
class ScalerSpec(OperatorSpec):
    """(x - offset) * scale, with one value for all features or one for each."""

    offset: tuple[float, ...] | None
    scale: tuple[float, ...] | None

    @classmethod
    def resolve(cls, node: Node, given: dict[str, Any]) -> None:
        check_min_rank(node, 0, 1)


@specifies("Imputer", domain=_ML)
@dataclass(frozen=True, slots=True, kw_only=True)
class ImputerSpec(OperatorSpec):
    """Another value for missing ones: one for all features, or one for each."""

    imputed_value_floats: tuple[float, ...] | None
    imputed_value_int64s: tuple[int, ...] | None
    replaced_value_float: float
    replaced_value_int64: int

    @classmethod
    def resolve(cls, node: Node, given: dict[str, Any]) -> None:
        _check_one_of(node, given, "imputed_value_floats", "imputed_value_int64s")
        check_min_rank(node, 0, 1)

    @property
    def imputed(self) -> Sequence[float]:
        """The values to write: one for all features, or one for each."""
        return self.imputed_value_floats or self.imputed_value_int64s or ()


@specifies("LinearRegressor", domain=_ML)
@dataclass(frozen=True, slots=True, kw_only=True)
class LinearRegressorSpec(OperatorSpec):
    """A product with `coefficients` [targets, features]."""

    coefficients: tuple[float, ...] | None
    intercepts: tuple[float, ...] | None
    post_transform: str
    targets: int

    @classmethod
    def resolve(cls, node: Node, given: dict[str, Any]) -> None:
        check_choice(node, "post_transform", given["post_transform"], TRANSFORMS)
        check_rank(node, 0, 1, 2)
        if given["targets"] < 1:
            refuse(node, "targets", given["targets"], "1 or more")
        count = len(given["coefficients"] or ())
        if not count or count % given["targets"]:
            _refuse_count(node, "coefficients", count, f"as many for each of {given['targets']} targets")
        _check_count(node, given, "intercepts", 0, given["targets"])


@specifies("LinearClassifier", domain=_ML)
@dataclass(frozen=True, slots=True, kw_only=True)
class LinearClassifierSpec(OperatorSpec):
    """A product with `coefficients` [classes, features]; of two classes, the first may have none."""

    classlabels_ints: tuple[int, ...] | None
    classlabels_strings: tuple[str, ...] | None
    coefficients: tuple[float, ...]
    intercepts: tuple[float, ...] | None
    post_transform: str

    @classmethod
    def resolve(cls, node: Node, given: dict[str, Any]) -> None:
        check_choice(node, "post_transform", given["post_transform"], TRANSFORMS)
        check_rank(node, 0, 1, 2)
        _check_one_of(node, given, "classlabels_ints", "classlabels_strings")
        classes = len(given["classlabels_ints"] or given["classlabels_strings"])
        rows = (classes, 1) if classes == 2 else (classes,)
        _check_count(node, given, "intercepts", *rows)
        if not given["coefficients"] or all(len(given["coefficients"]) % count for count in rows):
            _refuse_count(node, "coefficients", len(given["coefficients"]), f"as many for each of {classes} classes")


@dataclass(frozen=True, slots=True, kw_only=True)
class _SupportVectorSpec(OperatorSpec):
    """The attributes of both operators on support vectors; `kernel_params` are gamma, coef0 and degree."""

    coefficients: tuple[float, ...] | None
    kernel_params: tuple[float, ...] | None
    kernel_type: str
    post_transform: str
    rho: tuple[float, ...] | None
    support_vectors: tuple[float, ...] | None

    @classmethod
    def resolve(cls, node: Node, given: dict[str, Any]) -> None:
        check_choice(node, "kernel_type", given["kernel_type"], _KERNELS)
        check_choice(node, "post_transform", given["post_transform"], TRANSFORMS)
        _check_count(node, given, "kernel_params", *((0, 3) if given["kernel_type"] == "LINEAR" else (3,)))
        check_rank(node, 0, 1, 2)


@specifies("SVMRegressor", domain=_ML)
@dataclass(frozen=True, slots=True, kw_only=True)
class SvmRegressorSpec(_SupportVectorSpec):
    """A sum over `n_supports` vectors; without any, a product with the coefficients."""

    n_supports: int
    one_class: bool

    @classmethod
    def resolve(cls, node: Node, given: dict[str, Any]) -> None:
        """See `OperatorSpec`."""
        super().resolve(node, given)
        count, numbers = given["n_supports"], len(given["support_vectors"] or ())
        if count < 0:
            refuse(node, "n_supports", count, "0 or more")
        _check_count(node, given, "rho", 1)
        if count:
            _check_count(node, given, "coefficients", count)
            if not numbers or numbers % count:
                _refuse_count(node, "support_vectors", numbers, f"as many for each of {count} vectors")
        elif not given["coefficients"]:
            _refuse_count(node, "coefficients", 0, "one for each feature")


@specifies("SVMClassifier", domain=_ML)
@dataclass(frozen=True, slots=True, kw_only=True)
class SvmClassifierSpec(_SupportVectorSpec):
    """A vote for each pair of classes; without support vectors, a product with the coefficients."""

    classlabels_ints: tuple[int, ...] | None
    classlabels_strings: tuple[str, ...] | None
    prob_a: tuple[float, ...] | None
    prob_b: tuple[float, ...] | None
    vectors_per_class: tuple[int, ...] | None

    @classmethod
    def resolve(cls, node: Node, given: dict[str, Any]) -> None:
        """See `OperatorSpec`."""
        super().resolve(node, given)
        _check_one_of(node, given, "classlabels_ints", "classlabels_strings")
        classes = len(given["classlabels_ints"] or given["classlabels_strings"])
        per_class, numbers = given["vectors_per_class"] or (), len(given["support_vectors"] or ())
        pairs = classes * (classes - 1) // 2
        if per_class:
            if len(per_class) != classes or min(per_class) < 0 or not sum(per_class):
                refuse(node, "vectors_per_class", per_class, f"a number of vectors for each of {classes} classes")
            if not numbers or numbers % sum(per_class):
                _refuse_count(node, "support_vectors", numbers, f"as many for each of {sum(per_class)} vectors")
            _check_count(node, given, "coefficients", sum(per_class) * (classes - 1))
            _check_count(node, given, "rho", pairs)
        elif not given["coefficients"] or len(given["coefficients"]) % classes:
            _refuse_count(node, "coefficients", len(given["coefficients"] or ()), f"as many for each of {classes}")
        elif not given["rho"]:
            _refuse_count(node, "rho", 0, "1 or more")
        for name in ("prob_a", "prob_b"):
            _check_count(node, given, name, len(given["prob_a"] or ()))
        _check_count(node, given, "prob_a", 0, len(given["rho"] or ()))


@specifies("ZipMap", domain=_ML)
@dataclass(frozen=True, slots=True, kw_only=True)
class ZipMapSpec(OperatorSpec):
    """Turns each row of scores into a map from class labels, integers or strings, to scores."""

    classlabels_int64s: tuple[int, ...] | None
    classlabels_strings: tuple[str, ...] | None

    @classmethod
    def resolve(cls, node: Node, given: dict[str, Any]) -> None:
        _check_one_of(node, given, "classlabels_int64s", "classlabels_strings")
        check_rank(node, 0, 1, 2)


@specifies("DictVectorizer", domain=_ML)
@dataclass(frozen=True, slots=True, kw_only=True)
class DictVectorizerSpec(OperatorSpec):
    """The values of a map for the keys of a vocabulary, which are of the map's type."""

    int64_vocabulary: tuple[int, ...] | None
    string_vocabulary: tuple[str, ...] | None

    @classmethod
    def resolve(cls, node: Node, given: dict[str, Any]) -> None:
        _check_one_of(node, given, "int64_vocabulary", "string_vocabulary")
        name, key = ("int64_vocabulary", i64) if given["int64_vocabulary"] else ("string_vocabulary", string)
        kind = node.input_value(0).type
        if isinstance(kind, MapType) and kind.key is not key:
            refuse(node, name, f"of {key.name}", f"a vocabulary of {kind.key.name}, the keys of the map")

    @property
    def keys(self) -> tuple[Any, ...]:
        """The keys whose values are the result."""
        return self.int64_vocabulary or self.string_vocabulary or ()


@specifies("CastMap", domain=_ML)
@dataclass(frozen=True, slots=True, kw_only=True)
class CastMapSpec(OperatorSpec):
    """A row of a map's values: for the keys 0 to `max_map` - 1 if `map_form` is SPARSE, otherwise all."""

    cast_to: str
    map_form: str
    max_map: int

    @classmethod
    def resolve(cls, node: Node, given: dict[str, Any]) -> None:
        check_choice(node, "cast_to", given["cast_to"], ("TO_FLOAT", "TO_STRING", "TO_INT64"))
        check_choice(node, "map_form", given["map_form"], ("DENSE", "SPARSE"))
        if given["map_form"] == "SPARSE" and given["max_map"] < 1:
            refuse(node, "max_map", given["max_map"], "1 or more")


@specifies("OneHotEncoder", domain=_ML)
@dataclass(frozen=True, slots=True, kw_only=True)
class OneHotEncoderSpec(OperatorSpec):
    """A new last axis of categories."""

    cats_int64s: tuple[int, ...] | None
    cats_strings: tuple[str, ...] | None
    zeros: bool

    @classmethod
    def resolve(cls, node: Node, given: dict[str, Any]) -> None:
        _check_one_of(node, given, "cats_int64s", "cats_strings")
        name = "cats_int64s" if given["cats_int64s"] else "cats_strings"
        if len(set(given[name])) < len(given[name]):
            refuse(node, name, given[name], "each category once")
        check_rank(node, 0, 1, 2)


@specifies("FeatureVectorizer", domain=_ML)
@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureVectorizerSpec(OperatorSpec):
    """Features of several tensors side by side; `inputdimensions` is the width of each."""

    inputdimensions: tuple[int, ...] | None

    @classmethod
    def resolve(cls, node: Node, given: dict[str, Any]) -> None:
        _check_count(node, given, "inputdimensions", node.num_inputs)
        if min(given["inputdimensions"]) < 1:
            refuse(node, "inputdimensions", given["inputdimensions"], "1 or more each")
        for index in range(node.num_inputs):
            check_rank(node, index, 1, 2)


@compares(
    "Scaler", "Imputer", "LinearRegressor", "LinearClassifier", "SVMRegressor", "SVMClassifier", "ZipMap", domain=_ML
)
def _compare_features(node: Node) -> None:
    width = _width(node, 0)
    spec: Any = OperatorSpec.of(node)
    if width is None:
        return
    match node.op_type:
        case "Scaler":
            counts = [len(spec.offset or ()), len(spec.scale or ())]
            is_fit = all(count in (0, 1, width) for count in counts)
        case "Imputer":
            is_fit = len(spec.imputed) in (1, width)
        case "LinearRegressor":
            is_fit = len(spec.coefficients) == spec.targets * width
        case "LinearClassifier":
            classes = len(spec.classlabels_ints or spec.classlabels_strings)
            is_fit = len(spec.coefficients) in (classes * width, width if classes == 2 else classes * width)
        case "SVMRegressor" | "SVMClassifier":
            vectors = spec.n_supports if node.op_type == "SVMRegressor" else sum(spec.vectors_per_class or ())
            classes = 1 if node.op_type == "SVMRegressor" else len(spec.classlabels_ints or spec.classlabels_strings)
            found = len(spec.support_vectors or ()) if vectors else len(spec.coefficients)
            is_fit = found == (vectors or classes) * width
        case _:  # ZipMap
            is_fit = len(spec.classlabels_int64s or spec.classlabels_strings) == width
    if not is_fit:
        fail(node, f"X has {width} features, which its attributes do not fit")


@compares("FeatureVectorizer", domain=_ML)
def _compare_widths(node: Node) -> None:
    known: Dimension | None = None
    for index, expected in enumerate(node.attributes["inputdimensions"]):
        found, value_type = _width(node, index), node.input_value(index).type
        if found not in (None, expected):
            fail(node, f"input {index} has {found} features; expected {expected}, as inputdimensions says")
        if not isinstance(value_type, TensorType) or value_type.shape.rank.is_dynamic:
            continue
        rows = value_type.shape[0] if len(value_type.shape) == 2 else as_dimension(1)
        if known is not None and not known.compatible(rows):
            fail(node, f"input {index} has {rows} rows; expected {known}, as others have")
        known = rows


def _width(node: Node, index: int) -> int | None:
    """The length of the last axis, if it is known."""
    value_type = node.input_value(index).type
    if not isinstance(value_type, TensorType) or value_type.shape.rank.is_dynamic or not len(value_type.shape):
        return None
    dim = value_type.shape[-1]
    return dim.min if dim.is_static else None


def _check_one_of(node: Node, given: dict[str, Any], first: str, second: str) -> None:
    if bool(given[first]) is bool(given[second]):
        found = "both are given" if given[first] else "neither is given"
        raise OperatorSpecError(f"{node}: of the attributes {first} and {second}, {found}; allowed: one of them")


def _check_count(node: Node, given: dict[str, Any], name: str, *allowed: int) -> None:
    found = len(given[name] or ())
    if found not in allowed:
        _refuse_count(node, name, found, " or ".join(map(str, sorted(set(allowed)))))


def _refuse_count(node: Node, name: str, found: int, allowed: str) -> None:
    raise OperatorSpecError(f"{node}: attribute {name} has {found} values; allowed: {allowed}")
