"""The text of a placement: whoever reads it learns what runs where, why, and what it costs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from engine.drawing.table import byte_count, duration, printable, table
from engine.placement import Crossing, NodeRefusal, PlacedSubgraph, PlacementReport
from engine.placement.text import operator_summary, placement_text, transfer_size

SMALL = """\
placement of `small` over GPU, CPU: 5 operations in 3 subgraphs, and 1 computed wherever needed
strategy potential, mode connected, placement priority; operations placed by priority: 3, user: 1, atom: 1

SUBGRAPH  DEVICE  NODES  OPERATORS           IN      OUT  PREDICTED  MEASURED  READS FROM
       0  GPU         2  Conv, Relu     0 bytes   8.0 MB    2.00 ms         -  -
       1  CPU         1  NonZero         4.0 MB        ?     500 us         -  0
       2  GPU         2  Mul, Add    4.0 MB + ?  0 bytes    1.00 ms         -  0, 1

DEVICE  SUBGRAPHS  NODES  BY REFERENCE  PREDICTED  MEASURED
GPU             2      4             1    3.00 ms         -
CPU             1      1             0     500 us         -

subgraphs       3; lower bound 2: no partition has fewer than 2
bytes crossing  8.0 MB in 3 transfers; the lengths of 1 are known only during an inference
predicted time  min_subgraphs 4.50 ms, connected 3.90 ms (chosen); from default costs, for comparison only
of transfers    400 us
measured time   none: --config PLACEMENT=measured measures them

LARGEST TRANSFERS  FROM -> TO           BYTES  PREDICTED
`nonzero`          1 (CPU) -> 2 (GPU)       ?          -
`relu`             0 (GPU) -> 1 (CPU)  4.0 MB     400 us
`relu`             0 (GPU) -> 2 (GPU)  4.0 MB       0 us

not native on a device listed earlier, or evaluated on the host, and why:
  GPU refuses 1 NonZero (op), now on CPU
    `nonzero`
    GPU has no kernel for NonZero
  GPU evaluates on the host 1 Add (element type)
    `add`
    Add of i64 is evaluated on the host

