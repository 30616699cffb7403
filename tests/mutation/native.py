"""Faults in the C++ sources, one at a time, and the C++ tests that are expected to notice them.

Each fault costs a compilation of one file, for one instruction set of this CPU, a link of its test programs, and their
run. It is made in a copy of the file, so the checkout stays as it is. A fault that leaves the object as it was (another
instruction set's code, a value that nothing reads) is not counted.
"""

from __future__ import annotations

import random
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Final

from tests.mutation.rooms import ROOT

sys.path.insert(0, str(ROOT / "csrc"))
import native_build as build

from engine.native import cpu_features, isas_within

# Without optimisations that only take time: the release's objects of all other files are linked to it.
_VARIANT: Final = build.Variant(build.OBJECTS / "mutation", ("-O1", "-DNDEBUG"))
# The faulty file alone is instrumented: a read beyond a buffer, which changes no result, is noticed as CI notices it.
_CHECKED: Final = ("-fsanitize=address",)
# Pattern, replacements: comparisons, boundaries, signs, off by one, conditions.
_RULES: Final = tuple(
    (re.compile(pattern), replacements)
    for pattern, replacements in (
        (r" < ", (" <= ", " >= ")),
        (r" <= ", (" < ", " > ")),
        (r" > ", (" >= ", " <= ")),
        (r" >= ", (" > ", " < ")),
        (r" == ", (" != ",)),
        (r" != ", (" == ",)),
        (r" \+ ", (" - ",)),
        (r" - ", (" + ",)),
        (r" \* ", (" + ",)),
        (r" / ", (" * ",)),
        (r" \+= ", (" -= ",)),
        (r" -= ", (" += ",)),
        (r" && ", (" || ",)),
        (r" \|\| ", (" && ",)),
        (r"std::min\b", ("std::max",)),
        (r"std::max\b", ("std::min",)),
        (r"(?<![\w.<])\d+(?![\w.>])", ("+1",)),
        (r"(?<=\()!(?=\w)", ("",)),
        (r"\bif \((?=\w)", ("if (!",)),
        (r"\btrue\b", ("false",)),
        (r"\bfalse\b", ("true",)),
        (r"\bcontinue;", ("break;",)),
    )
)


@dataclass(frozen=True, slots=True)
class NativeFault:
    """Another text for some characters of a source."""

    source: Path
    start: int
    end: int
    text: str

    def changed(self) -> str:
        """The whole source with the fault."""
        code = self.source.read_text(encoding="utf-8")
        return code[: self.start] + self.text + code[self.end :]

    def __str__(self) -> str:
        code = self.source.read_text(encoding="utf-8")
        first, last = code.rfind("\n", 0, self.start) + 1, code.find("\n", self.end)
        changed = code[first : self.start] + self.text + code[self.end : last]
        line = code.count("\n", 0, self.start) + 1
        return f"{self.source.relative_to(ROOT)}:{line}\n-{code[first:last]}\n+{changed}"


def outcomes(folder: str, count: int, seed: int, timeout: float, only: str = "") -> Iterator[tuple[NativeFault, bool]]:
    """Make faults in a folder's sources whose path contains `only`; yield each, and whether a test noticed it."""
    places = [place for place in _places(folder) if only in str(place[0])]
    draw = random.Random(seed)
    draw.shuffle(places)
    with tempfile.TemporaryDirectory() as scratch:
        for source, start, end, texts in places:
            if count <= 0:
                return
            noticed = _is_noticed(NativeFault(source, start, end, text := draw.choice(texts)), Path(scratch), timeout)
            if noticed is not None:
                count -= 1
                yield NativeFault(source, start, end, text), noticed


def _places(folder: str) -> list[tuple[Path, int, int, tuple[str, ...]]]:
    found = []
    for source in sorted((ROOT / folder).rglob("*.cpp")):
        if not _units(source) or not _programs(source):
            continue
        code = source.read_text(encoding="utf-8")
        for line in re.finditer(r"^.*$", code, re.MULTILINE):
            text = re.sub(r"//.*|\"[^\"]*\"", lambda match: " " * len(match[0]), line[0])
            if text.lstrip().startswith(("#", "template", "using", "static_assert", "ENGINE_", "extern")):
                continue
            for pattern, replacements in _RULES:
                for match in pattern.finditer(text):
                    texts = tuple(
                        str(int(match[0]) + 1) if each == "+1" else "if (!(" if each == "if (!" else each
                        for each in replacements
                    )
                    end = match.end()
                    if texts == ("if (!(",):
                        closing = _closing(text, match.end() - 1)
                        if closing is None:
                            continue
                        texts, end = (f"if (!({text[match.end() : closing]}))",), closing + 1
                    found.append((source, line.start() + match.start(), line.start() + end, texts))
    return found


