"""What a GPU of the same generation shows at a shape is believed before what a kernel model says of it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest

from kernelsight.catalog.tables import facts
from kernelsight.choices.candidates import sibling_differences, siblings
from kernelsight.choices.choices import contrasts
from kernelsight.choices.contrasts import LEFT_TO_SIBLINGS
from kernelsight.choices.inputs import choice_of
from tests.choices import made_choices
from tests.choices.made_choices import ENGINES, MANY_SIZES, latency_us
from tests.fitting.measured import gemm, write

GENERATIONS = {"a100_sxm": "ampere", "l40s": "ada", "h100_sxm": "hopper", "h200_sxm": "hopper"}


def rows(*values: tuple[str, str, str, float]) -> pl.DataFrame:
    return pl.DataFrame(
        [dict(zip(("gpu", "engine", "implementation", "latency_us"), row, strict=True), m=8.0) for row in values]
    )


def test_a_sibling_is_of_the_same_generation_and_the_nearest_in_bandwidth() -> None:
    generations = GENERATIONS | {"h100_pcie": "hopper", "unheard_of": None, "unseen": None}
    found = siblings("h200_sxm", ["a100_sxm", "h100_sxm", "h100_pcie"], facts("gpus"), generations)
    assert found == {"h200_sxm": "h100_sxm", "a100_sxm": None, "h100_sxm": "h100_pcie", "h100_pcie": "h100_sxm"}
    assert siblings("unseen", ["unheard_of"], facts("gpus"), generations)["unseen"] is None


def test_others_have_siblings_only_where_the_asked_gpu_has_one() -> None:
    found = siblings("l40s", ["a100_sxm", "h100_sxm", "h200_sxm"], facts("gpus"), GENERATIONS)
    assert set(found.values()) == {None}


def test_the_same_kernel_counts_and_else_the_fastest_of_its_engine() -> None:
    asked = rows(("x", "a", "one", 0.0), ("x", "b", "new", 0.0), ("x", "c", "none", 0.0))
    known = rows(("y", "a", "one", 20.0), ("y", "a", "two", 1.0), ("y", "b", "old", 5.0), ("y", "b", "older", 9.0))
    found = sibling_differences(asked, np.array([10.0, 10.0, 10.0]), known, ["m"], {"x": "y"})
    assert found == pytest.approx([np.log(2.0), -np.log(2.0), 0.0]), "20 against 5, and c is not known"


def rough(gpu: str) -> list[dict]:
    """Return a sweep whose order turns from shape to shape by chance: no smooth effect can hold it."""
    draw = np.random.default_rng(3).normal(0.0, 0.3, (len(MANY_SIZES), len(ENGINES)))
    return [
        gemm(gpu, *size, latency_us(gpu, engine, *size) * float(np.exp(draw[place, number])), engine=engine)
        for place, size in enumerate(MANY_SIZES)
        for number, engine in enumerate(ENGINES)
    ]


def test_a_sibling_is_believed_at_the_very_shape(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The order of H100, made by chance, is that of H200: the choice follows it, as no smooth effect could."""
    monkeypatch.setitem(made_choices.SPEED, "h200_sxm", 2.5)
    path = write(tmp_path / "sweep.parquet", [*rough("h100_sxm"), *made_choices.rows("a100_sxm", MANY_SIZES)])
    found = choice_of([path], "gemm", "h200_sxm", facts("gpus"))
    truth = {(row["shape"]["m"], row["shape"]["n"], row["shape"]["k"], row["engine"]): row for row in rough("h200_sxm")}
    table = found.rows.with_columns(score=pl.Series(contrasts(found)[0].mean))
    table = table.with_columns(
        truth=pl.Series([truth[m, n, k, e]["latency_us"] for m, n, k, e in table["m", "n", "k", "engine"].rows()])
    )
    best = table.group_by("m", "n", "k").agg(
        regret=pl.col("truth").sort_by("score").first() / pl.col("truth").min() - 1.0
    )
    assert best["regret"].mean() < 0.05
    assert (found.candidates.free == LEFT_TO_SIBLINGS).all() and (found.others.free == 1.0).all()
