"""Every door that takes what others wrote, found by code, and the same hostile inputs at each: a sentence or an answer.

KERNELSIGHT_WORLDS is the percentage of the pairs of a door and an input that are tried.
"""

from __future__ import annotations

import ast
import importlib.util
import json
import re
import signal
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kernelsight.cli.command_line import VERBS
from kernelsight.server.tool_functions import FUNCTIONS
from tests.cli.conftest import TINY_CONFIG, Answer
from tests.conftest import WORLDS_PERCENT
from tests.safety.doors import BASE, Door, doors
from tests.safety.hostile_inputs import INPUTS, SECRET, made
from tests.safety.test_fuzzed_readers import SPACES, parquet, point_bytes
from tests.special_files import SPECIAL, special_file

DOORS = {door.name: door for door in doors() if door.name != "serve --tokenizer" or importlib.util.find_spec("uvicorn")}
PACKAGE = Path(__file__).parents[2] / "kernelsight"
MOST_CPU_S, MOST_BYTES = 2.0, 1 << 30
LOG = "arrival_s,prompt_tokens,output_tokens,ttft_ms,e2e_ms\n5,100,11,40,90\n"


def is_tried(*names: str) -> bool:
    """Return whether a pair belongs to those of this run: always the same ones."""
    return zlib.crc32(" ".join(names).encode()) % 10_000 < 100 * WORLDS_PERCENT


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the sound files that commands need beside a hostile one, in which they run; nothing waits."""
    (tmp_path / "log.csv").write_text(LOG)
    (tmp_path / "sweep.parquet").write_bytes(point_bytes())
    (tmp_path / "space.parquet").write_bytes(parquet(SPACES))
    candidates = [{"space": "conv", "candidate_id": "tile=1", "parameters": '{"tile": 1}'}]
    (tmp_path / "candidates.parquet").write_bytes(parquet(candidates))
    (tmp_path / "chats.json").write_text(json.dumps([{"prompt": "Hello there", "completion": "Hi"}]))
    (tmp_path / "config.json").write_text(json.dumps(TINY_CONFIG))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("kernelsight.server.start.serve_until_stopped", lambda *_: None)
    monkeypatch.setattr("kernelsight.server.start.warm_up", lambda *_: None)

    def stop(seconds: float, sleep: Callable[[float], None] = time.sleep) -> None:
        if seconds >= 1.0:  # of a watch that goes on
            raise KeyboardInterrupt
        sleep(seconds)

    monkeypatch.setattr(time, "sleep", stop)
    return tmp_path


@pytest.fixture
def limited() -> Iterator[None]:
    """Fail a test whose work does not end: by its own CPU time, however busy the machine is."""

    def stop(*_: object) -> None:
        raise TimeoutError(f"more than {MOST_CPU_S} CPU-s")

    before = signal.signal(signal.SIGPROF, stop)
    yield
    signal.setitimer(signal.ITIMER_PROF, 0)
    signal.signal(signal.SIGPROF, before)


def held_bytes(mark: str) -> int:
    """Return a number of bytes of this process from /proc: VmRSS, or VmHWM, the most since ``forget_peak``."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line for line in lines if line.startswith(mark)).split()[1])


def asked(door: Door, path: Path, command: Callable[..., Answer]) -> Answer:
    """Run the command of a door on a file, within limits of work and memory."""
    folder = path.parent
    places = {
        name.upper(): str(next(folder.glob(f"{name}.*")))
        for name in ("log", "sweep", "space", "config", "candidates", "chats")
    }
    words = [{"FILE": str(path), "@FILE": f"@{path}", **places}.get(word, word) for word in door.words]
    Path("/proc/self/clear_refs").write_text("5")  # forgets the peak of VmHWM
    before = held_bytes("VmRSS")
    signal.setitimer(signal.ITIMER_PROF, MOST_CPU_S)
    answer = command(*words)
    signal.setitimer(signal.ITIMER_PROF, 0)
    assert held_bytes("VmHWM") - before < MOST_BYTES
    return answer


def test_every_verb_that_takes_a_file_has_a_command() -> None:
    assert {door.verb for door in DOORS.values()} < BASE.keys() <= VERBS.keys() and len(DOORS) >= 40
    assert len(INPUTS) >= 60


def test_the_policy_names_every_door() -> None:
    """The first column of SECURITY.md's table: options that take a file, routes and tools, as found by code."""
    rows = (Path(__file__).parents[2] / "SECURITY.md").read_text(encoding="utf-8").split("## Doors")[1].splitlines()
    named = {word for row in rows if row.startswith("| ") for word in re.findall(r"`([^`]+)`", row.split("|")[1])}
    options = {door.verb if door.flag.positional else door.flag.options[0] for door in doors()}
    app = ast.parse((PACKAGE / "server" / "app.py").read_text(encoding="utf-8"))
    routes = {call.args[0].value for call in ast.walk(app)
              if isinstance(call, ast.Call) and ast.unparse(call.func) == "Route"}  # fmt: skip
    assert len(routes) >= 7 and options | routes | FUNCTIONS.keys() <= named
    others = {
        "serve",
        "mcp",
        "--db",
        "--watch",
        "--log http…",
        "--llm-url",
        "search run --measure",
        "calibrate measure",
    }
    assert named - options - routes - FUNCTIONS.keys() <= others


@pytest.mark.parametrize("name", DOORS)
def test_a_file_that_a_stranger_wrote_gets_a_sentence_or_an_answer(
    name: str, world: Path, command: Callable[..., Answer], limited: None
) -> None:
    door = DOORS[name]
    for each in INPUTS:
        if not is_tried(name, each):
            continue
        path = made(each, world, door.ending)
        answer = asked(door, path, command)
        path.unlink() if not path.is_dir() or path.is_symlink() else path.rmdir()
        assert answer.status in (0, 1, 2, 3), each
        if answer.status:
            assert answer.err.count("kernelsight: ") == 1 and answer.err.count("\n") <= 2, (each, answer.err)
            assert len(answer.err) < 4200, each
        assert SECRET not in answer.out + answer.err and "Traceback" not in answer.err, each
        assert "/tmp/tmp" not in answer.err, (each, "a temporary file of our own is named")
    assert not (world / "pwned").exists()


@pytest.mark.parametrize("name", DOORS)
def test_what_is_no_regular_file_is_refused_by_its_kind(
    name: str, world: Path, command: Callable[..., Answer], limited: None, in_time: None
) -> None:
    """Each door is reached: its sentence names the path, and says what stands there."""
    door = DOORS[name]
    for number, kind in enumerate(SPECIAL):
        path = special_file(world / f"special{number}{door.ending}", kind)
        answer = asked(door, path, command)
        if kind != "folder":
            assert answer.status == 2 and str(path) in answer.err, (kind, answer.err)
            assert SPECIAL[kind] in answer.err or "not a file" in answer.err, (kind, answer.err)
