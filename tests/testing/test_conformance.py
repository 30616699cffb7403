"""The conformance kit: its scores, and that it survives plugins that end, hang or crash the process."""

from __future__ import annotations

import inspect
import json
import re
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from engine.errors import InputError, PluginError
from engine.ops.cases import all_cases
from engine.testing.behaviour.product_cases import PRODUCTS
from engine.testing.behaviour.typed_nodes import TYPED_OPERATORS, typed_models
from engine.testing.conformance.against import EarlierReport, compare, read_earlier
from engine.testing.conformance.hooks import HOOKS
from engine.testing.conformance.last_hook import running_hook
from engine.testing.conformance.matrix import matrix_lines, type_matrix
from engine.testing.conformance.reports import as_html, as_json, as_text
from engine.testing.conformance.running import ConformanceOptions, run_conformance
from engine.testing.conformance.scorecard import CheckResult, Scorecard, hopeless
from engine.testing.conformance.scoring import Scoring, in_words
from engine.testing.conformance.subjects import subject_of
from engine.testing.scaffold import PluginPlan
from tests.testing.made_plugins import make, run, start

PLAN = PluginPlan("FRAIL", ("Add", "Mul"), has_export=True)
FAULT = """
import ctypes, os, sys, time

def fail(hook):
    if hook == os.environ.get("FRAIL_HOOK"):
        {
            "exits": lambda: os._exit(3),
            "raises SystemExit": lambda: sys.exit(3),
            "hangs": lambda: time.sleep(10**6),
            "forks": os.fork,
            "crashes": lambda: ctypes.string_at(0),
        }[os.environ["FRAIL_FAULT"]]()
"""
ENDED = r"the process .* ended or hung while the plugin's ExecutableNetwork.requirements was running"
METHODS = {
    "network.py": "    def requirements(self)",
    "request.py": "    def start_pipeline(self)",
    "plugin.py": "    def metric(self, name: str, device_id: str)",
}


@pytest.fixture(scope="module")
def frail(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A plugin that fails in one of its hooks when the environment says so."""
    folder = make(PLAN, tmp_path_factory.mktemp("frail"))
    package = folder / "src" / PLAN.package
    (package / "fault.py").write_text(FAULT)
    for name, hook in METHODS.items():
        text = (package / name).read_text()
        head, body = text.split(hook)
        signature, _, rest = body.partition('"""\n')
        called = hook.strip().removeprefix("def ").partition("(")[0]
        line = f"        __import__('{PLAN.package}.fault').fault.fail({called!r})\n"
        (package / name).write_text(head + hook + signature + '"""\n' + line + rest)
    return folder


def conformance(folder: Path, *options: str, **environment: str) -> dict[str, Any]:
    report = folder / "score.json"
    report.unlink(missing_ok=True)
    done = run(
        [folder], "-m", "engine.cli.main", "conformance", "FRAIL", "--json", str(report), *options, **environment
    )
    assert report.exists(), done.stdout + done.stderr
    card: dict[str, Any] = json.loads(report.read_text())
    assert done.returncode == (0 if card["score"] == 100 else 1), done.stdout + done.stderr
    return card


@pytest.mark.parametrize(
    ("fault", "found"),
    [
        ("exits", ENDED),
        ("forks", "ExecutableNetwork.requirements forked the process"),
        # Other tests have these, or what is done about them.
        pytest.param("raises SystemExit", "SystemExit", marks=pytest.mark.slow),
        pytest.param("hangs", ENDED, marks=pytest.mark.slow),
        pytest.param("crashes", ENDED, marks=pytest.mark.slow),
    ],
)
def test_a_hook_that_fails_the_process_fails_its_checks_only(frail: Path, fault: str, found: str) -> None:
    checks = "basic_model_runs or export_to_path or start_and_wait"
    card = conformance(frail, "-k", checks, "--limit", "20", FRAIL_HOOK="requirements", FRAIL_FAULT=fault)
    outcomes = {each["name"]: each["outcome"] for each in card["checks"]}
    assert outcomes == {
        "test_basic_model_runs": "passed",
        "test_export_to_path_and_stream": "failed",
        "test_start_and_wait": "passed",
    }
    (mend,) = card["mend_first"]
    assert re.search(found, mend["message"]), mend["message"]
    assert mend["requirement"].startswith("Both hold the same network")
    assert 0 < card["score"] < 100


def test_a_run_in_which_nothing_works_ends_early(frail: Path) -> None:
    card = conformance(frail, FRAIL_HOOK="start_pipeline", FRAIL_FAULT="raises SystemExit")
    assert card["ended_early"]
    assert card["score"] == 0
    assert len(card["checks"]) < 100


def test_an_interrupted_run_reports_what_it_found(frail: Path, tmp_path: Path) -> None:
    """The first check passes; the second hangs until Ctrl-C."""
    report = tmp_path / "score.json"
    arguments = ["conformance", "FRAIL", "-k", "basic_model_runs or export_to_path", "--json", str(report)]
    process = start([frail], "-c", INTERRUPTIBLE, *arguments, FRAIL_HOOK="requirements", FRAIL_FAULT="hangs")
    with process:
        assert process.stderr is not None
        assert any("1 of 2 checks, 0 failed" in line for line in process.stderr)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=600)
    assert process.returncode == 130, out + err
    card = json.loads(report.read_text())
    assert card["ended_early"] == "it was interrupted (Ctrl-C)"
    assert [(each["name"], each["outcome"]) for each in card["checks"]] == [("test_basic_model_runs", "passed")]
    assert "it was interrupted" in out


