"""Rows of ``production_windows`` from samples of Prometheus counters, gauges and histograms."""

from __future__ import annotations

from functools import cache
from typing import Any

import polars as pl

from kernelsight.files.row_faults import Faults
from kernelsight.logs.labels import fields_of
from kernelsight.logs.summaries import statistic

LATENCY_MEANS = {"ttft_mean_ms": "ttft_ms", "itl_mean_ms": "itl_ms", "tpot_mean_ms": "tpot_ms", "e2e_mean_ms": "e2e_ms"}
_COUNTS = {"ttft_mean_ms": "first_tokens", "e2e_mean_ms": "finished"}
_OF_GPUS = ("power_w", "energy_mj")  # one series per GPU; the energy counter of a board has no gaps


@cache
def columns_of(kind: str) -> tuple[str, ...]:
    """Return the columns that metrics of a kind (counter, gauge, histogram) fill, in the order of ``log_fields``."""
    columns = dict.fromkeys(column for _, column, unit in fields_of("prometheus") if unit == kind)
    return tuple(name for name in columns if name not in _OF_GPUS)


@cache
def sources() -> dict[str, tuple[str, bool]]:
    """Return (intermediate column, whether it is a counter) by exposed metric name; of a column the first one counts.

    Of a histogram, in seconds, the mean is the difference of sums over that of counts: buckets are too coarse.
    """
    found: dict[str, tuple[str, bool]] = {}
    for pattern, column, unit in fields_of("prometheus"):
        name = pattern.pattern
        if unit == "histogram":
            found |= {f"{name}_{part}": (f"{column}_{part}", True) for part in ("sum", "count")}
        else:
            # older servers expose counters without the suffix
            names = (name, name.removesuffix("_total")) if unit == "counter" else (name,)
            found |= dict.fromkeys(names, (column, unit == "counter"))
    return found


def is_used(metric: str) -> bool:
    """Whether an exposed metric is used for windows.

    >>> is_used("vllm:prompt_tokens_total"), is_used("vllm:time_to_first_token_seconds_bucket")
    (True, False)
    """
    return metric in sources()


def of_gpus(metric: str) -> bool:
    """Whether a metric is of a GPU exporter rather than a server.

    >>> of_gpus("DCGM_FI_DEV_POWER_USAGE"), of_gpus("vllm:num_requests_running")
    (True, False)
    """
    return metric in sources() and sources()[metric][0] in _OF_GPUS


def windows_of(samples: pl.DataFrame, faults: Faults, has_times: bool) -> pl.DataFrame:
    """Return a row per replica and pair of consecutive scrapes: counter differences, means of gauges, mean times.

    ``samples``: metric, replica, labels, time (s), value; series of a replica are summed over labels. ``has_times``:
    times are real, not numbers of snapshots. Windows in which a counter fell are dropped and counted in ``faults``.
    """
    rows = [(metric, column, grows, rank) for rank, (metric, (column, grows)) in enumerate(sources().items())]
    # if a server exposes a metric under two names, the first one of the table is kept
    used = samples.join(pl.DataFrame(rows, ["metric", "column", "grows", "rank"], orient="row"), on="metric")
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
        pl.when(pl.col("column").first().is_in(_OF_GPUS)).then(pl.len()).alias("gpus"),
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
    columns += [pl.col(name).round().cast(pl.Int64) for name in columns_of("counter") if name in wide.columns]
    columns += [
        (pl.col(name).clip(0, 1) if name == "kv_share" else pl.col(name))
        for name in columns_of("gauge")
        if name in wide.columns
    ]
    if has_times and "energy_mj" in wide.columns:
        mean_power_w = pl.col("energy_mj") / 1e3 / (pl.col("end_s") - pl.col("time"))
        columns.append(
            (pl.coalesce(mean_power_w, "power_w") if "power_w" in wide.columns else mean_power_w).alias("power_w")
        )
    elif "power_w" in wide.columns:
        columns.append(pl.col("power_w"))
    columns.append(pl.col("power_gpus"))
    for name in columns_of("histogram"):
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
