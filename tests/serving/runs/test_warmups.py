"""Inter-token gaps of warm-ups are in no metric: counts and means are those of the measured requests."""

from __future__ import annotations

from typing import Any

import pytest

from kernelsight.session import Session

FLAGS = {"model": "qwen3-0.6b", "gpu": "l4", "num_prompts": 12, "input_len": 200, "output_len": 9}
DEPLOYMENTS: list[dict[str, Any]] = [
    {},
    {"data_parallel_size": 2},
    {"pipeline_parallel_size": 2},
    {"prefill_replicas": 1, "decode_replicas": 1},
    {"async_scheduling": False},
    {"engine": "sglang"},
]


def test_gaps_are_those_of_measured_requests(session: Session) -> None:
    loads = ({"max_concurrency": 3}, {"request_rate": 40.0})
    rows = [FLAGS | deployment | load | {"num_warmups": 5} for deployment in DEPLOYMENTS for load in loads]
    found = session.what_if(rows)
    counted = dict(found.sql("select scenario_id, sum(gaps)::bigint from itl_histogram group by all").fetchall())
    gaps = FLAGS["num_prompts"] * (FLAGS["output_len"] - 1)
    assert counted == dict.fromkeys(found.scenarios, gaps) and len(counted) == len(rows)
    for row in found.summary.to_pylist():
        # all outputs are as long, so that the mean over gaps is the mean over requests
        assert row["itl_mean_ms"] == pytest.approx(row["tpot_mean_ms"], rel=1e-6), row