INTERRUPTIBLE = """
import signal, sys
from engine.cli.main import main
signal.signal(signal.SIGINT, signal.default_int_handler)  # shells have what runs in the background ignore it
sys.exit(main(sys.argv[1:]))
"""


PENDING = """
import os, signal, sys
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
signal.signal(signal.SIGINT, signal.SIG_DFL)
if sys.argv[1] == "before":
    os.kill(os.getpid(), signal.SIGINT)
os.execv(sys.executable, [sys.executable, "-m", "pytest", *sys.argv[2:]])
"""
IN_THE_END = """
import os, signal

def pytest_sessionfinish():
    os.kill(os.getpid(), signal.SIGINT)
"""


@pytest.mark.parametrize(("when", "code", "ended"), [("before", 2, "it was interrupted (Ctrl-C)"), ("after", 0, "")])
def test_an_interrupt_outside_the_checks_spoils_no_report(when: str, code: int, ended: str, tmp_path: Path) -> None:
    """The run has just been started, or reports what it found."""
    (tmp_path / "test_mine.py").write_text(HANGS.replace("FRAIL", "TEMPLATE"))
    if when == "after":
        (tmp_path / "conftest.py").write_text(IN_THE_END)
    options = ["-q", "-p", "engine.testing.conformance.interrupts", "-p", "no:cacheprovider", "--engine-json=s.json"]
    checks = ["--engine-device=TEMPLATE", "test_mine.py", "-k", "TestReference and basic_model_runs"]
    done = run([tmp_path], "-c", PENDING, when, *options, *checks, cwd=tmp_path)
    assert done.returncode == code, done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr
    card = json.loads((tmp_path / "s.json").read_text())
    assert (card["ended_early"], len(card["checks"])) == (ended, 0 if ended else 1)


def test_an_error_that_was_expected_is_described_in_words() -> None:
    with pytest.raises(AssertionError) as caught, pytest.raises(ValueError, match="want"):
        raise ValueError("got")
    assert in_words(str(caught.value)) == "the message of the error must match 'want'; it is 'got'"
    with pytest.raises(pytest.fail.Exception) as failed, pytest.raises(ValueError):  # noqa: PT011
        pass
    assert in_words(str(failed.value)) == "expected ValueError; no error was raised"
    assert in_words("assert 1 == 2") == "assert 1 == 2"


