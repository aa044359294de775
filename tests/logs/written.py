"""Small logs with the fields that the tools' own sources name, for tools that cannot run without a server or a GPU.

inference-perf: reportgen/base.py and apis/base.py (0.6.1, and the older layout); OTLP: vLLM 0.33.0's do_tracing in the
JSON encoding of OTLP; LiteLLM 1.109.1: types/utils.py, StandardLoggingPayload; BLIS: sim/workload/tracev2.go;
Prometheus: documentation of its HTTP API; Nsight Systems: documentation of its SQLite export.
"""

from __future__ import annotations

import gzip
import json
import sqlite3
from pathlib import Path
from typing import Any

PROMPT = "never read this prompt"
DATA = Path(__file__).parent / "data"
START = 1_790_000_000.0


def save(path: Path, content: Any) -> Path:
    """Write text as it is, anything else as JSON; a name that ends in .gz is compressed."""
    text = content if isinstance(content, str) else json.dumps(content)
    data = text.encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def lines(rows: list[Any]) -> str:
    """Return one JSON document per line."""
    return "".join(json.dumps(row) + "\n" for row in rows)


def inference_perf_request(number: int, times_per_token: int = 1, **other: Any) -> dict[str, Any]:
    """Return a request of four tokens: TTFT 50 ms, 10 ms between tokens, sent each second."""
    start = 5000.0 + number
    times = [start + 0.05 + 0.01 * token + 1e-6 * again for token in range(4) for again in range(times_per_token)]
    response = {"output_tokens": 4, "server_usage": None, "chunk_times": times, "output_token_times": times}
    info = {
        "request_metrics": {"text": {"input_tokens": 100 + number}},
        "response_metrics": response,
        "input_tokens": 100 + number,
        "retries_attempted": 0,
        "labels": {},
    }
    request = {"start_time": start, "end_time": times[-1] + 0.002, "request": PROMPT, "response": PROMPT, "info": info}
    return request | {"error": None} | other


def older_inference_perf_request(number: int) -> dict[str, Any]:
    """Return the same request in the layout in which info held the response's fields itself."""
    request = inference_perf_request(number, 2)
    times = request["info"]["response_metrics"]["output_token_times"]
    info = {"input_tokens": 100 + number, "output_tokens": 4, "output_token_times": times}
    return request | {"info": info}


def litellm(number: int, **other: Any) -> dict[str, Any]:
    """Return a streamed request through the gateway: TTFT 80 ms, E2E 180 ms."""
    start = START + number
    return {
        "id": f"chat-{number}",
        "trace_id": f"trace-{number}",
        "session_id": "",
        "call_type": "acompletion",
        "stream": True,
        "status": "success",
        "prompt_tokens": 200,
        "completion_tokens": 11,
        "startTime": start,
        "completionStartTime": start + 0.08,
        "endTime": start + 0.18,
        "model": "demo",
        "api_base": "http://user:key@replica-1:8000/v1?api_key=secret",
        "cache_hit": False,
        "messages": [{"role": "user", "content": PROMPT}],
        "response": PROMPT,
        "error_information": None,
        "metadata": {"usage_object": {"prompt_tokens_details": {"cached_tokens": 64}}},
    } | other


def attribute(name: str, value: Any) -> dict[str, Any]:
    """Return an attribute in OTLP's JSON, where whole numbers are strings."""
    kind = {int: "intValue", float: "doubleValue", str: "stringValue"}[type(value)]
    return {"key": name, "value": {kind: str(value) if kind == "intValue" else value}}


def span(trace: str, kind: int, start_s: float, seconds: float, attributes: dict[str, Any]) -> dict[str, Any]:
    """Return a span in OTLP's JSON."""
    return {
        "traceId": trace,
        "spanId": f"span-{trace}-{kind}",
        "name": "llm_request",
        "kind": kind,
        "startTimeUnixNano": str(int(start_s * 1e9)),
        "endTimeUnixNano": str(int((start_s + seconds) * 1e9)),
        "attributes": [attribute(name, value) for name, value in attributes.items()],
    }


def otlp(spans: list[dict[str, Any]], **resource: Any) -> dict[str, Any]:
    """Return an export of spans of one resource."""
    attributes = [attribute(name.replace("_", "."), value) for name, value in resource.items()]
    holder = {"resource": {"attributes": attributes}, "scopeSpans": [{"scope": {"name": "vllm"}, "spans": spans}]}
    return {"resourceSpans": [holder]}


def vllm_span(trace: str, start_s: float) -> dict[str, Any]:
    """Return a server span of vLLM: queue 5 ms, prefill 40 ms, TTFT 50 ms, E2E 150 ms; the older names of tokens."""
    return span(
        trace,
        2,
        start_s,
        0.151,
        {
            "gen_ai.latency.time_to_first_token": 0.05,
            "gen_ai.latency.e2e": 0.15,
            "gen_ai.latency.time_in_queue": 0.005,
            "gen_ai.usage.prompt_tokens": 300,
            "gen_ai.usage.completion_tokens": 11,
            "gen_ai.latency.time_in_model_prefill": 0.04,
            "gen_ai.latency.time_in_model_decode": 0.1,
            "gen_ai.request.id": f"cmpl-{trace}",
        },
    )


