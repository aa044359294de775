"""The deployments of a sizing's search in their sessions: facts on each, which are read when they are needed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kernelsight.scenario.plan import Plan
from kernelsight.sizing.candidates import Candidate

if TYPE_CHECKING:
    from kernelsight.dataflow.session import Session


class OpenedDeployments:
    """Forked sessions with the deployments of a search and their plans, open until ``close``."""

    def __init__(self) -> None:
        self.forks: list[Session] = []
        self.plans: list[Plan] = []
        self._facts: dict[str, dict[str, dict[str, Any]]] = {}
        self._read: dict[str, int] = {}

    def close(self) -> None:
        """Free the tables of all deployments."""
        for fork in self.forks:
            fork.close()

    def tier_of(self, candidate: Candidate) -> dict[str, Any]:
        """Return the row of ``deployment_tiers`` of a deployment."""
        return self._fact_of(candidate, "deployment_tiers")

    def weights_bytes(self, candidate: Candidate) -> float:
        """Return the bytes of the weights that one replica of a deployment loads, on all of its GPUs."""
        row = self.place_of(candidate)[1].deployments[candidate.deployment_id]
        return float(self._fact_of(candidate, "memory_plan")["weights_bytes"] * row["tp"] * row["pp"] * row["dp"])

    def place_of(self, candidate: Candidate) -> tuple[Session, Plan]:
        """Return the fork with a deployment's scenario, and its plan; disaggregated, it may share the deployment."""
        for fork, plan in zip(self.forks, self.plans, strict=True):
            if any(row["scenario_id"] == candidate.scenario_id for row in plan.planned):
                return fork, plan
        raise KeyError(candidate.scenario_id)

    def _fact_of(self, candidate: Candidate, table: str) -> dict[str, Any]:
        """Return a deployment's row of a table, which is read from each fork once."""
        rows = self._facts.setdefault(table, {})
        for fork in self.forks[self._read.get(table, 0) :]:
            rows |= {row["deployment_id"]: row for row in fork.table(table).to_pylist()}
        self._read[table] = len(self.forks)
        return rows[candidate.deployment_id]
