"""Views of `decisions`: how often objectives hold that are said to hold with a probability, on measured runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from figures.blocks import result
from figures.campaigns import CAMPAIGNS
from figures.text import NONE, count, percent, table


def figures() -> dict[str, Any]:
    """Return the figures of the result."""
    return result("decisions")


def reliability() -> str:
    """By band of probability: decisions, the mean probability, and the share that held."""
    rows = [
        [
            f"{100 * row['from']:.0f} to {100 * row['to']:.0f} %",
            count(row["n"]),
            percent(row["said"]),
            percent(row["held"]),
        ]
        for row in figures()["reliability"]
    ]
    return table(["predicted probability", "decisions", "mean prediction", "held"], rows)


def scores() -> str:
    """By campaign: decisions, those said to hold with 90 % or more, and Brier scores beside two simpler ways."""
    found = figures()["scores"]
    rows = [
        _row(CAMPAIGNS.get(name, "all"), found[name]) for name in (*(one for one in CAMPAIGNS if one in found), "all")
    ]
    head = ["campaign (left out of the fit)", "decisions", "held", "predicted at 90 % or more", "of these held"]
    return table([*head, "Brier score", "one factor", "always yes"], rows)


def _row(title: str, found: Mapping[str, Any]) -> list[str]:
    briers = [
        NONE if found[name] is None else f"{found[name]:.3f}" for name in ("brier", "brier_factor", "brier_always")
    ]
    sure = found["sure"]
    return [title, count(found["n"]), percent(found["held"], 0), count(sure["n"]), percent(sure["held"], 0), *briers]


def drawn() -> str:
    """How the decisions were made."""
    found = figures()
    low, high = found["drawn"]
    return (
        f"{count(found['scores']['all']['n'])} decisions on at most {found['sample']} runs of each campaign, one per measured metric of a "
        f"run. Objectives are drawn log-uniformly from {low:g} to {high:g} of the measured value."
    )
