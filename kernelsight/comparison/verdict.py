"""Verdict of a comparison: sentences on the miss, its causes, unused rows, and what the log cannot show."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from kernelsight.comparison.errors import METRICS, are_as_claimed
from kernelsight.kernels.labels import GPU_MEASURED
from kernelsight.number_format import deviation, number, percent, rounded

# rules that drop requests that could have been compared; failed and cancelled requests could not
LOST = (
    *("duplicate_id", "unreadable_line", "unreadable_value", "no_prompt_tokens", "no_latency", "no_output"),
    *("negative_duration", "not_finite", "no_first_chunk", "other_clock", "impossible_value"),
)
DOUBTFUL = ("order_of_times",)  # compared, but their times contradict each other
REJECTED = "rejected by the simulated engine"


def fault_counts(faults: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return counts of unused rows by rule, summed over logs, with the first row; ``faults``: rows of ``log_faults``.

    >>> fault = {"rule": "duplicate_id", "rows": "dropped", "explanation": "repeated requests", "n": 2}
    >>> (count,) = fault_counts([fault | {"example": "row 7"}, fault | {"example": "row 3"}])
    >>> count["n"], count["example"]
    (4, 'row 7')
    """
    by_rule: dict[tuple[str, str], dict[str, Any]] = {}
    for row in faults:
        empty_count = {"reason": row["rule"], "n": 0, "rows": row["rows"], "explanation": row["explanation"]}
        empty_count["example"] = row["example"]
        by_rule.setdefault((row["rule"], row["rows"]), empty_count)["n"] += row["n"]
    return list(by_rule.values())


def rejected(n: int, longest: int, limit: int) -> dict[str, Any]:
    """Return the count of requests that the simulated engine rejects, as a row of ``fault_counts``.

    ``longest``: prompt and output tokens of the longest; ``limit``: max_model_len.
    """
    why = f"requests that the simulated engine rejects: up to {longest:,} tokens, where max_model_len is {limit:,}"
    return {"reason": REJECTED, "n": n, "rows": "excluded", "explanation": why, "example": None}


def unused_clause(dropped: Sequence[Mapping[str, Any]]) -> str:
    """Return the clause of a verdict on rows that were not used or are doubtful, with counts and reasons; "" for none.

    >>> fault = {"rule": "no_output", "rows": "excluded", "explanation": "requests: why", "n": 1200, "example": "row 1"}
    >>> unused_clause(fault_counts([fault]))
    '; not used: 1,200 × requests (why)'
    """
    groups = (("not used", (*LOST, REJECTED)), ("doubtful", DOUBTFUL))
    return "".join(
        f"; {heading}: {', '.join(_rows_lost(row) for row in rows)}"
        for heading, reasons in groups
        if (rows := sorted((row for row in dropped if row["reason"] in reasons), key=lambda row: -row["n"]))
    )


def _rows_lost(row: Mapping[str, Any]) -> str:
    rows_lost, colon, why = row["explanation"].partition(": ")
    return f"{row['n']:,} × {rows_lost}{f' ({why})' if colon else ''}"


# deviations below this share of E2E are agreement: repeats of one run differ by 2 to 5 % in TTFT
AGREES = 0.02
# a percentile with this many requests beyond it is named first if it is missed by this factor more than the mean
LEAST_BEYOND, OTHER_TAIL = 5, 1.5
WORDS = {
    "gpu": "all kernels",
    "front_end": "the front end",
    "host": "host time",
    "gemm": "matrix products",
    "prefill_gemm": "matrix products of prefill",
    "decode_gemm": "matrix products of decode",
    "prefill_attention": "attention of prefill",
    "decode_attention": "attention of decode",
    "moe": "experts",
    "communication": "collectives",
}
# figures of the load as beginnings of a clause
LOAD = {
    "request_rate": "requests per second are",
    "prompt_tokens": "prompts are",
    "output_tokens": "answers are",
}


def verdict_of(summary: Mapping[str, Any], no_search_reason: str | None = None) -> str:
    """Return the verdict, one sentence: error of E2E, its causes, unused rows, and unmeasured kernels behind it.

    ``answer``: the summary of ``answer.answer_of``; ``no_search_reason``: why causes were not searched for.
    """
    sentence = _miss_sentence(summary, no_search_reason)[:-1] + _power_clause(summary.get("power_w"))
    sentence += f"{unused_clause(summary['dropped'])}."
    if summary["tier"] == "unmeasured-vendor":
        return (
            f"{sentence[:-1]}; many kernels were measured on no GPU of this vendor: any part may be the prediction's."
        )
    if summary["tier"] == "cross-generation":
        return f"{sentence[:-1]}; kernels of this GPU were not measured but predicted from other GPUs."
    if summary["tier"] == GPU_MEASURED and (families := summary["assumed_families"]):
        names = families.replace("_", " ")
        return f"{sentence[:-1]}; kernels of {names} were not measured as they run here: their constants are assumed."
    return sentence


