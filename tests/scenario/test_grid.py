"""What a grid may be, and each refusal's sentence."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kernelsight.errors import InvalidInput, KernelSightError
from kernelsight.scenario.grid import expand, read_grid
from kernelsight.scenario.plan import plan_rows
from kernelsight.session import Session
from tests.asked import refusals

ROW = {"model": "qwen3-0.6b", "gpu": "l4", "max_concurrency": 2, "num_prompts": 4, "input_len": 8, "output_len": 4}


def refused(session: Session, rows: list[dict[str, Any]]) -> str:
    with pytest.raises(KernelSightError) as caught:
        plan_rows(session, rows)
    return str(caught.value)


def test_axes_make_their_product_in_order():
    rows = expand({"gpu": ["l4", "t4"], "seed": 3, "tp": [1, 2, 4]})
    assert [(row["gpu"], row["seed"], row["tp"]) for row in rows] == [
        *(("l4", 3, 1), ("l4", 3, 2), ("l4", 3, 4)),
        *(("t4", 3, 1), ("t4", 3, 2), ("t4", 3, 4)),
    ]


def test_the_same_rows_from_every_kind_of_grid(session: Session, tmp_path: Path):
    rows = [{"gpu": "l4", "tp": 1}, {"gpu": "l4", "tp": 2}]
    (tmp_path / "axes.json").write_text('{"gpu": "l4", "tp": [1, 2]}')
    (tmp_path / "rows.json").write_text(json.dumps(rows))
    (tmp_path / "rows.csv").write_text("gpu,tp\nl4,1\nl4,2\n")
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "rows.parquet")
    for name in ("axes.json", "rows.json", "rows.csv", "rows.parquet"):
        assert read_grid(session, str(tmp_path / name)) == rows
    for name in ("axes.json", "rows.json"):
        assert read_grid(session, f" {(tmp_path / name).read_text()}") == rows
    assert read_grid(session, "select gpu, unnest([1, 2]) as tp from gpus where gpu = 'l4'") == rows
    assert read_grid(session, "from (values ('l4', 1), ('l4', 2)) as rows (gpu, tp)") == rows


def test_an_empty_cell_leaves_the_flag_open(session: Session, tmp_path: Path):
    (tmp_path / "rows.csv").write_text("model,gpu,kv_cache_dtype\nm,l4,\nm,l4,fp8\n")
    assert [row["kv_cache_dtype"] for row in read_grid(session, str(tmp_path / "rows.csv"))] == [None, "fp8"]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ('{"tp": [], "gpu": "l4"}', "the axis tp is empty; give it a value, or remove it."),
        ('{"tp": [[1]]}', "the axis tp contains a list or an object; use scalars."),
        ('{"tp": 1, "tp": 2}', "is not JSON ('tp' occurs twice; keep one); give JSON of axes"),
        ("[1]", "has no axes; give an object with a scalar or a list for each flag."),
        ("{", "is not JSON (line 1, column 2: "),
        ("[]", "has no rows; give at least one scenario."),
        ("{}", "has no rows; give at least one scenario."),
        (
            json.dumps({name: list(range(1000)) for name in "abc"}),
            "the axes make 1,000,000,000 scenarios; give at most",
        ),
    ],
)
def test_files_that_are_no_grid(session: Session, tmp_path: Path, text: str, sentence: str):
    path = tmp_path / "grid.json"
    path.write_text(text)
    for grid in (str(path), text):
        with pytest.raises(KernelSightError) as caught:
            read_grid(session, grid)
        assert sentence in str(caught.value)


@pytest.mark.parametrize(
    ("grid", "sentence"),
    refusals("scenario/test_grid::test_words_that_are_no_grid"),
)
def test_words_that_are_no_grid(session: Session, grid: str, sentence: str):
    with pytest.raises(KernelSightError) as caught:
        read_grid(session, grid)
    assert sentence in str(caught.value)


@pytest.mark.parametrize(
    ("change", "sentence"),
    refusals("scenario/test_grid::test_a_refusal_names_the_row"),
)
def test_a_refusal_names_the_row(session: Session, change: dict[str, Any], sentence: str):
    assert refused(session, [ROW, ROW | change]).startswith(sentence)


def test_an_objective_is_stated_once(session: Session):
    with pytest.raises(KernelSightError, match="row 1 of the grid: goodput_ttft_ms is set by the row and by --goodput"):
        plan_rows(session, [ROW | {"goodput_ttft_ms": 5.0}], {"goodput_ttft_ms": 9.0})


def test_axes_may_be_tuples_ranges_and_arrays() -> None:
    axes = {"model": "m", "max_concurrency": range(1, 3), "input_len": (5,), "gpu_memory_utilization": np.array([0.5])}
    assert expand(axes) == [
        {"model": "m", "max_concurrency": users, "input_len": 5, "gpu_memory_utilization": 0.5} for users in (1, 2)
    ]
    assert {type(value) for value in expand({"max_concurrency": np.array([3])})[0].values()} == {int}
    with pytest.raises(InvalidInput, match="the axis input_len contains a list"):
        expand({"input_len": np.ones((2, 2))})
