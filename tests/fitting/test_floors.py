"""An empty launch of a GPU: what it makes of the floors of all families, and of their intervals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from kernelsight.catalog.tables import facts
from kernelsight.errors import InvalidInput
from kernelsight.fitting.few_shot import OWN_SOURCE, fit_few, measured_calls
from kernelsight.fitting.training import training_rows
from kernelsight.kernels.families import FAMILIES
from kernelsight.kernels.floors import EXPECTED_US, IN_A_GRAPH, LAUNCH, is_floor
from kernelsight.kernels.pack import shipped_pack, with_assumed
from tests.fitting.measured import gemm, point, write
from tests.kernels.calls import call_table, price, work

KNOWN = (facts("gpus"), facts("fabrics"), facts("kernel_implementations"))


@pytest.fixture(scope="module")
def base() -> pa.Table:
    """The shipped pack of products and of small kernels that no sweep holds, without what versions change."""
    pack = with_assumed(shipped_pack())
    pack = pack.filter(pc.not_equal(pack["part"], "version"))
    return pack.filter(pc.is_in(pack["family"], pa.array(["gemm", "norm"])))


def launch(gpu: str, us: float, implementation: str = IN_A_GRAPH) -> dict[str, Any]:
    return point(LAUNCH, gpu, us, shape={}, implementation=implementation, dtype="none", source=OWN_SOURCE)


def launched(tmp_path: Path, base: pa.Table, us: float, *more: dict[str, Any], gpu: str = "l4", **how: Any) -> pa.Table:
    return fit_few([write(tmp_path / f"{us}.parquet", [launch(gpu, us), *more])], [gpu], base, *KNOWN, **how)


def product(pack: pa.Table, rows: float = 1.0, width: float = 256.0, tier: str = "auto") -> dict[str, Any]:
    sizes = {"m": np.array([rows]), "n": np.array([width]), "k": np.array([width])}
    calls = call_table({**sizes, **work("gemm", sizes), "format": ["bf16"]}, "l4", "bf16")
    return price("gemm", calls, tier=tier, eta_coefficients=pack).to_pylist()[0]


def norm(pack: pa.Table) -> float:
    sizes = {"rows": np.array([1.0]), "columns": np.array([4096.0])}
    calls = call_table({**sizes, "flops": np.array([1e4]), "bytes": np.array([16384.0])}, "l4")
    return price("norm", calls, eta_coefficients=pack).to_pylist()[0]["latency_us"]


def width(row: dict[str, Any]) -> float:
    return row["latency_p95_us"] / row["latency_us"]


def test_a_slower_empty_launch_raises_the_smallest_calls_of_all_families(tmp_path: Path, base: pa.Table) -> None:
    slow, quick = (launched(tmp_path, base, factor * EXPECTED_US) for factor in (2.0, 0.5))
    for of in (lambda pack: product(pack)["latency_us"], norm):
        assert 1.05 < of(slow) / of(base) < 2.0
        assert 0.5 < of(quick) / of(base) < 0.95
    long = [product(pack, 8192.0, 8192.0)["latency_us"] for pack in (slow, base)]
    assert long[0] == pytest.approx(long[1], rel=0.01)
    assert product(slow)["evidence"] == "sweeps of other GPUs, an empty launch of l4: cublas"
    assert product(slow)["tier"] == "cross-generation"


def test_an_empty_launch_narrows_short_calls_where_it_is_as_expected_and_widens_them_far_from_it(
    tmp_path: Path, base: pa.Table
) -> None:
    as_expected, far = (launched(tmp_path, base, factor * EXPECTED_US) for factor in (1.0, 8.0))
    assert width(product(as_expected)) < width(product(base)) < width(product(far))
    long = [width(product(pack, 8192.0, 8192.0)) for pack in (as_expected, base, far)]
    assert long == pytest.approx([long[1]] * 3, rel=1e-6)


def test_what_was_launched_counts_on_its_gpu_alone_and_not_where_it_is_not_wanted(
    tmp_path: Path, base: pa.Table
) -> None:
    pack = launched(tmp_path, base, 2.0)
    assert product(pack, tier="cross-generation") == product(base, tier="cross-generation")
    swept = launched(tmp_path, base, 2.0, gpu="l40s")
    assert product(swept) == product(base)
    assert launched(tmp_path, base, 2.0, families=["gemm"]).num_rows == base.num_rows


def test_empty_launches_of_swept_gpus_say_what_is_expected(tmp_path: Path, base: pa.Table) -> None:
    pack = launched(tmp_path, base, 2.0, launch("h100_sxm", 2.0))
    assert product(pack)["latency_us"] == pytest.approx(product(base)["latency_us"])
    other = launched(tmp_path, base, 2.0, launch("h100_sxm", 9.0, "eager_launch"))
    assert product(other)["latency_us"] > product(base)["latency_us"]


def test_points_are_measured_against_the_floor_that_is_known(tmp_path: Path, base: pa.Table) -> None:
    """Calls as slow as the launch says leave nothing to correct."""
    floors = launched(tmp_path, base, 2.0)
    draft = write(tmp_path / "draft.parquet", [gemm("l4", m, 256, 256, 1.0) for m in (1, 16, 64)])
    table = training_rows([draft], "gemm", ["l4"])
    us, as_fitted = (
        measured_calls("gemm", table, "l4", pack, (KNOWN[2], *KNOWN[:2])).predicted_us for pack in (floors, base)
    )
    assert (us > 1.05 * as_fitted).all()
    rows = [
        gemm("l4", int(m), 256, 256, float(one)) for m, one in zip(table["m"].to_pylist(), us.tolist(), strict=True)
    ]
    pack = launched(tmp_path, base, 2.0, *rows)
    moves = [row["value"] for row in pack.to_pylist() if row["part"] == "points" and row["family"] == "gemm"]
    assert np.allclose([one for one in moves if one is not None], 1.0)
    assert product(pack)["tier"] == "points-measured"
    assert product(pack)["latency_us"] == pytest.approx(product(floors)["latency_us"], rel=1e-6)


def test_a_later_launch_replaces_an_earlier_one(tmp_path: Path, base: pa.Table) -> None:
    again = launched(tmp_path, launched(tmp_path, base, 5.0), 2.0)
    assert again.sort_by("family").equals(launched(tmp_path, base, 2.0).sort_by("family"))


def test_other_vendors_have_nothing_to_compare_with(tmp_path: Path, base: pa.Table) -> None:
    said: list[str] = []
    pack = launched(tmp_path, base, 9.0, gpu="mi300x", log=said.append)
    assert pack.num_rows == base.num_rows
    assert said == ["mi300x: nothing is known to compare its empty launch with, so it is not used"]


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_has_a_floor(family: str) -> None:
    assert any(is_floor(one.name) and one.owner != "fixed" for one in FAMILIES[family].latency_model.coefficients)


@pytest.mark.parametrize("us", [700.0, 0.0007, 9.0])
def test_an_empty_launch_in_another_unit_or_with_the_time_of_the_host_is_refused(
    tmp_path: Path, base: pa.Table, us: float
) -> None:
    with pytest.raises(InvalidInput, match=r"an empty launch of l4 takes .* us in the sweep, but .* 0.1 to 6.0 us"):
        launched(tmp_path, base, us)
