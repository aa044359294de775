"""Rules on combinations of load flags, shared by the command line and the drawing of requests."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any

from kernelsight.errors import InvalidInput

RAMP_UP = ("ramp_up_strategy", "ramp_up_start_rps", "ramp_up_end_rps")
SPREADS = ("input_len_cv", "output_len_cv")
FROM_THE_TRACE = (
    *("request_rate", "input_len", "output_len", *RAMP_UP, "length_distribution", "lengths_from", *SPREADS),
    *("prefix_len", "num_prefixes", "num_priorities", "num_adapters", "num_turns", "think_time_s", "think_time_cv"),
)
RATES = ("request_rate", *RAMP_UP)
LOADS = frozenset({"request_rate", "ramp_up_strategy", "max_concurrency"})
# requests of a synthetic load that states none: as many as `vllm bench serve` sends; in a closed loop, by user
DEFAULT_PROMPTS, DEFAULT_ROUNDS = 1000, 10
CONVERSATION_ENDINGS = (".json", ".json.gz", ".json.zst")
LINES_ENDINGS = (".jsonl", ".jsonl.gz", ".jsonl.zst")
# by length distribution: flags of which it needs at least one, and flags that it excludes
NEEDED = {"lognormal": SPREADS, "empirical": ("lengths_from",)}
UNUSED = {
    "fixed": (*SPREADS, "lengths_from", "range_ratio"),
    "uniform": (*SPREADS, "lengths_from"),
    "lognormal": ("lengths_from", "range_ratio"),
    "empirical": ("input_len", "output_len", *SPREADS, "range_ratio"),
}

ROUTER_THRESHOLDS = ("router_cache_threshold", "router_balance_abs_threshold", "router_balance_rel_threshold")

Fault = tuple[str, str]  # problem, advice


def may_hold_conversations(trace: str) -> bool:
    """Return whether a trace may be recorded conversations, which have no arrivals: a folder, or a JSON file.

    >>> may_hold_conversations("agent.json.gz"), may_hold_conversations("day.jsonl")
    (True, False)
    """
    return str(trace).endswith(CONVERSATION_ENDINGS) or os.path.isdir(trace)


def distribution(row: Mapping[str, Any]) -> str:
    """Return the length distribution of a synthetic workload: as set, else the one whose parameters are set.

    >>> distribution({"lengths_from": "day.csv"}), distribution({"range_ratio": 0.5})
    ('empirical', 'uniform')
    """
    if row.get("length_distribution") is not None:
        return row["length_distribution"]
    if row.get("lengths_from") is not None:
        return "empirical"
    return "lognormal" if flags_set(row, SPREADS) else "uniform"


def flags_set(row: Mapping[str, Any], names: tuple[str, ...]) -> list[str]:
    """Return the names that a workload sets; a range ratio of 1 counts as unset.

    >>> flags_set({"input_len": 8, "range_ratio": 1.0}, ("input_len", "output_len", "range_ratio"))
    ['input_len']
    """
    return [name for name in names if row.get(name) is not None and not (name == "range_ratio" and row[name] == 1)]


def with_finite_rate(flags: Mapping[str, Any]) -> dict[str, Any]:
    """Return flags with an infinite request rate replaced by a closed loop that sends all requests at once.

    >>> with_finite_rate({"request_rate": "inf", "num_prompts": 8})
    {'num_prompts': 8, 'max_concurrency': 8}
    """
    if str(flags.get("request_rate")).lower() not in ("inf", "infinity"):
        return dict(flags)
    finite = {name: value for name, value in flags.items() if name != "request_rate"}
    if "max_concurrency" not in finite and "trace" not in finite:
        finite["max_concurrency"] = finite.get("num_prompts", DEFAULT_PROMPTS)
    return finite


def with_prompts(flags: Mapping[str, Any]) -> dict[str, Any]:
    """Return typed flags with a number of requests where a synthetic load states none.

    It is ``DEFAULT_PROMPTS``, and in a closed loop at least ``DEFAULT_ROUNDS`` for each user.

    >>> with_prompts({"request_rate": 4.0}), with_prompts({"max_concurrency": 512})["num_prompts"]
    ({'request_rate': 4.0, 'num_prompts': 1000}, 5120)
    """
    if "trace" in flags or "num_prompts" in flags or not LOADS & set(flags):
        return dict(flags)
    return dict(flags) | {"num_prompts": max(DEFAULT_PROMPTS, DEFAULT_ROUNDS * flags.get("max_concurrency", 0))}


def check_load(flags: Mapping[str, Any]) -> None:
    """Raise InvalidInput for a workload that is missing, incomplete or contradictory."""
    if not {"trace", *LOADS} & set(flags):
        raise InvalidInput("no workload is given; set trace, request_rate or max_concurrency.")
    fault = first_fault(flags)
    if fault:
        raise InvalidInput(". ".join(fault))


def first_fault(row: Mapping[str, Any]) -> Fault | None:
    """Return the problem of an incomplete or contradictory workload, and advice; None: it is valid."""
    faults = _trace_faults if row.get("trace") is not None else _synthetic_faults
    return next(faults(row), None) or next(_router_faults(row), None)


def _trace_faults(row: Mapping[str, Any]) -> Iterator[Fault]:
    may_be_untimed = may_hold_conversations(row["trace"]) or str(row["trace"]).endswith(LINES_ENDINGS)
    allowed = RATES if may_be_untimed else ()  # what the file holds is checked where it is read
    conflicting = flags_set(row, tuple(name for name in FROM_THE_TRACE if name not in allowed))
    if conflicting:
        fault = f"trace and {', '.join(conflicting)} are both set, but a trace has its own arrivals and lengths"
        yield fault, "Remove one or the other."
    yield from _ramp_up_faults(row)


def _synthetic_faults(row: Mapping[str, Any]) -> Iterator[Fault]:
    shape = distribution(row)
    required = ("num_prompts",) if shape == "empirical" else ("num_prompts", "input_len", "output_len")
    missing = [name for name in required if row.get(name) is None]
    if missing:
        fault = f"the synthetic workload is missing {', '.join(missing)}"
        yield fault, "Set the rest, or give a trace."
    yield from _ramp_up_faults(row)
    if shape in NEEDED and not flags_set(row, NEEDED[shape]):
        yield f"{shape} lengths need {' or '.join(NEEDED[shape])}", "Set it, or leave length_distribution unset."
    unused = flags_set(row, UNUSED[shape])
    if unused:
        yield f"{', '.join(unused)} cannot be used with {shape} lengths", "Remove one or the other."
    if row.get("num_prefixes") is not None and row.get("prefix_len") is None:
        yield "num_prefixes is set without prefix_len", "Set prefix_len, the tokens of the shared prefix."
    if row.get("adapter_zipf") is not None and row.get("num_adapters") is None:
        yield "adapter_zipf is set without num_adapters", "Set num_adapters, the adapters that requests choose from."
    if row.get("think_time_s") is not None and (row.get("num_turns") or 1) == 1:
        yield "think_time_s is set, but conversations have one turn", "Set num_turns, or leave think_time_s unset."
    if row.get("think_time_cv") is not None and row.get("think_time_s") is None:
        yield "think_time_cv is set without think_time_s", "Set think_time_s, the mean pause of a user."
    if row.get("think_time_limit_s") is not None and row.get("think_time_s") is None:
        yield "think_time_limit_s is set without think_time_s", "Set think_time_s, or give a trace."
    for name in ("trace_columns", "trace_tokenizer"):
        if row.get(name) is not None:
            yield f"{name} is set without a trace", "Give the trace too, or leave it unset."
    if row.get("shared_prefix"):
        yield "shared_prefix is set without a trace", "Set prefix_len, the tokens of a shared prefix, or give a trace."


def _ramp_up_faults(row: Mapping[str, Any]) -> Iterator[Fault]:
    if row.get("concurrency_ramp_s") and row.get("max_concurrency") is None:
        yield "concurrency_ramp_s is set without max_concurrency", "Set the users who join, or ramp a rate up."
    ramp_up_flags = flags_set(row, RAMP_UP)
    if not ramp_up_flags:
        return
    missing = [name for name in RAMP_UP if name not in ramp_up_flags]
    if missing:
        yield f"the ramp-up is missing {', '.join(missing)}", "Set all of its flags, or none."
    if row.get("request_rate") is not None:
        yield "request_rate and a ramp-up are both set", "Remove one or the other."


def _router_faults(row: Mapping[str, Any]) -> Iterator[Fault]:
    unused = flags_set(row, ROUTER_THRESHOLDS)
    if unused and row.get("router") != "prefix_aware":
        fault = f"{', '.join(unused)} {'is' if len(unused) == 1 else 'are'} set, but the router is not prefix_aware"
        yield fault, "Set router to prefix_aware, or remove the threshold."
    if row.get("router_weights") is not None and row.get("router") != "scored":
        yield "router_weights is set, but the router is not scored", "Set router to scored, or remove the weights."
