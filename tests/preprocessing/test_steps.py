"""The results of each step, against numpy, Pillow, and formulas of standards.

If one fails, an application's images arrive at its model otherwise than it asked for, and the answers are wrong.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime
import pytest

from engine import Core, Model, PrePostProcessor, ops
from engine.errors import EngineError
from engine.ir import Constant, ElementType, Parameter, Result, f32, f64, i32, u8
from engine.onnx import model_to_proto
from engine.preprocessing import read_layout
from tests.preprocessing.conftest import convolving, passing, values_after

ANY = ["N", 3, "H", "W"]


def image(rng: np.random.Generator, *shape: int) -> Any:
    return rng.integers(0, 256, shape, dtype=np.uint8)


@pytest.mark.parametrize("element_type", ["u8", "i8", "u16", "f16", "f32", "f64"])
def test_the_application_passes_its_type_and_layout(element_type: str, rng: np.random.Generator) -> None:
    x = image(rng, 1, 8, 8, 3).astype(ElementType.parse(element_type).numpy)
    (y,) = values_after(passing(), lambda p: p.input("x", element_type, "NHWC"), x)
    np.testing.assert_array_equal(y, x.transpose(0, 3, 1, 2).astype(np.float32))


def test_one_image_gets_a_batch(rng: np.random.Generator) -> None:
    x = image(rng, 8, 8, 3)
    (y,) = values_after(passing(), lambda p: p.input("x", "u8", "HWC"), x)
    np.testing.assert_array_equal(y, x.transpose(2, 0, 1)[None].astype(np.float32))
    (y,) = values_after(passing(shape=[3, 8, 8], layout="CHW"), lambda p: p.input("x", "u8", "NHWC"), x[None])
    np.testing.assert_array_equal(y, x.transpose(2, 0, 1).astype(np.float32))


@pytest.mark.parametrize("layout", ["NHWC", "NCHW", "CHWN"])
def test_mean_is_subtracted_before_scale_divides(layout: str, rng: np.random.Generator) -> None:
    mean, scale = [123.7, 116.3, 103.5], [58.4, 57.1, 57.4]
    x = image(rng, 1, 3, 8, 8)
    given = x.transpose(["NCHW".index(letter) for letter in layout])
    (y,) = values_after(passing(), lambda p: p.input("x", "u8", layout).mean(mean).scale(scale), given)
    spread = [np.array(values, np.float32)[:, None, None] for values in (mean, scale)]
    np.testing.assert_array_equal(y, (x.astype(np.float32) - spread[0]) / spread[1])
    (y,) = values_after(passing(), lambda p: p.input("x", "u8", layout).scale(255), given)
    np.testing.assert_array_equal(y, x.astype(np.float32) / np.float32(255))


def test_steps_keep_the_precision_of_the_application() -> None:
    x = np.array([[1.0 + 2.0**-40]])
    (y,) = values_after(passing(f64, [1, 1], "NC"), lambda p: p.input("x", "f64").mean(1.0).scale(2.0**-40), x)
    assert y == 1


@pytest.mark.parametrize(
    ("given", "target", "expected"),
    [
        ([-1.0, 0.5, 1.5, 254.6, 300.0, -np.inf, np.inf], "u8", [0, 0, 2, 255, 255, 0, 255]),
        ([-3e9, 3e9, 2.5], "i32", [-(2**31), 2147483520, 2]),
        ([-129.0, 127.5], "i8", [-128, 127]),
    ],
)
def test_numbers_become_integers_within_their_range(given: list[float], target: str, expected: list[int]) -> None:
    x = np.array([given], np.float32)
    (y,) = values_after(passing(f32, [1, len(given)], "NC"), lambda p: p.output("y").to_type(target), x)
    np.testing.assert_array_equal(y, [expected])
    integers = np.array([[-5, 300, 7]], np.int32)
    (y,) = values_after(passing(i32, [1, 3], "NC"), lambda p: p.output("y").to_type(u8), integers)
    np.testing.assert_array_equal(y, np.array([[0, 255, 7]], np.uint8))


def test_half_precision_reaches_the_limits_of_integers() -> None:
    x = np.array([[np.inf, -np.inf, 3.5]], np.float16)
    model = passing(f32, [1, 3], "NC")
    (y,) = values_after(model, lambda p: p.input("x", "f16").to_type("i32").to_type("f64"), x)
    np.testing.assert_array_equal(y, np.array([[2147483520, -2147483648, 4]], np.float32))


def test_clamp() -> None:
    x = np.array([[-3.0, 0.2, 9.0]], np.float32)
    (y,) = values_after(passing(f32, [1, 3], "NC"), lambda p: p.input("x").clamp(0, 1), x)
    np.testing.assert_array_equal(y, np.clip(x, 0, 1))


def test_crop_and_pad_are_slices_and_numpys_pad(rng: np.random.Generator) -> None:
    x = image(rng, 1, 9, 11, 3)
    model = passing(f32, ANY)
    (y,) = values_after(model, lambda p: p.input("x", "u8", "NHWC").crop((1, 2), (-2, 9)), x)
    np.testing.assert_array_equal(y, x[:, 1:-2, 2:9].transpose(0, 3, 1, 2))
    (y,) = values_after(model, lambda p: p.input("x", "u8", "NHWC").centre_crop((4, 8)), x)
    np.testing.assert_array_equal(y, x[:, 2:6, 1:9].transpose(0, 3, 1, 2))
    for mode in ("constant", "edge", "reflect", "wrap"):
        filled = {"constant_values": 7} if mode == "constant" else {}
        (y,) = values_after(
            model,
            lambda p, mode=mode: p.input("x", "u8", "NHWC").pad((1, 2), (3, 0), mode, 7 if mode == "constant" else 0),
            x,
        )
        padded = np.pad(x, ((0, 0), (1, 3), (2, 0), (0, 0)), mode, **filled)  # type: ignore[call-overload]
        np.testing.assert_array_equal(y, padded.transpose(0, 3, 1, 2), err_msg=mode)


@pytest.mark.parametrize("shape", [None, [1, 9, 11, 3]])
def test_sizes_of_crops_are_known(shape: Any) -> None:
    """A model whose input is fixed gets what it needs, however large the application's image is."""
    for begin, end in (((1, 2), (5, 8)), ((-5, -8), (-1, -2))):
        chain = PrePostProcessor(passing(f32, [1, 3, 4, 6])).input("x", "u8", "NHWC", shape=shape)
        assert chain.crop(begin, end).build().outputs[0].shape == (1, 3, 4, 6)
    chain = PrePostProcessor(passing(f32, [1, 3, 4, 6])).input("x", "u8", "NHWC", shape=shape)
    assert chain.centre_crop((4, 6)).build().outputs[0].shape == (1, 3, 4, 6)


