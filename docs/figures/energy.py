"""Tables of power and energy errors on measured servers, and the fitted constants."""

from __future__ import annotations

from typing import Any

from figures.blocks import result
from figures.text import count, full, percent, table

GROUPS = "all"
# titles of simpler rules for the power
BASELINES = {
    "power, limit": "power, baseline: the board's limit",
    "power, constant_share": "power, baseline: a constant share of the limit",
    "power, four_constants": "power, baseline: linear with four constants",
}


def figures() -> dict[str, Any]:
    """Return the recorded figures."""
    return result("energy")


def errors() -> str:
    """Table of errors by prediction and baseline, over all runs and some groups of them."""
    scores = figures()["scores"]
    groups = ["all", "without data-parallel ranks", "h100_sxm", "b200_sxm"]
    rows = [
        [
            BASELINES.get(name, name),
            count(score["all"]["n"]),
            *(full(score[group]) if group in score else "–" for group in groups),
        ]
        for name, score in scores.items()
    ]
    return table(["prediction", "runs", *groups], rows)


def groups() -> str:
    """Table of errors by concurrency and task."""
    scores = figures()["scores"]
    names = [
        "power, predicted step time, model left out",
        "energy per output token, predicted step time, model left out",
    ]
    first = scores[names[0]]
    rows = [
        [group, count(score["n"]), *(full(scores[name][group]) for name in names)]
        for group, score in first.items()
        if group != GROUPS
    ]
    return table(["runs of", "n", "power", "energy per output token"], rows)


def intervals() -> str:
    """Sentence on the shares of runs inside their 90 % interval, whose width is fitted on other models."""
    coverage = figures()["coverage"]
    return f"90 % intervals cover {percent(coverage['power'], 0)} of the measured powers and {percent(coverage['energy'], 0)} of the energies."


def constants() -> str:
    """Table of the fitted constants; powers are shares of the board's limit."""
    fitted = figures()["constants"]
    rows = [[f"`active`, {name}", f"{value:.3g}"] for name, value in fitted["active"].items()]
    rows += [[f"`{name.removesuffix('_w')}`", f"{value:.3g}"] for name, value in fitted["common"].items()]
    return table(["constant", "value"], rows)


def sample() -> str:
    """Sentence on the runs of the tables."""
    recorded = figures()
    excluded = "; ".join(f"{count(each['n'])} {each['reason']}" for each in recorded["excluded"])
    return (
        f"{count(recorded['read'])} rows read, {count(recorded['runs'])} valid and text-only; "
        f"{count(recorded['not_planned'])} of these use models that the catalogue lacks; {count(recorded['served'])} were simulated. Excluded: {excluded}."
    )
