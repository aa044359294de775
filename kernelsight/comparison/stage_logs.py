"""Logs that hold statistics of stages instead of requests: the load drawn as their client sends it, stage by stage."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from kernelsight.number_format import number, rounded

# shares of a distribution that clients state
SHARES = {
    "min": 0.0,
    "p10": 0.1,
    "p25": 0.25,
    "p50": 0.5,
    "p75": 0.75,
    "p90": 0.9,
    "p95": 0.95,
    "p99": 0.99,
    "max": 1.0,
}
# a client that falls this far behind the rate, or that waits this long to send, has run out of workers
REACHED, LATE_MS = 0.97, 500.0
# share of the users of a closed loop that wait for an answer on average, at least
FULL = 0.9
LENGTHS = ("prompt_tokens", "output_tokens")
# fewer make no statistic
LEAST_REQUESTS = 5
# tokens of the blocks that prompts which are used again share
BLOCK_TOKENS = 16


class Stage(NamedTuple):
    """One stage of a log: what its client sent, and the statistics of what it measured."""

    log_id: str
    part: str
    requests: int
    rate: float  # requests per second that were asked of the client; infinite: all at once
    achieved: float
    prompt_tokens: Mapping[str, float]
    output_tokens: Mapping[str, float]
    measured: Mapping[tuple[str, str], float]  # (metric, statistic): ms
    delay_ms: float
    max_concurrency: int | None = None  # requests in flight at most, where the stage states it

    @property
    def is_open(self) -> bool:
        """Whether the client kept to its rate, so that the engine's answers did not decide when requests were sent."""
        return self.achieved >= REACHED * self.rate and self.delay_ms < LATE_MS

    @property
    def in_flight(self) -> int:
        """Requests in flight on average, by Little's law."""
        return max(round(self.achieved * self.measured.get(("e2e_ms", "mean"), 0.0) / 1e3), 1)


def stages_of(summaries: pa.Table) -> list[Stage]:
    """Return the stages of ``production_summaries`` that can be drawn: with a rate, lengths, and a latency.

    Of a log that has stages the run as a whole is left out, which adds them up; as are the server's own statistics.
    """
    by_part: dict[tuple[str, str], dict[tuple[str, str], float]] = {}
    for row in summaries.to_pylist():
        statistics = by_part.setdefault((row["log_id"], row["part"]), {})
        statistics[row["metric"], row["statistic"]] = row["value"]
    candidates = [
        _stage(*key, statistics) for key, statistics in by_part.items() if not key[1].startswith(("server", "client"))
    ]
    stages = [stage for stage in candidates if stage is not None]
    several = [stage for stage in stages if stage.part != "run"]
    return sorted(several or stages, key=lambda stage: (stage.part, stage.log_id))


def client_of(summaries: pa.Table) -> dict[str, float]:
    """Return what the client's configuration says: max_concurrency, unique_prompts, output_tokens, where it does."""
    rows = [row for row in summaries.to_pylist() if row["part"] == "client"]
    return {row["metric"]: row["value"] for row in rows}


def _stage(log_id: str, part: str, statistics: Mapping[tuple[str, str], float]) -> Stage | None:
    requests, prompt, output = (
        int(statistics.get(("requests", "total"), 0)),
        *(
            {name: value for (metric, name), value in statistics.items() if metric == length_metric}
            for length_metric in LENGTHS
        ),
    )
    duration = statistics.get(("duration_s", "total"))
    achieved = statistics.get(("achieved_rate", "mean")) or (requests / duration if duration else 0.0)
    rate = statistics.get(("requested_rate", "mean")) or achieved
    times = {key: value for key, value in statistics.items() if key[0] in ("ttft_ms", "tpot_ms", "e2e_ms")}
    if requests < LEAST_REQUESTS or not achieved or not times:
        return None
    prompt, output = (_per_request(lengths, requests) for lengths in (prompt, output))
    if not prompt or not output:
        return None
    delay = statistics.get(("client_delay_ms", "mean"), 0.0)
    users = statistics.get(("max_concurrency", "mean"))
    if users and achieved * times.get(("e2e_ms", "mean"), 0.0) / 1e3 >= FULL * users:
        rate = math.inf
    most = int(users) if users else None
    return Stage(log_id, part, requests, rate, achieved, prompt, output, times, delay, most)


def _per_request(lengths: Mapping[str, float], requests: int) -> dict[str, float]:
    """Return statistics of lengths; of a total alone, the mean."""
    statistics = {name: value for name, value in lengths.items() if name in SHARES or name == "mean"}
    if "total" in lengths and "mean" not in statistics:
        statistics["mean"] = lengths["total"] / requests
    return statistics


