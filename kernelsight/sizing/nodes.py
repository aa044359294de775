"""The node of sizing: the cheapest deployments at a rate, for each row of ``size_questions``."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pyarrow as pa

from kernelsight.dataflow.graph import produces, reads

if TYPE_CHECKING:
    from kernelsight.dataflow.session import Session


@reads(
    *("step_costs", "deployment_faults", "deployment_tiers", "memory_plan", "resource_gains", "scenario_intervals"),
    *("kernel_latencies", "kernel_breakdown", "scenario_tiers", "scenario_evidence"),
)
@produces(
    *("size_answers", "sized_deployments", "size_statistics", "size_evidence", "unsized_deployments", "size_hours"),
)
def sizes(
    size_questions: pa.Table, *, fork: Callable[[], Session], report: Callable[[str], None]
) -> dict[str, pa.Table]:
    """Search GPUs, parallel sizes and settings for the cheapest deployment of each question, at steady rates."""
    from kernelsight.sizing.size_tables import size_tables

    return size_tables(size_questions, fork, report)
