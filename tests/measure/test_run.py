"""A suite on a simulated device: rows in the contract, kills, resumes, limits of time, faults, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest

from kernelsight.caches.journal import journal_path
from kernelsight.catalog.tables import contracts
from kernelsight.dataflow.contract import conform
from kernelsight.errors import InvalidInput, RunFailed
from kernelsight.evaluation.kernels.evaluate import rejected_rows
from kernelsight.fitting.kernel_sweeps.importing import import_sweep
from kernelsight.fitting.kernel_sweeps.sources import READERS
from kernelsight.fitting.training import training_rows
from kernelsight.measure.rows import row_of, sweep_schema
from kernelsight.measure.run import RECENT, Outcome, _line, _replays, measure_suite, read_points, time_point
from kernelsight.measure.suite import Point, Rule, Suite, suite_of
from kernelsight.measure.timing import Watch
from tests.measure.simulated import FLUSH_US, L2_BYTES, Simulated, any_point

STATED = {
    "suite": "tiny",
    "rule": {"relative_error": 0.01},
    "entries": [
        {"family": "gemm", "dtype": ["bf16", "fp8"], "axes": {"m": [1, 64, 1024], "n": 4096, "k": [4096]}},
        {"family": "norm", "axes": {"rows": [1, 64], "columns": 4096}},
    ],
}


def tiny() -> Suite:
    return suite_of(STATED, "tiny.json")


def latency(point: Point) -> float:
    """Return a time that is another for every point."""
    return 2.0 + sum(size % 977 for size in point.sizes.values()) / 7.0 + (1.0 if point.cache == "cold" else 0.0)


def measured(tmp_path: Path, device: Simulated, **how: object) -> Outcome:
    return measure_suite(device, tiny(), tmp_path / "sweep.parquet", **how)


def test_rows_keep_the_contract_and_tell_cold_from_warm(tmp_path: Path) -> None:
    lines: list[str] = []
    found = measured(tmp_path, Simulated(latency), log=lines.append)
    assert (found.measured, found.failed, found.left) == (16, 0, 0) == (len(tiny().points), 0, 0)
    table = conform(pq.read_table(tmp_path / "sweep.parquet"), contracts()["sweep_points"], origin="a sweep")
    assert table.num_rows == 16
    for row in table.to_pylist():
        cold = row["working_set_bytes"] > L2_BYTES
        point = Point("", "", "", "cold" if cold else "warm", tuple((n, s) for n, s in row["shape"].items() if s))
        assert row["latency_us"] == pytest.approx(latency(point), rel=0.06)
        assert (row["gap_us"] is None) == cold
        assert row["driver"] == "570.0" and row["versions"] == "cuda=12.8" and row["temperature_c"] == 60.0
        assert row["relative_error"] < 0.02 and row["samples"] >= 20 and row["not_fitted"] is None
    assert len(lines) == 16 and lines[0].startswith("1/16 gemm cublas bf16 cold k=4096 m=1 n=4096: ")
    assert lines[-1].endswith("; 0 min left")
    own = sweep_schema()
    assert own.names == contracts()["sweep_points"].schema.names
    assert own.types == contracts()["sweep_points"].schema.types


def test_cold_and_warm_reach_the_training_view(tmp_path: Path) -> None:
    measured(tmp_path, Simulated(latency))
    rows = training_rows([tmp_path / "sweep.parquet"], "gemm").to_pylist()
    assert len(rows) == 12
    # as each row was measured, not as the collectors of published sweeps rotate their weights
    assert {row["working_set_bytes"] for row in rows} == {2.0**20, 4.0 * L2_BYTES + 2.0**20}


def test_an_import_keeps_what_was_measured(tmp_path: Path) -> None:
    """Cold and warm rows of one shape stay two points, and a launch, which has no size, is one too."""
    entries = [*STATED["entries"][1:], {"family": "launch"}, {"family": "copy", "axes": {"bytes": 4096}}]
    sweep, again = tmp_path / "sweep.parquet", tmp_path / "again.parquet"
    assert measure_suite(Simulated(latency), suite_of({"entries": entries}, "a.json"), sweep).measured == 6
    import_sweep(READERS["parquet"](sweep, None, None), again)
    key = [("family", "ascending"), ("working_set_bytes", "ascending"), ("latency_us", "ascending")]
    before, after = (pq.read_table(path).sort_by(key).to_pylist() for path in (sweep, again))
    for one, other in zip(before, after, strict=True):
        assert other == {**one, "latency_us": pytest.approx(one["latency_us"]), "cv": pytest.approx(one["cv"])}


@pytest.mark.parametrize("at", [1, 2, 9, 16])
def test_a_kill_loses_the_point_under_way_alone(at: int, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        measured(tmp_path, Simulated(latency, killed_at=at))
    _, records = read_points(journal_path(tmp_path / "sweep.parquet"))
    assert len(records) == at - 1
    again, lines = Simulated(latency), []
    found = measured(tmp_path, again, resume=True, log=lines.append)
    assert (found.measured, found.left) == (16, 0)
    assert lines[0] == f"{at - 1} points kept from the earlier run, {17 - at} left to measure", "by the same software"
    assert [point.key for point in again.prepared] == [point.key for point in tiny().points[at - 1 :]]
    assert pq.read_table(tmp_path / "sweep.parquet").num_rows == 16


@pytest.mark.parametrize("torn", [0.0, 0.2, 0.7, 1.0])
def test_a_torn_record_costs_one_point(torn: float, tmp_path: Path) -> None:
    """What a power cut leaves of the last write is left out; the records before it stay."""
    with pytest.raises(KeyboardInterrupt):
        measured(tmp_path, Simulated(latency, killed_at=9))
    path = journal_path(tmp_path / "sweep.parquet")
    whole = path.read_bytes()
    last = len(whole.splitlines(keepends=True)[-1])
    path.write_bytes(whole[: -max(1, round(torn * last))])
    _, records = read_points(path)
    assert len(records) == 7
    again = Simulated(latency)
    assert measured(tmp_path, again, resume=True).measured == 16
    assert len(again.prepared) == 16 - len(records)


def test_slices_of_time_add_up_to_the_suite(tmp_path: Path) -> None:
    slices, resume = 0, False
    while True:
        found = measured(tmp_path, Simulated(latency), resume=resume, most_seconds=0.2)
        slices, resume = slices + 1, True
        assert pq.read_table(tmp_path / "sweep.parquet").num_rows == found.measured
        if not found.left:
            break
    assert 1 < slices < 16


def test_points_that_fail_are_counted_by_reason_and_not_tried_again(tmp_path: Path) -> None:
    device = Simulated(latency, fails=lambda point: point.dtype == "fp8")
    found = measured(tmp_path, device)
    assert (found.measured, found.failed, found.left) == (10, 6, 0)
    assert found.families["gemm"] == (6, {"no such library is installed": 6})
    sweep = tmp_path / "sweep.parquet"
    assert rejected_rows([sweep], ["h200_sxm"], {}) == [{"reason": "no such library is installed", "n": 6}]
    again = Simulated(latency)
    assert measured(tmp_path, again, resume=True).failed == 6 and not again.prepared


def test_a_lost_device_ends_the_run_and_a_resume_goes_on_behind_it(tmp_path: Path) -> None:
    with pytest.raises(RunFailed, match=r"the GPU stopped responding \(an illegal address\); 4 points are kept"):
        measured(tmp_path, Simulated(latency, lost_at=4))
    found = measured(tmp_path, Simulated(latency), resume=True)
    assert (found.measured, found.failed, found.left) == (15, 1, 0)


def test_a_launch_below_the_noise_of_its_flush_is_a_failure_not_a_row(tmp_path: Path) -> None:
    device = Simulated(lambda point: 1e-4 if point.family == "norm" else 5.0, noise=0.02)
    found = measured(tmp_path, device)
    rows = pq.read_table(tmp_path / "sweep.parquet").to_pylist()
    assert all(row["latency_us"] > 0 for row in rows)
    for row in rows:
        if row["family"] == "norm" and row["working_set_bytes"] > L2_BYTES:
            assert row["not_fitted"] == "noisy: its median is not known to 5 %"
    assert found.measured + found.failed == 16 and FLUSH_US * 0.02 > 1e-4


def test_an_earlier_run_is_not_overwritten(tmp_path: Path) -> None:
    measured(tmp_path, Simulated(latency))
    with pytest.raises(InvalidInput, match="has 16 points of an earlier run; add --resume"):
        measured(tmp_path, Simulated(latency))
    with pytest.raises(InvalidInput, match=r"was measured on h200_sxm \(serial GPU-1\), but this GPU is h200_sxm"):
        measured(tmp_path, Simulated(latency, serial="GPU-2"), resume=True)
    other = suite_of({**STATED, "rule": {"relative_error": 0.02}}, "other.json")
    with pytest.raises(InvalidInput, match="has points of the suite tiny, whose points or rule differ"):
        measure_suite(Simulated(latency), other, tmp_path / "sweep.parquet", resume=True)
    journal_path(tmp_path / "sweep.parquet").unlink()
    with pytest.raises(InvalidInput, match=r"exists, but has no journal"):
        measured(tmp_path, Simulated(latency), resume=True)
    for words, sentence in (
        (b"words", "is not the journal of a measurement; use another -o FILE"),
        (b'{"search": "1f"}\n', "is not the journal of a measurement; use another -o FILE"),
    ):
        (tmp_path / "other.parquet.journal").write_bytes(words)
        with pytest.raises(InvalidInput, match=sentence):
            measure_suite(Simulated(latency), tiny(), tmp_path / "other.parquet", resume=True)


def test_the_time_left_is_that_of_the_latest_points() -> None:
    """Six points are left, and the latest took 15 s each."""
    spent_s = [900.0] * 9 + [10.0, 20.0] * (RECENT // 2)
    line = _line(4, 10, any_point(), {"latency_us": 12.0, "relative_error": 0.004}, None, spent_s)
    assert line == "4/10 gemm cublas bf16 warm k=64 m=64 n=64: 12 us +- 0.4%; 1.5 min left"


@pytest.mark.parametrize(("cache", "launches"), [("cold", 32), ("warm", 167)])
def test_a_cold_launch_never_reads_a_copy_again(cache: str, launches: int) -> None:
    """A millisecond takes 167 replays of one launch, of 6 us; there are 32 copies of the data."""
    device, point = Simulated(lambda point: 1.0, noise=0.0), any_point(cache=cache)
    kernel = device.prepare(point)
    assert kernel.copies == 32
    assert _replays(device, point, kernel)[1].launches == launches


@pytest.mark.parametrize(("captured", "flushes"), [(True, 4), (False, 0)])
def test_launches_by_the_host_are_not_flushed(captured: bool, flushes: int) -> None:
    device, point = Simulated(lambda point: 50.0), any_point(cache="cold")
    kernel = device.prepare(point)
    kernel.captured = captured
    row = row_of(point, kernel, time_point(device, point, Rule(), Watch(), kernel), device.identity())
    assert row["working_set_bytes"] == flushes * L2_BYTES + 2**20
