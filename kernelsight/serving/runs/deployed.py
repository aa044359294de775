"""One deployment without a load: its engine, its rows of settings, and step costs up to the engine's own limits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kernelsight.errors import InvalidInput
from kernelsight.scenario.refusals import refuse_faults
from kernelsight.scenario.scenario_rows import deployment_rows, gpu_assumptions, normalise, prefill_flags, resolve_names
from kernelsight.serving.engine.replica import Pool
from kernelsight.serving.runs.pools import cost_tables
from kernelsight.serving.runs.shared_prefixes import shares_prefixes
from kernelsight.serving.runs.simulation_inputs import SimulationInputs, by_key, laid_out, pool_of

if TYPE_CHECKING:
    from kernelsight.dataflow.session import Session


class Deployed(NamedTuple):
    """A deployment that can run, with what the scheduler's loop needs of it."""

    pool: Pool
    settings: dict[str, Any]  # its row of deployment_settings
    plan: dict[str, Any]  # of memory_plan
    host: dict[str, Any]  # of host_settings
    ends: tuple[np.ndarray, np.ndarray]  # packed step costs at p05 and p95
    power: dict[str, Any]  # its GPU's row of gpu_power
    assumed: list[str]  # a sentence for each assumption

    @property
    def shares_prefixes(self) -> bool:
        """Whether prompts that begin with the same tokens share KV blocks."""
        return shares_prefixes(self.settings, self.plan)


def deploy(session: Session, flags: Mapping[str, Any]) -> Deployed:
    """Return the deployment that ``flags`` describe; the session's tables stay as they are.

    InvalidInput: flags that contradict each other, a deployment that cannot run, or P/D disaggregation.
    """
    with session.fork() as fork:
        by_name = normalise(flags)
        assumed = gpu_assumptions(fork, by_name)
        by_name = resolve_names(fork, by_name)
        if prefill_flags(by_name) is not None:
            raise InvalidInput("P/D disaggregation is no single engine; remove prefill_replicas, or use simulate.")
        rows = deployment_rows(by_name)
        key = rows[0]["deployment_id"]
        fork.give("deployments", rows)
        refuse_faults(fork)
        costs, shapes, settings = (fork.table(name) for name in ("step_costs", "step_shapes", "deployment_settings"))
        models = fork.table("models")
        deployments = by_key(settings, "deployment_id")
        inputs = SimulationInputs(
            scenarios=[], requests=shapes, waits={}, columns={}, spans={}, deployments=deployments,
            plans=by_key(fork.table("memory_plan"), "deployment_id"),
            hosts=by_key(fork.table("host_settings"), "deployment_id"), links={}, tiers={},
            layers=dict(zip(models["model"].to_pylist(), models["layer_count"].to_pylist(), strict=True)),
            costs=laid_out(costs, shapes, settings, deployments, deployments), scorers={},
        )  # fmt: skip
        deployment_costs, deployment_shapes = (
            table.filter(pc.equal(table["deployment_id"], key)) for table in (costs, shapes)
        )
        ends = (
            cost_tables(_at_end(deployment_costs, f"gpu_{end}_us"), deployment_shapes, deployments[key]).packed.values
            for end in ("p05", "p95")
        )
        assumed += [row["sentence"] for row in fork.table("assumptions").to_pylist()]
        pool, deployment = pool_of(inputs, key), deployments[key]
        power = by_key(fork.table("gpu_power"), "gpu")[deployment["gpu"]]
        return Deployed(pool, deployment, inputs.plans[key], inputs.hosts[key], tuple(ends), power, assumed)


def _at_end(costs: pa.Table, column: str) -> pa.Table:
    """Return step costs with ``column``, an end of their interval, as their GPU time."""
    return costs.set_column(costs.column_names.index("gpu_us"), "gpu_us", costs[column])
