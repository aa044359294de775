"""Runs with estimated prompt lengths: simulated at both ends of the estimate, which widens their intervals."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from kernelsight.evaluation.runs.recipes import flags_of
from kernelsight.evaluation.runs.simulate_runs import FURTHER_INTERVALS, INTERVALS, Planned, plan_runs, serve_runs

if TYPE_CHECKING:
    from kernelsight.dataflow.session import Session
    from kernelsight.evaluation.runs.simulate_runs import HostConstants

ENDS = ("isl_low", "isl_high")


def served_with_lengths(
    session: Session,
    runs: Sequence[Mapping[str, Any]],
    planned: Sequence[Planned],
    hosts: Sequence[Sequence[HostConstants | None]],
    prose: Sequence[bool],
) -> list[list[dict[str, Any]]]:
    """Return ``serve_runs`` of these runs, with intervals widened by the uncertainty of estimated prompt lengths."""
    levels = serve_runs(session, planned, hosts, prose)
    unknown = [index for index, run in enumerate(runs) if run.get("isl_low") and planned[index].scenario]
    if not unknown:
        return levels
    chosen = [[host[index] for index in unknown] for host in hosts]
    chosen_prose = [prose[index] for index in unknown]
    recipes = session.table("recipes").to_pylist()
    flags = [[at_length(runs[index], runs[index][end], recipes) for index in unknown] for end in ENDS]
    at_ends = [
        serve_runs(session, plan_runs(session, end_flags), chosen, chosen_prose, parts=False) for end_flags in flags
    ]
    for level, *rows_at_ends in zip(levels, *at_ends, strict=True):
        for index, *ends in zip(unknown, *rows_at_ends, strict=True):
            if level[index]["status"] == "served":
                level[index] = with_wider_intervals(level[index], [end.get("predicted", {}) for end in ends])
    return levels


def at_length(run: Mapping[str, Any], isl: int, recipes: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the flags of a run with prompts of ``isl`` tokens; its tier and acceptance rate stay."""
    kept = {name: run["flags"][name] for name in ("tier", "draft_acceptance_rate") if name in run["flags"]}
    return flags_of({**run, "isl": isl}, recipes)[0] | kept


def with_wider_intervals(row: Mapping[str, Any], ends: Sequence[Mapping[str, float]]) -> dict[str, Any]:
    """Return a served run with intervals widened to predictions at other prompt lengths.

    ``ends``: predictions at these, by column. Errors of kernels and lengths are independent: they add up in squares.

    >>> row = {"predicted": {"tpot_mean_ms": 10.0}, "factors": {"tpot": (0.9, 1.1)}}
    >>> wider = with_wider_intervals(row, [{"tpot_mean_ms": 10.0}, {"tpot_mean_ms": 12.0}])
    >>> [round(factor, 3) for factor in wider["factors"]["tpot"]]
    [0.9, 1.228]
    """
    factors = dict(row["factors"])
    for column, name in (INTERVALS | FURTHER_INTERVALS).items():
        predicted = row["predicted"].get(column)
        if name not in factors or not predicted:
            continue
        logs = [math.log(end[column] / predicted) for end in ends if end.get(column)]
        low, high = factors[name]
        below = math.hypot(math.log(low), min([*logs, 0.0]))
        above = math.hypot(math.log(high), max([*logs, 0.0]))
        factors[name] = (math.exp(-below), math.exp(above))
    interval_factors = {name: factors[name] for name in row.get("interval_factors", {})}
    return {**row, "factors": factors, "interval_factors": interval_factors}


def assumed_lengths(runs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return one sentence per campaign and task on prompt lengths that no source states and that are assumed.

    >>> run = {"campaign": "a", "task": "chat", "isl": 600, "isl_low": 200, "isl_high": 1800}
    >>> assumed_lengths([run, run, run | {"isl_low": None, "isl_high": None}])
    ['a, chat: no source states the lengths of prompts; 600 tokens (200 to 1,800) stand for those of 2 runs']
    """
    counts: dict[tuple, int] = {}
    for run in runs:
        if run.get("isl_low"):
            key = (run["campaign"], run["task"], run["isl"], run["isl_low"], run["isl_high"])
            counts[key] = counts.get(key, 0) + 1
    return [
        f"{campaign}, {task}: no source states the lengths of prompts; {isl:,} tokens ({low:,} to {high:,}) stand for "
        f"those of {count:,} runs"
        for (campaign, task, isl, low, high), count in sorted(counts.items(), key=lambda item: str(item[0]))
    ]
