"""``calibrate fit``: what is refused, what a small sweep gives, and that a pack is written whole or not at all."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import pytest

from kernelsight.cli.calibrate import fit as calibrate_fit
from kernelsight.errors import InvalidInput, UnknownName
from kernelsight.fitting import pack_rows
from kernelsight.kernels import pack
from kernelsight.kernels.pack import read_pack
from tests.fitting.measured import gemm, write

SHAPES = [(m, n, 4096) for m in (1, 16, 128, 1024, 4096) for n in (1024, 4096)]


def sound(gpu: str = "h100_sxm") -> list[dict[str, Any]]:
    """Return a sweep whose products take 3 us and half of what the tensor cores or the memory could do."""
    rows = []
    for m, n, k in SHAPES:
        flops, moved = 2.0 * m * n * k, 2.0 * (m * k + n * k + m * n)
        rows.append(gemm(gpu, m, n, k, 3.0 + 2e6 * max(flops / 989e12, moved / 3.35e12)))
    return rows


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    """A twentieth of the training: how near a correction comes to its sweep is asked in tests/fitting."""
    monkeypatch.setattr("kernelsight.fitting.pack_fit.PACK_EFFORT", 0.02)


def words(sweep: Path, target: Path | None, **given: Any) -> argparse.Namespace:
    named = {"train_gpus": None, "families": None, "format": "table", "gpus": None, "onto": None, "few": None}
    output = None if target is None else str(target)
    return argparse.Namespace(**named | {"sweep": [str(sweep)], "output": output} | given)


@pytest.mark.parametrize(
    ("rows", "given", "sentence"),
    [
        ([], {}, r"sweep\.parquet has no rows; give a sweep with measured kernels\."),
        (
            sound("h100_fast"),
            {},
            r"unknown GPU 'h100_fast'.* The GPUs of a sweep must be in the catalogue or in --gpus\.",
        ),
        (
            [*sound(), gemm("h100_sxm", 1, 8, 8, float("nan"))],
            {},
            r"1 rows have a latency that is not a positive number",
        ),
        (
            [*sound(), gemm("h100_sxm", 1, 8, 8, float("inf"))],
            {},
            r"1 rows have a latency that is not a positive number",
        ),
        ([*sound(), gemm("h100_sxm", 1, 8, 8, 0.0)], {}, r"1 rows have a latency that is not a positive number"),
        (sound(), {"train_gpus": "a100_sxm"}, r"unknown GPU 'a100_sxm'.*h100_sxm"),
        (sound(), {"train_gpus": "mi300x"}, r"unknown GPU 'mi300x'\. The sweeps have rows of h100_sxm\."),
        (sound(), {"families": "gem"}, r"unknown kernel family 'gem'. Did you mean gemm"),
        (sound(), {"families": "zzz"}, r"unknown kernel family 'zzz'\. Measured families are gemm, "),
    ],
)
def test_sweeps_and_words_that_are_refused(
    rows: list[dict[str, Any]], given: dict[str, Any], sentence: str, tmp_path: Path
) -> None:
    target = tmp_path / "pack.parquet"
    with pytest.raises((InvalidInput, UnknownName), match=sentence):
        calibrate_fit.run(words(write(tmp_path / "sweep.parquet", rows), target, **given))
    assert not target.exists()


def test_a_pack_needs_a_file(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="calibrate fit needs -o FILE"):
        calibrate_fit.run(words(write(tmp_path / "sweep.parquet", sound()), None))


def test_a_small_sweep_of_one_family_is_fitted_without_naming_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "pack.parquet"
    calibrate_fit.run(words(write(tmp_path / "sweep.parquet", sound()), target))
    rows = read_pack(target).to_pylist()
    assert {row["family"] for row in rows} == {"gemm"}
    assert {row["part"] for row in rows} == {
        "constant",
        "choice",
        "correction",
        "interval",
        "nearby",
        "portability",
        "version",
    }
    # one GPU is one generation: no fit without it
    assert {row["without"] for row in rows} == {None}
    counted = [row for row in rows if row["part"] == "choice"]
    assert [(row["implementation"], row["value"]) for row in counted] == [("cublas", len(SHAPES))]
    printed = capsys.readouterr()
    assert "gemm" in printed.out and "gemm: 10 rows" in printed.err


def test_a_gpu_outside_the_catalogue_is_fitted_by_its_row(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sweep, target, row = (
        write(tmp_path / "sweep.parquet", sound("mine")),
        tmp_path / "pack.parquet",
        tmp_path / "g.json",
    )
    row.write_text('[{"gpu": "mine", "like": "h100_sxm", "measured_as": "mine"}]')
    calibrate_fit.run(words(sweep, target, gpus=str(row)))
    assert {one["gpu"] for one in read_pack(target).to_pylist() if one["part"] == "correction"} == {"mine"}


@pytest.mark.parametrize("place", ["fit", "write"])
def test_an_interrupt_leaves_no_half_pack(place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "pack.parquet"
    target.write_bytes(b"an older pack")

    def interrupted(*_: Any, **__: Any) -> None:
        for path in tmp_path.glob(".pack*"):
            path.write_bytes(b"half")
        raise KeyboardInterrupt

    def half_written(table: Any, path: Path, **_: Any) -> None:
        path.write_bytes(b"half")
        raise KeyboardInterrupt

    if place == "fit":
        monkeypatch.setattr("kernelsight.fitting.pack_fit.fit_pack", interrupted)
    else:
        monkeypatch.setattr("kernelsight.fitting.pack_fit.fit_pack", lambda *_, **__: pack.pack_table([]))
        monkeypatch.setattr(pack_rows.pq, "write_table", half_written)
    with pytest.raises(KeyboardInterrupt):
        calibrate_fit.run(words(write(tmp_path / "sweep.parquet", sound()), target))
    assert target.read_bytes() == b"an older pack"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["pack.parquet", "sweep.parquet"]


def test_few_calls_need_a_model_to_correct(tmp_path: Path) -> None:
    few = write(tmp_path / "few.parquet", sound("l4"))
    with pytest.raises(InvalidInput, match=r"--few corrects a kernel model; give it by --onto, a file, or default\."):
        calibrate_fit.run(words(few, tmp_path / "pack.parquet", few=[str(few)]))