def _closing(text: str, at: int) -> int | None:
    depth = 0
    for i in range(at, len(text)):
        depth += (text[i] == "(") - (text[i] == ")")
        if depth == 0:
            return i
    return None


@cache
def _units(source: Path) -> tuple[build.Unit, ...]:
    """The file's units for this CPU, best instruction set first."""
    isas = isas_within(cpu_features().isa)
    units = [unit for unit in build.kernel_units(_VARIANT) if unit.source == source]
    units = [unit for unit in units if unit.object.parent.name in isas]
    units.sort(key=lambda unit: -isas.index(unit.object.parent.name))
    return tuple(units or (unit for unit in build.core_units(_VARIANT) if unit.source == source))


@cache
def _programs(source: Path) -> tuple[build.Unit, ...]:
    """The test programs that name the file's operations or its header, or else those of a family of which it is a part:
    of `gemm_dequantized`, those of `gemm`. All programs of the graph for its files."""
    programs = build.test_units(build.RELEASE)[1]
    if "graph" in source.relative_to(ROOT).parts:
        return tuple(each for each in programs if each.source.stem.startswith("graph_"))
    family = source.stem
    while family:
        named = re.compile(rf"\b{family}_operations\b|\b{family}_kernels\b|\b{family}\.hpp")
        found = [each for each in programs if named.search(each.source.read_text(encoding="utf-8"))]
        found += [each for each in programs if each.source.stem == f"kernels_{family}" and each not in found]
        if found:
            return tuple(found)
        family = family.rpartition("_")[0]
    return ()


def _is_noticed(fault: NativeFault, scratch: Path, timeout: float) -> bool | None:
    """None if no object differs, or the fault does not compile."""
    for unit in _units(fault.source):
        faulty = scratch / "faulty" / fault.source.name
        plain = scratch / "plain" / unit.object.parent.name / fault.source.name
        for path, code in ((faulty, fault.changed()), (plain, fault.source.read_text(encoding="utf-8"))):
            path.parent.mkdir(parents=True, exist_ok=True)
            if path == plain and plain.with_suffix(".o").exists() and plain.read_text(encoding="utf-8") == code:
                continue
            path.write_text(code, encoding="utf-8")
            if not _compiles(unit, path):
                return None
        if faulty.with_suffix(".o").read_bytes() != plain.with_suffix(".o").read_bytes():
            return _fails(unit, faulty.with_suffix(".o"), timeout)
    return None


def _compiles(unit: build.Unit, source: Path) -> bool:
    """Compile a copy of the unit's source to an object beside it."""
    command = (
        *build.compiler(),
        *build.BASE_FLAGS,
        *_VARIANT.flags,
        *_CHECKED,
        f"-I{build.SOURCES}",
        "-w",
        *unit.flags,
    )
    own = f"-iquote{unit.source.parent}"
    done = subprocess.run(
        [*command, own, "-c", str(source), "-o", str(source.with_suffix(".o"))],
        cwd=ROOT,
        capture_output=True,
        check=False,
    )
    return done.returncode == 0


def _fails(unit: build.Unit, faulty: Path, timeout: float) -> bool:
    """Whether a test program fails with the faulty object in place of its own."""
    own = build.OBJECTS / unit.object.relative_to(_VARIANT.objects)
    objects = [faulty if path == own else path for path in _shared_objects()]
    assert faulty in objects
    for program in _programs(unit.source):
        _compile_tests((program,))
        target = faulty.with_name("program")
        build.link_program([*objects, _test_object(program)], target, build.Variant(_VARIANT.objects, _CHECKED))
        try:
            done = subprocess.run([target], capture_output=True, timeout=timeout, check=False)
        except subprocess.TimeoutExpired:
            return True
        if done.returncode != 0:
            return True
    return False


@cache
def _shared_objects() -> tuple[Path, ...]:
    shared, _ = build.test_units(build.RELEASE)
    _compile_tests(tuple(shared))
    others = [*build.kernel_units(build.RELEASE), *build.core_units(build.RELEASE, together=False)]
    build.compile_units(others, build.RELEASE)
    return (*(unit.object for unit in others), *map(_test_object, shared))


@cache
def _compile_tests(units: tuple[build.Unit, ...]) -> None:
    """Compile programs of tests with as little optimisation as the faulty file: they run once, or a few times."""
    build.compile_units([replace(unit, object=_test_object(unit)) for unit in units], _VARIANT)


def _test_object(unit: build.Unit) -> Path:
    return _VARIANT.objects / unit.object.relative_to(build.OBJECTS)
