"""Classic models: scikit-learn by skl2onnx, and boosted trees by onnxmltools."""

from __future__ import annotations

from typing import Any

import numpy as np

from exporting.recipe import Exported, Recipes, rng

RECIPES = Recipes("scikit-learn and trees")


def _data(rows: int = 200, columns: int = 6) -> tuple[np.ndarray, np.ndarray]:
    """Rows of features, in f32, and a class of three for each."""
    x = rng().standard_normal((rows, columns)).astype(np.float32)
    y = (x[:, 0] + x[:, 1] * x[:, 2] > 0).astype(int) + (x[:, 3] > 0.5)
    return x, y


def _converted(model: Any, x: np.ndarray, opset: int, given: Any = None, **options: Any) -> Exported:
    from skl2onnx import to_onnx

    made = to_onnx(model, x[:1] if given is None else given, target_opset={"": opset, "ai.onnx.ml": 3},
                   options={id(model): options} if options else None)  # fmt: skip
    return Exported(made.SerializeToString(), {made.graph.input[0].name: x[:16]})


def _sklearn(name: str, opset: int, module: str, kind: str, *, regression: bool = False, zipmap: bool = False,
             **settings: Any) -> None:  # fmt: skip
    """Register an estimator: a classifier gives labels and an array of probabilities, unless `zipmap`."""

    def make(scale: int) -> Exported:
        import importlib

        x, y = _data()
        model = getattr(importlib.import_module(f"sklearn.{module}"), kind)(**settings)
        model.fit(x, x[:, 0] * 2 + x[:, 1] if regression else y)
        plain = hasattr(model, "predict_proba") and not zipmap
        return _converted(model, x, opset, **({"zipmap": False} if plain else {}))

    RECIPES.add(name, make, "skl2onnx")


_sklearn("logistic_regression", 13, "linear_model", "LogisticRegression")
_sklearn("logistic_zipmap", 15, "linear_model", "LogisticRegression", zipmap=True)
_sklearn("random_forest", 14, "ensemble", "RandomForestClassifier", n_estimators=5, max_depth=4, random_state=0)
_sklearn("extra_trees_regressor", 16, "ensemble", "ExtraTreesRegressor", regression=True, n_estimators=5, max_depth=4,
         random_state=0)  # fmt: skip
_sklearn("gradient_boosting", 17, "ensemble", "GradientBoostingClassifier", n_estimators=5, random_state=0)
_sklearn("isolation_forest", 18, "ensemble", "IsolationForest", n_estimators=4, random_state=0)
_sklearn("ada_boost", 18, "ensemble", "AdaBoostClassifier", n_estimators=4, random_state=0)
_sklearn("svc", 15, "svm", "SVC", probability=True, random_state=0)
_sklearn("svr", 19, "svm", "SVR", regression=True)
_sklearn("linear_svc", 19, "svm", "LinearSVC")
_sklearn("k_neighbours", 20, "neighbors", "KNeighborsClassifier", n_neighbors=3)
_sklearn("k_neighbours_regressor", 18, "neighbors", "KNeighborsRegressor", regression=True, weights="distance")
_sklearn("k_means", 21, "cluster", "KMeans", n_clusters=3, n_init=1, random_state=0)
_sklearn("mlp_classifier", 21, "neural_network", "MLPClassifier", hidden_layer_sizes=(8,), max_iter=30, random_state=0,
         tol=1.0)  # fmt: skip
_sklearn("naive_bayes", 18, "naive_bayes", "GaussianNB")
_sklearn("gaussian_process", 18, "gaussian_process", "GaussianProcessRegressor", regression=True)
_sklearn("linear_discriminant", 17, "discriminant_analysis", "LinearDiscriminantAnalysis")
_sklearn("quadratic_discriminant", 17, "discriminant_analysis", "QuadraticDiscriminantAnalysis")
_sklearn("pca", 16, "decomposition", "PCA", n_components=3)


