"""Tables of predicted probabilities that objectives hold, against measured runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from figures.blocks import result
from figures.campaigns import CAMPAIGNS
from figures.text import NONE, count, percent, table


def figures() -> dict[str, Any]:
    """Return the recorded figures."""
    return result("decisions")


def reliability() -> str:
    """Table by band of probability: number of decisions, mean probability, and share that held."""
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
    """Table by campaign: decisions, those predicted at 90 % or more, and Brier scores beside two simpler rules."""
    recorded = figures()["scores"]
    rows = [
        _row(CAMPAIGNS.get(name, "all"), recorded[name])
        for name in (*(one for one in CAMPAIGNS if one in recorded), "all")
    ]
    head = ["campaign (left out of the fit)", "decisions", "held", "predicted at 90 % or more", "of these held"]
    return table([*head, "Brier score", "one factor", "always yes"], rows)


def _row(title: str, score: Mapping[str, Any]) -> list[str]:
    """Return a campaign's table row."""
    briers = [
        NONE if score[name] is None else f"{score[name]:.3f}" for name in ("brier", "brier_factor", "brier_always")
    ]
    sure = score["sure"]
    return [title, count(score["n"]), percent(score["held"], 0), count(sure["n"]), percent(sure["held"], 0), *briers]


def drawn() -> str:
    """Sentence on how the decisions were drawn."""
    recorded = figures()
    low, high = recorded["drawn"]
    return (
        f"{count(recorded['scores']['all']['n'])} decisions on at most {recorded['sample']} runs of each campaign, one per measured metric of a "
        f"run. Objectives are drawn log-uniformly from {low:g} to {high:g} of the measured value."
    )