def _power_clause(power: Mapping[str, Any] | None) -> str:
    """Return measured and predicted power, for the end of a verdict; "" where they cannot be compared."""
    if not power or power["error"] is None:
        return ""
    measured, predicted, error = (power[name] for name in ("measured", "predicted", "error"))
    return f"; its GPUs drew {number(measured)} W, predicted {number(predicted)} W ({deviation(error)})"


def _miss_sentence(summary: Mapping[str, Any], no_search_reason: str | None) -> str:
    """Return the sentence on measured and predicted mean E2E (else TPOT, else TTFT) and the causes of the miss.

    It begins with the percentile that is missed most, where that is missed by far more than the mean.
    """
    name = next((name for name in ("E2E", "TPOT", "TTFT") if summary[f"{name.lower()}_ms"]["n"]), None)
    if name is None:
        return "no request of the log was served in the replay, so that nothing is compared."
    e2e = summary[f"{name.lower()}_ms"]
    miss = e2e["measured"] / e2e["predicted"] - 1.0
    times = f"measured {number(e2e['measured'])} ms, predicted {number(e2e['predicted'])} ms"
    impossible = [row for row in summary["suspects"] if row["evidence"] == "impossible"]
    worst = _worst_percentile(summary, e2e["measured"] / e2e["predicted"])
    agrees = abs(miss) < AGREES and not summary["causes"] and not worst
    sentence = f"log and prediction agree: mean {name} {times}" if agrees else (
        f"mean {name} is {percent(abs(miss), 1)} {'longer' if miss > 0 else 'shorter'} than predicted ({times})"
    )  # fmt: skip
    unit = _other_unit(e2e["measured"] / e2e["predicted"])
    if unit:
        return (
            f"{sentence}; its times look like {unit} that were read as ms: --columns names a unit, as in "
            "ttft_ms=first[s]."
        )
    sentence = worst + sentence
    if impossible:
        row = impossible[0]
        return f"{sentence}; the log contradicts {row['setting']} {row['stated']}: {row['value']}."
    if summary["causes"]:
        return f"{sentence}; {'; and '.join(cause_sentence(cause) for cause in summary['causes'])}."
    if no_search_reason is not None:
        return f"{sentence}; {no_search_reason}." if no_search_reason else f"{sentence}."
    if agrees:
        return f"{sentence}."
    covered = are_as_claimed(summary[f"{metric}_ms"] for metric in METRICS)
    return f"{sentence}; {'the 90 % intervals of the prediction hold that' if covered else 'no cause holds'}."


def _worst_percentile(summary: Mapping[str, Any], of_mean: float) -> str:
    """Return the clause on the percentile of a latency that is missed most; "" for none by OTHER_TAIL beyond the mean.

    ``of_mean``: measured over predicted mean. Percentiles with fewer than LEAST_BEYOND requests beyond are skipped.
    """
    missed = [
        (abs(math.log(times["measured"] / times["predicted"])), f"{metric.upper()} {percentile}", times)
        for metric in METRICS
        for percentile, times in summary["percentiles"].get(f"{metric}_ms", {}).items()
        if summary[f"{metric}_ms"]["n"] * (100 - int(percentile[1:])) >= 100 * LEAST_BEYOND
        and times["measured"] and times["predicted"]
    ]  # fmt: skip
    size, name, times = max(missed, key=lambda miss: miss[0], default=(0.0, "", {}))
    if size - abs(math.log(of_mean)) < math.log(OTHER_TAIL):
        return ""
    measured, predicted = times["measured"], times["predicted"]
    return (
        f"{name} is {number(measured / predicted, 2)} times what was predicted (measured {number(measured)} ms, "
        f"predicted {number(predicted)} ms), and "
    )


