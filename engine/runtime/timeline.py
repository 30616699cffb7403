"""Makes a timeline of profiles of inferences: requests, stages, waits, steps, transfers and memory."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

from engine.drawing.timeline import Span, Timeline, Track, counter_of, tracks_of
from engine.runtime.records import InferenceProfile, NodeProfile

WAIT = "wait"


def timeline_of(profiles: Sequence[InferenceProfile], network: str = "") -> Timeline:
    """The timeline of inferences, in any order.

    It has, for each request, a track with its inferences, their stages and the waits for executors; for each executor,
    a track with its stages; for each request, the steps, by device if the device runs on others; the transfers; and the
    memory in use for intermediate results of all requests.
    """
    requests: defaultdict[str, list[Span]] = defaultdict(list)
    executors: defaultdict[str, list[Span]] = defaultdict(list)
    steps: defaultdict[str, list[Span]] = defaultdict(list)
    transfers: defaultdict[str, list[Span]] = defaultdict(list)
    memory: defaultdict[str, list[tuple[int, int, int]]] = defaultdict(list)
    for profile in sorted(profiles, key=lambda profile: profile.begun_ns):
        if not profile.stages:
            continue
        request = f"request {profile.request_id}"
        requests[request] += _inference(profile)
        for stage in profile.stages:
            span = Span(f"{request}: {stage.name}", stage.start_ns, stage.end_ns - stage.start_ns, "stage")
            executors[f"executor {stage.executor}"].append(span)
        for node in profile.nodes:
            device = node.part.partition(": ")[2]
            on = f" on {device}" if device else ""
            steps[f"{request}: subgraphs" if node.is_total else f"{request}: steps{on}"].append(_step(node))
            if node.live_bytes is not None:
                use = node.start_ns, node.start_ns + node.duration_ns, node.live_bytes
                memory[f"intermediate results{on}"].append(use)
        for each in profile.transfers:
            details: dict[str, str | int | float] = {"from": each.source, "to": each.target}
            if each.byte_size is not None:
                details["bytes"] = each.byte_size
            name = f"{each.name}: {each.source} to {each.target}"
            transfers[f"{request}: transfers"].append(Span(name, each.start_ns, each.duration_ns, "transfer", details))
    groups = (requests, executors, steps, transfers)
    tracks = [track for group in groups for track in _tracks(group.items())]
    counters = tuple(counter_of(name, uses) for name, uses in sorted(memory.items()))
    return Timeline(network or "engine", tuple(tracks), counters)


def _tracks(named: Iterable[tuple[str, list[Span]]]) -> Iterator[Track]:
    for name, spans in sorted(named):
        yield from tracks_of(name, spans)


def _inference(profile: InferenceProfile) -> Iterator[Span]:
    """The span of an inference, and in it the spans of its stages and its waits."""
    begun = profile.begun_ns or profile.stages[0].start_ns
    end = max(stage.end_ns for stage in profile.stages)
    yield Span("inference", begun, end - begun, "inference", {"steps": len(profile.nodes)})
    for stage in profile.stages:
        if stage.start_ns > begun:
            yield Span(f"wait for {stage.executor}", begun, stage.start_ns - begun, WAIT)
        yield Span(stage.name, stage.start_ns, stage.end_ns - stage.start_ns, "stage", {"executor": stage.executor})
        begun = max(begun, stage.end_ns)


def _step(node: NodeProfile) -> Span:
    details: dict[str, str | int | float] = {"operator": node.op_type, "status": node.status}
    for key, value in (("kernel", node.kernel), ("subgraph", node.part), ("node", node.node)):
        if value:
            details[key] = value
    if node.nodes:
        details["nodes"] = ", ".join(node.nodes)
    if node.live_bytes is not None:
        details["bytes in use"] = node.live_bytes
    return Span(node.name, node.start_ns, node.duration_ns, node.op_type, details)