def test_an_image_smaller_than_its_crop_is_an_error(rng: np.random.Generator) -> None:
    model = passing(f32, [1, 3, 4, 6])
    for shape in ((1, 3, 6, 3), (1, 4, 5, 3), (1, 2, 12, 3)):
        for add in (lambda s: s.centre_crop((4, 6)), lambda s: s.crop((0, 0), (4, 6))):
            with pytest.raises(Exception, match="Reshape"):
                values_after(model, lambda p, add=add: add(p.input("x", "u8", "NHWC")), image(rng, *shape))


@pytest.mark.parametrize("shape", [(1, 1, 300, 3), (1, 300, 1, 3), (1, 0, 0, 3)])
def test_an_image_of_which_a_letter_box_leaves_nothing_is_an_error(shape: tuple[int, ...]) -> None:
    """Of 1 x 300 pixels, 8 x 8 have 0.03 rows; the result would be the filling alone."""
    model = passing(f32, [1, 3, 8, 8])
    with pytest.raises(Exception, match=r"Reshape|empty|no elements"):
        values_after(model, lambda p: p.input("x", "u8", "NHWC").letter_box(), np.full(shape, 50, np.uint8))


# -- resize ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("resample", ["linear", "cubic"])
@pytest.mark.parametrize("size", [(5, 4), (14, 17)])
def test_resize_with_antialias_is_pillows(resample: str, size: tuple[int, int], rng: np.random.Generator) -> None:
    """Pillow averages what a pixel covers, and its cubic has the coefficient -0.5."""
    pillow = pytest.importorskip("PIL.Image")
    x = rng.standard_normal((9, 11)).astype(np.float32)
    method = {"linear": pillow.Resampling.BILINEAR, "cubic": pillow.Resampling.BICUBIC}[resample]
    expected = np.asarray(pillow.fromarray(x).resize(size[::-1], method))
    given = {"antialias": True, "cubic_coefficient": -0.5}
    model = passing(f32, [1, 1, *size])
    # Pillow leaves out what is beyond the border, so that only the inside is the same; linear weights end there.
    (y,) = values_after(model, lambda p: p.input("x", layout="HWC").resize(None, resample, **given), x[..., None])
    margin = 0 if resample == "linear" and size[0] > 9 else 3 if resample == "cubic" else 1
    inside = np.s_[margin : size[0] - margin, margin : size[1] - margin]
    if expected[inside].size:
        np.testing.assert_allclose(y[0, 0][inside], expected[inside], rtol=1e-4, atol=1e-5)


