"""Measuring a network: alone, beside other devices, configurations, models and engines, and layer by layer.

`measure_alone` measures in this process; `compare_subjects` measures several, each in a process of its own, in blocks
that alternate within one run, and judges the ratios of their times. Results are one JSON object, from which the tables
and the HTML report are made.
"""

from engine.cli.benchmark.assembly import complete_document, describe_circumstances
from engine.cli.benchmark.document import (
    SCHEMA,
    compare_with_earlier,
    describe_compared,
    describe_file,
    describe_inputs,
    describe_layer,
    describe_series,
    read_earlier,
    require_comparable,
)
from engine.cli.benchmark.layers import Layer, measure_layers, measure_peak
from engine.cli.benchmark.machine import describe_machine, describe_versions
from engine.cli.benchmark.pinning import pin_new_threads, restrict_to_cores, thread_ids
from engine.cli.benchmark.report import benchmark_page
from engine.cli.benchmark.schedule import Compared, Procedure, Series, compare_subjects, measure_alone
from engine.cli.benchmark.statistics import Verdict, judge, judge_apart
from engine.cli.benchmark.subject import Subject, changed, open_subject
from engine.cli.benchmark.tables import comparison_table, histogram_lines, layer_table

__all__ = [
    "SCHEMA", "Compared", "Layer", "Procedure", "Series", "Subject", "Verdict", "benchmark_page", "changed",
    "compare_subjects", "compare_with_earlier", "comparison_table", "complete_document", "describe_circumstances",
    "describe_compared", "describe_file", "describe_inputs", "describe_layer", "describe_machine",
    "describe_series", "describe_versions", "histogram_lines", "judge", "judge_apart", "layer_table",
    "measure_alone", "measure_layers", "measure_peak", "open_subject", "pin_new_threads", "read_earlier",
    "require_comparable", "restrict_to_cores", "thread_ids",
]  # fmt: skip
