"""`HETERO_DUMP_GRAPH`: a picture of each model that is compiled, with the device and the subgraph of each operation."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from engine.plugin_api import Config, Model, PropertyError, QueryResult
from engine.startup import dataclass
from engine.visualize import SUFFIXES, answered_graph, model_graph, write_unused
from engine_hetero.division.division import Division
from engine_hetero.properties import DUMP_GRAPH
from engine_hetero.report.explain import report_of

DEVICE: Final = "HETERO"


@dataclass(frozen=True, slots=True)
class GraphDump:
    """Where the next picture goes: folder, name without number and suffix (empty: the model's), and suffix."""

    folder: Path
    stem: str
    suffix: str

    @classmethod
    def of(cls, config: Config) -> GraphDump | None:
        """The place that a configuration names; None if it names none. Raises `PropertyError`."""
        value: str = config[DUMP_GRAPH]
        if not value:
            return None
        path = Path(value)
        if path.is_dir():
            return cls(path, "", ".dot")
        if path.suffix not in SUFFIXES:
            raise PropertyError(
                f"{DUMP_GRAPH.name}: {value!r} is neither a folder nor a file whose name ends with "
                f"{', '.join(SUFFIXES[:-1])} or {SUFFIXES[-1]}"
            )
        if not path.parent.is_dir():
            raise PropertyError(f"{DUMP_GRAPH.name}: cannot write {value}: folder {path.parent} does not exist")
        return cls(path.parent, path.stem, path.suffix)

    def write(self, division: Division, config: Config, model: Model) -> Path:
        """Draw a division of `model` in a new file, and return its path. Raises `PropertyError`."""
        stem = self.stem or re.sub(r"[^\w.-]+", "_", model.name).strip("._")[:100] or "model"
        answer = QueryResult({}, placement=report_of(division, config, model))
        graph = answered_graph(model_graph(model), answer, DEVICE)
        try:
            return write_unused(graph, self.folder, stem, self.suffix)
        except OSError as e:
            raise PropertyError(f"{DUMP_GRAPH.name}: {e}") from e
