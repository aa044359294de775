"""Signals that end a command, in this process."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from kernelsight.dataflow import signals
from kernelsight.dataflow.signals import ending_signals


@pytest.fixture(autouse=True)
def defaults() -> Iterator[None]:
    before = [signal.signal(number, signal.SIG_DFL) for number in signals.ENDING]
    yield
    for number, handler in zip(signals.ENDING, before, strict=True):
        signal.signal(number, handler)


def test_the_first_signal_counts_and_one_that_follows_at_once_is_the_same_wish() -> None:
    cleaned = False
    with ending_signals() as ended, pytest.raises(KeyboardInterrupt):
        assert ended.status(1) == 1
        try:
            signal.raise_signal(signal.SIGHUP)
        finally:
            signal.raise_signal(signal.SIGTERM)
            cleaned = True
    assert cleaned and ended.status(1) == 129 and ended.status(0) == 0


def test_a_signal_is_heard_again_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """Code that swallows the first exception must not make a process that only SIGKILL ends."""
    times = iter([10.0, 10.0 + signals.REPEAT_S])
    monkeypatch.setattr(signals.time, "monotonic", lambda: next(times))
    with ending_signals() as ended:
        for number in (signal.SIGHUP, signal.SIGTERM):
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(number)
    assert ended.status(1) == 143


def test_handlers_of_others_stay_and_ours_end_with_the_block() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup sets it
    with ending_signals():
        signal.raise_signal(signal.SIGHUP)
        assert callable(signal.getsignal(signal.SIGTERM))
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_another_thread_sets_no_handler() -> None:
    found = []

    def command() -> None:
        with ending_signals():
            found.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=command)
    thread.start()
    thread.join()
    assert found == [signal.SIG_DFL]


def test_a_query_that_never_ends_is_stopped() -> None:
    """DuckDB hears no signal while it computes an Arrow table: only SIGKILL ended such a command."""
    program = """
import os, signal, threading
from kernelsight.cli.main import main
from kernelsight.dataflow import session

signal.signal(signal.SIGINT, signal.default_int_handler)
fetch_rows, numbers = session.interruptible, [signal.SIGTERM, signal.SIGINT]

def interrupted(*query):
    threading.Timer(0.3, os.kill, (os.getpid(), numbers.pop(0))).start()
    return fetch_rows(*query)

session.interruptible = interrupted
while numbers:
    print(main(["sql", "select sum(range) from range(1000000000000000)"]), flush=True)
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert ended.stdout.split() == ["143", "1"], ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_signal_before_a_query_has_begun_stops_it_too() -> None:
    """DuckDB forgets an interrupt that comes before the query: the command waited for the query's end."""
    program = """
import os, signal, threading, time
from kernelsight.dataflow.databases import interruptible, open_database

signal.signal(signal.SIGINT, signal.default_int_handler)
database = open_database()

def fetch():
    time.sleep(1)
    return database.execute("select sum(range) from range(1000000000000000)").to_arrow_table()

threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
try:
    interruptible(database, fetch)
except KeyboardInterrupt:
    print("ended", flush=True)
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert ended.stdout == "ended\n", ended.stderr


def test_a_process_that_forks_after_a_query_can_ask_another() -> None:
    """The thread that asks queries for the main thread is not there after a fork."""
    program = """
import os
from kernelsight.dataflow.databases import open_database, rows_of
database = open_database()
rows_of(database, "select 1")
child = os.fork()
if child == 0:
    print(rows_of(database, "select 42 as answer").to_pylist(), flush=True)
    os._exit(0)
os.waitpid(child, 0)
"""
    answered = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert answered.stdout.strip() == "[{'answer': 42}]", answered.stderr
