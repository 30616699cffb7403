"""The two published partitioning algorithms, step by step in their order: slow, the oracles of the native ones.

Where the texts leave something open, it is fixed here and marked so. Neither checks the graph of its subgraphs, which
may therefore be cyclic: `quotient_is_acyclic` tells.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import permutations

Edges = Sequence[tuple[int, int]]


class Network:
    """A DAG with the lists that both texts speak of."""

    def __init__(self, edges: Edges, nodes: int) -> None:
        self.nodes = range(nodes)
        self.successors = [sorted({b for a, b in edges if a == node}) for node in self.nodes]
        self.predecessors = [sorted({a for a, b in edges if b == node}) for node in self.nodes]


class SelfReferences:
    """The section "Subgraphs self reference detection" of OpenVINO's hetero design."""

    def __init__(self, network: Network) -> None:
        # Detection, step 1: the transitive closure, as a set for each node.
        self._reachable = [self._reachable_from(network, node) for node in network.nodes]
        self._cache: dict[tuple[int, int], set[int]] = {}

    @staticmethod
    def _reachable_from(network: Network, start: int) -> set[int]:
        found: set[int] = set()
        ahead = [start]
        while ahead:
            for node in network.successors[ahead.pop()]:
                if node not in found:
                    found.add(node)
                    ahead.append(node)
        return found

    def _path_nodes(self, src: int, dst: int) -> set[int]:
        # Detection, step 3: what is known of a pair is kept.
        if (src, dst) not in self._cache:
            # Detection, step 2: of all that `src` reaches, what `dst` is reached from.
            self._cache[src, dst] = {node for node in self._reachable[src] if dst in self._reachable[node]}
        return self._cache[src, dst]

    def of(self, subgraph: Iterable[int]) -> set[int]:
        """Return the path nodes of all pairs of nodes of a subgraph."""
        return set[int]().union(*(self._path_nodes(src, dst) for src, dst in permutations(subgraph, 2)))


def listed(nodes: Iterable[int]) -> str:
    """Write nodes as the text does: [1,2,3]."""
    return f"[{','.join(map(str, sorted(nodes)))}]"


class Candidate:
    """One subgraph grown from one root: steps 1 to 7 of OpenVINO's hetero design, written to `trace`."""

    def __init__(
        self, network: Network, references: SelfReferences, free: set[int], root: int, trace: list[str]
    ) -> None:
        self._network = network
        self._references = references
        self._free = free
        self._trace = trace
        self.root = root
        self.subgraph: list[int] = []  # in the order of their addition
        self._rejected: set[int] = set()
        self._grow(root)

    def _grow(self, root: int) -> None:
        # Selection, step 1.
        self.subgraph.append(root)
        self._check(f"select root {listed([root])}")
        # Step 2, until there is no such node.
        while (node := self._adjacent()) is not None:
            # Step 3. (Open: a node of a subgraph that was chosen fails like one of another device.)
            if node in self._free:
                # Step 4: taken,
                self.subgraph.append(node)
                step = f"merge {listed([node])}"
            else:
                # or rejected.
                self._rejected.add(node)
                step = f"failed to merge {listed([node])}"
            # Steps 5 and 6: what was taken last is given back and rejected, until the condition holds.
            while not self._check(step):
                last = self.subgraph.pop()
                self._rejected.add(last)
                step = f"roll back {listed([last])}"
        self._trace.append("no nodes to merge, end")

    def _adjacent(self) -> int | None:
        # Open in the text: depth-first from the node added last, successors first, lowest index first.
        for node in reversed(self.subgraph):
            for neighbour in self._network.successors[node] + self._network.predecessors[node]:
                if neighbour not in self._rejected and neighbour not in self.subgraph:
                    return neighbour
        return None

    def _check(self, step: str) -> bool:
        # Detection, steps 4 and 5. A node between that is not rejected may be taken later, and is no fault yet.
        between = self._references.of(self.subgraph) - set(self.subgraph)
        if known := between & self._rejected:
            condition = f"reject, self-references through {listed(known)}"
        elif between:
            condition = f"ok, possible self-references through {listed(between)}"
        else:
            condition = "ok"
        self._trace.append(
            f"{step}: subgraph {listed(self.subgraph)}, rejected {listed(self._rejected)}, condition: {condition}"
        )
        return not known


