"""The verb from its words to what it prints, on a simulated device; and what it imports."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from kernelsight.cli.calibrate import measure
from kernelsight.cli.main import main
from tests.measure.simulated import ROW, Simulated

ROOT = Path(__file__).resolve().parents[2]
SUITE = {
    "entries": [
        {"family": "norm", "cache": "warm", "axes": {"rows": [1, 8], "columns": 4096}},
        {
            "family": "prefill_attention",
            "axes": {"batch": 1, "new_tokens": 64, "heads": 8, "kv_heads": 8, "head_dim": 64},
        },
    ]
}


def test_a_suite_is_measured_and_summed_up_by_family(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine.json").write_text(json.dumps(SUITE))
    device = Simulated(lambda point: 9.0, fails=lambda point: point.family == "prefill_attention")
    monkeypatch.setattr(measure, "open_device", lambda arguments: device)
    words = ["calibrate", "measure", "--suite", str(tmp_path / "mine.json"), "-o", str(tmp_path / "sweep.parquet")]
    row = tmp_path / "row.json"
    assert main([*words, "--format", "json", "--device-row", str(row)]) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out) == [
        {"family": "norm", "measured": 2, "failed": 0, "reason": ""},
        {"family": "prefill_attention", "measured": 0, "failed": 1, "reason": "1 x no such library is installed"},
    ]
    assert "2 points measured, 1 failed; written to" in printed.err
    assert json.loads(row.read_text()) == [ROW]
    assert "sm_count: this GPU 66, the catalogue 132" in printed.err
    assert main(words) == 2
    assert "add --resume to continue" in capsys.readouterr().err
    assert main([*words, "--resume", "--time-limit", "1"]) == 0
    assert (
        main(["calibrate", "measure", "--suite", str(tmp_path / "mine.json"), "-o", str(tmp_path / "again.parquet")])
        == 0
    )


def test_a_device_is_shown_beside_the_catalogue_and_written_as_a_row(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measure, "open_device", lambda arguments: Simulated(lambda point: 9.0))
    target = tmp_path / "row.json"
    assert main(["calibrate", "device", "-o", str(target), "--format", "json"]) == 0
    printed = capsys.readouterr()
    rows = {row["what"]: (row["this_gpu"], row["catalogue"]) for row in json.loads(printed.out)}
    assert rows["sm_count"] == ("66", "132") and rows["temperature_c"] == ("60", "") and "torch" in rows
    assert (
        json.loads(target.read_text()) == [ROW]
        and "use it with --gpus in predict, simulate and calibrate fit" in printed.err
    )
    words = ["sql", "select sm_count from gpus where gpu = 'h200_sxm_device'", "--gpus", str(target)]
    assert main([*words, "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out) == [{"sm_count": 66}]


def test_an_unforeseen_error_is_the_reason_of_its_point_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Faulty(Simulated):
        def prepare(self, point: object) -> object:
            if point.family == "norm" and point.sizes["rows"] == 8:
                raise KeyError("a slip of ours")
            return super().prepare(point)

    (tmp_path / "mine.json").write_text(json.dumps(SUITE))
    monkeypatch.setattr(measure, "open_device", lambda arguments: Faulty(lambda point: 9.0))
    words = ["calibrate", "measure", "--suite", str(tmp_path / "mine.json"), "-o", str(tmp_path / "sweep.parquet")]
    assert main([*words, "--format", "json"]) == 0
    [norm, attention] = json.loads(capsys.readouterr().out)
    assert norm == {"family": "norm", "measured": 1, "failed": 1, "reason": "1 x KeyError: 'a slip of ours'"}
    assert attention["measured"] == 1


def test_a_run_that_is_stopped_says_how_it_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine.json").write_text(json.dumps(SUITE))
    monkeypatch.setattr(measure, "open_device", lambda arguments: Simulated(lambda point: 9.0, killed_at=2))
    words = ["calibrate", "measure", "--suite", str(tmp_path / "mine.json"), "-o", str(tmp_path / "sweep.parquet")]
    assert main(words) == 1
    assert "sweep.parquet holds the points measured so far, and --resume continues" in capsys.readouterr().err
    assert pq.read_table(tmp_path / "sweep.parquet").num_rows == 1
    assert {path.name for path in tmp_path.iterdir()} == {"mine.json", "sweep.parquet", "sweep.parquet.journal"}


def test_a_host_probe_without_vllm_is_refused_before_anything_is_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kernelsight.measure.host.importlib.util.find_spec", lambda name: None)
    words = ["calibrate", "measure", "-o", str(tmp_path / "sweep.parquet"), "--host-probe", str(tmp_path / "host.json")]
    assert main(words) == 2
    assert "--host-probe needs vLLM" in capsys.readouterr().err and not list(tmp_path.iterdir())


def test_measuring_imports_numpy_and_pyarrow_alone() -> None:
    """The package has to run where nothing else of ours is installed."""
    ask = """
import sys
from pathlib import Path
import kernelsight.cli.calibrate.measure, kernelsight.measure.run
import kernelsight.measure.cuda.device, kernelsight.present.output
from kernelsight.measure.suite import read_suite
from tests.measure.simulated import ROW, Simulated
from kernelsight.measure.run import measure_suite
read_suite("quick")
loaded = {name.partition(".")[0] for name in sys.modules}
print(*sorted(loaded & {"duckdb", "polars", "jax", "numba", "optax", "scipy"}))
"""
    found = subprocess.run([sys.executable, "-c", ask], cwd=ROOT, capture_output=True, text=True)
    assert found.returncode == 0, found.stderr
    assert found.stdout.split() == []
