"""Which kernel a pack says that an engine runs, and which rows of a held-out GPU are predicted."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kernelsight.catalog.tables import facts
from kernelsight.fitting.held_out import ROWS_PER_KERNEL, thinned_kernels
from kernelsight.fitting.pack_fit import choice_rows
from kernelsight.kernels.kernel_constants import family_facts
from kernelsight.kernels.kernel_selection import choose
from kernelsight.kernels.pack import default_pack, pack_table
from kernelsight.kernels.pack_contents import network_at
from tests.fitting.measured import point, write

IMPLEMENTATIONS, GPUS = facts("kernel_implementations"), facts("gpus")


def experts(implementation: str, tokens: int) -> dict:
    shape = {
        "tokens": tokens, "hidden": 7168, "intermediate": 256, "experts": 384, "top_k": 8, "moe_tp": 8, "moe_ep": 1,
        "expert_matrices": 3,
    }  # fmt: skip
    return point("moe", "h200_sxm", 100.0, shape=shape, dtype="int4_wo", implementation=implementation)


def test_a_kernel_that_no_engine_serves_answers_only_where_it_is_asked_for(tmp_path: Path) -> None:
    rows = [experts("marlin_moe", 1), *(experts("vllm_marlin_int4_moe", 2**power) for power in range(5))]
    counted = choice_rows([write(tmp_path / "sweep.parquet", rows)], "moe", ["h200_sxm"], IMPLEMENTATIONS)
    assert {row["implementation"]: row["value"] for row in counted} == {"marlin_moe": 1, "vllm_marlin_int4_moe": 0}
    call = {"engine": "vllm", "gpu": "h200_sxm", "dtype": "int4_wo"}
    asked = [call, {**call, "implementation": "vllm_marlin_int4_moe"}]
    found = choose(family_facts("moe", IMPLEMENTATIONS, GPUS), pack_table(counted), "moe", asked)
    assert [name for name, _ in found] == ["marlin_moe", "vllm_marlin_int4_moe"]


def test_rows_that_are_not_fitted_make_no_kernel_an_engines_choice(tmp_path: Path) -> None:
    rows = [experts("marlin_moe", 1), *(experts("cutlass_moe", 2**power) for power in range(5))]
    rows = [row | ({} if row["implementation"] == "marlin_moe" else {"not_fitted": "launched_eagerly"}) for row in rows]
    counted = choice_rows([write(tmp_path / "sweep.parquet", rows)], "moe", ["h200_sxm"], IMPLEMENTATIONS)
    assert {row["implementation"]: row["value"] for row in counted} == {"marlin_moe": 1, "cutlass_moe": 0}


def test_the_pack_that_ships_serves_int4_experts_by_the_layer_of_vllm() -> None:
    shipped = default_pack()
    known = family_facts("moe", IMPLEMENTATIONS, GPUS)
    calls = [{"engine": "vllm", "gpu": gpu, "dtype": "int4_wo"} for gpu in ("h200_sxm", "b200_sxm")]
    assert {name for name, _ in choose(known, shipped, "moe", calls)} == {"marlin_moe"}
    # both kernels were measured there, and have a correction each
    for gpu in ("h200_sxm", "b200_sxm"):
        kernels = network_at(shipped, "moe", gpu)[1]
        assert {"vllm|marlin_moe|int4_wo", "vllm|vllm_marlin_int4_moe|int4_wo"} <= set(kernels)


def test_experts_that_were_measured_untuned_on_hopper_are_no_engines_choice_there() -> None:
    known, shipped = family_facts("moe", IMPLEMENTATIONS, GPUS), default_pack()
    calls = [{"engine": "vllm", "gpu": gpu, "dtype": "fp8"} for gpu in ("h100_sxm", "h200_sxm")]
    # tuned, as a server runs them, they were measured on Blackwell alone
    asked = {**calls[0], "implementation": "flashinfer_cutlass_moe"}
    found = choose(known, shipped, "moe", [*calls, asked])
    assert [name for name, _ in found] == ["fused_moe_triton", "fused_moe_triton", "flashinfer_cutlass_moe"]
    assert found[-1][1] is False
    kernels = network_at(shipped, "moe", "h100_sxm")[1]
    assert "vllm|flashinfer_cutlass_moe_untuned|fp8" in kernels and "vllm|flashinfer_cutlass_moe|fp8" not in kernels


def test_thinned_rows_are_spread_over_each_kernel_and_keep_their_order() -> None:
    names = np.array(["cublas", "cutlass_fp8"])[np.arange(5_000) % 5 // 4]
    words = {name: pa.array(["same"] * names.size) for name in ("dtype", "engine", "gpu")}
    table = pa.table({"implementation": names, **words, "row": np.arange(names.size)})
    kept = thinned_kernels(table)
    rows = kept["row"].to_numpy()
    assert (np.diff(rows) > 0).all()
    many, few = (kept.filter(pc.equal(kept["implementation"], name))["row"].to_numpy() for name in np.unique(names))
    assert many.size == ROWS_PER_KERNEL and few.size == ROWS_PER_KERNEL
    # the first and the last row of each, and no gap of more than twice the spacing
    assert many[0] == 0 and many[-1] == 4_998 and np.diff(many).max() <= 10
    assert (few == np.arange(4, 5_000, 5)).all()
