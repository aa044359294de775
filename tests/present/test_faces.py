"""One page has three faces with the same facts; what a verb answers is a page, also as HTML."""

from __future__ import annotations

import html
import json
from pathlib import Path

import pytest

from kernelsight.cli.main import main
from kernelsight.present.output import as_csv
from kernelsight.present.page import Figure, Page, Table
from kernelsight.present.show import lines_of, show, table_of
from kernelsight.version import VERSION
from tests.present.html.browser import specs_of, without_scripts

STEP = ["predict", "--model", "qwen3-0.6b", "--gpu", "l4", "--context-len", "1000"]
LOAD = "--num-prompts 64 --input-len 64 --output-len 32 --max-concurrency 32 --max-num-seqs 4 --advise".split()
ROWS = [{"gpu": "l4", "req/s": 4.5}, {"gpu": "t4", "req/s": None}, {"gpu": "h100", "req/s": 20.0}]
PAGE = Page(
    "a title",
    {"rate": 4.5},
    asked=["which GPU"],
    tiles={"req/s": 4.5, "unset": None},
    sentences=["an l4"],
    figures=[Figure("drawn", "", rows=ROWS, most_rows=2)].copy,
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
    # without tiles the findings belong to the question
    assert lines_of(PAGE._replace(tiles={}))[:2] == ["which GPU", "an l4"] and table_of(Table("", below="x")) == []


@pytest.fixture
def path(tmp_path: Path) -> Path:
    pytest.importorskip("vl_convert", reason="the extra `report` is not installed")
    return tmp_path / "page.html"


def test_faces_hold_the_same_answer(path: Path, capsys: pytest.CaptureFixture) -> None:
    show(lambda: PAGE, "json", path)
    assert json.loads(capsys.readouterr().out) == {**PAGE.answer, "kernelsight_version": VERSION}
    show(lambda: PAGE, "csv", None, lambda: as_csv(ROWS, list(ROWS[0])))
    assert capsys.readouterr().out == "gpu,req/s\nl4,4.5\nt4,\nh100,20.0\n"
    text = html.unescape(without_scripts(path.read_text(encoding="utf-8")))
    shown = ("a title", "which GPU", "an l4", "GPUs", "Left out", "nothing", "vllm serve m", "How to repeat it")
    assert all(words in text for words in (*shown, "1 more rows are not shown"))
    # two rows of the figure, three of two tables: not those that the figure shows
    assert (text.count(">l4<"), text.count(">h100<")) == (3, 2)
    assert not any(words in text for words in ("3 left out", "unset", "drawn too", "empty"))


@pytest.mark.parametrize("words", [pytest.param(["simulate", *STEP[1:5], *LOAD], marks=pytest.mark.whole), STEP])
def test_a_verb_that_answers_writes_its_page(words: list[str], path: Path, capsys: pytest.CaptureFixture) -> None:
    assert main([*words, "-o", str(path)]) == 0
    text, lines = html.unescape(path.read_text(encoding="utf-8")), capsys.readouterr().out.splitlines()
    assumed = [line.removeprefix("  - ") for line in lines if line.startswith("  - ")]
    assert assumed and all(sentence in text for sentence in assumed) and lines[0] in text and specs_of(path)
    if "--advise" in words:
        first = lines.index("changes of one setting that help, simulated on the same requests:") + 1
        assert lines[first].startswith("  max_num_seqs 4 to ") and lines[first].strip() in text
        assert all("quality of answers" in line for line in lines if line.startswith(("  quantization", "  kv_cache")))


def test_a_roofline_has_each_kernel_below_its_roof(path: Path, capsys: pytest.CaptureFixture) -> None:
    assert main([*STEP, "--format", "json", "-o", str(path)]) == 0
    kernels = {kernel["name"]: kernel for kernel in json.loads(capsys.readouterr().out)["kernels"]}
    rows = specs_of(path)[0]["data"]["values"]
    points, roof = [row for row in rows if not row.get("roof")], [row for row in rows if row.get("roof") == "bf16"]
    rates = [kernels[row["name"]]["flops"] / kernels[row["name"]]["latency_us"] / 1e6 for row in points]
    assert [row["tflops"] for row in points] == pytest.approx(rates, rel=1e-5) and len(points) > 5
    # an l4: its 300 GB/s and its rate meet at the middle of three
    assert roof[1]["tflops"] == roof[2]["tflops"] == pytest.approx(0.3 * roof[1]["intensity"], rel=1e-5)
