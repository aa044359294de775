"""Mutation tests: each fault of ``faults.json`` is put into a copy of the sources, and its tests must fail.

``python benches/mutation.py [-o report.json] [WORD ...]`` tries every fault, or those whose description or file
contains a WORD. A fault that no test finds needs a new test. Faults that no longer match the sources, and duplicates,
are listed first. ``--draw 40 --seed 27`` prints random lines of code to derive new faults from. The working tree is not
changed.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
FAULTS = Path(__file__).resolve().parent / "faults.json"
# a fault may cause an endless loop
MOST_SECONDS = 900
SURVIVED, ENDLESS = "SURVIVED", "killed: the tests do not end"
STALE, NO_CHANGE, TWICE = "STALE: its text is not in the file once", "STALE: it changes nothing", "TWICE: as fault"
NO_PYTHON = "STALE: any test finds it, since with it the file is no Python"
KILLED = "killed by "
BROKEN = "NO VERDICT: this test fails without the fault"


class Fault(NamedTuple):
    """A fault: ``old`` in ``file`` becomes ``new``; ``tests``: the paths of tests that should fail."""

    fault: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]


def read_faults(path: Path) -> list[Fault]:
    """Return the faults of a JSON file."""
    return [Fault(**fault | {"tests": tuple(fault["tests"])}) for fault in json.loads(path.read_text(encoding="utf-8"))]


def misfit_of(place: int, faults: Sequence[Fault]) -> str | None:
    """Return why the fault at index ``place`` cannot be tried in the working tree; None: it can."""
    fault = faults[place]
    path = ROOT / fault.file
    if not path.is_file() or path.read_text(encoding="utf-8").count(fault.old) != 1:
        return STALE
    if fault.old == fault.new:
        return NO_CHANGE
    if not is_python(fault):
        return NO_PYTHON
    missing = [test for test in fault.tests if not is_there(test)]
    if missing or not fault.tests:
        return f"STALE: there is no test {', '.join(missing)}".rstrip()
    for earlier, other in enumerate(faults[:place], start=1):
        if fault.file == other.file and (fault.fault == other.fault or changed(fault) == changed(other)):
            return f"{TWICE} {earlier}"
    return None


def is_there(test: str) -> bool:
    """Return whether the file of a test is there, and holds a function of its name."""
    file, _, names = test.partition("::")
    name = names.partition("[")[0].rpartition("::")[2]
    return (ROOT / file).exists() and (not name or f"def {name}(" in (ROOT / file).read_text(encoding="utf-8"))


def is_python(fault: Fault) -> bool:
    """Return whether a fault's file, if it is one of Python, can be parsed with the fault."""
    try:
        ast.parse(changed(fault) if fault.file.endswith(".py") else "")
    except SyntaxError:
        return False
    return True


@cache
def changed(fault: Fault) -> str:
    """Return the text of a fault's file in the working tree, with the fault."""
    return (ROOT / fault.file).read_text(encoding="utf-8").replace(fault.old, fault.new)


def drawn_lines(count: int, seed: int) -> list[str]:
    """Return ``count`` random lines of the package's code and SQL, as ``file:line: text``, drawn uniformly."""
    files = sorted([*ROOT.glob("kernelsight/**/*.py"), *ROOT.glob("sql/**/*.sql")])
    lines = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}" for path in files for number, line in code_lines(path)
    ]
    return random.Random(seed).sample(lines, count)


def code_lines(path: Path) -> list[tuple[int, str]]:
    """Return a file's lines of code with their numbers: without empty lines, comments and docstrings."""
    text = path.read_text(encoding="utf-8")
    docstring_lines: set[int] = set()
    if path.suffix == ".py":
        for node in ast.walk(ast.parse(text)):
            if (
                isinstance(node, ast.Expr)
                and isinstance(node.value, ast.Constant)
                and isinstance(node.value.value, str)
            ):
                docstring_lines |= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    comment = "#" if path.suffix == ".py" else "--"
    numbered = enumerate(text.splitlines(), start=1)
    return [
        (n, line)
        for n, line in numbered
        if n not in docstring_lines and line.strip() and not line.strip().startswith(comment)
    ]


