"""A log that grows and a server's metrics, watched: windows, drift, restarts, and what is written."""

from __future__ import annotations

import http.server
import json
import math
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar, NamedTuple

import numpy as np
import pyarrow.parquet as pq
import pytest

from kernelsight.comparison import watch as watching
from kernelsight.comparison.log_replayer import LogReplayer
from kernelsight.comparison.replay import LOAD, Variant, conformed
from kernelsight.comparison.watch import Targets, Watch, counters_between, window_between
from kernelsight.comparison.watch_state import Drift, with_window
from kernelsight.errors import InvalidInput, RunFailed
from kernelsight.files.bounded_http import get_text
from kernelsight.files.budget import Budget
from kernelsight.session import Session
from tests.cli.conftest import run_command
from tests.logs.written import DATA

FLAGS = {"model": "qwen3-0.6b", "gpu": "l4"}
HEADER = "arrival_s,prompt_tokens,output_tokens,ttft_ms,e2e_ms\n"
EACH = 40


def lines(part: int, slow: float = 1.0) -> str:
    """Rows of one part of a log: a request each quarter of a second, of 250 ms."""
    rows = ((part * EACH + i) / 4 for i in range(EACH))
    return "".join(f"{at},64,9,20,{250 * slow}\n" for at in rows)


def expected(kept, due, flags, session):
    """Stands for the simulation: what is expected takes 250 ms."""
    rows = kept.rows[kept.compared : due]
    factor = float(np.median([row.e2e_ms for row in rows])) / 200.0
    figures = {"n": float(len(rows)), "log_factor": math.log(factor)}
    figures |= {f"{side}_mean": 250.0 for side in ("measured", "expected")}
    counts = {"requests": float(len(rows)), "failed": 0.0, "start_s": rows[0].sent_s, "end_s": rows[-1].sent_s}
    return {"e2e": figures}, counts


class _Found(NamedTuple):
    summary: dict


def watch(tmp_path: Path, session: Session | None = None) -> Watch:
    targets = Targets(tmp_path / "state.json", tmp_path / "out.prom", tmp_path / "history")
    return Watch(str(tmp_path / "log.csv"), FLAGS, session, lambda **asked: _Found({"causes": []}), targets)


def history(tmp_path: Path) -> list[dict]:
    files = sorted((tmp_path / "history").glob("*.parquet"))
    return [row for file in files for row in pq.read_table(file).to_pylist()]


@pytest.mark.parametrize("restarts", [False, True])
def test_drift_is_said_once_and_restarts_lose_and_double_nothing(tmp_path: Path, monkeypatch, restarts: bool) -> None:
    monkeypatch.setattr(watching, "window_of", expected)
    log, said, one = tmp_path / "log.csv", [], watch(tmp_path)
    log.write_text(HEADER)
    for part in range(9):
        with log.open("a") as file:
            file.write(lines(part, 1.5 if part in (5, 6, 7) else 1.0))
        said += [sentence for window in one.poll() for sentence in window.notes]
        assert one.poll() == [], "nothing was appended"
        one = watch(tmp_path) if restarts else one
    assert [sentence.split(":")[0] for sentence in said] == ["drift began at 50 s"]
    assert "E2E 1.5 times the usual" in said[0]
    rows = history(tmp_path)
    assert sum(row["requests"] for row in rows) == 9 * EACH - 1, (
        "all but the last, beside which others may be under way"
    )
    assert [row["window"] for row in rows] == list(range(9))
    assert "kernelsight_drift 1\n" in (tmp_path / "out.prom").read_text()
    assert f"kernelsight_requests_total {9 * EACH - 1}\n" in (tmp_path / "out.prom").read_text()


@pytest.mark.parametrize(
    ("factors", "events", "since_s"),
    [
        # two windows in a row begin a drift, which began with the first of them, and two usual ones end it
        ([1.0, 1.0, 1.0, 1.3, 1.3], {4: "begins"}, 3.0),
        ([1.0, 1.0, 1.0, 1.3, 1.0, 1.3, 1.0], {}, None),
        ([1.0, 1.0, 1.0, 1.3, 1.3, 1.0, 1.3, 1.0, 1.0], {4: "begins", 8: "ends"}, None),
        # below a tenth is no drift, and where windows differ more anyway, four times their usual deviation
        ([1.0, 1.0, 1.0, 1.09, 1.09, 1.13, 1.13], {6: "begins"}, 5.0),
        ([0.9, 1.1, 1.0, 1.3, 1.3, 1.3], {}, None),
        # however long a drift lasts, the usual level is that before it
        ([1.0, 1.0, 1.0, *[1.3] * 40, 1.0, 1.0], {4: "begins", 44: "ends"}, None),
    ],
)
def test_a_drift_is_of_windows_in_a_row(factors: list[float], events: dict[int, str], since_s: float | None) -> None:
    drift, found = Drift(), {}
    for number, factor in enumerate(factors):
        drift, event = with_window(drift, math.log(factor), float(number))
        found |= {number: event} if event else {}
    assert (found, drift.since) == (events, since_s)