def test_nearest_keeps_integers_and_is_pillows(rng: np.random.Generator) -> None:
    pillow = pytest.importorskip("PIL.Image")
    x = image(rng, 9, 11)
    expected = np.asarray(pillow.fromarray(x).resize((17, 5), pillow.Resampling.NEAREST))
    model = passing(u8, [1, 1, 5, 17])
    (y,) = values_after(
        model, lambda p: p.input("x", layout="HWC").resize(mode="nearest", nearest="round_prefer_ceil"), x[..., None]
    )
    np.testing.assert_array_equal(y[0, 0], expected)


@pytest.mark.parametrize("aspect", ["stretch", "not_larger", "not_smaller"])
@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_onnxruntime_computes_the_same(mode: str, aspect: str, rng: np.random.Generator) -> None:
    model = passing(f32, ANY)
    chain = PrePostProcessor(model).input("x", "u8", "NHWC", colour="BGR").to_colour("RGB")
    model = chain.resize((6, 7), mode, coordinates="half_pixel", aspect=aspect).mean([1, 2, 3]).scale(2).build()
    x = image(rng, 2, 9, 13, 3)
    session = onnxruntime.InferenceSession(model_to_proto(model).SerializeToString())
    (expected,) = session.run(["y"], {"x": x})
    (y,) = ops.evaluate_model(model, [x])
    np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-3 * (mode == "cubic") + 1e-4)


def between(x: Any, axis: int, size: int, factor: float) -> Any:
    """Linear interpolation between the centres of pixels along one axis; beyond the border, the last pixel counts."""
    at = np.clip((np.arange(size) + 0.5) / factor - 0.5, 0, x.shape[axis] - 1)
    return np.apply_along_axis(lambda column: np.interp(at, np.arange(len(column)), column), axis, x)


@pytest.mark.parametrize("is_static", [True, False])
@pytest.mark.parametrize("position", ["centre", "start"])
@pytest.mark.parametrize("lengths", [(4, 8), (8, 4), (3, 5), (20, 10), (6, 6)])
def test_a_letter_box_keeps_the_ratio(
    lengths: tuple[int, int], position: str, is_static: bool, rng: np.random.Generator
) -> None:
    x = image(rng, 1, *lengths, 3)
    shape = x.shape if is_static else None
    (y,) = values_after(
        passing(f32, [1, 3, 6, 6]),
        lambda p: p.input("x", "u8", "NHWC", shape=shape).letter_box(value=9, position=position),
        x,
    )
    factor = min(6 / lengths[0], 6 / lengths[1])
    height, width = (int(length * factor + 0.5) for length in lengths)
    inner = between(between(x[0].astype(np.float64), 0, height, factor), 1, width, factor).transpose(2, 0, 1)
    top, left = ((6 - height) // 2, (6 - width) // 2) if position == "centre" else (0, 0)
    expected = np.full((1, 3, 6, 6), 9, np.float32)
    expected[:, :, top : top + height, left : left + width] = inner
    np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-3)


