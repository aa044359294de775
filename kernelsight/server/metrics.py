"""Prometheus metrics of the server: names, labels and buckets of vLLM, in simulated time.

Source: ``vllm/v1/metrics/loggers.py`` of vllm-project/vllm @ 005a810, and the names that later versions added
(``inter_token_latency_seconds``, ``request_time_per_output_token_seconds``, ``kv_cache_usage_perc``).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from kernelsight.server.live_engines import LiveEngines

FIRST_TOKEN_S = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
    *(160.0, 640.0, 2560.0),
)
GAP_S = (*(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),)
REQUEST_S = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0),
    *(1920.0, 7680.0),
)
HISTOGRAMS = {
    "time_to_first_token_seconds": ("Histogram of time to first token in seconds.", FIRST_TOKEN_S),
    "inter_token_latency_seconds": ("Histogram of inter-token latency in seconds.", GAP_S),
    "request_time_per_output_token_seconds": ("Histogram of time per output token of each request.", GAP_S),
    "e2e_request_latency_seconds": ("Histogram of e2e request latency in seconds.", REQUEST_S),
    "request_queue_time_seconds": ("Histogram of time spent in WAITING phase for request.", REQUEST_S),
    "request_inference_time_seconds": ("Histogram of time spent in RUNNING phase for request.", REQUEST_S),
    "request_prefill_time_seconds": ("Histogram of time spent in PREFILL phase for request.", REQUEST_S),
    "request_decode_time_seconds": ("Histogram of time spent in DECODE phase for request.", REQUEST_S),
}
COUNTERS = {
    "prompt_tokens": "Number of prefill tokens processed.",
    "generation_tokens": "Number of generation tokens processed.",
    "prefix_cache_queries": "Prefix cache queries, in terms of number of queried tokens.",
    "prefix_cache_hits": "Prefix cache hits, in terms of number of cached tokens.",
}
LABELS = ("model_name", "engine")


def token_buckets(limit: int) -> list[int]:
    """Return vLLM's buckets of token counts: 1, 2 and 5 times each power of ten.

    >>> token_buckets(100)
    [1, 2, 5, 10, 20, 50, 100]
    """
    return [value for power in range(12) for digit in (1, 2, 5) if (value := digit * 10**power) <= limit]


class RequestTimes(NamedTuple):
    """Moments of a finished request in simulated time, us."""

    sent_us: float
    scheduled_us: float
    first_token_us: float
    finish_us: float


class Metrics:
    """Prometheus registry of one server; requests count when they end, tokens when they are sampled.

    ``model``: label model_name; ``cache``: labels of cache_config_info.
    """

    def __init__(self, model: str, engines: LiveEngines, max_model_len: int, cache: dict[str, object]) -> None:
        self._engines, self._model, self._registry = engines, model, CollectorRegistry()
        replicas = range(engines.engines.size)
        registered = {"registry": self._registry}

        def by_engine(metric: Gauge | Counter | Histogram, *more: str) -> list:
            return [metric.labels(model, str(number), *more) for number in replicas]

        lengths = token_buckets(max_model_len)
        self._seconds = {
            name: by_engine(Histogram(f"vllm:{name}", text, LABELS, buckets=buckets, **registered))
            for name, (text, buckets) in HISTOGRAMS.items()
        }
        self._lengths = {
            name: by_engine(Histogram(f"vllm:{name}", text, LABELS, buckets=lengths, **registered))
            for name, text in (
                ("request_prompt_tokens", "Number of prefill tokens processed."),
                ("request_generation_tokens", "Number of generation tokens processed."),
            )
        }
        self._counters = {
            name: by_engine(Counter(f"vllm:{name}", text, LABELS, **registered)) for name, text in COUNTERS.items()
        }
        ended = Counter("vllm:request_success", "Count of successfully processed requests.",
                        (*LABELS, "finished_reason"), **registered)  # fmt: skip
        self._ended = {reason: by_engine(ended, reason) for reason in ("stop", "length", "abort")}
        self._gauges = {
            name: by_engine(Gauge(f"vllm:{name}", text, LABELS, **registered))
            for name, text in (
                ("num_requests_running", "Number of requests in model execution batches."),
                ("num_requests_waiting", "Number of requests waiting to be processed."),
                ("kv_cache_usage_perc", "KV-cache usage. 1 means 100 percent usage."),
                ("gpu_cache_usage_perc", "KV-cache usage, by its earlier name."),
            )
        }
        preempted = Counter(
            "vllm:num_preemptions", "Cumulative number of preemptions from the engine.", LABELS, **registered
        )
        self._preempted, self._seen = by_engine(preempted), np.zeros(len(replicas), np.int64)
        info = Gauge(
            "vllm:cache_config_info", "Information of the LLMEngine CacheConfig", ("engine", *cache), **registered
        )
        for number in replicas:
            info.labels(str(number), *map(str, cache.values())).set(1)

    def note_tokens(self, engine: int, count: int, gap_s: float | None) -> None:
        """Count tokens of one request; ``gap_s``: time since its previous tokens, None for the first."""
        self._counters["generation_tokens"][engine].inc(count)
        if gap_s is not None:
            self._seconds["inter_token_latency_seconds"][engine].observe(gap_s)

    def note_first(self, engine: int, prompt: int, cached: int, seconds: float) -> None:
        """Count a request's prompt and cached tokens, and its TTFT in ``seconds``."""
        self._counters["prompt_tokens"][engine].inc(prompt)
        self._counters["prefix_cache_queries"][engine].inc(prompt)
        self._counters["prefix_cache_hits"][engine].inc(cached)
        self._seconds["time_to_first_token_seconds"][engine].observe(seconds)

    def note_finished(self, engine: int, prompt: int, output: int, times: RequestTimes, reason: str) -> None:
        """Count a finished request with its times and lengths; ``reason``: stop or length."""
        spans = {
            "e2e_request_latency_seconds": times.finish_us - times.sent_us,
            "request_queue_time_seconds": times.scheduled_us - times.sent_us,
            "request_inference_time_seconds": times.finish_us - times.scheduled_us,
            "request_prefill_time_seconds": times.first_token_us - times.scheduled_us,
            "request_decode_time_seconds": times.finish_us - times.first_token_us,
        }
        if output > 1:
            spans["request_time_per_output_token_seconds"] = (times.finish_us - times.first_token_us) / (output - 1)
        for name, span_us in spans.items():
            self._seconds[name][engine].observe(span_us / 1e6)
        self._lengths["request_prompt_tokens"][engine].observe(prompt)
        self._lengths["request_generation_tokens"][engine].observe(output)
        self._ended[reason][engine].inc()

    def note_aborted(self, engine: int) -> None:
        """Count a request whose client disconnected."""
        self._ended["abort"][engine].inc()

    def text(self) -> bytes:
        """Return the text of ``/metrics``, with current gauges."""
        capacity = self._engines.arrays.limits["capacity_units"]
        for number, engine in enumerate(self._engines.engines):
            usage = 1.0 - engine["free_units"] / capacity[number]
            values = (engine["running"], engine["in_flight"] - engine["running"], usage, usage)
            for gauges, value in zip(self._gauges.values(), values, strict=True):
                gauges[number].set(float(value))
            self._preempted[number].inc(int(engine["preempted"] - self._seen[number]))
            self._seen[number] = engine["preempted"]
        return generate_latest(self._registry)
