"""Times of sending that a client did not write: from the rule by which it sends."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kernelsight.errors import InvalidInput
from kernelsight.logs.read_logs import read_logs
from kernelsight.logs.send_times import DRAWN, RULE, times_of_sending
from tests.logs.written import DATA


def result(tmp_path: Path, name: str, **changed) -> Path:
    """Return a result that a client wrote, without its times of sending and with other words of how it sent."""
    words, _ = json.JSONDecoder().raw_decode((DATA / name).read_text())
    words.pop("start_times", None)
    path = tmp_path / "run.json"
    path.write_text(json.dumps(words | changed))
    return path


@pytest.mark.parametrize("name", ["vllm_bench.json", "sglang_bench.jsonl"])
def test_a_closed_loop_sends_when_a_request_ends(tmp_path: Path, name: str) -> None:
    tables = read_logs(result(tmp_path, name, request_rate="inf", max_concurrency=2))
    rows = tables["production_requests"].to_pylist()
    assert {row["sent_from"] for row in rows} == {RULE}
    in_flight = [
        sum(other["sent_s"] < row["sent_s"] < other["sent_s"] + (other["e2e_ms"] or 0.0) / 1e3 for other in rows)
        for row in rows
    ]
    assert max(in_flight) == 1, "the request that ends makes place, so that one other is in flight"
    assert rows[0]["sent_s"] == rows[1]["sent_s"] == 0.0 < rows[-1]["sent_s"]
    assert "sent_by_rule" in {row["rule"] for row in tables["log_faults"].to_pylist()}


def test_a_rate_is_drawn_and_says_so(tmp_path: Path) -> None:
    tables = read_logs(result(tmp_path, "sglang_bench.jsonl", request_rate=4.0, max_concurrency=None))
    rows = tables["production_requests"]
    assert set(rows["sent_from"].to_pylist()) == {DRAWN} and rows["sent_s"].to_pylist() == sorted(
        rows["sent_s"].to_pylist()
    )
    sent = times_of_sending({"request_rate": 4.0, "burstiness": 1e5}, [1.0] * 1000)
    assert sent is not None and sent.seconds[-1] == pytest.approx(250.0, rel=0.01)
    assert [b - a for a, b in zip(sent.seconds, sent.seconds[1:], strict=False)] == pytest.approx(
        [0.25] * 999, rel=0.05
    )


def test_a_client_that_follows_a_trace_leaves_times_unknown(tmp_path: Path) -> None:
    rows = read_logs(result(tmp_path, "sglang_bench.jsonl", request_rate="trace"))["production_requests"]
    assert rows["sent_s"].null_count == rows.num_rows and rows["sent_from"].null_count == rows.num_rows


@pytest.mark.parametrize("wrong", [{}, {"request_rate": -1.0}, {"request_rate": "inf", "max_concurrency": "8"}])
def test_a_rule_that_is_not_stated_is_not_guessed(wrong: dict) -> None:
    assert times_of_sending(wrong, [1.0]) is None


def test_a_table_of_other_names_gets_its_columns_proposed(tmp_path: Path) -> None:
    path = tmp_path / "own.csv"
    path.write_text("ts,in_tok,out_tok,first_token_s,total (ms)\n" + "1,100,10,0.05,90\n" * 3)
    with pytest.raises(InvalidInput) as refused:
        read_logs(path)
    line = str(refused.value).split("--columns ")[1]
    assert (
        line == "arrival_s=ts prompt_tokens=in_tok output_tokens=out_tok 'ttft_ms=first_token_s[s]' 'e2e_ms=total (ms)'"
    )
    words = dict(word.strip("'").split("=", 1) for word in line.replace("total (ms)", "total_(ms)").split())
    words["e2e_ms"] = "total (ms)"
    row = read_logs(path, columns=words)["production_requests"].to_pylist()[0]
    assert (row["ttft_ms"], row["e2e_ms"], row["prompt_tokens"]) == (50.0, 90.0, 100)


def test_a_rate_within_chance_is_not_noted(tmp_path: Path) -> None:
    words, _ = json.JSONDecoder().raw_decode((DATA / "vllm_bench.json").read_text())
    count = len(words["ttfts"])

    def rules(rate: float, n: int) -> set[str]:
        times = [at / 10.0 for at in range(n)]
        lists = {
            name: (value * n)[:n] for name, value in words.items() if isinstance(value, list) and len(value) == count
        }
        path = tmp_path / f"{rate}_{n}.json"
        path.write_text(json.dumps(words | lists | {"start_times": times, "request_rate": rate, "burstiness": 1.0}))
        return {row["rule"] for row in read_logs(path)["log_faults"].to_pylist()}

    assert "rate_not_reached" not in rules(10.4, 900), "4 % is 1.2 standard errors of 900 gaps"
    assert "rate_not_reached" in rules(11.4, 900)
