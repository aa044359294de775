"""Gradients of a scenario's metric by facts of its GPU: rows of ``scenario_sensitivities``, with units."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import pyarrow.compute as pc

from kernelsight.errors import InvalidInput, unknown

if TYPE_CHECKING:
    from kernelsight.dataflow.session import Session


class Gradient(NamedTuple):
    """One derivative: 1 % more of the fact makes the metric ``elasticity`` % larger.

    ``value``: the metric; ``at``: the fact, of the GPU that decodes; ``derivative``: d metric / d fact, in their units.
    """

    metric: str
    fact: str
    elasticity: float
    derivative: float
    value: float
    at: float
    method: str


def gradients(session: Session, metric: str, fact: str | None) -> Gradient | list[Gradient]:
    """Return the derivative of a metric by a fact, or without one by each fact of the GPU, the largest first.

    UnknownName: no such metric or fact. InvalidInput: the session has not exactly one scenario.
    """
    scenarios = session.table("scenarios") if "scenarios" in session.available() else None
    if scenarios is None or scenarios.num_rows != 1:
        count = 0 if scenarios is None else scenarios.num_rows
        raise InvalidInput(
            f"a gradient is of one scenario, and this session holds {count}; give the flags of one, or read "
            "scenario_sensitivities, which holds them all."
        )
    session.compute("scenario_summary", "scenario_sensitivities")
    table = session.table("scenario_sensitivities")
    metrics = dict.fromkeys(table["metric"].to_pylist())
    if metric not in metrics:
        raise unknown("metric", metric, metrics, "Metrics of scenario_sensitivities have derivatives.")
    rows = table.filter(pc.equal(table["metric"], metric)).to_pylist()
    if fact is not None and fact not in {row["fact"] for row in rows}:
        raise unknown("fact", fact, [row["fact"] for row in rows], "Facts are columns of gpus that this GPU states.")
    value = session.table("scenario_summary")[metric][0].as_py()
    deployments = session.table("deployment_settings")
    row_index = deployments["deployment_id"].to_pylist().index(scenarios["deployment_id"][0].as_py())
    gpus = session.table("gpus")
    gpu = gpus.slice(gpus["gpu"].to_pylist().index(deployments["gpu"][row_index].as_py()), 1).to_pylist()[0]
    derivatives = []
    for row in rows:
        fact_value = gpu[row["fact"]]
        slope = row["elasticity"] * value / fact_value if fact_value else 0.0
        derivatives.append(Gradient(metric, row["fact"], row["elasticity"], slope, value, fact_value, row["method"]))
    derivatives.sort(key=lambda gradient: (-abs(gradient.elasticity), gradient.fact))
    return derivatives if fact is None else next(gradient for gradient in derivatives if gradient.fact == fact)
