"""The highest steady rate: kept by longer runs of other seeds, with rows that keep none or cannot run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from kernelsight.errors import InvalidInput
from kernelsight.scenario.objectives import cheapest, meets_slo
from kernelsight.session import Session
from kernelsight.sweeps.rate_questions import find_rates
from tests.asked import sweep

from .conftest import SMALL

# what a deployment served at a rate is served once for all questions
pytestmark = pytest.mark.usefixtures("kept_trials")

LOAD = {"num_prompts": 150, "input_len": 300, "output_len": 12}
SLO = {"ttft_p99_ms": 120.0, "tpot_p99_ms": 40.0}


ROWS = [
    *(SMALL | LOAD | {"gpu": "l4", "tp": tp, "price_per_gpu_hour": 0.8} for tp in (1, 2)),
    SMALL | LOAD | {"gpu": "h100_sxm"},
]


@pytest.fixture(scope="module")
def found(session: Session) -> pa.Table:
    """The rates of ``ROWS``."""
    return find_rates(session, ROWS, SLO)


def served_at(session: Session, rates: list[float], seeds: range, num_prompts: list[int]) -> list[bool]:
    """Return whether the objectives hold in a run of each seed of each of ``ROWS``."""
    loads = zip(ROWS, rates, num_prompts, strict=True)
    rows = [row | {"request_rate": rate, "num_prompts": count} for row, rate, count in loads]
    return meets_slo(sweep(session, [row | {"seed": seed} for row in rows for seed in seeds]), SLO).to_pylist()


@pytest.mark.whole
def test_longer_runs_of_other_seeds_keep_what_was_found(session: Session, found: pa.Table):
    answers = found.to_pylist()
    for answer in answers:
        assert answer["status"] == "served" and answer["meets_slo"] and answer["steady"]
        assert answer["rate_low"] <= answer["max_request_rate"] <= answer["rate_high"]
        assert answer["num_prompts"] >= 1000 and answer["ttft_p99_ms"] <= SLO["ttft_p99_ms"]
    longer = [10 * answer["num_prompts"] for answer in answers]
    kept = served_at(session, [answer["max_request_rate"] for answer in answers], range(11, 16), longer)
    assert sum(kept) >= 0.9 * len(kept)
    # and not far from there they do not
    assert not any(served_at(session, [answer["rate_high"] * 1.25 for answer in answers], range(11, 13), longer))


@pytest.mark.whole
def test_the_horizon_grows_with_the_rate(session: Session):
    row = SMALL | {"gpu": "h100_sxm", "max_num_seqs": 128, "num_prompts": 150, "input_len": 30, "output_len": 60}
    (answer,) = find_rates(session, [row], {"tpot_mean_ms": 12.0}).to_pylist()
    counted_s = answer["num_prompts"] / answer["max_request_rate"] * 20 / 24
    assert counted_s >= 20 * answer["e2e_mean_ms"] / 1e3 * 0.95 and answer["steady"]
    # more than any search begins with
    assert answer["num_prompts"] > 4000


@pytest.mark.whole
def test_other_seeds_find_rates_within_the_range(session: Session, found: pa.Table):
    others = find_rates(session, [ROWS[0] | {"seed": seed} for seed in (1, 2)], SLO).to_pylist()
    rows = [*found.slice(0, 1).to_pylist(), *others]
    rates = [row["max_request_rate"] for row in rows]
    assert max(rates) < 1.1 * min(rates)
    assert all(row["rate_low"] <= max(rates) and row["rate_high"] >= min(rates) for row in rows)


def test_rows_that_keep_none_or_cannot_run(session: Session):
    # the first token waits for the GPU, not for the host
    long = SMALL | LOAD | {"model": "llama-3.1-8b", "input_len": 900}
    rows = [long, long | {"tp": 3}, long | {"gpu": "h100_sxm"}]
    alone = sweep(session, [row | {"max_concurrency": 1, "num_prompts": 8} for row in rows]).to_pylist()
    first = {row["gpu"]: row["ttft_p50_ms"] for row in alone if row["status"] == "served"}
    assert first["h100_sxm"] < first["l4"]
    none, fault, some = find_rates(session, rows, {"ttft_p99_ms": sum(first.values()) / 2}).to_pylist()
    assert none["max_request_rate"] is None and none["steady"] is None
    assert none["status"].startswith("no rate keeps the objectives: TTFT p99 of ")
    assert none["status"].endswith(f"requests alone take {first['l4']:.3g} ms")
    assert none["ttft_p99_ms"] is None and none["meets_slo"] is False
    assert fault["max_request_rate"] is None and "not divisible by tensor-parallel size 3" in fault["status"]
    assert some["max_request_rate"] > 0


@pytest.mark.whole
def test_rows_that_end_at_one_scenario_stay_two(session: Session):
    rows = [SMALL | LOAD | {"num_prompts": count, "seed": 2**53} for count in (100, 120)]
    found = find_rates(session, rows, SLO).to_pylist()
    assert [row["num_prompts"] for row in found] == [found[0]["num_prompts"]] * 2
    assert found[0]["max_request_rate"] == found[1]["max_request_rate"] > 0


def test_prompts_longer_than_the_engine_takes_are_named(session: Session):
    row = SMALL | LOAD | {"input_len_cv": 1.0, "length_distribution": "lognormal"}
    (none,) = find_rates(session, [row], {"tpot_p90_ms": 40.0}).to_pylist()
    assert none["status"] == "no rate keeps the objectives: the engine rejects requests of this length"


@pytest.mark.whole
def test_conversations_have_rates(session: Session):
    row = SMALL | LOAD | {"num_turns": 3, "think_time_s": 0.1, "input_len": 60}
    (found,) = find_rates(session, [row], {"tpot_p90_ms": 9.5}).to_pylist()
    assert found["steady"] and found["tpot_p90_ms"] <= 9.5


def test_the_cheapest_at_a_rate(found: pa.Table):
    found = found.slice(0, 2)
    rates = found["max_request_rate"].to_pylist()
    asked = 3.5 * max(rates)
    prices = [-(-asked // rate) * gpus * 0.8 for rate, gpus in zip(rates, (1, 2), strict=True)]
    best = cheapest(found, asked)
    assert best["price_per_hour"] == pytest.approx(min(prices))
    assert best["instances"] * best["max_request_rate"] >= asked
    tokens = asked * best["total_throughput"] / best["request_throughput"]
    assert best["cost_per_million_tokens"] == pytest.approx(best["price_per_hour"] / tokens / 3600 * 1e6)


@pytest.mark.parametrize("name", ["request_rate", "max_concurrency", "trace"])
def test_rows_state_no_load_of_their_own(session: Session, name: str):
    with pytest.raises(InvalidInput) as caught:
        find_rates(session, [SMALL | LOAD, SMALL | LOAD | {name: 3}], SLO)
    assert str(caught.value) == f"row 2 of the grid: --find-rate varies {name}; remove it."


def test_the_command(command: Any, tmp_path: Path):
    grid = tmp_path / "grid.json"
    grid.write_text(json.dumps(SMALL | LOAD | {"tp": [1, 2], "price_per_gpu_hour": 1}))
    words = ("sweep", grid, "--find-rate", "--slo", "ttft_p90:150", "--at-rate", "50", "-o", tmp_path / "rates.csv")
    status, out, err = command(*words, "--format", "json")
    answer = json.loads(out)
    assert (status, err, answer["scenarios"]) == (0, "", 2)
    assert answer["cheapest"]["instances"] * answer["cheapest"]["max_request_rate"] >= 50
    assert len((tmp_path / "rates.csv").read_text().splitlines()) == 3
    status, out, _ = command(*words)
    assert status == 0 and "lowest cost per token for 50 requests/s: " in out and " low " in out


@pytest.mark.whole
def test_prices_are_stated_once(command: Any, tmp_path: Path):
    grid = tmp_path / "grid.json"
    grid.write_text(json.dumps(SMALL | LOAD | {"gpu": ["l4", "h100_sxm"]}))
    words = ("sweep", grid, "--find-rate", "--slo", "ttft_p90:150", "--at-rate", "50", "--format", "json")
    status, out, _ = command(*words, "--prices", "l4=0.5,H100=30")
    answer = json.loads(out)
    assert status == 0 and answer["cheapest"]["gpu"] == "l4"
    assert {row["gpu"]: row["price_per_gpu_hour"] for row in answer["rows"]} == {"l4": 0.5, "h100_sxm": 30.0}
    status, out, _ = command(*words)  # without prices, by GPUs
    fewest = json.loads(out)["cheapest"]
    needed = [-(-50 // row["max_request_rate"]) * row["gpus"] for row in answer["rows"]]
    assert fewest["gpus_needed"] == min(needed) and "price_per_hour" not in fewest
    status, out, err = command(*words, "--prices", "l4=0.5")
    wanted = "kernelsight: --prices has no price for h100_sxm; add h100_sxm=PRICE, or leave --prices out.\n"
    assert (status, out, err) == (2, "", wanted)


@pytest.mark.whole
def test_the_cheapest_is_that_of_a_load(command: Any, tmp_path: Path):
    grid = tmp_path / "grid.json"
    grid.write_text(json.dumps(SMALL | LOAD | {"gpu": ["l4", "h100_sxm"], "input_len": [100, 300]}))
    words = ("sweep", grid, "--find-rate", "--slo", "ttft_p90:150", "--at-rate", "50", "--prices", "l4=0.5,H100=30")
    status, out, _ = command(*words, "--format", "json")
    answer = json.loads(out)
    by_load = {row["input_len"]: row["cheapest"] for row in answer["cheapest_by_load"]}
    assert status == 0 and set(by_load) == {100, 300}
    for length, found in by_load.items():
        own = [row for row in answer["rows"] if row["input_len"] == length and row["max_request_rate"]]
        costs = [-(-50 // row["max_request_rate"]) * row["gpus"] * row["price_per_gpu_hour"] for row in own]
        assert found["input_len"] == length and found["price_per_hour"] == pytest.approx(min(costs))
    status, out, _ = command(*words)
    head = next(line for line in out.splitlines() if "highest req/s" in line)
    # the objective's own statistic, and nothing that a search of rates settles itself
    assert "TTFT p90 ms" in head and not {"num_prompts", "price_per_gpu_hour", "steady", "meets SLO"} & set(
        head.split("  ")
    )
    assert all(f"input_len {length}: lowest cost per token for 50 requests/s: " in out for length in (100, 300))
