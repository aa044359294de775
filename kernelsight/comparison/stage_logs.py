"""Stages of logs without requests: parsed from statistics, and the load that reproduces each stage's client."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from kernelsight.number_format import number, rounded

# quantiles of a distribution that clients state
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
# a client that reaches less than this share of its rate, or sends later than this, has run out of workers
REACHED, LATE_MS = 0.97, 500.0
# a closed loop is saturated if at least this share of its users waits for an answer on average
FULL = 0.9
LENGTHS = ("prompt_tokens", "output_tokens")
LATENCIES = ("ttft_ms", "tpot_ms", "itl_ms", "e2e_ms")
# what is compared
MEASURED = (*LATENCIES, "output_tokens_per_s", "running")
MOST_DESCRIBED = 8
# what a server's log or its metrics say of the load
SERVER_PARTS = ("log of the server", "since the start", "between scrapes")
# stages with fewer requests are skipped
LEAST_REQUESTS = 5
# tokens of a block that repeated prompts share
BLOCK_TOKENS = 16


# what is said of a statistic of a server, and the factor of the number in it
SAID = {
    ("requests", "total"): ("{} requests", 1.0),
    ("duration_s", "total"): ("{} s", 1.0),
    ("prompt_tokens", "total"): ("{} prompt tokens", 1.0),
    ("output_tokens", "total"): ("{} generated tokens", 1.0),
    ("prompt_tokens_per_s", "mean"): ("prompt {} tokens/s", 1.0),
    ("output_tokens_per_s", "mean"): ("generation {} tokens/s", 1.0),
    ("running", "mean"): ("{} requests running", 1.0),
    ("waiting", "mean"): ("{} waiting", 1.0),
    ("kv_share", "mean"): ("KV cache {}% in use", 100.0),
    ("hit_share", "mean"): ("{}% of prompt tokens found in the prefix cache", 100.0),
    **{(name, "mean"): (f"mean {name[:-3].upper()} {{}} ms", 1.0) for name in LATENCIES},
}
MEAN_LATENCIES = {(name, "mean") for name in LATENCIES}


class Stage(NamedTuple):
    """One stage of a log: the load that its client sent, and statistics of measured latencies.

    ``rate``, ``achieved``: requested and achieved rate, 1/s; ``prompt_tokens``, ``output_tokens``: statistics of
    lengths by name; ``measured``: ms by (metric, statistic); ``delay_ms``: mean delay of sending.
    """

    log_id: str
    part: str
    requests: int
    rate: float  # requested of the client; infinite: all at once
    achieved: float
    prompt_tokens: Mapping[str, float]
    output_tokens: Mapping[str, float]
    measured: Mapping[tuple[str, str], float]  # (metric, statistic): ms
    delay_ms: float
    max_concurrency: int | None = None  # requests in flight at most, where the stage states it
    duration_s: float | None = None
    assumed: bool = False  # neither a rate nor a limit is stated: arrivals are read from the rate that was reached
    all_at_once: bool = False

    @property
    def is_open(self) -> bool:
        """Whether the stage is an open loop: its client kept the requested rate, whatever the engine answered."""
        return self.achieved >= REACHED * self.rate and self.delay_ms < LATE_MS

    @property
    def sentence(self) -> str:
        """What the log says of the load."""
        prompt, output = (
            lengths.get("mean", lengths.get("p50", 0.0)) for lengths in (self.prompt_tokens, self.output_tokens)
        )
        lasted = f" in {number(self.duration_s)} s" if self.duration_s else ""
        return (
            f"{self.part}: {self.requests:,} requests{lasted}, {rounded(prompt * self.requests)} prompt and "
            f"{rounded(output * self.requests)} output tokens ({number(prompt)} and {number(output)} a request)"
        )

    @property
    def in_flight(self) -> int:
        """Requests in flight on average, by Little's law."""
        return max(round(self.achieved * self.measured.get(("e2e_ms", "mean"), 0.0) / 1e3), 1)


def stages_and_lacks(summaries: pa.Table, stated: Mapping[str, Any]) -> tuple[list[Stage], list[str]]:
    """Return the stages that can be simulated, with requests, a rate, lengths and a latency; and what others lack.

    The run as a whole is left out where a log has stages, which it sums up; so are the server's own statistics.
    ``stated``: flags of the described load, which stand for what a log does not say.
    """
    by_part: dict[tuple[str, str], dict[tuple[str, str], float]] = {}
    for row in summaries.to_pylist():
        statistics = by_part.setdefault((row["log_id"], row["part"]), {})
        statistics[row["metric"], row["statistic"]] = row["value"]
    parsed = [
        _stage(*key, statistics, stated)
        for key, statistics in by_part.items()
        if not key[1].startswith(("server", "client"))
    ]
    stages = [stage for stage in parsed if isinstance(stage, Stage)]
    of_clients = [stage for stage in stages if stage.part not in SERVER_PARTS] or stages
    parts = [stage for stage in of_clients if stage.part != "run"]
    ordered = sorted(parts or of_clients, key=lambda stage: (stage.part, stage.log_id))
    return ordered, list(dict.fromkeys(lack for lack in parsed if isinstance(lack, str)))


