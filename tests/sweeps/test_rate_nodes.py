"""Highest rates as a node: questions in a table, with objectives of their own, answered in SQL."""

from __future__ import annotations

import pytest

from kernelsight.errors import InvalidInput, KernelSightError
from kernelsight.scenario.stated_flags import object_text
from kernelsight.session import connect

ROW = {"model": "qwen3-0.6b", "gpu": "l4", "input_len": 256, "output_len": 8, "max_num_seqs": 16}


def question(name: str, most_ms: float, **change: object) -> dict:
    flags = {key: value for key, value in (ROW | change).items() if key != "tolerance"}
    slo = [{"statistic": "ttft_p95_ms", "most_ms": most_ms}]
    return {"question_id": name, "flags": object_text(flags), "slo": slo, "tolerance": change.get("tolerance")}


@pytest.mark.whole
def test_questions_with_objectives_of_their_own_are_answered_in_one_call() -> None:
    with connect() as session:
        asked = [("strict", 60.0, {"tolerance": 0.1}), ("none", 1.0, {}), ("loose", 400.0, {"price_per_gpu_hour": 0.7})]
        session.give("rate_questions", [question(name, most, **change) for name, most, change in asked])
        rows = session.sql(
            "select question_id, max_request_rate, status, value_ms, value_ms <= most_ms, meets_slo, "
            "cost_per_million_tokens is not null from found_rates left join rate_statistics using (question_id)"
        ).fetchall()
        strict, none, loose = sorted(rows, key=lambda row: ["strict", "none", "loose"].index(row[0]))
        assert none[1] is None and none[3] is None and none[2].startswith("no rate keeps the objectives")
        assert 0 < strict[1] < loose[1] and (strict[4], strict[5], strict[6]) == (True, True, False)
        assert (loose[2], loose[4], loose[5], loose[6]) == ("served", True, True, True)
        found = session.find_rates([ROW], {"ttft_p95_ms": 400.0})
        assert found["max_request_rate"].to_pylist() == [loose[1]]
        assert found["ttft_p95_ms"].to_pylist() == [loose[3]] and "cost_per_million_tokens" not in found.column_names
        drawn = session.explain("found_rates")
        assert drawn == "found_rates: available, nothing to run."


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"request_rate": 3.0}, "row 1 of the grid: --find-rate varies request_rate; remove it"),
        ({"gpu": "l44"}, "unknown GPU 'l44'"),
    ],
)
def test_a_question_without_an_answer_is_refused(change: dict, words: str) -> None:
    with connect() as session, pytest.raises(KernelSightError, match=words):
        session.give("rate_questions", [question("a", 60.0, **change)])
        session.table("found_rates")


def test_a_launch_line_is_kept_as_flags_alone() -> None:
    from kernelsight.sweeps.rate_questions import RateGrid, question_rows

    line = {"launch": "vllm serve Qwen/Qwen3-0.6B --api-key hush --max-num-seqs 32", "gpu": "l4"}
    (row,) = question_rows([line], RateGrid({"ttft_p95_ms": 400.0}, {}))
    assert "hush" not in row["flags"] and '"max_num_seqs": 32' in row["flags"]
    with pytest.raises(InvalidInput, match="^row 1 of the grid: "):
        question_rows([{"launch": "nothing that is known"}], RateGrid({"ttft_p95_ms": 400.0}, {}))