def test_a_poll_that_was_cut_off_is_done_again(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(watching, "window_of", expected)
    (tmp_path / "log.csv").write_text(HEADER + lines(0))
    watch(tmp_path).poll()
    before = (tmp_path / "state.json").read_text()
    with (tmp_path / "log.csv").open("a") as file:
        file.write(lines(1))
    watch(tmp_path).poll()
    rows = history(tmp_path)
    (tmp_path / "state.json").write_text(before)  # killed after it had written the window
    watch(tmp_path).poll()
    assert history(tmp_path) == rows


def test_what_is_kept_is_bounded(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(watching, "window_of", expected)
    monkeypatch.setattr("kernelsight.comparison.watched_requests.MOST_KEPT", 50)
    one = watch(tmp_path)
    (tmp_path / "log.csv").write_text(HEADER + "".join(lines(part) for part in range(8)))
    one.poll()
    assert len(one.state.kept.rows) <= 50 and sum(row["requests"] for row in history(tmp_path)) == 8 * EACH


@pytest.mark.parametrize("row", ["x,y,z,1,2\n", "-1.0,64,9,20,250\n", "nan,64,9,20,250\n", "4,0,9,20,250\n"])
def test_lines_that_are_no_requests_are_counted_and_passed_over(tmp_path: Path, monkeypatch, row: str) -> None:
    monkeypatch.setattr(watching, "window_of", expected)
    log, one = tmp_path / "log.csv", watch(tmp_path)
    log.write_text(f"{HEADER}{lines(0)}{row}{lines(1)}")
    (window,) = one.poll()
    assert window.counts["requests"] == 2 * EACH
    if "nan" not in row:  # a request that was answered, but not known when it was sent, is none of a window
        assert window.notes[0].startswith(
            f"{log}: 1 of {2 * EACH + 1} lines cannot be used and are left out; line {EACH + 2}: "
        )
        assert one.state.totals["refused"] == 1.0
    assert not any(str(tmp_path) in note.replace(str(log), "") for note in window.notes)
    # and the next poll, or watch, goes on
    with log.open("a") as file:
        file.write(f"{row}{lines(2)}")
    assert watch(tmp_path).poll()[0].counts["requests"] == EACH


def test_requests_that_failed_are_failures_even_where_no_other_is_appended(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(watching, "window_of", expected)
    log, one = tmp_path / "log.csv", watch(tmp_path)
    header = HEADER.replace("\n", ",status\n")
    log.write_text(header + lines(0).replace("\n", ",ok\n"))
    one.poll()
    with log.open("a") as file:
        file.write("10.0,64,0,,,error\n")
    assert one.poll() == [] and one.state.totals["refused"] == 0.0 and one.state.kept.rows[-1].status == "error"


WRONG = [None, -1, {}, [], "x", float("inf"), [[[]]], True, 1.5, 2**70, {"a": 1}]


def places(tree: object, path: tuple = ()) -> Iterator[tuple]:
    """Every place in a tree of JSON."""
    yield path
    for name, value in tree.items() if isinstance(tree, dict) else enumerate(tree if isinstance(tree, list) else []):
        yield from places(value, (*path, name))


def test_a_state_with_any_other_value_is_refused_or_goes_on(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(watching, "window_of", expected)
    log, path = tmp_path / "log.csv", tmp_path / "state.json"
    log.write_text(HEADER + "".join(lines(part)[: 5 * 20] for part in range(2)))
    one = Watch(str(log), FLAGS, None, lambda **asked: _Found({"causes": []}), Targets(path))
    one.poll()
    sound, refused = path.read_text(), 0
    for place in places(json.loads(sound)):
        for wrong in WRONG:
            tree = {"it": json.loads(sound)}
            holder, last = tree, "it"
            for name in place:
                holder, last = holder[last], name
            holder[last] = wrong
            path.write_text(json.dumps(tree["it"]))
            try:
                Watch(str(log), FLAGS, None, one.compare, Targets(path)).poll()
            except InvalidInput as sentence:
                assert str(sentence).startswith(f"--state {path} ") and len(str(sentence)) < 300
                refused += 1
    assert refused > 500


def test_a_history_of_another_watch_is_not_overwritten(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(watching, "window_of", expected)
    log, folder = tmp_path / "log.csv", tmp_path / "history"
    log.write_text(HEADER + lines(0))
    without_state = Targets(history=folder)
    one = Watch(str(log), FLAGS, None, None, without_state)
    one.poll()
    before = (folder / "00000000.parquet").read_bytes()
    with pytest.raises(InvalidInput, match=r"holds 1 windows of an earlier watch, and window 0 would be overwritten"):
        Watch(str(log), FLAGS, None, None, without_state)
    other = tmp_path / "other.csv"
    other.write_text(HEADER + lines(3))
    with pytest.raises(InvalidInput, match="give --state FILE to continue a watch, or another folder"):
        Watch(str(other), FLAGS, None, None, Targets(tmp_path / "s.json", history=folder))
    # two watches that began together, and one whose state is of another log
    late = Watch(str(other), FLAGS, None, None, Targets(tmp_path / "s.json", history=tmp_path / "later"))
    (tmp_path / "later").mkdir()
    (tmp_path / "later" / "00000000.parquet").write_bytes(before)
    with pytest.raises(InvalidInput, match="00000000.parquet is a window of another watch"):
        late.poll()
    with pytest.raises(InvalidInput, match="would be overwritten"):
        Watch(str(other), FLAGS, None, None, Targets(tmp_path / "s.json", history=tmp_path / "later"))
    assert (folder / "00000000.parquet").read_bytes() == before == (tmp_path / "later/00000000.parquet").read_bytes()


def test_a_state_of_another_log_is_refused(tmp_path: Path, monkeypatch) -> None:
    watch(tmp_path)._save()
    with pytest.raises(InvalidInput, match="is of "):
        Watch("other.csv", FLAGS, None, None, Targets(tmp_path / "state.json"))


def test_windows_are_held_against_the_simulation(tmp_path: Path, session: Session) -> None:
    count = 120
    sent = np.arange(count) / 8.0
    columns = {"load_id": [LOAD] * count, "request_id": np.arange(count), "arrival_s": sent}
    load = conformed({**columns, "prompt_tokens": [300] * count, "output_tokens": [40] * count})
    (truth,) = LogReplayer(session, load).serve([Variant(FLAGS)], with_parts=False)
    rows = zip(sent, truth.ttft_ms, truth.e2e_ms, strict=True)
    (tmp_path / "log.csv").write_text(HEADER + "".join(f"{at},300,40,{a},{b * 1.2}\n" for at, a, b in rows))
    (window,) = watch(tmp_path, session).poll()
    assert math.exp(window.metrics["e2e"]["log_factor"]) == pytest.approx(1.2, rel=1e-3)
    assert window.metrics["ttft"]["measured_p90"] == pytest.approx(window.metrics["ttft"]["expected_p90"], rel=1e-3)
    text = (tmp_path / "out.prom").read_text()
    assert 'kernelsight_expected_tpot_seconds{quantile="0.99"}' in text and "kernelsight_drift 0\n" in text


class _Server(http.server.BaseHTTPRequestHandler):
    """Answers the texts of two scrapes in turn, a redirect, or more than is read."""

    texts: ClassVar[list[str]] = [(DATA / f"metrics_{name}.txt").read_text() for name in ("before", "after")]

    def do_GET(self) -> None:
        if self.path == "/moved":
            self.send_response(302)
            self.send_header("Location", "/metrics")
            self.end_headers()
            return
        text = self.texts.pop(0) if self.path == "/metrics" and len(self.texts) > 1 else self.texts[0]
        self.send_response(200)
        self.end_headers()
        self.wfile.write(text.encode() * (50 if self.path.startswith("/large") else 1))

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def address() -> Iterator[str]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Server)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_answers_are_bounded_and_redirects_not_followed(address: str) -> None:
    with pytest.raises(RunFailed, match="HTTP 302, a redirect, which is not followed"):
        get_text(f"{address}/moved", Budget())
    with pytest.raises(RunFailed, match="answered more than"):
        get_text(f"{address}/large?token=secret", Budget(bytes=1 << 15))
    with pytest.raises(RunFailed) as refused:
        get_text("http://127.0.0.1:9/metrics?api_key=secret", Budget())
    assert "secret" not in str(refused.value) and "gave no answer" in str(refused.value)


def test_a_server_is_watched_by_its_counters(address: str, tmp_path: Path, session: Session) -> None:
    times = iter([100.0, 160.0, 220.0])
    one = Watch(f"{address}/metrics", FLAGS, session, None, Targets(tmp_path / "state.json"), now=lambda: next(times))
    assert one.poll() == []
    found = one.poll()
    own = found[0].metrics
    assert own["ttft"]["measured_mean"] > 0 < own["ttft"]["expected_mean"] and found[0].counts["end_s"] == 160.0
    assert one.poll() == [], "no request in this interval"


def scrape(*engines: dict[str, float]) -> str:
    """Return a text of ``/metrics`` of some engines; names without vLLM's prefix."""
    lines = [
        f'vllm:{name}{{engine="{number}"}} {value}'
        for number, values in enumerate(engines)
        for name, value in values.items()
    ]
    return "\n".join(["# TYPE kept untyped", *lines]) + "\n"


def engine(requests: int, cached: int, ttft_s: float, itl_s: float) -> dict[str, float]:
    """Return counters of an engine after requests of 300 prompt tokens, and of 41 output tokens of ``itl_s`` each."""
    counts = {"prompt_tokens": 300 * requests, "generation_tokens": 41 * requests, "prefix_cache_hits": cached}
    spans = {
        "time_to_first_token": (requests, ttft_s),
        "inter_token_latency": (40 * requests, itl_s),
        "e2e_request_latency": (requests, ttft_s + 40 * itl_s),
    }
    return {f"{name}_total": float(value) for name, value in counts.items()} | {
        f"{name}_seconds_{end}": count * (seconds if end == "sum" else 1.0)
        for name, (count, seconds) in spans.items()
        for end in ("sum", "count")
    }


def test_means_of_a_server_are_those_of_all_its_requests() -> None:
    """30 requests of one engine and 10 of another: a mean over both lies nearer that of the first."""
    before = scrape(engine(0, 0, 0.1, 0.01), engine(0, 0, 0.5, 0.03))
    found = counters_between(before, scrape(engine(30, 6000, 0.1, 0.01), engine(10, 0, 0.5, 0.03)))
    assert (found["prompt_tokens"], found["cached_tokens"], found["output_tokens"]) == (12000.0, 6000.0, 1640.0)
    assert (found["first_tokens"], found["finished"]) == (40.0, 40.0)
    assert (found["ttft"], found["tpot"]) == (pytest.approx(200.0), pytest.approx(15.0))
    assert found["e2e"] == pytest.approx(200.0 + 40 * 15.0)


def test_the_load_of_a_server_is_what_it_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    """60 began and 50 ended in a minute: prompts less what the cache held, and outputs of those that ended."""
    loads = []

    def serve(replayer: LogReplayer, *_: object, **__: object) -> list[object]:
        loads.append(replayer._load)
        raise RuntimeError

    monkeypatch.setattr(LogReplayer, "serve", serve)
    counters = {"first_tokens": 60.0, "finished": 50.0, "prompt_tokens": 18000.0, "cached_tokens": 6000.0}
    counters |= {"output_tokens": 2000.0, "ttft": 100.0}
    with pytest.raises(RuntimeError):
        window_between(counters, 60.0, FLAGS, None)
    (load,) = loads
    assert set(load["prompt_tokens"].to_pylist()) == {200} and set(load["output_tokens"].to_pylist()) == {40}
    assert load.num_rows == 200 and load["arrival_s"][199].as_py() == pytest.approx(200.0, rel=0.3)


def test_the_command_goes_on_until_it_is_ended(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(watching, "window_of", expected)
    (tmp_path / "log.csv").write_text(HEADER + lines(0))
    slept = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        raise KeyboardInterrupt

    monkeypatch.setattr("kernelsight.cli.compare.time.sleep", sleep)
    words = ["compare", "--log", tmp_path / "log.csv", "--model", "qwen3-0.6b", "--gpu", "l4"]
    answer = run_command(*words, "--watch", "7", "--history", tmp_path / "history")
    assert slept == [7.0] and "40 requests  E2E 250 / 250 ms" in answer.out
    assert "give --watch SECONDS too" in run_command(*words, "--state", tmp_path / "s.json").err
    assert "above 0" in run_command(*words, "--watch", "0").err
