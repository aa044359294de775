"""Recognition by fields: each log is of one format, whatever its name; others are refused by what they hold."""

from __future__ import annotations

from kernelsight.logs import read_logs
from kernelsight.logs.registry import format_named, format_names, formats
from tests.logs.asked import refusal, rows
from tests.logs.written import DATA, save


def test_a_file_of_two_formats_is_ambiguous(tmp_path):
    table = {"arrival_s": 1, "prompt_tokens": 2, "output_tokens": 3, "ttft_ms": 4}
    sentence = refusal(save(tmp_path / "a.json", table | {"request_parameters": "{}"}))
    assert "has the fields of sglang-requests and of table; name its format with --log-format" in sentence
    tables = read_logs(tmp_path / "a.json", format="table")
    assert rows(tables, "production_logs")[0]["format"] == "table"


def test_names():
    assert {"vllm-bench", "sglang-bench", "sglang-requests", "guidellm", "aiperf"} <= set(format_names("requests"))
    assert len({log_format.name for log_format in formats()}) == len(formats())
    sentence = refusal(DATA / "guidellm.json", format="guidelm")
    assert "unknown log format 'guidelm'. Did you mean guidellm or litellm?" in sentence
    assert format_named("otlp").role == "requests"


def test_a_wrong_name_is_refused_without_a_traceback():
    for name in format_names("requests"):
        if name != "guidellm":
            assert "guidellm.json" in refusal(DATA / "guidellm.json", format=name)
