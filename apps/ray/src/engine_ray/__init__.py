"""Work over a cluster of Ray: batches of a dataset (`predictor`), and models that are larger than a machine
(`export_parts`, `open_parts`).

Ray schedules, moves data, and repeats what was lost; this package gives it workers that import a compiled network, or a
part of one. Importing this package does not import Ray.
"""

from engine_ray.nodes import NodeFit
from engine_ray.part_actor import PartProcess
from engine_ray.part_folder import ExportedPart, PartFolder, export_parts, read_parts
from engine_ray.parts_network import PartsNetwork, open_parts
from engine_ray.predictor import predictor
from engine_ray.progress import Progress, WorkerProgress
from engine_ray.worker import Predictor

__all__ = [
    "ExportedPart",
    "NodeFit",
    "PartFolder",
    "PartProcess",
    "PartsNetwork",
    "Predictor",
    "Progress",
    "WorkerProgress",
    "export_parts",
    "open_parts",
    "predictor",
    "read_parts",
]