# -- colours --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "target"), [("BGR", "RGB"), ("RGB", "BGR"), ("BGRA", "RGB"), ("RGBA", "RGB"), ("RGBA", "BGRA")]
)
def test_channels_are_brought_into_order(source: str, target: str, rng: np.random.Generator) -> None:
    x = image(rng, 1, 8, 8, len(source))
    model = passing(f32, [1, len(target), 8, 8])
    (y,) = values_after(model, lambda p: p.input("x", "u8", "NHWC", colour=source).to_colour(target), x)
    expected = np.stack([x[..., source.index(letter)] for letter in target], 1)
    np.testing.assert_array_equal(y, expected)


def test_grey(rng: np.random.Generator) -> None:
    x = image(rng, 1, 8, 8, 1)
    (y,) = values_after(passing(), lambda p: p.input("x", "u8", "NHWC", colour="GREY").to_colour("RGB"), x)
    np.testing.assert_array_equal(y, np.repeat(x, 3, 3).transpose(0, 3, 1, 2))
    x = image(rng, 1, 8, 8, 3)
    model = passing(f32, [1, 1, 8, 8])
    (y,) = values_after(model, lambda p: p.input("x", "u8", "NHWC", colour="BGR").to_colour("GREY"), x)
    np.testing.assert_allclose(y[0, 0], x[0] @ [0.114, 0.587, 0.299], rtol=1e-6)


def bt601(luma: Any, cb: Any, cr: Any) -> Any:
    """RGB [N, 3, H, W], 0 to 255, by inverting the encoding that ITU-R BT.601 defines.

    Luma is 16 + 219 E_Y, chroma 128 + 224 E_C, where E_Y = 0.299 R + 0.587 G + 0.114 B, E_Cb = (B - E_Y) / 1.772 and
    E_Cr = (R - E_Y) / 1.402, for R, G, B from 0 to 1.
    """
    y = np.array([0.299, 0.587, 0.114])
    encode = np.stack([219 * y, 224 * (np.array([0, 0, 1]) - y) / 1.772, 224 * (np.array([1, 0, 0]) - y) / 1.402])
    chroma = [np.repeat(np.repeat(plane, 2, 1), 2, 2) for plane in (cb, cr)]
    coded = np.stack([luma, *chroma], 1).astype(np.float64) - np.array([16, 128, 128])[:, None, None]
    return np.clip(255 * np.einsum("ij,njhw->nihw", np.linalg.inv(encode), coded), 0, 255)


@pytest.mark.parametrize("order", ["RGB", "BGR"])
@pytest.mark.parametrize("is_static", [True, False])
@pytest.mark.parametrize("colour", ["NV12", "I420", "NV12_TWO_PLANES", "I420_THREE_PLANES"])
def test_video(colour: str, is_static: bool, order: str, rng: np.random.Generator) -> None:
    luma, cb, cr = image(rng, 2, 6, 10), image(rng, 2, 3, 5), image(rng, 2, 3, 5)
    pairs = np.stack([cb, cr], -1)
    below = {
        "NV12": pairs.reshape(2, 3, 10),
        "I420": np.concatenate([cb.reshape(2, -1), cr.reshape(2, -1)], 1).reshape(2, 3, 10),
    }
    planes = {
        "NV12_TWO_PLANES": [luma[..., None], pairs],
        "I420_THREE_PLANES": [luma[..., None], cb[..., None], cr[..., None]],
    }
    given = planes.get(colour) or [np.concatenate([luma, below[colour]], 1)[..., None]]
    model = passing(f32, ["N", 3, 6, 10] if is_static else ANY)
    values = values_after(model, lambda p: p.input("x", "u8", colour=colour).to_colour(order), *given)
    expected = bt601(luma, cb, cr)
    np.testing.assert_allclose(values[0], expected if order == "RGB" else expected[:, ::-1], atol=1e-4)


