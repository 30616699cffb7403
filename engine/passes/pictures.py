"""Pictures of models, for passes: environment variables switch what they show."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Final

from engine.ir import Model
from engine.passes.settings import is_on
from engine.visualize import GraphOptions, model_graph, write_graph

SHAPES: Final = "ENGINE_VISUALIZE_TREE_OUTPUT_SHAPES"
TYPES: Final = "ENGINE_VISUALIZE_TREE_OUTPUT_TYPES"


def picture_options(
    *,
    shapes: bool | None = None,
    types: bool | None = None,
    rt_info: bool | None = None,
    times: Mapping[str, float] | None = None,
) -> GraphOptions:
    """The given options; shapes and types are shown unless an environment variable says otherwise."""
    return GraphOptions(
        shapes=is_on(SHAPES, True) if shapes is None else shapes,
        types=is_on(TYPES, True) if types is None else types,
        rt_info=bool(rt_info),
        times=times or {},
    )


def write_picture(model: Model, path: str | os.PathLike[str], options: GraphOptions | None = None) -> None:
    """Draw `model` as SVG, dot or HTML, by the suffix of `path`; coloured by affinity, if nodes have one."""
    write_graph(model_graph(model, options or picture_options()), path)
