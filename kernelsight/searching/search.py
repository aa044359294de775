"""Runs one search, replayed or measured on the GPU itself, with its journal, and saves it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from kernelsight.caches.durable import locked
from kernelsight.caches.journal import Journal, journal_path
from kernelsight.catalog.tables import contracts
from kernelsight.dataflow.blas import one_blas_thread
from kernelsight.errors import InvalidInput, RunFailed
from kernelsight.searching.arrays import SpaceArrays, space_arrays
from kernelsight.searching.growth import Candidate
from kernelsight.searching.journal import digest, journaled, journaled_proposals, measured_by, open_journal
from kernelsight.searching.proposers import Proposer, candidates_of
from kernelsight.searching.replays import as_table, replay
from kernelsight.searching.rounds import GIVEN, Measure
from kernelsight.searching.scenarios import as_spelled, check, check_in
from kernelsight.searching.search_tables import TABLES, search_rows
from kernelsight.searching.space_files import SpaceTables
from kernelsight.searching.targets import Target, target_of, truth_of, with_forecasts

if TYPE_CHECKING:
    from kernelsight.dataflow.session import Session

Measurer = Callable[[pa.Table], pa.Table]


def search(
    tables: SpaceTables,
    scenario: Mapping[str, Any],
    measurer: Measurer | None = None,
    output: Path | None = None,
    resume: bool = False,
    forecasts: Callable[[Target], pa.Table] | None = None,
    proposer: Callable[[SpaceArrays, Target], Proposer] | None = None,
) -> dict[str, pa.Table]:
    """Run one search; return its tables, forecasts and new candidates included, by name.

    ``measurer``: from rows of ``kernel_candidates`` to rows of ``kernel_measurements``; None: the GPU's recorded
    measurements are replayed. ``output``: where the run is saved; its journal is beside it until the search has
    finished, and ``resume`` continues it. ``forecasts``: returns external ``kernel_forecasts``, one more source.
    ``proposer``: returns the external proposer, where the scenario's proposer is ``given``. InvalidInput: the space,
    GPU or scenario cannot be searched; RunFailed: no measured candidate worked.
    """
    check(scenario)
    arrays = space_arrays(tables.kernel_candidates, tables.kernel_measurements, scenario["space"])
    scenario = as_spelled(arrays, scenario)
    gpu = scenario["gpu"]
    # a proposer may add candidates where they are measured
    budget = 1 if measurer and proposer else int(scenario["budget_measurements"])
    check_in(arrays, gpu, budget, replayed=measurer is None)
    without_target = (
        arrays if measurer is None else arrays._replace(gpus={n: m for n, m in arrays.gpus.items() if n != gpu})
    )
    target = target_of(without_target, gpu, scenario["source_gpus"])
    _check_anchor(scenario, target)
    search_inputs = _rows_of_space(tables, scenario)
    if forecasts is not None:
        search_inputs["forecasts"] = forecasts(target)
        target = with_forecasts(target, search_inputs["forecasts"])
    given_proposer = None if proposer is None else proposer(arrays, target)
    if (given_proposer is None) == (scenario["proposer"] == GIVEN):
        raise InvalidInput("the proposer of the search is 'given', but none is; --propose names a file or a command.")
    known = given_proposer.candidates if given_proposer else None
    measure, truth = _measure_of(tables, arrays, scenario, target, measurer, known)
    if output is None:
        return _tables(target, scenario, measure, truth, measurer, given_proposer, None, [])
    with locked(output):
        journal, earlier = open_journal(journal_path(output), digest(scenario, search_inputs), resume)
        waiting = list(reversed(earlier))
        with journal:
            names = given_proposer.ids if given_proposer else target.ids
            recorded = journaled(measure, names, journal, waiting)
            return _tables(target, scenario, recorded, truth, measurer, given_proposer, journal, waiting)


def _measure_of(
    tables: SpaceTables,
    arrays: SpaceArrays,
    scenario: Mapping[str, Any],
    target: Target,
    measurer: Measurer | None,
    known: list[Candidate] | None,
) -> tuple[Measure, Any]:
    gpu = scenario["gpu"]
    if measurer is None:
        truth = truth_of(arrays, gpu, target.ids)
        return replay(truth, target.ids, int(scenario["seed"])), truth
    candidates = known if known is not None else candidates_of(arrays, target, tables.kernel_candidates)
    return measured_by(
        measurer, lambda rows: candidate_rows([candidates[row] for row in rows], target.space), target.space, gpu
    ), None


def candidate_rows(candidates: Sequence[Candidate], space: str) -> pa.Table:
    """Return candidates as rows of ``kernel_candidates``."""
    rows = [{**row, "space": space, "parameters": json.dumps(row["parameters"], sort_keys=True)} for row in candidates]
    return pa.Table.from_pylist(rows, contracts()["kernel_candidates"].schema)


def _check_anchor(scenario: Mapping[str, Any], target: Target) -> None:
    anchor = scenario["anchor"]
    if anchor is not None and anchor not in set(target.ids.tolist()):
        raise InvalidInput(f"the anchor {anchor!r} is no candidate of {target.space!r}; give the id of one.")


def _rows_of_space(tables: SpaceTables, scenario: Mapping[str, Any]) -> dict[str, pa.Table]:
    """Return the candidates and measurements of the space of a search."""
    tables_read = {"candidates": tables.kernel_candidates, "measurements": tables.kernel_measurements}
    return {name: table.filter(pc.equal(table["space"], scenario["space"])) for name, table in tables_read.items()}


def _tables(
    target: Target,
    scenario: Mapping[str, Any],
    measure: Measure,
    truth: Any,
    measurer: Measurer | None,
    proposer: Proposer | None,
    journal: Journal | None,
    waiting: list[dict[str, Any]],
) -> dict[str, pa.Table]:
    source = "replay" if measurer is None else "measured"
    propose = None if proposer is None else journaled_proposals(proposer, journal, waiting)
    with one_blas_thread():
        course = search_rows(target, scenario, measure, truth, forecasts=True, source=source, propose=propose)
    summary = course.search_summary[0]
    proposer_notes = [] if proposer is None else proposer.notes(target.space)
    if not summary["measured"]:
        raise RunFailed("; ".join(["the proposer gave no candidate that could be measured", *proposer_notes]) + ".")
    if summary["best_candidate"] is None:
        raise RunFailed(
            f"none of the {summary['measured']} measured candidates of {target.space!r} worked on {target.gpu}; see "
            "that the kernel compiles and runs, or give a larger budget."
        )
    summary["notes"] = "; ".join(filter(None, [summary["notes"], *proposer_notes])) or None
    results = {name: as_table(name, getattr(course, name)) for name in TABLES}
    if proposer is not None and (new := proposer.candidates[len(target.ids) :]):
        results["kernel_candidates"] = candidate_rows(new, target.space)
    return results


def save_search(
    session: Session, tables: SpaceTables, scenario: Mapping[str, Any], results: Mapping[str, pa.Table], output: Path
) -> None:
    """Write the given and computed tables of a run to a DuckDB file, then remove its journal."""
    session.save(output, give_search(session, tables, scenario, results))
    journal_path(output).unlink(missing_ok=True)


def give_search(
    session: Session, tables: SpaceTables, scenario: Mapping[str, Any], results: Mapping[str, pa.Table]
) -> list[str]:
    """Give a session the tables of a run, and return their names."""
    given_tables = {
        name: table.filter(pc.equal(table["space"], scenario["space"])) for name, table in tables._asdict().items()
    }
    new = results.get("kernel_candidates")
    if new is not None:
        given_tables["kernel_candidates"] = pa.concat_tables([given_tables["kernel_candidates"].cast(new.schema), new])
    for name, table in given_tables.items():
        session.give(name, table)
    session.give("search_scenarios", [dict(scenario)])
    for name in TABLES:
        session.give(name, results[name], trusted=True)
    return [*given_tables, "search_scenarios", *TABLES]
