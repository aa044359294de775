"""The installed aiconfigurator-core 0.12.0: every row accounted for, every trap of its files met."""

from __future__ import annotations

import importlib.util
from collections import Counter
from pathlib import Path

import polars as pl
import pyarrow.parquet as pq
import pytest

from kernelsight.fitting.kernel_sweeps.aiconfigurator import PACKAGE
from kernelsight.fitting.kernel_sweeps.aiconfigurator_tables import MODULES, TABLES

PLACE = importlib.util.find_spec(PACKAGE)
pytestmark = pytest.mark.skipif(PLACE is None, reason="the extra silicon (aiconfigurator-core) is not installed")
FILES = 736
ROWS = 12_586_413
# the GPU with the most peculiar rows and the smallest files
GPU = "a100_sxm"


@pytest.fixture
def root() -> Path:
    """Return the folder of the installed package."""
    return Path(PLACE.submodule_search_locations[0])


def test_every_file_is_a_known_table(root) -> None:
    files = sorted(root.glob("systems/data/*/*/*/*/*.parquet"))
    assert len(files) == FILES
    assert {file.stem for file in files} <= set(TABLES) | set(MODULES)
    assert sum(pq.read_metadata(file).num_rows for file in files) == ROWS


@pytest.mark.whole
def test_every_row_of_a_gpu_is_kept_as_its_files_say_or_rejected_by_reason(root, import_from) -> None:
    found = import_from("aiconfigurator", root, gpus=GPU)
    rows = sum(pq.read_metadata(file).num_rows for file in root.glob(f"systems/data/{GPU}/*/*/*/*.parquet"))
    assert sum(line["read"] or 0 for line in found.summary) == rows
    assert sum(line["kept"] or 0 for line in found.summary) + sum(found.reasons.values()) == rows
    assert found.reasons == {"faster_than_memory": 19, "kin_faster_than_memory": 3722, "cache_ran_in_bf16": 3752}
    assert "does not list" not in found.notes
    kinds = Counter((point["family"], point["engine"], point["implementation"]) for point in found.points)
    assert kinds["gemm", "vllm", "cublas"] == 9240
    assert kinds["prefill_attention", "trtllm", "trtllm_mma_fmha"] == 4864
    raw = pl.read_parquet(root / f"systems/data/{GPU}/gemm/vllm/0.14.0/gemm_perf.parquet")
    row = raw.filter((pl.col("m") == 64) & (pl.col("n") == 4096) & (pl.col("k") == 4096)).row(0, named=True)
    (point,) = (p for p in found.points if p["engine"] == "vllm" and p["shape"] == {"m": 64, "n": 4096, "k": 4096})
    assert point["latency_us"] == pytest.approx(row["latency"] * 1e3, abs=1e-6)


def test_every_decode_has_all_but_its_own_token_in_the_cache(root, import_from) -> None:
    found = import_from("aiconfigurator", root, gpus="l40s", families="mla_decode")
    assert {point["shape"]["context"] + 1 for point in found.points} == {2**power for power in range(1, 18)}
