"""GridSample, RoiAlign and ConvTranspose's output_shape beyond the suite's cases.

Networks that warp images (optical flow, detection transformers) sample beside the borders, where a wrong neighbour
shows. Detectors crop regions that their first stage made up: of any size, or none.
"""

from __future__ import annotations

import numpy as np
import pytest

from engine import Core, Model, ops
from engine.errors import InputError
from engine.ir import ElementType, Parameter, Result


@pytest.fixture(scope="module")
def core() -> Core:
    return Core()


def check_as_on_cpu(core: Core, op_type: str, *values: np.ndarray, **attributes: object) -> None:
    parameters = [Parameter(ElementType.from_numpy(v.dtype), v.shape, f"x{i}") for i, v in enumerate(values)]
    model = Model([Result(ops.create(op_type, parameters, attributes))], parameters)
    given = {f"x{i}": v for i, v in enumerate(values)}
    found, expected = (core.compile_model(model, device)(given)[0] for device in ("OPENCL", "CPU"))
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize("padding_mode", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("align_corners", [0, 1])
def test_places_beside_the_borders(core: Core, mode: str, padding_mode: str, align_corners: int) -> None:
    """Two images of several channels, far outside too; volumes where the mode has them."""
    random = np.random.default_rng(1)
    for shape in [(2, 3, 5, 4), (1, 2, 3, 4, 5)][: 1 if mode == "cubic" else 2]:
        x = random.normal(size=shape).astype(np.float32)
        grid = random.uniform(-3.1, 3.1, (shape[0], *(3,) * (len(shape) - 2), len(shape) - 2)).astype(np.float32)
        attributes = {"mode": mode, "padding_mode": padding_mode, "align_corners": align_corners}
        check_as_on_cpu(core, "GridSample", x, grid, **attributes)


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize("padding_mode", ["zeros", "border", "reflection"])
def test_places_that_are_no_numbers(core: Core, mode: str, padding_mode: str) -> None:
    """Nothing outside the image is read, and its corners are correct."""
    x, grid = Parameter(ElementType.from_numpy(np.dtype(np.float32)), (1, 1, 2, 2), "x"), -np.ones((1, 1, 4, 2))
    grid[0, 0, :3] = [[np.nan, 0], [np.inf, -np.inf], [1e30, 0]]
    places = Parameter(x.output(0).element_type, grid.shape, "grid")
    node = ops.create("GridSample", [x, places], {"mode": mode, "padding_mode": padding_mode, "align_corners": 1})
    network = core.compile_model(Model([Result(node)], [x, places]), "OPENCL")
    image = np.full((1, 1, 2, 2), 5, np.float32)
    assert network({"x": image, "grid": grid.astype(np.float32)})[0][0, 0, 0, 3] == pytest.approx(5)


@pytest.mark.parametrize("shape", [(9, 10), (7, 8), (11, 12)])
@pytest.mark.parametrize("auto_pad", ["NOTSET", "SAME_UPPER", "SAME_LOWER"])
def test_transposed_convolutions_of_a_given_shape(core: Core, shape: tuple[int, int], auto_pad: str) -> None:
    """The cropped length may be odd or zero."""
    random = np.random.default_rng(2)
    x, w = random.normal(size=(1, 2, 4, 4)).astype(np.float32), random.normal(size=(2, 3, 3, 4)).astype(np.float32)
    check_as_on_cpu(core, "ConvTranspose", x, w, strides=(2, 2), output_shape=shape, auto_pad=auto_pad)


def made(core: Core, op_type: str, *values: np.ndarray, device: str = "OPENCL", **attributes: object) -> np.ndarray:
    """The result of an operator whose inputs are all given by the user."""
    parameters = [Parameter(ElementType.from_numpy(v.dtype), v.shape, f"x{i}") for i, v in enumerate(values)]
    model = Model([Result(ops.create(op_type, parameters, attributes))], parameters)
    return core.compile_model(model, device)(list(values))[0]


def regions_of(random: np.random.Generator) -> np.ndarray:
    """Usual ones, some in reverse, an empty one, and one far larger than the map."""
    corners = random.uniform(-6, 24, (40, 4)).astype(np.float32)
    corners[:20] = np.sort(corners[:20].reshape(20, 2, 2), axis=1).reshape(20, 4)
    corners[38:] = [[3, 3, 3, 3], [-90, -90, 200, 90]]
    return corners


@pytest.mark.parametrize("mode", ["avg", "max"])
@pytest.mark.parametrize("transform", ["half_pixel", "output_half_pixel"])
@pytest.mark.parametrize("samples", [0, 1, 3])
@pytest.mark.parametrize("scale", [0.75, 0.7])
def test_regions(core: Core, mode: str, transform: str, samples: int, scale: float) -> None:
    """The evaluation has the same numbers of samples and places: they must not depend on how a quotient is rounded."""
    random = np.random.default_rng(samples)
    x, corners = random.normal(size=(3, 19, 11, 13)).astype(np.float32), regions_of(random)
    corners[0] = 0, 0, 10, 20  # by 0.7, of 7 by 14 pixels up to rounding
    images = random.integers(0, 3, len(corners))
    attributes = {
        "mode": mode, "coordinate_transformation_mode": transform, "sampling_ratio": samples, "output_height": 7,
        "output_width": 7, "spatial_scale": scale,
    }  # fmt: skip
    found = made(core, "RoiAlign", x, corners, images, **attributes)
    parameters = [Parameter(ElementType.from_numpy(v.dtype), v.shape) for v in (x, corners, images)]
    (wanted,) = ops.evaluate(ops.create("RoiAlign", parameters, attributes), [x, corners, images])
    # A sum of at most 22 x 42 samples of 4 products, divided by their number; 3 roundings of a weight, 1 of a product.
    bound = (4 + np.sqrt(4 * 22 * 42)) * float(np.finfo(np.float32).eps) * float(np.abs(x).max())
    np.testing.assert_allclose(found, wanted, rtol=0, atol=bound)


def test_regions_in_half_precision(core: Core) -> None:
    """Only the result is rounded to f16."""
    random = np.random.default_rng(5)
    x, corners = random.normal(size=(2, 3, 11, 13)).astype(np.float16), regions_of(random).astype(np.float16)
    images = random.integers(0, 2, len(corners))
    found = made(core, "RoiAlign", x, corners, images, output_height=2, output_width=3)
    wanted = made(core, "RoiAlign", x.astype(np.float32), corners.astype(np.float32), images, output_height=2,
                  output_width=3)  # fmt: skip
    np.testing.assert_array_equal(found, wanted.astype(np.float16))


def test_regions_of_any_size(core: Core) -> None:
    """They take no longer than small ones; a region that is not a number has no average, as on CPU."""
    x = np.ones((1, 2, 4, 4), np.float32)
    corners = np.float32([[-1e9, -1e9, 1e9, 1e9], [-1e30, 0, 1e30, 4], [0, 0, np.nan, 1], [0, 0, np.inf, 1]])
    for mode in ("avg", "max"):
        found = made(core, "RoiAlign", x, corners, np.zeros(4, np.int64), mode=mode)
        expected = made(core, "RoiAlign", x, corners, np.zeros(4, np.int64), mode=mode, device="CPU")
        assert np.isnan(found[2:]).all()
        np.testing.assert_array_equal(np.isnan(found), np.isnan(expected))
        # Of 1e9 samples along a side, at most a few are on the map.
        assert found[:2].max() <= (1e-6 if mode == "avg" else 1)
        assert found[:2].min() >= 0


@pytest.mark.parametrize("image", [2, -1, 2**40])
def test_a_region_of_an_image_that_does_not_exist_fails_by_name(core: Core, image: int) -> None:
    x, corners = np.ones((2, 1, 4, 4), np.float32), np.ones((1, 4), np.float32)
    with pytest.raises(InputError, match=rf"RoiAlign `.*`: index {image} is out of range .* of 2; expected 0\.\.1"):
        made(core, "RoiAlign", x, corners, np.array([image]))


def test_no_regions(core: Core) -> None:
    found = made(
        core, "RoiAlign", np.ones((1, 2, 4, 4), np.float32), np.ones((0, 4), np.float32), np.zeros(0, np.int64)
    )
    assert found.shape == (0, 2, 1, 1)
