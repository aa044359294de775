"""Search for new random worlds that fail a test: failures are shrunk and printed, to be kept as a worked-out world.

    python benches/worlds.py [--cpu-seconds 600] [--seed N] [WORD ...]

Runs the tests of the loop against its reference (engines, fleets, ranks, pipelines, drafts, disaggregation, tiers), of
the server and of the invariants in turn, each time with a new seed. A failing world is printed once hypothesis has
shrunk it; its seed and test repeat it. ``--faults`` puts faults of ``faults.json`` into a copy of the sources, and
counts the worlds in which a test fails: the number that a test run has to draw.
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

# folders whose tests draw worlds of the loop
DRAWN = ("tests/serving", "tests/invariants", "tests/server")
# a number of worlds is enough if it shows a fault in this share of runs
SURE = 0.99
# a fault that shows within this many worlds needs no other test
FEW = 20
# pytest's exit status if no test is selected
NO_TESTS = 5
Drawing = Callable[..., None]


def random_world_tests(words: Sequence[str] = (), folders: Sequence[str] = DRAWN) -> list[str]:
    """Return as ``module:function`` the tests whose arguments are all random; with words: whose name has one."""
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
    """Run a test on new worlds of a seed, its body wrapped by ``inner``; raises what the test raises."""
    test = function_of(name)
    handle = test.hypothesis  # type: ignore[attr-defined]
    check = handle.inner_test
    handle.inner_test = wraps(check)(inner(check))
    try:
        seed(number)(test)()
    finally:
        handle.inner_test = check


def function_of(name: str) -> Drawing:
    """Return a test by its module and name, as hypothesis made it."""
    module, function = name.split(":")
    return getattr(importlib.import_module(module), function)


def failure_of(name: str, number: int) -> str | None:
    """Return how the smallest failing world that hypothesis reaches from a seed fails, and the world, in two lines."""
    failing: list[str] = []

    def recording(check: Drawing) -> Drawing:
        def run(**arguments: Any) -> None:
            world = " ".join(repr(arguments).split())  # before the test can change it
            try:
                check(**arguments)
            except UnsatisfiedAssumption:
                raise
            except Exception as error:
                failing.append(f"{reason_of(error)}\n{world}")
                raise

        return run

    try:
        drawn(name, number, recording)
    except Exception:
        if not failing:
            raise
        # hypothesis runs the smallest one last
        return failing[-1]
    return None


def reason_of(error: Exception) -> str:
    """Return a failure in one line: the error's first line, or else the line that raised it."""
    message_lines = str(error).splitlines() or [traceback.extract_tb(error.__traceback__)[-1].line or ""]
    return f"{type(error).__name__}: {message_lines[0]}"[:200]


def failing_worlds(name: str, number: int) -> tuple[int, list[int]]:
    """Return the number of worlds of a seed that a test ran on, and the ordinals (from 1) of failures."""
    failing, count = [], 0

    def counting(check: Drawing) -> Drawing:
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

    drawn(name, number, counting)
    return count, failing


def search(names: Sequence[str], first: int, cpu_s: float) -> dict[str, str]:
    """Run tests on new worlds until the CPU time is spent; return ``failure_of`` of each test that failed."""
    failures: dict[str, str] = {}
    number = first
    while len(failures) < len(names):
        for name in [name for name in names if name not in failures]:
            if time.process_time() > cpu_s:
                return failures
            # printed first: a world that ends this process can be repeated by its seed
            print(f"seed {number}: {name}", flush=True)
            if failure := failure_of(name, number):
                failures[name] = failure
                print(failure, flush=True)
            number += 1
    return failures


# ---------------------------------------------------------------- number of worlds that show a fault


def worlds_needed(counts: Mapping[str, tuple[int, Sequence[int]]]) -> int | None:
    """Return the worlds per test that show a fault in 99 of 100 runs (by the share of failures) and in this run.

    The second condition is needed because worlds that are drawn in sequence are correlated.

    >>> worlds_needed({"a": (100, range(3, 8)), "b": (100, [])}), worlds_needed({"a": (100, [97])})
    (90, 459)
    """
    firsts = [min(failing) for _, failing in counts.values() if failing]
    if not firsts:
        return None
    missed = sum(math.log1p(-min(len(failing) / count, 1.0 - 1e-9)) for count, failing in counts.values())
    return max(math.ceil(math.log(1.0 - SURE) / missed), min(firsts))


def attempts(faults: Sequence[Fault], tree: Path, number: int) -> Iterator[dict[str, Any]]:
    """Yield a row per fault: the worlds that fail each test; for rare faults also the verdict without worlds."""
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
    """Return the verdict of the tests without random worlds in a copy of the tree."""
    answer = mutation.verdict(tree, ("-m", "not hypothesis", *tests))
    return mutation.SURVIVED if answer.endswith(f"ends with {NO_TESTS}") else answer


def counts_in(tree: Path, tests: Sequence[str], number: int) -> dict[str, tuple[int, list[int]]]:
    """Return ``failing_worlds`` of each random-world test of some files in a copy of the tree.

    Empty if the tests do not end.
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
    """Return and print the rows of ``attempts`` of the faults that a random-world test should find."""
    faults, rows = mutation.read_faults(mutation.FAULTS), []
    chosen = [
        fault
        for place, fault in enumerate(faults)
        if not mutation.misfit_of(place, faults)
        and any(test.startswith(DRAWN) for test in fault.tests)
        and random_world_tests(folders=[test.split("::")[0] for test in fault.tests])
        and (not words or any(word in f"{fault.fault} {fault.file}" for word in words))
    ]
    with tempfile.TemporaryDirectory(prefix="kernelsight-worlds-") as folder:
        for row in attempts(chosen, Path(folder), number):
            rows.append(row)
            shown = f"{row['worlds'] or 'no number of'} worlds per test; without worlds: {row['without_worlds']}"
            print(f"{row['file']}: {row['fault']}: {shown}", flush=True)
    return rows


def main(words: list[str] | None = None) -> int:
    """Search for failing worlds; return 1 if there is one."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("words", nargs="*", metavar="WORD", help="only tests, or faults, whose name contains one")
    parser.add_argument(
        "--cpu-seconds", type=float, default=600.0, metavar="S", help="CPU time to spend (default: 600)"
    )
    parser.add_argument("--seed", type=int, metavar="N", help="first seed; unset: a new one")
    parser.add_argument("--faults", action="store_true", help="count the worlds that the faults of faults.json need")
    parser.add_argument("--count", action="store_true", help="print as JSON which worlds fail tests of files (WORD)")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="also write the counts of --faults as JSON")
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
    return 1 if search(random_world_tests(arguments.words), number, arguments.cpu_seconds) else 0


if __name__ == "__main__":
    sys.exit(main())
