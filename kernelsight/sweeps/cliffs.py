"""Performance cliffs that a setting removes: CUDA graphs that end below the batch sizes that a scenario decodes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kernelsight.number_format import percent
from kernelsight.scenario.alternatives import graphs_end

if TYPE_CHECKING:
    import numpy as np

    from kernelsight.dataflow.session import Session

# least share of decode steps above the largest graph, and least factor by which wider graphs shorten them
LEAST_SHARE, LEAST_FACTOR = 0.1, 1.05


def cliff_of(session: Session, settings: dict[str, Any]) -> str | None:
    """Return the sentence on a session's only scenario where CUDA graphs end below its batch sizes; None: they do not.

    ``settings``: of the decoding deployment. The factor in the sentence is for a decode step with the mean of these
    batch sizes, whose kernels take the mean time of all decode steps.
    """
    from kernelsight.serving.engine.host import host_of, host_times

    largest = settings["graph_max_tokens"]
    if not largest or settings["num_speculative_tokens"]:
        return None
    deployment_id = settings["deployment_id"]
    tokens, weight = _decode_steps(session, deployment_id)
    steps, large = float(weight.sum()), float(weight[tokens > largest].sum())
    if not large or large < LEAST_SHARE * steps:
        return None
    kernels = [
        row
        for row in session.table("kernel_breakdown").to_pylist()
        if row["phase"] == "decode" and row["family"] not in ("host", "overlap")
    ]
    calls, total_us = (sum(row[name] for row in kernels) for name in ("calls", "total_us"))
    overheads = {row["deployment_id"]: row for row in session.table("host_settings").to_pylist()}
    batch, gpu_us = round(float((weight * tokens)[tokens > largest].sum()) / large), total_us / steps
    host = host_of(overheads[deployment_id], settings, round(calls / steps))
    now_us, with_graph_us = (
        exposed_us + max(hidden_us, gpu_us)
        for hidden_us, exposed_us, _ in (
            host_times(batch, batch, 0, graph_host) for graph_host in (host, host._replace(graph_max_tokens=batch))
        )
    )
    if now_us < LEAST_FACTOR * with_graph_us:
        return None
    steps_above = f"{percent(large / steps)} of the decode steps exceed"
    return graphs_end(largest, steps_above, batch, "these", now_us / with_graph_us)


def _decode_steps(session: Session, deployment_id: str) -> tuple[np.ndarray, np.ndarray]:
    """Return tokens and weights of the step shapes between which a deployment's decode steps are interpolated."""
    import pyarrow.compute as pc

    shapes, uses = (
        rows.filter(pc.equal(rows["deployment_id"], deployment_id))
        for rows in (session.table("step_shapes"), session.table("step_cost_uses"))
    )
    shapes = shapes.filter(pc.equal(shapes["part"], "tokens"))
    uses = uses.filter(pc.equal(uses["phase"], "decode"))
    shape_index = pc.index_in(uses["step_shape_id"], shapes["step_shape_id"].combine_chunks())
    is_known = pc.is_valid(shape_index)
    tokens = shapes["tokens"].take(shape_index.filter(is_known)).to_numpy()
    return tokens, uses["weight"].filter(is_known).to_numpy()
