"""Every recipe, by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from exporting.recipe import Recipe
from exporting.recipes import classic, diffusion, graphs, images, scenes, sound, tensorflow, text, videos

_DOMAINS: Final = (text, images, videos, scenes, sound, diffusion, graphs, classic, tensorflow)

RECIPES: Final[Mapping[str, Recipe]] = {
    name: recipe for domain in _DOMAINS for name, recipe in domain.RECIPES.found.items()
}
