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
    "decides": "FP8 would halve it.",
    "cliff": None,
    "question": {
        "flags": {"model": "<m>", "input_len": 1000, "output_len": 100},
        **{"gpus": ["h100_sxm", "t4"], "rate": 4.0, "users": None, "total_gpus": None, "hours": None, "peak": 1.0},
        "slo": [{"statistic": "ttft_p99_ms", "most_ms": 500.0}],
        **{"confidence": 0.9, "prices": [{"gpu": "h100_sxm", "price_per_gpu_hour": 2.5}]},
    },
    "axes": {"gpu": ["h100_sxm", "t4"], "tensor_parallel_size": ["1", "2"]},
    "confidences": [
        {"confidence": confidence, "place": 1, "instances": 3, "served": 4.0, "cost_per_day": cost}
        for confidence, cost in ((0.8, 300.0), (0.9, 400.0))
    ],
    "day": {"unit": "requests/s", "hours": HOURS, "startup": "a start takes 80 s"},
    "launch": ["vllm serve m"],
}


def test_a_page_has_the_answer_its_costs_and_its_day_and_may_have_no_deployment(tmp_path: Path) -> None:
    path = tmp_path / "size.html"
    heads = {"rate": "req/s", "probability": "sure", "cost_per_day": "$/day"}
    write_page(size_page(ANSWER, ["gpu", *heads], heads), path)
    text = path.read_text(encoding="utf-8")
    assert not FETCHED.search(without_scripts(text)) and "<cheap>" not in text
    said = [
        "6 × h100_sxm <cheap>.",
        "300",
        "0.95",
        "vllm serve m",
        "it does not fit",
        "A start takes 80 s.",
        "sweep of",
    ]
    said += ["asked: <m>, 4 requests/s; 1,000 prompt and 100 output tokens", "2.5 $/h", "FP8 would halve it."]
    assert [words for words in said if words not in html.unescape(text)] == []
    costs, day = specs_of(path)
    assert [row["weight"] for row in costs["data"]["values"]] == [300.0, 400.0]
    assert costs["encoding"]["y"]["title"] == "$ a day" and len(day["data"]["values"]) == 24
    write_page(
        size_page({**ANSWER, "chosen": None, "rows": [], "launch": [], "confidences": [], "day": None}, [], {}), path
    )
    assert "No deployment keeps the objectives" in path.read_text(encoding="utf-8") and not specs_of(path)