@pytest.mark.parametrize("batch", ["N", None])
def test_planes_belong_together(batch: str | None, rng: np.random.Generator) -> None:
    """A sum of planes of other sizes would repeat the smaller one."""
    steps = lambda p: p.input("x", "u8", colour="NV12_TWO_PLANES").to_colour("RGB").resize((8, 8))  # noqa: E731
    processor = PrePostProcessor(passing(f32, [batch, 3, 8, 8]))
    steps(processor)
    network = Core().compile_model(processor.build(), "TEMPLATE")
    y, uv = image(rng, 2, 4, 6, 1), image(rng, 2, 2, 3, 2)
    assert network({"x/y": y, "x/uv": uv})["y"].shape == (2, 3, 8, 8)
    for wrong in ({"x/uv": uv[:1]}, {"x/y": y[:1]}, {"x/y": y[:, :1]}, {"x/y": y[:, :, :1]}, {"x/uv": uv[:, :1]}):
        with pytest.raises(EngineError):
            network({"x/y": y, "x/uv": uv} | wrong)
    fixed = PrePostProcessor(passing(f32, ANY)).input("x", "u8", colour="NV12_TWO_PLANES", shape=[1, 4, 6, 1])
    assert [str(p.type) for p in fixed.to_colour("RGB").build().parameters] == ["u8[1,4,6,1]", "u8[1,2,3,2]"]


@pytest.mark.parametrize("colour", ["NV12", "I420", "NV12_TWO_PLANES", "I420_THREE_PLANES"])
@pytest.mark.parametrize("batch", [1, "N", None])
def test_video_of_any_size_keeps_the_batch(colour: str, batch: Any) -> None:
    chain = PrePostProcessor(passing(f32, [batch, 3, 8, 8])).input("x", "u8", colour=colour).to_colour("RGB")
    shape = chain.letter_box().build().outputs[0].shape
    assert shape[0] == batch if isinstance(batch, int) else shape[0].is_dynamic
    assert list(shape)[1:] == [3, 8, 8]


def test_planes_take_the_place_of_their_input() -> None:
    x, z = Parameter(f32, [1, 3, 8, 8], "x"), Parameter(f32, [1], "z")
    model = Model([Result(ops.Add(ops.Conv(x, Constant(np.ones((1, 3, 1, 1), np.float32))), z), "y")], [x, z])
    built = PrePostProcessor(model).input("x", "u8", colour="NV12_TWO_PLANES").to_colour("RGB").build()
    assert [p.friendly_name for p in built.parameters] == ["x/y", "x/uv", "z"]
    assert [p.friendly_name for p in model.parameters] == ["x", "z"]


# -- outputs --------------------------------------------------------------------------------------------------


def test_scores(rng: np.random.Generator) -> None:
    x = rng.standard_normal((2, 6)).astype(np.float32)
    model = passing(f32, [2, 6], "NC")
    exact = np.exp(x.astype(np.float64))
    shares = exact / exact.sum(1, keepdims=True)
    (y,) = values_after(model, lambda p: p.output("y").softmax(), x)
    np.testing.assert_allclose(y, shares, rtol=1e-5)
    (y,) = values_after(model, lambda p: p.output("y").sigmoid(), x)
    np.testing.assert_allclose(y, exact / (1 + exact), rtol=1e-5)
    (y,) = values_after(model, lambda p: p.output("y").argmax().to_type("i32"), x)
    np.testing.assert_array_equal(y, x.argmax(1))
    assert y.dtype == np.int32
    y, indices = values_after(model, lambda p: p.output("y").softmax().top_k(3), x)
    np.testing.assert_array_equal(indices, np.argsort(-x, 1)[:, :3])
    np.testing.assert_allclose(y, np.take_along_axis(shares, indices, 1), rtol=1e-5)


