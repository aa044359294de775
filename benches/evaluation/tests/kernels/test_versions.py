"""Newer engine versions: which rows are new, what was measured of them before, and the scores with their floor."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kernelsight.cli.calibrate import evaluate as calibrate_evaluate
from kernelsight.errors import InvalidInput, UnknownName
from kernelsight.kernels.pack import default_pack
from kernelsight.laboratory.kernels.versions import (
    new_versions,
    packed_latency,
    scored_versions,
    version_rows,
    version_scores,
)
from tests.fitting.measured import gemm, write

PACK = default_pack()
SHAPE = (512, 4096, 4096)


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """Two versions of one key: the newer one took 50 us."""
    rows = [gemm("h100_sxm", *SHAPE, us, engine_version=version) for version, us in (("0.9.2", 70.0), ("0.24.0", 50.0))]
    return write(tmp_path / "old.parquet", [*rows, gemm("h100_sxm", 1, 512, 512, 3.0, engine_version="0.24.0")])


@pytest.fixture
def new(tmp_path: Path) -> Path:
    rows = [
        gemm("h100_sxm", *SHAPE, 40.0, engine_version="0.25.0"),
        gemm("h100_sxm", 64, 4096, 4096, 12.0, engine_version="0.25.0"),
        gemm("h100_sxm", 64, 4096, 4096, 11.0, engine_version="0.31.0", implementation="cutlass_fp8", dtype="fp8"),
        gemm("h100_sxm", *SHAPE, 49.0, engine_version="0.24.0"),
        gemm("b300_sxm", *SHAPE, 30.0, engine_version="0.25.0"),
    ]
    return write(tmp_path / "new.parquet", rows)


def test_versions_that_the_old_sweeps_lack_are_new(old, new):
    assert new_versions([old], [new]) == [("vllm", "0.25.0"), ("vllm", "0.31.0")]
    assert new_versions([old], [new], ["vllm:0.31.0"]) == [("vllm", "0.31.0")]
    with pytest.raises(UnknownName, match="unknown new engine version 'vllm:0.24.0'"):
        new_versions([old], [new], ["vllm:0.24.0"])
    with pytest.raises(InvalidInput, match="hold no engine version that the training sweeps lack"):
        new_versions([old, new], [new])


def test_a_row_knows_what_was_measured_before_it(old, new):
    rows, scope, earlier_us = version_rows("gemm", "h100_sxm", [old], [new], new_versions([old], [new]))
    found = dict(zip(scope, zip(rows["latency_us"].to_pylist(), earlier_us.tolist(), strict=True), strict=True))
    # of two older versions the newer one counts, though its text sorts first
    assert found["same key"] == (40.0, 50.0)
    assert found["same kernel"][0] == 12.0 and np.isnan(found["same kernel"][1])
    assert found["new kernel"][0] == 11.0


def test_scores_stand_beside_the_floor(old, new):
    rows = version_scores(list(scored_versions([old], [new], PACK)))
    by_scope = {row["scope"]: row for row in rows if row["family"] == "gemm"}
    same = by_scope["same key"]
    assert same["floor_bias"] == pytest.approx(0.25) and same["floor_n"] == same["n"] == 1
    assert same["versions"] == "vllm 0.25.0" and same["gpus"] == "h100_sxm"
    assert by_scope["same kernel"]["floor_mape"] is None and by_scope["same kernel"]["mape"] > 0.0
    assert {row["scope"] for row in rows if row["family"] is None} == set(by_scope)


def test_a_gpu_that_the_old_sweeps_alone_hold_has_nothing_to_score(old, new, tmp_path):
    another = write(tmp_path / "another.parquet", [gemm("a100_sxm", *SHAPE, 90.0, engine_version="0.24.0")])
    with pytest.raises(UnknownName, match="unknown GPU 'a100_sxm'.*The sweeps hold no row of it"):
        list(scored_versions([old, another], [new], PACK, gpus=["a100_sxm"]))


def test_a_pack_predicts_a_sweep_within_what_it_learned(old, new):
    rows, _, _ = version_rows("gemm", "h100_sxm", [old], [new], [("vllm", "0.25.0")])
    latency, low, high = packed_latency("gemm", "h100_sxm", rows, PACK)
    assert np.all(low < latency) and np.all(latency < high)
    # a product of 17 GFLOP at 989 TFLOP/s, read with weights that lie in L2
    assert 17.0 < latency[rows["m"].to_pylist().index(512.0)] < 40.0


def test_gpus_of_the_final_evaluation_are_never_scored(old, new):
    assert {table["gpu"][0].as_py() for table in scored_versions([old], [new], PACK)} == {"h100_sxm"}
    with pytest.raises(InvalidInput, match="b300_sxm is held out for the final evaluation"):
        list(scored_versions([old], [new], PACK, gpus=["b300_sxm"]))


def words(**given: Any) -> argparse.Namespace:
    named = dict.fromkeys(("train_gpus", "test_gpus", "tier", "budget", "families", "train", "pack", "output"))
    return argparse.Namespace(
        **{
            **named,
            "final": False,
            "whole_layers": False,
            "points": None,
            "random_points": None,
            "test_versions": "new",
            "format": "json",
            **given,
        }
    )


def test_the_verb_prints_scores_and_the_versions(old, new, tmp_path, capsys):
    target = tmp_path / "scores.csv"
    calibrate_evaluate.run(words(sweep=[str(new)], train=[str(old)], output=str(target)))
    printed = json.loads(capsys.readouterr().out)
    assert printed["engine_version_used"] == ["vllm:0.25.0", "vllm:0.31.0"]
    assert len(target.read_text().splitlines()) == len(printed["rows"]) + 1


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"train": None}, "--test-versions and --train belong together"),
        ({"budget": 0.1}, "--test-versions scores a fitted model; leave out --tier, --budget"),
        ({"families": "moe"}, "unknown kernel family 'moe'"),
        ({"test_versions": None, "train": None}, "calibrate evaluate needs --test-gpus"),
    ],
)
def test_words_that_do_not_fit_are_refused(given, sentence, old, new):
    with pytest.raises((InvalidInput, UnknownName), match=sentence):
        calibrate_evaluate.run(words(**{"sweep": [str(new)], "train": [str(old)], **given}))