def client_of(summaries: pa.Table) -> dict[str, float]:
    """Return the client's stated settings by name: max_concurrency, unique_prompts, output_tokens, if present."""
    rows = [row for row in summaries.to_pylist() if row["part"] == "client"]
    return {row["metric"]: row["value"] for row in rows}


def _stage(
    log_id: str, part: str, statistics: Mapping[tuple[str, str], float], stated: Mapping[str, Any]
) -> Stage | str:
    """Return a stage from its statistics by (metric, statistic), or what is missing for it.

    Totals follow from rates and the duration, lengths from totals or from rates of tokens. A client without a limit on
    requests in flight and without a rate sends all at once; so is a run read that states neither, and has on average
    half of its requests in flight.
    """
    duration, achieved = statistics.get(("duration_s", "total")), statistics.get(("achieved_rate", "mean"))
    users = stated.get("max_concurrency") or statistics.get(("max_concurrency", "mean"))
    requested = stated.get("request_rate") or statistics.get(("requested_rate", "mean"))
    requests = (
        statistics.get(("requests", "total")) or stated.get("num_prompts") or (achieved or 0.0) * (duration or 0.0)
    )
    for name, flag in zip(LENGTHS, ("input_len", "output_len"), strict=True):
        requests = requests or statistics.get((name, "total"), 0.0) / (stated.get(flag) or math.inf)
    achieved = achieved or (requests / duration if duration else 0.0)
    measured = {key: value for key, value in statistics.items() if key[0] in MEASURED}
    lengths = [_lengths(statistics, requests, achieved, name) for name in LENGTHS]
    lengths = [
        {"mean": float(stated[flag])} if not known and stated.get(flag) else known
        for known, flag in zip(lengths, ("input_len", "output_len"), strict=True)
    ]
    e2e_ms = measured.get(("e2e_ms", "mean")) or (
        measured.get(("ttft_ms", "mean"), 0.0)
        + measured.get(("tpot_ms", "mean"), 0.0) * (lengths[1].get("mean", 1.0) - 1.0)
    )
    lacks = {
        "a latency": not measured,
        "the number of requests (--num-prompts)": requests < 1,
        "prompt lengths (--input-len)": not lengths[0],
        "output lengths (--output-len)": not lengths[1],
        "how requests were sent (--request-rate or --max-concurrency)": not (achieved or requested or users),
    }
    if requests < 1 and all((name, "total") in statistics for name in LENGTHS):
        return "the number of requests or a length (--num-prompts, --input-len or --output-len)"
    if any(lacks.values()):
        return " and ".join(name for name, is_missing in lacks.items() if is_missing)
    if requests < LEAST_REQUESTS:
        return f"{LEAST_REQUESTS} requests at least (it has {requests:g})"
    in_flight = achieved * e2e_ms / 1e3
    unlimited = ("unlimited_rate", "total") in statistics or stated.get("request_rate") == math.inf
    assumed = not (users or requested or unlimited)
    if unlimited or (users and (not requested or in_flight >= FULL * users)) or (assumed and in_flight > requests / 2):
        requested = math.inf
    rate = requested or achieved
    return Stage(
        *(log_id, part, round(requests), rate, achieved or (0.0 if math.isinf(rate) else rate), *lengths, measured),
        *(statistics.get(("client_delay_ms", "mean"), 0.0), int(users) if users else None, duration, assumed),
        all_at_once=math.isinf(rate) and not users,
    )


def server_sentences(summaries: pa.Table) -> list[str]:
    """Return what a server's log or metrics say, a sentence for each of SERVER_PARTS of each log."""
    by_part: dict[tuple[str, str], dict[tuple[str, str], float]] = {}
    for row in summaries.to_pylist():
        if row["part"] in SERVER_PARTS:
            by_part.setdefault((row["log_id"], row["part"]), {})[row["metric"], row["statistic"]] = row["value"]
    sentences = []
    for (_, part), found in by_part.items():
        said = [f"{text.format(number(found[key] * factor))}" for key, (text, factor) in SAID.items() if key in found]
        sentences.append(f"{part}: {', '.join(said)}" + ("" if MEAN_LATENCIES & set(found) else "; no latencies"))
    return sentences


def _lengths(
    statistics: Mapping[tuple[str, str], float], requests: float, achieved: float, metric: str
) -> dict[str, float]:
    """Return quantiles and mean of lengths, tokens; the mean from a total or a rate where that alone is known."""
    lengths = {name: value for (known, name), value in statistics.items() if known == metric}
    found = {name: value for name, value in lengths.items() if name in SHARES or name == "mean"}
    if "total" in lengths and "mean" not in found and requests:
        found["mean"] = lengths["total"] / requests
    per_s = {name: statistics.get((f"{name}_per_s", "mean")) for name in (*LENGTHS, "total_tokens")}
    if per_s["prompt_tokens"] is None and per_s["total_tokens"] and per_s["output_tokens"]:
        per_s["prompt_tokens"] = per_s["total_tokens"] - per_s["output_tokens"]
    if not found and per_s[metric] and achieved:
        found["mean"] = per_s[metric] / achieved
    return found


