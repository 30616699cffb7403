"""Ray, which is imported when a cluster is used."""

from __future__ import annotations

from typing import Any

from engine.errors import UnsupportedError


def ray_package() -> Any:
    """The package `ray` with `ray.data`. Raises `UnsupportedError` if it cannot be imported."""
    try:
        import ray
        import ray.data
    except ImportError as e:
        raise UnsupportedError(
            f"a cluster needs Ray Data, which cannot be imported ({e}): pip install engine-ray"
        ) from e
    return ray
