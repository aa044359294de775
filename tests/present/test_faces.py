"""One page has three faces with the same facts; what a verb answers is a page, also as HTML."""

from __future__ import annotations

import html
import json
from pathlib import Path
from typing import Any

import pytest

from kernelsight.cli.main import main
from kernelsight.present.page import Figure, Page, Table
from kernelsight.present.show import show
from kernelsight.present.terminal import lines_of, table_of
from tests.present.html.browser import specs_of, without_scripts

STEP = ["predict", "--model", "qwen3-0.6b", "--gpu", "l4", "--context-len", "1000"]
LOAD = ["--num-prompts", "6", "--input-len", "64", "--output-len", "4", "--max-concurrency", "2"]
ROWS = [{"gpu": "l4", "req/s": 4.5}, {"gpu": "t4", "req/s": None}, {"gpu": "h100", "req/s": 20.0}]
PAGE = Page(
    "a title",
    {"rate": 4.5},
    asked=["which GPU"],
    tiles={"req/s": 4.5, "unknown": None},
    sentences=["an l4"],
    figures=lambda: [Figure("drawn", "", rows=ROWS)],
    tables=[Table("GPUs:", ROWS, most=2, more="more, not shown"), Table("empty"), Table("drawn too", ROWS, drawn=True)],
    evidence=[Table("Left out", ROWS, below="3 left out", most=0)],
    assumed=["nothing"],
    repeat=["launch:", "vllm serve m"],
)


def test_paragraphs_of_a_terminal_are_in_the_order_of_the_model() -> None:
    paragraphs = [text.split("\n") for text in "\n".join(lines_of(PAGE)).split("\n\n")]
    assert paragraphs[:2] == [["which GPU"], ["req/s  4.5", "an l4"]]
    assert paragraphs[2] == ["GPUs:", "gpu  req/s", "---  -----", "l4     4.5", "t4", "... and 1 more, not shown"]
    assert [paragraph[0] for paragraph in paragraphs[3:]] == ["drawn too", "3 left out", "assumed:", "launch:"]
    # without figures the findings belong to the question
    assert lines_of(PAGE._replace(tiles={}))[:2] == ["which GPU", "an l4"]
    assert table_of(Table("title", below="nothing above it")) == []


def test_faces_hold_the_same_answer(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    pytest.importorskip("vl_convert", reason="the extra `report` is not installed")
    show(PAGE, "json", tmp_path / "page.html")
    assert json.loads(capsys.readouterr().out) == PAGE.answer
    show(PAGE, "csv", None, ROWS)
    assert capsys.readouterr().out == "gpu,req/s\nl4,4.5\nt4,\nh100,20.0\n"
    text = html.unescape(without_scripts((tmp_path / "page.html").read_text(encoding="utf-8")))
    for words in ("a title", "which GPU", "an l4", "GPUs", "Left out", "nothing", "vllm serve m", "How to repeat it"):
        assert words in text
    assert text.count(">h100<") == 3  # not in "drawn too", which a figure shows
    assert "3 left out" not in text and "unknown" not in text


@pytest.mark.parametrize("words", [["simulate", *STEP[1:5], *LOAD], STEP])
def test_a_verb_that_answers_writes_its_page(words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    pytest.importorskip("vl_convert", reason="the extra `report` is not installed")
    path = tmp_path / "page.html"
    assert main([*words, "-o", str(path)]) == 0
    text, shown = html.unescape(path.read_text(encoding="utf-8")), capsys.readouterr().out
    assumed = [line.removeprefix("  - ") for line in shown.splitlines() if line.startswith("  - ")]
    assert assumed and all(sentence in text for sentence in assumed)
    assert shown.splitlines()[0] in text and specs_of(path)


def test_a_roofline_has_each_kernel_below_its_roof(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    pytest.importorskip("vl_convert", reason="the extra `report` is not installed")
    path = tmp_path / "page.html"
    assert main([*STEP, "--format", "json", "-o", str(path)]) == 0
    kernels: dict[str, Any] = {kernel["name"]: kernel for kernel in json.loads(capsys.readouterr().out)["kernels"]}
    (spec,) = specs_of(path)
    points = [row for row in spec["data"]["values"] if not row.get("roof")]
    for point in points:
        kernel = kernels[point["name"]]
        assert point["tflops"] == pytest.approx(kernel["flops"] / kernel["latency_us"] / 1e6, rel=1e-5)
    roof = [row for row in spec["data"]["values"] if row.get("roof") == "bf16"]
    assert len(points) > 5 and len(roof) == 3
    # an l4: 300 GB/s and 121 TFLOP/s meet at the middle one
    assert roof[1]["tflops"] == roof[2]["tflops"] == pytest.approx(300e9 * roof[1]["intensity"] / 1e12, rel=1e-5)
