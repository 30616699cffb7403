"""How many of ONNX's node cases a device runs natively, and which operators prevent the others.

Run as `python tools/native_cases.py CPU`; `--cases` also lists the cases of each operator. The device's own
query answers, and nothing is compiled, so the count takes seconds.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterator
from dataclasses import field

from engine.core import Core
from engine.plugin_api import SupportLevel
from engine.startup import dataclass
from engine.testing.onnx_suite import CASES, SuiteCase, read_case

_SOURCES = frozenset({"Parameter", "Constant", "Result"})
_REASONS = 4
"""The number of different reasons that are printed for an operator."""


@dataclass(slots=True)
class OperatorLoss:
    """The cases that an operator keeps from running natively."""

    operator: str
    cases: list[str] = field(default_factory=list)
    reasons: Counter[str] = field(default_factory=Counter)
    """How often the device gave each reason."""


@dataclass(slots=True)
class NativeCases:
    """The answers of one device for all node cases."""

    native: list[str] = field(default_factory=list)
    """The cases in which every operation is native."""
    others: list[str] = field(default_factory=list)
    losses: dict[str, OperatorLoss] = field(default_factory=dict)
    """By operator; a case with several operators counts for each of them."""

    @property
    def ranking(self) -> list[OperatorLoss]:
        """The operators, those first that cost most cases."""
        return sorted(self.losses.values(), key=lambda loss: (-len(loss.cases), loss.operator))


def count_native(core: Core, device: str) -> NativeCases:
    """Query `device` for every node case of the backend suite. Raises what `Core.query_model` raises."""
    found = NativeCases()
    for name, case in node_cases():
        model = read_case(core, case)
        answer = core.query_model(model, device)
        operators = {
            node.friendly_name: f"{node.domain}.{node.op_type}" if node.domain else node.op_type
            for node in model.ordered_nodes()
            if node.op_type not in _SOURCES
        }
        refused = {key: each for key, each in answer.nodes.items() if each.level is not SupportLevel.NATIVE}
        (found.others if refused else found.native).append(name)
        for key, support in refused.items():
            operator = operators[key]
            loss = found.losses.setdefault(operator, OperatorLoss(operator))
            loss.reasons[support.reason] += 1
            if name not in loss.cases[-1:]:
                loss.cases.append(name)
    return found


def node_cases() -> Iterator[tuple[str, SuiteCase]]:
    """The node cases of the backend suite, by name; each tests one operator."""
    return ((name, case) for name, case in CASES.items() if case.kind == "node")


def main() -> None:
    """Print how many of ONNX's node cases are native on a device."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("device", nargs="?", default="CPU")
    parser.add_argument("--cases", action="store_true", help="list the cases of each operator")
    args = parser.parse_args()
    found = count_native(Core(), args.device)
    total = len(found.native) + len(found.others)
    print(f"{len(found.native)} of {total} node cases are native on {args.device}")
    for loss in found.ranking:
        print(f"{len(loss.cases):5} {loss.operator}")
        for reason, count in loss.reasons.most_common(_REASONS):
            print(f"{count:11} x {reason}")
        if args.cases:
            print("            ", *(name.removeprefix("test_") for name in loss.cases))


if __name__ == "__main__":
    main()