def test_a_device_that_cannot_be_created(frail: Path) -> None:
    done = run([frail], "-m", "engine.cli.main", "conformance", "NOSUCH")
    assert done.returncode == 3
    assert "NOSUCH cannot be created" in done.stderr
    (frail / "src" / PLAN.package / "properties.py").rename(frail / "properties.py")
    try:
        done = run([frail], "-m", "engine.cli.main", "conformance", "FRAIL")
    finally:
        (frail / "properties.py").rename(frail / "src" / PLAN.package / "properties.py")
    assert done.returncode == 3
    assert "FRAIL cannot be created" in done.stderr
    assert "frail.properties" in done.stderr
    done = run([frail], "-m", "engine.cli.main", "conformance", "FRAIL", FRAIL_HOOK="metric", FRAIL_FAULT="exits")
    assert done.returncode == 3
    assert "FRAIL cannot be created: the process ended with exit code 3 while the plugin's Plugin.metric" in done.stderr


NESTED = """
import os, sys, threading
from pathlib import Path
from engine.testing.conformance.hooks import HookWatch
HookWatch(Path(sys.argv[1])).install()
from engine.plugin_api import ExecutableNetwork, Plugin, SyncInferRequest

class Network(ExecutableNetwork):
    def create_infer_request_impl(self): ...
    def requirements(self): ...
    def metric(self, name):
        self.requirements()
        entered.set()
        threading.Event().wait()

class Frail(Plugin):
    def query_model(self, model, config): ...
    def compile_model(self, model, config):
        Network.requirements(None)
        os._exit(3)

entered = threading.Event()
if sys.argv[2] == "threads":
    network = Network.__new__(Network)
    threading.Thread(target=network.metric, args=("A",), daemon=True).start()
    entered.wait()
    network.requirements()
    os._exit(3)
Frail.__new__(Frail).compile_model(None, None)
"""


@pytest.mark.parametrize(
    ("case", "hook"), [("nested", "Plugin.compile_model"), ("threads", "ExecutableNetwork.metric")]
)
def test_the_hook_that_still_runs_is_named(case: str, hook: str, tmp_path: Path) -> None:
    """Others have returned since: one that it called, and one on another thread."""
    done = run([tmp_path], "-c", NESTED, str(tmp_path / "hook"), case)
    assert done.returncode == 3, done.stderr
    assert running_hook(tmp_path / "hook") == hook


@pytest.mark.parametrize("base", HOOKS, ids=lambda base: base.__name__)
def test_every_method_that_a_plugin_implements_is_watched(base: type) -> None:
    documented = {
        name
        for name, member in inspect.getmembers(base, inspect.isfunction)
        if (member.__doc__ or "").startswith(("Required", "Optional"))
    }
    assert documented == {*HOOKS[base]} - {"__init__"}


def test_wrong_options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(PluginError, match="no check has a name"):
        run_conformance(ConformanceOptions("TEMPLATE", checks="no_such_check"))
    monkeypatch.setattr("engine.testing.conformance.running.find_spec", lambda name: None)
    with pytest.raises(PluginError, match=r"engine-sdk\[plugin\]"):
        run_conformance(ConformanceOptions("TEMPLATE"))


EXITING = """
import atexit, os, signal, sys
from engine.cli.main import main
signal.signal(signal.SIGINT, signal.default_int_handler)
atexit.register(os.kill, os.getpid(), signal.SIGINT)
sys.exit(main())
"""


def test_an_interrupt_while_the_interpreter_exits_prints_nothing(tmp_path: Path) -> None:
    done = run([tmp_path], "-c", EXITING, "--version")
    assert done.returncode == -signal.SIGINT
    assert done.stderr == ""


CHOOSING = """
import json, sys
import pytest
from engine.testing import operators

class Collected:
    def pytest_collection_finish(self, session):
        found.append([item.name for item in session.items])

operators._OPERATOR_CASES, operators._NODE_CASES = operators._OPERATOR_CASES[:60], operators._NODE_CASES[:60]
found = []
for words in json.loads(sys.argv[1]):
    for expression in (words, f"not not ({words})"):  # the second is left to pytest
        pytest.main(["--co", "-qq", "-p", "no:cacheprovider", "test_mine.py", "-k", expression], [Collected()])
print()
print(json.dumps(found))
"""


