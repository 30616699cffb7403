"""`Validate`: checks the graph and infers types, as a pass."""

from __future__ import annotations

from engine.ir import Model
from engine.passes.base import ModelPass


class Validate(ModelPass):
    """Runs `Model.validate`: for pipelines whose manager does not validate automatically."""

    is_transformation = False

    def run_on_model(self, model: Model) -> bool:
        """Infer all types again; returns whether one changed."""
        return model.validate()
