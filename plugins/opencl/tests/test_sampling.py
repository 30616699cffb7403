"""GridSample and ConvTranspose's output_shape beyond the suite's cases: as on CPU.

Networks that warp images (optical flow, detection transformers) sample beside the borders, where a wrong neighbour
shows.
"""

from __future__ import annotations

import numpy as np
import pytest

from engine import Core, Model, ops
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
