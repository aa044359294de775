"""What a log shows of its load: closed or open loop, the process of arrivals, prompts that repeat."""

from __future__ import annotations

import math

import numpy as np
import polars as pl
import pyarrow as pa

LEAST_GAPS = 20
# a client in a closed loop sends as soon as an answer ends
AT_LIMIT, REACTION_MS, REACTION_SHARE = 0.9, 5.0, 0.02
BURST_SHARE = 0.05
CONSTANT_CV = 0.1
# 1 % point of the Kolmogorov-Smirnov statistic for an exponential distribution of unknown mean, in the form that
# holds for every number of values (Stephens, J. Am. Stat. Assoc. 69, 1974, table 1.1)
EXPONENTIAL_1_PERCENT = 1.308


def loops(requests: pa.Table) -> pa.Table:
    """Return per log whether the client sent in a closed loop, an open one, or all at once.

    Columns: log_id, loop (closed, open, burst, unknown), in_flight_max, share_at_max (of the sends that left as many
    in flight), reaction_ms (median time from the last end to the next sending). Closed: almost every request is sent
    as another one ends, and none beyond in_flight_max, which is then the client's concurrency.

    >>> times = {"log_id": ["a"] * 30, "sent_s": [0.1 * n for n in range(30)], "e2e_ms": [100.0] * 30}
    >>> loops(pa.table(times))["loop"].to_pylist()
    ['closed']
    """
    frame = _frame(requests, "log_id", "sent_s", "e2e_ms")
    rows = []
    for (log_id,), log in frame.group_by("log_id", maintain_order=True):
        timed = log.filter(pl.col("sent_s").is_not_null())
        rows.append({"log_id": log_id, **_loop(timed["sent_s"].to_numpy(), timed["e2e_ms"].fill_null(0.0).to_numpy())})
    return pl.DataFrame(rows, schema=_LOOPS).to_arrow()


_LOOPS = {
    **{"log_id": pl.String, "loop": pl.String, "in_flight_max": pl.Int64},
    **{"share_at_max": pl.Float64, "reaction_ms": pl.Float64},
}


def _loop(sent_s: np.ndarray, e2e_ms: np.ndarray) -> dict[str, object]:
    if len(sent_s) < LEAST_GAPS:
        return {"loop": "unknown"}
    order = np.argsort(sent_s, kind="stable")
    sent, took = sent_s[order], e2e_ms[order] / 1e3
    ends = np.sort(sent + took)
    # a nanosecond of tolerance: a request that is sent as another one ends is sent after it
    ended = np.searchsorted(ends, sent + 1e-9, side="right")
    in_flight = np.arange(1, len(sent) + 1) - ended
    most = int(in_flight.max())
    typical = float(np.median(took[took > 0])) if (took > 0).any() else 0.0
    found: dict[str, object] = {"in_flight_max": most}
    if sent[-1] - sent[0] <= BURST_SHARE * typical:
        return found | {"loop": "burst", "share_at_max": float(np.mean(in_flight == most))}
    later = np.arange(len(sent)) >= most  # the first requests fill the loop
    if not later.any():
        return found | {"loop": "open", "share_at_max": float(np.mean(in_flight == most))}
    reaction = 1e3 * float(np.median(sent[later] - ends[np.maximum(ended[later] - 1, 0)]))
    share = float(np.mean(in_flight[later] == most))
    prompt = reaction <= max(REACTION_MS, 1e3 * REACTION_SHARE * typical)
    loop = "closed" if share >= AT_LIMIT and prompt else "open"
    return found | {"loop": loop, "share_at_max": share, "reaction_ms": reaction}


