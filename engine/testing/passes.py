"""`check_pass`: a complete check of a transformation, in one call.

    from engine.testing.passes import check_pass

    def test_relus_in_a_row_become_one():
        x = Parameter(f32, [4], "x")
        check_pass(ReluReluFusion, Model([ops.Relu(ops.Relu(x))], [x]), expected=Model([ops.Relu(x)], [x]))

Needs no pytest: it raises `AssertionError`, or the `PassError` of a checked manager.
"""

from __future__ import annotations

import difflib
import textwrap
from typing import Any

from engine.errors import PassError
from engine.ir import Model
from engine.passes import (
    InitNodeInfo,
    Manager,
    Pass,
    PassConfig,
    check_equivalence,
    check_rt_info,
    compare_models,
    explain_pass,
)


def check_pass(
    item: Pass | type[Pass],
    model: Model,
    expected: Model | str | None = None,
    *,
    changes: bool = True,
    config: PassConfig | None = None,
    names: bool = True,
    equivalent: bool = True,
    inputs: dict[str, Any] | None = None,
    dims: dict[str, int] | None = None,
    rtol: float | None = None,
    seed: int = 0,
) -> dict[str, int]:
    """Run a pass on `model` and check its contract; returns how often it (or each pass in it) changed the model.

    The pass runs under `Manager(checked=True)`; it must return `changes` and produce `expected`; a second run must
    change nothing; every operation must have rt_info; and the outputs on random inputs must be unchanged. `model` is
    transformed and afterwards has `fused_names` in its rt_info.

    Args:
        expected: the expected model, or its printed text (`Model.to_text()`, with any indentation), or None to skip
            this check. A model built in a test usually has neither rt_info nor names: rt_info is not compared, and
            names only if both models have them.
        changes: False for a model that the pass must not change; then `expected` is the model itself.
        config: the configuration of the pass.
        names: compare friendly names with an `expected` model's.
        equivalent: False for a pass that changes results.
        inputs: values for inputs by name; others are random, from `seed`.
        dims: lengths of dynamic dimensions by symbol; others are 2.
        rtol: see `check_equivalence`.

    Raises `AssertionError` with the difference and, for a pass that did not match, the reason; `PassError`.
    """
    InitNodeInfo().run_on_model(model)
    original = model.clone()
    manager = Manager(config, checked=True)
    registered = manager.register_pass(item)
    changed = manager.run_passes(model)
    counts = manager.rewrite_counts()
    if changed is not changes:
        raise AssertionError(_wrong_answer(registered, original, model, changed))
    if expected is not None:
        _check_expected(registered, expected, model, names)
    check_rt_info(model)
    if changed:
        _check_settled(manager, registered, model)
    if equivalent:
        check_equivalence(original, model, inputs=inputs, dims=dims, rtol=rtol, seed=seed)
    return counts


def _wrong_answer(item: Pass, original: Model, model: Model, changed: bool) -> str:
    if changed:
        return f"pass {item.name} changed a model that it should leave unchanged:\n{_diff(original.to_text(), model)}"
    try:
        reasons = "\n".join(map(str, explain_pass(item, model)))
    except PassError:  # no pattern to explain
        reasons = model.to_text()
    return f"pass {item.name} changed nothing:\n{reasons}"


def _check_expected(item: Pass, expected: Model | str, model: Model, names: bool) -> None:
    if isinstance(expected, str):
        text = textwrap.dedent(expected).strip()
        if text != model.to_text():
            raise AssertionError(f"pass {item.name} produced a different model than expected:\n{_diff(text, model)}")
        return
    differences = compare_models(model, expected, rt_info=False, names=names)
    if differences:
        listed = "\n".join(differences)
        raise AssertionError(
            f"pass {item.name} produced a different model than expected:\n{listed}\n{_diff(expected.to_text(), model)}"
        )


def _check_settled(manager: Manager, item: Pass, model: Model) -> None:
    text = model.to_text()
    if manager.run_passes(model):
        raise AssertionError(f"a second run of pass {item.name} changed the model again:\n{_diff(text, model)}")


def _diff(expected: str, model: Model) -> str:
    lines = difflib.unified_diff(expected.splitlines(), model.to_text().splitlines(), "expected", "found", lineterm="")
    return "\n".join(lines)