findings:
  moving `relu` to CPU takes 0.40 ms and gains 0.10 ms"""


def test_a_small_placement(report: PlacementReport) -> None:
    assert placement_text(report, "small") == SMALL


def test_long_lists_end_early_and_say_how_to_get_the_rest(chain: PlacementReport) -> None:
    lines = placement_text(chain, "chain", hint="--nodes lists all").splitlines()
    assert len(lines) < 70
    for line in (
        "and 970 more subgraphs (--nodes lists all)",
        "and 1986 more transfers (--nodes lists all)",
        "  A refuses 500 Gelu (op), now on B",
        "    `a1`, `a3`, `a5` and 497 more nodes (--nodes lists all)",
        "    no 1 and 499 more reasons (--nodes lists all)",
        "predicted time  none: the costs of these devices are unknown",
        "of transfers    -",
        "measured time   1.50 s",
    ):
        assert line in lines
    complete = placement_text(chain, "chain", is_complete=True, hint="--nodes lists all")
    assert "\nand " not in complete
    assert "--nodes" not in complete
    assert "    `a999`: no 999" in complete.splitlines()
    assert complete.count(" (A) -> ") + complete.count(" (B) -> ") == len(chain.crossings)


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"lower_bound": 3}, "subgraphs       3; lower bound 3: the minimum"),
        ({"measured_seconds": 0.0123}, "measured time   12.3 ms"),
        ({"placement": "measured"}, "measured time   none: these subgraphs were not measured"),
        (
            {"predicted_seconds": {"connected": 0.002}},
            "predicted time  connected 2.00 ms; from default costs, for comparison only",
        ),
        ({"costs": "measured", "predicted_seconds": {"a": 2.0}}, "predicted time  a 2.00 s; from measured costs"),
        (
            {"predicted_seconds": {}},
            "predicted time  3.50 ms for all subgraphs; from default costs, for comparison only",
        ),
        ({"refusals": ()}, "every operation runs natively, and no device listed earlier refused one"),
        ({"findings": ()}, "no transfer or split is known to cost more than it gains"),
        (
            {"findings": (), "predicted_seconds": {}},
            "whether a transfer or a split costs more than it gains is unknown without predictions",
        ),
        ({"crossings": ()}, "bytes crossing  0 bytes in 0 transfers"),
        ({"crossings": ()}, "of transfers    none"),
        (
            {"crossings": (), "findings": ()},
            "no value crosses, so no transfer or split costs more than it gains",
        ),
    ],
)
def test_what_is_not_known_is_said(report: PlacementReport, changes: dict[str, object], line: str) -> None:
    assert line in placement_text(replace(report, **changes), "small").splitlines()  # type: ignore[arg-type]


def test_subgraphs_that_were_measured_are_summed(report: PlacementReport) -> None:
    first, *rest = report.subgraphs
    text = placement_text(replace(report, subgraphs=(replace(first, measured_seconds=0.0025), *rest)), "small")
    assert "measured time   2.50 ms for the operations of 1 of 3 subgraphs" in text.splitlines()


def test_a_model_without_operations(report: PlacementReport) -> None:
    text = placement_text(PlacementReport(("GPU",), "potential", "auto", "priority", (), (), 0), "empty")
    assert "0 operations in 0 subgraphs" in text
    assert "operations placed by nobody" in text


def test_names_cannot_upset_a_terminal(report: PlacementReport) -> None:
    wild = "a\x1b[2Jb\nc"
    refusals = (NodeRefusal(wild, "Relu", "GPU", "refused", "op", "because\nof it"),)
    crossings = (Crossing(wild, 0, 1, 5), *report.crossings)
    text = placement_text(replace(report, refusals=refusals, crossings=crossings), wild, is_complete=True)
    assert "\x1b" not in text
    assert "b\nc" not in text
    assert (
        "    `a\N{REPLACEMENT CHARACTER}[2Jb\N{REPLACEMENT CHARACTER}c`: because\N{REPLACEMENT CHARACTER}of it" in text
    )


def test_summaries_name_the_main_operators() -> None:
    op_types = ("Add", "Conv", "Conv", "Relu", "Relu", "Relu", "Neg", "Abs")
    subgraph = PlacedSubgraph(0, "CPU", tuple("abcdefgh"), op_types=op_types)
    assert operator_summary(subgraph) == "Relu x3, Conv x2, Add, 2 others"
    assert operator_summary(replace(subgraph, op_types=())) == ""


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [((), "0 bytes"), ((5, 995), "1.0 kB"), ((None,), "?"), ((0, None), "?"), ((7, None), "7 bytes + ?")],
)
def test_sizes_that_are_not_known_are_marked(sizes: tuple[int | None, ...], expected: str) -> None:
    assert transfer_size(Crossing("x", 0, 1, size) for size in sizes) == expected


def test_short_forms() -> None:
    assert [byte_count(n) for n in (0, 999, 1500, 10**7, 10**13)] == [
        "0 bytes",
        "999 bytes",
        "1.5 kB",
        "10.0 MB",
        "10000.0 GB",
    ]
    times = {0: "0 us", 1.5e-7: "0.15 us", 12.34e-6: "12.3 us", 0.000456: "456 us", 0.0123: "12.3 ms", 95.0: "95.0 s"}
    assert [duration(seconds) for seconds in times] == list(times.values())
    assert printable("a\tb" + "c" * 10, 8) == "a\N{REPLACEMENT CHARACTER}bcc..."
    assert table([("a", 1, "x"), ("bb", 22, "yy")], ("N", "COUNT", "R"), right=(2,)) == [
        "N   COUNT   R",
        "a       1   x",
        "bb     22  yy",
    ]
