"""Profiles as a page: the timeline, the stages and the nodes by their time."""

from __future__ import annotations

from collections.abc import Sequence

from engine.drawing.html import plain_table
from engine.drawing.page import page, paragraph, section
from engine.drawing.table import duration, printable
from engine.drawing.timeline_page import SECTION, timeline_script, timeline_style
from engine.runtime.profile_table import layers_of, stages_of
from engine.runtime.records import InferenceProfile
from engine.runtime.timeline import timeline_of


def profile_page(profiles: Sequence[InferenceProfile], title: str, notes: Sequence[str] = ()) -> str:
    """A complete page on inferences of one network; times in tables are means."""
    profiles = [profile for profile in profiles if profile.stages]
    number = len(profiles) or 1
    total = sum(profile.duration_ns for profile in profiles) or 1

    def times(nanoseconds: int) -> tuple[str, str]:
        return duration(nanoseconds / number / 1e9), f"{100 * nanoseconds / total:.1f} %"

    stages = [(*key, *times(nanoseconds)) for key, nanoseconds in stages_of(profiles).items()]
    layers = layers_of(profiles)
    has_parts = any(layer.part for layer in layers)
    nodes = [
        (layer.name, layer.op_type, layer.how, *([layer.part] if has_parts else []), *times(layer.nanoseconds))
        for layer in layers
    ]
    columns = ["Node", "Operator", "Kernel", *(["Subgraph"] if has_parts else []), "Time", "Share"]
    return page(
        title,
        [
            *map(paragraph, notes),
            SECTION,
            section("Stages", plain_table(["Stage", "Executor", "Time", "Share"], _shown(stages), {2, 3})),
            section(
                "Nodes",
                plain_table(columns, _shown(nodes), {len(columns) - 2, len(columns) - 1}),
            ),
        ],
        style=timeline_style(),
        script=timeline_script(timeline_of(profiles, title)),
    )


def _shown(rows: Sequence[Sequence[str]]) -> list[list[str]]:
    return [[printable(cell, 200) for cell in row] for row in rows]
