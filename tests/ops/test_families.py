"""Families of operators that are imported on demand: an operator without its rule, spec or facts would be wrong.

Each check runs in a process of its own, since this one has imported most families.
"""

from __future__ import annotations

import json
import subprocess
import sys

PRELUDE = """
import json, sys
from importlib import import_module
from engine import ops
from engine.ops import axes, cost, families, registry, result_size, spec, suspect_values, traits
"""


def told(script: str) -> object:
    """What a script passes to `tell` in a process that has imported `engine.ops` alone."""
    text = f"{PRELUDE}\ntell = lambda value: print(json.dumps(value))\n{script}"
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_the_table_has_what_each_family_declares() -> None:
    found = told("""
tables = [traits._TRAITS, axes._AXES, axes._PARAMETERS, cost._OPERATIONS, cost._MORE_TIME, result_size._FACTORIES,
          suspect_values._FACTORIES, spec._classes]
def declared():
    facts = {(number, key) for number, table in enumerate(tables) for key in table}
    fields = {(field, key) for key, fields in registry._FIELDS.items() for field in fields}
    return facts | fields | {("", (domain, name)) for domain, ops in registry._OPS.items() for name in ops}
split = lambda by_domain: {(domain, name) for domain, names in by_domain.items() for name in names.split()}
stated = lambda family: split(families.FAMILIES[family])
wrong = {}
for family in families.FAMILIES:
    modules, before = set(sys.modules), declared()
    import_module(f"engine.ops.{family}")
    new = {name.removeprefix("engine.ops.") for name in set(sys.modules) - modules}
    known = set().union(stated(family), *(stated(each) for each in new & set(families.FAMILIES)))
    if missing := {key for _, key in declared() - before} - known:
        wrong[family] = sorted(missing)
unknown = [key for key in (*registry._FIELDS, *families._waiting) if registry.find_op(key[1], key[0]) is None]
tell([wrong, unknown])
""")
    assert found == [{}, []]


def test_operators_are_found_by_facts_of_families_that_are_imported_in_any_case() -> None:
    """Passes ask for these lists when they are made, and for nodes of all operators afterwards."""
    found = told("""
promises = [lambda t: t.broadcasts, lambda t: t.moves, lambda t: t.reduces, lambda t: t.activation is not None]
before = [traits.imported_operators_with(promise) for promise in promises]
tell([before, [ops.operators_with(promise) for promise in promises]])
""")
    assert isinstance(found, list)
    assert found[0] == found[1]
    assert all(found[0])


def test_all_operators_with_a_fact_are_found() -> None:
    """A pass of another package may ask for any fact."""
    found = told("tell([ops.operators_with(lambda t: t.product), ops.operators_with(lambda t: t.random)])")
    assert isinstance(found, list)
    assert {"Conv", "Einsum", "MatMul"} <= set(found[0])
    assert {"Bernoulli", "RandomNormal"} <= set(found[1])


def test_each_lookup_imports_the_family() -> None:
    found = told("""
from engine.ir import Node, Parameter, TensorType, f32
x = Parameter(f32, [1, 3, 8, 8])
made = lambda op_type, domain="": Node(op_type, [x], domain=domain, types=[x.output(0).type])  # infers nothing
tell([
    ops.traits_of(made("MaxPool")) != traits.NO_TRAITS, traits.traits_of_operator("RoiAlign").inflates is not None,
    axes.has_axes("LRN"), axes.parameter_of(made("Softmax")) is not None, spec.has_spec(made("Resize")),
    cost._OPERATIONS["", "Einsum"] is not None, result_size._FACTORIES["", "StringSplit"] is not None,
    suspect_values._FACTORIES["", "RNN"] is not None, ops.find_op("FusedConv", "engine") is not None,
    ops.find_op("Tokenizer", "com.microsoft") is not None, ops.find_op("Nothing", "com.microsoft") is None,
    ops.get_op("Scan").count_outputs is not None,
])
""")
    assert isinstance(found, list)
    assert all(found), found


def test_threads_find_complete_operators() -> None:
    found = told("""
import threading
names = ["LSTM", "Attention", "Loop", "TopK", "Softmax", "Resize", "LRN", "MaxPool"]
start, wrong = threading.Barrier(8), []
def look():
    start.wait()
    for name in names:
        op = ops.get_op(name)
        if op.rule is None or spec._classes["", name] is None and name != "Loop":
            wrong.append(name)
threads = [threading.Thread(target=look) for _ in range(8)]
[each.start() for each in threads]
[each.join() for each in threads]
tell(wrong)
""")
    assert found == []
