"""The highest rate that keeps objectives: against a dense scan, with rows that keep none or cannot run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kernelsight.errors import InvalidInput
from kernelsight.scenario.objectives import cheapest, meets_slo
from kernelsight.session import Session
from kernelsight.sweeps.find_rate import HIGHEST_RATE, find_rates
from tests.asked import sweep

from .conftest import SMALL

LOAD = {"num_prompts": 150, "input_len": 300, "output_len": 12}
SLO = {"ttft_p99_ms": 120.0, "tpot_p99_ms": 40.0}


def test_against_a_dense_scan(session: Session):
    rows = [SMALL | LOAD | {"gpu": gpu, "tp": tp} for gpu in ("l4", "h100_sxm") for tp in (1, 2)]
    found = find_rates(session, rows, SLO, tolerance=0.02).to_pylist()
    for row, answer in zip(rows, found, strict=True):
        assert answer["status"] == "served" and answer["meets_slo"]
        best = answer["max_request_rate"]
        scan = [best * 1.02 ** (step / 2) for step in range(-60, 61)]
        dense = sweep(session, [row | {"request_rate": rate} for rate in scan])
        kept = dict(zip(dense["request_rate"].to_pylist(), meets_slo(dense, SLO).to_pylist(), strict=True))
        # seen to be kept at the rate itself, and somewhere within the tolerance above it not to be
        assert kept[best]
        assert not all(kept[rate] for rate in scan if best < rate <= best * 1.0201 * 1.02)
        # the mean rate is not kept or broken by chance far from there
        assert all(kept[rate] for rate in scan if rate < best / 1.3)
        assert not any(kept[rate] for rate in scan if rate > best * 1.3)


def test_rows_that_keep_none_all_or_cannot_run(session: Session):
    rows = [SMALL | LOAD, SMALL | LOAD | {"tp": 3}, SMALL | LOAD | {"num_prompts": 1, "gpu": "h100_sxm"}]
    alone = sweep(session, [row | {"max_concurrency": 1} for row in rows]).to_pylist()
    first = {row["gpu"]: row["ttft_p50_ms"] for row in alone if row["status"] == "served"}
    assert first["h100_sxm"] < first["l4"]
    none, fault, every = find_rates(session, rows, {"ttft_p99_ms": sum(first.values()) / 2}).to_pylist()
    assert (none["max_request_rate"], none["status"]) == (None, "no rate keeps the objectives")
    assert none["ttft_p99_ms"] is None and none["meets_slo"] is False
    assert fault["max_request_rate"] is None and "not divisible by tensor-parallel size 3" in fault["status"]
    assert every["max_request_rate"] >= HIGHEST_RATE


def test_the_cheapest_at_a_rate(session: Session):
    rows = [SMALL | LOAD | {"gpu": "l4", "tp": tp, "price_per_gpu_hour": 0.8} for tp in (1, 2)]
    found = find_rates(session, rows, SLO)
    rates = found["max_request_rate"].to_pylist()
    asked = 3.5 * max(rates)
    prices = [-(-asked // rate) * gpus * 0.8 for rate, gpus in zip(rates, (1, 2), strict=True)]
    best = cheapest(found, asked)
    assert best["price_per_hour"] == pytest.approx(min(prices))
    assert best["instances"] * best["max_request_rate"] >= asked


@pytest.mark.parametrize("name", ["request_rate", "max_concurrency", "trace"])
def test_rows_state_no_load_of_their_own(session: Session, name: str):
    with pytest.raises(InvalidInput) as caught:
        find_rates(session, [SMALL | LOAD, SMALL | LOAD | {name: 3}], SLO)
    assert str(caught.value) == f"row 2 of the grid: --find-rate varies {name}; remove it."


def test_the_command(command: Any, tmp_path: Path):
    grid = tmp_path / "grid.json"
    grid.write_text(json.dumps(SMALL | LOAD | {"tp": [1, 2], "price_per_gpu_hour": 1}))
    words = ("sweep", grid, "--find-rate", "--slo", "ttft_p99:120", "--at-rate", "50", "-o", tmp_path / "rates.csv")
    status, out, err = command(*words, "--format", "json")
    answer = json.loads(out)
    assert (status, err, answer["scenarios"]) == (0, "", 2)
    assert answer["cheapest"]["instances"] * answer["cheapest"]["max_request_rate"] >= 50
    assert len((tmp_path / "rates.csv").read_text().splitlines()) == 3
