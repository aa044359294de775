"""The node of kernel searches: each row of ``search_scenarios``, replayed on given measurements."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from kernelsight.dataflow.graph import produces

if TYPE_CHECKING:
    pass


@produces("kernel_forecasts", "search_decisions", "search_measurements", "search_rounds", "search_summary")
def searches(
    search_scenarios: pa.Table,
    kernel_candidates: pa.Table,
    kernel_measurements: pa.Table,
    *,
    wanted: frozenset[str],
) -> dict[str, Any]:
    """Search kernels, every scenario replayed on the measurements of its GPU."""
    from kernelsight.searching.replays import replayed

    return replayed(search_scenarios, kernel_candidates, kernel_measurements, wanted)