def test_the_operator_suite_makes_the_cases_that_pytest_would_choose(tmp_path: Path) -> None:
    """The others are not made, since they would take most of the time of a run of a few checks."""
    suite = "from engine.testing import OperatorSuite\n\nclass TestMine(OperatorSuite):\n    device = 'TEMPLATE'\n"
    (tmp_path / "test_mine.py").write_text(suite)
    words = ["test_abs or acosh", "Test_Case[ATTENTION/P", "(test_abs)or(test_acos)", "no_such", "mine and add"]
    done = run([tmp_path], "-c", CHOOSING, json.dumps(words), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found[::2] == found[1::2]
    assert [len(names) > 0 for names in found[::2]] == [True, True, True, False, True]


def test_the_option_of_pytest_runs_the_same_checks(frail: Path) -> None:
    options = ["-q", "--engine-device=FRAIL", "-k", "basic_model_runs", "--engine-progress"]
    done = run([frail], "-m", "pytest", *options, cwd=frail / "src")
    assert done.returncode == 0, done.stdout
    assert "score of FRAIL: full marks" in done.stdout
    assert "1 of 1 checks, 0 failed" in done.stderr, "without xdist, too"


HANGS = """
from engine.testing import BehaviourSuite


class TestFrail(BehaviourSuite):
    device = "FRAIL"
    limit = 8


def test_of_mine():
    assert False


class TestReference(BehaviourSuite):
    device = "TEMPLATE"
"""


def test_suites_in_a_file_of_ones_own(frail: Path, tmp_path: Path) -> None:
    """A hook that hangs fails its check within the suite's limit; each device gets a score, and a report."""
    (tmp_path / "test_mine.py").write_text(HANGS)
    checks = "export_to_path or start_and_wait or of_mine"
    command = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "test_mine.py", "-k", checks]
    scored = ["--engine-score", "--engine-json=s.json", "--engine-html=s.html"]
    done = run([frail], *command, *scored, cwd=tmp_path, FRAIL_HOOK="requirements", FRAIL_FAULT="hangs")
    assert done.returncode == 1
    assert "score of FRAIL: 50 of 100 (1 passed, 1 failed, 0 do not apply)" in done.stdout
    assert "score of TEMPLATE: full marks (2 passed, 0 failed, 0 do not apply)" in done.stdout
    card = json.loads((tmp_path / "s-FRAIL.json").read_text())
    (mend,) = card["mend_first"]
    assert mend["checks"] == ["test_export_to_path_and_stream"]
    assert mend["message"].startswith("Timeout")
    assert card["areas"].keys() == {"asynchronous", "export"}
    assert {path.name for path in tmp_path.glob("s-*")} == {
        "s-FRAIL.json", "s-FRAIL.html", "s-TEMPLATE.json", "s-TEMPLATE.html",
    }  # fmt: skip
    command[-1] = "TestFrail and export_to_path"
    done = run([frail], *command, cwd=tmp_path, FRAIL_HOOK="requirements", FRAIL_FAULT="hangs")
    assert "1 failed" in done.stdout, done.stdout
    assert "score" not in done.stdout


def check(name: str, area: str, outcome: str, message: str = "") -> CheckResult:
    return CheckResult(name, area, f"{name} is required", outcome, message, 0.5)


CARD = Scorecard(
    "ACME",
    "Acme <1>",
    (
        check("a", "export", "failed", "`x` is 1 of 3\nmore"),
        check("b", "results", "passed"),
        check("c", "results", "failed", "wrong"),
        check("d", "export", "failed", "`y` is 2 of 3"),
        check("e", "states", "skipped", "no states <here>"),
        check("f", "results", "passed"),
        check("h", "states", "skipped", "Mul: refused on ACME: no kernel"),
        check("g", "results", "passed"),
    ),
)


def test_scores_and_what_to_mend_first() -> None:
    assert {name: area.score for name, area in CARD.areas.items()} == {"results": 75, "states": None, "export": 0}
    assert CARD.score == 37.5
    assert not CARD.is_perfect
    assert [(fault.area, fault.message, fault.checks) for fault in CARD.faults] == [
        ("results", "wrong", ("c",)),
        ("export", "`x` is 1 of 3", ("a", "d")),
    ]
    assert CARD.skips == [("no states <here>", 1), ("Mul: refused on ACME: no kernel", 1)]
    assert CARD.other_skips == [("no states <here>", 1)]
    assert CARD.skipped_operators == [("Mul", 1)]
    early = Scorecard("ACME", "", (check("b", "results", "passed"),), "it was ended")
    assert (early.score, early.is_perfect) == (0, False)
    assert Scorecard("ACME", "", (check("b", "results", "passed"),)).is_perfect
    assert not Scorecard("ACME", "", ()).is_perfect