def test_maps_of_classes_become_bytes_in_the_layout_of_the_application(rng: np.random.Generator) -> None:
    x = rng.standard_normal((1, 3, 4, 5)).astype(np.float32)
    model = passing(f32, x.shape)
    (y,) = values_after(model, lambda p: p.output("y").argmax().to_type("u8").rename("classes"), x)
    np.testing.assert_array_equal(y, x.argmax(1).astype(np.uint8))
    (y,) = values_after(model, lambda p: p.output("y").to_layout("NHWC").to_type("f16"), x)
    np.testing.assert_array_equal(y, x.transpose(0, 2, 3, 1).astype(np.float16))
    (y,) = values_after(model, lambda p: p.output("y").resize((8, 10), "nearest").argmax("C"), x)
    np.testing.assert_array_equal(y[0, ::2, ::2], x.argmax(1)[0])


def test_outputs_are_named_and_described() -> None:
    built = PrePostProcessor(convolving()).output("y", model_layout="NC").top_k(2).rename("best").build()
    assert [(r.friendly_name, r.annotations["layout"]) for r in built.results] == [
        ("best", "NC"),
        ("best_indices", "NC"),
    ]


# -- the layout that a model reads ----------------------------------------------------------------------------


def test_a_convolution_tells_the_layout() -> None:
    model = convolving()
    built = PrePostProcessor(model).input("x", "u8", "NHWC").build()
    assert built.inputs[0].shape == ["N", 8, 8, 3]
    x = Parameter(f32, ["N", 8, 8, 3], "x")
    conv = ops.Conv(ops.Transpose(ops.Sub(x, Constant(1.0)), perm=[0, 3, 1, 2]), Constant(np.ones((1, 3, 1, 1), "f")))
    built = PrePostProcessor(Model([Result(conv, "y")], [x])).input("x", "u8", "NCHW").build()
    assert built.inputs[0].shape == ["N", 3, 8, 8]


def test_operators_that_disagree_tell_no_layout() -> None:
    x = Parameter(f32, [1, 4, 4, 4], "x")
    filters = Constant(np.ones((1, 4, 1, 1), np.float32))
    straight, turned = ops.Conv(x, filters), ops.Conv(ops.Transpose(ops.Relu(x), perm=[0, 2, 3, 1]), filters)
    assert read_layout(Model([straight], [x]).inputs[0]) == ""
    both = Model([Result(straight, "a"), Result(turned, "b")], [x])
    assert read_layout(both.inputs[0]) == ""
    del both, straight
    assert read_layout(x.output(0)) == "NWCH"
    assert read_layout(turned.output(0)) == ""


def test_a_layout_is_read_through_every_operator_that_keeps_axes() -> None:
    """Also where it computes along one of them, as a softmax does; a matrix product does not keep its last axis."""
    x, y = Parameter(f32, [1, 8, 8, 3], "x"), Parameter(f32, [1, 3, 8, 8], "y")
    weights = Constant(np.zeros((4, 3, 1, 1), np.float32))
    kept = ops.Softmax(ops.HardSwish(ops.Max(x, Constant(np.float32(0)))), axis=3)
    rows = ops.ReduceMean(kept, Constant(np.array([1])), keepdims=1)
    product = ops.MatMul(y, Constant(np.zeros((8, 8), np.float32)))
    readers = ops.Conv(ops.Transpose(rows, perm=[0, 3, 1, 2]), weights), ops.Conv(product, weights)
    assert [read_layout(value.output(0)) for value in (x, y)] == ["NHWC", ""], readers
