"""Do the tests notice? Makes small faults in the sources, one at a time, and runs the tests of the room for each.

    python -m tests.mutation passes --count 40 --seed 1

The faults come from cosmic-ray: another operator or comparison, a condition turned round, another number, a loop that
does not run. Places are drawn first, then a fault for each, since some places have a dozen. A fault that only changes
annotations or messages is not counted. Prints each fault that no test noticed, and the share that was noticed. Works on
a copy of the checkout. For each fault, runs the tests that execute its line, the fastest first.
"""

from __future__ import annotations

import argparse
import ast
import random
import sys
import tempfile
from collections.abc import Iterator
from difflib import unified_diff
from pathlib import Path
from typing import Final

from cosmic_ray.commands import init
from cosmic_ray.mutating import mutate_code
from cosmic_ray.plugins import get_operator
from cosmic_ray.work_db import WorkDB, use_db
from cosmic_ray.work_item import MutationSpec

from tests.mutation.rooms import FOLDERS, ROOMS, ROOT, Room
from tests.mutation.tree import Tree

_FOR_CHECKERS: Final = ("final", "overload")


def main() -> int:
    """The command; 0 if every fault was noticed."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description=__doc__)
    parser.add_argument(
        "rooms", nargs="+", choices=[*ROOMS, *FOLDERS, "all"], metavar="ROOM", help=", ".join([*ROOMS, *FOLDERS, "all"])
    )
    parser.add_argument("--count", type=int, default=20, help="faults for each room (default: 20)")
    parser.add_argument("--seed", type=int, default=0, help="draws the faults (default: 0)")
    parser.add_argument("--timeout", type=float, default=120, help="seconds for the tests of one fault (default: 120)")
    parser.add_argument("--only", default="", help="modules whose path contains this (default: all of the room)")
    parser.add_argument("--copy", type=Path, help="a copy of the checkout to use again (default: a new one)")
    args = parser.parse_args()
    made = noticed = 0
    with tempfile.TemporaryDirectory() as scratch:
        for name in [*ROOMS, *FOLDERS] if "all" in args.rooms else args.rooms:
            here = seen = 0
            for fault, is_noticed in _outcomes(name, args.copy or Path(scratch) / "copy", args):
                here, seen = here + 1, seen + is_noticed
                if not is_noticed:
                    print(f"{name}: no test noticed\n{fault}\n", flush=True)
            print(f"{name}: {seen} of {here} faults were noticed", flush=True)
            made, noticed = made + here, noticed + seen
    print(f"{noticed} of {made} faults were noticed")
    return int(noticed < made)


def _outcomes(name: str, copy: Path, args: argparse.Namespace) -> Iterator[tuple[object, bool]]:
    """Each fault, which describes itself when printed, and whether a test noticed it."""
    if name in FOLDERS:
        from tests.mutation.native import outcomes  # Needs a compiler's objects.

        yield from outcomes(name, args.count, args.seed, args.timeout, args.only)
        return
    tree = Tree(copy, ROOMS[name], args.timeout)
    tree.prepare()
    for fault in drawn(ROOMS[name], args.count, args.seed, args.only):
        code = fault.module_path.read_text(encoding="utf-8")
        changed = mutate_code(code, get_operator(fault.operator_name)(**fault.operator_args), fault.occurrence)
        tests = tree.tests_of(fault.module_path, fault.start_pos[0])
        told = "none" if not tests else f"{len(tests)}, as {tests[0]}"
        place = f"{fault.module_path.relative_to(ROOT)}:{fault.start_pos[0]} {fault.operator_name}; tests: {told}\n"
        difference = unified_diff(code.splitlines(), changed.splitlines(), lineterm="", n=2)
        yield place + "\n".join([*difference][2:]), bool(tests) and tree.notices(fault.module_path, changed, tests)


def drawn(room: Room, count: int, seed: int, only: str = "") -> Iterator[MutationSpec]:
    """Faults of a room, at different places, that change what its code does."""
    places: dict[tuple[Path, tuple[int, int]], list[MutationSpec]] = {}
    for each in _faults(room):
        if only not in str(each.module_path.relative_to(ROOT)):
            continue
        places.setdefault((each.module_path, each.start_pos), []).append(each)
    draw = random.Random(seed)
    order = sorted(places)
    draw.shuffle(order)
    for place in order:
        if count <= 0:
            return
        fault = draw.choice(places[place])
        if _changes_behaviour(fault):
            count -= 1
            yield fault


def _faults(room: Room) -> list[MutationSpec]:
    with tempfile.TemporaryDirectory() as folder, use_db(Path(folder) / "faults.sqlite", WorkDB.Mode.create) as db:
        init(room.files(), db, {})
        return [mutation for item in db.work_items for mutation in item.mutations]


def _changes_behaviour(fault: MutationSpec) -> bool:
    code = fault.module_path.read_text(encoding="utf-8")
    changed = mutate_code(code, get_operator(fault.operator_name)(**fault.operator_args), fault.occurrence)
    if changed is None:
        return False
    try:
        return _behaviour(changed) != _behaviour(code)
    except SyntaxError:
        return False


def _behaviour(code: str) -> str:
    """The code without annotations, which are not evaluated, texts, and decorators that only type checkers read."""
    tree = ast.parse(code)
    for node in ast.walk(tree):
        if isinstance(node, ast.arg):
            node.annotation = None
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            node.returns = None
            node.decorator_list = [each for each in node.decorator_list if getattr(each, "id", "") not in _FOR_CHECKERS]
        elif isinstance(node, ast.ClassDef):  # `@dataclass(frozen=True, slots=True)`
            for each in node.decorator_list:
                if isinstance(each, ast.Call):
                    each.keywords = []
        elif isinstance(node, ast.AnnAssign):
            node.annotation = ast.Constant(None)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            node.value = ""
    return ast.dump(tree)


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    sys.exit(main())
