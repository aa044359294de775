"""Views of `benches/results/energy.json`: power and energy of measured servers, and the constants behind them."""

from __future__ import annotations

from typing import Any

from figures.blocks import result
from figures.text import count, full, percent, table

GROUPS = "all"
# simpler rules for the power, as they are shown
BASELINES = {
    "power, limit": "power, baseline: the board's limit",
    "power, constant_share": "power, baseline: a constant share of the limit",
    "power, four_constants": "power, baseline: linear with four constants",
}


def figures() -> dict[str, Any]:
    """Return the figures of the result."""
    return result("energy")


def errors() -> str:
    """Median / mean, 90th percentile, bias of each prediction and baseline, over all runs and some groups of them."""
    scores = figures()["scores"]
    groups = ["all", "without data-parallel ranks", "h100_sxm", "b200_sxm"]
    rows = [
        [
            BASELINES.get(name, name),
            count(found["all"]["n"]),
            *(full(found[group]) if group in found else "–" for group in groups),
        ]
        for name, found in scores.items()
    ]
    return table(["prediction", "runs", *groups], rows)


def groups() -> str:
    """The errors of served runs by users and task."""
    scores = figures()["scores"]
    names = [
        "power, predicted step time, model left out",
        "energy per output token, predicted step time, model left out",
    ]
    first = scores[names[0]]
    rows = [
        [group, count(found["n"]), *(full(scores[name][group]) for name in names)]
        for group, found in first.items()
        if group != GROUPS
    ]
    return table(["runs of", "n", "power", "energy per output token"], rows)


def intervals() -> str:
    """How many runs lie in their 90 % interval, whose width the other models give."""
    found = figures()["coverage"]
    return f"90 % intervals cover {percent(found['power'], 0)} of the measured powers and {percent(found['energy'], 0)} of the energies."


def constants() -> str:
    """The fitted constants, powers as shares of the limit of the board."""
    found = figures()["constants"]
    rows = [[f"`active`, {name}", f"{value:.3g}"] for name, value in found["active"].items()]
    rows += [[f"`{name.removesuffix('_w')}`", f"{value:.3g}"] for name, value in found["common"].items()]
    return table(["constant", "value"], rows)


def sample() -> str:
    """What the tables rest on."""
    found = figures()
    excluded = "; ".join(f"{count(each['n'])} {each['reason']}" for each in found["excluded"])
    return (
        f"{count(found['read'])} rows read, {count(found['runs'])} valid and text-only; "
        f"{count(found['not_planned'])} of these use models that the catalogue lacks; {count(found['served'])} were simulated. Excluded: {excluded}."
    )
