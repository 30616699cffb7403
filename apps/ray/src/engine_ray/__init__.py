"""Batch inference over a cluster by Ray Data: `predictor` makes a class for `Dataset.map_batches`.

Ray schedules, moves data, and repeats what was lost; this package gives it workers that import a compiled network.
Importing this package does not import Ray.
"""

from engine_ray.nodes import NodeFit
from engine_ray.predictor import predictor
from engine_ray.progress import Progress, WorkerProgress
from engine_ray.worker import Predictor

__all__ = ["NodeFit", "Predictor", "Progress", "WorkerProgress", "predictor"]
