"""How many of ONNX's node cases CPU runs natively. `python tools/native_cases.py CPU` lists the others.

If this fails, operators that ran on kernels run on the reference evaluator.
"""

from __future__ import annotations

import pytest

from engine import Core
from tools.native_cases import count_native, main, node_cases

_NATIVE = 1756


@pytest.mark.slow
def test_as_many_cases_as_before_are_native() -> None:
    found = count_native(Core(), "CPU")
    assert len(found.native) >= _NATIVE
    assert len(found.native) + len(found.others) == len(list(node_cases())) == 1884
    names = {name for loss in found.ranking for name in loss.cases}
    assert names == set(found.others)


def test_the_table_lists_the_operators_that_cost_most_first(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    cases = [
        (name, case) for name, case in node_cases() if name.startswith(("test_string_", "test_relu", "test_regex"))
    ]
    monkeypatch.setattr("tools.native_cases.node_cases", lambda: iter(cases))
    monkeypatch.setattr("sys.argv", ["native_cases", "CPU", "--cases"])
    main()
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"2 of {len(cases)} node cases are native on CPU"
    losses = [line.split() for line in lines[1:] if not line.startswith("      ")]
    assert [name for _, name in losses] == ["StringSplit", "StringConcat", "RegexFullMatch"]
    assert any("string_concat_utf8" in line for line in lines)
