"""The page of a sizing: the answer, the costs, the hours of a day, nothing fetched."""

from __future__ import annotations

import html
from pathlib import Path
from typing import Any

import pytest

from kernelsight.present.pages.size import size_page
from kernelsight.present.show import write_page
from tests.present.html.browser import FETCHED, specs_of, without_scripts

pytest.importorskip("vl_convert", reason="the extra `report` is not installed")
ROW = {
    **{"gpu": "h100_sxm", "tensor_parallel_size": 2, "rate": 4.0, "load": 0.8, "probability": 0.95, "instances": 3},
    **{"gpus": 6, "price_per_hour": 15.0, "cost_per_day": 300.0, "cost_per_million_tokens": 0.2},
    "not_measured": "kernels on <cheap>",
}
HOURS = [
    {"hour": hour, "asked": 4.0, "instances": 2, "started": 0, "gpus": 4, "price_per_hour": 9.5} for hour in range(24)
]
ANSWER: dict[str, Any] = {
    "answer": "6 × h100_sxm <cheap>.",
    "evidence": [
        {"component": "attention", "tier": "target-measured", "measured_share": 0.9, "evidence": "sweep of <cheap>"}
    ],
    "chosen": ROW,
    "rows": [ROW, ROW | {"gpu": "l4", "probability": None}],
    "left_out": [{"gpu": "t4", "tensor_parallel_size": 1, "reason": "it does not fit"}],
    "decides": None,
    "day": {"unit": "requests/s", "hours": HOURS, "startup": "a start takes 80 s"},
    "launch": ["vllm serve m"],
}


def test_a_page_has_the_answer_its_costs_and_its_day_and_may_have_no_deployment(tmp_path: Path) -> None:
    path = tmp_path / "size.html"
    heads = {"gpu": "gpu", "rate": "req/s", "probability": "sure", "cost_per_day": "$/day"}
    write_page(size_page(ANSWER, heads), path)
    text = path.read_text(encoding="utf-8")
    assert not FETCHED.search(without_scripts(text)) and "<cheap>" not in text
    for words in ("6 × h100_sxm <cheap>.", "300", "0.95", "vllm serve m", "it does not fit", "A start takes 80 s."):
        assert words in html.unescape(text) and "sweep of" in text
    costs, day = specs_of(path)
    assert [row["weight"] for row in costs["data"]["values"]] == [300.0, 300.0]
    assert costs["encoding"]["x"]["title"] == "$ a day" and len(day["data"]["values"]) == 24
    write_page(size_page({**ANSWER, "chosen": None, "rows": [], "launch": [], "day": None}, {}), path)
    assert "No deployment keeps the objectives" in path.read_text(encoding="utf-8") and not specs_of(path)