def drawn_lengths(statistics: Mapping[str, float], n: int, generator: np.random.Generator) -> np.ndarray:
    """Return ``n`` lengths of a distribution that is known by quantiles and mean: integers from 1, shape [n]."""
    quantiles = sorted((SHARES[name], value) for name, value in statistics.items() if name in SHARES)
    if not quantiles:
        return np.full(n, max(round(statistics["mean"]), 1))
    ranks = generator.permutation((np.arange(n) + 0.5) / n)
    values = np.interp(ranks, *zip(*quantiles, strict=True))
    if "mean" in statistics:
        # between stated quantiles the distribution is unknown: values are shifted until the mean is met
        least, most = quantiles[0][1], quantiles[-1][1]
        low, high = least - most, most - least
        for _ in range(40):
            middle = (low + high) / 2.0
            is_below = np.clip(values + middle, least, most).mean() < statistics["mean"]
            low, high = (middle, high) if is_below else (low, middle)
        values = np.clip(values + high, least, most)
    return np.maximum(np.rint(values), 1).astype(np.int64)


def lengths_as_stated(statistics: Mapping[str, float], nominal: int | None, ratio: float | None) -> Mapping[str, float]:
    """Return statistics of lengths after the described load's flags replace the client's.

    ``nominal``: input_len or output_len; ``ratio``: range_ratio, lengths are uniform from ratio x nominal to nominal.

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
    """Return the columns of ``load_requests`` of a stage, without ``load_id``.

    In an open loop gaps between arrivals are exponential; in a closed loop all requests arrive at 0 and wait in the
    client until others finish. ``stated``: flags of the described load: ``input_len`` and ``output_len`` where the
    client counts tokens otherwise, ``range_ratio`` where only mean lengths are known; ``client``: see ``client_of``.
    Repeated prompts share the same blocks.
    """
    generator = np.random.default_rng(seed)
    n = stage.requests
    stated = {"output_len": client["output_tokens"]} | dict(stated) if "output_tokens" in client else stated
    lengths = {
        name: drawn_lengths(lengths_as_stated(statistics, stated.get(flag), stated.get("range_ratio")), n, generator)
        for name, flag, statistics in zip(
            LENGTHS, ("input_len", "output_len"), (stage.prompt_tokens, stage.output_tokens), strict=True
        )
    }
    arrival_s = np.zeros(n)
    if stage.is_open and math.isfinite(stage.rate):
        gaps = generator.exponential(1.0 / stage.rate, n)
        arrival_s = np.cumsum(gaps) - gaps[0]
        sent_s = (stage.duration_s or 0.0) - stage.measured.get(("e2e_ms", "mean"), 0.0) / 1e3
        if sent_s > 0.0 and arrival_s[-1] > 0.0:  # so that the run lasts as long as the measured one
            arrival_s *= sent_s / arrival_s[-1]
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
        "arrival_s": arrival_s,
        **shared_blocks,
        **lengths,
    }


def findings(stages: list[Stage], faults: list[Mapping[str, Any]], client: Mapping[str, float]) -> list[str]:
    """Return caveats on a client's statistics, one sentence each: double counts, saturation, caching, drawn times."""
    counted_twice: dict[str, list[str]] = {}
    for row in faults:
        if row["rule"] == "counted_twice":
            counted_twice.setdefault(row["explanation"], []).append(str(row["example"]))
    sentences = [f"{', '.join(examples)}: {explanation}" for explanation, examples in counted_twice.items()]
    sentences += [stage.sentence for stage in stages[:MOST_DESCRIBED]]
    if any(stage.assumed for stage in stages):
        sent = (
            "all at once" if all(stage.all_at_once for stage in stages) else "at random, at the rate that was reached"
        )
        sentences.append(
            f"the log does not say how requests were sent: {sent} is assumed; state --stated '--max-concurrency N' or "
            "'--request-rate R' (inf: all at once)"
        )
    if any(set(stage.prompt_tokens) == {"mean"} for stage in stages):
        sentences.append("only mean lengths are known: each request has them; --stated '--range-ratio R' spreads them")
    saturated = [stage for stage in stages if not stage.is_open]
    sentences += [
        f"{stage.part}: {number(stage.rate)} requests/s were requested and {number(stage.achieved)} sent, "
        f"{number(stage.delay_ms / 1e3, 2)} s late on average: a closed loop of about {stage.in_flight:,} requests in "
        "flight"
        for stage in saturated
        if math.isfinite(stage.rate) and stage.delay_ms
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
    if len(saturated) < len(stages):
        sentences.append(
            "times of sending are not in the log: gaps of the open stages are drawn from an exponential law"
        )
    sentences.append("parts of the miss need requests: a statistic of TTFT does not say how long a request waited")
    return sentences
