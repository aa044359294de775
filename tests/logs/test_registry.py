"""Recognition by fields: each log is of one format, whatever its name; others are refused by what they hold."""

from __future__ import annotations

import pytest

from kernelsight.logs import read_logs
from kernelsight.logs.files import open_log
from kernelsight.logs.registry import format_named, format_names, formats, formats_of, recognise
from tests.logs.asked import refusal, rows
from tests.logs.written import DATA, MADE, nsys, save

FILES = {
    "vllm_bench.json": "vllm-bench",
    "vllm_bench_plain.json": "vllm-bench",
    "sglang_bench.jsonl": "sglang-bench",
    "sglang_requests.log": "sglang-requests",
    "guidellm.json": "guidellm",
    "guidellm.yaml.gz": "guidellm",
    "profile_export.jsonl": "aiperf",
    "profile_export_aiperf.json": "aiperf",
    "fpm.jsonl.gz": "fpm",
    "vllm_iterations.log": "vllm-iterations",
    "metrics_before.txt": "prometheus",
    "forward.rank0.kernels.json": "forward-kernels",
}


@pytest.mark.parametrize("name, expected", FILES.items())
def test_files_of_tools_are_of_one_format(name, expected):
    file = open_log(DATA / name)
    assert [log_format.name for log_format in formats_of(file)] == [expected]


@pytest.mark.parametrize("expected, content", MADE.items())
def test_made_files_are_of_one_format(tmp_path, expected, content):
    file = open_log(save(tmp_path / "misleading.csv", content))
    assert [log_format.name for log_format in formats_of(file)] == [expected]


def test_databases(tmp_path):
    assert recognise(open_log(nsys(tmp_path / "a")), "kernels").name == "nsys"


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