def test_reports_show_all_of_it() -> None:
    text, page = as_text(CARD), as_html(CARD)
    for words in ("37.5 of 100", "fix first", "c is required", "no states", "Mul 1"):
        assert words in text
    assert text.index("results: c") < text.index("export: a and 1 more")
    assert "Acme &lt;1&gt;" in page
    assert "no states &lt;here&gt;" in page
    assert "<script src" not in page


# -- changes since an earlier report ------------------------------------------------------------------------


def report_of(*results: CheckResult, **fields: Any) -> dict[str, Any]:
    return {**Scorecard("ACME", "Acme 1", results).to_json(), **fields}


def read(tmp_path: Path, document: object) -> EarlierReport:
    path = tmp_path / "earlier.json"
    path.write_text(document if isinstance(document, str) else json.dumps(document))
    return read_earlier(path)


def test_changes_are_better_or_worse(tmp_path: Path) -> None:
    before = {
        "stays": "passed", "stays wrong": "failed", "breaks": "passed", "is mended": "failed", "is claimed": "skipped",
        "is not claimed": "passed", "is claimed and wrong": "skipped", "is refused": "failed", "did not run": "passed",
    }  # fmt: skip
    now = {
        "stays": "passed", "stays wrong": "failed", "breaks": "failed", "is mended": "passed", "is claimed": "passed",
        "is not claimed": "skipped", "is claimed and wrong": "failed", "is refused": "skipped",
        "is new": "passed", "is new and wrong": "failed", "is new and does not apply": "skipped",
    }  # fmt: skip
    earlier = read(tmp_path, report_of(*(check(name, "results", outcome) for name, outcome in before.items())))
    results = tuple(check(name, "results", outcome, f"because {name}\nmore") for name, outcome in now.items())
    changes = compare(earlier, Scorecard("ACME", "Acme 2", results))
    assert [each.name for each in changes.worse] == [
        "breaks", "is not claimed", "is claimed and wrong", "is new and wrong",
    ]  # fmt: skip
    assert [each.name for each in changes.better] == ["is mended", "is claimed", "is refused"]
    assert (changes.missing, changes.is_worse) == (1, True)
    assert {name: [int(score or 0) for score in scores] for name, scores in changes.areas.items()} == {
        "results": [57, 50]
    }
    text = as_text(Scorecard("ACME", "Acme 2", results), changes)
    for words in (
        "of ACME (Acme 1)", "score 57.1, now 50", "worse: 4 checks", "better: 3 checks",
        "results: breaks: passed, now failed: because breaks\n", "is new and wrong: absent, now failed",
        "1 of the earlier checks did not run",
    ):  # fmt: skip
        assert words in text, text
    page = as_html(Scorecard("ACME", "Acme <2>", results), changes)
    assert "<summary>Worse: 4</summary>" in page
    assert as_json(Scorecard("ACME", "", results), changes)["against"]["worse"][0] == {
        "name": "breaks", "area": "results", "before": "passed", "now": "failed", "message": "because breaks",
    }  # fmt: skip


def test_a_run_that_ended_early_is_worse(tmp_path: Path) -> None:
    same = check("a", "results", "passed")
    earlier = read(tmp_path, report_of(same))
    assert not compare(earlier, Scorecard("ACME", "", (same,))).is_worse
    ended = compare(earlier, Scorecard("ACME", "", (same,), "it was interrupted"))
    assert ended.is_worse
    assert "was ended early" in as_text(Scorecard("ACME", "", (same,), "it was interrupted"), ended)


