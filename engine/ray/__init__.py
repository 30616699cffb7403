"""Batch inference over a cluster by Ray Data: `predictor` makes a class for `Dataset.map_batches`.

Ray schedules, moves data, and repeats what was lost; this package gives it workers that import a compiled network.
Needs the extra `ray`: pip install "engine-sdk[ray]". Importing this package does not import Ray.
"""

from engine.ray.nodes import NodeFit
from engine.ray.predictor import predictor
from engine.ray.progress import Progress, WorkerProgress
from engine.ray.worker import Predictor

__all__ = ["NodeFit", "Predictor", "Progress", "WorkerProgress", "predictor"]
