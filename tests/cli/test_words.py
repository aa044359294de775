"""Words that no verb takes, and what holds for all verbs: exit statuses, pipes, full disks, Ctrl-C."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kernelsight.cli.main import main
from kernelsight.scenario.flags import FLAGS

ROOT = Path(__file__).resolve().parents[2]
START = (sys.executable, "-m", "kernelsight")
MANY = ("simulate", "--model", "qwen3-0.6b", "--gpu", "l4", "--request-rate", "1e5", "--isl", "100", "--osl", "100")


@pytest.mark.parametrize("words", [(), ("predict",), ("calibrate",), ("calibrate", "fit")])
def test_help_of_a_verb_is_what_its_flag_shows(words, command):
    answer = command("help", *words)
    assert answer.status == 0 and answer == command(*words, "--help")
    assert answer.out.startswith(" ".join(("usage: kernelsight", *words)))


def test_help_has_everyday_flags_and_help_all_has_every_flag(command, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    short, whole = (command("simulate", how).out for how in ("--help", "--help-all"))
    assert len(short.splitlines()) <= 120
    of_grids = {name for name, flag in FLAGS.items() if flag.options[-1] not in whole}
    assert of_grids == {name for name in FLAGS if name.startswith("goodput") or "expert_parallel_size" in name}
    for flag in FLAGS.values():
        assert (f"  {flag.options[0]}" in short) == flag.everyday
    hidden = whole.count("\n  -") - short.count("\n  -")
    assert short.endswith(f"\n--help-all shows {hidden} more flags.\n")


def test_version(command):
    from kernelsight import __version__

    assert command("--version").out == f"kernelsight {__version__}\n"


def test_a_reader_that_stops_is_no_error():
    listing = subprocess.Popen(
        [*START, "tables", "--format", "json"], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    listing.stdout.read(10)
    listing.stdout.close()
    assert (listing.wait(60), listing.stderr.read()) == (0, b"")
    listing.stderr.close()


def test_a_full_disk_behind_stdout_is_one_sentence():
    with open("/dev/full", "w") as full:
        found = subprocess.run([*START, "tables"], cwd=ROOT, stdout=full, stderr=subprocess.PIPE, text=True)
    assert found.returncode == 1
    assert found.stderr == "kernelsight: the output could not be written: No space left on device.\n"


def test_a_closed_stdout_is_no_error(tmp_path):
    words = f"{sys.executable} -m kernelsight tables fabrics -o {tmp_path / 'fabrics.csv'} >&-"
    found = subprocess.run(words, shell=True, cwd=ROOT, stderr=subprocess.PIPE, text=True)
    assert (found.returncode, found.stderr) == (0, "")
    assert (tmp_path / "fabrics.csv").read_text().startswith("column,type")


def test_letters_that_stdout_cannot_spell_are_replaced():
    plain = {**os.environ, "PYTHONIOENCODING": "ascii"}
    found = subprocess.run([*START, "sql", "select '→' as arrow"], cwd=ROOT, env=plain, capture_output=True, text=True)
    assert (found.returncode, found.stderr) == (0, "")
    assert found.stdout.splitlines()[-1] == "?"


@pytest.fixture
def small_files() -> Iterator[None]:
    """Let this process write no file of more than a megabyte."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize(("ending", "count"), [(".duckdb", 10), (".json", 5000)])
@pytest.mark.whole
def test_a_disk_that_fills_loses_no_answer_and_leaves_no_half_file(
    ending, count, saved_run, small_files, command, tmp_path
):  # saved_run: compiled by now
    target = tmp_path / f"run{ending}"
    found = command(*MANY, "--num-prompts", count, "-o", target)
    assert found.status == 1, found.err
    assert [line.partition(" could not be written: ")[0] for line in sentences(found.err)] == [f"kernelsight: {target}"]
    assert "requests completed" in found.out
    assert list(tmp_path.iterdir()) == []


def sentences(err: str) -> list[str]:
    """Return the lines of stderr but for how long a slow machine has simulated."""
    return [line for line in err.splitlines() if not line.startswith("simulating ")]


def worked_s(process: int) -> float:
    """Return the CPU seconds of a running process (Linux: fields 14 and 15 of proc_pid_stat(5)); inf once it ended."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return float("inf")
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@pytest.mark.parametrize(
    ("moment", "number", "status"),
    [
        ("while it serves", signal.SIGTERM, 143),
        ("while the file is written", signal.SIGINT, 1),
    ],
)
def test_a_signal_stops_with_one_sentence_and_no_half_file(moment, number, status, saved_run, tmp_path):
    target = tmp_path / "run.duckdb"
    # requests to serve for long, or short ones whose rows take seconds to write
    load = ("2000000", "--osl", "100") if moment == "while it serves" else ("50000", "--osl", "1")
    words = [*START, *MANY, "--num-prompts", *load, "-o", str(target)]
    serving = subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    # by its own clock, so that a busy machine does not interrupt the interpreter's start
    while (
        serving.poll() is None
        and worked_s(serving.pid) < (2 if moment == "while it serves" else 60)
        and not any(tmp_path.iterdir())
    ):
        time.sleep(0.01)
    serving.send_signal(number)
    out, err = serving.communicate(timeout=120)
    assert (serving.returncode, out) == (status, ""), err
    assert sentences(err) == ["kernelsight: interrupted; no partial file was written."]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129), (signal.SIGINT, 1)])
def test_what_schedulers_and_closed_terminals_send_is_a_ctrl_c(number, status, refusal, monkeypatch):
    import kernelsight.cli.tables

    monkeypatch.setattr(kernelsight.cli.tables, "run", lambda arguments: signal.raise_signal(number))
    # who runs the tests may ignore it, as nohup and shells without job control do
    before = signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    try:
        assert refusal("tables", status=status) == "interrupted; no partial file was written."
    finally:
        signal.signal(number, before)


def test_a_library_that_is_interrupted_in_code_of_its_own_changes_no_status(tmp_path) -> None:
    """CPython ends a module by SIGINT where an interruption left code that was run by its C interface."""
    lines = [
        "import ctypes, signal, sys",
        "from kernelsight.cli import tables",
        "from kernelsight.cli.main import main",
    ]
    lines += ["def run(arguments):", "    ctypes.pythonapi.PyRun_SimpleString(b'raise KeyboardInterrupt')"]
    lines += ["    signal.raise_signal(signal.SIGTERM)", "tables.run = run", "sys.exit(main(['tables']))"]
    (tmp_path / "interrupted.py").write_text("\n".join(lines))
    words = [sys.executable, "-m", "interrupted"]
    found = subprocess.run(words, cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(ROOT)}, stderr=-1, check=False)
    assert found.returncode == 143


def test_a_fault_of_the_program_itself_is_not_hidden(monkeypatch):
    import kernelsight.cli.tables

    def broken(arguments: object) -> None:
        raise RuntimeError("a fault of ours")

    monkeypatch.setattr(kernelsight.cli.tables, "run", broken)
    with pytest.raises(RuntimeError, match="a fault of ours"):
        main(["tables"])


def test_a_full_memory_is_one_sentence(refusal, monkeypatch):
    import kernelsight.cli.tables

    def full(arguments: object) -> None:
        raise MemoryError

    monkeypatch.setattr(kernelsight.cli.tables, "run", full)
    assert refusal("tables", status=1) == "out of memory; request fewer rows at once."