def client_span(trace: str, start_s: float) -> dict[str, Any]:
    """Return a client span with the newer names of tokens: E2E 170 ms."""
    return span(trace, 3, start_s, 0.17, {"gen_ai.usage.input_tokens": 300, "gen_ai.usage.output_tokens": 11})


def matrix(series: dict[tuple[str, str], list[float]], step: float = 15.0) -> dict[str, Any]:
    """Return an answer of query_range: values by (metric, instance), a scrape each ``step`` seconds."""
    result = [
        {
            "metric": {"__name__": metric, "instance": instance, "model_name": "demo"},
            "values": [[START + step * place, str(value)] for place, value in enumerate(values)],
        }
        for (metric, instance), values in series.items()
    ]
    return {"status": "success", "data": {"resultType": "matrix", "result": result}}


BLIS_HEADER = "trace_version: 3\ntime_unit: microseconds\nmode: real\nwarm_up_requests: 1\n"


def blis(rows: int = 4) -> str:
    """Return a trace of requests each second: TTFT 60 ms, E2E 160 ms, one cut off by its deadline."""
    names = (
        "request_id client_id tenant_id slo_class session_id round_index prefix_group prefix_length streaming "
        "input_tokens output_tokens text_tokens image_tokens audio_tokens video_tokens reason_ratio model deadline_us "
        "server_input_tokens arrival_time_us send_time_us first_chunk_time_us last_chunk_time_us num_chunks status "
        "error_message finish_reason"
    ).split()
    written = [",".join(names)]
    for number in range(rows):
        sent = 1_000_000 * number + 2_000
        values = dict.fromkeys(names, "0") | {
            "request_id": str(number),
            "session_id": "",
            "model": "",
            "error_message": "",
        }
        values |= {"streaming": "true", "input_tokens": "90", "output_tokens": "11", "server_input_tokens": "100"}
        values |= {"arrival_time_us": str(sent - 2_000), "send_time_us": str(sent), "num_chunks": "11"}
        values |= {"first_chunk_time_us": str(sent + 60_000), "last_chunk_time_us": str(sent + 160_000)}
        values |= {"status": "timeout" if number == 2 else "ok", "finish_reason": "length"}
        written.append(",".join(values[name] for name in names))
    return "\n".join(written) + "\n"


def chrome_trace() -> dict[str, Any]:
    """Return a trace of torch.profiler: two kernels on rank 1, a copy, and CPU work that is not counted."""
    events: list[dict[str, Any]] = [{"ph": "M", "name": "process_name", "pid": 0}]
    for place in range(3):
        at = 1000.0 + 100 * place
        events.append({"ph": "X", "cat": "kernel", "name": "nvjet_tst_64x8", "ts": at, "dur": 30.0})
        events.append({"ph": "X", "cat": "kernel", "name": "flash::FlashAttnFwdSm90", "ts": at + 30, "dur": 10.5})
        events.append({"ph": "X", "cat": "cpu_op", "name": "aten::mm", "ts": at, "dur": 99.0})
    events.append({"ph": "X", "cat": "gpu_memcpy", "name": "Memcpy DtoH", "ts": 1300.0, "dur": 2.0})
    return {"schemaVersion": 1, "distributedInfo": {"rank": 1}, "traceEvents": events}


def nsys(path: Path) -> Path:
    """Write the two tables of Nsight Systems' export that hold kernels and their names."""
    connection = sqlite3.connect(path)
    connection.execute("create table StringIds (id integer primary key, value text not null)")
    connection.execute(
        'create table CUPTI_ACTIVITY_KIND_KERNEL (start int not null, "end" int not null, deviceId int not null, '
        "contextId int not null, streamId int not null, correlationId int, demangledName int not null, shortName int)"
    )
    names = ["ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096>)", "nvjet_tst_128x64"]
    connection.executemany("insert into StringIds values (?, ?)", enumerate(names))
    rows = [(1000 * n, 1000 * n + 500, n % 2, 1, 7, n, n // 4, n // 4) for n in range(8)]
    connection.executemany("insert into CUPTI_ACTIVITY_KIND_KERNEL values (?, ?, ?, ?, ?, ?, ?, ?)", rows)
    connection.commit()
    connection.close()
    return path


# a small log of each tool that cannot run here, by format
MADE = {
    "inference-perf": [inference_perf_request(n) for n in range(3)],
    "litellm": lines([litellm(n) for n in range(3)]),
    "otlp": otlp([vllm_span("a", START)]),
    "blis": blis(),
    "table": "arrival_s,prompt_tokens,output_tokens,ttft_ms\n1,2,3,4\n2,3,4,5\n",
    "prometheus": matrix({("vllm:num_requests_running", "a"): [1, 2]}),
    "chrome-trace": chrome_trace(),
}
