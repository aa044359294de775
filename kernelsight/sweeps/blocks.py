"""Sweeps into a folder or at a URI: a worker makes the rows of a block of the grid, simulates and writes them.

Neither the rows nor the results pass through the process that leads the sweep: it holds the grid as it was given, and
the number of rows of each part.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from kernelsight.errors import InvalidInput
from kernelsight.scenario.flags import ALIASES
from kernelsight.scenario.objectives import PRICE
from kernelsight.scenario.plan import OF_LOAD_ALONE, plan_rows
from kernelsight.scenario.prices import priced
from kernelsight.scenario.scenario_rows import gpu_assumptions
from kernelsight.serving.costs.knots import FEW_DEPLOYMENTS
from kernelsight.sweeps.executors import Work
from kernelsight.sweeps.partitions import PART_REQUESTS, PART_SCENARIOS, PartitionServing, split
from kernelsight.sweeps.parts import Parts, digest_of
from kernelsight.sweeps.percentiles import missing_percentiles
from kernelsight.sweeps.sweep import (
    FILES,
    Execution,
    files_digests,
    given_to_workers,
    run,
    sweep_facts,
    with_flags,
    with_progress,
)

if TYPE_CHECKING:
    from kernelsight.dataflow.session import Session
    from kernelsight.scenario.grid import Grid

FULL_NAMES, SERVED = {"model", "speculative_model"}, "served"


class Question(NamedTuple):
    """What is asked of each row of a grid: objectives, prices by GPU, and ``slo``, the largest values of statistics."""

    goodput: Mapping[str, float]
    slo: Mapping[str, float]
    prices: Mapping[str, float]


class Swept(NamedTuple):
    """A finished sweep: its parts, their rows, and how many of them were served; ``assumed``: sentences on GPUs."""

    parts: Parts
    rows: int
    served: int
    assumed: list[str]


class BlockServing(NamedTuple):
    """Simulates the rows [start, stop) of a grid and writes them; as a function, it can be sent to others.

    ``models``: names of models by the paths that rows state; ``named``: flags that rows of the grid set.
    """

    grid: Grid
    question: Question
    serve: PartitionServing
    models: Mapping[str, str]
    named: frozenset[str]
    parts: Parts
    seed: str

    def key(self, block: tuple[int, int]) -> str:
        """Return the key of a block's part: a digest of what it answers, after its place."""
        return f"{block[0]:012d}-{digest_of([self.seed, *block])[:16]}"

    def __call__(self, block: tuple[int, int], session: Session) -> tuple[int, int]:
        """Return the numbers of rows and of served ones."""
        numbers, rows = self.grid.block(*block)
        rows = [{name: self.models.get(value, value) if name in FULL_NAMES else value for name, value in row.items()}
                for row in rows]  # fmt: skip
        with self.serve.fork(session) as fork:
            rows = priced(fork, rows, self.question.prices) if self.question.prices else rows
            plan = plan_rows(fork, rows, self.question.goodput, numbers=numbers)
            (partition,) = split(plan, math.inf, len(rows))
            summary = self.serve(partition, fork)
            table = with_flags(fork, plan, summary, self.question.slo, self.named, numbers)
        self.parts.write(self.key(block), table)
        return table.num_rows, table["status"].to_pylist().count(SERVED)


def sweep_into(session: Session, grid: Grid, parts: Parts, question: Question, execution: Execution) -> Swept:
    """Simulate the scenarios of a grid into parts, and say at the end which these are.

    InvalidInput: a row that cannot be used. Before anything is simulated, the rows in which a value occurs first are
    checked; what only other combinations break ends the sweep, whose parts stay. RunFailed: a part is not there.
    """
    with session.fork() as fork, parts.locked():
        numbers, rows = grid.samples()
        sampled = priced(fork, rows, question.prices) if question.prices else rows
        plan = plan_rows(fork, sampled, question.goodput, numbers=numbers)
        assumed = list(dict.fromkeys(text for row in rows for text in gpu_assumptions(fork, row)))
        # a worker may not have the files that define models: it has their tables
        models = {value: flags[name] for row, flags in zip(rows, plan.flags, strict=True) for name in FULL_NAMES
                  if isinstance(value := row.get(name), str) and os.path.exists(value)}  # fmt: skip
        named = {name for flags in plan.flags for name in flags}
        named |= {PRICE} if any(price is not None for price in plan.prices) else set()
        of_load = {name for name in grid.names if ALIASES.get(name, name) in OF_LOAD_ALONE}
        few = math.prod(len(grid.values(name)) for name in set(grid.names) - of_load) <= FEW_DEPLOYMENTS
        grid.sort(of_load if few else set(grid.names) - of_load)
        percentiles = missing_percentiles(fork, question.slo)
        paths = {flags[name] for flags in plan.flags for name in FILES if flags.get(name)}
        facts = sweep_facts(fork, execution, percentiles)
        facts |= {"grid_sha256": digest_of([grid.digest(), *question, sorted(models), files_digests(paths)])}
        facts |= {"requests_per_partition": execution.partition_requests or PART_REQUESTS}
        facts = parts.begin(facts, resume=execution.resume)
        most = facts["requests_per_partition"] // max(_requests(flags) for flags in plan.flags)
        rows_each = max(1, min(PART_SCENARIOS, most))
        serve = PartitionServing(
            given_to_workers(fork, execution), execution.threads, len(grid) == 1, percentiles, execution.intervals
        )
        serving = BlockServing(grid, question, serve, models, frozenset(named), parts, digest_of(facts))
        blocks = [(start, min(start + rows_each, len(grid))) for start in range(0, len(grid), rows_each)]
        keys, done = [serving.key(block) for block in blocks], parts.finished()
        waiting = [block for block, key in zip(blocks, keys, strict=True) if key not in done]
        served = run(fork, waiting, Work(serving, execution.connect), execution)
        for _ in with_progress(served, lambda at: waiting[at][1] - waiting[at][0], waiting, execution.report):
            pass
        return _ended(parts, keys, assumed)


def _requests(flags: Mapping[str, Any]) -> int:
    from kernelsight.serving.load.recorded_loads import read_trace

    return min(
        flags.get("num_prompts", math.inf), read_trace(flags["trace"]).num_rows if "trace" in flags else math.inf
    )


def _ended(parts: Parts, keys: list[str], assumed: list[str]) -> Swept:
    """Check that each scenario is there once, and write the manifest."""
    import pyarrow.compute as pc

    parts.require(keys)
    found = parts.read(keys, ["scenario_id", "status"])
    if pc.count_distinct(found["scenario_id"]).as_py() != found.num_rows:
        counts = pc.value_counts(found["scenario_id"])
        twice = counts.filter(pc.greater(counts.field("counts"), 1))[0]["values"]
        raise InvalidInput(f"rows of the grid are the same scenario, {twice}; keep one of them, in another folder.")
    parts.end(keys, found.num_rows)
    return Swept(parts, found.num_rows, pc.sum(pc.equal(found["status"], SERVED)).as_py(), assumed)