def copy_tree(target: Path) -> None:
    """Copy the working tree to a folder, without the files that git ignores."""
    words = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True)
    for name in filter(None, listed.stdout.split("\0")):
        if (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target / name)


def attempt(fault: Fault, tree: Path) -> str:
    """Return the outcome of a fault in a copy of the tree; the file is restored afterwards."""
    path = tree / fault.file
    sound, times = path.read_text(encoding="utf-8"), path.stat()
    try:
        path.write_text(sound.replace(fault.old, fault.new), encoding="utf-8")
        answer = verdict(tree, fault.tests)
    finally:
        path.write_text(sound, encoding="utf-8")
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))  # compiled code is cached by the time of its source
    failed = answer.removeprefix(KILLED)
    return f"{BROKEN}: {failed}" if failed != answer and fails_anyway(failed, tree) else answer


@cache
def fails_anyway(test: str, tree: Path) -> bool:
    """Return whether a test fails in the copy without a fault."""
    return verdict(tree, (test,)) != SURVIVED


def verdict(tree: Path, tests: Sequence[str]) -> str:
    """Run tests in a copy of the tree; return the first failed test, or SURVIVED."""
    words = [sys.executable, "-m", "pytest", "-q", "-x", "--tb=no", "-p", "no:cacheprovider", *tests]
    environment = {**os.environ, "PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        run = subprocess.run(words, cwd=tree, env=environment, capture_output=True, text=True, timeout=MOST_SECONDS)
    except subprocess.TimeoutExpired:
        return ENDLESS
    if run.returncode == 0:
        return SURVIVED
    failed = re.search(r"^(?:FAILED|ERROR) (.+?)(?: - |$)", run.stdout, re.MULTILINE)
    return f"{KILLED}{failed[1]}" if failed else f"killed: pytest ends with {run.returncode}"


def attempts(faults: Sequence[Fault], tree: Path) -> Iterator[tuple[Fault, str]]:
    """Yield each fault with its outcome; all faults share one copy of the tree."""
    if faults:
        copy_tree(tree)
    for fault in faults:
        yield fault, attempt(fault, tree)


def main(words: list[str] | None = None) -> int:
    """Try the faults, print a line each; return 1 if one survives, no longer matches or is a duplicate."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("words", nargs="*", metavar="WORD", help="only faults whose description or file contains one")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="also write the outcomes as JSON")
    parser.add_argument(
        "--faults", type=Path, default=FAULTS, metavar="FILE", help="faults as JSON; unset: faults.json"
    )
    parser.add_argument("--copy", type=Path, metavar="FOLDER", help="folder of the copy, kept with its compiled code")
    parser.add_argument("--draw", type=int, metavar="N", help="print N random lines of code, and try nothing")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="seed of --draw (default: 0)")
    arguments = parser.parse_args(words)
    if arguments.draw:
        print("\n".join(drawn_lines(arguments.draw, arguments.seed)))
        return 0
    faults, outcomes, chosen = read_faults(arguments.faults), [], []
    for place, fault in enumerate(faults):
        if arguments.words and not any(word in f"{fault.fault} {fault.file}" for word in arguments.words):
            continue
        if misfit := misfit_of(place, faults):
            print(f"{fault.file}: {fault.fault}: {misfit}", flush=True)
            outcomes.append({**fault._asdict(), "answer": misfit})
        else:
            chosen.append(fault)
    with tempfile.TemporaryDirectory(prefix="kernelsight-faults-") as folder:
        for fault, answer in attempts(chosen, arguments.copy or Path(folder)):
            print(f"{fault.file}: {fault.fault}: {answer}", flush=True)
            outcomes.append({**fault._asdict(), "answer": answer})
    survivors = sum(not row["answer"].startswith("killed") for row in outcomes)
    print(f"{len(outcomes) - survivors} of {len(outcomes)} faults are found by a test")
    if arguments.output:
        arguments.output.write_text(json.dumps(outcomes, indent=1) + "\n", encoding="utf-8")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
