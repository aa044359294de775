"""Pages of verbs: no empty cards, and how to repeat them, as a command and as Python that gives the same."""

from __future__ import annotations

import html
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import kernelsight as ks
from kernelsight.cli.main import main
from kernelsight.errors import UnknownName
from kernelsight.present.pages.compare import _figures

DEPLOYED = ["--model", "qwen3-0.6b", "--gpu", "l4"]
LOAD = ["--max-concurrency", "2", "--num-prompts", "6", "--input-len", "64", "--output-len", "8"]


def test_a_page_is_there_though_nobody_reads_the_answer(tmp_path: Path) -> None:
    pytest.importorskip("vl_convert")
    log = tmp_path / "log.csv"
    rows = [f"{number},64,8,{20 + number % 3},{80 + number % 5}" for number in range(40)]
    log.write_text("\n".join(["arrival_s,prompt_tokens,output_tokens,ttft_ms,e2e_ms", *rows]))
    words = ["compare", "--log", str(log), "--baseline", str(log), "-o", "page.html"]
    with subprocess.Popen(
        [sys.executable, "-u", "-m", "kernelsight", *words],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as asked:
        asked.stdout.close()
        assert asked.wait(300) == 0
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "Latencies before and after" in text and "40 requests compared: log.csv" in text


def test_a_page_that_cannot_be_made_is_refused_before_the_work(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setattr("kernelsight.present.html.page.find_spec", lambda module: None)
    monkeypatch.setattr("kernelsight.cli.simulate.run", lambda arguments: pytest.fail("it was simulated"))
    assert main(["simulate", *DEPLOYED, *LOAD, "-o", "page.html"]) == 2
    assert "an HTML page needs jinja2, which is not installed; run pip install" in capsys.readouterr().err


def test_a_summary_answers_to_the_columns_of_its_table(session: ks.Session) -> None:
    words = {"model": "qwen3-0.6b", "gpu": "l4", "max_concurrency": 2, "num_prompts": 6, "input_len": 64}
    run = session.simulate(**words, output_len=8)
    summary = run.summary
    (row,) = run.table("scenario_summary").to_pylist()
    flat = row.keys() - summary.keys()
    assert len(flat) > 30 and {name: summary[name] for name in flat} == {name: row[name] for name in flat}
    assert summary["ttft_p99_ms"] == summary["ttft_ms"]["p99"] and "ttft_p99_ms" not in json.loads(json.dumps(summary))
    with pytest.raises(UnknownName, match="unknown figure 'ttft_99_ms'. Did you mean ttft_p9"):
        summary["ttft_99_ms"]


def test_statistics_of_stages_are_drawn() -> None:
    row = {"part": "1", "metric": "ttft_ms", "statistic": "p99", "measured": 5.0, "predicted": 4.0}
    [figure] = _figures({"stages": [row, row | {"metric": "running"}]}, None)
    drawn = [(row["what"], row["when"], row["ms"]) for row in figure.rows]
    assert drawn == [("TTFT p99, 1", "measured", 5.0), ("TTFT p99, 1", "predicted", 4.0)]


@pytest.mark.parametrize(
    ("words", "figure"),
    [
        (["simulate", *DEPLOYED, *LOAD], lambda answer: answer.summary["ttft_ms"]["mean"]),
        (["predict", *DEPLOYED, "--context-len", "64", "--batch-size", "2"], lambda answer: answer.total_us),
    ],
)
def test_a_page_says_how_to_repeat_it(
    words: list[str], figure: object, tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("vl_convert")
    page = tmp_path / "page.html"
    command = [*words, "--format", "json", "-o", str(page)]
    monkeypatch.setattr("sys.argv", ["kernelsight", *command])
    assert main(command) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["kernelsight_version"].count(".") == 2
    text = page.read_text(encoding="utf-8")
    assert "No rows" not in text
    told = html.unescape(re.search(r"How to repeat it</h2>\s*<pre>(.*?)</pre>", text, re.S)[1])
    repeated, _, code = told.partition("\n\n")
    assert repeated.startswith(f"kernelsight {words[0]} --model qwen3-0.6b")
    names: dict[str, object] = {}
    exec(code, names)
    assert figure(names["answer"]) == pytest.approx(
        answer["ttft_ms"]["mean"] if words[0] == "simulate" else answer["total_us"]
    )
