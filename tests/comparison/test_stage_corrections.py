"""Corrections from rows of ``measured_runs``: part of the way, bounded, and for the deployment's other loads."""

from __future__ import annotations

import math

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pytest

from kernelsight.comparison.stage_corrections import MOST_SD, NOISE, PARTS, SD, Observed, likeliest
from kernelsight.errors import InvalidInput
from kernelsight.session import connect

FLAGS = {"model": "qwen3-0.6b", "gpu": "l4", "engine_version": "0.11"}
LOAD = {"num_prompts": 64, "input_len": 600, "output_len": 40}


def simulated(session, users, **more):
    """Return mean TTFT and TPOT of a closed loop."""
    found = session.simulate(**FLAGS, **LOAD, max_concurrency=users, **more).summary
    return found["ttft_ms"]["mean"], found["tpot_ms"]["mean"]


@pytest.fixture
def written(tmp_path):
    """Write rows of measured_runs: of one deployment, a closed loop."""

    def write(*rows):
        named = [{"run_id": f"mine/{i}", "isl": 600, "osl": 40, "num_prompts": 64} | row for i, row in enumerate(rows)]
        path = tmp_path / "runs.csv"
        pa_csv.write_csv(pa.Table.from_pylist(named), path)
        return path

    return write


def test_a_slower_run_corrects_another_load_part_of_the_way(written):
    with connect() as session:
        ttft, tpot = simulated(session, 8)
        path = written({"max_concurrency": 8, "ttft_ms": 1.2 * ttft, "tpot_ms": 1.2 * tpot})
        found = session.compare(deployment=FLAGS, log=path)
        [mean] = [row for row in found.summary["stages"] if (row["metric"], row["statistic"]) == ("tpot_ms", "mean")]
        assert not mean["open_loop"] and mean["error"] == pytest.approx(1 / 1.2 - 1, abs=0.03)
        corrections = found.table("stage_corrections")
        before, after = simulated(session, 16), simulated(session, 16, correction=corrections)
    assert 1.1 < after[1] / before[1] < 1.21
    assert 1.02 < after[0] / before[0] < 1.2
    assert len(set(corrections["fingerprint"].to_pylist())) == 1


def test_what_is_taken_is_bounded_and_a_run_of_another_regime_counts_little():
    slopes = np.zeros((2, len(PARTS)))
    slopes[0, PARTS.index("prefill_gemm")] = slopes[1, PARTS.index("decode_gemm")] = 0.7
    noise = np.array([*NOISE.values()])

    def found(ttft, tpot):
        seen = Observed(np.array([0, 0]), np.log1p(np.array([ttft, tpot])), noise)
        return likeliest(seen, slopes)[PARTS.index("decode_gemm")]

    assert 0.06 < found(0.0, 0.06) < math.log(1.06) / 0.7
    assert found(0.0, 0.5) < MOST_SD * SD[PARTS.index("decode_gemm")] + 1e-12
    assert found(9.0, 0.06) < 0.6 * found(0.0, 0.06)


def test_rows_of_two_deployments_are_refused(written):
    times = {"max_concurrency": 8, "ttft_ms": 10.0, "tpot_ms": 1.0}
    path = written({**times, "gpu": "l4"}, {**times, "gpu": "h100_sxm"})
    with connect() as session, pytest.raises(InvalidInput, match="holds runs of 2 deployments"):
        session.compare(deployment=FLAGS, log=path)
