"""Verdict sentence on the bottleneck of a scenario: the resource of which 20 % more gains most."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kernelsight.number_format import number, percent

ENGINE = ("prefill compute", "decode bandwidth", "link", "host")
# smaller gains do not count: another order of the same requests changes as much
LEAST_GAIN = 0.005
# E2E grows little if by less than this share with a fifth more requests per second
LITTLE_LONGER = -0.2
# share of the capacity from which on an engine is nearly saturated
NEARLY = 0.8


def verdict_of(
    gains: Sequence[Mapping[str, Any]],
    kernels: Sequence[Mapping[str, Any]] = (),
    load: float | None = None,
    capacity_limit: str | None = None,
) -> dict[str, Any]:
    """Return ``limit``, ``slowed_by`` and ``verdict`` from a scenario's rows of ``resource_gains``; None without rows.

    ``kernels``: its rows of ``kernel_breakdown``, of which the verdict says whether launches bound most of the time;
    ``load``: its requests/s as a share of its capacity, and ``capacity_limit``: what limits that, where known.

    >>> row = {"resource": "seats", "throughput_gain": 0.12, "e2e_gain": 0.1, "ttft_gain": 0.2}
    >>> verdict_of([row, row | {"resource": "host", "throughput_gain": 0.01, "e2e_gain": 0.3}])["verdict"]
    'limited by seats: 20% more give 12% more throughput; 20% faster host would cut E2E by 30%'
    >>> sooner = row | {"resource": "arrivals", "throughput_gain": 0.03, "e2e_gain": -0.6}
    >>> verdict_of([sooner, row | {"resource": "host", "throughput_gain": 0.01, "e2e_gain": 0.0}])["verdict"]
    'nearly saturated: 20% more requests/s make E2E 60% longer'
    >>> rows = [row | {"resource": "host", "e2e_gain": 0.0}, row | {"resource": "KV cache", "throughput_gain": 0.05}]
    >>> verdict_of(rows, load=1.3, capacity_limit="KV cache")["verdict"]
    'limited by host: 20% more give 12% more throughput, in batches that a full KV cache limits: 20% more of it give 5%'
    >>> verdict_of([sooner], load=0.04)["verdict"]
    'not saturated: the engine keeps up with the load, though 20% more requests/s make E2E 60% longer'
    >>> verdict_of([sooner], [{"bound": "launch", "share": 0.6}, {"bound": "memory", "share": 0.4}])["verdict"]
    'nearly saturated: 20% more requests/s make E2E 60% longer; kernel launches bound 60% of the GPU time'
    """
    if not gains:
        return dict.fromkeys(("limit", "slowed_by", "verdict"))
    best = max(gains, key=lambda row: row["throughput_gain"])
    slow = max((row for row in gains if row["resource"] in ENGINE), key=lambda row: row["e2e_gain"], default=None)
    if best["throughput_gain"] < LEAST_GAIN:
        sentence = "no resource limits throughput alone: 20% more of any give less than 0.5%"
    elif best["resource"] == "arrivals":
        is_longer = best["e2e_gain"] < LITTLE_LONGER
        longer = f"20% more requests/s make E2E {percent(-best['e2e_gain'])} longer"
        sentence = "not saturated: the engine keeps up with the load" + (f", though {longer}" if is_longer else "")
        if is_longer if load is None else load >= NEARLY:
            sentence = f"nearly saturated: {longer if is_longer else f'the load is {percent(load)} of the capacity'}"
    else:
        sentence = f"limited by {best['resource']}: 20% more give {percent(best['throughput_gain'])} more throughput"
        cache = next((row for row in gains if row["resource"] == "KV cache" and row is not best), None)
        if cache and capacity_limit == "KV cache" and load and load >= NEARLY:
            more = percent(max(cache["throughput_gain"], 0.0))
            sentence += f", in batches that a full KV cache limits: 20% more of it give {more}"
    if slow and slow["e2e_gain"] >= LEAST_GAIN:
        more = "faster" if slow["resource"] == "host" else "more"
        sentence += f"; 20% {more} {slow['resource']} would cut E2E by {percent(slow['e2e_gain'])}"
    limit = best["resource"] if best["throughput_gain"] >= LEAST_GAIN else None
    slowed_by = slow["resource"] if slow else None
    return {"limit": limit, "slowed_by": slowed_by, "verdict": sentence + _launches(kernels)}


def _launches(kernels: Sequence[Mapping[str, Any]]) -> str:
    """Return the clause on kernels that launch bounds, where these take most of the GPU time; else nothing."""
    shares: dict[str, float] = {}
    for row in kernels:
        shares[row["bound"]] = shares.get(row["bound"], 0.0) + row["share"]
    if not shares or max(shares, key=lambda bound: shares[bound]) != "launch":
        return ""
    return f"; kernel launches bound {percent(shares['launch'])} of the GPU time"


# growth of a p99 from which there is a warning
DOUBLED = 2.0
METRICS = {"ttft": "TTFT", "e2e": "E2E", "tpot": "TPOT"}


def near_capacity(middle: Mapping[str, Any] | None, slower: Mapping[str, Any] | None) -> str | None:
    """Return the warning, or None if 5 % slower steps do not double a p99.

    ``middle``, ``slower``: rows of ``request_statistics_at_ends``, as predicted and with slower steps, ms.
    """
    if middle is None or slower is None:
        return None
    growth = {
        name: slower[f"{name}_p99_ms"] / middle[f"{name}_p99_ms"]
        for name in METRICS
        if middle[f"{name}_p99_ms"] and slower[f"{name}_p99_ms"]
    }
    worst = max(growth, key=lambda name: growth[name], default=None)
    if worst is None or growth[worst] < DOUBLED:
        return None
    before, after = (row[f"{worst}_p99_ms"] for row in (middle, slower))
    return (
        f"near its capacity: steps 5 % slower would make p99 {METRICS[worst]} {number(growth[worst], 3)} times as long "
        f"({number(before)} -> {number(after)} ms)"
    )
