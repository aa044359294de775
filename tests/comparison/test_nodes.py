"""A comparison as nodes: computed on demand from what is given, several logs in one call, and what is drawn of it."""

from __future__ import annotations

import json

import numpy as np
import pytest

from kernelsight.comparison.comparison import TABLES
from kernelsight.errors import InvalidInput
from kernelsight.session import Session, connect

DEPLOYMENT = {"model": "qwen3-0.6b", "gpu": "l4"}


def requests(log_id: str, e2e_ms: float, n: int = 40) -> list[dict]:
    return [
        {"log_id": log_id, "request_id": i, "arrival_s": i / 4, "prompt_tokens": 64 + i, "output_tokens": 9}
        | {"e2e_ms": e2e_ms + i, "status": "ok"}
        for i in range(n)
    ]


@pytest.fixture(scope="module")
def session():
    with connect() as session:
        session.give("production_requests", [*requests("a", 40.0), *requests("b", 90.0)])
        shared = {"deployment": json.dumps(DEPLOYMENT), "fit": "none"}
        rows = [{"comparison_id": f"of {name}", "log_ids": [name], **shared} for name in ("a", "b")]
        session.give("comparisons", rows)
        yield session


def test_given_requests_and_a_row_of_comparisons_are_enough_for_every_table(session: Session) -> None:
    rows = session.query(
        "select comparison_id, count(*) as n, avg(measured_e2e_ms) as ms from prediction_vs_production group by all "
        "order by all"
    )
    assert rows.to_pylist() == [
        {"comparison_id": "of a", "n": 40, "ms": 59.5},
        {"comparison_id": "of b", "n": 40, "ms": 109.5},
    ]
    for name in TABLES:
        assert set(session.table(name)["comparison_id"].to_pylist()) <= {"of a", "of b"}
    verdicts = session.query("select comparison_id, sentence from comparison_findings where place = 0").to_pylist()
    assert [row["sentence"][:12] for row in verdicts] == ["Mean E2E is "] * 2


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"deployment": "qwen3"}, "comparisons has no JSON object in column deployment of 'of a'; give flags such as"),
        ({"log_ids": ["c"]}, "the log holds no requests with a prompt length"),
        ({"deployment": "{}"}, "^no model is given"),
    ],
)
def test_a_comparison_that_cannot_be_made_is_refused(session: Session, change: dict, words: str) -> None:
    with session.fork() as fork:
        fork.give("comparisons", [{"comparison_id": "of a", "deployment": json.dumps(DEPLOYMENT)} | change])
        with pytest.raises(InvalidInput, match=words):
            fork.table("miss_by_part")


def test_a_launch_line_is_kept_as_flags_alone(session: Session) -> None:
    with connect() as own:
        line = "vllm serve Qwen/Qwen3-0.6B --api-key hush --max-num-seqs 32"
        compared = own.compare(requests=requests("a", 40.0), deployment={"launch": line, "gpu": "l4"}, fit="none")
        ((kept,),) = compared.sql("select deployment from comparisons").fetchall()
    assert "hush" not in kept and json.loads(kept)["max_num_seqs"] == 32


def test_an_engine_that_slows_down_is_the_first_cause_and_is_not_fitted() -> None:
    dice = np.random.default_rng(2)
    sent = np.cumsum(dice.exponential(1 / 5.0, 400))
    rows = [
        {
            "arrival_s": float(at),
            "prompt_tokens": 100 + int(n),
            "output_tokens": 60 + int(n),
            "ttft_ms": 1.0,
            "e2e_ms": 9.0,
        }
        for at, n in zip(sent, dice.integers(0, 60, 400), strict=True)
    ]
    with connect() as own:
        plain = own.compare(requests=rows, deployment=DEPLOYMENT, fit="none")
        ours = plain.sql("select predicted_ttft_ms, predicted_e2e_ms from log_replays order by request_id").fetchall()
        for row, at, (ttft, e2e) in zip(rows, sent, ours, strict=True):
            row |= {"ttft_ms": ttft, "e2e_ms": ttft + (e2e - ttft) * (1.6 if at > 50.0 else 1.0)}
        compared = own.compare(requests=rows, deployment=DEPLOYMENT)
        cause = compared.summary["cause"]
        assert (cause["kind"], cause["from_s"]) == ("change", pytest.approx(50.0, abs=2.5))
        assert cause["value"] == pytest.approx(1.6, rel=0.3) and cause["share"] > 0.1
        assert compared.summary["fit"] == {} and compared.table("fitted_corrections").num_rows == 0
        assert compared.summary["verdict"].split("; ")[1].startswith("from ")
