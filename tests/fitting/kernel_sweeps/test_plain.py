"""A Parquet file in the schema of sweep_points: unchanged where sound, counted or refused where not."""

from __future__ import annotations

import polars as pl
import pytest

from kernelsight.errors import ContractBroken, InvalidInput
from kernelsight.fitting.sweep_files import check_sweeps

POINT = {
    "gpu": "h100_sxm", "family": "gemm", "implementation": "my_kernel", "engine": "mine", "engine_version": "1",
    "shape": {"m": 16, "n": 4096, "k": 4096}, "dtype": "bf16", "format": "bf16", "math": "bf16", "distribution": None,
    "latency_us": 20.0, "samples": 5, "cv": 0.01, "sm_clock_hz": 1.7e9, "source": "my bench",
}  # fmt: skip


@pytest.fixture
def sweep(tmp_path):
    """Return a function that writes points into a file."""

    def write(*points):
        pl.DataFrame(list(points), infer_schema_length=None).write_parquet(tmp_path / "mine.parquet")
        return tmp_path / "mine.parquet"

    return write


def test_points_keep_what_they_state(sweep, import_from) -> None:
    (point,) = import_from("parquet", sweep(POINT)).points
    assert {name: point[name] for name in POINT} == POINT


def test_an_import_of_an_import_is_the_same_file(sweep, import_from, tmp_path) -> None:
    import_from("parquet", sweep(POINT, POINT | {"family": "sparse_attention", "shape": {"queries": 1, "width": 0}}))
    once = (tmp_path / "points.parquet").read_bytes()
    (tmp_path / "points.parquet").rename(tmp_path / "once.parquet")
    import_from("parquet", tmp_path / "once.parquet")
    assert (tmp_path / "points.parquet").read_bytes() == once


def test_points_that_break_physics_or_name_no_gpu_are_counted(sweep, import_from) -> None:
    fast = POINT | {"shape": {"m": 8192, "n": 8192, "k": 8192}, "latency_us": 9.0}
    found = import_from("parquet", sweep(POINT, fast, POINT | {"gpu": "h9000"}))
    assert found.reasons == {"faster_than_peak": 1, "gpu_not_in_catalogue": 1}
    assert len(found.points) == 1


def test_refusals_list_every_fault(sweep, import_from, tmp_path) -> None:
    lacking = {name: value for name, value in POINT.items() if name not in ("dtype", "samples")} | {"extra": 1}
    with pytest.raises(ContractBroken, match="missing column dtype; missing column samples; unknown column extra"):
        import_from("parquet", sweep(lacking))
    with pytest.raises(ContractBroken, match="shape has the unknown field depth"):
        import_from("parquet", sweep(POINT | {"shape": {"m": 1, "depth": 2}}))
    with pytest.raises(ContractBroken, match="column shape is large_string, not a struct of sizes"):
        import_from("parquet", sweep(POINT | {"shape": "16x16"}))
    for change, fault in (({"samples": -5}, "samples > 0"), ({"power_w": -3.0}, "power_w >= 0")):
        wrong = sweep(*(POINT | {"not_fitted": None} | each for each in ({}, change)))
        with pytest.raises(ContractBroken, match=rf"\(from .*mine\.parquet\).*{fault}' \(row 2: -"):
            import_from("parquet", wrong)
        with pytest.raises(ContractBroken, match=rf"\(from .*mine\.parquet\).*{fault}' \(row 2: -"):
            check_sweeps([wrong])
    (tmp_path / "mine.parquet").write_text("no table")
    with pytest.raises(InvalidInput, match=r"mine\.parquet cannot be read as Parquet"):
        import_from("parquet", tmp_path / "mine.parquet")
    sound = sweep(POINT).read_bytes()
    (tmp_path / "mine.parquet").write_bytes(sound.replace(b"samples", b"sample\xff"))
    with pytest.raises(InvalidInput, match="'utf-8' codec can't decode byte 0xff"):
        import_from("parquet", tmp_path / "mine.parquet")
    with pytest.raises(InvalidInput, match="parquet needs PATH"):
        import_from("parquet", None)
