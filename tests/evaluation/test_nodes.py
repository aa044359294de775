"""Evaluations as nodes: what is asked stands in tables, several in one call; scores answer to SQL and are kept."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kernelsight.cli.main import main
from kernelsight.errors import InvalidInput
from kernelsight.evaluation.runs.measured_runs import read_runs
from kernelsight.session import connect
from tests.cli.test_backtest import HEADER, RUNS
from tests.fitting.measured import gemm, write


@pytest.fixture
def sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a sweep of three GPUs; the model that is fitted to it predicts 12 us of everything."""

    def model(train: Any, test: Any, tier: str) -> dict[str, Any]:
        return {name: tuple(np.full(rows.num_rows, us) for us in (12.0, 6.0, 24.0)) for name, rows in test.items()}

    monkeypatch.setattr("kernelsight.evaluation.kernels.predict.fit_and_predict", model)
    sizes = [(m, n, 1024) for m in (16, 256, 4096) for n in (1024, 8192)]
    speeds = {"a100_sxm": 1.0, "h100_sxm": 2.5, "l40s": 1.1}
    rows = [
        gemm(gpu, *size, 5.0 + size[0] * size[1] / (1e5 * speed)) for gpu, speed in speeds.items() for size in sizes
    ]
    return write(tmp_path / "sweep.parquet", rows)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("runs") / "runs.csv"
    path.write_text("\n".join([HEADER, *RUNS[:2], RUNS[5]]))
    return path


def test_kernel_models_are_scored_in_one_call(sweep: Path) -> None:
    asked = {"sweeps": [str(sweep)], "train_gpus": ["a100_sxm", "h100_sxm"], "tier": "cross-generation"}
    with connect() as session:
        others = [asked | {"evaluation_id": name, "test_gpus": ["l40s"]} for name in ("l40s", "again")]
        session.give("kernel_evaluations", others)
        rows = session.sql(
            "select evaluation_id, n, mape, roofline_mape from kernel_scores where scope = 'pooled' and shapes = 'grid'"
        ).fetchall()
        assert [row[0] for row in rows] == ["l40s", "again"] and rows[0][1:] == rows[1][1:]
        (report,) = session.table("kernel_evaluation_reports")["report"].to_pylist()[:1]
        assert json.loads(report)["pooled"]["grid"]["mape"] == rows[0][2]
        session.give("kernel_evaluations", [others[0] | {"test_gpus": ["a100_sxm"]}])
        with pytest.raises(InvalidInput, match="a100_sxm is both a training and a test GPU"):
            session.table("kernel_scores")


def test_newer_versions_are_scored_and_kept(tmp_path: Path, capsys: Any) -> None:
    versions = {"old": ("0.24.0", 50.0), "new": ("0.25.0", 40.0), "newest": ("0.26.0", 25.0)}
    files = {
        name: write(tmp_path / f"{name}.parquet", [gemm("h100_sxm", 512, 4096, 4096, us, engine_version=version)])
        for name, (version, us) in versions.items()
    }
    kept = tmp_path / "scores.csv"
    words = ["--sweep", str(files["new"]), str(files["newest"]), "--train", str(files["old"])]
    for versions_asked, n, bias in (("new", 2, (0.25 + 1.0) / 2), ("vllm:0.26.0", 1, 1.0)):
        asked = [*words, "--test-versions", versions_asked, "--format", "json", "-o", str(kept)]
        assert main(["calibrate", "evaluate", *asked]) == 0
        printed = json.loads(capsys.readouterr().out)
        first = printed["rows"][0]
        assert (first["family"], first["n"], first["floor_bias"]) == (None, n, pytest.approx(bias))
    assert printed["engine_version_used"] == ["vllm:0.26.0"]
    assert kept.read_text().splitlines()[1].startswith("same key,,")
    assert main(["calibrate", "evaluate", *words, "--test-versions", "new", "-o", "x.duckdb"]) == 2
    assert "no .duckdb" in capsys.readouterr().err


def test_replayed_runs_are_scored_in_sql(runs: Path) -> None:
    with connect() as session:
        session.give("measured_runs", read_runs(str(runs)).table)
        session.give("backtests", [{"backtest_id": name, "constants": [name]} for name in ("shipped", "none")])
        rows = session.sql(
            "select backtest_id, run_id, status, fitting, ttft_error from replayed_runs order by all"
        ).fetchall()
        assert [row[:2] for row in rows] == [(one, run) for one in ("none", "shipped") for run in ("r0", "r1", "r5")]
        served = [row for row in rows if row[2] == "served" and not row[3]]
        by_hand = {name: [abs(row[4]) for row in served if row[0] == name] for name in ("none", "shipped")}
        found = session.sql("select backtest_id, n, mape from backtest_scores where scope = 'all' and metric = 'ttft'")
        for name, n, mape in found.fetchall():
            assert n == len(by_hand[name]) and mape == pytest.approx(sum(by_hand[name]) / n)
        assert by_hand["none"] != by_hand["shipped"]  # host time of the catalogue counts
        reports = [json.loads(text) for text in session.table("backtest_reports")["report"].to_pylist()]
        assert [report["constants"] for report in reports] == ["shipped", "none"]


def test_a_run_that_measured_throughput_alone_has_its_error(runs: Path) -> None:
    row = read_runs(str(runs)).table.to_pylist()[0]
    nothing = {name: None for name, value in row.items() if isinstance(value, float) and name.endswith("_ms")}
    with connect() as session:
        session.give("measured_runs", [row | nothing | {"output_throughput": 100.0}])
        session.give("backtests", [{"backtest_id": "asked", "constants": ["shipped"]}])
        query = "select ttft_error, tpot_error, throughput_error, run from replayed_runs"
        [(ttft, tpot, error, text)] = session.sql(query).fetchall()
    compared = json.loads(text)["compared"]["throughput"]
    assert (ttft, tpot, error) == (None, None, compared["error"])
    assert error == pytest.approx(compared["predicted"] / 100.0 - 1.0)


def test_commands_keep_their_tables(sweep: Path, runs: Path, tmp_path: Path, capsys: Any) -> None:
    scored, replayed = tmp_path / "scores.duckdb", tmp_path / "replayed.duckdb"
    words = ["--sweep", str(sweep), "--train-gpus", "a100_sxm,h100_sxm", "--test-gpus", "l40s", "-o", str(scored)]
    assert main(["calibrate", "evaluate", *words, "--format", "csv"]) == 0
    assert main(["backtest", "--runs", str(runs), "--format", "csv", "-o", str(replayed)]) == 0
    capsys.readouterr()
    for path, name in ((scored, "kernel_scores"), (replayed, "backtest_scores"), (replayed, "measured_runs")):
        with connect(path, read_only=True) as saved:
            assert saved.table(name).num_rows > 0