def drawn_lengths(statistics: Mapping[str, float], n: int, draw: np.random.Generator) -> np.ndarray:
    """Return n lengths of a distribution that is known by its quantiles and its mean, whole numbers from 1.

    >>> drawn_lengths({"min": 10.0, "p50": 20.0, "max": 30.0, "mean": 20.0}, 4, np.random.default_rng(0)).tolist()
    [22, 12, 18, 28]
    """
    quantiles = sorted((SHARES[name], value) for name, value in statistics.items() if name in SHARES)
    if not quantiles:
        return np.full(n, max(round(statistics["mean"]), 1))
    shares = draw.permutation((np.arange(n) + 0.5) / n)
    values = np.interp(shares, *zip(*quantiles, strict=True))
    if "mean" in statistics:
        # what lies between the stated quantiles is not known: the mean says on which side most of it is
        least, most = quantiles[0][1], quantiles[-1][1]
        low, high = least - most, most - least
        for _ in range(40):
            middle = (low + high) / 2.0
            below = np.clip(values + middle, least, most).mean() < statistics["mean"]
            low, high = (middle, high) if below else (low, middle)
        values = np.clip(values + high, least, most)
    return np.maximum(np.rint(values), 1).astype(np.int64)


def lengths_as_stated(statistics: Mapping[str, float], nominal: int | None, ratio: float | None) -> Mapping[str, float]:
    """Return statistics of lengths; ``nominal``: stated instead of them; ``ratio``: they go from it x nominal to that.

    >>> lengths_as_stated({"mean": 90.0}, None, 0.8)
    {'min': 80.0, 'max': 100.0}
    >>> lengths_as_stated({"mean": 90.0}, 64, None)
    {'mean': 64.0}
    """
    if ratio is None or (nominal is None and "mean" not in statistics) or (nominal is None and len(statistics) > 1):
        return statistics if nominal is None else {"mean": float(nominal)}
    longest = round(statistics["mean"] * 2.0 / (1.0 + ratio), 6) if nominal is None else float(nominal)
    return {"min": round(longest * ratio, 6), "max": longest}


def load_of_stage(stage: Stage, seed: int, stated: Mapping[str, Any], client: Mapping[str, float]) -> dict[str, Any]:
    """Return the columns of ``load_requests`` of a stage, but for ``load_id``: gaps are exponential in an open loop.

    Where the client did not keep to its rate all requests wait in it: they are sent as others finish. ``stated``:
    ``input_len`` and ``output_len`` where they are known better than the client counts them, ``range_ratio`` where the
    client draws lengths of which only the mean is known; ``client``: see ``client_of``. Prompts that are used again are
    the same blocks.
    """
    draw = np.random.default_rng(seed)
    n = stage.requests
    stated = {"output_len": client["output_tokens"]} | dict(stated) if "output_tokens" in client else stated
    lengths = {
        name: drawn_lengths(lengths_as_stated(statistics, stated.get(flag), stated.get("range_ratio")), n, draw)
        for name, flag, statistics in zip(
            LENGTHS, ("input_len", "output_len"), (stage.prompt_tokens, stage.output_tokens), strict=True
        )
    }
    arrivals = np.zeros(n)
    if stage.is_open and math.isfinite(stage.rate):
        gaps = draw.exponential(1.0 / stage.rate, n)
        arrivals = np.cumsum(gaps) - gaps[0]
    shared_blocks = {}
    if unique := int(client.get("unique_prompts", 0)):
        prompts = lengths["prompt_tokens"][:unique]
        lengths["prompt_tokens"] = np.resize(prompts, n)
        blocks = lengths["prompt_tokens"] // BLOCK_TOKENS
        longest = int(blocks.max(initial=0))
        numbers = [list(range(i % unique * longest, i % unique * longest + k)) for i, k in enumerate(blocks.tolist())]
        shared_blocks = {
            "hash_ids": pa.array(numbers, pa.list_(pa.int64())),
            "hash_block_tokens": np.full(n, BLOCK_TOKENS),
        }
    return {
        "request_id": np.arange(n),
        "arrival_s": arrivals,
        **shared_blocks,
        **lengths,
    }


def findings(stages: list[Stage], faults: list[Mapping[str, Any]], client: Mapping[str, float]) -> list[str]:
    """Return what has to be known of a client's statistics before they are believed, one sentence each."""
    twice: dict[str, list[str]] = {}
    for row in faults:
        if row["rule"] == "counted_twice":
            twice.setdefault(row["explanation"], []).append(str(row["example"]))
    sentences = [f"{', '.join(examples)}: {explanation}" for explanation, examples in twice.items()]
    behind = [stage for stage in stages if not stage.is_open]
    sentences += [
        f"{stage.part}: {number(stage.rate)} requests/s were requested and {number(stage.achieved)} sent, "
        f"{number(stage.delay_ms / 1e3, 2)} s late on average: a closed loop of about {stage.in_flight:,} requests in "
        "flight"
        for stage in behind
        if math.isfinite(stage.rate)
    ]
    if most := client.get("max_concurrency"):
        sentences.append(
            f"the client has {rounded(most)} requests in flight at most: its workers, each with its own limit"
        )
    if unique := client.get("unique_prompts"):
        sent = sum(stage.requests for stage in stages)
        sentences.append(
            f"the client sends {rounded(unique)} different prompts {rounded(sent / unique)} times: a prefix cache "
            "finds them"
        )
    if output := client.get("output_tokens"):
        sentences.append(
            f"every request generates {rounded(output)} tokens (end of text is ignored); the client counts from the "
            "text"
        )
    if len(behind) < len(stages):
        sentences.append(
            "times of sending are not in the log: gaps of the open stages are drawn from an exponential law"
        )
    sentences.append("parts of the miss need requests: a statistic of TTFT does not say how long a request waited")
    return sentences
