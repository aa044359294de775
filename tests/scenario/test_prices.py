"""Prices of GPUs: every way to state them, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kernelsight.errors import KernelSightError
from kernelsight.scenario.prices import priced, read_prices
from kernelsight.session import Session
from tests.asked import refusals


def test_words_mappings_and_files(session: Session, tmp_path: Path):
    wanted = {"h100_sxm": 2.2, "l4": 0.7}
    table, names, rows = (tmp_path / name for name in ("prices.csv", "names.json", "rows.json"))
    table.write_text("gpu,price_per_gpu_hour\nH100,2.2\nl4,0.7\n")
    names.write_text(json.dumps(wanted))
    rows.write_text(json.dumps([{"gpu": gpu, "price": price} for gpu, price in wanted.items()]))
    for stated in ("H100=2.2, l4=0.7", wanted, table, names, str(rows)):
        assert read_prices(session, stated) == wanted
    assert read_prices(session, None) == {}


@pytest.mark.parametrize(
    ("stated", "sentence"),
    refusals("scenario/test_prices::test_what_is_no_price"),
)
def test_what_is_no_price(session: Session, stated: object, sentence: str):
    with pytest.raises(KernelSightError) as caught:
        read_prices(session, stated)
    assert str(caught.value).startswith(sentence.split(" Did you mean")[0])


def test_a_file_without_its_columns(session: Session, tmp_path: Path):
    path = tmp_path / "prices.csv"
    path.write_text("gpu,dollars\nl4,1\n")
    with pytest.raises(KernelSightError) as caught:
        read_prices(session, path)
    assert str(caught.value) == f"{path} lacks the columns gpu and price_per_gpu_hour; give both in every row."


def test_rows_of_a_grid_take_them(session: Session):
    grid = [{"gpu": "H100"}, {"gpu": "l4"}, {"gpu": "h100_sxm", "prefill_gpu": "H100"}]
    rows = priced(session, grid, {"h100_sxm": 2.0, "l4": 1.0})
    assert [row["price_per_gpu_hour"] for row in rows] == [2.0, 1.0, 2.0]
    for row, sentence in (
        (
            {"gpu": "l4", "price_per_gpu_hour": 1},
            "row 1 of the grid has a price, and so has --prices; keep one of them.",
        ),
        (
            {"gpu": "l4", "prefill_gpu": "H100"},
            "row 1 of the grid has prefill replicas on GPUs of another price; use `size`.",
        ),
        ({"gpu": "t4"}, "--prices has no price for t4; add t4=PRICE, or leave --prices out."),
    ):
        with pytest.raises(KernelSightError) as caught:
            priced(session, [row], {"h100_sxm": 2.0, "l4": 1.0})
        assert str(caught.value) == sentence
