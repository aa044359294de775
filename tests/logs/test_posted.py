"""What people post instead of a file of requests: printed blocks, summaries, server logs, one scrape; rows of facts."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from kernelsight.comparison.stage_logs import stages_and_lacks
from kernelsight.errors import KernelSightError
from kernelsight.logs import read_logs
from kernelsight.logs.reports import blocks_of, contradiction, fragments_of
from kernelsight.session import connect
from tests.logs.asked import faults, refusal, rows, settings, statistics
from tests.logs.test_cases import CASES
from tests.logs.written import DATA

POSTED = DATA / "posted"
BLOCK = """\
============ Serving Benchmark Result ============
Successful requests:                     120
Benchmark duration (s):                  31.20
Total input tokens:                      101800
Total generated tokens:                  16500
Request throughput (req/s):              3.85
Output token throughput (tok/s):         528.85
Total Token throughput (tok/s):          3791.67
---------------Time to First Token----------------
Mean TTFT (ms):                          49.10
Median TTFT (ms):                        48.60
P99 TTFT (ms):                           71.00
-----Time per Output Token (excl. 1st token)------
Mean TPOT (ms):                          8.10
Median TPOT (ms):                        8.10
P99 TPOT (ms):                           8.50
---------------Inter-token Latency----------------
Mean ITL (ms):                           8.10
Median ITL (ms):                         8.00
P99 ITL (ms):                            12.00
==================================================
"""


def stages(path: Path, **stated: object):
    return stages_and_lacks(read_logs(path)["production_summaries"], stated)


def test_the_printed_block_is_compared_like_the_json_of_the_same_run(tmp_path: Path) -> None:
    (tmp_path / "bench.txt").write_text(BLOCK)
    with connect() as session:
        answer = session.compare(deployment={"model": "qwen3-0.6b", "gpu": "l4"}, log=tmp_path / "bench.txt").summary
    assert answer["findings"][0] == (
        "run: 120 requests in 31.2 s, 101,800 prompt and 16,500 output tokens (848.3 and 137.5 a request)"
    )
    compared = {(row["metric"], row["statistic"]): row["measured"] for row in answer["stages"]}
    latencies = {f"{name}_ms": values for name, values in (
        ("ttft", (49.1, 48.6, 71.0)), ("tpot", (8.1, 8.1, 8.5)), ("itl", (8.1, 8.0, 12.0)))}  # fmt: skip
    expected = {
        (metric, statistic): value
        for metric, values in latencies.items()
        for statistic, value in zip(("mean", "p50", "p99"), values, strict=True)
    }
    assert compared == expected | {("output_tokens_per_s", "mean"): 528.85}
    assert any("does not say how requests were sent: at random" in sentence for sentence in answer["findings"])


def test_what_a_text_does_not_say_is_asked_for_and_taken_from_what_is_stated() -> None:
    assert stages(POSTED / "results.md") == (
        [], ["the number of requests (--num-prompts) and prompt lengths (--input-len)"])  # fmt: skip
    found, _ = stages(POSTED / "results.md", num_prompts=50, input_len=512)
    assert [(stage.part, stage.max_concurrency) for stage in found] == [
        ("01 Concurrency 1", 1),
        ("02 Concurrency 8", 8),
    ]
    assert found[1].output_tokens["mean"] == pytest.approx(630.4 / 4.9)
    _, lacks = stages(POSTED / "gpt_manager.txt")
    assert lacks == ["prompt lengths (--input-len)"]


def test_all_at_once_is_read_from_half_of_the_requests_in_flight(tmp_path: Path) -> None:
    (tmp_path / "bench.txt").write_text(BLOCK.replace("49.10", "12000.00"))
    (stage,), _ = stages(tmp_path / "bench.txt")
    assert not stage.all_at_once
    slow = BLOCK.replace("P99 TTFT (ms):                           71.00", "").replace("48.60", "20000.00")
    (tmp_path / "bench.txt").write_text(slow.replace("49.10", "18000.00"))
    (stage,), _ = stages(tmp_path / "bench.txt")
    assert stage.all_at_once and not stage.is_open


def test_the_log_states_the_version_and_the_arguments_of_its_server(tmp_path: Path) -> None:
    first = "(APIServer pid=1) INFO 09-01 10:10:00 [api_server.py:1839] vLLM API server version 0.11.0\n"
    first += "(APIServer pid=1) INFO 09-01 10:10:01 [utils.py:233] non-default args: {'max_num_seqs': 64}\n"
    path = tmp_path / "server.log"
    path.write_text(first + (POSTED / "old_vllm_server.log").read_text())
    assert settings(read_logs(metrics=path)) == {"engine_version": "0.11.0", "max_num_seqs": "64"}


def test_a_server_log_is_shown_over_time_and_replayed_where_a_length_is_stated() -> None:
    flags = {"model": "qwen3-0.6b", "gpu": "l4"}
    with connect() as session:
        answer = session.compare(deployment=flags, log=POSTED / "old_vllm_server.log").summary
        assert answer["verdict"].startswith("nothing is predicted: the server states no single requests")
        assert len(answer["windows"]) == 3 and answer["stages"] == []
    with connect() as session:
        stated = {"output_len": 100}
        answer = session.compare(deployment=flags, log=POSTED / "old_vllm_server.log", stated=stated).summary
        rows_of = {row["metric"]: row["measured"] for row in answer["stages"]}
        assert rows_of == {"output_tokens_per_s": 220.0, "running": 4.0} and answer["requests"] == 33


def test_requests_of_genai_perf_and_llmperf(tmp_path: Path) -> None:
    text = '{"experiments": [{"experiment": {"mode": "request_rate", "value": 4}, "requests": [%s]}]}'
    chunk = '{"response": "data: {\\"choices\\": [{\\"delta\\": {\\"content\\": \\"a\\"}}]}"}'
    role = (
        '{"response": "data: {\\"choices\\": [{\\"delta\\": {\\"role\\": \\"assistant\\", \\"content\\": \\"\\"}}]}"}'
    )
    usage = (
        '{"response": "data: {\\"choices\\": [], \\"usage\\": {\\"prompt_tokens\\": 77, \\"completion_tokens\\": 9}}"}'
    )
    request = '{"timestamp": 1000000000, "response_timestamps": [1010000000, 1040000000, 1050000000, 1060000000], '
    request += f'"response_outputs": [{role}, {chunk}, {chunk}, %s]}}'
    path = tmp_path / "profile_export.json"
    path.write_text(text % (request % usage))
    (row,) = rows(read_logs(path))
    assert (row["prompt_tokens"], row["output_tokens"], row["ttft_ms"], row["e2e_ms"]) == (77, 9, 40.0, 50.0)
    path.write_text(text % (request % chunk))
    sentence = refusal(path)
    assert "has 1 requests (3 output tokens, mean TTFT 40 ms) and no prompt lengths. State one for all" in sentence
    assert rows(read_logs(path, columns={"prompt_tokens": "=500"}))[0]["prompt_tokens"] == 500
    beside = tmp_path / "profile_export_genai_perf.json"
    beside.write_bytes((POSTED / "profile_export_genai_perf.json").read_bytes())
    tables = read_logs([path, beside])
    assert rows(tables)[0]["prompt_tokens"] == 512 and faults(tables)["mean_length"] == 1
    both = [POSTED / "llmperf_individual_responses.json", POSTED / "llmperf_summary.json"]
    tables = read_logs(both)
    assert faults(tables) == {"failed": 1, "sent_by_rule": 4} and len(rows(tables)) == 4
    assert stages(both[0])[1] == ["how requests were sent (--request-rate or --max-concurrency)"]


def mutated(text: str, draw: random.Random) -> str:
    lines = text.splitlines()
    for _ in range(draw.randint(1, 3)):
        place, other = draw.randrange(len(lines)), draw.randrange(len(lines))
        kind = draw.choice(("drop", "indent", "double", "order"))
        if kind == "drop" and len(lines) > 2:
            del lines[place]
        elif kind == "indent":
            lines[place] = "    " + lines[place]
        elif kind == "double":
            lines.insert(place, lines[place])
        elif kind == "order":
            lines[place], lines[min(other, len(lines) - 1)] = lines[min(other, len(lines) - 1)], lines[place]
    return "\n".join(lines)


@pytest.mark.parametrize(
    "name", [case["file"] for case in CASES if "load" in case and not case["file"].endswith((".csv", ".json"))]
)
def test_mutated_texts_are_read_as_what_they_say_or_refused(name: str, tmp_path: Path) -> None:
    """Lines that are dropped, indented, doubled or exchanged change no value that is read of another."""
    text, draw = (DATA / name).read_text(), random.Random(name)
    true: dict[tuple[str, str], set[float]] = {}
    for _, found in blocks_of(fragments_of(text)):
        for key, value in found.items():
            true.setdefault(key, set()).add(value)
    path = tmp_path / Path(name).name
    for _ in range(20):
        path.write_text(mutated(text, draw))
        try:
            tables = read_logs(path)
        except KernelSightError:
            continue
        for (_, metric, stated), value in statistics(tables).items():
            assert value in true[metric, stated], (metric, stated)
        for stage in stages_and_lacks(tables["production_summaries"], {})[0]:
            assert contradiction(dict(stage.measured)) is None