def test_messages_of_a_device_do_not_control_the_terminal(tmp_path: Path) -> None:
    earlier = read(tmp_path, report_of(description="\x1b[2J"))
    results = (check("a", "results", "failed", "\x1b[31m" + "x" * 300),)
    text = as_text(Scorecard("ACME", "", results), compare(earlier, Scorecard("ACME", "", results)))
    assert "\x1b" not in text
    assert max(map(len, text.splitlines())) < 140


@pytest.mark.parametrize(
    "document",
    [
        "", "[]", "null", "{}", '{"checks": [{}]}', '{"device": 1, "score": 5, "areas": {}, "checks": 7}',
        "[" * 100_000,
        json.dumps(report_of(check("a", "results", "unknown"))), json.dumps(report_of(score=float("nan"))),
        json.dumps(report_of(score=True)), json.dumps(report_of(areas={"results": {"score": "high"}})),
    ],
    ids=str.__len__,
)  # fmt: skip
def test_other_files_are_no_earlier_report(document: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"earlier.json is not a report of `engine conformance --json FILE`"):
        read(tmp_path, document)


def test_a_file_that_cannot_be_read_is_no_earlier_report(tmp_path: Path) -> None:
    for path in (tmp_path / "missing.json", tmp_path):
        with pytest.raises(InputError, match="cannot be read"):
            run_conformance(ConformanceOptions("TEMPLATE", against=str(path)))


def test_the_exit_code_says_whether_anything_became_worse(tmp_path: Path) -> None:
    """Also if checks fail that failed before. The command runs twice: a check that passes is made one that failed."""
    first, second = tmp_path / "first.json", tmp_path / "second.json"
    chosen = ["conformance", "TEMPLATE", "-k", "basic_model or (test_case and (Where or Relu))"]
    done = run([tmp_path], "-m", "engine.cli.main", *chosen, "--json", str(first))
    assert done.returncode == 0, done.stdout + done.stderr
    card = json.loads(first.read_text())
    assert card["types"]["Where"]["f64"] == {"passed": 1, "failed": 0, "skipped": 0, "is_claimed": None}
    assert "bool" in card["types"]["Where"], "a value, not the condition"
    (place,) = [n for n, each in enumerate(card["checks"]) if each["name"].startswith("test_basic_model")]
    card["checks"][place]["outcome"] = "failed"
    first.write_text(json.dumps(card))
    done = run([tmp_path], "-m", "engine.cli.main", *chosen, "--json", str(second), "--against", str(first))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "better: 1 check\n" in done.stdout
    against = json.loads(second.read_text())["against"]
    assert (against["worse"], against["is_worse"], len(against["better"])) == ([], False, 1)


class Session:
    exitstatus = 1


@pytest.mark.parametrize(("outcome", "code"), [("failed", 0), ("passed", 1), ("skipped", 1)])
def test_a_failure_that_is_known_is_not_worse(outcome: str, code: int, tmp_path: Path) -> None:
    path = tmp_path / "earlier.json"
    path.write_text(json.dumps(report_of(check("a", "results", outcome))))
    options = {"--engine-against": str(path), "--engine-device": "ACME", "--engine-description": "Acme"}
    scoring = Scoring(SimpleNamespace(getoption=options.get), tmp_path)  # type: ignore[arg-type]
    scoring.results["ACME"] = [check("a", "results", "failed")]
    session = Session()
    scoring.pytest_sessionfinish(session)  # type: ignore[arg-type]
    assert session.exitstatus == code


# -- the matrix of types ------------------------------------------------------------------------------------


def of(operator: str, element_type: str, outcome: str) -> CheckResult:
    return CheckResult(f"{operator} {element_type}", "operators", "", outcome, "", 0.0, operator, element_type)


TYPES = (
    of("Relu", "f32", "passed"), of("Relu", "f32", "passed"), of("Relu", "f16", "skipped"), of("Relu", "i8", "failed"),
    of("Relu", "i8", "passed"), of("Conv", "f32", "passed"), of("Conv", "f32", "skipped"), of("Abs", "f32", "passed"),
    of("Abs", "bf16", "passed"), of("Sin", "f32", "failed"), of("Loop", "sequence", "skipped"),
    check("basic", "results", "passed"),
)  # fmt: skip


