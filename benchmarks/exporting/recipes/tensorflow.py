"""Models of Keras, whose images have channels last, by tf2onnx."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from exporting.recipe import Exported, Recipes, normal, tokens

RECIPES = Recipes("TensorFlow")


def _exported(model: Any, inputs: dict[str, np.ndarray], opset: int) -> Exported:
    """A Keras model of inputs by name, with batches of any size."""
    import tensorflow as tf
    import tf2onnx

    given = [tf.TensorSpec((None, *value.shape[1:]), tf.as_dtype(value.dtype), name=name) for name, value in
             inputs.items()]  # fmt: skip

    @tf.function(input_signature=given)  # type: ignore[untyped-decorator]
    def call(*values: Any) -> Any:
        return model(values[0] if len(values) == 1 else list(values), training=False)

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        tf2onnx.convert.from_function(call, input_signature=given, opset=opset, output_path=str(path))
        return Exported(path.read_bytes(), inputs)


def _keras(name: str, opset: int) -> Callable[[Callable[[Any, int], tuple[Any, dict[str, np.ndarray]]]], None]:
    def register(make: Callable[[Any, int], tuple[Any, dict[str, np.ndarray]]]) -> None:
        def exported(scale: int) -> Exported:
            import keras

            keras.utils.set_random_seed(0)
            return _exported(*make(keras, scale), opset)

        RECIPES.add(name, exported, "tf2onnx")

    return register


@_keras("keras_resnet", 13)
def _resnet(keras: Any, scale: int) -> tuple[Any, dict[str, np.ndarray]]:
    layers = keras.layers
    x = start = keras.Input((32, 32, 3), name="images")
    x = layers.Conv2D(8 * scale, 3, 2, padding="same", use_bias=False)(x)
    x = layers.ReLU()(layers.BatchNormalization()(x))
    x = layers.MaxPooling2D(3, 2, padding="same")(x)
    y = layers.ReLU()(layers.BatchNormalization()(layers.Conv2D(8 * scale, 3, padding="same")(x)))
    x = layers.ReLU()(layers.Add()([x, layers.Conv2D(8 * scale, 3, padding="same")(y)]))
    x = layers.Dense(5, activation="softmax")(layers.GlobalAveragePooling2D()(x))
    return keras.Model(start, x), {"images": normal(2, 32, 32, 3)}


@_keras("keras_mobilenet_v2", 15)
def _mobilenet(keras: Any, scale: int) -> tuple[Any, dict[str, np.ndarray]]:
    made = keras.applications.MobileNetV2((32, 32, 3), alpha=0.35, weights=None, classes=5)
    return made, {"images": normal(2, 32, 32, 3)}


@_keras("keras_mobilenet_v3", 16)
def _mobilenet_v3(keras: Any, scale: int) -> tuple[Any, dict[str, np.ndarray]]:
    made = keras.applications.MobileNetV3Small(input_shape=(32, 32, 3), weights=None, classes=5)
    return made, {"images": normal(1, 32, 32, 3)}


@_keras("keras_unet", 17)
def _unet(keras: Any, scale: int) -> tuple[Any, dict[str, np.ndarray]]:
    layers = keras.layers
    start = keras.Input((32, 32, 3), name="images")
    a = layers.Conv2D(4 * scale, 3, padding="same", activation="relu")(start)
    b = layers.SeparableConv2D(8 * scale, 3, strides=2, padding="same", activation="swish")(a)
    c = layers.Conv2D(8 * scale, 3, dilation_rate=2, padding="same", activation="elu")(b)
    up = layers.Conv2DTranspose(4 * scale, 3, strides=2, padding="same")(c)
    big = layers.UpSampling2D(2, interpolation="bilinear")(c)
    x = layers.Conv2D(2, 1)(layers.Concatenate()([a, up, big]))
    return keras.Model(start, x), {"images": normal(1, 32, 32, 3)}


@_keras("keras_lstm", 14)
def _lstm(keras: Any, scale: int) -> tuple[Any, dict[str, np.ndarray]]:
    layers = keras.layers
    start = keras.Input((9,), dtype="int64", name="ids")
    x = layers.Embedding(100, 8 * scale)(start)
    x = layers.Bidirectional(layers.LSTM(8, return_sequences=True, unroll=False))(x)
    return keras.Model(start, layers.Dense(3)(layers.GRU(6)(x))), {"ids": tokens(2, 9)}


@_keras("keras_transformer", 18)
def _transformer(keras: Any, scale: int) -> tuple[Any, dict[str, np.ndarray]]:
    layers = keras.layers
    start = keras.Input((8,), dtype="int64", name="ids")
    x = layers.Embedding(100, 16 * scale)(start)
    x = layers.LayerNormalization()(x + layers.MultiHeadAttention(2, 8)(x, x))
    y = layers.Dense(16 * scale)(layers.Dense(32, activation="swish")(x))
    return keras.Model(start, layers.LayerNormalization()(x + y)), {"ids": tokens(2, 8)}