@RECIPES("skl2onnx")
def pipeline(scale: int) -> Exported:
    """Missing values filled, scaled, binned and multiplied before a regression."""
    from sklearn.impute import SimpleImputer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import KBinsDiscretizer, Normalizer, PolynomialFeatures, StandardScaler

    x, y = _data()
    x[::7, 2] = np.nan
    model = make_pipeline(
        SimpleImputer(), StandardScaler(), PolynomialFeatures(2), Normalizer(),
        KBinsDiscretizer(4, encode="onehot-dense", quantile_method="averaged_inverted_cdf"), LogisticRegression(),
    ).fit(x, y)  # fmt: skip
    return _converted(model, x, 18, zipmap=False)


@RECIPES("skl2onnx")
def columns_of_text(scale: int) -> Exported:
    """Categories, as text, in one-hot and ordinal columns."""
    from skl2onnx.common.data_types import StringTensorType
    from sklearn.compose import make_column_transformer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder, OrdinalEncoder

    x = rng().choice(np.array(["red", "green", "blue", "grey"], object), (100, 3))
    y = (x[:, 0] == "red").astype(int)
    columns = make_column_transformer((OneHotEncoder(handle_unknown="ignore"), [0, 1]), (OrdinalEncoder(), [2]))
    model = make_pipeline(columns, LogisticRegression()).fit(x, y)
    made = _converted(model, x, 16, [("text", StringTensorType([None, 3]))], zipmap=False)
    return Exported(made.model, {"text": x[:16].astype(str)})


@RECIPES("skl2onnx")
def tfidf(scale: int) -> Exported:
    """Words counted and weighed."""
    from skl2onnx.common.data_types import StringTensorType
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline

    words = np.array(["engine", "plan", "kernel", "graph", "node", "tensor", "the", "fast"])
    lines = [" ".join(rng().permutation(words)[: 3 + index % 4]) for index in range(12)]
    model = make_pipeline(TfidfVectorizer(), LogisticRegression()).fit(lines, [i % 2 for i in range(12)])
    text = np.array(lines).reshape(-1, 1)
    return _converted(model, text, 15, [("text", StringTensorType([None, 1]))], zipmap=False)


def _boosted(convert: str, model: Any, opset: int) -> Exported:
    import onnxmltools
    from onnxmltools.convert.common.data_types import FloatTensorType

    x, _ = _data()
    options = {"zipmap": False} if convert == "convert_lightgbm" else {}
    made = getattr(onnxmltools, convert)(model, initial_types=[("x", FloatTensorType([None, 6]))], target_opset=opset,
                                         **options)  # fmt: skip
    return Exported(made.SerializeToString(), {"x": x[:16]})


@RECIPES("onnxmltools")
def lightgbm_classifier(scale: int) -> Exported:
    import lightgbm

    x, y = _data()
    return _boosted("convert_lightgbm", lightgbm.LGBMClassifier(n_estimators=5, max_depth=4, verbose=-1,
                                                                random_state=0).fit(x, y), 15)  # fmt: skip


@RECIPES("onnxmltools")
def lightgbm_regressor(scale: int) -> Exported:
    import lightgbm

    x, _ = _data()
    return _boosted("convert_lightgbm", lightgbm.LGBMRegressor(n_estimators=5, max_depth=4, verbose=-1,
                                                               random_state=0).fit(x, x[:, 0]), 14)  # fmt: skip


@RECIPES("onnxmltools")
def xgboost_classifier(scale: int) -> Exported:
    import xgboost

    x, y = _data()
    return _boosted("convert_xgboost", xgboost.XGBClassifier(n_estimators=5, max_depth=4, random_state=0).fit(x, y), 15)


@RECIPES("onnxmltools")
def xgboost_regressor(scale: int) -> Exported:
    import xgboost

    x, _ = _data()
    return _boosted("convert_xgboost", xgboost.XGBRegressor(n_estimators=5, max_depth=4, random_state=0)
                    .fit(x, x[:, 0]), 13)  # fmt: skip
