"""New random worlds for the tests that draw them: a failure is shrunk and pinned, and all runs of the tests replay it.

    python benches/worlds.py [--cpu-seconds 600] [--seed N] [WORD ...]

The loop against its reference (engines, fleets, ranks, pipelines, drafts, halves, tiers), the server and the
invariants: each test in turn with a seed of its own, round after round. A failing world is written to
``tests/pinned/`` once hypothesis has made it small. ``--faults`` puts faults of ``faults.json`` into a copy of the
sources instead, and counts the worlds in which a test fails: how many a run of the tests has to draw.
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import json
import math
import os
import secrets
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import wraps
from pathlib import Path
from typing import Any

import mutation
from mutation import Fault
from record import ROOT

sys.path.insert(0, str(ROOT))
from hypothesis import is_hypothesis_test, seed
from hypothesis.errors import UnsatisfiedAssumption

from tests.pinned_worlds import FOLDER, PinnedWorld, function_of, pin, spelled

# folders whose tests draw worlds of the loop
DRAWN = ("tests/serving", "tests/invariants", "tests/server")
# a number of worlds is enough where it shows a fault in so many of a hundred runs
SURE = 0.99
# a fault that shows in so few worlds needs no other test to be found
FEW = 20
# what pytest returns where the files hold no other tests
NO_TESTS = 5
Drawing = Callable[..., None]


def random_world_tests(words: Sequence[str] = (), folders: Sequence[str] = DRAWN) -> list[str]:
    """Return the tests, as ``module:function``, that draw all that they are given; with words: those that hold one."""
    names = []
    for path in sorted(path for folder in folders for path in files_of(ROOT / folder)):
        if "@random_worlds(" in path.read_text(encoding="utf-8"):
            module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
            members = vars(importlib.import_module(module)).items()
            # a test with fixtures cannot be run without pytest
            names += [
                f"{module}:{name}"
                for name, test in members
                if getattr(test, "__module__", "") == module
                and is_hypothesis_test(test)
                and not inspect.signature(test).parameters
            ]
    return [name for name in names if not words or any(word in name for word in words)]


def files_of(place: Path) -> list[Path]:
    """Return a file, or the test files of a folder."""
    return [place] if place.is_file() else sorted(place.rglob("test_*.py"))


def drawn(name: str, number: int, inner: Callable[[Drawing], Drawing]) -> None:
    """Run a test on new worlds of a seed, with ``inner`` of what it does with each; raises what that raises."""
    test = function_of(name)
    handle = test.hypothesis  # type: ignore[attr-defined]
    check = handle.inner_test
    handle.inner_test = wraps(check)(inner(check))
    try:
        seed(number)(test)()
    finally:
        handle.inner_test = check


def failure_of(name: str, number: int) -> PinnedWorld | None:
    """Return the smallest failing world that hypothesis reaches from a seed; None: no world fails the test."""
    failing: list[PinnedWorld] = []

    def noted(check: Drawing) -> Drawing:
        def run(**arguments: Any) -> None:
            world = {key: spelled(value) for key, value in arguments.items()}  # before the test can change it
            try:
                check(**arguments)
            except UnsatisfiedAssumption:
                raise
            except Exception as error:
                failing.append(PinnedWorld(name, reason_of(error), world))
                raise

        return run

    try:
        drawn(name, number, noted)
    except Exception:
        if not failing:
            raise
        # hypothesis runs the smallest one last
        return failing[-1]
    return None


def reason_of(error: Exception) -> str:
    """Return how a test failed in a line: the first of the error, or else the check that raised it."""
    said = str(error).splitlines() or [traceback.extract_tb(error.__traceback__)[-1].line or ""]
    return f"{type(error).__name__}: {said[0]}"[:200]


def failing_worlds(name: str, number: int) -> tuple[int, list[int]]:
    """Return how many worlds of a seed a test ran on, and which of them, from one up, failed it."""
    failing, count = [], 0

    def counted(check: Drawing) -> Drawing:
        def run(**arguments: Any) -> None:
            nonlocal count
            count += 1
            try:
                check(**arguments)
            except UnsatisfiedAssumption:
                count -= 1
                raise
            except Exception:
                failing.append(count)

        return run

    drawn(name, number, counted)
    return count, failing


def search(names: Sequence[str], first: int, cpu_s: float, folder: Path) -> list[Path]:
    """Run tests on new worlds until the CPU time is spent; return the files of those that failed, one a test."""
    pinned: dict[str, Path] = {}
    number = first
    while len(pinned) < len(names):
        for name in [name for name in names if name not in pinned]:
            if time.process_time() > cpu_s:
                return list(pinned.values())
            # printed before: a world that ends this process is found again by its seed
            print(f"seed {number}: {name}", flush=True)
            if world := failure_of(name, number):
                pinned[name] = pin(world, folder)
                print(f"  {world.reason}\n  pinned as {pinned[name]}", flush=True)
            number += 1
    return list(pinned.values())


# ---------------------------------------------------------------- how many worlds faults need


def worlds_needed(counts: Mapping[str, tuple[int, Sequence[int]]]) -> int | None:
    """Return the worlds a test that show a fault: in 99 of 100 runs by the share that failed, and in this run too.

    The second, as worlds that are drawn one after another are alike.

    >>> worlds_needed({"a": (100, range(3, 8)), "b": (100, [])}), worlds_needed({"a": (100, [97])})
    (90, 459)
    """
    firsts = [min(failing) for _, failing in counts.values() if failing]
    if not firsts:
        return None
    missed = sum(math.log1p(-min(len(failing) / count, 1.0 - 1e-9)) for count, failing in counts.values())
    return max(math.ceil(math.log(1.0 - SURE) / missed), min(firsts))


def attempts(faults: Sequence[Fault], tree: Path, number: int) -> Iterator[dict[str, Any]]:
    """Yield for each fault in which worlds which test fails, and which test without worlds finds what shows in few."""
    mutation.copy_tree(tree)
    for fault in faults:
        path = tree / fault.file
        sound = path.read_text(encoding="utf-8")
        path.write_text(sound.replace(fault.old, fault.new), encoding="utf-8")
        try:
            counts = counts_in(tree, fault.tests, number)
            needed = worlds_needed(counts) if counts else None
            hidden = needed is None or needed > FEW
            answer = without_worlds(tree, fault.tests) if hidden else "not tried"
        finally:
            path.write_text(sound, encoding="utf-8")
        yield {"fault": fault.fault, "file": fault.file, "without_worlds": answer, "worlds": needed, "tests": counts}


def without_worlds(tree: Path, tests: Sequence[str]) -> str:
    """Return what tests that draw no random worlds say of a copy of the tree."""
    answer = mutation.verdict(tree, ("-m", "not hypothesis", *tests))
    return mutation.SURVIVED if answer.endswith(f"ends with {NO_TESTS}") else answer


def counts_in(tree: Path, tests: Sequence[str], number: int) -> dict[str, tuple[int, list[int]]]:
    """Return the counts of ``failing_worlds`` of the random-world tests of some files in a copy of the tree.

    Nothing where the tests do not end.
    """
    words = [sys.executable, str(tree / "benches" / "worlds.py"), "--count", "--seed", str(number), *tests]
    environment = {**os.environ, "PYTHONPATH": str(tree)}
    try:
        run = subprocess.run(
            words, cwd=tree, env=environment, capture_output=True, text=True, timeout=mutation.MOST_SECONDS
        )
    except subprocess.TimeoutExpired:
        return {}
    if run.returncode:
        raise SystemExit(run.stderr)
    return json.loads(run.stdout.splitlines()[-1])


def count_for_faults(words: Sequence[str], number: int) -> list[dict[str, Any]]:
    """Return the rows of ``attempts`` of the faults that a random-world test is to find, and print them."""
    every, rows = mutation.read_faults(mutation.FAULTS), []
    chosen = [
        fault
        for place, fault in enumerate(every)
        if not mutation.misfit_of(place, every)
        and any(test.startswith(DRAWN) for test in fault.tests)
        and random_world_tests(folders=[test.split("::")[0] for test in fault.tests])
        and (not words or any(word in f"{fault.fault} {fault.file}" for word in words))
    ]
    with tempfile.TemporaryDirectory(prefix="kernelsight-worlds-") as folder:
        for row in attempts(chosen, Path(folder), number):
            rows.append(row)
            shown = f"{row['worlds'] or 'no number of'} worlds a test; without worlds: {row['without_worlds']}"
            print(f"{row['file']}: {row['fault']}: {shown}", flush=True)
    return rows


def main(words: list[str] | None = None) -> int:
    """Draw worlds; return 1 where one was pinned."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("words", nargs="*", metavar="WORD", help="only tests, or faults, whose name holds one")
    parser.add_argument(
        "--cpu-seconds", type=float, default=600.0, metavar="S", help="CPU time to spend (default: 600)"
    )
    parser.add_argument("--seed", type=int, metavar="N", help="first seed; unset: a new one")
    parser.add_argument("--pinned", type=Path, default=FOLDER, metavar="FOLDER", help="where failing worlds are kept")
    parser.add_argument("--faults", action="store_true", help="count the worlds that the faults of faults.json need")
    parser.add_argument("--count", action="store_true", help="print as JSON which worlds fail tests of files (WORD)")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="also write what --faults counted as JSON")
    arguments = parser.parse_args(words)
    # all worlds of each test; read when the first of them is imported
    os.environ.setdefault("KERNELSIGHT_WORLDS", "100")
    number = secrets.randbelow(2**31) if arguments.seed is None else arguments.seed
    if arguments.count:
        names = random_world_tests(folders=[word.split("::")[0] for word in arguments.words])
        print(json.dumps({name.rpartition(":")[2]: failing_worlds(name, number) for name in names}))
        return 0
    if arguments.faults:
        rows = count_for_faults(arguments.words, number)
        if arguments.output:
            arguments.output.write_text(json.dumps({"seed": number, "faults": rows}) + "\n", encoding="utf-8")
        return 0
    return 1 if search(random_world_tests(arguments.words), number, arguments.cpu_seconds, arguments.pinned) else 0


if __name__ == "__main__":
    sys.exit(main())
