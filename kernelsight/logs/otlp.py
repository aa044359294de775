"""Reader of OpenTelemetry spans (OTLP as JSON): server spans of engines, joined with client spans by trace."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import polars as pl

from kernelsight.logs.files import LogFile, documents, unusable
from kernelsight.logs.log_run import LogFormat, LogRun

NAME = "otlp"
_CLIENT = (3, "SPAN_KIND_CLIENT")
# attribute names of newer conventions, then of vLLM and OpenLLMetry
_PROMPT = ("gen_ai.usage.input_tokens", "gen_ai.usage.prompt_tokens")
_OUTPUT = ("gen_ai.usage.output_tokens", "gen_ai.usage.completion_tokens")
_CACHED = ("gen_ai.usage.cache_read.input_tokens", "gen_ai.usage.cache_read_input_tokens")
_LATENCY = "gen_ai.latency."


def _recognises(file: LogFile) -> bool:
    return file.kind == "json" and any("resourceSpans[].scopeSpans" in name for name in file.fields)


def read_otlp(files: Sequence[LogFile]) -> list[LogRun]:
    """Return one run over all files: TTFT and E2E from arrival at the server, and the client's E2E if it has a span.

    A client span without a server span has E2E alone. Unix times; clocks of two machines are not compared.
    InvalidInput: no span with gen_ai.usage attributes.
    """
    servers: list[dict[str, Any]] = []
    clients: list[dict[str, Any]] = []
    for file in files:
        for resource, span in _spans(file):
            row = _row(resource, span)
            if row is not None:
                (clients if row.pop("client") else servers).append(row)
    if not servers and not clients:
        raise unusable(files[0].path, "has no span with gen_ai.usage attributes", "Give spans of an engine.")
    run = LogRun(files[0], NAME, clock="unix")
    run.requests = _requests(servers, clients, run)
    return [run]


def _spans(file: LogFile) -> Iterator[tuple[Mapping[str, Any], Mapping[str, Any]]]:
    """Yield (resource attributes, span) of all spans in a file."""
    for _, document in documents(file):
        for export in document if isinstance(document, list) else [document]:
            for resource_spans in _list(export, "resourceSpans"):
                resource = _attributes(resource_spans.get("resource"))
                for scope in _list(resource_spans, "scopeSpans"):
                    for span in _list(scope, "spans"):
                        yield resource, span


def _list(container: Any, name: str) -> list[Mapping[str, Any]]:
    """Return the objects in a list field; empty if there is none."""
    values = container.get(name) if isinstance(container, Mapping) else None
    return [value for value in values if isinstance(value, Mapping)] if isinstance(values, list) else []


def _attributes(container: Any) -> dict[str, Any]:
    """Return the scalar attributes of a span or resource by key; integers are strings in OTLP's JSON."""
    attributes: dict[str, Any] = {}
    for entry in _list(container, "attributes"):
        value = entry.get("value")
        if isinstance(value, Mapping):
            for kind, read in (("intValue", int), ("doubleValue", float), ("stringValue", str)):
                if kind in value:
                    try:
                        attributes[str(entry.get("key"))] = read(value[kind])
                    except (TypeError, ValueError, OverflowError):
                        continue
    return attributes


