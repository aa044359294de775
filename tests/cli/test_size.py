"""`kernelsight size`: what it prints, writes and refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

# what a deployment served at a rate is served once for all questions
pytestmark = pytest.mark.usefixtures("kept_trials")

SIZE = ("size", "--model", "qwen3-0.6b", "--gpus", "l4", "--isl", "300", "--osl", "12", "--max-gpus", "1", "--no-tune")
LIMITS = ("--max-num-seqs", "16", "--max-model-len", "1k", "--max-num-batched-tokens", "512")
ASKED = ("--rate", "30", "--slo", "ttft_p95:150", "tpot_p99.9:60")


def test_the_page_begins_with_the_question_and_the_answer(command: Any) -> None:
    page = command(*SIZE, *LIMITS, *ASKED, "--prices", "l4=0.7", "--what-if", "traffic=2").out
    asked, goals, searched, answer, _, head, *lines = page.splitlines()
    assert asked.startswith("asked: qwen3-0.6b, 30 requests/s; 300 prompt and 12 output tokens, max_model_len 1,000")
    assert goals.strip() == "TTFT p95 of 150 ms and TPOT p99.9 of 60 ms with 90% probability; l4 0.7 $/h"
    assert searched == "searched: TP 1"
    assert " × l4 at TP 1, " in answer and " $/h, " in answer and " $/M tokens; the limit is " in answer
    assert head.split()[:5] == ["gpu", "TP", "req/s", "low", "high"]
    heads = [line for line in lines if line.endswith(":")]
    assert heads == [
        "cost against confidence:",
        "not measured:",
        "the cheapest rests on:",
        "what would change it:",
        "one instance:",
    ]
    for words in ("not measured:", "  l4: ", "one instance:", "vllm serve Qwen/Qwen3-0.6B --max-model-len 1000 "):
        assert words in page


def test_json_csv_and_files(command: Any, tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    answer = command(*SIZE, *LIMITS, *ASKED, "--format", "json", "-o", path).json
    assert set(answer) == {
        *(
            "question",
            "axes",
            "answer",
            "chosen",
            "rows",
            "confidences",
            "left_out",
            "complete",
            "not_tried",
            "decides",
            "cliff",
            "day",
            "evidence",
            "launch",
            "kernelsight_version",
        )
    }
    assert answer["complete"] and answer["not_tried"] == []
    assert answer["chosen"] == answer["rows"][0] and answer["chosen"]["price_per_hour"] is None
    assert {"ttft_p95_ms", "tpot_p99.9_ms"} <= set(answer["chosen"])
    printed = command(*SIZE, *LIMITS, *ASKED, "--format", "csv").out
    assert printed.splitlines()[0] == path.read_text().splitlines()[0].replace('"', "")


@pytest.mark.whole
def test_a_day_of_a_trace_is_printed_by_the_hour(command: Any, tmp_path: Path) -> None:
    path = tmp_path / "day.csv"
    # thirty hours, of which a day counts: hour 3 has ten times the requests of another
    times = [3600.0 * hour + 3.6 * place for hour in range(30) for place in range(1000 if hour == 3 else 100)]
    lines = [f"{at},300,12" for at in sorted(times)]
    path.write_text("\n".join(["arrival_s,prompt_tokens,output_tokens", *lines]) + "\n")
    words = ("--daily-peak", path, "--users", "40", "--prices", "l4=0.7", "--confidence", "0.5")
    found = command(*SIZE, *LIMITS, *ASKED[2:], *words, "--format", "json").json
    day = found["day"]
    assert day["unit"] == "users" and sum(hour["asked"] for hour in day["hours"]) == pytest.approx(24 * 40)
    assert max(day["hours"], key=lambda hour: hour["asked"])["hour"] == 3
    page = command(*SIZE, *LIMITS, *ASKED[2:], *words).out
    assert "(the hours of day.csv)" in page
    head = next(line for line in page.splitlines() if line.startswith("hours"))
    assert head.split() == ["hours", "most", "users", "inst.", "started", "GPUs", "$/h"]
    short = tmp_path / "short.csv"
    short.write_text("\n".join(["arrival_s,prompt_tokens,output_tokens", *lines[:50]]) + "\n")
    refused = command(*SIZE, *LIMITS, *ASKED, "--daily-peak", short)
    assert "short.csv covers 0.049 hours; a daily course needs a trace of a day" in refused.err


def test_units_are_read_and_progress_is_written_where_no_terminal_is(command: Any) -> None:
    words = ("--rate", "1800/min", "--slo", "ttft_p95:0.15s", "tpot_p99.9:60ms", "--format", "json")
    found = command(*SIZE, *LIMITS, *words, "--confidence", "0.5", "--margin", "0.2", "--peak", "2")
    plain = command(*SIZE, *LIMITS, *ASKED, "--confidence", "0.5", "--format", "json").json["chosen"]
    row = found.json["chosen"]
    assert row["rate"] == plain["rate"] and row["served"] == 2 * plain["served"] == 60.0 and row["load"] <= 0.8
    assert "1 of 1 deployments fit" in found.err and "best so far: " in found.err


def test_a_time_limit_answers_with_what_was_found(command: Any) -> None:
    answer = command(*SIZE, *LIMITS, *ASKED, "--time-limit", "0.001", "--format", "json").json
    assert answer["chosen"] is None and not answer["complete"] and len(answer["not_tried"]) == 1
    assert answer["answer"].startswith("No deployment that was tried keeps ")
    assert answer["answer"].endswith(
        ": the search ended before the first, l4 at TP 1, was tried. The search ended early: its time limit "
        "of 0.001 s is over; 1 deployment may keep the objectives, at 1 GPU or more; a longer --time-limit goes on "
        "from here."
    )