ANSWERS = (
    CheckResult(
        "Abs", "query", "", "passed", operator="Abs", answers={"f32": True, "bf16": True, "f16": True, "i8": False}
    ),
    CheckResult("Neg", "query", "", "passed", operator="Neg", answers={"f32": True, "f64": True}),
    CheckResult("Tan", "query", "", "skipped", operator="Tan", answers={"f32": False}),
)


def test_types_by_operator() -> None:
    matrix = type_matrix(TYPES)
    assert {operator: {name: cell.word for name, cell in cells.items()} for operator, cells in matrix.items()} == {
        "Abs": {"f32": "right", "bf16": "right"},
        "Conv": {"f32": "partly"},
        "Loop": {"sequence": "refused"},
        "Relu": {"f32": "right", "f16": "refused", "i8": "wrong"},
        "Sin": {"f32": "wrong"},
    }
    assert list(matrix["Relu"]) == ["f32", "f16", "i8"]
    assert list(matrix_lines(type_matrix([*TYPES, *ANSWERS])))[3:] == [
        "  Relu  ! i8  + f32  - f16",
        "  Sin   ! f32",
        "  Abs   + f32 bf16  ? f16  - i8",
        "  Conv  ~ f32",
        "  run in each of their types:",
        "    Neg",
        "  not run in any type:",
        "    Loop, Tan",
        "",
    ]
    assert "    Abs (f32, bf16)" in list(matrix_lines(matrix))
    page = as_html(Scorecard("ACME", "", (*TYPES, *ANSWERS)))
    assert 'class="failed" title="Relu, i8: 1 passed, 1 failed, 0 do not apply">!</td>' in page
    assert 'title="Abs, f16: 0 passed, 0 failed, 0 do not apply">?</td>' in page
    types = as_json(Scorecard("ACME", "", (*TYPES, *ANSWERS)))["types"]
    assert types["Conv"] == {"f32": {"passed": 1, "failed": 0, "skipped": 1, "is_claimed": None}}
    assert types["Abs"]["f16"] == {"passed": 0, "failed": 0, "skipped": 0, "is_claimed": True}
    assert "types by operator" not in as_text(CARD), "no check had a type"


def test_models_of_each_type() -> None:
    """Of the operator's data; what has other types keeps them, and a device may need the others as constants."""
    models = dict(typed_models("Where"))
    assert {"f32", "bf16", "string", "i64", "bool"} <= models.keys()
    plain, constant = models["bf16"]
    assert [str(each.type).partition("[")[0] for each in plain.parameters] == ["bool", "bf16", "bf16"]
    assert [str(each.type).partition("[")[0] for each in constant.parameters] == ["bool"]
    assert not list(typed_models("NonMaxSuppression")), "its data has one type"
    assert sum(len(dict(typed_models(operator))) for operator in TYPED_OPERATORS) > 1000


@pytest.mark.parametrize(
    ("parameters", "subject"),
    [
        ({"case": all_cases()["Where/bf16"]}, ("Where", "bf16")),
        ({"case": all_cases()["Cast/f8e4m3fn-f32"]}, ("Cast", "f8e4m3fn")),
        ({"case": next(case for case in PRODUCTS if case.op_type == "MatMul")}, ("MatMul", "f32")),
        ({"name": "test_sub_uint8"}, ("Sub", "u8")),
        ({"name": "test_gather_0"}, ("Gather", "f32")),
        ({"name": "test_sequence_insert_at_back"}, ("SequenceInsert", "sequence")),
        ({"name": "test_hannwindow_expanded"}, ("", "")),
        ({"name": "no such case"}, ("", "")),
        ({"case": "a case of the device's own"}, ("", "")),
    ],
    ids=str,
)
def test_the_subject_of_a_check(parameters: dict[str, Any], subject: tuple[str, str]) -> None:
    assert subject_of(parameters) == subject


def test_a_run_is_hopeless_only_if_nothing_passes() -> None:
    failed = [check("a", "results", "failed")] * 5
    assert hopeless(failed, 5)
    assert not hopeless(failed, 6)
    assert not hopeless([*failed, check("b", "results", "passed")], 5)
