"""A search that was killed goes on from its journal: the same bytes, nothing measured twice."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from kernelsight.caches.journal import journal_path
from kernelsight.errors import InvalidInput, RunFailed
from kernelsight.searching.scenarios import scenario_rows
from kernelsight.searching.search import search
from tests.searching.made_spaces import made_tables

SCENARIO = scenario_rows([{"space": "made", "gpu": "two", "budget_measurements": 30}])[0]


class Killed(Exception):
    """What stops a search in the middle."""


def counting(limit: int | None = None):
    """Return a measurer from the file's own latencies, which counts what it measures and may be killed."""
    known = made_tables().kernel_measurements
    known = known.filter(pc.equal(known["gpu"], "two"))
    by_id = {row["candidate_id"]: row for row in known.to_pylist()}
    calls: list[str] = []

    def measure(candidates: pa.Table) -> pa.Table:
        if limit is not None and len(calls) >= limit:
            raise Killed
        calls.extend(candidates["candidate_id"].to_pylist())
        return pa.Table.from_pylist([by_id[name] for name in candidates["candidate_id"].to_pylist()])

    return measure, calls


@pytest.mark.parametrize("after", [0, 3, 10, 17])
@pytest.mark.whole
def test_a_killed_search_goes_on_to_the_same_tables(tmp_path, after):
    whole, _ = counting()
    expected = search(made_tables(), SCENARIO, whole)
    killed, before = counting(after)
    target = tmp_path / "run.duckdb"
    with pytest.raises(Killed):
        search(made_tables(), SCENARIO, killed, target)
    again, later = counting()
    found = search(made_tables(), SCENARIO, again, target, resume=True)
    assert len(before) + len(later) == 30
    assert all(found[name].equals(expected[name]) for name in expected)


def test_a_line_that_was_half_written_is_measured_again(tmp_path):
    killed, _ = counting(12)
    target = tmp_path / "run.duckdb"
    with pytest.raises(Killed):
        search(made_tables(), SCENARIO, killed, target)
    path = journal_path(target)
    path.write_bytes(path.read_bytes()[:-15])
    again, later = counting()
    search(made_tables(), SCENARIO, again, target, resume=True)
    assert len(later) == 30 - 11


def test_a_journal_of_another_search_is_refused(tmp_path):
    killed, _ = counting(7)
    target = tmp_path / "run.duckdb"
    with pytest.raises(Killed):
        search(made_tables(), SCENARIO, killed, target)
    with pytest.raises(InvalidInput, match="holds a search that did not finish; --resume continues it"):
        search(made_tables(), SCENARIO, counting()[0], target)
    for other in (SCENARIO | {"seed": 1}, SCENARIO | {"budget_measurements": 40}):
        with pytest.raises(InvalidInput, match="belongs to another search: scenario or measurements differ"):
            search(made_tables(), other, counting()[0], target, resume=True)
    with pytest.raises(InvalidInput, match="belongs to another search"):
        search(made_tables(("two", "three")), SCENARIO, counting()[0], target, resume=True)


def test_what_the_gpus_own_file_knows_is_not_used_where_it_is_measured():
    tables = made_tables()
    measured = tables.kernel_measurements
    others = tables._replace(kernel_measurements=measured.filter(pc.not_equal(measured["gpu"], "two")))
    expected = search(others, SCENARIO, counting()[0])
    found = search(tables, SCENARIO, counting()[0])
    assert found["search_measurements"].equals(expected["search_measurements"])


@pytest.mark.parametrize(
    ("row", "sentence"),
    [
        ({"status": "fine", "latency_us": 1.0}, "the status 'fine'; use ok, compile_failed"),
        ({"status": "ok", "latency_us": None}, "status ok with the time None; an ok measurement has a finite time"),
        ({"status": "ok", "latency_us": -2.0}, "status ok with the time -2.0"),
    ],
)
def test_a_measurer_is_held_to_its_contract(row, sentence):
    def measure(candidates: pa.Table) -> pa.Table:
        return pa.Table.from_pylist([row | {"candidate_id": name} for name in candidates["candidate_id"].to_pylist()])

    with pytest.raises(InvalidInput, match=sentence):
        search(made_tables(), SCENARIO, measure)
    with pytest.raises(InvalidInput, match="the measurer returned no row for candidate"):
        search(made_tables(), SCENARIO, lambda candidates: pa.table({"candidate_id": pa.array([], pa.string())}))


def test_a_search_in_which_all_failed_has_no_best():
    def measure(candidates: pa.Table) -> pa.Table:
        names = candidates["candidate_id"].to_pylist()
        return pa.table({"candidate_id": names, "status": ["compile_failed"] * len(names)})

    with pytest.raises(RunFailed, match="none of the 30 measured candidates of 'made' worked on two"):
        search(made_tables(), SCENARIO, measure)


def test_the_best_is_the_median_of_its_runs_not_the_luckiest_draw():
    tables = made_tables(cv=0.3)
    found = search(tables, SCENARIO | {"budget_measurements": 60})
    summary = found["search_summary"].to_pylist()[0]
    rows = found["search_measurements"].to_pylist()
    own = [row["latency_us"] for row in rows if row["candidate_id"] == summary["best_candidate"]]
    assert summary["best_us"] == pytest.approx(float(np.exp(np.median(np.log(own)))))
    assert max(row["run"] for row in rows) > 1
    assert summary["best_us"] > min(row["latency_us"] for row in rows if row["latency_us"])
