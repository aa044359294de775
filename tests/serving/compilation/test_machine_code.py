"""Machine code that is kept on disk: found again, compiled again where damaged, in folders of ours alone."""

from __future__ import annotations

import json
import os
import pickle
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kernelsight.caches.private_folder import stamped
from kernelsight.serving.compilation import compiled, linking, machine_code

FOLDER = Path(machine_code.__file__).parent
ROOT = FOLDER.parents[1]


@compiled.compiled
def doubled(number: int) -> int:
    return 2 * number


def quadrupled(number: int) -> int:
    return doubled(doubled(number))


def increased(number: int) -> int:
    return number + 1


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of machine code of its own; what was logged once is logged again, what is compiled is noted."""
    monkeypatch.setattr(machine_code, "PLACES", [tmp_path / "numba"])
    compile_entry = linking.compile_entry
    monkeypatch.setattr(linking, "compile_entry", lambda *asked: COMPILED.append(asked) or compile_entry(*asked))
    monkeypatch.setattr(machine_code, "_noticed", set())
    machine_code.code_folder.cache_clear()
    yield tmp_path / "numba"
    machine_code.code_folder.cache_clear()


COMPILED: list[tuple] = []


def called(function: Callable[[int], int], number: int) -> tuple[int, bool]:
    """Return what a new entry point answers, and whether its machine code was found on the disk."""
    before = len(COMPILED)
    return compiled.loop_entry(function)(number), len(COMPILED) == before


def test_machine_code_is_found_again(place: Path) -> None:
    assert [called(quadrupled, 3) for _ in range(2)] == [(12, False), (12, True)]
    [path] = place.iterdir()
    assert path.suffix == ".obj" and path.stat().st_mode & 0o777 == 0o600


def test_another_function_or_type_is_another_file(place: Path) -> None:
    made = [lambda number: number + 1, lambda number: number + 2]  # on one line of one file
    assert [called(function, 3) for function in (*made, *made)] == [(4, False), (5, False), (4, True), (5, True)]
    entry = compiled.entry(made[0])
    assert (entry(3), entry(2.5)) == (4, 3.5)
    assert len(list(place.iterdir())) == 3


def test_what_a_function_encloses_is_part_of_its_key(place: Path) -> None:
    def adding(more: int) -> Callable[[int], int]:
        return lambda number: number + more

    assert [called(adding(more), 3) for more in (1, 2, 1)] == [(4, False), (5, False), (4, True)]


def flip_a_bit(place: Path, at: int) -> None:
    for path in place.iterdir():
        content = bytearray(path.read_bytes())
        content[at] ^= 1
        path.write_bytes(content)


def cut(place: Path, share: float) -> None:
    for path in place.iterdir():
        path.write_bytes(path.read_bytes()[: int(share * path.stat().st_size)])


def swap(place: Path) -> None:
    one, other = place.iterdir()
    contents = one.read_bytes(), other.read_bytes()
    other.write_bytes(contents[0])
    one.write_bytes(contents[1])


def replace_with_its_digest(place: Path, content: bytes) -> None:
    for path in place.iterdir():
        machine_code.code_folder().write(path.stem, content)


DAMAGES = {
    "a bit of the digest": lambda place: flip_a_bit(place, 3),
    "a bit of the content": lambda place: flip_a_bit(place, 500),
    "the last bit": lambda place: flip_a_bit(place, -1),
    "empty": lambda place: cut(place, 0),
    "cut to half": lambda place: cut(place, 0.5),
    "cut within the digest": lambda place: cut(place, 0.001),
    "swapped": swap,
    "garbage with its digest": lambda place: replace_with_its_digest(place, b"\xffgarbage"),
    "nothing with its digest": lambda place: replace_with_its_digest(place, b""),
    "another object with its digest": lambda place: replace_with_its_digest(place, pickle.dumps((1, 2))),
    "too deep with its digest": lambda place: replace_with_its_digest(place, b"(" * 10**5 + b"t" * 10**5 + b"."),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_damaged_machine_code_is_compiled_again(
    place: Path, damage: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    for function in (quadrupled, increased):
        called(function, 3)
    names = {path.name for path in place.iterdir()}
    damage(place)
    machine_code._noticed.clear()
    with caplog.at_level("INFO", logger="kernelsight"):
        caplog.clear()
        assert (called(quadrupled, 3), called(increased, 3)) == ((12, False), (4, False))
    assert caplog.messages == [machine_code.DAMAGED]
    assert {path.name for path in place.iterdir()} == names
    assert (called(quadrupled, 3), called(increased, 3)) == ((12, True), (4, True))


def test_the_damaged_file_alone_goes(place: Path) -> None:
    called(quadrupled, 3)
    [first] = place.iterdir()
    called(increased, 3)
    first.write_bytes(b"")
    assert (called(quadrupled, 3), called(increased, 3)) == ((12, False), (4, True))


@pytest.fixture
def carried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of carried code, for the processor at hand."""
    monkeypatch.setattr(machine_code, "CARRIED", tmp_path / "carried")
    monkeypatch.setattr(machine_code, "runs_here", lambda: True)
    (tmp_path / "carried").mkdir()
    return tmp_path / "carried"


