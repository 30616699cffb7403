"""The spec of Resize; the values that follow from it are compared with onnxruntime in test_against_onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from engine.errors import ModelError, OperatorSpecError, TypeInferenceError
from engine.ir import Constant, Node, Parameter, f32, i64
from engine.ops.create import create
from engine.ops.resize import ResizeSpec


def resize(rank: int | None = 4, **attributes: Any) -> Node:
    x = Parameter(f32, None if rank is None else [None] * rank, "x")
    return Node("Resize", [x, None, None, Parameter(i64, [None], "sizes")], attributes, types=[x.output(0).type])


def spec(rank: int | None = 4, **attributes: Any) -> ResizeSpec:
    return ResizeSpec.of(resize(rank, **attributes))


def test_defaults_are_onnx_s() -> None:
    found = spec()
    assert (found.axes, found.mode, found.coordinate_transformation_mode) == ((0, 1, 2, 3), "nearest", "half_pixel")
    assert (found.nearest_mode, found.antialias, found.exclude_outside) == ("round_prefer_floor", False, False)
    assert (found.cubic_coeff_a, found.extrapolation_value, found.keep_aspect_ratio_policy) == (-0.75, 0.0, "stretch")


def test_axes() -> None:
    assert spec(axes=[-1, 1]).axes == (3, 1)
    assert spec(None, axes=[-1, 1]).axes == (-1, 1)
    assert spec(None).axes is None


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ({"mode": "bilinear"}, "attribute mode is 'bilinear'; allowed: nearest, linear, cubic"),
        ({"coordinate_transformation_mode": "tf_half_pixel"}, "attribute coordinate_transformation_mode"),
        ({"nearest_mode": "round"}, "attribute nearest_mode is 'round'; allowed: round_prefer_floor"),
        ({"keep_aspect_ratio_policy": "fit"}, "attribute keep_aspect_ratio_policy is 'fit'"),
        ({"axes": [1, 4]}, r"attribute axes is 4; allowed: -4\.\.3"),
        ({"axes": [1, -3]}, "attribute axes"),
    ],
)
def test_bad_attributes_are_refused(attributes: dict[str, Any], message: str) -> None:
    with pytest.raises(OperatorSpecError, match=f"Resize.*{message}"):
        spec(**attributes)


@pytest.mark.parametrize(("length", "expected"), [(None, "f32[?,?]"), (4, "f32[3,6]")])
def test_one_unknown_length_leaves_all_unknown_that_keep_their_ratio(length: int | None, expected: str) -> None:
    sizes = Constant(np.array([9, 6], np.int64))
    resized = create("Resize", [Parameter(f32, [2, length], "x"), None, None, sizes],
                     {"keep_aspect_ratio_policy": "not_larger"})  # fmt: skip
    assert str(resized.output(0).type) == expected


@pytest.mark.parametrize("scale", [np.nan, np.inf, 0, -1])
def test_scales_that_give_no_length_are_refused_with_the_types(scale: float) -> None:
    x, scales = Parameter(f32, [2, 3], "x"), Constant(np.array([1, scale], np.float32))
    with pytest.raises(TypeInferenceError, match=r"Resize.*scales must be positive and finite; got \[1\.0, "):
        create("Resize", [x, None, scales])


def test_a_nearest_mode_that_is_not_used_may_be_any() -> None:
    assert spec(mode="linear", nearest_mode="round").nearest_mode == "round"


def test_lengths() -> None:
    x = (1, 3, 4, 6)
    scaled = spec().at(x, scales=np.array([1, 1, 2, 0.5], np.float32))
    assert scaled.shape == (1, 3, 8, 3)
    assert [(each.axis, each.length, each.size, each.scale) for each in scaled.axes] == [(2, 4, 8, 2.0), (3, 6, 3, 0.5)]
    assert spec(axes=[3, 2]).at(x, sizes=np.array([12, 4])).shape == (1, 3, 4, 12)
    kept = spec(axes=[2, 3], keep_aspect_ratio_policy="not_larger").at(x, sizes=np.array([8, 9]))
    assert kept.shape == (1, 3, 6, 9)
    assert {each.scale for each in kept.axes} == {1.5}
    assert spec().at(x, scales=np.ones(4, np.float32)).axes == ()


def test_a_region_is_read_where_it_is_cropped() -> None:
    region, sizes = np.array([0, 0.5, 1, 1.5], np.float32), np.array([4, 4])
    assert spec(2).at((4, 4), region, sizes=sizes).axes == ()
    (cropped,) = spec(2, coordinate_transformation_mode="tf_crop_and_resize").at((4, 4), region, sizes=sizes).axes
    assert cropped.region == (0.5, 1.5)
    np.testing.assert_array_equal(cropped.taps.indices[:, 0], [1, 2, -1, -1])  # of 1.5, 2.5, 3.5 and 4.5
    np.testing.assert_array_equal(cropped.taps.is_outside, [False, False, True, True])


@pytest.mark.parametrize(
    ("attributes", "size", "indices", "weights"),
    [
        ({}, 6, [0, 0, 1, 1, 2, 2], [1, 1, 1, 1, 1, 1]),
        ({"mode": "linear"}, 6,
         [[0, 0], [0, 1], [0, 1], [1, 2], [1, 2], [2, 2]],
         [[0.25, 0.75], [0.75, 0.25], [0.25, 0.75], [0.75, 0.25], [0.25, 0.75], [0.75, 0.25]]),
        ({"mode": "linear", "exclude_outside": 1, "coordinate_transformation_mode": "align_corners"}, 2,
         [[0, 1], [2, 2]], [[1, 0], [1, 0]]),
        ({"mode": "cubic", "coordinate_transformation_mode": "asymmetric"}, 3 * 2,
         [[0, 0, 1, 2], [0, 0, 1, 2], [0, 1, 2, 2], [0, 1, 2, 2], [1, 2, 2, 2], [1, 2, 2, 2]],
         [[0, 1, 0, 0], [-0.09375, 0.59375, 0.59375, -0.09375]] * 3),
        ({"mode": "linear", "antialias": 1}, 1, [[0, 0, 1, 2, 2, 2]], [[1 / 9, 2 / 9, 3 / 9, 2 / 9, 1 / 9, 0]]),
    ],
)  # fmt: skip
def test_taps_of_an_axis_of_three(attributes: dict[str, Any], size: int, indices: Any, weights: Any) -> None:
    """Worked out by hand from ONNX's text."""
    (axis,) = spec(1, **attributes).at((3,), sizes=np.array([size])).axes
    np.testing.assert_array_equal(axis.taps.indices, np.reshape(indices, (size, -1)))
    np.testing.assert_allclose(axis.taps.weights, np.reshape(weights, (size, -1)), atol=1e-15)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"scales": [2.0]}, "1 scales do not fit 2 axes"),
        ({"sizes": [2, 2, 2]}, "3 sizes do not fit 2 axes"),
        ({"scales": [0.0, 1.0]}, "scales are .0.0, 1.0.; allowed: finite numbers greater than 0"),
        ({"scales": [2.0, 2.0], "roi": [0.0, 1.0]}, "2 values of roi do not fit 2 axes"),
        ({"sizes": [2, 2], "roi": [0.0, np.nan, 1.0, 1.0]}, "roi is .0.0, nan, 1.0, 1.0.; allowed: finite numbers"),
        ({}, "neither scales nor sizes"),
    ],
)
def test_bad_values_are_refused(given: dict[str, Any], message: str) -> None:
    cropped = spec(2, coordinate_transformation_mode="tf_crop_and_resize")
    with pytest.raises(ModelError, match=f"Resize.*{message}"):
        cropped.at((4, 4), **{name: np.array(values) for name, values in given.items()})