def rollback(
    edges: Edges, affinity: Sequence[int], sizes: Sequence[int] | None = None
) -> tuple[list[list[int]], list[str]]:
    """OpenVINO's hetero design, "Subgraphs selection": return the subgraphs as they were chosen, and the trace.

    sizes: what each node counts; 1 unless given.
    """
    sizes = sizes or [1] * len(affinity)
    network = Network(edges, len(affinity))
    references = SelfReferences(network)
    chosen: list[list[int]] = []
    trace: list[str] = []
    for device in sorted(set(affinity)):
        free = {node for node in network.nodes if affinity[node] == device}
        while free:
            candidates: list[Candidate] = []
            # Roots are nodes of the device that are in no candidate of this round.
            while roots := sorted(free.difference(*(candidate.subgraph for candidate in candidates))):
                trace.append(f"device {device}: possible roots {listed(roots)}")
                candidates.append(Candidate(network, references, free, roots[0], trace))
            trace.append(f"device {device}: possible roots []: no roots, end")
            # The largest, always. (Open: of equal ones that of the lowest root.)
            best = min(candidates, key=lambda candidate: (-sum(sizes[n] for n in candidate.subgraph), candidate.root))
            names = ", ".join(listed(candidate.subgraph) for candidate in candidates)
            trace.append(f"subgraphs {names}: select {listed(best.subgraph)}")
            chosen.append(sorted(best.subgraph))
            free -= set(best.subgraph)
            if free:
                trace.append(f"device {device}: remaining nodes {listed(free)}")
    return chosen, trace


class RestrictionMap:
    """TVM's proposal: subgraphs by label, and for each the labels that it may not be joined with."""

    def __init__(self, edges: Edges, affinity: Sequence[int]) -> None:
        self._network = Network(edges, len(affinity))
        self._affinity = affinity
        self._label: dict[int, int] = {}
        self._restricted: dict[int, set[int]] = {}

    def partition(self, outputs: Sequence[int]) -> list[list[int]]:
        """Visit the graph from its outputs; return the subgraphs, by their first node."""
        for output in outputs:
            self._visit(output)
        labels = sorted(self._restricted)
        return sorted([node for node in self._network.nodes if self._label[node] == label] for label in labels)

    def _visit(self, node: int) -> None:
        if node in self._label:
            return
        # (Open: parents of the lowest index first.)
        for parent in self._network.predecessors[node]:
            self._visit(parent)
        self._assign(node)

    def _assign(self, node: int) -> None:
        parents = {self._label[parent] for parent in self._network.predecessors[node]}
        # What the node is able to join: the subgraphs of its device that parents are in,
        joinable = {label for label in parents if self._device(label) == self._affinity[node]}
        # without those that are restricted.
        joinable -= set[int]().union(*(self._restricted[label] for label in parents))
        if joinable:
            # Join one, then merge the others with it: none of those left restricts another.
            joined, *others = sorted(joinable)
            for other in others:
                self._merge(other, joined)
        else:
            # Create one.
            joined = len(self._label)
            self._restricted[joined] = set()
        self._label[node] = joined
        # The restriction map is updated: the other parents' subgraphs, and what those are restricted from.
        for label in parents - joinable:
            self._restricted[joined] |= {label} | self._restricted[label]

    def _device(self, label: int) -> int:
        return next(self._affinity[node] for node, other in self._label.items() if other == label)

    def _merge(self, label: int, into: int) -> None:
        self._label = {node: into if other == label else other for node, other in self._label.items()}
        self._restricted[into] |= self._restricted.pop(label)
        for restricted in self._restricted.values():
            if label in restricted:
                restricted.remove(label)
                restricted.add(into)


def restriction_map(edges: Edges, affinity: Sequence[int], outputs: Sequence[int] | None = None) -> list[list[int]]:
    """TVM's proposal: return the subgraphs, by their first node.

    outputs: those of the model, all nodes without successors among them, which is what they are by default.
    """
    if outputs is None:
        sources = {a for a, _ in edges}
        outputs = [node for node in range(len(affinity)) if node not in sources]
    return RestrictionMap(edges, affinity).partition(outputs)


def quotient_is_acyclic(edges: Edges, subgraphs: Sequence[Sequence[int]]) -> bool:
    """Tell whether the subgraphs can be run one after the other."""
    label = {node: index for index, subgraph in enumerate(subgraphs) for node in subgraph}
    remaining = {(label[a], label[b]) for a, b in edges if label[a] != label[b]}
    waiting = set(range(len(subgraphs)))
    while ready := waiting - {b for _, b in remaining}:
        waiting -= ready
        remaining = {(a, b) for a, b in remaining if a not in ready}
    return not waiting
