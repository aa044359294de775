"""Labels of runs weigh what was served: the same share from the loop, from uses of knots, and by component."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow.compute as pc
import pytest

from kernelsight.session import Session, connect
from tests.asked import give_plan

LOAD = {"request_rate": 5.0, "num_prompts": 30, "input_len": 700, "output_len": 40}
ROWS = [
    {"model": "llama-3.1-8b", "gpu": "h100_sxm"},
    {"model": "llama-3.1-8b", "gpu": "h100_sxm", "request_rate": 1.0},
    # experts that no sweep of the GPU ran in this format
    {"model": "gpt-oss-20b", "gpu": "a100_sxm", "tp": 2},
    {"model": "qwen3-30b-a3b", "gpu": "h100_sxm", "tp": 1, "dp": 2, "enable_expert_parallel": True},
    {"model": "llama-3.1-8b", "gpu": "h100_sxm", "pp": 2},
    {"model": "llama-3.1-8b", "gpu": "l4"},
    {"model": "llama-3.1-8b", "gpu": "h100_sxm", "tier": "roofline"},
]


@pytest.fixture(scope="module")
def served() -> Iterator[Session]:
    with connect() as session:
        give_plan(session, [{**LOAD, **row} for row in ROWS])
        yield session


def by_scenario(session: Session, table: str) -> dict[str, list[dict]]:
    rows: dict[str, list[dict]] = {}
    for row in session.table(table).to_pylist():
        rows.setdefault(row["scenario_id"], []).append(row)
    return rows


def test_a_summary_alone_has_the_labels_of_a_run_with_details(served: Session) -> None:
    with served.fork() as fork:
        alone = fork.table("scenario_summary").select(["scenario_id", "tier", "measured_share"]).to_pylist()
    with served.fork() as fork:
        fork.compute("scenario_summary", "step_cost_uses")
        assert fork.table("scenario_summary").select(["scenario_id", "tier", "measured_share"]).to_pylist() == alone
    assert {row["tier"] for row in alone} == {"target-measured", "gpu-measured", "cross-generation", "roofline"}
    assert all((row["tier"] == "target-measured") == (row["measured_share"] >= 0.8) for row in alone)


def test_the_measured_share_is_that_of_the_costs_that_were_used(served: Session) -> None:
    served.compute("scenario_summary", "step_cost_uses", "scenario_evidence")
    totals, uses = by_scenario(served, "replica_totals"), by_scenario(served, "step_cost_uses")
    costs = {(row["deployment_id"], row["step_shape_id"]): row for row in served.table("step_costs").to_pylist()}
    evidence = by_scenario(served, "scenario_evidence")
    for row in served.table("scenario_tiers").to_pylist():
        name = row["scenario_id"]
        used = [(use["weight"], costs[use["deployment_id"], use["step_shape_id"]]) for use in uses[name]]
        gpu_us, measured_us = (sum(weight * cost[part] for weight, cost in used) for part in ("gpu_us", "measured_us"))
        assert sum(total["gpu_ns"] for total in totals[name]) / 1e3 == pytest.approx(gpu_us, rel=1e-6)
        assert sum(total["measured_ns"] for total in totals[name]) / 1e3 == pytest.approx(measured_us, rel=1e-6)
        assert row["measured_share"] == pytest.approx(measured_us / gpu_us, rel=1e-6)
        kernels = [each for each in evidence[name] if each["component"] != "host"]
        assert sum(each["gpu_share"] for each in kernels) == pytest.approx(1.0)
        by_component = sum(each["gpu_share"] * each["measured_share"] for each in kernels)
        assert by_component == pytest.approx(row["measured_share"], rel=1e-6)


def test_a_label_does_not_rest_on_knots_that_were_not_served(served: Session) -> None:
    """A deployment reaches as far as its longest load: the share of a scenario stays when another joins it."""
    row = {**LOAD, **ROWS[2]}
    shares = []
    for others in ([], [{**row, "input_len": 30_000, "num_prompts": 400}]):
        with served.fork() as fork:
            name, *_ = give_plan(fork, [row, *others])
            tiers = fork.table("scenario_tiers")
            own = tiers.filter(pc.equal(tiers["scenario_id"], name))
            shares.append(
                (own["measured_share"][0].as_py(), fork.table("deployment_tiers")["measured_share"][0].as_py())
            )
    (alone, over_few), (together, over_many) = shares
    assert together == pytest.approx(alone, abs=1e-3)
    assert abs(over_many - over_few) > 0.01
