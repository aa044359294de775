"""Replays many searches: every row of ``search_scenarios``, on the recorded measurements of its GPU.

``give_searches`` gives a session these rows, and the search spaces of files.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from kernelsight.catalog.tables import contracts
from kernelsight.dataflow.blas import one_blas_thread
from kernelsight.dataflow.contract import as_arrow
from kernelsight.dataflow.python_nodes import produces
from kernelsight.dataflow.rows import python_rows
from kernelsight.errors import InvalidInput
from kernelsight.searching.arrays import OK, Measured, SpaceArrays, space_arrays
from kernelsight.searching.history import SAMPLES, Outcome
from kernelsight.searching.rounds import GIVEN, Measure
from kernelsight.searching.scenarios import as_spelled, check, check_in, scenario_rows
from kernelsight.searching.search_tables import TABLES, SearchRows, search_rows
from kernelsight.searching.space_files import read_spaces
from kernelsight.searching.targets import Target, target_of, truth_of

if TYPE_CHECKING:
    from kernelsight.dataflow.session import Session


def give_searches(session: Session, scenarios: Any, spaces: Sequence[str | Path]) -> None:
    """Give a session the scenarios of searches (a dict, rows or a table), and the search spaces of files, if any."""
    if spaces:
        for name, table in read_spaces(spaces)._asdict().items():
            session.give(name, table)
    if isinstance(scenarios, Mapping):
        scenarios = [dict(scenarios)]
    rows = scenarios if isinstance(scenarios, list) else python_rows(as_arrow(scenarios, "search_scenarios"))
    session.give("search_scenarios", scenario_rows(rows))


def replay(truth: Measured, ids: np.ndarray, seed: int) -> Measure:
    """Return a measurer that draws the mean of eight samples of each candidate's recorded latency and spread.

    A draw depends on seed, candidate and run alone, so that a resumed search measures the same.
    """

    def measure(rows: np.ndarray, runs: np.ndarray) -> Outcome:
        spread = np.nan_to_num(truth.cv[rows]) / np.sqrt(SAMPLES)
        drawn = np.array([_draw(seed, str(ids[row]), int(run)) for row, run in zip(rows, runs, strict=True)])
        latency = np.where(truth.status[rows] == OK, truth.latency_us[rows] * np.exp(spread * drawn), np.nan)
        samples = np.full(len(rows), float(SAMPLES))
        return Outcome(
            *(truth.status[rows], latency, truth.cv[rows], samples, truth.compile_s[rows], truth.benchmark_s[rows])
        )

    return measure


def _draw(seed: int, candidate: str, run: int) -> float:
    return float(np.random.default_rng([seed, zlib.crc32(candidate.encode()), run]).standard_normal())


@produces("kernel_forecasts", "search_decisions", "search_measurements", "search_rounds", "search_summary")
def replayed(
    search_scenarios: pa.Table,
    kernel_candidates: pa.Table,
    kernel_measurements: pa.Table,
    *,
    wanted: frozenset[str],
) -> dict[str, pa.Table]:
    """Search kernels, every scenario replayed on the measurements of its GPU."""
    tables: dict[str, list[Any]] = {name: [] for name in TABLES}
    with one_blas_thread():
        for course in replays(search_scenarios, kernel_candidates, kernel_measurements, "kernel_forecasts" in wanted):
            for name, rows in course._asdict().items():
                tables[name] += rows
    return {name: as_table(name, rows) for name, rows in tables.items()}


def replays(
    search_scenarios: pa.Table, kernel_candidates: pa.Table, kernel_measurements: pa.Table, forecasts: bool
) -> Iterator[SearchRows]:
    """Replay each scenario's search and yield its rows; arrays and targets of a GPU are computed once."""
    spaces: dict[str, SpaceArrays] = {}
    targets: dict[tuple[Any, ...], Target] = {}
    for scenario in search_scenarios.to_pylist():
        check(scenario)
        if scenario["proposer"] == GIVEN:
            raise InvalidInput(
                f"search {scenario['search_id']!r} considers what a proposer of one's own gives, so it cannot be "
                "replayed as a table; use `search run --propose`."
            )
        space = scenario["space"]
        if space not in spaces:
            spaces[space] = space_arrays(kernel_candidates, kernel_measurements, space)
        scenario = as_spelled(spaces[space], scenario)
        gpu = scenario["gpu"]
        check_in(spaces[space], gpu, int(scenario["budget_measurements"]))
        sources = scenario["source_gpus"]
        key = (space, gpu, None if sources is None else tuple(sources))
        if key not in targets:
            targets[key] = target_of(spaces[space], gpu, sources)
        truth = truth_of(spaces[space], gpu, targets[key].ids)
        measure = replay(truth, targets[key].ids, int(scenario["seed"]))
        yield search_rows(targets[key], scenario, measure, truth, forecasts)


def as_table(name: str, rows: list[Any]) -> pa.Table:
    """Convert rows, or tables of them, to the table of a contract."""
    schema = contracts()[name].schema
    if rows and isinstance(rows[0], pa.Table):
        return pa.concat_tables(rows).cast(schema)
    return pa.Table.from_pylist(rows, schema=schema)
