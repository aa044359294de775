"""Files that cannot be used: of which role, what they hold, and the words of the sentence that refuses them."""

from __future__ import annotations

import gzip
import io
import json
import pickle
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.asked import refusals
from tests.logs.asked import refusal
from tests.logs.written import (
    BLIS_HEADER,
    DATA,
    START,
    blis,
    chrome_trace,
    lines,
    litellm,
    matrix,
    otlp,
    save,
    span,
)


def first_of(name: str) -> dict[str, Any]:
    return json.loads((DATA / name).read_text().splitlines()[0])


def parquet() -> bytes:
    file = io.BytesIO()
    pq.write_table(pa.table({"arrival_s": [1.0]}), file)
    return file.getvalue()


VLLM, SGLANG, GUIDELLM = first_of("vllm_bench.json"), first_of("sglang_bench.jsonl"), DATA / "guidellm.json"
REPORT = json.loads(GUIDELLM.read_text())
FAILED = [text for text in (DATA / "profile_export.jsonl").read_text().splitlines() if '"error"' in text]
STEPS = gzip.decompress((DATA / "fpm.jsonl.gz").read_bytes()).decode()
BEFORE, AFTER = DATA / "metrics_before.txt", DATA / "metrics_after.txt"
TABLE = "arrival_s,prompt_tokens,output_tokens,ttft_ms\n"
SAMPLE = {"timestamp_ns": 10**18, "gpu_index": 0, "gpu_uuid": "a", "telemetry_data": {"nvidia_power_usage": 5.0}}
GENERATED = BLIS_HEADER.replace("real", "generated")
OTHER_TYPES = {"tokenizer_id": 1, "num_prompts": 2, "model_id": 3, "ttfts": {"secret": 1}, "input_lens": [1]}
UNKNOWN = "no known format: it is a text without a header of fields"

