"""Logs of several runs and replicas: sent at the same time where their clocks say so, else one after the other."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from kernelsight.comparison.compared_log import PAUSE_S, in_order_of_sending
from kernelsight.errors import InvalidInput
from kernelsight.logs import read_logs
from kernelsight.session import connect

NOON = 1_790_000_000.0


def written(folder: Path, name: str, *sent_s: float) -> Path:
    """Write a plain log of requests that were sent at these times."""
    rows = [f"{at},100,5,{10.0 + place},{50.0 + place}" for place, at in enumerate(sent_s)]
    path = folder / name
    path.write_text("\n".join(["arrival_s,prompt_tokens,output_tokens,ttft_ms,e2e_ms", *rows]) + "\n")
    return path


def order(tables: dict[str, pa.Table]) -> list[tuple[str, float]]:
    """Return log and time of each request, as they are replayed."""
    requests = in_order_of_sending(tables["production_requests"], tables["production_logs"])
    return list(zip(requests["log_id"].to_pylist(), requests["arrival_s"].to_pylist(), strict=True))


def test_clients_of_one_clock_that_overlap_are_replayed_together(tmp_path: Path) -> None:
    first = written(tmp_path, "a.csv", NOON, NOON + 4.0, NOON + 10.0)
    second = written(tmp_path, "b.csv", NOON + 3.0, NOON + 12.0)
    later = written(tmp_path, "c.csv", NOON + 5000.0)
    for files in ([first, second, later], [later, second, first]):
        tables = read_logs(files)
        a, b, c = (name for name in sorted(set(tables["production_requests"]["log_id"].to_pylist())))
        assert order(tables) == [(a, 0.0), (b, 3.0), (a, 4.0), (a, 10.0), (b, 12.0), (c, 12.0 + PAUSE_S)]
        assert (
            tables["log_faults"].filter(pa.compute.equal(tables["log_faults"]["rule"], "no_common_clock")).num_rows == 0
        )


def test_runs_without_a_common_clock_follow_one_another_and_it_is_said(tmp_path: Path) -> None:
    files = [written(tmp_path, "a.csv", 5.0, 9.0), written(tmp_path, "b.csv", 6.0, 7.0)]
    tables = read_logs(files)
    assert [at for _, at in order(tables)] == [0.0, 4.0, 4.0 + PAUSE_S, 5.0 + PAUSE_S]
    said = [row for row in tables["log_faults"].to_pylist() if row["rule"] == "no_common_clock"]
    assert [row["n"] for row in said] == [2, 2]
    alone = read_logs(files[0])["log_faults"]["rule"].to_pylist()
    assert "no_common_clock" not in alone


@pytest.mark.whole
def test_requests_of_more_replicas_than_stated_are_refused() -> None:
    rows = [
        {"arrival_s": place / 4, "prompt_tokens": 64, "output_tokens": 9, "e2e_ms": 40.0, "replica": "ab"[place % 2]}
        for place in range(120)
    ]
    one = {"model": "qwen3-0.6b", "gpu": "l4"}
    words = (
        r"the log holds requests of 2 replicas \(a, b\), and the deployment has 1; compare the requests of one replica"
        r" at a time, or state replicas 2\."
    )
    log = pa.Table.from_pylist(rows)
    with connect() as session:
        with pytest.raises(InvalidInput, match=words):
            session.compare(requests=log, deployment=one)
        found = session.compare(requests=log, deployment={**one, "data_parallel_size": 2}, fit="none")
        assert found.summary["requests"] == 120