def arrival_processes(requests: pa.Table) -> pa.Table:
    """Return per log the process of intended arrivals: constant, poisson, gamma (of another burstiness), unknown.

    Columns: log_id, process, rate (requests/s), cv (standard deviation / mean of the gaps), burstiness (1 / cv²:
    1 for a Poisson process), distance (Kolmogorov-Smirnov statistic to an exponential distribution, scaled so that
    1.308 is exceeded by chance in 1 % of Poisson processes). Warm-ups are left out.

    >>> arrivals = pa.table({"log_id": ["a"] * 50, "arrival_s": [0.5 * n for n in range(50)], "status": ["ok"] * 50})
    >>> arrival_processes(arrivals).select(["process", "rate"]).to_pylist()
    [{'process': 'constant', 'rate': 2.0}]
    """
    frame = _frame(requests, "log_id", "arrival_s", "status").filter(pl.col("status") != "warmup")
    rows = []
    for (log_id,), log in frame.group_by("log_id", maintain_order=True):
        gaps = np.diff(log["arrival_s"].drop_nulls().sort().to_numpy())
        rows.append({"log_id": log_id, **_process(gaps)})
    return pl.DataFrame(rows, schema=_PROCESSES).to_arrow()


_PROCESSES = {
    **{"log_id": pl.String, "process": pl.String},
    **dict.fromkeys(("rate", "cv", "burstiness", "distance"), pl.Float64),
}


def _process(gaps: np.ndarray) -> dict[str, object]:
    if len(gaps) < LEAST_GAPS or gaps.sum() <= 0:
        return {"process": "unknown"}
    mean = float(gaps.mean())
    cv = float(gaps.std(ddof=1)) / mean
    distance = _exponential_distance(gaps)
    kind = "constant" if cv <= CONSTANT_CV else "poisson" if distance <= EXPONENTIAL_1_PERCENT else "gamma"
    return {
        **{"process": kind, "rate": 1 / mean, "cv": cv, "distance": distance},
        "burstiness": 1 / cv**2 if cv > 0 else None,
    }


def _exponential_distance(gaps: np.ndarray) -> float:
    """Return (D - 0.2/n) (√n + 0.26 + 0.5/√n), D the largest distance of the two distribution functions."""
    count, root = len(gaps), math.sqrt(len(gaps))
    expected = 1 - np.exp(-np.sort(gaps) / gaps.mean())
    steps = np.arange(count + 1) / count
    furthest = max(float(np.max(steps[1:] - expected)), float(np.max(expected - steps[:-1])))
    return (furthest - 0.2 / count) * (root + 0.26 + 0.5 / root)


def repeated_prompts(requests: pa.Table) -> pa.Table:
    """Return per request with hash_ids the prompt tokens whose blocks an earlier request of the log began with.

    Columns: log_id, request_id, repeated_tokens, whole (all blocks were seen). Equal ids stand for equal prefixes,
    so that a block counts where every block before it does. An unlimited prefix cache would hold these tokens.

    >>> seen = pa.table({"log_id": ["a"] * 3, "request_id": [0, 1, 2], "prompt_tokens": [20, 30, 9],
    ...                  "hash_ids": [[1, 2], [1, 3], [1]], "hash_block_tokens": [16, 16, 16]})
    >>> repeated_prompts(seen)["repeated_tokens"].to_pylist()
    [0, 16, 9]
    """
    names = ("log_id", "request_id", "prompt_tokens", "hash_ids", "hash_block_tokens")
    frame = _frame(requests, *names).filter(
        pl.col("hash_ids").is_not_null() & pl.col("hash_block_tokens").is_not_null()
    )
    key = ["log_id", "request_id"]
    blocks = frame.select(*key, "hash_ids").filter(pl.col("hash_ids").list.len() > 0).explode("hash_ids")
    blocks = blocks.with_columns(
        (pl.col("request_id") > pl.col("request_id").min().over("log_id", "hash_ids")).alias("seen")
    )
    leading = blocks.with_columns(pl.col("seen").cast(pl.Int64).cum_min().over(key).alias("seen"))
    counted = leading.group_by(key).agg(pl.col("seen").sum().alias("blocks"))
    joined = frame.join(counted, on=key, how="left").with_columns(pl.col("blocks").fill_null(0))
    tokens = pl.min_horizontal(pl.col("blocks") * pl.col("hash_block_tokens"), "prompt_tokens")
    whole = (pl.col("blocks") == pl.col("hash_ids").list.len()) & (pl.col("blocks") > 0)
    return joined.select(*key, tokens.alias("repeated_tokens"), whole.alias("whole")).sort(key).to_arrow()


def _frame(requests: pa.Table, *names: str) -> pl.DataFrame:
    frame = pl.from_arrow(requests.select(list(names)))
    assert isinstance(frame, pl.DataFrame)
    return frame