# role of the files, their contents (bytes, text or JSON) or paths, and words of the sentence; none quotes "secret"
CASES: list[tuple[str, list[Any], str]] = [
    ("requests", [], "no log was given; give at least one file."),
    ("requests", [Path("none.json")], "does not exist"),
    ("steps", [DATA], "is a folder"),
    ("requests", [b""], "is empty"),
    ("requests", [b" \n\n"], "is empty"),
    ("requests", [pickle.dumps([{"rid": 1}])], "is a Python pickle, which can run code when it is read"),
    (
        "requests",
        [gzip.compress(pickle.dumps({"rid": 1}))],
        "use --export-metrics-to-file instead of --dump-requests-folder",
    ),
    ("requests", [b"<!DOCTYPE html><html><body>502"], "is an HTML or XML page, often that of an error"),
    ("requests", [b"\n <html>"], "is an HTML or XML page"),
    ("requests", [b"PK\x03\x04rest"], "is a zip archive. Unpack it"),
    ("requests", [b"\x28\xb5\x2f\xfdrest"], "is compressed with something else than gzip"),
    ("requests", [gzip.compress(b"[1, 2]" * 99, mtime=0)[:-20]], "cannot be read"),
    ("requests", [b"\x1f\x8bnot gzip"], "cannot be read"),
    # files that are for another flag, and those of no known format: lines of a text are not quoted
    ("requests", [DATA / "fpm.jsonl.gz"], "is forward-pass metrics"),
    ("requests", [DATA / "fpm.jsonl.gz"], "give it with --steps instead of --log"),
    ("metrics", [GUIDELLM], "give it with --log instead of --metrics"),
    (
        "requests",
        [{"mood": "secret", "speed": {"fast": 1}}],
        "is of no known format: it has 3 fields: none with the name of a known one.",
    ),
    ("requests", ["dear reader, this is my secret diary and no table at all, I say"], "it is a text without a header"),
    (
        "requests",
        [{"messages": [{"content": "secret"}]}],
        "holds texts, and no times of requests; as a load it is read",
    ),
    ("requests", ["TIMESTAMP,ContextTokens,GeneratedTokens\n2024-05-10 00:00:00,5,5\n"], "is a trace: it has arrivals"),
    (
        "requests",
        [
            "id,start_time,prompt_tokens,completion_tokens,time_to_first_token_ms,total_latency_ms\na,17,512,100,55,900\n"
        ],
        "looks like a table of requests; try --columns arrival_s=start_time output_tokens=completion_tokens",
    ),
    (
        "requests",
        [{"created": 1, "usage": {"prompt_tokens": 9, "words": 7}, "ttft": 2}],
        "requests: --columns arrival_s=created prompt_tokens=usage.prompt_tokens ttft_ms=ttft; it lacks output",
    ),
    ("requests", ["Mean TTFT (ms): 49.1\n"], "states ttft_ms, and lacks a load (requests, duration or a rate)"),
    (
        "requests",
        ["Successful requests: 9\nTotal input tokens: 77\n"],
        "states prompt_tokens, requests, and lacks a latency",
    ),
    ("requests", [[1, 2]], "it has no named fields"),
    ("requests", [json.dumps({"first": "x" * 300_000, "last": 1})], "it has 2 fields: none with"),
    ("requests", [OTHER_TYPES | {"output_lens": ["secret"]}], "is not as vllm bench serve"),
    # clients
    ("requests", [VLLM | {"output_lens": [1, 2]}], "has 10 TTFTs and 2 output_lens"),
    ("requests", [{k: v for k, v in VLLM.items() if k != "input_lens"}], "no input_lens, output_lens or itls"),
    ("requests", [VLLM | {"errors": ["… TimeoutError"] * 10}], "has no request that succeeded (10 failed)"),
    ("requests", [(DATA / "vllm_bench.json").read_text()[:-200]], "is damaged or cut off (document 2, byte"),
    ("requests", [SGLANG | {"errors": []}], "TTFTs and 0 errors"),
    ("requests", [REPORT | {"benchmarks": 7}], "has no list of benchmarks"),
    (
        "requests",
        [REPORT | {"benchmarks": [REPORT["benchmarks"][0] | {"requests": {"successful": []}}]}],
        "benchmark without requests",
    ),
    ("requests", ["benchmarks:\n- scheduler_metrics: {a: [1,\n"], "is not YAML (line 3: "),
    ("requests", ["\n".join(FAILED)], "has no request that succeeded (3 failed_without_length)"),
    ("requests", [lines([litellm(0, cache_hit=True)])], "has no request that succeeded (1 gateway_cache_hit)"),
    (
        "requests",
        [otlp([span("a", 2, START, 0.1, {"http.method": "GET"})])],
        "has no span with gen_ai.usage attributes",
    ),
    ("requests", [blis(), GENERATED], "is a trace of mode generated, not a measurement"),
    ("requests", [BLIS_HEADER], "is the header of a BLIS trace"),
    # plain tables
    ("requests", [f"{TABLE}2026-09-21 16:13:20,5,5,5\n"], "has arrival_s '2026-09-21 16:13:20' without a time zone"),
    ("requests", ["arrival_s,prompt_tokens,output_tokens,e2e_ms,e2e_ms\n1,2,3,4,5\n"], "empty or repeated name"),
    ("requests", [parquet()[:-20]], "cannot be read as Parquet"),
    # servers, GPUs and profiles
    ("steps", [STEPS.replace('"version":1', '"version":2').replace('"version": 1', '"version": 2')], "of version 2"),
    ("steps", [(DATA / "vllm_iterations.log").read_text().splitlines()[0] + "\n"], "has no step that took time"),
    ("metrics", [BEFORE, AFTER, AFTER], "is one of 3 snapshots without times"),
    ("metrics", [{"status": "error", "errorType": "bad_data", "error": "x"}], "is not a successful answer"),
    ("metrics", [matrix({})], "has no metric of vLLM, SGLang or DCGM"),
    ("metrics", [matrix({("node_load1", "a"): [1, 2]})], "has no metric of vLLM, SGLang or DCGM"),
    ("metrics", [matrix({("vllm:num_requests_running", "a"): [1]})], "has no interval between two scrapes"),
    ("metrics", [SAMPLE], "no two samples"),
    ("metrics", ["at_s,power_w\n1,400\n"], "has no two samples of a GPU"),
    ("kernels", [{"traceEvents": [{"cat": "cpu_op", "name": "x", "dur": 1.0}]}], "has no GPU activity"),
    (
        "kernels",
        [chrome_trace() | {"distributedInfo": {"rank": 10**20 - 1}}],
        "has a number beyond 64 bits for rank. Copy or write it again.",
    ),
]


@pytest.mark.parametrize(("role", "contents", "words"), CASES)
def test_a_file_that_cannot_be_used_is_refused(tmp_path: Path, role: str, contents: list, words: str) -> None:
    paths = []
    for number, content in enumerate(contents):
        path = content if isinstance(content, Path) else tmp_path / f"log{number}"
        if isinstance(content, bytes):
            path.write_bytes(content)
        elif not isinstance(content, Path):
            save(path, content)
        paths.append(path)
    sentence = refusal(*paths) if role == "requests" else refusal(**{role: paths})
    assert words in sentence and "secret" not in sentence and "diary" not in sentence
    assert len(sentence.replace(str(tmp_path), "").replace(str(DATA), "")) <= 200


@pytest.mark.parametrize(
    ("contents", "words"),
    refusals("logs/test_refusals::test_a_folder_without_requests_is_refused"),
)
def test_a_folder_without_requests_is_refused(tmp_path: Path, contents: dict, words: str) -> None:
    for name, content in contents.items():
        save(tmp_path / name, content)
    sentence = refusal(tmp_path)
    assert f"log {tmp_path} {words}" in sentence and "secret" not in sentence
