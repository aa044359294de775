"""What befalls a measurement: kills, a full disk, clocks that tell nonsense, heat without end, two runs at once."""

from __future__ import annotations

import errno
import os
import random
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kernelsight.caches.journal import journal_path
from kernelsight.errors import InvalidInput, RunFailed
from kernelsight.measure.rows import sweep_schema
from kernelsight.measure.run import Outcome, measure_suite, read_points
from kernelsight.measure.suite import Rule, Suite, suite_of
from kernelsight.measure.timing import HOPELESS_POINTS, SLOWED_FAULT
from tests.measure.simulated import Simulated, SimulatedReplay


def suite(rows: int = 12) -> Suite:
    return suite_of(
        {"entries": [{"family": "norm", "cache": "warm", "axes": {"rows": list(range(1, rows + 1)), "columns": 64}}]},
        "tiny.json",
    )


def device(**how: object) -> Simulated:
    return Simulated(lambda point: 9.0, **how)


def measured(tmp_path: Path, on: Simulated, **how: object) -> Outcome:
    return measure_suite(on, suite(), tmp_path / "sweep.parquet", **how)


def test_a_damaged_journal_is_read_up_to_its_damage(tmp_path: Path) -> None:
    """Bytes of a broken disk: what lies before them is kept, what lies behind is measured again, nothing crashes."""
    measured(tmp_path, device())
    path, chance, counts = journal_path(tmp_path / "sweep.parquet"), random.Random(3), set()
    whole = path.read_bytes()
    _, records = read_points(path)
    for _ in range(300):
        damaged = bytearray(whole)
        damaged[chance.randrange(len(whole))] ^= 1 << chance.randrange(8)
        path.write_bytes(damaged)
        try:
            _, found = read_points(path)
        except InvalidInput:
            continue
        assert found == records[: len(found)]
        counts.add(len(found))
    assert {0, len(records) - 1} < counts
    path.write_bytes(bytes(damaged[: len(whole) // 2]))
    assert measured(tmp_path, device(), resume=True).measured == 12


def test_a_journal_of_another_version_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measured(tmp_path, device(), most_seconds=0.02)
    other = sweep_schema().append(pa.field("humidity", pa.float64()))
    monkeypatch.setattr("kernelsight.measure.run.sweep_schema", lambda: other)
    with pytest.raises(InvalidInput, match="journal has other columns than this version writes; use another -o FILE"):
        measured(tmp_path, device(), resume=True)


@pytest.mark.parametrize("points", [0, 5])
def test_a_full_disk_ends_the_run_with_what_was_measured(
    points: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sync, written = os.fsync, []

    def full(file: int) -> None:
        written.append(file)
        if len(written) > points + 1:  # the first is the journal's beginning
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        sync(file)

    monkeypatch.setattr(os, "fsync", full)
    refused = (
        r"cannot be written \(No space left on device\); the measured points are kept in .*journal; free disk space"
    )
    with pytest.raises(RunFailed, match=refused):
        measured(tmp_path, device())
    # a resume copies what is there: a disk that is still full costs nothing
    kept = journal_path(tmp_path / "sweep.parquet").read_bytes()
    with pytest.raises(RunFailed, match=refused):
        measured(tmp_path, device(), resume=True)
    assert journal_path(tmp_path / "sweep.parquet").read_bytes() == kept
    monkeypatch.setattr(os, "fsync", sync)
    again = device()
    assert measured(tmp_path, again, resume=True).measured == 12 and len(again.prepared) in (12 - points, 11 - points)


class Nonsense(Simulated):
    """A device whose events tell ``value`` for the third row count."""

    value = 0.0

    def graph(self, kernel: object, launches: int, flush: bool) -> object:
        replay = SimulatedReplay(self, kernel, launches, 5.0)
        spoilt = self.prepared[-1].sizes["rows"] == 3
        if not spoilt:
            return replay
        told = lambda count: np.full(count, self.value)  # noqa: E731 - a clock of one value
        told.launches = launches
        return told


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (float("nan"), "the device reports nan us for a replay"),
        (float("inf"), "the device reports inf us for a replay"),
        (-2.0, "the device reports -2 us for a replay"),
        (0.0, "the launches take less time than the noise of a replay"),
    ],
)
def test_a_time_that_no_clock_tells_is_the_failure_of_its_point(value: float, reason: str, tmp_path: Path) -> None:
    on = Nonsense(lambda point: 9.0)
    on.value = value
    found = measured(tmp_path, on)
    assert found.families["norm"] == (11, {reason: 1})


def test_heat_without_end_costs_three_points_their_waiting_and_is_measured_again(tmp_path: Path) -> None:
    hot, lines = device(hot=(0.0, 1e9)), []
    assert measured(tmp_path, hot, log=lines.append).measured == 12
    rule = Rule()
    assert hot.waited == HOPELESS_POINTS * rule.most_repeats * rule.cool_seconds
    assert sum("the GPU stays throttled" in line for line in lines) == 1
    rows = pq.read_table(tmp_path / "sweep.parquet").to_pylist()
    assert {row["not_fitted"] for row in rows} == {SLOWED_FAULT}
    again = device()
    measured(tmp_path, again, resume=True)
    assert not again.prepared
    measured(tmp_path, again, retry=True)
    assert len(again.prepared) == 12
    assert {row["not_fitted"] for row in pq.read_table(tmp_path / "sweep.parquet").to_pylist()} == {None}


def test_a_retry_measures_what_failed_alone(tmp_path: Path) -> None:
    measured(tmp_path, device(fails=lambda point: point.sizes["rows"] > 8))
    again = device()
    found = measured(tmp_path, again, retry=True)
    assert (found.measured, found.failed, len(again.prepared)) == (12, 0, 4)


def test_another_driver_is_told_and_kept_by_row(tmp_path: Path) -> None:
    class Updated(Simulated):
        def identity(self) -> object:
            return super().identity()._replace(driver="580.1")

    measured(tmp_path, device(), most_seconds=0.02)
    lines: list[str] = []
    measured(tmp_path, Updated(lambda point: 9.0), resume=True, log=lines.append)
    assert lines[0].startswith("earlier points: driver 570.0 (cuda=12.8), next points: 580.1 (cuda=12.8)")
    rows = pq.read_table(tmp_path / "sweep.parquet").to_pylist()
    drivers = [row["driver"] for row in rows]
    assert set(drivers) == {"570.0", "580.1"}
    kept = drivers.count("570.0")
    assert lines[1] == f"{kept} points kept from the earlier run, {12 - kept} left to measure"