def test_what_the_package_carries_is_not_compiled(place: Path, carried: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    called(quadrupled, 3)
    [path] = place.iterdir()
    key = machine_code.EntryKey(quadrupled, __file__).carried(("q",))
    content = stamped(key, path.read_bytes()[32:])
    path.unlink()
    (carried / f"{key}.obj").write_bytes(content)
    assert called(quadrupled, 3) == (12, True)
    assert not list(place.iterdir())
    # for another processor, of another function, or damaged, it is as good as none, and stays as it is
    monkeypatch.setattr(machine_code, "runs_here", lambda: False)
    assert called(quadrupled, 3) == (12, False)
    monkeypatch.setattr(machine_code, "runs_here", lambda: True)
    assert called(increased, 3) == (4, False)
    for each in place.iterdir():
        each.unlink()
    (carried / f"{key}.obj").write_bytes(b"\1" + content[1:])
    assert called(quadrupled, 3) == (12, False)
    assert [each.name for each in carried.iterdir()] == [f"{key}.obj"]


def test_what_is_carried_is_of_these_sources() -> None:
    """An edit of the scheduler needs `python .ci/carried_code.py`, and a commit of what it writes."""
    assert [path.name for path in (FOLDER / "carried").iterdir()] == [machine_code.CARRIED.name]
    assert machine_code.CARRIED.name == f"x86-64-v3-{machine_code.sources_digest(machine_code.SOURCES)}"


@pytest.mark.skipif(not machine_code.runs_here(), reason="carried code needs a processor of the level x86-64-v3")
def test_the_first_simulation_in_a_fresh_home_needs_no_compiler(tmp_path: Path) -> None:
    words = "simulate --model qwen3-0.6b --gpu l4 --request-rate 20 --num-prompts 40 --isl 64 --osl 9 --format json"
    blocked = "import sys; sys.modules |= {'numba': None, 'llvmlite': None}; "
    blocked += f"from kernelsight.cli.main import main; main({words.split()})"
    home = {"HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "cache"), "PYTHONPATH": str(ROOT)}
    found = subprocess.run(
        [sys.executable, "-c", blocked], env=os.environ | home, cwd=tmp_path, capture_output=True, text=True
    )
    assert (found.returncode, found.stderr.count("compiling")) == (0, 0)
    assert json.loads(found.stdout)["completed"] == 40


@pytest.mark.whole
def test_carried_code_answers_as_code_compiled_now(tmp_path: Path) -> None:
    """With another folder of sources' names, nothing carried fits: both entries of the loop are compiled."""
    words = "simulate --model qwen3-0.6b --gpu l4 --request-rate 90 --num-prompts 300 --isl 640 --osl 90 --format json"
    found = []
    for setting in ("", "machine_code.CARRIED = machine_code.CARRIED.with_name('none'); machine_code.PLACES = []; "):
        code = f"from kernelsight.serving.compilation import machine_code; {setting}"
        code += f"from kernelsight.cli.main import main; main({[*words.split()]})"
        run = subprocess.run([sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": str(ROOT)}, cwd=tmp_path,
                             capture_output=True, text=True)  # fmt: skip
        found.append((run.returncode, run.stdout, "compiling" in run.stderr))
    assert [status for status, _, _ in found] == [0, 0] and [compiles for *_, compiles in found] == [False, True]
    assert found[0][1] == found[1][1]


def test_machine_code_that_takes_other_words_is_compiled_again(place: Path) -> None:
    """What was compiled for another number of words would read what is not there."""
    called(increased, 3)
    [path] = place.iterdir()
    code = machine_code.Code.of(path.read_bytes()[32:])
    assert (code.words, code.answer) == ("q", "int64")
    for other in (code._replace(words="qq"), code._replace(answer="complex128")):
        replace_with_its_digest(place, other.kept())
        assert [called(increased, 3) for _ in range(2)] == [(4, False), (4, True)]


def test_the_key_names_the_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    key = machine_code.EntryKey(increased, __file__).of(("q",))
    assert key(machine_code.machine()) != key((machine_code.machine()[0], "generic", ""))
    machine_code.machine.cache_clear()
    for variable, value in zip(machine_code.PROCESSOR_VARIABLES, ("generic", ""), strict=True):
        monkeypatch.setenv(variable, value)
    assert machine_code.machine()[1:] == ("generic", "")
    machine_code.machine.cache_clear()


def test_carried_code_needs_each_feature_of_its_level(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    flags = sorted(machine_code.NEEDED)
    here = "linux", "x86_64"
    for system, those, runs in (
        (here, flags, True),
        (here, [name for name in flags if name != "bmi2"], False),
        (("linux", "aarch64"), flags, False),
        (("win32", "x86_64"), flags, False),
    ):
        (tmp_path / "cpuinfo").write_text(f"processor\t: 0\nflags\t\t: fpu {' '.join(those)} sse\n")
        monkeypatch.setattr(machine_code, "FLAGS", tmp_path / "cpuinfo")
        monkeypatch.setattr(machine_code.sys, "platform", system[0])
        monkeypatch.setattr(machine_code.platform, "machine", lambda system=system: system[1])
        machine_code.runs_here.cache_clear()
        assert machine_code.runs_here() == runs
    monkeypatch.undo()
    machine_code.runs_here.cache_clear()


def test_compiling_is_logged_once(place: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", logger="kernelsight"):
        assert compiled.entry(quadrupled)(1) == 4 and not caplog.messages
        assert (called(increased, 1), called(quadrupled, 2)) == ((2, False), (8, True))
        assert called(doubled.py_func, 1) == (2, False)
    assert caplog.messages == ["compiling the scheduler, once after an installation"]


def test_where_nothing_is_kept_that_is_logged(place: Path, caplog: pytest.LogCaptureFixture) -> None:
    place.mkdir()
    place.chmod(0o777)
    with caplog.at_level("INFO", logger="kernelsight"):
        assert [called(increased, 1) for _ in range(2)] == [(2, False), (2, False)]
    assert caplog.messages == [machine_code.NOT_KEPT] and not list(place.iterdir())


# ---------------------------------------------------------------- the folder


def test_the_folder_is_named_by_the_sources(tmp_path: Path) -> None:
    copies = tuple(tmp_path / source.name for source in machine_code.SOURCES)
    for source, copy in zip(machine_code.SOURCES, copies, strict=True):
        shutil.copytree(source, copy, ignore=shutil.ignore_patterns("__pycache__"))
    before = machine_code.code_places(copies)
    assert machine_code.code_places(copies) == before
    for edited in (copies[0] / "linking.py", copies[1] / "scheduler.py"):
        edited.write_text(edited.read_text() + "\n# edited\n")
        after = machine_code.code_places(copies)
        assert [path.parent for path in after] == [path.parent for path in before] and not set(after) & set(before)
        before = after


def test_the_first_folder_that_is_ours_alone_is_taken(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sources").mkdir()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    beside, at_home = places = machine_code.code_places((tmp_path / "sources",))
    monkeypatch.setattr(machine_code, "PLACES", places)

    def taken() -> Path | None:
        machine_code.code_folder.cache_clear()
        folder = machine_code.code_folder()
        return folder and folder.path

    assert taken() == beside and beside.parent == tmp_path / "sources" / "__pycache__"
    assert beside.stat().st_mode & 0o077 == 0 and not at_home.exists()
    beside.parent.chmod(0o777)
    assert taken() == at_home and at_home.parent == tmp_path / "home" / "kernelsight"
    (tmp_path / "home").chmod(0o777)
    assert taken() is None


# ---------------------------------------------------------------- processes

# a rule that calls another one from another module
ASK = """
import logging, sys
import numpy as np
from kernelsight.serving.engine import limits as declared
from kernelsight.serving.engine.admission import first_chunk
from kernelsight.serving.compilation.compiled import loop_entry
logging.basicConfig(level=logging.INFO, format="%(message)s")
sys.stdin.read(1)  # all begin together
print(loop_entry(first_chunk.py_func)(10, 7, np.zeros(1, declared.LIMITS)[0]), "numba" in sys.modules)
"""


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A copy of the package, whose machine code lies in a folder of its own."""
    shutil.copytree(FOLDER.parents[1], tmp_path / "kernelsight", ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path


def asked(package: Path, processes: int) -> list[tuple[str, str]]:
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    environment = os.environ | {"PYTHONPATH": str(package)}
    running = [
        subprocess.Popen([sys.executable, "-c", ASK], **pipes, cwd=package, env=environment) for _ in range(processes)
    ]
    for process in running:
        process.stdin.write("!")
        process.stdin.flush()
    return [process.communicate() for process in running]


def changed(package: Path, name: str, before: str, after: str) -> None:
    """Edit a file of the engine."""
    source = package / "kernelsight" / "serving" / "engine" / name
    text = source.read_text()
    assert text.count(before) == 1
    source.write_text(text.replace(before, after))


@pytest.mark.whole
def test_processes_with_an_empty_folder_a_damaged_one_and_edited_sources(package: Path) -> None:
    compiling = "compiling the scheduler, once after an installation\n"
    first = asked(package, 2)
    assert {answer.split()[0] for answer, _ in first} == {"7"} and {said for _, said in first} <= {compiling, ""}
    kept = package / "kernelsight" / "serving" / "compilation" / "__pycache__"
    [place] = kept.glob("numba-*")
    [path] = place.iterdir()  # no draft
    assert asked(package, 1) == [("7 False\n", "")]  # without numba
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    assert asked(package, 1) == [("7 True\n", f"{machine_code.DAMAGED}\n")]
    # comments, another rule of the same module, and code that Python runs: no entry point reaches these edits
    changed(package, "admission.py", "@compiled\ndef first_chunk", "# a comment\n\n\n@compiled\ndef first_chunk")
    changed(package, "admission.py", "    return max(units, units_held(", "    return 1 + max(units, units_held(")
    changed(package, "step_rows.py", "CHUNK = 16_384", "CHUNK = 16_385")
    assert asked(package, 1) == [("7 False\n", "")] and len(list(kept.glob("numba-*"))) == 2
    # this one it does reach
    changed(package, "admission.py", "    return min(needed, budget)\n", "    return min(needed, budget) + 1\n")
    assert asked(package, 1)[0][0] == "8 True\n"


def test_all_compiled_functions_lie_in_the_folders_whose_digest_names_the_cache() -> None:
    package = Path(machine_code.__file__).resolve().parents[2]
    decorator = re.compile(r"^@(compiled|inlined|entry|loop_entry|(numba\.)?n?jit)\b", re.M)
    users = {path.parent for path in package.rglob("*.py") if decorator.search(path.read_text(encoding="utf-8"))}
    assert users <= set(machine_code.SOURCES)