def cause_sentence(cause: Mapping[str, Any], stated: str = "what was stated", described: str = "described") -> str:
    """Return a cause as a clause of the verdict; ``stated``, ``described``: names of what the log is compared with.

    >>> cause_sentence({"kind": "incident", "name": "gpu", "value": 2.8, "from_s": 58.0, "to_s": 68.4})
    'from 58 to 68 s every step took 2.8 times as long: another process, clocks or power'
    """
    kind, name, value = cause["kind"], cause["name"], cause["value"]
    if kind in ("incident", "change"):
        return _event_sentence(cause)
    if kind == "setting":
        return f"the log looks like {name} {value} instead of {stated}"
    if kind == "load":
        return (
            f"{LOAD[name]} {number(value, 3)} times what was {described}"
            if value
            else f"the load is not as {described}"
        )
    if name == "per_prompt_token_us":
        return f"each prompt token takes {number(value, 3)} us more before the engine: tokenizer or front end"
    if name in ("client", "front_end", "host"):
        sign, per = "+" if value >= 0 else "-", "a step" if name == "host" else "a request"
        if name == "client":
            when = "later" if value >= 0 else "sooner"
            return f"requests reach the server {number(abs(value), 3)} ms {when} than assumed"
        return f"explained by {sign}{number(abs(value), 3)} ms {per} in {WORDS[name]}"
    return f"explained by {WORDS[name]} at {number(value, 3)} times the predicted time"


def _event_sentence(cause: Mapping[str, Any]) -> str:
    """Return the clause on an incident or a change."""
    name, value, begin, end = (cause[key] for key in ("name", "value", "from_s", "to_s"))
    when = f"from {rounded(begin)} s on" if cause["kind"] == "change" else f"from {rounded(begin)} to {rounded(end)} s"
    if name == "pause":
        return f"{when} everything stopped again and again, for {number(value, 3)} s each: pauses of the server"
    if name == "restart":
        return f"{when} no request got a token: an outage or a restart"
    if name == "other_load":
        return (
            f"{when} tokens took {number(value, 3)} times as long while the fastest steps stayed as they were: other "
            "requests than the log's"
        )
    if value < 1.0:
        return f"{when} every step took {number(value, 3)} times as long as before"
    return f"{when} every step took {number(value, 3)} times as long: another process, clocks or power"


# a part is undetermined if its posterior is wider than this share of the prior; parts below a share of E2E are skipped
UNKNOWN, LEAST_SHARE = 0.8, 0.05


def not_separated(
    parts: Sequence[Mapping[str, Any]], e2e_ms: float | None, evidence: Mapping[str, Any] | None = None
) -> list[str]:
    """Return one sentence on parts that a log cannot separate, and records that would separate them; or none.

    ``parts``: rows of ``miss_by_part``; ``e2e_ms``: predicted mean E2E; ``evidence``: number of steps and of kernels
    that the log has already.

    >>> rows = [{"part": name, "predicted_ms": 40.0, "posterior_ratio": 0.9} for name in ("host", "decode_gemm")]
    >>> not_separated(rows, 100.0)[0].split(":")[0]
    'this log does not separate host from decode_gemm'
    """
    undetermined = [
        row["part"]
        for row in parts
        if (row["posterior_ratio"] or 0.0) >= UNKNOWN and (row["predicted_ms"] or 0.0) >= LEAST_SHARE * (e2e_ms or 0.0)
    ]
    if len(undetermined) < 2:
        return []
    counts = evidence or {}
    steps = "engine steps (--steps: vLLM --enable-logging-iteration-details, forward-pass metrics)"
    kernels = "kernels (--kernels: vllm bench forward)"
    missing = [records for name, records in (("steps", steps), ("kernels", kernels)) if not counts.get(name)]
    advice = f"; {' or '.join(missing)} would" if missing else ""
    *others, last_part = sorted(undetermined, reverse=True)
    parts_named = (
        f"{others[0]} from {last_part}"
        if len(undetermined) == 2
        else f"{', '.join(others)} and {last_part} from each other"
    )
    return [f"this log does not separate {parts_named}: only their sum is known{advice}"]


def not_judged(answer: Mapping[str, Any]) -> list[str]:
    """Return one sentence on metrics that a log does not measure, and judgements that need them; or none.

    ``answer``: the summary, of which ``n``, the requests of each metric, is read.
    """
    missing = [name for name in ("TTFT", "TPOT", "E2E") if not answer[f"{name.lower()}_ms"]["n"]]
    if len(missing) not in (1, 2):
        return []
    unjudged = "slower times, pauses and requests at once" if "E2E" in missing else "time before and after the "
    unjudged += "" if "E2E" in missing else "first token, each by itself,"
    return [f"this log does not measure {' and '.join(missing)}: {unjudged} are not judged"]


def _other_unit(ratio: float) -> str | None:
    """Return the unit of measured times if ``ratio``, measured over predicted, is near 1/1000 or 1000; else None."""
    return "seconds" if 2e-4 < ratio < 5e-3 else "microseconds" if 2e2 < ratio < 5e3 else None
