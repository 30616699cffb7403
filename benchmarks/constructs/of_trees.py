"""Models that onnxmltools writes for LightGBM and XGBoost, and CatBoost by itself: categories and missing values."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import catboost
import lightgbm
import numpy as np
import onnxmltools
import xgboost
from onnxmltools.convert.common.data_types import FloatTensorType

from constructs.construct import Written, construct

_RNG = np.random.default_rng(1)
X = _RNG.standard_normal((120, 5)).astype(np.float32)
MISSING = np.where(_RNG.random(X.shape) < 0.15, np.nan, X).astype(np.float32)
CODES = np.concatenate([_RNG.integers(0, 12, (120, 1)).astype(np.float32), X[:, 1:]], 1)
CLASSES = (X[:, 1] + X[:, 2] > 0).astype(np.int64) + (np.abs(X[:, 3]) > 1.3) + (CODES[:, 0] % 3 == 0)
NUMBERS = (X @ [0, 2, 0, -1, 0.5] + 3 * (CODES[:, 0] % 3 == 0)).astype(np.float32)
_TYPES = [("x", FloatTensorType([None, 5]))]
_LIGHT = {"n_estimators": 15, "num_leaves": 15, "min_child_samples": 3, "verbose": -1, "random_state": 0, "n_jobs": 1}
_XGB: dict[str, Any] = {"n_estimators": 15, "max_depth": 4, "random_state": 0, "n_jobs": 1}
_CAT = {
    "iterations": 15,
    "depth": 4,
    "verbose": False,
    "random_seed": 0,
    "thread_count": 1,
    "allow_writing_files": False,
}


def light(name: str, x: np.ndarray, model: Any, y: np.ndarray, **fit: Any) -> None:
    """Declare a model of LightGBM."""

    def make() -> Written:
        fitted = model.fit(x, y, **fit)
        proto = onnxmltools.convert_lightgbm(fitted, initial_types=_TYPES, target_opset=15, zipmap=False)
        return Written(proto, [x], _outputs(fitted, x), 1e-4)

    construct("onnxmltools, LightGBM", "onnxmltools", "lightgbm", name=name)(make)


def _outputs(model: Any, x: np.ndarray) -> list[np.ndarray]:
    if hasattr(model, "predict_proba"):
        return [np.ravel(model.predict(x)), np.asarray(model.predict_proba(x), np.float32)]
    return [np.asarray(model.predict(x), np.float32).reshape(-1, 1)]


light("classifier", X, lightgbm.LGBMClassifier(**_LIGHT), CLASSES)
light("binary classifier", X, lightgbm.LGBMClassifier(**_LIGHT), (CLASSES > 0).astype(np.int64))
light("regressor", X, lightgbm.LGBMRegressor(**_LIGHT), NUMBERS)
light("missing values", MISSING, lightgbm.LGBMRegressor(**_LIGHT), NUMBERS)
light("zero as missing", np.where(X < -1, 0, MISSING), lightgbm.LGBMRegressor(zero_as_missing=True, **_LIGHT), NUMBERS)
light("categories", CODES, lightgbm.LGBMRegressor(cat_smooth=1, min_data_per_group=2, **_LIGHT), NUMBERS,
      categorical_feature=[0])  # fmt: skip
light("categories, classifier", CODES, lightgbm.LGBMClassifier(cat_smooth=1, min_data_per_group=2, **_LIGHT), CLASSES,
      categorical_feature=[0])  # fmt: skip
light(
    "random forest",
    X,
    lightgbm.LGBMRegressor(boosting_type="rf", bagging_freq=1, bagging_fraction=0.6, **_LIGHT),
    NUMBERS,
)
light("Poisson objective", X, lightgbm.LGBMRegressor(objective="poisson", **_LIGHT), np.abs(NUMBERS))


def boosted(name: str, x: np.ndarray, model: Any, y: np.ndarray) -> None:
    """Declare a model of XGBoost."""

    def make() -> Written:
        fitted = model.fit(x, y)
        proto = onnxmltools.convert_xgboost(fitted, initial_types=_TYPES, target_opset=15)
        return Written(proto, [x], _outputs(fitted, x), 1e-4)

    construct("onnxmltools, XGBoost", "onnxmltools", "xgboost", name=name)(make)


boosted("classifier", X, xgboost.XGBClassifier(**_XGB), CLASSES)
boosted("binary classifier", X, xgboost.XGBClassifier(**_XGB), (CLASSES > 0).astype(np.int64))
boosted("regressor", X, xgboost.XGBRegressor(**_XGB), NUMBERS)
boosted("missing values", MISSING, xgboost.XGBRegressor(**_XGB), NUMBERS)
boosted("random forest", X, xgboost.XGBRFRegressor(**{**_XGB, "n_estimators": 5}), NUMBERS)
boosted("Poisson objective", X, xgboost.XGBRegressor(objective="count:poisson", **_XGB), np.abs(NUMBERS).round())


@construct("onnxmltools, XGBoost", "onnxmltools", "xgboost", name="categories")
def _() -> Written:
    data = xgboost.DMatrix(CODES, NUMBERS, feature_types=["c", "q", "q", "q", "q"], enable_categorical=True)
    trained = xgboost.train({"max_depth": 4, "nthread": 1, "max_cat_to_onehot": 1}, data, 15)
    proto = onnxmltools.convert_xgboost(trained, initial_types=_TYPES, target_opset=15)
    return Written(proto, [CODES], [trained.predict(data).reshape(-1, 1)], 1e-4)


def cat(name: str, x: np.ndarray, model: Any, y: np.ndarray) -> None:
    """Declare a model of CatBoost, which writes ONNX by itself."""

    def make() -> Written:
        fitted = model.fit(x, y)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "model.onnx"
            fitted.save_model(str(path), format="onnx")
            content = path.read_bytes()
        return Written(content, [x], _outputs(fitted, x) if hasattr(fitted, "predict_proba") is False else ())

    construct("CatBoost", "catboost", name=name)(make)


cat("classifier", X, catboost.CatBoostClassifier(**_CAT), CLASSES)
cat("binary classifier", X, catboost.CatBoostClassifier(**_CAT), (CLASSES > 0).astype(np.int64))
cat("regressor", X, catboost.CatBoostRegressor(**_CAT), NUMBERS)
cat("missing values", MISSING, catboost.CatBoostRegressor(**_CAT), NUMBERS)


@construct("CatBoost", "catboost", name="categories")
def _() -> Written:
    import pandas

    frame = pandas.DataFrame({"c": CODES[:, 0].astype(int).astype(str), "a": X[:, 1]})
    fitted = catboost.CatBoostRegressor(**_CAT, one_hot_max_size=20).fit(frame, NUMBERS, cat_features=["c"])
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        fitted.save_model(str(path), format="onnx")
        content = path.read_bytes()
    return Written(content, [CODES[:, :2]])
