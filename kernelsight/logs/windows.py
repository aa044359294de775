"""Rows of ``production_windows`` from samples of Prometheus counters, gauges and histograms."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import polars as pl

from kernelsight.files.row_faults import Faults
from kernelsight.logs.summaries import statistic

# counters of vLLM, of older vLLM and of SGLang by column; the first one present is used
COUNTERS: Mapping[str, tuple[str, ...]] = {
    "prompt_tokens": ("vllm:prompt_tokens_total", "sglang:prompt_tokens_total"),
    "output_tokens": ("vllm:generation_tokens_total", "sglang:generation_tokens_total"),
    "engine_steps": ("vllm:iteration_tokens_total_count",),
    "looked_up_tokens": ("vllm:prefix_cache_queries_total", "vllm:gpu_prefix_cache_queries_total"),
    "cached_tokens": (
        *("vllm:prefix_cache_hits_total", "vllm:gpu_prefix_cache_hits_total", "sglang:cached_tokens_total"),
    ),
    "preemptions": ("vllm:num_preemptions_total", "sglang:num_retracted_requests_total"),
}
GAUGES: Mapping[str, tuple[str, ...]] = {
    "running": ("vllm:num_requests_running", "sglang:num_running_reqs"),
    "waiting": ("vllm:num_requests_waiting", "sglang:num_queue_reqs"),
    "kv_share": ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc", "sglang:token_usage"),
}
# of GPU exporters, one series per GPU: power in W, and the energy counter of a board in mJ, which has no gaps
# (names: etc/default-counters.csv of NVIDIA/dcgm-exporter; nvidia_gpu_exporter)
POWER = ("DCGM_FI_DEV_POWER_USAGE", "DCGM_FI_DEV_POWER_USAGE_INSTANT", "nvidia_smi_power_draw_watts")
ENERGY = ("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION",)
# histograms of seconds: mean = difference of sums / difference of counts; buckets are too coarse for percentiles
HISTOGRAMS: Mapping[str, tuple[str, ...]] = {
    "ttft_mean_ms": ("vllm:time_to_first_token_seconds", "sglang:time_to_first_token_seconds"),
    "itl_mean_ms": (
        *("vllm:inter_token_latency_seconds", "vllm:time_per_output_token_seconds"),
        *("sglang:inter_token_latency_seconds",),
    ),
    "tpot_mean_ms": ("vllm:request_time_per_output_token_seconds",),
    "e2e_mean_ms": ("vllm:e2e_request_latency_seconds", "sglang:e2e_request_latency_seconds"),
    "queue_mean_ms": ("vllm:request_queue_time_seconds", "sglang:queue_time_seconds"),
    "prefill_mean_ms": ("vllm:request_prefill_time_seconds",),
    "decode_mean_ms": ("vllm:request_decode_time_seconds",),
}
LATENCY_MEANS = {"ttft_mean_ms": "ttft_ms", "itl_mean_ms": "itl_ms", "tpot_mean_ms": "tpot_ms", "e2e_mean_ms": "e2e_ms"}
_COUNTS = {"ttft_mean_ms": "first_tokens", "e2e_mean_ms": "finished"}


def _sources() -> dict[str, tuple[str, bool]]:
    """Return (intermediate column, whether it is a counter) by exposed metric name."""
    sources = {}
    for column, names in COUNTERS.items():
        # older servers expose counters without the suffix
        sources |= {spelled: (column, True) for name in names for spelled in (name, name.removesuffix("_total"))}
    for column, names in GAUGES.items():
        sources |= dict.fromkeys(names, (column, False))
    sources |= dict.fromkeys(POWER, ("power_w", False)) | dict.fromkeys(ENERGY, ("energy_mj", True))
    for column, names in HISTOGRAMS.items():
        for name in names:
            sources |= {f"{name}_sum": (f"{column}_sum", True), f"{name}_count": (f"{column}_count", True)}
    return sources


SOURCES = _sources()


def is_used(metric: str) -> bool:
    """Whether an exposed metric is used for windows.

    >>> is_used("vllm:prompt_tokens_total"), is_used("vllm:time_to_first_token_seconds_bucket")
    (True, False)
    """
    return metric in SOURCES


def of_gpus(metric: str) -> bool:
    """Whether a metric is of a GPU exporter rather than a server.

    >>> of_gpus("DCGM_FI_DEV_POWER_USAGE"), of_gpus("vllm:num_requests_running")
    (True, False)
    """
    return metric in POWER or metric in ENERGY


def windows_of(samples: pl.DataFrame, faults: Faults, has_times: bool) -> pl.DataFrame:
    """Return a row per replica and pair of consecutive scrapes: counter differences, means of gauges, mean times.

    ``samples``: metric, replica, labels, time (s), value; series of a replica are summed over labels. ``has_times``:
    times are real, not numbers of snapshots. Windows in which a counter fell are dropped and counted in ``faults``.
    """
    names = pl.DataFrame(
        {"metric": list(SOURCES), "column": [c for c, _ in SOURCES.values()], "grows": [g for _, g in SOURCES.values()]}
    )
    # if a server exposes a metric under two names, the first one listed above is kept
    rank = pl.DataFrame({"metric": list(SOURCES), "rank": range(len(SOURCES))})
    used = samples.join(names, on="metric").join(rank, on="metric")
    used = used.filter(pl.col("rank") == pl.col("rank").min().over("replica", "column"))
    used = used.unique(["metric", "replica", "labels", "time"], keep="last", maintain_order=True)
    used = used.sort("replica", "column", "labels", "time")
    series = ["replica", "column", "labels"]
    used = used.with_columns(
        pl.col("time").shift(-1).over(series).alias("end_s"),
        pl.when("grows")
        .then(pl.col("value").shift(-1).over(series) - pl.col("value"))
        .otherwise((pl.col("value").shift(-1).over(series) + pl.col("value")) / 2)
        .alias("change"),
    ).drop_nulls("end_s")
    grouped = used.group_by("replica", "time", "end_s", "column").agg(
        # cache usage is averaged over engines, everything else summed
        pl.when(pl.col("column").first() == "kv_share").then(pl.col("change").mean()).otherwise(pl.col("change").sum()),
        (pl.col("grows") & (pl.col("change") < 0)).any().alias("fell"),
        pl.when(pl.col("column").first().is_in(["power_w", "energy_mj"])).then(pl.len()).alias("gpus"),
    )
    gpus = grouped.group_by("replica", "time", "end_s").agg(pl.col("gpus").max().cast(pl.Int64).alias("power_gpus"))
    fell = grouped.group_by("replica", "time").agg(pl.col("fell").any())
    reset = fell.filter("fell").sort("replica", "time")
    faults.add("counter_reset", reset.height, reset["replica"].first() if reset.height else None)
    wide = grouped.join(fell.filter(~pl.col("fell")).select("replica", "time"), on=["replica", "time"])
    if not wide.height:
        return pl.DataFrame(schema={"replica": pl.String, "start_s": pl.Float64, "end_s": pl.Float64})
    wide = wide.pivot("column", index=["replica", "time", "end_s"], values="change")
    wide = wide.join(gpus, on=["replica", "time", "end_s"])
    return (
        _columns(wide, has_times)
        .sort("replica", "start_s")
        .unique(["replica", "start_s"], keep="first", maintain_order=True)
    )


def _columns(wide: pl.DataFrame, has_times: bool) -> pl.DataFrame:
    """Return the columns of ``production_windows`` from one column per counter, gauge, and histogram sum or count."""
    columns = [pl.col("replica"), pl.col("time").alias("start_s")]
    columns.append((pl.col("end_s") if has_times else pl.lit(None, pl.Float64)).alias("end_s"))
    columns += [pl.col(name).round().cast(pl.Int64) for name in COUNTERS if name in wide.columns]
    columns += [
        (pl.col(name).clip(0, 1) if name == "kv_share" else pl.col(name)) for name in GAUGES if name in wide.columns
    ]
    if has_times and "energy_mj" in wide.columns:
        mean_power_w = pl.col("energy_mj") / 1e3 / (pl.col("end_s") - pl.col("time"))
        columns.append(
            (pl.coalesce(mean_power_w, "power_w") if "power_w" in wide.columns else mean_power_w).alias("power_w")
        )
    elif "power_w" in wide.columns:
        columns.append(pl.col("power_w"))
    columns.append(pl.col("power_gpus"))
    for name in HISTOGRAMS:
        if {f"{name}_sum", f"{name}_count"} <= set(wide.columns):
            count = pl.col(f"{name}_count")
            columns.append(pl.when(count > 0).then(1e3 * pl.col(f"{name}_sum") / count).alias(name))
            if name in _COUNTS:
                columns.append(count.round().cast(pl.Int64).alias(_COUNTS[name]))
    return wide.select(columns)


def load_of_windows(windows: pl.DataFrame, part: str = "log of the server") -> list[dict[str, Any]]:
    """Return what windows say of the load and of its latencies, as rows of ``production_summaries``.

    Totals are those of all windows; means of latencies are weighted by their requests, other means by time.
    """
    present = {name for name in windows.columns if windows[name].null_count() < windows.height}
    found: dict[tuple[str, str], float | None] = {}
    for name in ("prompt_tokens", "output_tokens"):
        if name in present:
            found[name, "total"] = windows[name].sum()
    lasts_s = windows["end_s"] - windows["start_s"] if "end_s" in present else None
    if lasts_s is not None:
        found["duration_s", "total"] = windows["end_s"].max() - windows["start_s"].min()  # type: ignore[operator]
        for name in ("prompt_tokens", "output_tokens"):
            if name in present:
                found[f"{name}_per_s", "mean"] = windows[name].sum() / found["duration_s", "total"]
    counts = [name for name in ("first_tokens", "finished") if name in present]
    if counts:
        found["requests", "total"] = windows[counts[0]].sum()
    for name, metric in LATENCY_MEANS.items():
        weight = windows[counts[0]] if counts else None
        if name in present and weight is not None:
            found[metric, "mean"] = (windows[name] * weight).sum() / max(
                weight.filter(windows[name].is_not_null()).sum(), 1
            )
    for name in ("running", "waiting", "kv_share", "hit_share"):
        if name in present and lasts_s is not None:
            # of several engines requests add up, and shares are averaged
            engines = windows["replica"].n_unique() if name in ("running", "waiting") else 1
            weight = lasts_s.filter(windows[name].is_not_null())
            found[name, "mean"] = engines * float((windows[name].drop_nulls() * weight).sum() / max(weight.sum(), 1e-9))
    if {"looked_up_tokens", "cached_tokens"} <= present and windows["looked_up_tokens"].sum():
        found["hit_share", "mean"] = windows["cached_tokens"].sum() / windows["looked_up_tokens"].sum()
    return [row for (metric, name), value in found.items() for row in statistic(part, metric, name, value)]
