"""The nodes of sweeps: highest steady rates of ``rate_questions``, and advice on settings of ``advice_questions``."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pyarrow as pa

from kernelsight.dataflow.graph import produces, reads

if TYPE_CHECKING:
    from kernelsight.dataflow.session import Session


@reads("step_costs", "deployment_faults", "scenario_summary", "scenario_intervals")
@produces("found_rates", "rate_statistics")
def rates(
    rate_questions: pa.Table, *, fork: Callable[[], Session], report: Callable[[str], None]
) -> dict[str, pa.Table]:
    """Search the highest request rate that keeps the objectives of each question, by simulations of several seeds."""
    from kernelsight.sweeps.find_rate import rate_tables

    return rate_tables(rate_questions, fork, report)


def setting_advice(
    advice_questions: pa.Table,
    scenarios: pa.Table,
    scenario_summary: pa.Table,
    deployment_settings: pa.Table,
    *,
    fork: Callable[[], Session],
) -> pa.Table:
    """Simulate each scenario with one setting changed, on the same requests: the changes that help."""
    from kernelsight.sweeps.advice import advice_rows

    return advice_rows(advice_questions, scenarios, scenario_summary, deployment_settings, fork)
