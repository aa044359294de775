"""Prior standard deviation of each kernel part's factor, from the prediction intervals of two typical steps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from kernelsight.comparison.measured_requests import Measured
from kernelsight.comparison.replay import KERNELS, NO_LOAD
from kernelsight.comparison.sample import part_of
from kernelsight.dataflow.session import Session
from kernelsight.forward.forward_step import whole_step
from kernelsight.scenario.plan import give_plan, plan_rows

DECODE, PREFILL = 0, 1
# requests of a typical decode step
SEQUENCES = 16
# standard deviation (of a logarithm) for parts whose kernels neither step launches; bounds for the others
UNKNOWN, LEAST, MOST = 0.1, 0.04, 0.4
# standard deviations from the median to the ends of 90 % of a normal distribution
WIDTH_90 = 3.29
_INTERVALS = """
select deployment_id, family, step_shape_id, sum(count * latency_us) as us,
       sum(count * latency_us * ln(latency_p95_us / latency_p05_us)) as weighted
from kernel_latencies
where latency_us > 0 and latency_p05_us > 0
group by all order by all
"""


def kernel_spread(session: Session, flags: Mapping[str, Any], measured: Measured) -> dict[str, float]:
    """Return the standard deviation of the logarithm of time of each of KERNELS.

    From the 90 % intervals of a decode and a prefill step at the median lengths of the log's requests.
    """
    context = int(np.median(measured.prompt_tokens) + np.median(measured.output_tokens) / 2)
    decode = whole_step(DECODE, SEQUENCES, max(context, 1), 0, 0, 0)
    prefill = whole_step(PREFILL, 0, 0, 1, max(int(np.median(measured.prompt_tokens)), 1), 0)
    with session.fork() as fork:
        plan = plan_rows(fork, [{**NO_LOAD, **flags}], origin="")
        give_plan(fork, plan.deployments_of(plan.planned), plan.planned)
        deployment_id = plan.planned[0]["deployment_id"]
        layout = next(row for row in fork.table("kv_layout").to_pylist() if row["deployment_id"] == deployment_id)
        window_context = min(context, layout["window_tokens"] or context)
        shapes = [{**decode, "decode_window_context": window_context}, {**prefill, "decode_window_context": None}]
        fork.give("step_shapes", [{"deployment_id": deployment_id, **shape} for shape in shapes])
        rows = [row for row in fork.query(_INTERVALS).to_pylist() if row["deployment_id"] == deployment_id]
    sums = {kernel: np.zeros(2) for kernel in KERNELS}
    for row in rows:
        kernel = part_of(row["family"], "decode" if row["step_shape_id"] == DECODE else "prefill")
        if kernel:
            sums[kernel] += row["us"], row["weighted"] / WIDTH_90
    return {
        kernel: float(np.clip(weighted / us, LEAST, MOST)) if us else UNKNOWN for kernel, (us, weighted) in sums.items()
    }
