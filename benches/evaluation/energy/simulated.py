"""Simulated power and energy of measured closed loops, over the windows in which the loop is saturated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from kernelsight.evaluation.runs.campaigns import FULL_WINDOWS, full_throughputs
from kernelsight.evaluation.runs.recipes import flags_of, is_prose
from kernelsight.evaluation.runs.simulate_runs import partitions, plan_runs, with_host
from kernelsight.laboratory.energy.fit import Constants
from kernelsight.scenario.plan import give_plan

if TYPE_CHECKING:
    from kernelsight.dataflow.session import Session

FULL_QUERY = f"""
with full_windows as ({FULL_WINDOWS}),
powers as (
  select scenario_id, sum(power.energy_j) / sum(power.end_s - power.start_s) as power_w
  from power_over_time as power
  join full_windows using (scenario_id, "window")
  group by scenario_id
)
select scenario_id, coalesce(powers.power_w, mean_power_w) as power_w, e2e_mean_ms,
       output_throughput / request_throughput as output_tokens
from scenario_summary
left join powers using (scenario_id)
where status = 'served'
"""


class Simulated(NamedTuple):
    """Power of all GPUs of each run, W, and energy per output token, J, of the saturated loop; NaN: not served."""

    power_w: np.ndarray
    joules_per_token: np.ndarray


def simulated(session: Session, runs: Sequence[Mapping[str, Any]], constants: Constants) -> Simulated:
    """Return the simulated power and energy of runs; ``runs``: of ``measured_runs``, ``constants``: of power."""
    recipes = session.table("recipes").to_pylist()
    planned = plan_runs(session, [flags_of(run, recipes)[0] for run in runs])
    prose = {
        deployment_row["deployment_id"]
        for run, plan in zip(runs, planned, strict=True)
        for deployment_row in plan.deployments
        if is_prose(run)
    }
    rows_by_scenario: dict[str, dict[str, Any]] = {}
    full_by_scenario: dict[str, float] = {}
    with session.fork() as session_with_constants:
        session_with_constants.progress = None
        session_with_constants.give(
            "energy_constants", rows_of(session_with_constants.table("energy_constants").to_pylist(), constants)
        )
        for part in partitions(planned):
            with session_with_constants.fork() as fork:
                give_plan(fork, part.deployments, part.scenarios)
                host = with_host(fork.table("host_settings"), lambda row: None, prose)
                fork.give("host_settings", host, trusted=True)
                rows_by_scenario |= {row["scenario_id"]: row for row in fork.query(FULL_QUERY).to_pylist()}
                full_by_scenario |= full_throughputs(fork)
    rows = [rows_by_scenario.get(plan.scenario["scenario_id"], {}) if plan.scenario else {} for plan in planned]
    power = np.array([row.get("power_w", np.nan) for row in rows], float)
    e2e_s = np.array([row.get("e2e_mean_ms", np.nan) for row in rows], float) / 1e3
    tokens = np.array([row.get("output_tokens", np.nan) for row in rows], float)
    # a loop that is never saturated, as its KV cache is too small: users each get their tokens within one E2E time
    tokens_per_s = np.array([run["max_concurrency"] for run in runs]) * tokens / e2e_s
    full_tokens_per_s = [
        full_by_scenario.get(plan.scenario["scenario_id"]) if plan.scenario else None for plan in planned
    ]
    tokens_per_s = np.where(
        [deployment_row is None for deployment_row in full_tokens_per_s],
        tokens_per_s,
        np.array(full_tokens_per_s, float),
    )
    return Simulated(power, power / tokens_per_s)


def rows_of(rows: Sequence[Mapping[str, Any]], constants: Constants) -> list[dict[str, Any]]:
    """Return rows of ``energy_constants`` with the fitted values; constants that are not fitted stay as they are."""
    common = {name.removesuffix("_w"): value for name, value in constants.common.items()}
    unchanged = [
        dict(row) | ({"value": common[row["constant"]]} if row["constant"] in common else {})
        for row in rows
        if row["constant"] != "active"
    ]
    source = {"basis": "fitted", "source": next(row["source"] for row in rows if row["constant"] == "memory")}
    active = constants.active | {"*": float(np.mean(list(constants.active.values())))}
    return [
        *unchanged,
        *({"architecture": name, "constant": "active", "value": value, **source} for name, value in active.items()),
    ]