def _row(resource: Mapping[str, Any], span: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return a span as a row of requests; None without usage attributes or times."""
    attributes = _attributes(span)
    prompt = next((attributes[name] for name in _PROMPT if name in attributes), None)
    if prompt is None:
        return None
    try:
        start, end = (int(span[name]) / 1e9 for name in ("startTimeUnixNano", "endTimeUnixNano"))
    except (KeyError, TypeError, ValueError):
        return None
    seconds = {
        name: value
        for name in ("time_in_queue", "time_to_first_token", "e2e", "time_in_model_prefill", "time_in_model_decode")
        if isinstance(value := attributes.get(_LATENCY + name), (int, float))
    }
    milliseconds = {name: 1e3 * value for name, value in seconds.items()}
    status = span.get("status") if isinstance(span.get("status"), Mapping) else {}
    failed = isinstance(status, Mapping) and status.get("code") in (2, "STATUS_CODE_ERROR")
    return {
        "client": span.get("kind") in _CLIENT and not seconds,
        "trace": span.get("traceId"),
        "external_id": str(attributes.get("gen_ai.request.id") or span.get("spanId")),
        "arrival_s": start,
        "span_ms": 1e3 * (end - start),
        "prompt_tokens": prompt,
        "output_tokens": next((attributes[name] for name in _OUTPUT if name in attributes), None),
        "cached_tokens": next((attributes[name] for name in _CACHED if name in attributes), None),
        "model": attributes.get("gen_ai.response.model") or attributes.get("gen_ai.request.model"),
        "replica": resource.get("service.instance.id") or resource.get("host.name"),
        "ttft_ms": milliseconds.get("time_to_first_token"),
        "e2e_ms": milliseconds.get("e2e"),
        "queue_ms": milliseconds.get("time_in_queue"),
        # without a queue time, a span's prefill time includes the queue
        "prefill_ms": milliseconds.get("time_in_model_prefill") if "time_in_queue" in seconds else None,
        "decode_ms": milliseconds.get("time_in_model_decode"),
        "status": "error" if failed else "ok",
        "error": "span status" if failed else None,
    }


_TYPES = {
    **dict.fromkeys(("trace", "external_id", "model", "replica", "status", "error"), pl.String),
    **dict.fromkeys(("arrival_s", "span_ms", "ttft_ms", "e2e_ms", "queue_ms", "prefill_ms", "decode_ms"), pl.Float64),
    **dict.fromkeys(("prompt_tokens", "output_tokens", "cached_tokens"), pl.Int64),
}


def _requests(servers: list[dict[str, Any]], clients: list[dict[str, Any]], run: LogRun) -> pl.DataFrame:
    """Return the requests of server spans with their clients' times, and of client spans without a server span."""
    server = pl.DataFrame(servers, schema=_TYPES, strict=False).with_columns(
        pl.coalesce("e2e_ms", "span_ms").alias("e2e_ms"), pl.lit("server_arrival").alias("ttft_clock")
    )
    client = pl.DataFrame(clients, schema=_TYPES, strict=False)
    client_times = client.select(
        "trace", pl.col("arrival_s").alias("sent_by_client"), pl.col("span_ms").alias("client_e2e_ms")
    )
    with_client_times = server.join(client_times.unique("trace", keep="first"), on="trace", how="left")
    unserved = client.join(server, on="trace", how="anti")
    if client.height and server.height:
        missing = with_client_times.filter(pl.col("client_e2e_ms").is_null())
        run.faults.add("no_client_times", missing.height, missing["external_id"].first() if missing.height else None)
    run.faults.add("no_server_times", unserved.height, unserved["external_id"].first() if unserved.height else None)
    unserved = unserved.with_columns(pl.col("span_ms").alias("e2e_ms"), pl.lit("client_send").alias("ttft_clock"))
    rows = pl.concat([with_client_times, unserved], how="diagonal").with_columns(
        pl.coalesce("sent_by_client", "arrival_s").alias("arrival_s"), pl.lit("server").alias("tokens_from")
    )
    remaining_ms = pl.col("ttft_ms") - pl.col("queue_ms") - pl.col("prefill_ms")
    front_end_ms = pl.when(remaining_ms >= 0).then(remaining_ms).alias("front_end_ms")
    return rows.with_columns(pl.col("arrival_s").alias("sent_s"), front_end_ms).drop(
        "trace", "span_ms", "sent_by_client"
    )


FORMAT = LogFormat(NAME, "requests", "OTLP spans as JSON (resourceSpans)", _recognises, read_otlp)
