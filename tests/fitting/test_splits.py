"""Sites and their order, written out; folds by generation."""

from __future__ import annotations

import hashlib

import numpy as np
import pyarrow as pa
import pytest

from kernelsight.fitting.kernel_sweeps.devices import SEALED
from kernelsight.fitting.splits import (
    GENERATIONS,
    HEADLINE_TRAIN,
    budget_sites,
    generation_folds,
    in_budget,
    site_names,
)

# the first digits of the SHA-256 of each name
HASHES = {
    "gemm|4096,4096": "f04eaadc93ac",
    "gemm|4096,1024": "b608c044c8dd",
    "gemm|1024,1024": "9965e9d51e85",
    "gemm|1024,4096": "8400d4a93adc",
}


def test_hashes_are_those_of_the_names():
    assert {name: hashlib.sha256(name.encode()).hexdigest()[:12] for name in HASHES} == HASHES


@pytest.mark.parametrize(
    ("budget", "sites"),
    [
        (0.01, ["gemm|1024,4096", "gemm|1024,1024"]),  # two at least
        (0.5, ["gemm|1024,4096", "gemm|1024,1024"]),
        (0.51, ["gemm|1024,4096", "gemm|1024,1024", "gemm|4096,1024"]),
        (0.99, ["gemm|1024,4096", "gemm|1024,1024", "gemm|4096,1024", "gemm|4096,4096"]),
    ],
)
def test_budget_takes_the_first_sites_by_hash(budget: float, sites: list[str]):
    assert budget_sites(list(HASHES), budget) == sites


def test_budget_is_rounded_up_but_not_beyond_a_whole_number():
    names = [f"quantize|{number}" for number in range(30)]
    assert len(budget_sites(names, 0.1)) == 3
    assert len(budget_sites(names, 0.11)) == 4


def test_a_site_is_held_out_over_all_other_columns():
    rows = pa.table(
        {
            "n": [1024.0, 4096.0, 1024.0, 4096.0, 4096.0],
            "k": [4096.0, 4096.0, 4096.0, 1024.0, 4096.0],
            "m": [1.0, 1.0, 512.0, 1.0, 7.0],
            "dtype": ["bf16", "bf16", "fp8", "bf16", "fp8"],
        }
    )
    # two of three sites: 1024,4096 and 4096,1024
    assert in_budget("gemm", rows, 0.1).tolist() == [True, False, True, True, False]


def test_sites_of_experts_are_those_of_the_whole_layer():
    rows = pa.table(
        {"hidden": [2048.0], "intermediate": [384.0], "top_k": [8.0], "local_experts": [32.0], "moe_tp": [2.0]}
    )
    rows = rows.append_column("moe_ep", pa.array([4.0]))
    assert site_names("moe", rows)[0] == ["moe|2048,768,8,128,2,4"]


def test_a_whole_layer_is_held_out_with_all_of_its_splits():
    split = {"moe_tp": [1.0, 2.0, 1.0, 1.0], "moe_ep": [1.0, 4.0, 8.0, 1.0]}
    layer = {"intermediate": [768.0, 384.0, 768.0, 512.0], "local_experts": [128.0, 32.0, 16.0, 128.0]}
    rows = pa.table({"hidden": [2048.0] * 4, "top_k": [8.0] * 4, **layer, **split})
    names, of_row = site_names("moe", rows, whole_layers=True)
    assert sorted(names) == ["moe|2048,512,8,128", "moe|2048,768,8,128"]
    assert len(set(of_row[:3])) == 1
    assert of_row[3] != of_row[0]
    assert len(site_names("moe", rows)[0]) == 4
    # four layers, of which two are measured, first by hash: no layer is on both sides
    more = pa.concat_tables([rows, rows.set_column(0, "hidden", pa.array([4096.0] * 4))])
    chosen = in_budget("moe", more, 0.3, whole_layers=True)
    of_layer = site_names("moe", more, whole_layers=True)[1]
    assert not set(of_layer[chosen]) & set(of_layer[~chosen])
    assert len(set(of_layer[chosen])) == 2


def test_values_that_would_overflow_a_product_still_make_sites():
    many = np.arange(5000, dtype=float)
    columns = ("hidden", "intermediate", "top_k", "local_experts")
    rows = pa.table({**dict.fromkeys(columns, many), "moe_tp": np.ones(5000), "moe_ep": np.ones(5000)})
    assert len(site_names("moe", rows)[0]) == 5000


def test_folds_leave_whole_generations_out():
    folds = generation_folds((*HEADLINE_TRAIN, "gb200"))
    assert [fold.test_gpus for fold in folds] == [("a100_sxm",), ("l40s",), ("h100_sxm", "h200_sxm"), ("gb200",)]
    assert folds[2].train_gpus == ("a100_sxm", "l40s", "gb200")


def test_no_fold_looks_at_what_is_sealed():
    assert not {gpu for members in GENERATIONS.values() for gpu in members} & set(SEALED)
