"""The cost of a new length, and of a plan for many lengths beside one for a single length.

    python benchmarks/lengths.py                                     # BERT's length, ResNet-50's batch
    python benchmarks/lengths.py --networks vit_b16 --lengths 2,4,8 --clock cpu --threads 1

For each network, a family of plans is made by its first lengths. Then each length is run for the first time, and again
after another one; and its plan of the family runs in turns with one that was made for this length alone. "bert" varies
its number of tokens; the other networks, of `engine.testing.networks`, vary their batch.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np
import onnx
from comparison.report import markdown
from import_bert import bert

from engine import Core
from engine.native import cpu_features
from engine.testing.networks import repeated, seeded_network, with_any_batch

Feed = Mapping[str, Any]
CLOCKS: Mapping[str, Callable[[], float]] = {"wall": time.perf_counter, "cpu": time.process_time}


@dataclass(frozen=True, slots=True)
class Case:
    """A model, and its inputs for a length."""

    model: onnx.ModelProto
    feed: Callable[[int], Feed]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0], allow_abbrev=False)
    parser.add_argument("--networks", default="bert,resnet50")
    parser.add_argument("--lengths", default="", help="of which the first two make the family; default: by network")
    parser.add_argument("--layers", type=int, default=12, help="of BERT")
    parser.add_argument("--rounds", type=int, default=3, help="networks in which each length is new")
    parser.add_argument("--turns", type=int, default=9, help="of both plans for a length; 0: without this part")
    parser.add_argument("--clock", choices=CLOCKS, default="wall", help="cpu: the time of all threads of the process")
    parser.add_argument("--threads", type=int, default=0, help="of an inference; 0: all cores")
    options = parser.parse_args()
    print(f"CPU: {cpu_features().model}; {options.clock} time, medians\n")
    rows = []
    for name in options.networks.split(","):
        case = case_of(name, options.layers)
        default = "40,56,128,33,48,64,77,96,100,111,120" if name == "bert" else "4,3,9,2,5,6,7,8"
        lengths = [int(each) for each in (options.lengths or default).split(",")]
        new = first_times(case, lengths, options)
        rows.append([name, "a new length beside one seen before", *described(new)])
        if options.turns:
            rows.append([name, "a family beside a plan for one length", *described(in_turns(case, lengths, options))])
    print(markdown(["network", "compared", "lengths", "first, ms", "second, ms", "ratio"], rows))


def case_of(name: str, layers: int) -> Case:
    if name == "bert":
        return Case(bert(layers), tokens)
    seeded = seeded_network(name)
    return Case(with_any_batch(seeded.model), lambda batch: repeated(seeded.inputs, batch))


def tokens(length: int) -> Feed:
    ids = np.random.default_rng(length).integers(0, 1000, (1, length))
    return {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}


Times = Mapping[int, list[tuple[float, float]]]
"""The seconds of both runs in each round, by length."""


def first_times(case: Case, lengths: list[int], options: argparse.Namespace) -> Times:
    """The first run of each length, and the second one after another length."""
    family, rest = [*lengths[:2], max(lengths)], [each for each in lengths[2:] if each != max(lengths)]
    times: dict[int, list[tuple[float, float]]] = {length: [] for length in rest}
    for turn in range(options.rounds):
        request = compiled(case, options)
        for length in family:
            request.infer(case.feed(length))
        for length in rest if turn % 2 else reversed(rest):
            feed, other = case.feed(length), case.feed(family[turn % 2])
            request.infer(other)
            first = timed(request, feed, options.clock)
            request.infer(other)
            times[length].append((first, timed(request, feed, options.clock)))
    return times


def in_turns(case: Case, lengths: list[int], options: argparse.Namespace) -> Times:
    """The plan of a family, and one for the length alone."""
    family = compiled(case, options)
    for length in (*lengths[:2], max(lengths)):
        family.infer(case.feed(length))
    times: dict[int, list[tuple[float, float]]] = {}
    for length in lengths:
        feed, alone = case.feed(length), compiled(case, options)
        pair = (family, alone)
        for request in pair:
            request.infer(feed)
        times[length] = []
        for turn in range(options.turns):
            found = {index: timed(pair[index], feed, options.clock) for index in ((0, 1) if turn % 2 else (1, 0))}
            times[length].append((found[0], found[1]))
    return times


def compiled(case: Case, options: argparse.Namespace) -> Any:
    network = Core().compile_model(case.model, "CPU", {"INFERENCE_NUM_THREADS": options.threads})
    return network.create_infer_request()


def timed(request: Any, feed: Feed, clock: str) -> float:
    begin = CLOCKS[clock]()
    request.infer(feed)
    return CLOCKS[clock]() - begin


def described(times: Times) -> list[str]:
    """The lengths; the medians over rounds, added up over lengths; and the median of all ratios."""
    sums = [1e3 * sum(median(pair[index] for pair in pairs) for pairs in times.values()) for index in (0, 1)]
    ratio = median(first / second for pairs in times.values() for first, second in pairs)
    return [", ".join(map(str, times)), *(f"{each:.1f}" for each in sums), f"{ratio:.3f}"]


if __name__ == "__main__":
    main()
