"""A folder as one log: what each file is taken as, what is not read, and what is refused."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from kernelsight.logs import read_logs
from kernelsight.logs.files import HEAD_BYTES, open_log
from kernelsight.logs.registry import recognise, with_known_fields
from tests.logs.asked import refusal, rows, settings
from tests.logs.written import DATA, lines, litellm, save

MANIFEST = """apiVersion: v1
kind: Pod
spec:
  containers:
  - image: vllm/vllm-openai:v0.31.0
    args: [--model, Qwen/Qwen3-8B, --tensor-parallel-size, "2", --no-enable-prefix-caching, --api-key, hidden]
"""


def vllm_bench(requests: int) -> dict:
    """Return a detailed result, its lists repeated for as many requests."""
    (result, *_) = [json.loads(line) for line in (DATA / "vllm_bench.json").read_text().splitlines() if line]
    count = len(result["ttfts"])
    return {
        name: (value * (requests // count + 1))[:requests] if isinstance(value, list) else value
        for name, value in result.items()
    }


def folder_of(path: Path, *names: str) -> Path:
    for name in names:
        shutil.copy(DATA / name, path / name)
    return path


@pytest.mark.parametrize("ending", ["json", "json.gz"])
def test_a_result_with_sorted_names_is_recognised_by_all_of_its_fields(tmp_path, ending):
    made = vllm_bench(4000)
    text = json.dumps(made, sort_keys=True)
    assert len(text) > 2 * HEAD_BYTES and text.index('"model_id"') > HEAD_BYTES
    path = save(tmp_path / f"a.{ending}", text)
    file = open_log(path)
    assert not {"model_id", "tokenizer_id"} & file.fields
    assert {"model_id", "tokenizer_id"} <= with_known_fields(file).fields
    assert recognise(with_known_fields(file), "requests").name == "vllm-bench"
    assert read_logs(path)["production_requests"].num_rows == 4000


def test_a_file_that_its_first_bytes_tell_is_not_read_to_its_end(tmp_path):
    path = save(tmp_path / "a.json", json.dumps({"tokenizer_id": "t", "num_prompts": 1, "model_id": "m"}) * 10_000)
    file = open_log(path)
    assert with_known_fields(file) is file


def test_a_folder_is_one_log(tmp_path):
    folder_of(tmp_path, "vllm_bench.json", "vllm_iterations.log", "metrics_before.txt", "metrics_after.txt")
    # in order of names the second snapshot comes first
    (tmp_path / "metrics_after.txt").rename(tmp_path / "metrics_x.txt")
    folder_of(tmp_path, "forward.rank0.kernels.json", "fpm.jsonl.gz")
    save(tmp_path / "server.yaml", MANIFEST)
    save(tmp_path / "notes.txt", "my secret notes on this run\n")
    save(tmp_path / "system.json", {"cpu": "x"})
    (tmp_path / "empty.json").touch()
    (tmp_path / "sub").mkdir()
    (tmp_path / "gone.json").symlink_to(tmp_path / "nothing")
    os.mkfifo(tmp_path / "pipe")
    tables = read_logs(tmp_path)
    files = {Path(row["path"]).name: row for row in rows(tables, "production_files")}
    taken = {name: (row["role"], row["format"]) for name, row in files.items() if "role" in row}
    assert taken == {
        "vllm_bench.json": ("requests", "vllm-bench"),
        "fpm.jsonl.gz": ("steps", "fpm"),
        "vllm_iterations.log": ("steps", "vllm-iterations"),
        "metrics_before.txt": ("metrics", "prometheus"),
        "metrics_x.txt": ("metrics", "prometheus"),
        "forward.rank0.kernels.json": ("kernels", "forward-kernels"),
        "server.yaml": ("launch", "launch"),
    }
    assert {row["folder"] for row in files.values()} == {str(tmp_path)}
    assert {name: row["not_read"] for name, row in files.items() if "not_read" in row} == {
        "empty.json": "is empty",
        "gone.json": "it is a pipe, a device or a broken link",
        "pipe": "it is a pipe, a device or a broken link",
        "notes.txt": "no known format: it is a text without a header of fields",
        "sub": "it is a folder: give it by itself",
        "system.json": "no known format: it has 1 field: none with the name of a known one",
    }
    for name in ("requests", "steps", "windows", "kernels"):
        assert tables[f"production_{name}"].num_rows
    found = settings(tables)
    assert (found["tensor_parallel_size"], found["enable_prefix_caching"]) == ("2", "false")
    assert "hidden" not in found.values()


def test_requests_in_two_formats_are_refused_until_one_is_named(tmp_path):
    folder_of(tmp_path, "vllm_bench.json", "sglang_requests.log")
    sentence = refusal(tmp_path)
    assert "has requests of 2 formats, which may be the same ones" in sentence
    assert "sglang-requests: sglang_requests.log; vllm-bench: vllm_bench.json" in sentence
    assert sentence.endswith("Name one with --log-format.")
    tables = read_logs(tmp_path, format="sglang-requests")
    assert {row["format"] for row in rows(tables, "production_logs")} == {"sglang-requests"}
    assert "vllm-bench, and not sglang-requests" in tables["production_files"]["not_read"].to_pylist()


def test_columns_are_those_of_one_table(tmp_path):
    save(tmp_path / "a.jsonl", lines([litellm(0)]))
    sentence = refusal(tmp_path, columns={"ttft_ms": "x"})
    assert "is a folder, and --columns names those of one table. Give the table's file." in sentence
