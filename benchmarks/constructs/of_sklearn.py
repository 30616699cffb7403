"""Models that skl2onnx writes for scikit-learn's estimators and pipelines."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from skl2onnx import to_onnx
from skl2onnx.common.data_types import FloatTensorType, Int64TensorType, StringTensorType
from sklearn import (
    calibration,
    cluster,
    compose,
    decomposition,
    ensemble,
    feature_extraction,
    gaussian_process,
    impute,
    linear_model,
    mixture,
    naive_bayes,
    neighbors,
    neural_network,
    pipeline,
    preprocessing,
    svm,
    tree,
)

from constructs.construct import Written, construct

EXPORTER = "skl2onnx"
_RNG = np.random.default_rng(0)
X = _RNG.standard_normal((80, 5)).astype(np.float32)
CLASSES = (X[:, 0] + X[:, 1] > 0).astype(np.int64) + (X[:, 2] > 1)
NUMBERS = (X @ [1, 2, 0, -1, 0.5] + 0.1 * _RNG.standard_normal(80)).astype(np.float32)
MISSING = np.where(_RNG.random(X.shape) < 0.15, np.nan, X).astype(np.float32)


def _outputs(model: Any, x: Any) -> list[Any]:
    if hasattr(model, "predict_proba"):
        return [model.predict(x), np.array(model.predict_proba(x), np.float32)]
    if hasattr(model, "decision_function") and hasattr(model, "fit_predict"):
        return [model.predict(x)]
    return [model.predict(x) if hasattr(model, "predict") else model.transform(x)]


def declared(
    name: str,
    model: Callable[[], Any],
    x: np.ndarray,
    y: np.ndarray | None = None,
    tolerance: float = 1e-4,
    ml: int = 0,
    **options: Any,
) -> None:
    """Declare an estimator that is fitted on x and y."""

    def make() -> Written:
        fitted = model().fit(x, y)
        expected = _outputs(fitted, x)
        opset = {"": 21, "ai.onnx.ml": ml} if ml else 21
        proto = to_onnx(fitted, x[:1], target_opset=opset, **options)
        if len(proto.graph.output) > len(expected):  # scores of outlier detectors
            expected = []
        return Written(proto, [x], [np.asarray(each).reshape(len(x), -1) if np.asarray(each).dtype.kind == "f"
                                    else each for each in expected], tolerance)  # fmt: skip

    construct(EXPORTER, "skl2onnx", "scikit-learn", name=name)(make)


_PLAIN = {"options": {"zipmap": False}}
for _name, _model in (
    ("LogisticRegression", linear_model.LogisticRegression),
    ("RandomForestClassifier", lambda: ensemble.RandomForestClassifier(20, random_state=0)),
    ("GradientBoostingClassifier", lambda: ensemble.GradientBoostingClassifier(n_estimators=20, random_state=0)),
    ("HistGradientBoostingClassifier", lambda: ensemble.HistGradientBoostingClassifier(max_iter=20)),
    ("SVC, probabilities", lambda: svm.SVC(probability=True, random_state=0)),
    ("KNeighborsClassifier", neighbors.KNeighborsClassifier),
    ("MLPClassifier", lambda: neural_network.MLPClassifier((16,), max_iter=60, random_state=0)),
    ("GaussianNB", naive_bayes.GaussianNB),
    ("CalibratedClassifierCV", lambda: calibration.CalibratedClassifierCV(linear_model.LogisticRegression(), cv=3)),
    ("StackingClassifier", lambda: ensemble.StackingClassifier(
        [("a", tree.DecisionTreeClassifier(max_depth=3)), ("b", naive_bayes.GaussianNB())])),
    ("AdaBoostClassifier", lambda: ensemble.AdaBoostClassifier(n_estimators=10, random_state=0)),
):  # fmt: skip
    declared(_name, _model, X, CLASSES, **_PLAIN)
for _name, _model in (
    ("RandomForestRegressor", lambda: ensemble.RandomForestRegressor(20, random_state=0)),
    ("HistGradientBoostingRegressor", lambda: ensemble.HistGradientBoostingRegressor(max_iter=20)),
    ("GaussianProcessRegressor", lambda: gaussian_process.GaussianProcessRegressor(alpha=0.1)),
    ("SVR", svm.SVR),
):
    declared(_name, _model, X, NUMBERS, 5e-3 if "Process" in _name else 1e-4)  # whose kernel cancels
declared(
    "HistGradientBoosting, missing values",
    lambda: ensemble.HistGradientBoostingRegressor(max_iter=20),
    MISSING,
    NUMBERS,
)
declared(
    "SimpleImputer and scaler",
    lambda: pipeline.make_pipeline(impute.SimpleImputer(), preprocessing.StandardScaler()),
    MISSING,
)
declared("KNNImputer", impute.KNNImputer, MISSING)
declared("PCA", lambda: decomposition.PCA(3), X)
declared("KMeans", lambda: cluster.KMeans(3, n_init=2, random_state=0), X)
declared("GaussianMixture", lambda: mixture.GaussianMixture(2, random_state=0), X)
declared("IsolationForest", lambda: ensemble.IsolationForest(n_estimators=20, random_state=0), X, ml=3)
declared(
    "KBinsDiscretizer",
    lambda: preprocessing.KBinsDiscretizer(4, encode="onehot-dense", quantile_method="averaged_inverted_cdf"),
    X,
)
declared("PolynomialFeatures, PowerTransformer", lambda: pipeline.make_pipeline(
    preprocessing.PolynomialFeatures(2), preprocessing.PowerTransformer()), X)  # fmt: skip


@construct(EXPORTER, "skl2onnx", "scikit-learn", name="classifier with ZipMap")
def _() -> Written:
    model = linear_model.LogisticRegression().fit(X, CLASSES)
    return Written(to_onnx(model, X[:1], target_opset=21), [X])


@construct(EXPORTER, "skl2onnx", "scikit-learn", name="classifier of f64")
def _() -> Written:
    x = X.astype(np.float64)
    model = tree.DecisionTreeClassifier(max_depth=4).fit(x, CLASSES)
    proto = to_onnx(model, x[:1], target_opset=21, options={"zipmap": False})
    return Written(proto, [x], [model.predict(x), model.predict_proba(x)])


@construct(EXPORTER, "skl2onnx", "scikit-learn", name="ColumnTransformer of texts and numbers")
def _() -> Written:
    texts = np.array([["red"], ["green"], ["blue"], ["red"]] * 20, object)
    steps = compose.make_column_transformer(
        (preprocessing.OneHotEncoder(handle_unknown="ignore"), [0]), (preprocessing.StandardScaler(), [1, 2])
    )
    data = np.concatenate([texts, X[:, :2].astype(object)], 1)
    import pandas

    frame = pandas.DataFrame(data, columns=["c", "a", "b"]).astype({"a": np.float32, "b": np.float32})
    model = pipeline.make_pipeline(steps, linear_model.LogisticRegression()).fit(frame, CLASSES)
    types = [("c", StringTensorType([None, 1])), ("a", FloatTensorType([None, 1])), ("b", FloatTensorType([None, 1]))]
    proto = to_onnx(model, initial_types=types, target_opset=21, options={"zipmap": False})
    return Written(proto, [texts, X[:, :1], X[:, 1:2]], [model.predict(frame), model.predict_proba(frame)], 1e-4)


@construct(EXPORTER, "skl2onnx", "scikit-learn", name="TfidfVectorizer")
def _() -> Written:
    texts = np.array(["a small red house", "the house is green", "red and green and blue", "nothing"])
    model = feature_extraction.text.TfidfVectorizer(token_pattern="[a-z]+").fit(texts)
    proto = to_onnx(model, initial_types=[("t", StringTensorType([None, 1]))], target_opset=21)
    return Written(proto, [texts[:, None]], [model.transform(texts).toarray()], 1e-4)


@construct(EXPORTER, "skl2onnx", "scikit-learn", name="OrdinalEncoder of numbers, LabelBinarizer")
def _() -> Written:
    codes = (np.abs(X[:, :2]) * 3).astype(np.int64)
    model = preprocessing.OrdinalEncoder(dtype=np.int64).fit(codes)
    proto = to_onnx(model, initial_types=[("c", Int64TensorType([None, 2]))], target_opset=21)
    return Written(proto, [codes], [model.transform(codes)])
