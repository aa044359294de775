"""Energy of served scenarios: the loop's sums against kernels at knots, windows against the whole, what moves it."""

from __future__ import annotations

import numpy as np
import pytest

from kernelsight.session import connect

LOAD = {"num_prompts": 48, "input_len": 300, "output_len": 60, "max_concurrency": 12}
FLAGS = {"model": "qwen3-0.6b", "gpu": "l4", **LOAD}


@pytest.fixture(scope="module")
def run():
    with connect() as session:
        yield session.simulate(**FLAGS)


def test_the_loop_adds_up_the_energy_of_the_knots_that_it_pays(run):
    query = """
      select sum(weight * dynamic_energy_j) as joules
      from step_cost_uses join step_costs using (deployment_id, step_shape_id)
    """
    (summed,) = run.sql(query).to_arrow_table()["joules"].to_pylist()
    (served,) = run.table("replica_totals")["dynamic_energy_j"].to_pylist()
    assert served == pytest.approx(summed, rel=1e-9) and served > 0
    windows = sum(run.table("serving_windows")["dynamic_energy_j"].to_pylist())
    assert windows == pytest.approx(served, rel=1e-9)


def test_kernels_and_the_wait_for_the_host_are_the_energy_of_active_gpus(run):
    energy = run.table("scenario_energy").to_pylist()[0]
    power = next(row for row in run.table("gpu_power").to_pylist() if row["gpu"] == "l4")
    kernels = sum(run.table("kernel_breakdown")["energy_j"].to_pylist())
    host_s = run.table("scenario_summary")["host_exposed_s"][0].as_py()
    waiting = host_s * (power["idle_w"] + power["active_w"]) * energy["held_share"]
    assert kernels + waiting == pytest.approx(energy["active_energy_j"], rel=1e-4)


def test_windows_are_about_the_mean_and_never_above_the_limit(run):
    windows = run.table("power_over_time").to_pylist()
    summary = run.table("scenario_summary").to_pylist()[0]
    span = run.table("scenario_energy")["span_s"][0].as_py()
    # the limit holds in each window: what one leaves free, another cannot use
    assert 0.85 < sum(row["energy_j"] for row in windows) / span / summary["mean_power_w"] <= 1.0 + 1e-9
    assert max(row["power_w"] for row in windows) <= 72.0


def test_energy_per_token_and_request_are_power_over_rates(run):
    row = run.table("scenario_summary").to_pylist()[0]
    assert row["energy_per_output_token_j"] == pytest.approx(row["mean_power_w"] / row["output_throughput"])
    assert row["energy_per_request_j"] == pytest.approx(60 * row["energy_per_output_token_j"])
    assert row["mean_power_w_low"] < row["mean_power_w"] < row["mean_power_w_high"]
    assert row["carbon_per_million_tokens_g"] is None
    answer = run.summary
    assert answer["power_w"]["mean"] == row["mean_power_w"]
    assert answer["energy"]["j_per_output_token"] == row["energy_per_output_token_j"]


def test_a_summary_of_many_has_the_energy_of_each(run):
    with connect() as session:
        found = session.what_if([FLAGS, {**FLAGS, "max_concurrency": 2}, {**FLAGS, "power_limit": 40.0}])
        rows = {row["scenario_id"]: row for row in found.table("scenario_summary").to_pylist()}
        front = found.table("energy_front").to_pylist()
    alone = run.table("scenario_summary").to_pylist()[0]
    same = rows[alone["scenario_id"]]
    assert same["mean_power_w"] == pytest.approx(alone["mean_power_w"], rel=1e-12)
    limited = min(rows.values(), key=lambda row: row["mean_power_w"])
    assert limited["mean_power_w"] < 40.0 and limited["output_throughput"] < same["output_throughput"]
    assert front and {row["scenario_id"] for row in front} <= set(rows)


def test_servers_carbon_and_the_building_are_counted_where_they_are_stated():
    with connect() as session:
        plain, stated = (
            session.simulate(**FLAGS, **more).table("scenario_summary").to_pylist()[0]
            for more in ({}, {"host_power": 30, "pue": 1.2, "carbon_intensity": 400})
        )
    assert stated["mean_power_w"] == pytest.approx(plain["mean_power_w"] + 30)
    expected = stated["energy_per_output_token_j"] * 1e6 / 3.6e6 * 1.2 * 400
    assert stated["carbon_per_million_tokens_g"] == pytest.approx(expected)


def test_latencies_that_were_given_without_energy_leave_power_unknown(run):
    with connect() as session:
        latencies = run.table("kernel_latencies")
        place = latencies.column_names.index("energy_j")
        session.give("deployments", run.table("deployments"))
        session.give("scenarios", run.table("scenarios"))
        session.give("kernel_latencies", latencies.remove_column(place))
        row = session.table("scenario_summary").to_pylist()[0]
    assert row["mean_power_w"] is None and row["completed"] == 48 and np.isfinite(row["ttft_mean_ms"])
