"""Fits of several vendors: rows are split by vendor, start at the first one's constants, and replace only their own."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from kernelsight.catalog.tables import facts
from kernelsight.evaluation.kernels.predict import fit_and_predict
from kernelsight.fitting.pack_fit import fit_pack
from kernelsight.fitting.training import training_rows
from kernelsight.fitting.vendors import ENOUGH_ROWS, SHARE_OF_FEW, by_vendor, onto, vendor_latency_model
from kernelsight.kernels.families import FAMILIES
from kernelsight.kernels.pack import pack_table
from tests.fitting.measured import gemm, write

GPUS, FABRICS = facts("gpus"), facts("fabrics")
IMPLEMENTATIONS = facts("kernel_implementations")
LATENCY_MODEL = FAMILIES["gemm"].latency_model
SHAPES = [(m, n, 4096) for m in (1, 16, 128, 1024, 4096) for n in (1024, 4096)]
RATES = {"h100_sxm": (989e12, 3.35e12), "mi300x": (1307e12, 5.3e12), "mi308x": (344e12, 5.3e12)}


def products(gpu: str, slowness: float) -> list[dict]:
    """Return products that take 4 us and so many times their roofline."""
    flops_per_s, bytes_per_s = RATES[gpu]
    engine = {} if gpu == "h100_sxm" else {"engine": "aiter", "implementation": "aiter"}
    return [
        gemm(
            gpu, m, n, k, 4.0 + slowness * 1e6 * max(2.0 * m * n * k / flops_per_s, 2.0 * n * k / bytes_per_s), **engine
        )
        for m, n, k in SHAPES
    ]


@pytest.fixture
def sweep(tmp_path: Path) -> Path:
    return write(
        tmp_path / "sweep.parquet", [*products("h100_sxm", 1.2), *products("mi300x", 2.5), *products("mi308x", 2.5)]
    )


def constant(value: float, **named: object) -> dict:
    row = {"family": "gemm", "part": "constant", "level": "family", "coefficient": "floor_us", "value": value}
    return row | {"source": "a test"} | named


def test_rows_are_split_by_vendor(sweep):
    rows = training_rows([sweep], "gemm")
    split = by_vendor(rows, GPUS)
    assert {vendor: int(mine.sum()) for vendor, mine in split.items()} == {None: 10, "amd": 20}
    assert set(np.array(rows["gpu"].to_pylist())[split["amd"]]) == {"mi300x", "mi308x"}


def test_another_vendor_starts_where_the_first_one_ended():
    known = [constant(2.0), constant(9.0, vendor="amd"), constant(7.0, without="hopper"), constant(5.0, family="moe")]
    assert vendor_latency_model("gemm", LATENCY_MODEL, None, 10, known) is LATENCY_MODEL
    few, many = (
        {one.name: one for one in vendor_latency_model("gemm", LATENCY_MODEL, "amd", rows, known).coefficients}
        for rows in (10, ENOUGH_ROWS)
    )
    plain = {one.name: one for one in LATENCY_MODEL.coefficients}
    assert few["floor_us"].start == many["floor_us"].start == 2.0
    assert few["floor_us"].spread == pytest.approx(SHARE_OF_FEW * plain["floor_us"].spread)
    assert many["floor_us"].spread == plain["floor_us"].spread
    assert few["quantizes"] == plain["quantizes"]
    batched = FAMILIES["batched_gemm"].latency_model
    gap = next(
        one for one in vendor_latency_model("batched_gemm", batched, "amd", 10, []).coefficients if one.name == "gap_us"
    )
    assert gap.start == gap.low


def test_only_the_rows_of_what_was_fitted_are_replaced():
    base = pack_table(
        [
            constant(1.0),
            constant(2.0, vendor="amd"),
            constant(3.0, vendor="amd", family="moe"),
            {**constant(4.0, gpu="mi300x", level="device"), "part": "choice", "implementation": "aiter"},
            {**constant(5.0, gpu="h100_sxm", level="gpu"), "part": "choice", "implementation": "cublas"},
        ]
    )
    found = onto(base, pack_table([constant(6.0, vendor="amd")]), GPUS)
    assert sorted(found["value"].to_pylist()) == [1.0, 3.0, 5.0, 6.0]


@pytest.mark.whole
def test_vendors_fitted_together_do_not_touch_each_other(sweep, monkeypatch):
    monkeypatch.setattr("kernelsight.fitting.pack_fit.PACK_EFFORT", 0.02)

    def fitted(*gpus: str) -> dict[tuple, float]:
        pack = fit_pack([sweep], gpus, GPUS, FABRICS, IMPLEMENTATIONS, families=["gemm"])
        rows = [row for row in pack.to_pylist() if row["part"] == "constant" and row["without"] is None]
        return {(row["vendor"], row["level"], row["gpu"], row["coefficient"]): row["value"] for row in rows}

    alone, both = fitted("h100_sxm"), fitted("h100_sxm", "mi300x", "mi308x")
    assert {key: value for key, value in both.items() if key[0] is None} == alone
    assert {key[0] for key in both} == {None, "amd"}
    assert both["amd", "family", None, "compute_efficiency"] < both[None, "family", None, "compute_efficiency"]


def test_an_evaluation_predicts_each_vendor_from_its_own_rows(sweep):
    rows = training_rows([sweep], "gemm")
    train = {"gemm": training_rows([sweep], "gemm", ["h100_sxm", "mi300x"])}
    latency, low, high = fit_and_predict(train, {"gemm": rows}, "cross-generation")["gemm"]
    error = np.abs(latency / rows["latency_us"].to_numpy() - 1.0)
    gpus = np.array(rows["gpu"].to_pylist())
    assert np.median(error[gpus == "mi308x"]) < 0.4 and np.all(low <= latency) and np.all(latency <= high)
    alone = fit_and_predict({"gemm": training_rows([sweep], "gemm", ["h100_sxm"])}, {"gemm": rows}, "cross-generation")
    assert np.isnan(alone["gemm"][0][gpus != "h100_sxm"]).all()
