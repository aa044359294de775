"""Limits that a neighbour setting removes: where CUDA graphs end below the batches that a scenario decodes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kernelsight.scenario.alternatives import graphs_end

if TYPE_CHECKING:
    from kernelsight.dataflow.session import Session

# of decode steps: fewer are no limit; and what they gain at the least
LEAST_SHARE, LEAST_FACTOR = 0.1, 1.05
LARGE_STEPS = """
with steps as (
  select tokens, weight
  from step_cost_uses
  join step_shapes using (deployment_id, step_shape_id)
  where deployment_id = '{deployment_id}' and part = 'tokens' and phase = 'decode'
)
select
  sum(weight) as steps,
  sum(weight) filter (where tokens > {largest}) as large,
  sum(weight * tokens) filter (where tokens > {largest}) / sum(weight) filter (where tokens > {largest}) as batch
from steps
"""
KERNELS = """
select sum(calls) as calls, sum(total_us) as total_us
from kernel_breakdown
where phase = 'decode' and family not in ('host', 'overlap')
"""


def cliff_of(session: Session, settings: dict[str, Any]) -> str | None:
    """Return the sentence on a session's only scenario where CUDA graphs end below its batches; None: they do not.

    ``settings``: of the deployment that decodes. The factor is that of a decode step of the mean of these batches, its
    kernels taking the mean of all decode steps.
    """
    from kernelsight.serving.engine.host import host_of, host_times

    largest = settings["graph_max_tokens"]
    if not largest or settings["num_speculative_tokens"]:
        return None
    deployment_id = settings["deployment_id"]
    (found,) = session.query(LARGE_STEPS.format(deployment_id=deployment_id, largest=largest)).to_pylist()
    if not found["large"] or found["large"] < LEAST_SHARE * found["steps"]:
        return None
    (kernels,) = session.query(KERNELS).to_pylist()
    overheads = {row["deployment_id"]: row for row in session.table("host_settings").to_pylist()}
    batch, gpu_us = round(found["batch"]), kernels["total_us"] / found["steps"]
    host = host_of(overheads[deployment_id], settings, round(kernels["calls"] / found["steps"]))
    now_us, then_us = (
        exposed_us + max(hidden_us, gpu_us)
        for hidden_us, exposed_us, _ in (
            host_times(batch, batch, 0, each) for each in (host, host._replace(graph_max_tokens=batch))
        )
    )
    if now_us < LEAST_FACTOR * then_us:
        return None
    share = f"{found['large'] / found['steps']:.0%} of the decode steps exceed"
    return graphs_end(largest, share, batch, "these", now_us / then_us)
